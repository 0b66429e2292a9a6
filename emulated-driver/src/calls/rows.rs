//! Copies of rows: from a part of a matrix or of a volume to another. Arrays are not emulated.

use super::copy::{End, Volume, copy, copy_at_once};
use super::submit::is_of_device;
use crate::call::Call;
use crate::state::contexts;
use crate::values::code::{Answer, Code};
use crate::values::pointers::In;
use crate::values::structs::{Copy2D, Copy3D, End2D, End3D};

/// `cuMemcpy2D_v2`.
pub(crate) fn cuMemcpy2D_v2(call: &mut Call, wanted: In<Copy2D>) -> Answer<()> {
    let (to, from, volume) = ends(call, &solid(wanted.read()?))?;
    copy_at_once(call, to, from, volume)
}

/// `cuMemcpy2DUnaligned_v2`. No pitch of the emulated driver is too odd for [`cuMemcpy2D_v2`].
pub(crate) fn cuMemcpy2DUnaligned_v2(call: &mut Call, wanted: In<Copy2D>) -> Answer<()> {
    cuMemcpy2D_v2(call, wanted)
}

/// `cuMemcpy3D_v2`.
pub(crate) fn cuMemcpy3D_v2(call: &mut Call, wanted: In<Copy3D>) -> Answer<()> {
    let (to, from, volume) = ends(call, &wanted.read()?)?;
    copy_at_once(call, to, from, volume)
}

/// `cuMemcpy3DPeer`.
pub(crate) fn cuMemcpy3DPeer(call: &mut Call, wanted: In<Copy3D>) -> Answer<()> {
    check_contexts(call, wanted)?;
    cuMemcpy3D_v2(call, wanted)
}

/// `cuMemcpy2DAsync_v2`.
pub(crate) fn cuMemcpy2DAsync_v2(call: &mut Call, wanted: In<Copy2D>, stream: u64) -> Answer<()> {
    let (to, from, volume) = ends(call, &solid(wanted.read()?))?;
    copy(call, to, from, volume, stream)
}

/// `cuMemcpy3DAsync_v2`.
pub(crate) fn cuMemcpy3DAsync_v2(call: &mut Call, wanted: In<Copy3D>, stream: u64) -> Answer<()> {
    let (to, from, volume) = ends(call, &wanted.read()?)?;
    copy(call, to, from, volume, stream)
}

/// `cuMemcpy3DPeerAsync`.
pub(crate) fn cuMemcpy3DPeerAsync(call: &mut Call, wanted: In<Copy3D>, stream: u64) -> Answer<()> {
    check_contexts(call, wanted)?;
    cuMemcpy3DAsync_v2(call, wanted, stream)
}

/// Refuses a copy between contexts of which one is dead or broken. The host's memory has no
/// context.
fn check_contexts(call: &Call, wanted: In<Copy3D>) -> Answer<()> {
    let Copy3D { from, to, .. } = wanted.read()?;
    let of_devices = [from, to].into_iter().filter(|end| end.kind == 2);
    of_devices.map(|end| end.context).try_for_each(|context| contexts::check(&call.state, context))
}

/// Returns a copy of a matrix as a copy of a volume with one slice.
fn solid(wanted: Copy2D) -> Copy3D {
    let end = |end: End2D| {
        let End2D { x, y, kind, host, device, array, pitch } = end;
        End3D { x, y, kind, host, device, array, pitch, ..End3D::default() }
    };
    Copy3D { from: end(wanted.from), to: end(wanted.to), width: wanted.width, height: wanted.height, depth: 1 }
}

/// Returns destination, source and volume of a copy.
fn ends(call: &Call, wanted: &Copy3D) -> Answer<(End, End, Volume)> {
    let volume = [wanted.width, wanted.height, wanted.depth].map(|size| size as u64);
    Ok((end(call, &wanted.to, volume)?, end(call, &wanted.from, volume)?, volume))
}

/// Returns the end of a copy of a volume. A line must have room for a row after the bytes before
/// the row, and a slice for its rows after the lines before the rows.
fn end(call: &Call, wanted: &End3D, [width, height, depth]: Volume) -> Answer<End> {
    let (on_device, start) = match wanted.kind {
        1 => (false, wanted.host),
        2 => (true, wanted.device),
        3 => return Err(Code::NOT_SUPPORTED),
        4 => (is_of_device(call, wanted.device), wanted.device),
        _ => return Err(Code::INVALID_VALUE),
    };
    let [x, y, z, pitch, lines] = [wanted.x, wanted.y, wanted.z, wanted.pitch, wanted.height].map(|size| size as u64);
    let has_slices = depth > 1 || z > 0;
    let has_lines = has_slices || height > 1 || y > 0;
    let narrow = x.checked_add(width).is_none_or(|bytes| has_lines && pitch < bytes);
    let low = y.checked_add(height).is_none_or(|rows| has_slices && lines < rows);
    if wanted.level != 0 || narrow || low {
        return Err(Code::INVALID_VALUE);
    }
    let slice = pitch.checked_mul(lines).ok_or(Code::INVALID_VALUE)?;
    let before = z.checked_mul(slice).zip(y.checked_mul(pitch));
    let before = before.and_then(|(slices, lines)| slices.checked_add(lines)?.checked_add(x));
    let first = before.and_then(|before| start.checked_add(before)).filter(|_| start != 0);
    first.map(|first| End { on_device, first, pitch, slice }).ok_or(Code::INVALID_VALUE)
}
