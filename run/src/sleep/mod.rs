//! Sleep: the memory of an idle program leaves the device, and comes back before the next call that
//! needs it.
//!
//! ```text
//!              block readers · wait for threads and work · park
//!    awake ─────────────── parking ────────────────────────────▶ parked
//!      ▲                      │ a thread or work remains             │ the first call that may use memory
//!      │◀─────────────────────┘                                      ▼
//!      └───────────────────────────────────────────────────────── waking
//! ```
//!
//! ```text
//! sleeper    the states of sleep, and the changes between them
//! threads    the state of each thread: its reader slot, and whether it is inside a served call
//! call_state the flags, the lock and the threads that a call reads on its way to the driver
//! idle       the idle time of a program
//! ```

pub use cachalot_gate::OuterReadGuard;

mod call_state;
mod idle;
mod sleeper;
mod threads;

pub(crate) use call_state::CALL_STATE;
pub use idle::Idle;
pub use sleeper::{AwakeGuard, Body, Change, MemorySleep, PhaseGuard, fast_guard};
pub use threads::{Serving, other_threads};
