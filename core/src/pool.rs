//! Private pools: names, options, and routes that lead requests into a pool.

use crate::units::StreamId;
use core::fmt;
use core::num::NonZeroU64;

/// The name of a pool: two numbers, like PyTorch's `MempoolId_t`. `(0, 0)` is the default pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The default pool, which serves every request without a route.
    pub const DEFAULT: Self = Self(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

/// A name under which the memory of private pools is [parked](crate::Parking). Any number but 0;
/// several pools may have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Tag(pub NonZeroU64);

/// The limits of the pools with a tag, in the words of Linux's control groups. All bytes are of the
/// tag's *charge*: the bytes that the heaps of its pools hold from the device, which are the live
/// and the pending blocks and the free rest of their pages and segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagLimits {
    /// The greatest charge. A request beyond it has the free memory of the tag given back, and is
    /// refused if that does not suffice. `None`: no limit.
    pub max: Option<u64>,
    /// Bytes of the tag's memory down to which none of it goes back for requests outside the tag.
    /// At most `max`.
    pub low: u64,
    /// The share of the tag beside the weights of the others when memory is short: of two tags
    /// equally far above `low`, the one with half the weight gives back first. Not 0.
    pub weight: u32,
    /// Whether a page that leaves the tag is filled with zeroes before other pools can have it.
    pub clear: bool,
}

impl TagLimits {
    /// The weight of a tag without another, and of all memory without a tag.
    pub const WEIGHT: u32 = 100;

    /// Limits without an effect, other than that free memory of the tag goes back when memory is
    /// short.
    pub const NONE: Self = Self { max: None, low: 0, weight: Self::WEIGHT, clear: false };
}

impl Default for TagLimits {
    fn default() -> Self {
        Self::NONE
    }
}

/// What the pools with a tag hold, in bytes, and what its limits have done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TagUse {
    /// The bytes that the heaps of the tag's pools hold from the device.
    pub charge: u64,
    /// Bytes of live blocks. Part of `charge`, unless the pools are parked.
    pub live: u64,
    /// Bytes of free memory. Part of `charge`.
    pub cached: u64,
    /// The limits, if any are set.
    pub limits: Option<TagLimits>,
    /// Number of requests refused because of `max`.
    pub refusals: u64,
    /// Bytes that went back to the device because of `max`, or because memory was short.
    pub given: u64,
}

/// The differences of a private pool from the default pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolOptions {
    /// Lets requests to other pools take free blocks of the pool instead of failing.
    pub use_on_oom: bool,
    /// Keeps blocks whole: each request gets a segment of its own, or a cached segment as a whole.
    pub no_split: bool,
}

/// The requests that a route leads into its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Every request on the device.
    All,
    /// Requests on the stream.
    Stream(StreamId),
    /// Requests of the thread with this
    /// [`Host::thread_id`](crate::device::Host::thread_id).
    Thread(u64),
    /// Requests for which [`Host::leads`](crate::device::Host::leads) returns true
    /// when called with this number. Routes active at the same time have different numbers.
    Host(u64),
}
