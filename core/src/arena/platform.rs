//! The types that an allocator is built on.

use crate::device::DeviceMemory;
use crate::page_map::PageMap;
use crate::sync::Lock;
use crate::tables::Storage;
use core::marker::PhantomData;

/// The types that an allocator is built on: the devices, the lock of a heap, and the tables.
/// Together they are one parameter for all code of the arena.
pub(crate) trait Platform: Copy + 'static {
    /// The devices.
    type Device: DeviceMemory;
    /// The lock of a heap.
    type Lock: Lock;
    /// The kind of tables.
    type Storage: Storage;
}

/// The platform of devices `D`, locks `R` and tables `S`. It is only a type, and has no values.
pub(crate) type Built<D, R, S> = PhantomData<fn() -> (D, R, S)>;

impl<D: DeviceMemory, R: Lock, S: Storage> Platform for Built<D, R, S> {
    type Device = D;
    type Lock = R;
    type Storage = S;
}

/// The page map of an allocator on a platform.
pub(crate) type OwnerMap<P> = PageMap<<P as Platform>::Lock, <P as Platform>::Storage>;
