//! Loaded modules, and the kernels found in them.

use crate::tables::work::KernelCode;
use libloading::os::unix::Library;
use std::sync::Arc;

/// A loaded object.
#[derive(Debug)]
pub(crate) struct Module {
    /// The object. Kernels share the ownership, and the object is never unloaded while work may be
    /// queued.
    pub(crate) object: Arc<Library>,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) code: KernelCode,
    /// Bytes of each argument.
    pub(crate) sizes: Arc<[usize]>,
    /// A mask of the arguments with device addresses.
    pub(crate) addresses: u64,
    /// Keeps the code in memory.
    pub(crate) _object: Arc<Library>,
}
