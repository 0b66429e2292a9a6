//! What programs ask and set of a kernel. No machine code tells its needs, so kernels differ only
//! in what a program has set.

use crate::call::Call;
use crate::state::devices;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::ffi::c_int;

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MAX_THREADS: c_int = 0;
/// `CU_FUNC_ATTRIBUTE_NUM_REGS`.
const REGISTERS: c_int = 4;
/// `CU_FUNC_ATTRIBUTE_PTX_VERSION` and `CU_FUNC_ATTRIBUTE_BINARY_VERSION`: those of the device's
/// compute capability.
const VERSIONS: [c_int; 2] = [5, 6];
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DYNAMIC_SHARED: c_int = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`.
const CARVEOUT: c_int = 9;
/// The first and the last attribute of clusters that a program may set.
const CLUSTERS: std::ops::RangeInclusive<c_int> = 11..=15;

/// Attributes of the device: threads in a block, shared memory of a block without and with a
/// kernel's consent, and the two numbers of the compute capability.
const OF_DEVICE: [c_int; 5] = [1, 8, 97, 75, 76];

/// Returns the numbers of [`OF_DEVICE`], of the current context's device.
fn of_device(call: &Call) -> Answer<[c_int; 5]> {
    let device = call.state.contexts.get(&call.context).ok_or(Code::INVALID_CONTEXT)?.device;
    let mut numbers = [0; 5];
    for (number, attribute) in numbers.iter_mut().zip(OF_DEVICE) {
        *number = devices::attribute(&call.state, attribute, device as c_int)?;
    }
    Ok(numbers)
}

/// `cuFuncGetAttribute`.
pub(crate) fn cuFuncGetAttribute(call: &mut Call, value: Out<c_int>, attribute: u32, function: u64) -> Answer<()> {
    let attribute = attribute.cast_signed();
    call.answer(value, |call| {
        let set = call.state.functions.get(function)?.set.get(&attribute).copied();
        let [threads, shared, _, major, minor] = of_device(call)?;
        Ok(match attribute {
            _ if set.is_some() => set.unwrap_or_default(),
            MAX_THREADS => threads,
            REGISTERS => 32,
            _ if VERSIONS.contains(&attribute) => 10 * major + minor,
            DYNAMIC_SHARED => shared,
            CARVEOUT => -1,
            _ if (0..=*CLUSTERS.end()).contains(&attribute) => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    })
}

/// `cuFuncSetAttribute`. A limit of shared memory is checked, and nothing else has an effect.
pub(crate) fn cuFuncSetAttribute(call: &mut Call, function: u64, attribute: u32, value: c_int) -> Answer<()> {
    let attribute = attribute.cast_signed();
    call.state.functions.get(function)?;
    let most_shared = of_device(call)?[2];
    let known = match attribute {
        DYNAMIC_SHARED => (0..=most_shared).contains(&value),
        CARVEOUT => (-1..=100).contains(&value),
        _ => CLUSTERS.contains(&attribute) && value >= 0,
    };
    if !known {
        return Err(Code::INVALID_VALUE);
    }
    call.state.functions.get_mut(function)?.set.insert(attribute, value);
    Ok(())
}

/// `cuFuncSetCacheConfig`. Caches are not emulated.
pub(crate) fn cuFuncSetCacheConfig(call: &mut Call, function: u64, config: u32) -> Answer<()> {
    call.state.functions.get(function)?;
    if config <= 3 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}
