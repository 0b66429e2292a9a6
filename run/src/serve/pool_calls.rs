//! `cuMemPoolTrimTo`, `cuMemPoolDestroy`, and what the driver's own pools keep, charged.

use crate::charge::{Charge, DriverFigures};
use crate::ledger::Kind;
use crate::serve::frees::Relaxed;
use crate::serve::pool_memory::name_of;
use crate::serve::process::Process;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuDevice, CuDevicePtr, CuMemoryPool};

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

    /// Makes a call that frees an address. Memory of a pool counts as the pool's from before the
    /// call on, until the driver says what the pool holds.
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

    /// Looks for room for `bytes` that were not announced, before a request for memory of a device
    /// fails. What pools keep goes back to the device if it must, as the driver itself has it.
    /// Returns whether there is more room.
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
            self.trim_pools();
        }
        charge.held() < before
    }

    /// Gives back to the devices what pools keep.
    fn trim_pools(&self) {
        for pool in self.pool_memory.all() {
            // SAFETY: the pool lives: its destruction waits.
            let _ = self.pool_memory.ask(pool, || unsafe { self.real.mem_pool_trim_to(pool, 0) });
            self.measure_pool(pool);
        }
    }

    /// Gives cached memory back to the driver until at most `keep` bytes of served memory are held
    /// on each device, and what pools keep. Returns the bytes that went back.
    pub(super) fn give_cache(&self, keep: u64) -> u64 {
        // A call for another process breaks no capture of this one.
        let _relaxed = Relaxed::enter(self.real);
        let held = || self.charge.all().iter().map(|charge| charge.held()).sum::<u64>();
        let before = held();
        let mut devices: Vec<_> = self.contexts.all().iter().map(|served| served.ordinal()).collect();
        devices.sort_unstable_by_key(|device| device.0);
        devices.dedup();
        devices.into_iter().for_each(|device| self.trim_served(device, keep));
        self.trim_pools();
        before.saturating_sub(held())
    }

    /// `cuMemPoolDestroy`. What the pool has kept goes back to the device, and memory in use stays
    /// the program's.
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

    /// `cuMemPoolTrimTo`. Of a served default pool, cached memory goes back to the device until the
    /// pool holds `keep` bytes.
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
