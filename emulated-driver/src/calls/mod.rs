//! The driver functions: one of the same name for each, by kind of object.

#![allow(non_snake_case, reason = "the driver's own names")]
#![allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
#![allow(clippy::needless_pass_by_ref_mut, clippy::unnecessary_wraps, reason = "one shape for all driver functions")]

pub(crate) mod array;
pub(crate) mod by_hand;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod fill;
pub(crate) mod function;
pub(crate) mod graph;
pub(crate) mod green;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod rows;
pub(crate) mod start;
pub(crate) mod stream;
pub(crate) mod submit;
pub(crate) mod transfer;
pub(crate) mod value;
pub(crate) mod virtual_memory;
