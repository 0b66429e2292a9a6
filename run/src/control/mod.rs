//! Requests of other processes: a process is parked, woken and asked over its own socket.
//!
//! ```text
//!  cachalot park server                      the program behind the library
//!  ────────────────────                      ──────────────────────────────────────────
//!  client   find, ask  ──── socket ────────▶ server   cachalot-control: reads and answers
//!           a line each way, in JSON                  │ park, wake
//!           (protocol)                                ▼
//!                                            cachalot-park: one task after another
//!                                                     │
//!                                                     ▼
//!                                            Controlled   park · wake · status
//! ```
//!
//! The socket is in the folder of the user's files, and the name of its file is the identity of the
//! process (`socket`). No request reaches a forked child.

pub mod client;
mod protocol;
mod server;
mod socket;
mod status;

pub use protocol::{Action, Answer, ControlRefusal, RefusalKind, Request, SCHEMA};
pub use server::{Controlled, MOST_NAME, Server};
pub use status::{Remainder, RemainderKind, SleepState, Status, Transfer};

#[cfg(test)]
mod tests;
