//! Values without a driver: codes, functions, answers, settings, handles.

pub(crate) mod answers;
pub(crate) mod code;
pub(crate) mod config;
pub(crate) mod functions;
pub(crate) mod handles;
pub(crate) mod random;
pub(crate) mod ranges;
