//! Background tuning for `tune:auto`: searches settings with the latest requests on a thread of the
//! library, and activates them at idle moments.

use crate::open::SimulatedAllocator;
use cachalot_core::{Allocator, DeviceIndex, DeviceMemory, Error, Lock, Storage};
use cachalot_tuner::judge::cost;
use cachalot_tuner::live::{Finding, Limits, Tuner};
use cachalot_tuner::program::Subject;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// Most candidates of a search. The time of `tune_budget_ms` is usually over before.
const CANDIDATES: usize = 64;

/// A search is followed by a rest of this many times its own time: a tenth of a core at the most.
const REST: u32 = 9;

/// The tuner of a device, and its thread while a job runs.
struct OnDevice {
    tuner: Tuner,
    job: Option<JoinHandle<Finding>>,
    /// No job starts before.
    rests_until: Option<Instant>,
}

/// Tunes the devices of an allocator with the setting `tune:auto`, with at most one thread per
/// device. The threads have the lowest priority and use no lock of the allocator. They try settings
/// on allocators of the type `A`, each over a simulated device.
///
/// The program calls [`idle`](Self::idle) at idle moments, such as the end of an iteration.
/// Everything that touches the allocator happens there, and a search only between two such moments.
///
/// ```
/// use cachalot::{AutoTuner, Config, DeviceIndex, StreamId};
///
/// let allocator = cachalot::open_simulated(1 << 36, &Config::parse("tune:auto")?)?;
/// let tuner = AutoTuner::new();
/// for iteration in 0..8_u64 {
///     for bytes in (20 + iteration % 4..).map(|mib| mib << 20).take(100) {
///         allocator.free(allocator.malloc(DeviceIndex(0), bytes, StreamId::DEFAULT)?)?;
///     }
///     tuner.idle(&allocator, DeviceIndex(0))?;
///     tuner.wait();
/// }
/// assert!(allocator.tuning(DeviceIndex(0))?.report().searches > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AutoTuner<A = SimulatedAllocator> {
    tries_on: PhantomData<fn() -> A>,
    devices: Mutex<BTreeMap<u32, OnDevice>>,
    /// Whether the results are no longer needed. Searches then end early.
    abandoned: Arc<AtomicBool>,
}

impl AutoTuner {
    /// Creates a tuner that tries settings on a [`SimulatedAllocator`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<A> Default for AutoTuner<A> {
    fn default() -> Self {
        Self { tries_on: PhantomData, devices: Mutex::default(), abandoned: Arc::default() }
    }
}

impl<A: Subject> AutoTuner<A> {
    /// Does what is due on a device: starts a search, activates the result of the latest one,
    /// or takes settings back. Does nothing without `tune:auto`, during a capture, and while
    /// another thread is here. Callable from any thread; never waits for a search.
    ///
    /// Device: called to release memory. Never waits for the device.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Device`].
    pub fn idle<D, R, S>(&self, allocator: &Allocator<D, R, S>, device: DeviceIndex) -> Result<(), Error>
    where
        D: DeviceMemory,
        R: Lock,
        S: Storage,
    {
        if !allocator.tuning(device)?.is_possible() {
            return Ok(());
        }
        let Ok(mut devices) = self.devices.try_lock() else { return Ok(()) };
        let on_device = devices.entry(device.0).or_insert_with(|| OnDevice {
            tuner: Tuner::new(Limits { candidates: CANDIDATES, ..Limits::default() }),
            job: None,
            rests_until: None,
        });
        let OnDevice { tuner, job, rests_until } = on_device;
        if job.as_ref().is_some_and(|job| !job.is_finished()) {
            return Ok(());
        }
        match job.take().map(JoinHandle::join) {
            Some(Ok(finding)) => {
                *rests_until = Some(Instant::now() + finding.took() * REST);
                tuner.conclude(allocator, device, finding)?;
            }
            // A search that panicked has changed nothing.
            Some(Err(_)) => tuner.give_up(),
            None => {}
        }
        if rests_until.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        tuner.set_time(Some(Duration::from_millis(allocator.settings(device)?.config().tune_budget_ms())));
        if let Some(next) = tuner.prepare(allocator, device)? {
            let abandoned = Arc::clone(&self.abandoned);
            let work = move || {
                lower_priority();
                next.run(cost::<A>, &abandoned)
            };
            match Builder::new().name("cachalot-tune".into()).spawn(work) {
                Ok(thread) => *job = Some(thread),
                Err(_) => tuner.give_up(),
            }
        }
        Ok(())
    }
}

