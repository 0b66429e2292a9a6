//! The pools of stream-ordered memory, and the allocations whose free is queued.

use crate::tables::memory::Allocation;
use crate::tables::stream::Mark;
use crate::values::code::{Answer, Code};
use crate::values::handles::Handles;
use std::collections::BTreeMap;

/// A pool of a device's memory.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Other devices with access to the pool's memory.
    pub(crate) peers: Vec<usize>,
    /// The handle is destroyed. The pool ends with the last memory.
    pub(crate) destroyed: bool,
    /// Switches for reuse. The values are stored without effect.
    pub(crate) switches: [u64; 3],
    /// Bytes kept at a wait.
    pub(crate) threshold: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved_high: u64,
}

/// An allocation whose free is queued.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) address: u64,
    pub(crate) allocation: Allocation,
    /// The queue with the free, if it has one, and the point after the free.
    pub(crate) queue: Option<u64>,
    pub(crate) done: Mark,
}

/// All pools.
#[derive(Debug)]
pub(crate) struct Pools {
    /// Live handles, each of a pool number.
    pub(crate) handles: Handles<u64>,
    pub(crate) by_number: BTreeMap<u64, Pool>,
    made: u64,
    /// Handles of each device's default pool and current pool.
    pub(crate) defaults: Vec<u64>,
    pub(crate) current: Vec<u64>,
    pub(crate) freed: Vec<Freed>,
}

impl Pools {
    /// Creates an empty table of pools.
    pub(crate) fn new() -> Self {
        let (by_number, defaults, current) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { handles: Handles::new(8), by_number, made: 0, defaults, current, freed: Vec::new() }
    }

    /// Creates the default pools of `devices` devices.
    pub(crate) fn initialise(&mut self, devices: usize) {
        self.defaults = (0..devices).map(|device| self.add(device)).collect();
        self.current = self.defaults.clone();
    }

    /// Returns the number of live pools created by the program.
    pub(crate) fn made_and_alive(&self) -> usize {
        self.handles.len() - self.defaults.len()
    }

    /// Adds a pool and returns the handle.
    pub(crate) fn add(&mut self, device: usize) -> u64 {
        let (threshold, used, used_high, reserved_high) = (0, 0, 0, 0);
        let (peers, switches) = (Vec::new(), [1; 3]);
        let pool = Pool { device, peers, destroyed: false, switches, threshold, used, used_high, reserved_high };
        self.made += 1;
        self.by_number.insert(self.made, pool);
        self.handles.add(self.made)
    }

    /// Returns the number of the pool of a live handle.
    pub(crate) fn number(&self, handle: u64) -> Answer<u64> {
        self.handles.get(handle).copied().map_err(|_| Code::INVALID_VALUE)
    }

    /// Returns the pool with a number.
    pub(crate) fn pool(&mut self, number: u64) -> Answer<&mut Pool> {
        self.by_number.get_mut(&number).ok_or(Code::INVALID_VALUE)
    }

    /// Records that a free of an allocation was queued.
    pub(crate) fn freed_by_stream(&mut self, number: u64, bytes: u64) {
        if let Ok(pool) = self.pool(number) {
            pool.used -= bytes;
        }
    }
}
