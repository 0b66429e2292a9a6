//! The policies: the rules of placement, by name and with their options.

use super::error::Accepted;
use super::rounding::PoolKind;
use super::setting::SettingDefault::Value;
use super::setting::{EVERY, Exact, ReadOrder, SettingReference, flag, mebibytes, setting, settings, whole};
use super::suballocation::Policies;
use super::{Config, FRACTION, MILLISECONDS};
use crate::suballoc::Suballocated;
use crate::units::MIB;
use core::fmt;

const NATIVE: Accepted = Accepted::Text("`native`: the driver's own pool is not an allocator of this library");
const MICROSECONDS: Accepted = Accepted::Text("a whole number of microseconds");

/// Declares the core's own policies: each with its options, if it has any, and its name.
macro_rules! policies {
    ($($(#[$doc:meta])* $Policy:ident $(($options:ident: $Options:ident))? = $name:literal,)*) => {
        /// The rules by which an allocator places blocks. They are chosen at its creation, and
        /// never change.
        #[derive(Clone, Copy, PartialEq, Eq, Default)]
        pub enum Policy {
            $($(#[$doc])* $Policy $(($Options))?,)*
            /// A policy of the host, which cuts segments by itself.
            Suballocated(Suballocated),
        }

        impl fmt::Debug for Policy {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$Policy $(($options))? => f.debug_tuple(stringify!($Policy))$(.field($options))?.finish(),)*
                    Self::Suballocated(own) => f.debug_tuple(own.rules.type_name).field(own).finish(),
                }
            }
        }

        /// The core's own policies, with their default options.
        const ALL: &[Policy] = &[$(Policy::$Policy $(($Options::DEFAULT))?),*];

        /// The settings of these policies, in the order of the string form.
        pub(super) const ROWS_OF_POLICIES: &[&[SettingReference]] =
            &[Planned::ROWS, $($($Options::ROWS,)?)*];

        impl Policy {
            /// Returns the name of the policy.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Policy { .. } => $name,)*
                    Self::Suballocated(own) => own.rules.name,
                }
            }
        }

        $($(
            impl From<$Options> for Policy {
                fn from(options: $Options) -> Self {
                    Self::$Policy(options)
                }
            }

            impl Config {
                /// Returns the options of the policy. Called only for keys of the policy.
                pub(super) fn $options(&mut self) -> &mut $Options {
                    if !matches!(self.policy, Policy::$Policy(_)) {
                        self.policy = Policy::$Policy($Options::DEFAULT);
                    }
                    let Policy::$Policy(options) = &mut self.policy else { unreachable!("it was just set") };
                    options
                }
            }
        )?)*
    };
}

policies! {
    /// `PyTorch`'s caching allocator: best fit, sizes in units of 512 bytes, small and large
    /// requests in separate segments.
    #[default]
    Caching = "caching",
    /// TensorFlow's and XLA's best fit with coalescing.
    Bfc(bfc: Bfc) = "bfc",
    /// Best fit over pages of virtual memory, which move from holes to where a request needs them.
    /// The memory reserved remains within a budget above the peak of live memory. A device without
    /// virtual memory is served as under [`Caching`](Self::Caching).
    Stitched(stitched: Stitched) = "stitched",
    /// Each request allocates from the device, and each free releases to the device, in the order
    /// of the request's stream if the device can do so. This is for debugging with memory checkers.
    Direct = "direct",
}

/// The name of the planned policy, which has another policy as its fallback: see [`Planned`].
pub const PLANNED: &str = "planned";

/// The names of the core's own policies, as `policy:NAME` and the C ABI spell them.
/// [`Policies::names`] adds those of a host.
pub const POLICIES: [&str; ALL.len() + 1] = {
    let mut names = [PLANNED; ALL.len() + 1];
    let mut policy = 0;
    while policy < ALL.len() {
        names[policy] = ALL[policy].name();
        policy += 1;
    }
    names
};

