//! The plug-in for `PyTorch`: the functions for `torch.cuda.memory.CUDAPluggableAllocator`, over
//! one allocator per process. `include/cachalot_torch.h` documents each function.
//!
//! ```text
//! requests · hooks · pools · control    the exported functions
//! introspection · checkpoint            those of the whole allocator, see `ffi/torch/whole.cpp`
//! plugin                                the allocator, created on first use
//! settings                              the configuration of the allocator
//! diagnostics                           one-time reports of failures without a return value
//! python                                the calling thread's Python frames
//! ```
//!
//! Code that needs C++, to throw an exception or to call a `std::function`, is in
//! `ffi/torch/shim.cpp`.

mod checkpoint;
mod control;
mod diagnostics;
mod hooks;
mod introspection;
mod plugin;
mod pools;
mod python;
mod requests;
mod settings;

pub use checkpoint::*;
pub use control::*;
pub use hooks::*;
pub use introspection::*;
pub use pools::*;
pub use requests::*;
