//! Memory back to the device: units, and the way of a unit.
//!
//! ```text
//! units.rs   free memory of a heap as values
//!   └─▶ take.rs   out of the heap ─▶ release by the device
//! ```

pub(in crate::arena) mod take;
pub(in crate::arena) mod units;
