//! Tests of the whole core, and models of its concurrent parts.

#[cfg(not(loom))]
mod allocator;
#[cfg(not(loom))]
mod extents;
#[cfg(loom)]
mod loom;
#[cfg(loom)]
mod loom_gathered;
#[cfg(loom)]
mod loom_loose;
#[cfg(loom)]
mod loom_pages;
#[cfg(loom)]
mod loom_parking;
#[cfg(not(loom))]
mod owned;
#[cfg(not(loom))]
mod planned;
#[cfg(not(loom))]
mod restore;
#[cfg(not(loom))]
mod sizes;
