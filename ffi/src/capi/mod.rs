//! The exported functions, in the order of the header, which describes each of them.
//!
//! Every body runs inside the wall: a panic becomes a number, and what C hands in is looked at before it is used.

mod allocators;
mod cache;
mod callbacks;
mod inside;
mod library;
mod memory;
mod planned;
mod pools;
mod simulated;
mod statistics;

pub use allocators::*;
pub use cache::*;
pub use callbacks::*;
pub use inside::*;
pub use library::*;
pub use memory::*;
pub use planned::*;
pub use pools::*;
pub use simulated::*;
pub use statistics::*;
