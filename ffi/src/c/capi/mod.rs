//! The exported functions, in the order of the header, which documents each function.
//!
//! Every body runs inside the panic boundary, which turns a panic into a status. Every argument is
//! checked before use.

mod allocators;
mod cache;
mod callbacks;
mod introspection;
mod loans;
mod memory;
mod pages;
mod parking;
mod plan;
mod planned;
pub(crate) mod pools;
mod ranges;
mod settings;
mod simulated;
mod statistics;
mod tenants;
mod tuning;
mod version;

pub use allocators::*;
pub use cache::*;
pub use callbacks::*;
pub use introspection::*;
pub use loans::*;
pub use memory::*;
pub use pages::*;
pub use parking::*;
pub use plan::*;
pub use planned::*;
pub use pools::*;
pub use ranges::*;
pub use settings::*;
pub use simulated::*;
pub use statistics::*;
pub use tenants::*;
pub use tuning::*;
pub use version::*;
