//! Arrays: memory of a device with a layout of the driver's own. The contents are not emulated.

use crate::call::Call;
use crate::state::arrays;
use crate::tables::array::Array;
use crate::values::code::{Answer, Code};
use crate::values::pointers::{In, Out};
use crate::values::structs::{ArrayShape, SolidShape};

/// `CUDA_ARRAY3D_CUBEMAP`: six faces in a depth of six.
const FLAGS: u32 = 0x7f;

/// `cuArrayCreate_v2`: an array with one row, or with rows.
pub(crate) fn cuArrayCreate_v2(call: &mut Call, array: Out<u64>, shape: In<ArrayShape>) -> Answer<()> {
    let ArrayShape { width, height, format, channels } = shape.read()?;
    call.answer(array, |call| create(call, SolidShape { width, height, depth: 0, format, channels, flags: 0 }, None))
}

/// `cuArray3DCreate_v2`: an array with slices, or a layered one.
pub(crate) fn cuArray3DCreate_v2(call: &mut Call, array: Out<u64>, shape: In<SolidShape>) -> Answer<()> {
    let shape = shape.read()?;
    call.answer(array, |call| create(call, shape, None))
}

/// `cuMipmappedArrayCreate`: an array of which each level has half the size of the one before.
pub(crate) fn cuMipmappedArrayCreate(
    call: &mut Call,
    array: Out<u64>,
    shape: In<SolidShape>,
    levels: u32,
) -> Answer<()> {
    let shape = shape.read()?;
    call.answer(array, |call| create(call, shape, Some(levels)))
}

/// `cuArrayDestroy`.
pub(crate) fn cuArrayDestroy(call: &mut Call, array: u64) -> Answer<()> {
    destroy(call, array, false)
}

/// `cuMipmappedArrayDestroy`.
pub(crate) fn cuMipmappedArrayDestroy(call: &mut Call, array: u64) -> Answer<()> {
    destroy(call, array, true)
}

/// Destroys an array after the work of its context.
fn destroy(call: &mut Call, array: u64, is_mipmapped: bool) -> Answer<()> {
    let context = arrays::check(&call.state, array, is_mipmapped)?;
    call.wait_for_work_of(context);
    arrays::remove(&mut call.state, array, is_mipmapped)
}

/// Creates an array in the current context. A size of 0 means that the array has no such direction.
fn create(call: &mut Call, shape: SolidShape, levels: Option<u32>) -> Answer<u64> {
    let SolidShape { width, height, depth, format, channels, flags } = shape;
    let channel: u64 = match format {
        1 | 8 => 1,
        2 | 9 | 0x10 => 2,
        3 | 10 | 0x20 => 4,
        _ => return Err(Code::INVALID_VALUE),
    };
    if width == 0 || (depth > 0 && height == 0) || !matches!(channels, 1 | 2 | 4) || levels == Some(0) {
        return Err(Code::INVALID_VALUE);
    }
    if flags & !FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let level = |level: u32| {
        let sizes = [width, height, depth].map(|size| (size as u64 >> level).max(1));
        sizes.into_iter().try_fold(channel * u64::from(channels), u64::checked_mul)
    };
    let bytes = (0..levels.unwrap_or(1).min(u64::BITS)).try_fold(0_u64, |all, at| all.checked_add(level(at)?));
    let context = call.context;
    let device = call.state.contexts[&context].device;
    let memory = call.state.devices[device].spend(bytes.ok_or(Code::OUT_OF_MEMORY)?)?;
    let handle = call.state.arrays.add(Array { context, is_mipmapped: levels.is_some(), memory });
    call.made("array", handle);
    Ok(handle)
}
