//! The end of a module: unloaded, or with its context.

use super::driver::State;
use crate::values::code::Answer;

/// Removes a module, and releases its device memory.
pub(crate) fn remove(state: &mut State, handle: u64) -> Answer<()> {
    let module = state.modules.remove(handle)?;
    if let Some(device) = state.contexts.get(&module.context).map(|context| context.device) {
        state.devices[device].pages.give(&module.own_memory);
    }
    // Work queued earlier may still run the object's code.
    std::mem::forget(module.object);
    Ok(())
}

/// Removes the modules of an ending context, which is still in the table.
pub(crate) fn remove_all(state: &mut State, context: u64) {
    let its: Vec<u64> =
        state.modules.iter().filter(|(_, module)| module.context == context).map(|(handle, _)| handle).collect();
    for handle in its {
        let _gone = remove(state, handle);
    }
}
