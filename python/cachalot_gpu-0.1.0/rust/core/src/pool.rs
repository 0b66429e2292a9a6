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

/// A name under which the memory of private pools is [parked](crate::Parking). Any number but 0; several
/// pools may have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Tag(pub NonZeroU64);

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
    /// when called with this number. Routes in force at the same time have different numbers.
    Host(u64),
}
