//! Loaded modules, and the kernels found in them.

use crate::backing::pages::Extent;
use crate::tables::work::KernelCode;
use crate::values::code::Answer;
use libloading::os::unix::Library as Object;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A loaded object.
#[derive(Debug)]
pub(crate) struct Module {
    /// The object. Kernels share the ownership, and the object is never unloaded while work may be
    /// queued. `None`: machine code of a GPU, whose kernels are skipped.
    pub(crate) object: Option<Arc<Object>>,
    /// Whether a library has loaded the module.
    pub(crate) of_library: bool,
    /// The context, whose end is the module's, or 0.
    pub(crate) context: u64,
    /// The device memory of the module.
    pub(crate) own_memory: Vec<Extent>,
}

/// A library of `cuLibraryLoadData`.
#[derive(Debug)]
pub(crate) struct Library {
    /// The path of the object, or the refusal of the image at the first use. No path: machine code
    /// of a GPU, whose kernels are skipped.
    pub(crate) path: Answer<Option<String>>,
    /// The handle of the module, once loaded.
    pub(crate) module: Option<u64>,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// `None`: a kernel without code for the host, which does nothing.
    pub(crate) code: Option<KernelCode>,
    /// Bytes of each argument.
    pub(crate) sizes: Arc<[usize]>,
    /// A mask of the arguments with device addresses.
    pub(crate) addresses: u64,
    /// The attributes that the program has set.
    pub(crate) set: BTreeMap<i32, i32>,
    /// Keeps the code in memory.
    pub(crate) _object: Option<Arc<Object>>,
}
