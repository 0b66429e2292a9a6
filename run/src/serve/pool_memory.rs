//! The memory that the driver's own pools keep: the pools of the program, and default pools that
//! are not served.
//!
//! A pool keeps freed memory for later requests, up to its threshold, and the device has less. The
//! driver says what a pool holds (0.1 µs on driver 580). So beside the memory of each request, what
//! a pool holds beyond its requests is charged, and asked anew at each call for the pool, whenever
//! the program asks for the free memory, and before a request fails (`pool_calls.rs`).

use crate::real::Real;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuDevice, CuDevicePtr, CuMemPoolAttribute, CuMemoryPool};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The pools that have given memory to the program. All methods may be called from every thread.
#[derive(Default, Debug)]
pub(super) struct PoolMemory {
    records: Mutex<PoolRecords>,
    /// Told when nobody asks the driver about a pool any longer.
    unasked: Condvar,
}

#[derive(Default, Debug)]
struct PoolRecords {
    pools: HashMap<usize, UsedPool>,
    /// The pool and the bytes of each request.
    requests: HashMap<CuDevicePtr, (CuMemoryPool, u64)>,
    /// The number of the last question to the driver.
    questions: u64,
}

/// A pool with requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedPool {
    pub(super) device: CuDevice,
    /// Bytes of the requests.
    used: u64,
    /// Threads that ask the driver about the pool: a handle of a destroyed pool may end the
    /// process.
    asking: u32,
    /// The number of the last question that was answered.
    answered: u64,
}

impl PoolMemory {
    fn lock(&self) -> MutexGuard<'_, PoolRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes memory that a pool has given.
    pub(super) fn add(&self, pool: CuMemoryPool, device: CuDevice, address: CuDevicePtr, bytes: u64) {
        let mut records = self.lock();
        let new = UsedPool { device, used: 0, asking: 0, answered: 0 };
        records.pools.entry(pool.0).or_insert(new).used += bytes;
        records.requests.insert(address, (pool, bytes));
    }

    /// Takes memory out, ahead of the call to free it: another thread may get the address at once.
    /// Returns its pool and its bytes.
    pub(super) fn take(&self, address: CuDevicePtr) -> Option<(CuMemoryPool, u64)> {
        let mut records = self.lock();
        let (pool, bytes) = records.requests.remove(&address)?;
        if let Some(known) = records.pools.get_mut(&pool.0) {
            known.used = known.used.saturating_sub(bytes);
        }
        Some((pool, bytes))
    }

    /// Puts memory back that the driver has not freed.
    pub(super) fn keep(&self, address: CuDevicePtr, pool: CuMemoryPool, bytes: u64) {
        let mut records = self.lock();
        records.requests.insert(address, (pool, bytes));
        if let Some(known) = records.pools.get_mut(&pool.0) {
            known.used += bytes;
        }
    }

    /// Returns the pools.
    pub(super) fn all(&self) -> Vec<CuMemoryPool> {
        self.lock().pools.keys().map(|&pool| CuMemoryPool(pool)).collect()
    }

    /// Makes a call of the driver about a pool, which is not destroyed meanwhile. Returns the
    /// call's answer, the number of the question and the pool as it is then. `None`: the pool is
    /// not known.
    pub(super) fn ask(&self, pool: CuMemoryPool, call: impl FnOnce() -> CuResult) -> Option<(CuResult, u64, UsedPool)> {
        let question = {
            let mut records = self.lock();
            records.questions += 1;
            let question = records.questions;
            records.pools.get_mut(&pool.0)?.asking += 1;
            question
        };
        let code = call();
        let mut records = self.lock();
        let known = records.pools.get_mut(&pool.0)?;
        known.asking -= 1;
        let answer = (code, question, *known);
        drop(records);
        self.unasked.notify_all();
        Some(answer)
    }

    /// Asks the driver what a pool holds. Returns the pool's device and the bytes beyond the
    /// requests. `None`: the pool is not known, the driver does not say, or another thread has
    /// asked later and been answered.
    pub(super) fn beyond_requests(&self, real: &Real, pool: CuMemoryPool) -> Option<(CuDevice, u64)> {
        let mut held = 0_u64;
        let value = (&raw mut held).cast();
        // SAFETY: the attribute's value is a `cuuint64_t`, and `held` outlives the call. The pool
        // lives: its destruction waits.
        let call = || unsafe { real.mem_pool_get_attribute(pool, CuMemPoolAttribute::RESERVED_MEM_CURRENT, value) };
        let (code, question, asked) = self.ask(pool, call)?;
        let mut records = self.lock();
        let known = records.pools.get_mut(&pool.0)?;
        let is_last = code.is_success() && known.answered < question;
        known.answered = known.answered.max(question);
        is_last.then_some((asked.device, held.saturating_sub(asked.used)))
    }

    /// Forgets a pool that is about to be destroyed, once nobody asks about it. Its requests live
    /// on.
    pub(super) fn forget(&self, pool: CuMemoryPool) -> Option<UsedPool> {
        let is_asked = |records: &mut PoolRecords| records.pools.get(&pool.0).is_some_and(|known| known.asking > 0);
        let records = self.unasked.wait_while(self.lock(), is_asked);
        records.unwrap_or_else(PoisonError::into_inner).pools.remove(&pool.0)
    }

    /// Puts a pool back that the driver has not destroyed.
    pub(super) fn put_back(&self, pool: CuMemoryPool, known: UsedPool) {
        self.lock().pools.insert(pool.0, known);
    }
}

/// The name of what a pool holds beyond its requests. A pool's handle is an address of the host,
/// and no address of the host has the upper bits.
pub(super) const fn name_of(pool: CuMemoryPool) -> u64 {
    !(pool.0 as u64)
}
