//! Static planning: an offset for every buffer of a program, if its allocations are known in
//! advance.
//!
//! ```text
//! operators ─┐
//! records  ──┼─▶ Problem ─▶ check ─▶ Chains ─▶ Algorithm ─▶ Plan ─▶ verify
//! tables   ──┘                          └────▶ lower bound
//! ```
//!
//! [`solve`] runs every algorithm on every core:
//!
#![cfg_attr(feature = "std", doc = "```")]
#![cfg_attr(not(feature = "std"), doc = "```ignore")]
//! use cachalot_planner::{Buffer, Problem, solve, verify};
//! use std::time::Duration;
//!
//! // Each buffer lives from its start up to, but not including, its end.
//! let buffer = |start, end, size| Buffer { start, end, size, alignment: 256, fixed: None };
//! let buffers = vec![buffer(0, 3, 4096), buffer(1, 4, 1024), buffer(3, 5, 2048)];
//! let problem = Problem { buffers, ..Problem::default() };
//!
//! let outcome = solve(&problem, Duration::from_secs(10))?;
//! let plan = outcome.plan.ok_or("the deadline came before the first plan")?;
//! verify(&problem, &plan)?;
//! assert!(outcome.optimal && plan.peak == 5120);
//! for (buffer, offset) in problem.buffers.iter().zip(&plan.offsets) {
//!     println!("{} bytes at {offset}", buffer.size);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`portfolio::Portfolio`] runs the same algorithms step by step on one thread, without a clock.
//! [`operators::lower`] makes a problem from the operators of a program. [`HEURISTICS`] lists the
//! fast algorithms, and [`exact`] is the search.
//!
//! The crate is `no_std` with `alloc`, has no unsafe code, and depends only on `smallvec` by
//! default. The feature `std`, which is on by default, adds [`solve`] and [`parallel`].

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
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
pub mod gaps;
pub mod greedy;
mod heuristics;
pub mod hill_climb;
pub mod interval_move;
mod levels;
pub mod operators;
mod overwrites;
#[cfg(feature = "std")]
pub mod parallel;
mod placer;
pub mod portfolio;
pub mod problem;
pub mod pushdown;
mod random;
mod row;
mod space;
pub mod squeaky_wheel;
pub mod squeeze;
mod sweep;
pub mod verify;

pub use algorithm::{Algorithm, Watch};
pub use bound::lower_bound;
pub use chains::{Chain, Chains, Member};
pub use check::{MAX_SIZE, Unusable};
pub use heuristics::HEURISTICS;
#[cfg(feature = "std")]
pub use parallel::{Outcome, solve};
pub use problem::{Buffer, Colocation, Overwrite, Plan, Problem};
pub use verify::{Fault, verify};
