//! Shared code of the core's tests: a naive model, programs for both the core and the model, and
//! external checks.

pub mod arbitrary;
pub mod claims;
pub mod consistency;
pub mod course;
pub mod failures;
pub mod figures;
pub mod generated;
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
pub mod working;

/// The Rust programs of the book and of every README, as doctests.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/rust.md")]
    struct Rust;
    #[doc = include_str!("../../../docs/configuration.md")]
    struct Configuration;
    #[doc = include_str!("../../../docs/install.md")]
    struct Install;
    #[doc = include_str!("../../../docs/planned.md")]
    struct Planned;
    #[doc = include_str!("../../../docs/planning.md")]
    struct Planning;
    #[doc = include_str!("../../../docs/auto.md")]
    struct Auto;
    #[doc = include_str!("../../../atomic-file/README.md")]
    struct AtomicFile;
    #[doc = include_str!("../../../planner/README.md")]
    struct Planner;
    #[doc = include_str!("../../../core/README.md")]
    struct Core;
    #[doc = include_str!("../../../snapshot/README.md")]
    struct Snapshot;
    #[doc = include_str!("../../../cuda-backend/README.md")]
    struct Cuda;
    #[doc = include_str!("../../../ffi/README.md")]
    struct Ffi;
    #[doc = include_str!("../../../replay/README.md")]
    struct Replay;
}
