//! The exported functions, in the order of the header, which describes each of them.
//!
//! Every body runs inside the panic boundary, which turns a panic into a status; what C passes in is checked before it is used.

mod allocators;
mod cache;
mod callbacks;
mod introspection;
mod memory;
mod planned;
mod pools;
mod simulated;
mod statistics;
mod version;

pub use allocators::*;
pub use cache::*;
pub use callbacks::*;
pub use introspection::*;
pub use memory::*;
pub use planned::*;
pub use pools::*;
pub use simulated::*;
pub use statistics::*;
pub use version::*;
