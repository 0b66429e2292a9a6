//! The end of physical memory of `cuMemCreate`: once it has no handle, no mapping and no other
//! process that uses it.

use super::driver::State;
use crate::backing::sharing::Export;
use crate::tables::virtual_memory::{Home, Physical};

/// Releases physical memory without a handle and without mappings, unless another process may use
/// it.
pub(crate) fn drop_unused(state: &mut State, number: u64) {
    let memory = &mut state.virtual_memory;
    let unused = |physical: &Physical| !physical.is_used_here() && !physical.exports.iter().any(Export::is_in_use);
    if memory.physical.get(&number).is_some_and(unused)
        && let Some(physical) = memory.physical.remove(&number)
        && physical.imported.is_none()
    {
        let pages = match physical.home {
            Home::Device(device) => Some(&mut state.devices[device].pages),
            Home::Host => memory.host.as_mut(),
        };
        pages.into_iter().for_each(|pages| pages.give(&physical.extents));
    }
}

/// Releases physical memory that other processes have used alone, and use no longer.
pub(crate) fn collect(state: &mut State) {
    let left = state.virtual_memory.physical.iter().filter(|(_, physical)| !physical.is_used_here());
    for number in left.map(|(&number, _)| number).collect::<Vec<_>>() {
        drop_unused(state, number);
    }
}
