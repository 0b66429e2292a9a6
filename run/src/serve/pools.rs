//! Which default pools of the driver are served.
//!
//! `cuMemAllocAsync` takes memory of the current pool of a device, which is the default pool unless
//! the program chooses another. A default pool is served until the program gives other processes or
//! devices access to the pool: served memory is not the pool's, and would not follow.

use crate::real::Real;
use cachalot_cuda::driver::types::{CuDevice, CuMemoryPool};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The pools of a process's devices.
#[derive(Default, Debug)]
pub(super) struct Pools(Mutex<KnownPools>);

/// The state under the lock of [`Pools`].
#[derive(Default, Debug)]
struct KnownPools {
    devices: Vec<DevicePool>,
    /// Pools to which the program has given additional access, perhaps before the first request for
    /// memory.
    shared: Vec<CuMemoryPool>,
}

/// The default pool of a device.
#[derive(Clone, Copy, Debug)]
struct DevicePool {
    device: CuDevice,
    /// Null if the device has none.
    default: CuMemoryPool,
    /// Whether requests without a pool are served: the default pool is current.
    is_current: bool,
}

impl Pools {
    /// Returns whether a request without a pool is served, on `device`.
    pub(super) fn serves_current(&self, real: &Real, device: CuDevice) -> bool {
        let mut known = self.lock();
        let pool = *of(&mut known.devices, real, device);
        pool.is_current && known.serves(pool)
    }

    /// Returns whether a request naming `pool` is served, on `device`.
    pub(super) fn serves(&self, real: &Real, device: CuDevice, named: CuMemoryPool) -> bool {
        let mut known = self.lock();
        let pool = *of(&mut known.devices, real, device);
        pool.default == named && known.serves(pool)
    }

    /// Returns the default pool of a device, which served memory counts as.
    pub(super) fn default_of(&self, real: &Real, device: CuDevice) -> CuMemoryPool {
        of(&mut self.lock().devices, real, device).default
    }

    /// Returns the device whose default pool a pool is, if it is served. Asks no driver: without a
    /// request nothing is served yet.
    pub(super) fn served_device(&self, pool: CuMemoryPool) -> Option<CuDevice> {
        let known = self.lock();
        let of = known.devices.iter().find(|of| of.default == pool && known.serves(**of))?;
        Some(of.device)
    }

    /// Notes the program's choice of the current pool of a device.
    pub(super) fn chosen(&self, real: &Real, device: CuDevice, chosen: CuMemoryPool) {
        let mut known = self.lock();
        let pool = of(&mut known.devices, real, device);
        pool.is_current = pool.default == chosen;
    }

    /// Notes additional access to a pool, given by the program.
    pub(super) fn shared(&self, pool: CuMemoryPool) {
        let mut known = self.lock();
        if !known.shared.contains(&pool) {
            known.shared.push(pool);
        }
    }

    /// Locks the pools.
    fn lock(&self) -> MutexGuard<'_, KnownPools> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownPools {
    /// Returns whether the default pool of a device is served.
    fn serves(&self, pool: DevicePool) -> bool {
        !pool.default.is_null() && !self.shared.contains(&pool.default)
    }
}

/// Returns the pool of a device. The first call for a device asks the driver.
fn of<'a>(pools: &'a mut Vec<DevicePool>, real: &Real, device: CuDevice) -> &'a mut DevicePool {
    if let Some(at) = pools.iter().position(|pool| pool.device == device) {
        return &mut pools[at];
    }
    let (mut default, mut current) = (CuMemoryPool::NULL, CuMemoryPool::NULL);
    // SAFETY: `default` outlives the call, which writes one handle to it.
    let has = unsafe { real.device_get_default_mem_pool(&raw mut default, device) };
    // SAFETY: `current` outlives the call, which writes one handle to it.
    let asked = unsafe { real.device_get_mem_pool(&raw mut current, device) };
    let default = if has.is_success() { default } else { CuMemoryPool::NULL };
    let is_current = asked.is_success() && current == default;
    pools.push(DevicePool { device, default, is_current });
    pools.last_mut().expect("the entry above")
}
