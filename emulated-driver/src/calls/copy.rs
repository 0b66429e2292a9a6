//! One copy, of a line or of rows: checks of the ends, and the order with the host as documented
//! for pageable and for pinned memory.

use super::stream::finish;
use super::submit::{is_of_device, resolve, submit};
use crate::backing::space::DeviceAccess;
use crate::call::Call;
use crate::state::captures;
use crate::tables::work::{Place, Work};
use crate::values::code::{Answer, Code};
use std::sync::Arc;

/// Bytes of a row, rows of a slice, and slices.
pub(crate) type Volume = [u64; 3];

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) on_device: bool,
    /// The address of the first byte.
    pub(crate) first: u64,
    /// Bytes from a row to the next.
    pub(crate) pitch: u64,
    /// Bytes from a slice to the next.
    pub(crate) slice: u64,
}

/// The owner of the memory at an end of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A device's, in the view of the device with this index.
    Device(usize),
    /// The host's, pinned.
    Pinned,
    /// The host's.
    Pageable,
}

impl End {
    /// Returns an end of a copy without rows, in device memory.
    pub(crate) fn device(first: u64) -> Self {
        Self { on_device: true, first, pitch: 0, slice: 0 }
    }

    /// Returns an end of a copy without rows, in memory of the host.
    pub(crate) fn host(first: u64) -> Self {
        Self { on_device: false, ..Self::device(first) }
    }

    /// Returns an end of a copy without rows, wherever the address is, as with unified addressing.
    pub(crate) fn anywhere(call: &Call, first: u64) -> Self {
        Self { on_device: is_of_device(call, first), ..Self::device(first) }
    }

    /// Returns the bytes from the first to the last of a volume.
    fn span(self, [width, height, depth]: Volume) -> Answer<u64> {
        let rows = (height - 1).checked_mul(self.pitch);
        let slices = (depth - 1).checked_mul(self.slice);
        let before = rows.zip(slices).and_then(|(rows, slices)| rows.checked_add(slices));
        before.and_then(|before| before.checked_add(width)).ok_or(Code::INVALID_VALUE)
    }

    /// Returns the owner of all bytes of a volume.
    fn owner(self, call: &mut Call, volume: Volume, stream: u64, needed: DeviceAccess) -> Answer<Owner> {
        let bytes = self.span(volume)?;
        if self.on_device {
            return resolve(call, self.first, bytes, stream, needed).map(Owner::Device);
        }
        if self.first == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let pinned = call.state.host_memory.is_pinned(self.first, bytes)?;
        Ok(if pinned { Owner::Pinned } else { Owner::Pageable })
    }
}

/// Queues a copy. Pageable memory of the host may be used again when the call returns, as on a real
/// device: a copy to a device takes the contents along, and a copy to the host is done. A copy from
/// or to pinned memory reads or writes the host when the copy runs. A capture records the copy, and
/// each replay uses the host's memory.
pub(crate) fn copy(call: &mut Call, to: End, from: End, volume: Volume, stream: u64) -> Answer<()> {
    if volume.contains(&0) {
        return Ok(());
    }
    let target = to.owner(call, volume, stream, DeviceAccess::ReadWrite)?;
    let source = from.owner(call, volume, stream, DeviceAccess::Read)?;
    let to_device = matches!(target, Owner::Device(_));
    let takes_along = source == Owner::Pageable && to_device && !is_captured(call, stream)?;
    let [width, height, depth] = volume;
    let row = |slice: u64, row: u64| {
        let at = |end: End| end.first + slice * end.slice + row * end.pitch;
        let from = if takes_along {
            // SAFETY: the caller guarantees the bytes of every row, as for the real function.
            let contents = unsafe { std::slice::from_raw_parts(at(from) as *const u8, width as usize) };
            Place::Kept(Arc::from(contents))
        } else {
            source.place(at(from))
        };
        Work::Copy { to: target.place(at(to)), from, bytes: width }
    };
    let rows = (0..depth).flat_map(|slice| (0..height).map(move |number| (slice, number)));
    let rows = rows.map(|(slice, number)| row(slice, number)).collect();
    submit(call, stream, Work::in_order(rows))?;
    let runs_later = target == Owner::Pinned && matches!(source, Owner::Device(_));
    if to_device || runs_later { Ok(()) } else { done(call, stream) }
}

/// Queues a copy on stream 0. The copy is done on return, unless both ends are in device memory.
pub(crate) fn copy_at_once(call: &mut Call, to: End, from: End, volume: Volume) -> Answer<()> {
    copy(call, to, from, volume, 0)?;
    if to.on_device && from.on_device { Ok(()) } else { done(call, 0) }
}

/// Waits for the work of a stream. Work of a captured stream is recorded, and no thread waits.
pub(crate) fn done(call: &mut Call, stream: u64) -> Answer<()> {
    if is_captured(call, stream)? {
        return Ok(());
    }
    let queue = call.queue(stream)?;
    finish(call, queue)
}

/// Returns whether a stream captures.
fn is_captured(call: &mut Call, stream: u64) -> Answer<bool> {
    let queue = call.queue(stream)?;
    captures::of_queue(&mut call.state, queue).map(|capture| capture.is_some())
}

impl Owner {
    /// Returns a place in the memory.
    fn place(self, address: u64) -> Place {
        match self {
            Self::Device(device) => Place::Device { device, address },
            Self::Pinned | Self::Pageable => Place::Host(address),
        }
    }
}
