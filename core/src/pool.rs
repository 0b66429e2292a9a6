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

/// A name under which the memory of private pools is [parked](crate::Parking). It is any number
/// except 0, and several pools may share it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Tag(pub NonZeroU64);

/// The limits of the pools that share a tag, in the words of Linux's control groups. All bytes are
/// bytes of the tag's *charge*: what the heaps of its pools hold from the device. This includes
/// live and pending blocks, and the free rest of their pages and segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagLimits {
    /// The greatest charge. If a request would exceed it, the tag's free memory is given back
    /// first, and the request is refused if that is not enough. `None` means that there is no
    /// limit.
    pub max: Option<u64>,
    /// Requests outside the tag take none of its memory once the charge is down to this many bytes.
    /// At most `max`.
    pub low: u64,
    /// How much memory the tag may keep, relative to other tags, when memory is short: of two tags
    /// equally far above `low`, the one with half the weight gives back first. Not 0.
    pub weight: u32,
    /// Whether a page that leaves the tag is filled with zeroes before other pools can use it.
    pub clear: bool,
}

impl TagLimits {
    /// The weight of a tag that has not been given one, and of all memory without a tag.
    pub const WEIGHT: u32 = 100;

    /// Limits that have no effect, except that free memory of the tag is given back when memory is
    /// short.
    pub const NONE: Self = Self { max: None, low: 0, weight: Self::WEIGHT, clear: false };
}

impl Default for TagLimits {
    fn default() -> Self {
        Self::NONE
    }
}

/// How much memory the pools with a tag hold, in bytes, and what the tag's limits have done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TagUse {
    /// The bytes that the heaps of the tag's pools hold from the device.
    pub charge: u64,
    /// Bytes of live blocks. They are part of `charge`, unless the pools are parked.
    pub live: u64,
    /// Bytes of free memory. They are part of `charge`.
    pub cached: u64,
    /// The limits, if any are set.
    pub limits: Option<TagLimits>,
    /// Number of requests refused because of `max`.
    pub refusals: u64,
    /// Bytes that went back to the device because of `max`, or because memory was short.
    pub given: u64,
}

/// How a private pool differs from the default pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolOptions {
    /// Lets requests to other pools take free blocks of the pool instead of failing.
    pub use_on_oom: bool,
    /// Keeps blocks whole: each request gets a new segment, or a whole cached segment.
    pub no_split: bool,
}

/// The requests that a route leads to its pool.
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

/// What the requests that a route leads into its pool are for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RoutePurpose {
    /// Ordinary requests.
    Requests,
    /// Requests of a graph that is being captured: until the route ends, the device counts as
    /// capturing. The user that the route adds to the pool is the graph, which stays one until
    /// [`Pools::release`](crate::Pools::release), called after the graph is destroyed.
    ///
    /// A program announces the capture before the capture begins, and ends the route after the
    /// capture has ended. A later announcement or an earlier end is permitted if no other thread
    /// calls the allocator in between: its call may ask the device for the id of the capturing
    /// stream, or whether the stream is idle, or record an event of the whole device, and each of
    /// these breaks the capture.
    ///
    /// During the capture no event is recorded, and memory is not released for requests on
    /// capturing streams. The start of the route waits until no other thread records an event.
    Capture,
    /// One of the two, for a caller that cannot tell: `PyTorch` calls one hook for both, before a
    /// capture begins. The route counts as a capture until a routed request is on a stream that
    /// captures nothing.
    Undeclared,
}
