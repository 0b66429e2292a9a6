//! Static planning: an offset for every buffer of a program whose allocations are known in advance.
//!
//! ```text
//! operators ─┐
//! records  ──┼─▶ Problem ─▶ check ─▶ Chains ─▶ Algorithm ─▶ Plan ─▶ verify
//! tables   ──┘                          └────▶ lower bound
//! ```
//!
//! ```
//! use cachalot_planner::portfolio::Portfolio;
//! use cachalot_planner::{Buffer, Problem, verify};
//!
//! let buffer = |start, end, size| Buffer { start, end, size, alignment: 256, fixed: None };
//! let buffers = vec![buffer(0, 3, 4096), buffer(1, 4, 1024), buffer(3, 5, 2048)];
//! let problem = Problem { buffers, ..Problem::default() };
//! let mut portfolio = Portfolio::new(&problem);
//! portfolio.run(&mut ()); // `()` sets no deadline; a `Watch` can stop the search
//! assert!(portfolio.optimal());
//! let plan = portfolio.into_best().expect("a plan");
//! assert_eq!(plan.peak, 5120);
//! verify(&problem, &plan).expect("no two live buffers overlap");
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
