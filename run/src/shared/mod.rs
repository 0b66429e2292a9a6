//! Files that processes of one user map together: their folder, their form, and who is alive.

pub(crate) mod bytes;
pub mod folder;
pub(crate) mod form;
pub(crate) mod map;
pub mod process;
pub mod uuid;
