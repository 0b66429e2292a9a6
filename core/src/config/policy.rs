//! Policies: the rules of placement, by name and with their options.

use super::Config;
use crate::config::rounding::PoolKind;
use crate::units::MIB;
use core::fmt;

/// Declares the policies: each with the options, if any, and the name.
macro_rules! policies {
    ($($(#[$doc:meta])* $Policy:ident $(($options:ident: $Options:ident))? = $name:literal,)*) => {
        /// The rules by which an allocator places blocks. Chosen at creation; they never change.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub enum Policy {
            $($(#[$doc])* $Policy $(($Options))?,)*
        }

        /// All policies, with their default options.
        const ALL: &[Policy] = &[$(Policy::$Policy $(($Options::DEFAULT))?),*];

        impl Policy {
            /// Returns the name of the policy.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Policy { .. } => $name,)*
                }
            }
        }

        $($(
            impl From<$Options> for Policy {
                fn from(options: $Options) -> Self {
                    Self::$Policy(options)
                }
            }

            impl Default for $Options {
                fn default() -> Self {
                    Self::DEFAULT
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
    /// Powers of two, split in halves and merged with their siblings.
    Buddy(buddy: Buddy) = "buddy",
    /// Free lists by size in KiB; new blocks are cut off large chunks.
    SizeClass(size_class: SizeClass) = "size_class",
    /// Objects of equal size in slabs of 2 MiB for small requests; large requests as under
    /// [`Caching`](Self::Caching).
    Slab(slab: Slab) = "slab",
    /// Best fit over pages of virtual memory, which move from holes to where a request needs them.
    /// Memory reserved stays within a budget over the peak of live memory. A device without virtual
    /// memory is served as under [`Caching`](Self::Caching).
    Stitched(stitched: Stitched) = "stitched",
    /// Each request allocates from the device, and each free releases to the device. For debugging
    /// with memory checkers, in the order of each request's stream if the device can.
    Direct = "direct",
}

/// The name of the planned policy, which has another policy as fallback: see [`Planned`].
pub const PLANNED: &str = "planned";

/// The names of the policies, as `policy:NAME` and the C ABI spell them.
pub const POLICIES: [&str; ALL.len() + 1] = {
    let mut names = [PLANNED; ALL.len() + 1];
    let mut policy = 0;
    while policy < ALL.len() {
        names[policy] = ALL[policy].name();
        policy += 1;
    }
    names
};

/// The options of the planned policy: requests that repeat are served from a plan, and all others
/// by the *fallback*, the policy configured beside. The program announces the end of each
/// iteration; see the module `planned` of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// How long a planning thread looks for a better plan, in milliseconds (`plan_deadline_ms`).
    /// Default 2000.
    pub plan_deadline_ms: u64,
}

impl Planned {
    /// The defaults.
    pub const DEFAULT: Self = Self { plan_deadline_ms: 2000 };
}

impl Default for Planned {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The options of best fit with coalescing (TensorFlow 2.16's `BFCAllocator`).
///
/// Sizes are multiples of 256 bytes. All requests of a stream share a pool. A request gets the
/// smallest free block that fits; of several, the block at the lowest address. The block is split
/// if it is at least twice as large as the request, or if more than `max_internal_fragmentation`
/// would be wasted. Segments (TensorFlow's *regions*) double in size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bfc {
    /// Segments begin with `first_region` and double. Without growth, the first segment takes
    /// everything up to the limit (`allow_growth`).
    pub allow_growth: bool,
    /// The size of a stream's first segment, in bytes (`first_region_mb`). Default 2 MiB,
    /// TensorFlow's since 2.4.
    pub first_region: u64,
    /// A block is split if at least this many bytes are left (`max_internal_fragmentation_mb`).
    /// Default 128 MiB.
    pub max_internal_fragmentation: u64,
    /// Wholly free segments are released for a request without any other memory
    /// (`region_garbage_collection`). Default on, as TensorFlow sets it for GPUs.
    pub region_garbage_collection: bool,
    /// How long a failing request waits for other threads to free memory, in milliseconds
    /// (`retry_ms`). The device's [`pause`](crate::Host::pause) may end the wait. Default
    /// 0; TensorFlow's is 10,000.
    pub retry_ms: u64,
}

impl Bfc {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        allow_growth: true,
        first_region: 2 * MIB,
        max_internal_fragmentation: 128 * MIB,
        region_garbage_collection: true,
        retry_ms: 0,
    };
}

/// The options of the buddy policy. Requests are rounded up to powers of two, from 1 KiB. A free
/// block is split in halves until a half fits, and merges with its sibling once both are free. So
/// no memory is wasted between blocks, and up to half of each block inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buddy {
    /// The size of a segment, or *arena*, in bytes: a power of two, at least 1 MiB (`arena_mb`). A
    /// larger request gets a segment of its own, the next power of two. Default 64 MiB, a choice of
    /// this project.
    pub arena: u64,
}

impl Buddy {
    /// The defaults.
    pub const DEFAULT: Self = Self { arena: 64 * MIB };
}

/// The options of the size-class policy. Requests are rounded up to multiples of 1 KiB. A freed
/// block serves requests of exactly its size until its whole chunk is free. Without such a block, a
/// request gets a new block, cut off a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeClass {
    /// The size of a segment, or *chunk*, in bytes (`chunk_mb`). A chunk is smaller if the device
    /// has less memory left, and larger for a larger request. Default 1 GiB. The known example has
    /// 5 GiB, too much for sharing a device with other programs.
    pub chunk: u64,
}

impl SizeClass {
    /// The defaults.
    pub const DEFAULT: Self = Self { chunk: 1024 * MIB };
}

/// The options of the slab policy. Small requests are served from slabs, rounded up to a power of
/// two or to one and a half of one, from 512 bytes: a request of 66 KiB takes 96 KiB, and not 128.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slab {
    /// The largest request served from slabs, in bytes, rounded down to a size of slabs; at most
    /// 512 KiB (`largest_object_kb`). Default 512 KiB.
    pub largest_object: u64,
}

impl Slab {
    /// The defaults.
    pub const DEFAULT: Self = Self { largest_object: 512 << 10 };
}

/// The options of the stitched policy.
///
/// A request that no free block can hold is served from pages under the holes between live blocks:
/// wholly free pages are mapped a second time, next to each other, and their old addresses are
/// given up. Live blocks never move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stitched {
    /// New memory is allocated while the memory held exceeds the peak of live memory by at most
    /// this many ten-thousandths of the peak (`slack`, a fraction). Beyond, free pages move first.
    /// Default 120, which is 1.2 %: with more, the memory held is larger by the difference; with
    /// less, pages move so often that parts of them are in use everywhere, and more memory is
    /// needed in the end (measured on recorded programs, 0.5 to 5 %).
    pub slack: u32,
    /// A request spends about this long in mapping, in microseconds (`max_stall_us`). A request
    /// that would take longer allocates up to 1 % of the peak of live memory beyond the slack, which
    /// [`maintain`](crate::Pages::maintain) gives back; if that does not suffice, the request takes
    /// longer. Default 2,000.
    pub max_stall_us: u32,
    /// No request takes longer than `max_stall_us`, whatever it allocates beyond the slack
    /// (`strict_stall`). Default off: on the recorded programs a strict bound of 2,000 costs 5 % of
    /// utilisation in the mean and a third in the worst case.
    pub strict_stall: bool,
    /// A page moves only after the work that used the page is complete (`completed_pages_only`).
    /// Programs with programmatic dependent launch or persistent kernels need it: a kernel that is
    /// resident before another one ends may see stale data through a second mapping. Default off.
    pub completed_pages_only: bool,
}

impl Stitched {
    /// The defaults.
    pub const DEFAULT: Self = Self { slack: 120, max_stall_us: 2000, strict_stall: false, completed_pages_only: false };
    /// What [`slack`](Self::slack) counts in: this many parts are the whole peak.
    pub const SLACK_PARTS: u32 = 10_000;
}

impl Policy {
    /// Returns the policy named `name`, with the default options.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|policy| policy.name() == name)
    }
}

/// How a policy differs from the others outside its own rules: the answers of every policy stand in one table,
/// [`Policy::traits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "each is the answer to a question of its own")]
pub struct Traits {
    /// Free memory is cached. Otherwise each request and each free calls the device.
    pub caches: bool,
    /// The rules are those of `PyTorch`'s allocator: `decisions` says whether exactly, `tune:auto` may change the
    /// settings, and pinned host memory has settings of its own.
    pub follows_pytorch: bool,
    /// `expandable_segments` has an effect, on a device with virtual memory.
    pub expands: bool,
    /// Each segment of a stream is larger than the segment before.
    pub grows_regions: bool,
    /// A new segment is cut to what the limit and the device have left.
    pub shrinks_segments: bool,
    /// Pages of virtual memory move between free blocks, and spare pages serve every heap.
    pub moves_pages: bool,
    /// The heaps whose segments a sub-allocator divides. Their free neighbours may stay apart.
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
            Self::Buddy(_) | Self::SizeClass(_) => {
                Traits { shrinks_segments: true, suballocated: Some(PoolKind::Large), ..PLAIN }
            }
            Self::Slab(_) => Traits { suballocated: Some(PoolKind::Small), ..PLAIN },
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
