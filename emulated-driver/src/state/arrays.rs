//! The end of an array: destroyed, or with its context.

use super::driver::State;
use crate::values::code::{Answer, Code};

/// Returns the context of an array of the given kind.
pub(crate) fn check(state: &State, handle: u64, is_mipmapped: bool) -> Answer<u64> {
    let array = state.arrays.get(handle)?;
    if array.is_mipmapped == is_mipmapped { Ok(array.context) } else { Err(Code::INVALID_HANDLE) }
}

/// Removes an array, and releases its memory.
pub(crate) fn remove(state: &mut State, handle: u64, is_mipmapped: bool) -> Answer<()> {
    check(state, handle, is_mipmapped)?;
    let array = state.arrays.remove(handle)?;
    if let Some(device) = state.contexts.get(&array.context).map(|context| context.device) {
        state.devices[device].pages.give(&array.memory);
    }
    Ok(())
}

/// Removes the arrays of an ending context, which is still in the table.
pub(crate) fn remove_all(state: &mut State, context: u64) {
    let its = state.arrays.iter().filter(|(_, array)| array.context == context);
    let its: Vec<(u64, bool)> = its.map(|(handle, array)| (handle, array.is_mipmapped)).collect();
    for (handle, is_mipmapped) in its {
        let _gone = remove(state, handle, is_mipmapped);
    }
}
