//! Memory of `cuMemAlloc` that other processes may open, and memory of other processes that is open
//! here.

use crate::values::structs::IpcMemory;
use std::collections::BTreeMap;
use std::fs::File;

/// Memory that other processes may open.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) handle: IpcMemory,
    /// The description of the memory, which other processes read. Gone with the memory.
    pub(crate) _description: File,
}

/// Memory of another process, open here.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) handle: IpcMemory,
    pub(crate) context: u64,
    /// Number of opens without a close.
    pub(crate) opens: u64,
}

/// All memory shared through handles.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// By the number of the allocation.
    pub(crate) offers: BTreeMap<u64, Offer>,
    /// By address.
    pub(crate) opened: BTreeMap<u64, Opened>,
}
