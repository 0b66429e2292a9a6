//! What a program says about private pools: their names, their options, and the routes into them.

use crate::units::StreamId;
use core::fmt;

/// The name of a pool: two numbers, as PyTorch's `MempoolId_t`. `(0, 0)` is the default pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The pool that everything without a route comes from.
    pub const DEFAULT: Self = Self(0, 0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

/// How a private pool differs from the default one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolOptions {
    /// Requests of other pools may take its free blocks rather than fail.
    pub use_on_oom: bool,
    /// Its blocks are never split: each request gets a segment of its own, or one that was given back whole.
    pub no_split: bool,
}

/// Which requests a route leads into its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Every one of the device.
    All,
    /// Those on one stream.
    Stream(StreamId),
    /// Those of one thread, as [`DeviceMemory::thread_id`](crate::device::DeviceMemory::thread_id) numbers it.
    Thread(u64),
    /// Those that the host says it leads: [`DeviceMemory::leads`](crate::device::DeviceMemory::leads) is asked at each request.
    /// No two routes in force at a time have the same number.
    Host(u64),
}
