//! Tests of the whole core, and models of its concurrent parts.

#[cfg(not(loom))]
mod addresses;
#[cfg(not(loom))]
mod allocator;
#[cfg(not(loom))]
pub(crate) mod altered;
#[cfg(not(loom))]
mod captured;
#[cfg(not(loom))]
mod compact;
#[cfg(not(loom))]
mod consolidate;
#[cfg(not(loom))]
mod converted;
#[cfg(not(loom))]
mod direct;
#[cfg(not(loom))]
mod extents;
#[cfg(not(loom))]
mod filling;
#[cfg(not(loom))]
mod filling_parks;
#[cfg(not(loom))]
mod gathered;
#[cfg(not(loom))]
mod given_back;
#[cfg(not(loom))]
mod guards;
#[cfg(not(loom))]
mod holds;
#[cfg(not(loom))]
mod loans;
#[cfg(loom)]
mod loom;
#[cfg(loom)]
mod loom_dirty;
#[cfg(loom)]
mod loom_ending;
#[cfg(loom)]
mod loom_gathered;
#[cfg(loom)]
mod loom_page_table;
#[cfg(loom)]
mod loom_pages;
#[cfg(loom)]
mod loom_parking;
#[cfg(not(loom))]
mod numbered;
#[cfg(not(loom))]
mod old_form;
#[cfg(not(loom))]
mod ordered;
#[cfg(not(loom))]
pub(crate) mod own;
#[cfg(not(loom))]
mod owned;
#[cfg(not(loom))]
mod page_budget;
#[cfg(not(loom))]
mod planned;
#[cfg(not(loom))]
mod planned_forecasts;
#[cfg(not(loom))]
mod restore;
#[cfg(not(loom))]
mod sizes;
#[cfg(not(loom))]
mod spill;
#[cfg(not(loom))]
mod start;
#[cfg(not(loom))]
mod straight;
#[cfg(not(loom))]
mod tenants;
#[cfg(not(loom))]
mod tenants_campaign;
