//! Sleep: the memory of an idle program leaves the device, and comes back before the next call in need of the memory.
//!
//! ```text
//!              close the gate · wait for threads and work · park
//!    awake ─────────────── parking ────────────────────────────▶ parked
//!      ▲                      │ a thread or work stays inside        │ the first call that may use memory
//!      │◀─────────────────────┘                                      ▼
//!      └───────────────────────────────────────────────────────── waking
//! ```
//!
//! ```text
//! sleeper    the states, and the changes
//! threads    the state of each thread: its reader slot, and whether it is inside a served call
//! call_state the flags, the lock and the threads that a call reads on its way to the driver
//! idle       since when a program is idle
//! ```

pub use cachalot_gate::Visit;

mod idle;
mod threads;
mod call_state;
mod sleeper;

pub use idle::Idle;
pub use threads::{Serving, other_threads};
pub(crate) use call_state::CALL_STATE;
pub use sleeper::{Body, Change, Entered, MemorySleep, Stay, visit};
