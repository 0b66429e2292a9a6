//! The driver's objects, without the operations that need two kinds of them.

pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod faults;
pub(crate) mod host;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pool;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod virtual_memory;
pub(crate) mod watch;
pub(crate) mod work;
