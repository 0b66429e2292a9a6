//! Loaded modules, and the kernels found in them.

use crate::tables::work::KernelCode;
use crate::values::code::Answer;
use libloading::os::unix::Library as Object;
use std::sync::Arc;

/// A loaded object.
#[derive(Debug)]
pub(crate) struct Module {
    /// The object. Kernels share the ownership, and the object is never unloaded while work may be
    /// queued.
    pub(crate) object: Arc<Object>,
    /// Whether a library has loaded the module.
    pub(crate) of_library: bool,
}

/// A library of `cuLibraryLoadData`.
#[derive(Debug)]
pub(crate) struct Library {
    /// The path of the object, or the refusal of the image at the first use.
    pub(crate) path: Answer<String>,
    /// The handle of the module, once loaded.
    pub(crate) module: Option<u64>,
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
    pub(crate) _object: Arc<Object>,
}
