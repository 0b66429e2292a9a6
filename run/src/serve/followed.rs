//! Memory of the program under the driver's own handles, followed to its end.
//!
//! ```text
//! handle ─┐
//! handle ─┼▶ memory, charged under its name     until no handle and no mapping is left
//! mapping ┘
//! ```
//!
//! A program may release the handle right after the map, and the driver keeps the memory until the
//! last unmap. So the charge ends with the last handle and mapping, and not with the release. The
//! driver may use a released handle again for other memory, and may have several handles of one
//! memory (`cuMemRetainAllocationHandle`, an import of an own export): hence names of our own.
//!
//! The records call no driver, and the lock is never held across a call.

use cachalot_cuda::driver::types::{CuDevicePtr, CuMemHandle};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The memory that is followed. All methods may be called from every thread.
#[derive(Default)]
pub(super) struct Followed(Mutex<FollowedRecords>);

#[derive(Default)]
struct FollowedRecords {
    /// The handles that the program has, with how often, and the names of their memory.
    handles: HashMap<u64, (u64, u64)>,
    /// The handles and mappings of each memory, and calls that are about to map.
    uses: HashMap<u64, u64>,
    mappings: BTreeMap<CuDevicePtr, FollowedMapping>,
    /// Descriptors to which the program has exported memory, and the memory's name.
    exports: HashMap<i32, u64>,
}

/// Addresses with followed memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FollowedMapping {
    pub(super) name: u64,
    bytes: u64,
}

/// The answer to a release of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReleasedHandle {
    /// The handle is of memory that nobody follows.
    Unknown,
    /// The memory of the name lives on.
    Lives(u64),
    /// Neither a handle nor a mapping is left of the memory of the name.
    Last(u64),
}

impl Followed {
    fn lock(&self) -> MutexGuard<'_, FollowedRecords> {
        // Each change of the records is complete before the next call that may panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a handle of the memory named `name`, which the program has from now on.
    pub(super) fn add_handle(&self, handle: CuMemHandle, name: u64) {
        let mut records = self.lock();
        *records.uses.entry(name).or_insert(0) += 1;
        let entry = records.handles.entry(handle.0).or_insert((name, 0));
        *entry = (name, if entry.0 == name { entry.1 + 1 } else { 1 });
    }

    /// Returns the name of the memory mapped at an address.
    pub(super) fn name_at(&self, address: CuDevicePtr) -> Option<u64> {
        let records = self.lock();
        let (at, mapping) = records.mappings.range(..=address).next_back()?;
        (address < at.saturating_add(mapping.bytes)).then_some(mapping.name)
    }

    /// Returns the name of a handle's memory.
    pub(super) fn name_of(&self, handle: CuMemHandle) -> Option<u64> {
        self.lock().handles.get(&handle.0).map(|&(name, _)| name)
    }

    /// Takes a handle back, ahead of the call to release it: another thread may get the handle at
    /// once.
    pub(super) fn release(&self, handle: CuMemHandle) -> ReleasedHandle {
        let mut records = self.lock();
        let Some((name, count)) = records.handles.get_mut(&handle.0) else { return ReleasedHandle::Unknown };
        let name = *name;
        *count -= 1;
        if *count == 0 {
            records.handles.remove(&handle.0);
        }
        if records.end_use(name) { ReleasedHandle::Last(name) } else { ReleasedHandle::Lives(name) }
    }

    /// Starts a call that maps a handle's memory. The memory lives until [`mapped`](Self::mapped)
    /// or [`end_use`](Self::end_use).
    pub(super) fn begin_use(&self, handle: CuMemHandle) -> Option<u64> {
        let mut records = self.lock();
        let &(name, _) = records.handles.get(&handle.0)?;
        *records.uses.entry(name).or_insert(0) += 1;
        Some(name)
    }

    /// Notes a mapping, started by [`begin_use`](Self::begin_use).
    pub(super) fn mapped(&self, address: CuDevicePtr, bytes: u64, name: u64) {
        self.lock().mappings.insert(address, FollowedMapping { name, bytes });
    }