settings! {
    /// The options of the planned policy: requests that repeat are served from a plan, and all
    /// others by the *fallback*, the policy that is configured as well. The program announces the
    /// end of each iteration; see the module `planned` of this crate.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Planned with pub fields;

    row setting("backend", Value("native"), "native")
        .of(EVERY)
        .reads(|_, key, value| value.one_of(key, ["native"], NATIVE).map(|_| ()))
        .effect("No effect. The key is accepted for existing strings.");

    row setting("policy", Value("caching"), "bfc")
        .of(EVERY)
        .at(ReadOrder::First)
        .reads(|config, key, value| {
            // The planned policy comes with the default policy as its fallback.
            (config.policy, config.planned) = match value.text() {
                Some(PLANNED) => (Policy::Caching, Some(Planned::DEFAULT)),
                name => {
                    let named = name.and_then(|name| config.named(name));
                    (named.ok_or_else(|| value.refused(key, config.accepted_policies(false)))?, None)
                }
            };
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.policy_name())))
        .effect("The rules for the placement of blocks. The policy of an allocator cannot change.");

    row setting("fallback", Value("caching"), "bfc")
        .of(&["planned"])
        .at(ReadOrder::Second)
        .reads(|config, key, value| {
            let named = value.text().and_then(|name| config.named(name)).filter(|policy| policy.traits().caches);
            let fallback = named.ok_or_else(|| value.refused(key, config.accepted_policies(true)))?;
            if config.planned.is_some() {
                config.policy = fallback;
            }
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.policy)))
        .effect("The policy for all requests outside of the plan. The keys of the fallback are accepted as well.");

    /// The time for which a planning thread searches for a better plan, in milliseconds
    /// (`plan_deadline_ms`). Default 2000.
    plan_deadline_ms: u64 = 2000;
    row whole("plan_deadline_ms", Value("2000"), "500", MILLISECONDS, |config| {
        &mut config.planned.get_or_insert(Planned::DEFAULT).plan_deadline_ms
    })
    .of(&["planned"])
    .effect("The longest search for a better plan, in the background.");
}

settings! {
    /// The options of best fit with coalescing (TensorFlow 2.16's `BFCAllocator`).
    ///
    /// Sizes are multiples of 256 bytes. All requests of a stream share a pool. A request gets the
    /// smallest free block that fits, and of several such blocks the one at the lowest address. The
    /// block is split if it is at least twice as large as the request, or if more than
    /// `max_internal_fragmentation` would be wasted. Segments (TensorFlow's *regions*) double in
    /// size.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Bfc with pub fields;

    /// Segments start with the size `first_region` and double. Without growth, the first segment
    /// takes everything up to the limit (`allow_growth`).
    allow_growth: bool = true;
    row flag("allow_growth", Value("True"), "False", |config| &mut config.bfc().allow_growth).of(&["bfc"]).effect(
        "Segments start at `first_region_mb` and double. With `False`, the first segment takes everything up to \
         the memory limit.",
    );

    /// The size of a stream's first segment, in bytes (`first_region_mb`). Default 2 MiB,
    /// TensorFlow's since 2.4.
    first_region: u64 = 2 * MIB;
    row mebibytes("first_region_mb", Value("2"), "16", 1, |config| &mut config.bfc().first_region)
        .of(&["bfc"])
        .effect("The size of the first segment of a stream.");

    /// A block is split if at least this many bytes are left (`max_internal_fragmentation_mb`).
    /// Default 128 MiB.
    max_internal_fragmentation: u64 = 128 * MIB;
    row mebibytes("max_internal_fragmentation_mb", Value("128"), "64", 0, |config| {
        &mut config.bfc().max_internal_fragmentation
    })
    .of(&["bfc"])
    .effect(
        "A free block is split if at least this much is left, or if the block is at least twice as large as the \
         request.",
    );

    /// Wholly free segments are released for a request without any other memory
    /// (`region_garbage_collection`). Default on, as TensorFlow sets it for GPUs.
    region_garbage_collection: bool = true;
    row flag("region_garbage_collection", Value("True"), "False", |config| &mut config.bfc().region_garbage_collection)
        .of(&["bfc"])
        .effect("Wholly free segments are released for a request without any other memory.");

    /// The time for which a failing request waits until other threads free memory, in milliseconds
    /// (`retry_ms`). The device's [`pause`](crate::Host::pause) may end the wait. Default 0;
    /// TensorFlow's is 10,000.
    retry_ms: u64 = 0;
    row whole("retry_ms", Value("0"), "10000", MILLISECONDS, |config| &mut config.bfc().retry_ms)
        .of(&["bfc"])
        .effect("How long a failing request waits for other threads to free memory. TensorFlow waits 10,000 ms.");
}

