//! The driver's memory calls, counted against the limit before they are made.
//!
//! A limit holds for each device. Bytes are reserved before the driver is called and given back
//! after the driver has freed them, so the sum never exceeds the limit, whatever threads and
//! processes do at the same time. Memory of the host is not counted.

use crate::group::{Budget, Group, Refusal, Uuid};
use crate::options::Options;
use crate::real::Real;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuDevice, CuUuid};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The driver takes memory of more than [`LARGEST_CUT`] bytes from a device in steps of this size.
const STEP: u64 = 2 << 20;

/// Greatest number of bytes that the driver cuts from a page that other allocations share.
const LARGEST_CUT: u64 = 1 << 20;

/// Returns the bytes that an allocation of `bytes` takes from a device: whole steps, unless the
/// driver cuts the allocation from a page.
pub fn taken_by(bytes: u64) -> u64 {
    if bytes <= LARGEST_CUT { bytes } else { bytes.checked_next_multiple_of(STEP).unwrap_or(u64::MAX) }
}

/// The limits of a process, one for each device. All methods may be called from every thread.
#[derive(Debug)]
pub struct Charge {
    options: Options,
    devices: Mutex<Vec<(CuDevice, Arc<DeviceCharge>)>>,
}

/// What a process holds of one device, and how much it may hold.
#[derive(Debug)]
pub struct DeviceCharge {
    /// `None`: the group cannot be joined, and every reservation is refused.
    group: Option<Group>,
    /// Bytes reserved and not given back.
    held: AtomicU64,
    /// Whether a refusal was told.
    told: AtomicBool,
}

impl Charge {
    /// Returns the limits that the options name. Joins no group yet.
    pub fn new(options: &Options) -> Self {
        Self { options: options.clone(), devices: Mutex::default() }
    }

    /// Returns the charge of a device. The first call for a device asks the driver for the device's
    /// identity and joins the group.
    pub fn of_device(&self, real: &Real, device: CuDevice) -> Arc<DeviceCharge> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, charge)) = devices.iter().find(|(known, _)| *known == device) {
            return Arc::clone(charge);
        }
        let charge = Arc::new(DeviceCharge::new(&self.options, || uuid_of(real, device)));
        devices.push((device, Arc::clone(&charge)));
        charge
    }
}

impl DeviceCharge {
    /// Returns the charge of a device whose identity `uuid` tells.
    fn new(options: &Options, uuid: impl FnOnce() -> Uuid) -> Self {
        let group = match &options.group {
            None => Some(Group::alone(options.limit)),
            Some(group) => match Group::join(group, options.limit, uuid()) {
                Ok(group) => Some(group),
                Err(error) => {
                    eprintln!("cachalot: {error}; every request for memory of the device is refused");
                    None
                }
            },
        };
        Self { group, held: AtomicU64::new(0), told: AtomicBool::new(false) }
    }

    /// Reserves bytes, before the driver's call that takes them.
    ///
    /// # Errors
    /// [`CuResult::OUT_OF_MEMORY`] if the limit does not allow the bytes. The first refusal since the
    /// last success is told on the standard error, with the names of those who hold memory.
    pub fn reserve(&self, bytes: u64) -> Result<(), CuResult> {
        let answer = self.group.as_ref().map(|group| group.reserve(bytes));
        match answer {
            Some(Ok(())) => {
                self.held.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            }
            Some(Err(refusal)) => Err(self.refused(&refusal)),
            None => Err(CuResult::OUT_OF_MEMORY),
        }
    }

    /// Gives bytes back, after the driver's call that freed them or failed to take them.
    pub fn give_back(&self, bytes: u64) {
        if let Some(group) = &self.group {
            group.give_back(bytes);
        }
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes reserved and not given back.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the process should give back, because other members of its group were
    /// refused.
    pub fn owed(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::owed)
    }

    /// Returns what the process may know about its limit. `None`: there is no limit.
    pub fn budget(&self) -> Option<Budget> {
        self.group.as_ref().and_then(Group::budget)
    }

