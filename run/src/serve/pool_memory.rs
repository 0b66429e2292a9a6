//! What the driver's own pools keep: the pools of the program, and default pools that are not served.
//!
//! A pool keeps freed memory for later requests, up to its threshold, and the device has less. The driver tells what a pool holds
//! (0.1 µs on driver 580). So beside the memory of each request, what a pool holds beyond its requests is charged, and asked anew
//! at each call for the pool, whenever the program asks for the free memory, and before a request fails.

use crate::charge::{Charge, DriverFigures};
use crate::ledger::Kind;
use crate::real::Real;
use crate::serve::process::Process;
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
struct UsedPool {
    device: CuDevice,
    /// Bytes of the requests.
    used: u64,
    /// Threads that ask the driver about the pool: a handle of a destroyed pool may end the process.
    asking: u32,
    /// The number of the last question that was answered.
    answered: u64,
}

impl PoolMemory {
    fn lock(&self) -> MutexGuard<'_, PoolRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes memory that a pool has given.
    fn add(&self, pool: CuMemoryPool, device: CuDevice, address: CuDevicePtr, bytes: u64) {
        let mut records = self.lock();
        let new = UsedPool { device, used: 0, asking: 0, answered: 0 };
        records.pools.entry(pool.0).or_insert(new).used += bytes;
        records.requests.insert(address, (pool, bytes));
    }

    /// Takes memory out, ahead of the call to free it: another thread may get the address at once. Returns its pool and its bytes.
    fn take(&self, address: CuDevicePtr) -> Option<(CuMemoryPool, u64)> {
        let mut records = self.lock();
        let (pool, bytes) = records.requests.remove(&address)?;
        if let Some(known) = records.pools.get_mut(&pool.0) {
            known.used = known.used.saturating_sub(bytes);
        }
        Some((pool, bytes))
    }

    /// Puts memory back that the driver has not freed.
    fn keep(&self, address: CuDevicePtr, pool: CuMemoryPool, bytes: u64) {
        let mut records = self.lock();
        records.requests.insert(address, (pool, bytes));
        if let Some(known) = records.pools.get_mut(&pool.0) {
            known.used += bytes;
        }
    }

    /// Returns the pools.
    fn all(&self) -> Vec<CuMemoryPool> {
        self.lock().pools.keys().map(|&pool| CuMemoryPool(pool)).collect()
    }

    /// Makes a call of the driver about a pool, which is not destroyed meanwhile. Returns the call's answer, the number of the question
    /// and the pool as it is then. `None`: the pool is not known.
    fn ask(&self, pool: CuMemoryPool, call: impl FnOnce() -> CuResult) -> Option<(CuResult, u64, UsedPool)> {
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

    /// Asks the driver what a pool holds. Returns the pool's device and the bytes beyond the requests. `None`: the pool is not known,
    /// the driver does not tell, or another thread has asked later and been answered.
    fn beyond_requests(&self, real: &Real, pool: CuMemoryPool) -> Option<(CuDevice, u64)> {
        let mut held = 0_u64;
        let value = (&raw mut held).cast();
        // SAFETY: the attribute's value is a `cuuint64_t`, and `held` outlives the call. The pool lives: its destruction waits.
        let call = || unsafe { real.mem_pool_get_attribute(pool, CuMemPoolAttribute::RESERVED_MEM_CURRENT, value) };
        let (code, question, asked) = self.ask(pool, call)?;
        let mut records = self.lock();
        let known = records.pools.get_mut(&pool.0)?;
        let is_last = code.is_success() && known.answered < question;
        known.answered = known.answered.max(question);
        is_last.then_some((asked.device, held.saturating_sub(asked.used)))
    }

    /// Forgets a pool that is about to be destroyed, once nobody asks about it. Its requests live on.
    fn forget(&self, pool: CuMemoryPool) -> Option<UsedPool> {
        let is_asked = |records: &mut PoolRecords| records.pools.get(&pool.0).is_some_and(|known| known.asking > 0);
        let records = self.unasked.wait_while(self.lock(), is_asked);
        records.unwrap_or_else(PoisonError::into_inner).pools.remove(&pool.0)
    }

    /// Puts a pool back that the driver has not destroyed.
    fn put_back(&self, pool: CuMemoryPool, known: UsedPool) {
        self.lock().pools.insert(pool.0, known);
    }
}

/// The name of what a pool holds beyond its requests. A pool's handle is an address of the host, and no address of the host has the
/// upper bits.
const fn name_of(pool: CuMemoryPool) -> u64 {
    !(pool.0 as u64)
}

impl Process {
    /// Notes memory of the driver's pool, `None` for the current pool of the device.
    pub(super) fn pool_gave(&self, pool: Option<CuMemoryPool>, device: CuDevice, address: CuDevicePtr, bytes: u64) {
        let current = || {
            let mut current = CuMemoryPool::NULL;
            // SAFETY: `current` outlives the call, which writes one handle to it.
            let asked = unsafe { self.real.device_get_mem_pool(&raw mut current, device) };
            asked.is_success().then_some(current)
        };
        if let Some(pool) = pool.or_else(current) {
            self.pool_memory.add(pool, device, address, bytes);
            self.measure_pool(pool);
        }
    }

