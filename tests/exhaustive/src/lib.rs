//! Bounded-exhaustive checking of the core: every program of at most N calls over a small alphabet,
//! on a simulated device.
//!
//! A search visits programs by length. Programs that lead to equal states are visited once. After
//! each call, the [theorems] are checked. The first program found against a theorem is therefore a
//! shortest program.
//!
//! ```text
//! search         programs by length, states met before left out
//! world calls    a program at a state: the core, the blocks of the program, and the call of a letter
//! key            a state as a number, equal for states that differ in names only
//! theorems       sentences, and the checks that execute the sentences
//! device         a simulated device whose next call can fail, with planted defects
//! order          which work precedes which, by vector clocks
//! setting letter the settings searched · the calls of a program
//! ```

pub mod agreement;
mod calls;
pub mod defects;
pub mod device;
pub mod key;
pub mod letter;
pub mod order;
pub mod report;
pub mod search;
pub mod setting;
pub mod theorems;
pub mod world;
