//! Which rules place blocks, by name and with their options.

use crate::units::MIB;
use core::fmt;

/// The rules of placement of an allocator. They are chosen when it is made and stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// `PyTorch`'s caching allocator: sizes in units of 512 bytes, small and large requests apart, best fit.
    #[default]
    Caching,
    /// TensorFlow's and XLA's best fit with coalescing.
    Bfc(Bfc),
    /// Powers of two, split and merged with their siblings.
    Buddy(Buddy),
    /// Free lists by size in KiB, cut off large chunks.
    SizeClass(SizeClass),
    /// Equal objects in slabs of 2 MiB for small requests; large ones as [`Caching`](Self::Caching).
    Slab(Slab),
    /// Every request is a call to the device, and every free gives the memory back: for debugging with memory checkers.
    Direct,
}

/// Every policy, with its default options.
const ALL: [Policy; 6] = [
    Policy::Caching,
    Policy::Bfc(Bfc::DEFAULT),
    Policy::Buddy(Buddy::DEFAULT),
    Policy::SizeClass(SizeClass::DEFAULT),
    Policy::Slab(Slab::DEFAULT),
    Policy::Direct,
];

/// The name of the planned policy, which comes before another one: see [`Planned`].
pub const PLANNED: &str = "planned";

/// Names of the policies, as `policy:NAME` and the C ABI spell them.
pub const POLICIES: [&str; ALL.len() + 1] =
    [ALL[0].name(), ALL[1].name(), ALL[2].name(), ALL[3].name(), ALL[4].name(), ALL[5].name(), PLANNED];

/// The planned policy: requests that repeat are served from a plan, all others by the policy that the configuration has besides,
/// the *fallback*. A program announces when an iteration ends; see the module `planned` of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// How long whoever plans looks for a better plan, in milliseconds (`plan_deadline_ms`). Default 2000.
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

/// How best fit with coalescing obtains memory and splits blocks (TensorFlow 2.16's `BFCAllocator`).
///
/// Sizes are multiples of 256 bytes; all requests of a stream share one pool; the smallest free block that fits serves, of several
/// the one at the lowest address. It is split if it is at least twice as large as the request, or if more than
/// `max_internal_fragmentation` would be wasted. Segments (its *regions*) double in size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bfc {
    /// Segments begin with `first_region` and double; else the first one takes everything up to the limit (`allow_growth`).
    pub allow_growth: bool,
    /// The size of a stream's first segment, in bytes (`first_region_mb`). Default 2 MiB, as TensorFlow has it since 2.4.
    pub first_region: u64,
    /// A block is split if at least so many bytes are left, in bytes (`max_internal_fragmentation_mb`). Default 128 MiB.
    pub max_internal_fragmentation: u64,
    /// Wholly free segments are given back when a request cannot be served otherwise (`region_garbage_collection`). Default on, as
    /// TensorFlow sets it for GPUs.
    pub region_garbage_collection: bool,
    /// How long a request waits for others to free memory before it fails, in milliseconds (`retry_ms`); the host's device may cut
    /// it short. Default 0; TensorFlow's is 10,000.
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

impl Default for Bfc {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How the buddy policy obtains memory. Requests are rounded up to powers of two, from 1 KiB; a free block splits in halves until one
/// fits, and becomes one with its sibling when both are free. So nothing is wasted between blocks, and up to half inside them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buddy {
    /// The bytes of a segment, or *arena*: a power of two, at least 1 MiB (`arena_mb`). A larger request gets one of its own power of
    /// two. Default 64 MiB, a choice of this project.
    pub arena: u64,
}

impl Buddy {
    /// The defaults.
    pub const DEFAULT: Self = Self { arena: 64 * MIB };
}

impl Default for Buddy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How the size-class policy obtains memory. Requests are rounded up to multiples of 1 KiB; a freed block serves requests of exactly
/// its size until its whole chunk is free; what no free block serves is cut off a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeClass {
    /// The bytes of a segment, or *chunk*: as many as there are if the device has less, more for a request that is larger
    /// (`chunk_mb`). Default 1 GiB; the known example has 5 GiB, too much to share a device with others.
    pub chunk: u64,
}

impl SizeClass {
    /// The defaults.
    pub const DEFAULT: Self = Self { chunk: 1024 * MIB };
}

impl Default for SizeClass {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which requests the slab policy serves from slabs: rounded up to a power of two or to one and a half of one, from 512 bytes, so that
/// 66 KiB cost 96 and not 128.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slab {
    /// The largest such request in bytes, rounded down to such a size, at most 512 KiB (`largest_object_kb`). Default 512 KiB.
    pub largest_object: u64,
}

impl Slab {
    /// The defaults.
    pub const DEFAULT: Self = Self { largest_object: 512 << 10 };
}

impl Default for Slab {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Policy {
    /// The policy of this name, with its default options.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caching => "caching",
            Self::Bfc(_) => "bfc",
            Self::Buddy(_) => "buddy",
            Self::SizeClass(_) => "size_class",
            Self::Slab(_) => "slab",
            Self::Direct => "direct",
        }
    }
}

impl From<Bfc> for Policy {
    fn from(options: Bfc) -> Self {
        Self::Bfc(options)
    }
}

impl From<Buddy> for Policy {
    fn from(options: Buddy) -> Self {
        Self::Buddy(options)
    }
}

impl From<SizeClass> for Policy {
    fn from(options: SizeClass) -> Self {
        Self::SizeClass(options)
    }
}

impl From<Slab> for Policy {
    fn from(options: Slab) -> Self {
        Self::Slab(options)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The policies that a setting is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scope(u8);

impl Scope {
    const CACHING: u8 = 1;
    const BFC: u8 = 1 << 1;
    const BUDDY: u8 = 1 << 2;
    const SIZE_CLASS: u8 = 1 << 3;
    const SLAB: u8 = 1 << 4;
    const DIRECT: u8 = 1 << 5;
    const PLANNED: u8 = 1 << 6;

    pub(super) const EVERY: Self = Self(u8::MAX);
    /// Policies that keep free space as blocks of any size.
    pub(super) const TAGS: Self = Self(Self::CACHING | Self::BFC);
    pub(super) const CACHING_ONLY: Self = Self(Self::CACHING);
    /// Policies that obtain segments as the caching one does.
    pub(super) const SHARED_SEGMENTS: Self = Self(Self::CACHING | Self::SLAB);
    pub(super) const BFC_ONLY: Self = Self(Self::BFC);
    pub(super) const BUDDY_ONLY: Self = Self(Self::BUDDY);
    pub(super) const SIZE_CLASS_ONLY: Self = Self(Self::SIZE_CLASS);
    pub(super) const SLAB_ONLY: Self = Self(Self::SLAB);
    pub(super) const PLANNED_ONLY: Self = Self(Self::PLANNED);

    /// Whether it is for the planned policy, whatever the fallback is.
    pub(super) const fn holds_planned(self) -> bool {
        self.0 & Self::PLANNED != 0
    }

    pub(super) const fn holds(self, policy: Policy) -> bool {
        let bit = match policy {
            Policy::Caching => Self::CACHING,
            Policy::Bfc(_) => Self::BFC,
            Policy::Buddy(_) => Self::BUDDY,
            Policy::SizeClass(_) => Self::SIZE_CLASS,
            Policy::Slab(_) => Self::SLAB,
            Policy::Direct => Self::DIRECT,
        };
        self.0 & bit != 0
    }
}