    /// Tells that a request of the program has failed for the limit.
    fn refused(&self, refusal: &Refusal) -> CuResult {
        // The allocator repeats a reservation several times, and a program may probe for the limit.
        if !self.told.swap(true, Ordering::Relaxed) {
            eprintln!("cachalot: {refusal}");
        }
        CuResult::OUT_OF_MEMORY
    }
}

/// Memory that the program has from the driver itself, by address or handle. It is charged until
/// the program frees it.
#[derive(Default, Debug)]
pub struct Passed(Mutex<HashMap<u64, (Arc<DeviceCharge>, u64)>>);

impl Passed {
    /// Makes a call of the driver that takes `bytes` of a device, and charges them under the name
    /// that `name` returns after the call.
    pub fn take(
        &self,
        charge: Arc<DeviceCharge>,
        bytes: u64,
        call: impl FnOnce() -> CuResult,
        name: impl FnOnce() -> u64,
    ) -> CuResult {
        if let Err(code) = charge.reserve(bytes) {
            return code;
        }
        let code = call();
        let name = if code.is_success() { name() } else { 0 };
        if name == 0 {
            charge.give_back(bytes);
            return code;
        }
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, (charge, bytes));
        if let Some((charge, bytes)) = before {
            // The memory with this name went with its context, which nobody told.
            charge.give_back(bytes);
        }
        code
    }

    /// Makes a call of the driver that frees the memory named `name`, if the program has it from
    /// the driver.
    pub fn give(&self, name: u64, call: impl FnOnce() -> CuResult) -> CuResult {
        // Taken out before the call: another thread may get the address at once.
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        let code = call();
        if let Some((charge, bytes)) = taken {
            if code.is_success() {
                charge.give_back(bytes);
            } else {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, (charge, bytes));
            }
        }
        code
    }
}

/// Returns a device's identity, all zero if the driver does not tell.
fn uuid_of(real: &Real, device: CuDevice) -> Uuid {
    let mut uuid = CuUuid::default();
    // SAFETY: `uuid` outlives the call, which writes 16 bytes to it.
    let _ = unsafe { real.device_get_uuid(&raw mut uuid, device) };
    Uuid(uuid.bytes.map(|byte| byte as u8))
}

#[cfg(test)]
mod tests {
    use super::{Charge, DeviceCharge, Passed, taken_by};
    use crate::group::Uuid;
    use crate::options::Options;
    use cachalot_cuda::CuResult;
    use std::sync::Arc;

    fn limited(limit: u64) -> Arc<DeviceCharge> {
        let options = Options { limit: Some(limit), ..Options::default() };
        Arc::new(DeviceCharge::new(&options, Uuid::default))
    }

    #[test]
    fn a_failed_call_gives_back_what_was_reserved() {
        let charge = limited(100);
        let passed = Passed::default();
        let failed = passed.take(Arc::clone(&charge), 60, || CuResult::INVALID_VALUE, || 1);
        assert_eq!((failed, charge.held()), (CuResult::INVALID_VALUE, 0));
        assert_eq!(passed.take(Arc::clone(&charge), 60, || CuResult::SUCCESS, || 1), CuResult::SUCCESS);
        let refused = passed.take(Arc::clone(&charge), 60, || unreachable!("beyond the limit"), || 2);
        assert_eq!((refused, charge.held()), (CuResult::OUT_OF_MEMORY, 60));
        assert_eq!(passed.give(1, || CuResult::NOT_PERMITTED), CuResult::NOT_PERMITTED);
        assert_eq!(charge.held(), 60);
        assert_eq!((passed.give(1, || CuResult::SUCCESS), charge.held()), (CuResult::SUCCESS, 0));
        assert_eq!((passed.give(1, || CuResult::SUCCESS), charge.held()), (CuResult::SUCCESS, 0));
    }

    #[test]
    fn the_driver_takes_whole_steps_for_large_memory() {
        assert_eq!([taken_by(1), taken_by(1 << 20), taken_by((1 << 20) + 1)], [1, 1 << 20, 2 << 20]);
        assert_eq!(taken_by(u64::MAX), u64::MAX);
        assert!(Charge::new(&Options::default()).devices.lock().unwrap().is_empty());
    }
}