settings! {
    /// The options of the stitched policy.
    ///
    /// A request that no free block can hold is served from pages under the holes between live
    /// blocks: wholly free pages are mapped a second time, next to each other, and their old
    /// addresses are given up. Live blocks never move.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Stitched with pub fields;

    /// New memory is allocated while the memory held exceeds the peak of live memory by at most
    /// this many ten-thousandths of the peak (`slack`, a fraction). Beyond this, free pages move
    /// first. Default 120, which is 1.2 %. With more, the memory held is larger by the difference.
    /// With less, pages move so often that parts of them are in use everywhere, and more memory is
    /// needed in the end (measured on recorded programs, 0.5 to 5 %).
    slack: u32 = 120;
    row setting("slack", Value("0.012"), "0.05")
        .of(&["stitched"])
        .reads(|config, key, value| {
            let slack: f64 = value.number(key, FRACTION)?;
            if !(0.0..=1.0).contains(&slack) {
                return Err(value.refused(key, FRACTION));
            }
            config.stitched().slack = (slack * f64::from(Stitched::SLACK_PARTS) + 0.5) as u32;
            Ok(())
        })
        .writes(|config, out| {
            let slack = f64::from(config.stitched().slack) / f64::from(Stitched::SLACK_PARTS);
            out.some(Some(Exact(slack)))
        })
        .effect(
            "The memory held may exceed the peak of live memory by this part of the peak. Beyond, free pages move to \
             where a request needs them.",
        );

    /// About the longest time that a request spends on mapping pages, in microseconds
    /// (`max_stall_us`). A request that would take longer allocates up to 1 % of the peak of live
    /// memory beyond the slack, which [`maintain`](crate::Pages::maintain) gives back. If this is
    /// not enough, the request takes longer. Default 2,000.
    max_stall_us: u32 = 2000;
    row setting("max_stall_us", Value("2000"), "500")
        .of(&["stitched"])
        .reads(|config, key, value| {
            config.stitched().max_stall_us = value.number(key, MICROSECONDS)?;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.stitched().max_stall_us)))
        .effect(
            "How long a request spends in mapping pages. A request that would take longer allocates up to 1 % of the \
             peak of live memory beyond `slack`; beyond that, it takes longer.",
        );

    /// No request takes longer than `max_stall_us`, whatever it allocates beyond the slack
    /// (`strict_stall`). Default off: on the recorded programs a strict bound of 2,000 costs 5 % of
    /// utilisation in the mean and a third in the worst case.
    strict_stall: bool = false;
    row flag("strict_stall", Value("False"), "True", |config| &mut config.stitched().strict_stall)
        .of(&["stitched"])
        .effect("No request takes longer than `max_stall_us`, whatever it allocates beyond `slack`.");

    /// A page moves only after the work that used it is complete (`completed_pages_only`). Programs
    /// with programmatic dependent launch or persistent kernels need this, because a kernel that is
    /// resident before another one ends may see stale data through a second mapping. Default off.
    completed_pages_only: bool = false;
    row flag("completed_pages_only", Value("False"), "True", |config| &mut config.stitched().completed_pages_only)
        .of(&["stitched"])
        .effect(
            "A page moves only after the work that used the page is complete, and no stream is ordered after \
             another for memory. For programs with programmatic dependent launch or persistent kernels.",
        );
}

