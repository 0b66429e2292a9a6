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

/// The Rust programs of the README and of the book, as doctests.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/install.md")]
    struct Install;
    #[doc = include_str!("../../docs/planned.md")]
    struct Planned;
    #[doc = include_str!("../../docs/planning.md")]
    struct Planning;
}
