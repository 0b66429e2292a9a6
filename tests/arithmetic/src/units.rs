//! The units that the compiled files of the core import from their own crate.

pub(crate) use cachalot_core::GRAIN;
