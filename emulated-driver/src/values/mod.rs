//! Values without a driver: codes, functions, pointers of a caller, answers, settings, handles.

pub(crate) mod answers;
pub(crate) mod code;
pub(crate) mod config;
pub(crate) mod functions;
pub(crate) mod handles;
pub(crate) mod pointers;
pub(crate) mod random;
pub(crate) mod ranges;
pub(crate) mod structs;
pub(crate) mod table;