    /// Makes a call that frees an address. Memory of a pool counts as the pool's from before the call on, until the driver tells what
    /// the pool holds.
    pub(super) fn free_of_pool<E>(
        &self,
        address: CuDevicePtr,
        call: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some((pool, bytes)) = self.pool_memory.take(address) else { return call() };
        self.measure_pool(pool);
        let freed = call().inspect_err(|_| self.pool_memory.keep(address, pool, bytes));
        self.measure_pool(pool);
        freed
    }

    /// Asks the driver what a pool holds, and charges what is beyond the requests.
    fn measure_pool(&self, pool: CuMemoryPool) {
        if let Some((device, bytes)) = self.pool_memory.beyond_requests(self.real, pool) {
            let charge = self.charge.of_device(self.real, device);
            self.charge.holdings().set(&charge, Kind::Pool, name_of(pool), bytes);
        }
    }

    /// Asks the driver what all pools hold.
    pub(super) fn measure_pools(&self) {
        self.pool_memory.all().into_iter().for_each(|pool| self.measure_pool(pool));
    }

    /// Looks for room for `bytes` that nobody has told of, before a request for memory of a device fails. What pools keep goes back to
    /// the device if it must, as the driver itself has it. Returns whether there is more room.
    pub(super) fn finds_room(&self, device: CuDevice, bytes: u64) -> bool {
        let charge = self.charge.of_device(self.real, device);
        let before = charge.held();
        self.measure_pools();
        if self.current_device() == Some(device)
            && let Ok(figures) = DriverFigures::of_current(self.real)
        {
            charge.bound(figures.used);
        }
        if charge.budget().is_some_and(|budget| budget.available < bytes) {
            for pool in self.pool_memory.all() {
                // SAFETY: the pool lives: its destruction waits.
                let _ = self.pool_memory.ask(pool, || unsafe { self.real.mem_pool_trim_to(pool, 0) });
                self.measure_pool(pool);
            }
        }
        charge.held() < before
    }

    /// `cuMemPoolDestroy`. What the pool has kept goes back to the device, and memory in use stays the program's.
    ///
    /// # Safety
    /// The pool lives, and no thread uses the pool any longer.
    pub unsafe fn mem_pool_destroy(&self, pool: CuMemoryPool) -> CuResult {
        let known = self.pool_memory.forget(pool);
        // SAFETY: the pool is the caller's.
        let code = unsafe { self.real.mem_pool_destroy(pool) };
        match known {
            Some(known) if code.is_success() => self.end_pool(&self.charge, pool, known.device),
            Some(known) => self.pool_memory.put_back(pool, known),
            None => {}
        }
        code
    }

    /// Ends the charge of what a pool has kept.
    fn end_pool(&self, charge: &Charge, pool: CuMemoryPool, device: CuDevice) {
        charge.holdings().set(&charge.of_device(self.real, device), Kind::Pool, name_of(pool), 0);
    }

    /// `cuMemPoolTrimTo`. Of a served default pool, cached memory goes back to the device until the pool holds `keep` bytes.
    ///
    /// # Safety
    /// The pool lives.
    pub unsafe fn mem_pool_trim_to(&self, pool: CuMemoryPool, keep: usize) -> CuResult {
        if let Some(device) = self.pools.served_device(pool) {
            self.trim_served(device, keep as u64);
        }
        // SAFETY: the pool is the caller's.
        let code = unsafe { self.real.mem_pool_trim_to(pool, keep) };
        self.measure_pool(pool);
        code
    }
}
