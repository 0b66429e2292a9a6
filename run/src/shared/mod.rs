//! Files shared by several processes of a user: their folder, their form, and living processes.

pub(crate) mod bytes;
pub mod folder;
pub(crate) mod form;
pub(crate) mod map;
pub(crate) mod marks;
pub mod process;
pub(crate) mod removal;
pub(crate) mod threads;
pub mod time;
pub mod uuid;
