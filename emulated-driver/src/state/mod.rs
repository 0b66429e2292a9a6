//! The state of the driver behind one lock, and the operations on it.

pub(crate) mod arrays;
pub(crate) mod blocks;
pub(crate) mod captures;
pub(crate) mod contexts;
pub(crate) mod devices;
pub(crate) mod driver;
pub(crate) mod modules;
pub(crate) mod physical;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod regions;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod threads;
