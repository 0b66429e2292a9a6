//! What each driver function does. The exported functions check the pointers and write the results.

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod submit;
pub(crate) mod transfer;
pub(crate) mod virtual_memory;
