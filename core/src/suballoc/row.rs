//! A policy of a host that cuts segments by itself, as a row of a table: its name, its sizes, its
//! settings, and the constructor of its sub-allocators.

#[cfg(feature = "alloc")]
use super::SubAllocator;
#[cfg(feature = "alloc")]
use crate::units::{MAX_REQUEST, UNIT};
#[cfg(feature = "alloc")]
use alloc::boxed::Box;
use core::fmt;

/// The options of such a policy: the number of each of its settings, in their order.
pub type Options = [u64; 4];

/// A setting of such a policy: a whole number.
#[derive(Clone, Copy, Debug)]
pub struct OptionReference {
    /// The key.
    pub key: &'static str,
    /// The name in `{:?}`.
    pub field: &'static str,
    /// The default, as the key takes it.
    pub default: &'static str,
    /// Another value that the key takes.
    pub example: &'static str,
    /// The number in the text counts in this unit, and the option is in ones.
    pub unit: u64,
    /// Returns whether the key takes a number.
    pub accepts: fn(u64) -> bool,
    /// How an error describes the numbers.
    pub accepted: &'static str,
    /// The effect of the setting, in Markdown.
    pub effect: &'static str,
}

/// A policy that cuts segments by itself: its name, how sizes are rounded, and the constructor of
/// its sub-allocators. Made with [`new`](Self::new), and changed field by field:
///
/// ```
/// # #[path = "../../examples/own_policy.rs"]
/// # #[allow(dead_code)]
/// # mod own_policy;
/// use cachalot_core::Config;
/// use cachalot_core::config::{Policies, Suballocation};
/// use own_policy::FirstFit;
///
/// static POLICIES: [Suballocation; 1] =
///     [Suballocation { unit: 4096, ..Suballocation::new("first_fit", |_| Box::new(FirstFit::default())) }];
///
/// let config = Config::parse_with(Policies::new(&POLICIES), "policy:first_fit")?;
/// assert_eq!(config.policy_name(), "first_fit");
/// # Ok::<(), cachalot_core::config::ConfigError>(())
/// ```
pub struct Suballocation {
    /// The name, as `policy:NAME` spells it.
    pub name: &'static str,
    /// The name in `{:?}`. Default: `name`.
    pub type_name: &'static str,
    /// Makes the sub-allocator of a new heap.
    #[cfg(feature = "alloc")]
    pub make: fn(&Options) -> Box<dyn SubAllocator>,
    /// Every size is a multiple of this power of two, from 256 on. Default 512.
    pub unit: u64,
    /// Rounds a positive number of bytes up to a size, a multiple of the unit. `None`, the default:
    /// to the unit.
    pub round: Option<fn(u64) -> u64>,
    /// Returns the largest size that the sub-allocator serves. Larger sizes are placed as under
    /// `policy:caching`. `None`, the default: it serves every size.
    pub largest: Option<fn(&Options) -> u64>,
    /// The largest segment that a sub-allocator can manage, in bytes. Default: [`MAX_REQUEST`].
    pub largest_segment: u64,
    /// Where the device or the limit has no room for a segment, half of it is tried, and half of
    /// that, in multiples of this step and down to the size of the request. `None`, the default: no
    /// smaller segment is tried.
    pub halves_by: Option<u64>,
    /// The defaults of the options.
    pub options: Options,
    /// The settings of the options, sorted by key.
    pub settings: &'static [OptionReference],
    /// Keys of `policy:caching` that the policy accepts as well.
    pub shared: &'static [&'static str],
}

impl Suballocation {
    /// Returns a policy without settings, with sizes in multiples of 512.
    #[cfg(feature = "alloc")]
    #[must_use]
    pub const fn new(name: &'static str, make: fn(&Options) -> Box<dyn SubAllocator>) -> Self {
        Self {
            name,
            type_name: name,
            make,
            unit: UNIT,
            round: None,
            largest: None,
            largest_segment: MAX_REQUEST,
            halves_by: None,
            options: [0; 4],
            settings: &[],
            shared: &[],
        }
    }
}

/// Two rows are equal if they have one name: a table has no name twice.
impl PartialEq for Suballocation {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Suballocation {}

impl fmt::Debug for Suballocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A policy of a host with its options.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Suballocated {
    /// The policy.
    pub rules: &'static Suballocation,
    /// The options.
    pub options: Options,
}

/// Writes the options by name.
impl fmt::Debug for Suballocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(self.rules.type_name);
        for (setting, value) in self.rules.settings.iter().zip(&self.options) {
            out.field(setting.field, value);
        }
        out.finish()
    }
}

impl Suballocated {
    /// Returns the policy with its default options.
    #[must_use]
    pub const fn new(rules: &'static Suballocation) -> Self {
        Self { rules, options: rules.options }
    }
}
