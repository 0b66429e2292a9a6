//! Static planning: an offset for every buffer of a program whose allocations are known in advance.
//!
//! ```text
//! operators ─┐
//! records  ──┼─▶ Problem ─▶ check ─▶ Chains ─▶ Algorithm ─▶ Plan ─▶ verify
//! tables   ──┘                          └────▶ lower bound
//! ```
//!
//! `no_std` with `alloc`, no unsafe code, no dependencies.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod algorithm;
pub mod best_fit;
pub mod bound;
pub mod chains;
pub mod check;
mod colocations;
mod events;
pub mod exact;
mod first_fit;
pub mod greedy;
mod heuristics;
pub mod hill_climb;
pub mod interval_move;
mod levels;
pub mod operators;
mod overwrites;
mod placer;
pub mod portfolio;
pub mod problem;
pub mod pushdown;
mod row;
mod space;
pub mod squeeze;
mod sweep;
pub mod verify;

pub use algorithm::{Algorithm, Watch};
pub use bound::lower_bound;
pub use chains::{Chain, Chains, Member};
pub use check::{MAX_SIZE, Unusable};
pub use heuristics::HEURISTICS;
pub use problem::{Buffer, Colocation, Overwrite, Plan, Problem};
pub use verify::{Fault, verify};
