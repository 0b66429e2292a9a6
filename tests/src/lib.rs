//! What the tests of the core share: a naive model of it, programs that are run on both, and checks from outside.

pub mod arbitrary;
pub mod consistency;
pub mod hooked;
pub mod host;
pub mod model;
pub mod planning;
pub mod policies;
pub mod program;
pub mod seen;
pub mod strategies;
pub mod sweep;
pub mod twins;
