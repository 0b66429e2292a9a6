//! Policies that cut segments by themselves: buddy, size classes and slabs, for the core of
//! cachalot.
//!
//! ```
//! let config = cachalot_policies::parse("policy:slab,largest_object_kb:64")?;
//! assert_eq!(config.policy_name(), "slab");
//! # Ok::<(), cachalot_core::config::ConfigError>(())
//! ```
//!
//! The core knows them only by the trait [`SubAllocator`](cachalot_core::suballoc::SubAllocator)
//! and by the rows of [`POLICIES`], just like the policies of any other crate.
//!
//! # Layers
//! ```text
//! compiled                        the policies by value, for an allocator's tables
//! buddy · size_class · slab       the policies, with a row of the table each
//! sub_blocks                      sub-blocks of exact sizes, with free lists, for size classes
//! segment_table                   an entry for each segment of a heap
//! geometric_classes               two sizes in each doubling, for slabs
//! ```

#![no_std]
#![forbid(unsafe_code)]
#![allow(
    clippy::inline_always,
    reason = "measured: a request and a free are each a chain of small functions, called from two places"
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod buddy;
mod compiled;
mod geometric_classes;
mod segment_table;
mod size_class;
mod slab;
mod sub_blocks;
#[cfg(test)]
mod tests_model;
#[cfg(test)]
mod tests_size_class;
#[cfg(test)]
mod tests_slab;

pub use compiled::{Compiled, Tables};

use cachalot_core::Config;
use cachalot_core::config::{ConfigError, Policies, REFERENCE, SettingReference, Suballocation};

/// The policies of this crate, in the form that [`Config::parse_with`] takes.
pub const POLICIES: Policies = Policies::new(&ROWS);

static ROWS: [Suballocation; 3] = [buddy::POLICY, size_class::POLICY, slab::POLICY];

/// The names of all policies: those of the core and those of this crate.
pub const NAMES: [&str; 8] =
    ["caching", "bfc", buddy::POLICY.name, size_class::POLICY.name, slab::POLICY.name, "stitched", "direct", "planned"];

/// Parses settings, which may name a policy of this crate.
///
/// # Errors
/// [`ConfigError`] at the first mistake.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse_with(POLICIES, text)
}

/// Returns all settings, sorted by key: those of the core, and of this crate's policies.
#[must_use]
pub fn settings() -> alloc::vec::Vec<SettingReference> {
    let mut all: alloc::vec::Vec<_> = REFERENCE.into_iter().copied().chain(POLICIES.settings()).collect();
    all.sort_by_key(|setting| setting.key);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::simulated::SimulatedDevice;
    use cachalot_core::{Allocator, DeviceIndex, StreamId};
    use std::vec::Vec;

    #[test]
    fn the_names_are_those_of_the_core_and_of_the_table() {
        assert_eq!(POLICIES.names().collect::<Vec<_>>(), NAMES);
    }

    #[test]
    fn a_setting_of_a_policy_is_read_and_written() {
        for (text, option) in [
            ("policy:buddy,arena_mb:128", 128 << 20),
            ("policy:size_class,chunk_mb:5120", 5120 << 20),
            ("policy:slab,largest_object_kb:96", 96 << 10),
        ] {
            let config = parse(text).unwrap();
            let cachalot_core::config::Policy::Suballocated(own) = config.policy() else { panic!("{text}") };
            assert_eq!((own.options[0], std::format!("{config}").as_str()), (option, text));
        }
        for (text, message) in [
            ("policy:buddy,arena_mb:3", "arena_mb does not take `3`, only a power of two in MiB up to 1048576"),
            ("policy:buddy,arena_mb:2097152", "arena_mb does not take `2097152`, only a power"),
            ("policy:size_class,chunk_mb:1", "chunk_mb does not take `1`, only a whole number of MiB from 2 to "),
            ("policy:slab,largest_object_kb:513", "largest_object_kb does not take `513`, only a whole number of KiB"),
            ("policy:slab,largest_object_kb:0", "largest_object_kb does not take `0`, only a whole number of KiB"),
            ("policy:buddy,chunk_mb:4", "chunk_mb is not a key of policy `buddy`; its keys are arena_mb, backend, "),
            ("arena_mb:4", "arena_mb is not a key of policy `caching`; its keys are backend, canary, "),
            ("arena:4", "unknown key `arena`, did you mean `arena_mb`?"),
            ("policy:budy", "policy does not take `budy`, did you mean `buddy`?"),
        ] {
            let error = std::string::ToString::to_string(&parse(text).unwrap_err());
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn the_text_of_a_policy_for_debugging_has_its_options() {
        for (text, debug) in [
            ("policy:buddy", "Buddy(Buddy { arena: 67108864 })"),
            ("policy:size_class", "SizeClass(SizeClass { chunk: 1073741824 })"),
            ("policy:slab,largest_object_kb:64", "Slab(Slab { largest_object: 65536 })"),
            ("policy:direct", "Direct"),
        ] {
            assert_eq!(std::format!("{:?}", parse(text).unwrap().policy()), debug);
        }
        let config = std::format!("{:?}", parse("policy:slab").unwrap());
        assert_eq!(
            config,
            std::format!("{:?}", Config::parse_with(Policies::new(&[slab::POLICY]), "policy:slab").unwrap())
        );
        assert!(config.starts_with("Config { policy: Slab("), "{config}");
    }

    /// Returns the addresses of the blocks of a random program.
    fn addresses<S: cachalot_core::Storage>(config: &Config, seed: u64) -> Vec<u64> {
        let device = SimulatedDevice::new(1 << 36);
        let allocator = Allocator::<_, spin::Mutex<()>, S>::new([device], config).unwrap();
        let (mut state, mut live, mut addresses) = (seed, Vec::new(), Vec::new());
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            if live.len() > 64 || random % 3 == 0 && !live.is_empty() {
                allocator.free(live.swap_remove(random as usize % live.len())).unwrap();
            } else {
                let bytes = 1 + (random >> 8) % (1 << (8 + random % 16));
                let ptr = allocator.malloc(DeviceIndex(0), bytes, StreamId::DEFAULT).unwrap();
                live.push(ptr);
                addresses.push(ptr.0);
            }
        }
        allocator.check_invariants().unwrap();
        addresses
    }

    #[test]
    fn compiled_policies_place_as_those_called_through_dyn_do() {
        for text in ["policy:buddy", "policy:size_class,chunk_mb:4", "policy:slab", "policy:caching"] {
            for seed in 0..8 {
                let config = parse(text).unwrap();
                let placed = addresses::<Tables>(&config, seed);
                assert_eq!(placed, addresses::<cachalot_core::Growable>(&config, seed), "{text}, seed {seed}");
            }
        }
    }

    #[test]
    fn an_update_may_name_the_policy_and_only_that() {
        let mut config = parse("policy:slab,largest_object_kb:96").unwrap();
        config.update("policy:slab,largest_object_kb:96,large_segment_size_mb:64").unwrap();
        assert_eq!(config.large_segment_size(), 64 << 20);
        assert!(config.update("policy:buddy").is_err());
        assert!(config.update("largest_object_kb:64").is_err());
    }
}