    /// Ends a use. Returns whether it was the last.
    pub(super) fn end_use(&self, name: u64) -> bool {
        self.lock().end_use(name)
    }

    /// Takes out the mappings in a range, ahead of a call to unmap the range.
    pub(super) fn take_mappings(&self, address: CuDevicePtr, bytes: u64) -> Vec<(CuDevicePtr, FollowedMapping)> {
        let mut records = self.lock();
        let end = address.saturating_add(bytes);
        let inside = records.mappings.range(address..end);
        let inside = inside.filter(|(at, mapping)| at.saturating_add(mapping.bytes) <= end);
        let inside: Vec<CuDevicePtr> = inside.map(|(&at, _)| at).collect();
        inside.into_iter().filter_map(|at| records.mappings.remove_entry(&at)).collect()
    }

    /// Puts mappings back that the driver has not unmapped.
    pub(super) fn put_mappings_back(&self, mappings: Vec<(CuDevicePtr, FollowedMapping)>) {
        self.lock().mappings.extend(mappings);
    }

    /// Notes an export of memory to a descriptor.
    pub(super) fn exported(&self, descriptor: i32, name: u64) {
        self.lock().exports.insert(descriptor, name);
    }

    /// Returns the name of the memory that the program has exported to a descriptor. The descriptor
    /// may be another by now: nothing tells.
    pub(super) fn export(&self, descriptor: i32) -> Option<u64> {
        self.lock().exports.get(&descriptor).copied()
    }

    /// Returns whether memory has a handle or a mapping.
    pub(super) fn has(&self, name: u64) -> bool {
        self.lock().uses.contains_key(&name)
    }
}

impl FollowedRecords {
    /// Ends a use. Returns whether it was the last. Memory without a use is no export any longer.
    fn end_use(&mut self, name: u64) -> bool {
        let Some(uses) = self.uses.get_mut(&name) else { return false };
        *uses -= 1;
        let is_last = *uses == 0;
        if is_last {
            self.uses.remove(&name);
            self.exports.retain(|_, of| *of != name);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::{Followed, ReleasedHandle};
    use cachalot_cuda::driver::types::CuMemHandle;

    #[test]
    fn memory_ends_with_the_last_of_its_handles_and_mappings() {
        let (followed, handle) = (Followed::default(), CuMemHandle(7));
        followed.add_handle(handle, 1);
        for at in [10, 20] {
            assert_eq!(followed.begin_use(handle), Some(1));
            followed.mapped(at, 10, 1);
        }
        assert_eq!(followed.release(handle), ReleasedHandle::Lives(1));
        assert_eq!((followed.release(handle), followed.begin_use(handle)), (ReleasedHandle::Unknown, None));
        // The driver uses the handle again for other memory.
        followed.add_handle(handle, 2);
        assert_eq!((followed.name_at(19), followed.name_at(30), followed.name_of(handle)), (Some(1), None, Some(2)));
        // A handle of the first memory, by an address.
        followed.add_handle(CuMemHandle(8), 1);
        let taken = followed.take_mappings(10, 15);
        assert_eq!(taken.len(), 1, "only a part of the second is in the range");
        followed.put_mappings_back(taken);
        for (_, mapping) in followed.take_mappings(0, 100) {
            assert!(!followed.end_use(mapping.name));
        }
        assert_eq!(followed.release(CuMemHandle(8)), ReleasedHandle::Last(1));
        assert_eq!((followed.has(1), followed.release(handle)), (false, ReleasedHandle::Last(2)));
    }

    #[test]
    fn an_import_of_an_own_export_is_the_same_memory() {
        let followed = Followed::default();
        followed.add_handle(CuMemHandle(7), 1);
        followed.exported(5, 1);
        let name = followed.export(5).expect("exported");
        followed.add_handle(CuMemHandle(9), name);
        assert_eq!(followed.release(CuMemHandle(7)), ReleasedHandle::Lives(1));
        assert_eq!(followed.release(CuMemHandle(9)), ReleasedHandle::Last(1));
        assert_eq!(followed.export(5), None);
    }
}
