//! The memory behind the devices: pages of a file, addresses, and memory of other processes.

pub(crate) mod handed;
pub(crate) mod pages;
pub(crate) mod sharing;
pub(crate) mod space;