impl Stitched {
    /// The unit of [`slack`](Self::slack): this many parts are the whole peak.
    pub const SLACK_PARTS: u32 = 10_000;
}

impl Policy {
    /// Returns the core's own policy named `name`, with the default options.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|policy| policy.name() == name)
    }
}

impl From<Suballocated> for Policy {
    fn from(own: Suballocated) -> Self {
        Self::Suballocated(own)
    }
}

impl Policies {
    /// Returns the policy named `name`, with the default options: one of this table, or of the
    /// core's.
    #[must_use]
    pub fn named(self, name: &str) -> Option<Policy> {
        let own = self.rows().iter().find(|rules| rules.name == name);
        own.map(|rules| Suballocated::new(rules).into()).or_else(|| Policy::named(name))
    }

    /// Iterates over the names of all policies, including those of the core. Those of the table
    /// come after the first two of the core.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        let (first, last) = POLICIES.split_at(2);
        let own = self.rows().iter().map(|rules| rules.name);
        first.iter().copied().chain(own).chain(last.iter().copied())
    }
}

impl Config {
    /// Returns the policy named `name`: the present one, or one of the host's or of the core's.
    fn named(&self, name: &str) -> Option<Policy> {
        let present = match self.policy {
            Policy::Suballocated(own) if own.rules.name == name => Some(Suballocated::new(own.rules).into()),
            _ => None,
        };
        present.or_else(|| self.policies.named(name))
    }

    /// Returns the description of the policies that a text may name.
    fn accepted_policies(&self, fallback: bool) -> Accepted {
        Accepted::Policy { fallback, policies: self.policies }
    }
}

/// The differences between policies outside their own rules. The answers for every policy are in
/// one table, [`Policy::traits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "each answers its own question")]
pub struct Traits {
    /// Free memory is cached. Otherwise each request and each free calls the device.
    pub caches: bool,
    /// The rules are those of `PyTorch`'s allocator. `decisions` says whether they are followed
    /// exactly, `tune:auto` may change the settings, and pinned host memory has its own settings.
    pub follows_pytorch: bool,
    /// `expandable_segments` has an effect, on a device with virtual memory.
    pub expands: bool,
    /// Each segment of a stream is larger than the one before.
    pub grows_regions: bool,
    /// A new segment is made shorter if the limit or the device has less memory left.
    pub shrinks_segments: bool,
    /// Pages of virtual memory move between free blocks, and spare pages serve every heap.
    pub moves_pages: bool,
    /// The kind of heaps in which a sub-allocator divides the segments. There, free neighbours may
    /// remain separate blocks.
    pub suballocated: Option<PoolKind>,
}

impl Policy {
    /// Returns how the policy differs from the others.
    #[must_use]
    pub const fn traits(self) -> Traits {
        const PLAIN: Traits = Traits {
            caches: true,
            follows_pytorch: false,
            expands: false,
            grows_regions: false,
            shrinks_segments: false,
            moves_pages: false,
            suballocated: None,
        };
        match self {
            Self::Caching => Traits { follows_pytorch: true, expands: true, ..PLAIN },
            Self::Bfc(_) => Traits { expands: true, grows_regions: true, ..PLAIN },
            Self::Suballocated(own) => Traits {
                shrinks_segments: own.rules.halves_by.is_some(),
                suballocated: Some(if own.rules.largest.is_some() { PoolKind::Small } else { PoolKind::Large }),
                ..PLAIN
            },
            Self::Stitched(_) => Traits { moves_pages: true, ..PLAIN },
            Self::Direct => Traits { caches: false, ..PLAIN },
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
