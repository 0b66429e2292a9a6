//! The plug-in for `PyTorch`: the functions that `torch.cuda.memory.CUDAPluggableAllocator` takes, over one allocator of the
//! whole process. `include/cachalot_torch.h` describes each of them.
//!
//! ```text
//! requests · hooks · pools · control    the exported functions
//! plugin                                the one allocator, made when it is first needed
//! settings                              what it is made with
//! diagnostics                           what nobody can be answered, said once on the standard error
//! python                                the calling thread's Python frames
//! ```
//!
//! What takes C++ to do, to throw an exception and to call a `std::function`, is in `ffi/torch/shim.cpp`.

mod control;
mod diagnostics;
mod hooks;
mod plugin;
mod pools;
mod python;
mod requests;
mod settings;

pub use control::*;
pub use hooks::*;
pub use pools::*;
pub use requests::*;
