//! Background planning for `policy:planned`: plans observed iterations on threads of the library.

use cachalot_core::{Allocator, DeviceIndex, DeviceMemory, Error, Lock, Observed, Storage};
use cachalot_planner::Plan;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// A planning thread and its device.
struct Job {
    device: DeviceIndex,
    thread: JoinHandle<(Observed, Option<Vec<Plan>>)>,
}

/// Announces iterations to an allocator and plans observed iterations in the background, with at
/// most one thread per device.
///
/// A finished plan takes effect at the next announcement. If a thread cannot start, or panics, the
/// fallback policy stays in effect.
///
/// ```
/// use cachalot::simulated::SimulatedDevice;
/// use cachalot::{Allocator, Config, DeviceIndex, Tables, HeapLock, StreamId, Planner};
///
/// let config = Config::parse("policy:planned,fallback:bfc,plan_deadline_ms:100")?;
/// let allocator = Allocator::<_, HeapLock, Tables>::new([SimulatedDevice::new(1 << 30)], &config)?;
/// let planner = Planner::default();
/// for _ in 0..4 {
///     planner.iteration(&allocator, DeviceIndex(0))?;
///     let block = allocator.malloc(DeviceIndex(0), 4096, StreamId::DEFAULT)?;
///     allocator.free(block)?;
///     planner.wait();
/// }
/// assert_eq!(allocator.plans(DeviceIndex(0))?.report().served, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Planner {
    jobs: Mutex<Vec<Job>>,
    /// Whether the results are no longer needed. Planning threads then stop early.
    abandoned: Arc<AtomicBool>,
}

impl Planner {
    /// Ends an iteration and starts the next: see
    /// [`Planning::end_iteration`](cachalot_core::Planning::end_iteration). Callable from any
    /// thread; never waits for planning.
    ///
    /// # Errors
    /// The errors of [`Allocator::plans`], and of
    /// [`Planning::end_iteration`](cachalot_core::Planning::end_iteration).
    pub fn iteration<D, R, S>(&self, allocator: &Allocator<D, R, S>, device: DeviceIndex) -> Result<(), Error>
    where
        D: DeviceMemory,
        R: Lock,
        S: Storage,
    {
        let plans_of_device = allocator.plans(device)?;
        while let Some(job) = self.finished(device) {
            // A thread that panicked has no plan; the allocator refuses a plan that is out of date.
            if let Ok((observed, Some(plans))) = job.thread.join() {
                let _taken = plans_of_device.adopt(observed, &plans);
            }
        }
        plans_of_device.end_iteration()?;
        if let Some(observed) = plans_of_device.observed() {
            let milliseconds =
                allocator.settings(device)?.config().planned().map_or(0, |planned| planned.plan_deadline_ms);
            self.start(device, observed, Duration::from_millis(milliseconds));
        }
        Ok(())
    }

    /// Waits until every observed iteration is planned. The plans take effect at the next
    /// announcement.
    pub fn wait(&self) {
        while self.jobs.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|job| !job.thread.is_finished()) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Removes a finished job of the device from the list.
    fn finished(&self, device: DeviceIndex) -> Option<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let number = jobs.iter().position(|job| job.device == device && job.thread.is_finished())?;
        Some(jobs.swap_remove(number))
    }

    /// Starts a planning thread. On failure, the allocator stays with its fallback policy.
    fn start(&self, device: DeviceIndex, observed: Observed, deadline: Duration) {
        let abandoned = Arc::clone(&self.abandoned);
        let plan = move || {
            let until = Instant::now() + deadline;
            let plans = observed.plan(&|| Instant::now() >= until, &|| abandoned.load(Ordering::Relaxed));
            (observed, plans)
        };
        if let Ok(thread) = Builder::new().name("cachalot-plan".into()).spawn(plan) {
            self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(Job { device, thread });
        }
    }
}

impl Drop for Planner {
    /// Stops and joins all planning threads: no code of the library may run when the library is
    /// unloaded.
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        for job in self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ended = job.thread.join();
        }
    }
}

impl core::fmt::Debug for Planner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Planner").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tables;
    use cachalot_core::simulated::{AddressSpace, SimulatedDevice};
    use cachalot_core::{Config, StreamId};
    use cachalot_cuda::HeapLock;

    const DEVICES: [DeviceIndex; 2] = [DeviceIndex(0), DeviceIndex(1)];

    /// Announces an iteration of `blocks` blocks of different sizes and lives.
    fn iterate(
        planner: &Planner,
        allocator: &Allocator<SimulatedDevice, HeapLock, Tables>,
        device: DeviceIndex,
        blocks: u64,
    ) {
        planner.iteration(allocator, device).unwrap();
        let (mut held, mut random) = (Vec::new(), 1_u64);
        for number in 0..blocks {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            held.push(allocator.malloc(device, 512 * (1 + (random >> 40) % 90), StreamId::DEFAULT).unwrap());
            if number > 50 {
                allocator.free(held.swap_remove((random >> 33) as usize % held.len())).unwrap();
            }
        }
        held.into_iter().for_each(|block| allocator.free(block).unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "a plan of 1000 blocks takes many minutes there")]
    fn a_plan_is_searched_to_the_deadline_or_the_end_of_the_planner() {
        static ADDRESSES: AddressSpace = AddressSpace::new(1 << 44..1 << 46);
        let config = Config::parse("policy:planned,fallback:bfc,plan_deadline_ms:60000").unwrap();
        let devices = [1_u64 << 40; 2].map(|bytes| SimulatedDevice::within(&ADDRESSES, bytes));
        let allocator = Allocator::<_, HeapLock, Tables>::new(devices, &config).unwrap();
        let planner = Planner::default();
        for _ in 0..3 {
            // Few blocks are planned at once, and many not before the deadline.
            iterate(&planner, &allocator, DEVICES[0], 2);
            iterate(&planner, &allocator, DEVICES[1], 1000);
        }
        let runs = |device| {
            let jobs = planner.jobs.lock().unwrap();
            jobs.iter().find(|job| job.device == device).map(|job| !job.thread.is_finished())
        };
        while runs(DEVICES[0]) == Some(true) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(runs(DEVICES[1]), Some(true));
        assert!(planner.finished(DEVICES[1]).is_none());
        let abandoned = Arc::downgrade(&planner.abandoned);
        drop(planner);
        assert_eq!(abandoned.strong_count(), 0, "its threads have ended");
    }

    #[test]
    #[cfg_attr(miri, ignore = "a plan of 1000 blocks takes many minutes there")]
    fn waiting_ends_when_everything_is_planned() {
        let config = Config::parse("policy:planned,fallback:bfc,plan_deadline_ms:200").unwrap();
        let allocator = Allocator::<_, HeapLock, Tables>::new([SimulatedDevice::new(1 << 40)], &config).unwrap();
        let planner = Planner::default();
        while planner.jobs.lock().unwrap().is_empty() {
            iterate(&planner, &allocator, DEVICES[0], 1000);
        }
        planner.wait();
        assert!(planner.finished(DEVICES[0]).is_some());
        assert_eq!(format!("{planner:?}"), "Planner { .. }");
    }
}
