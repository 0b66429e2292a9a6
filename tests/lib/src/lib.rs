//! Random programs of the core, and what must hold after each call: what the tests, the fuzzers,
//! the search, the worlds and the courses share.
//!
//! ```text
//! program                       an operation, as a value that is valid in any order
//! arbitrary strategies          programs from bytes, and from proptest, which also shrinks them
//! twins agreement               a program on core and model, compared after each operation
//! model                         the model, written from PyTorch's rules alone
//! working                       a program whose blocks have work of some duration
//! course                        programs from a seed, written down with every answer
//! claims                        which bytes, pages and contents belong to live blocks
//! consistency                   what must hold of any allocator: segments, statistics, device
//! failures sweep seen           failing calls by enumeration, and states before and after them
//! hooked host policies          an instrumented device · one device · every policy
//! planning                      problems for the planner
//! figures generated             tables of results, and committed files that tests generate
//! ```
//!
//! # The engines of random programs
//!
//! | engine | a program comes from | interface | device | judged by | shrinks |
//! |---|---|---|---|---|---|
//! | `tests/tests` (`agreement`, `policies`, …) | proptest | Rust | simulated | [`twins`], [`consistency`] | proptest |
//! | `tests/tests` (`stitched`, `reclaim_auto`, …) | proptest | Rust | simulated | [`working`], [`claims`] | proptest |
//! | `tests/fuzz`, `programs` | bytes | Rust | simulated | [`twins`] | libFuzzer |
//! | `tests/fuzz`, `calls` | bytes | C | simulated | no panic, no memory twice, nothing left | libFuzzer |
//! | [`course`] | a seed | Rust | simulated | a digest | none |
//! | `tests/exhaustive` | enumeration | Rust | simulated, with clocks | theorems, [`model`], [`claims`] | shortest first |
//! | `tests/worlds` | a seed, with the turns of threads | Rust | simulated, in turns | [`claims`], [`consistency`] | none |
//! | `tests/abi-fuzz` | a seed for each operation | C | emulated driver | permitted statuses, bytes, [`claims::Ranges`] | leaves operations out |
//!
//! The model, the shadow of live blocks, the external checks and the failures are one. Each of the
//! rest differs for a reason:
//!
//! * **Operations.** A [`program::Op`] names blocks and streams by number modulo the count, so
//!   that each part of a program is a program. A letter of the search is relative, as *the other
//!   stream*, so that programs that differ in names only are one. Worlds, courses and `abi-fuzz`
//!   draw an operation when its turn comes, and what they draw depends on the answers so far, so
//!   their operations are methods and not values.
//! * **Choices.** Committed seeds, inputs and digests fix the stream of choices of each decoder.
//! * **Interfaces.** `calls` passes wrong handles, sizes and texts, which only C can. `abi-fuzz`
//!   needs real bytes below the addresses, a process for each program, and the situations in which
//!   the header permits an error.
//! * **Devices.** Each forwards to the same simulated device and changes other calls: the search
//!   plants defects before its own account of streams sees the call, and the worlds pass the turn.
//! * **The second oracle.** The search judges order by its own clocks as well as by the device's,
//!   and its key is made of them.

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
