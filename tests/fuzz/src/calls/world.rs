//! The state of the program under test: the allocator, the live blocks, and all names used so far.

use super::argument::{Address, Handle, PoolName, StreamHandle};
use cachalot::c::abi::{cachalot_allocator, cachalot_pool, cachalot_status, cachalot_stream};
use cachalot::c::capi::{
    cachalot_capture_end, cachalot_check_invariants, cachalot_destroy, cachalot_free, cachalot_last_error,
    cachalot_pool_end, cachalot_pool_release, cachalot_simulate_capture, cachalot_simulate_progress,
};
use cachalot::c::status::{CACHALOT_ERROR_PANIC, CACHALOT_ERROR_POISONED, CACHALOT_OK};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_int, c_void};
use std::fmt::Debug;
use std::ptr::{null_mut, without_provenance_mut};

/// Number of devices to be emptied at the end. Arguments rarely name another device.
const DEVICES: c_int = 3;

/// Greatest number of repetitions of a cleaning call at the end.
const MOST_UNDONE: usize = 2000;

/// The state of the program under test.
pub(super) struct World {
    pub(super) handle: *mut cachalot_allocator,
    destroyed: *mut cachalot_allocator,
    /// Requested bytes of each live block, by address.
    pub(super) held: BTreeMap<usize, usize>,
    pub(super) freed: Vec<usize>,
    pub(super) made: Vec<cachalot_pool>,
    streams: BTreeSet<u64>,
    pools: BTreeSet<(u64, u64)>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            handle: null_mut(),
            destroyed: null_mut(),
            held: BTreeMap::new(),
            freed: Vec::new(),
            made: Vec::new(),
            streams: BTreeSet::new(),
            pools: BTreeSet::new(),
        }
    }
}

/// Panics if the library itself is at fault.
pub(super) fn check(status: cachalot_status, call: &impl Debug) {
    assert!(![CACHALOT_ERROR_PANIC, CACHALOT_ERROR_POISONED].contains(&status), "{call:?}: {}", last_error());
}

fn last_error() -> String {
    // SAFETY: only calls of this thread write to the text, and none runs while it is copied.
    unsafe { CStr::from_ptr(cachalot_last_error()) }.to_string_lossy().into_owned()
}

impl World {
    /// Returns a handle as an argument.
    pub(super) fn handle(&self, handle: &Handle) -> *mut cachalot_allocator {
        match *handle {
            Handle::Own => self.handle,
            Handle::Destroyed => self.destroyed,
            Handle::Number(number) => without_provenance_mut(number as usize),
        }
    }

    /// Returns whether a handle is the program's own.
    pub(super) fn is_own(&self, handle: &Handle) -> bool {
        self.handle(handle) == self.handle && !self.handle.is_null()
    }

    pub(super) fn address(&self, address: &Address) -> *mut c_void {
        let nth = |number: u8, count: usize| usize::from(number) % count.max(1);
        let address = match *address {
            Address::Held(number, offset) => {
                let base = self.held.keys().nth(nth(number, self.held.len()));
                base.map_or(0, |base| base + usize::from(offset))
            }
            Address::Freed(number) => self.freed.get(nth(number, self.freed.len())).copied().unwrap_or(0),
            Address::Number(number) => number as usize,
        };
        without_provenance_mut(address)
    }

    pub(super) fn pool(&mut self, name: &PoolName) -> cachalot_pool {
        let pool = match *name {
            PoolName::Made(number) if !self.made.is_empty() => self.made[usize::from(number) % self.made.len()],
            PoolName::Made(number) | PoolName::Own(number, 0) => cachalot_pool { first: 0, second: number.into() },
            PoolName::Own(first, second) => cachalot_pool { first: first.into(), second: second.into() },
        };
        self.pools.insert((pool.first, pool.second));
        pool
    }

    pub(super) fn stream(&mut self, stream: &StreamHandle) -> cachalot_stream {
        self.streams.insert(stream.0);
        stream.pointer()
    }

    /// Records the answer to a request.
    pub(super) fn note_malloc(&mut self, block: *mut c_void, bytes: usize) {
        let (start, end) = (block.addr(), block.addr() + bytes);
        assert!(!block.is_null() || bytes == 0, "a request without an answer");
        if let Some((&other, &length)) = self.held.range(..end).next_back() {
            assert!(other + length <= start, "{start:#x} of {bytes} bytes, where {length} are held at {other:#x}");
        }
        if bytes > 0 {
            self.held.insert(start, bytes);
        }
    }

    /// Records the answer to a free.
    pub(super) fn note_free(&mut self, block: *mut c_void, status: cachalot_status) {
        if status == CACHALOT_OK && !block.is_null() {
            assert!(self.held.remove(&block.addr()).is_some(), "{block:?} was freed, and not held");
            self.freed.push(block.addr());
        }
    }

    /// Frees all blocks, releases all pools and destroys the allocator.
    pub(super) fn end(&mut self) {
        if self.handle.is_null() {
            return;
        }
        let handle = self.handle;
        let pools: Vec<_> = self.pools.iter().map(|&(first, second)| cachalot_pool { first, second }).collect();
        let undo = |call: &dyn Fn(c_int, cachalot_pool) -> cachalot_status| {
            for device in 0..DEVICES {
                for &pool in &pools {
                    let _ = (0..MOST_UNDONE).find(|_| call(device, pool) != CACHALOT_OK);
                }
            }
        };
        for (device, &stream) in (0..DEVICES).flat_map(|device| self.streams.iter().map(move |stream| (device, stream)))
        {
            let stream = without_provenance_mut(stream as usize);
            cachalot_simulate_capture(handle, device, stream, 0);
            cachalot_simulate_progress(handle, device, stream);
        }
        undo(&|device, pool| cachalot_capture_end(handle, device, pool));
        undo(&|device, pool| cachalot_pool_end(handle, device, pool));
        for &block in self.held.keys() {
            let status = cachalot_free(handle, without_provenance_mut(block));
            assert_eq!(status, CACHALOT_OK, "a free at the end: {}", last_error());
        }
        undo(&|device, pool| cachalot_pool_release(handle, device, pool));
        assert_eq!(cachalot_check_invariants(handle), CACHALOT_OK, "{}", last_error());
        let status = cachalot_destroy(handle);
        assert_eq!(status, CACHALOT_OK, "{}", last_error());
        self.forget();
    }

    /// Forgets the allocator after the destruction.
    pub(super) fn forget(&mut self) {
        *self = Self { destroyed: self.handle, ..Self::default() };
    }
}