impl<A> AutoTuner<A> {
    /// Waits until no search runs, and ends the rest after it. For tests: the result takes effect
    /// at the next idle moment.
    pub fn wait(&self) {
        let is_running = |devices: &BTreeMap<u32, OnDevice>| {
            devices.values().any(|device| device.job.as_ref().is_some_and(|job| !job.is_finished()))
        };
        while is_running(&self.devices.lock().unwrap_or_else(PoisonError::into_inner)) {
            std::thread::sleep(Duration::from_micros(100));
        }
        for device in self.devices.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
            device.rests_until = None;
        }
    }
}

impl<A> Drop for AutoTuner<A> {
    /// Stops and joins all threads: no code of the library may run when the library is unloaded.
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        for device in self.devices.get_mut().unwrap_or_else(PoisonError::into_inner).values_mut() {
            if let Some(job) = device.job.take() {
                let _ended = job.join();
            }
        }
    }
}

impl<A> core::fmt::Debug for AutoTuner<A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AutoTuner").finish_non_exhaustive()
    }
}

/// Gives the calling thread the lowest priority. On Linux, 0 is the calling thread alone.
fn lower_priority() {
    // SAFETY: the call has no pointer, and changes nothing but the priority.
    let _refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::{Config, StreamId};

    const DEVICE: DeviceIndex = DeviceIndex(0);

    /// Three blocks at a time, of sizes that grow and start anew.
    fn work(allocator: &crate::SimulatedAllocator) {
        for step in 0..180 {
            let blocks = [0; 3].map(|_| allocator.malloc(DEVICE, (20 + step % 12) << 21, StreamId::DEFAULT).unwrap());
            blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no priorities of threads")]
    fn a_search_is_followed_by_a_rest_and_ends_with_its_tuner() {
        let config = Config::parse("tune:auto,tune_budget_ms:1000000").unwrap();
        let allocator = crate::open_simulated(1 << 36, &config).unwrap();
        let tuner = AutoTuner::new();
        // Whether a search was begun, and whether it is running.
        let search = || {
            let devices = tuner.devices.lock().unwrap();
            devices[&0].job.as_ref().map(|job| !job.is_finished())
        };
        let rest = |change: &dyn Fn(&mut Option<Instant>)| {
            let mut devices = tuner.devices.lock().unwrap();
            let until = &mut devices.get_mut(&0).unwrap().rests_until;
            change(until);
            *until
        };
        work(&allocator);
        tuner.idle(&allocator, DEVICE).unwrap();
        while search().expect("it was begun") {
            std::thread::yield_now();
        }
        let ended = Instant::now();
        tuner.idle(&allocator, DEVICE).unwrap();
        let took = Duration::from_micros(allocator.tuning(DEVICE).unwrap().report().search_us);
        let until = rest(&|_| ()).expect("a rest");
        assert!(!took.is_zero() && until >= ended + took * REST, "{took:?}");
        rest(&|until| *until = Some(Instant::now() + Duration::from_secs(3600)));
        (0..4).for_each(|_| work(&allocator));
        tuner.idle(&allocator, DEVICE).unwrap();
        assert_eq!(search(), None);
        tuner.wait();
        assert_eq!(rest(&|_| ()), None);
        tuner.idle(&allocator, DEVICE).unwrap();
        assert!(search().is_some());
        tuner.wait();
        assert_eq!(search(), Some(false));
        assert_eq!(format!("{tuner:?}"), "AutoTuner { .. }");

        let other = AutoTuner::new();
        let allocator = crate::open_simulated(1 << 36, &config).unwrap();
        work(&allocator);
        other.idle(&allocator, DEVICE).unwrap();
        assert!(other.devices.lock().unwrap()[&0].job.is_some(), "a search was begun");
        let abandoned = Arc::downgrade(&other.abandoned);
        drop(other);
        assert_eq!(abandoned.strong_count(), 0, "its thread has ended");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no priorities of threads")]
    fn a_search_gives_way_to_all_other_threads() {
        let lowered = std::thread::spawn(|| {
            lower_priority();
            // SAFETY: the call has no pointer.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        });
        assert_eq!(lowered.join().unwrap(), 19);
    }
}
