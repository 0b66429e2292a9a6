//! The sleep of a process's served memory: options, idle time and figures.

use crate::control::Transfer;
use crate::options::SleepOptions;
use crate::sleep::{Idle, MemorySleep, other_threads};
use cachalot_cuda::CuResult;
use cachalot_gate::AsymmetricRwLock;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a process looks for members of the group in need of memory.
const YIELD_LOOKS: Duration = Duration::from_millis(10);

/// The sleep of a process's served memory.
#[derive(Debug)]
pub(super) struct Sleeping {
    pub(super) options: SleepOptions,
    pub(super) sleeper: MemorySleep<CuResult>,
    idle: Mutex<Idle>,
    figures: Mutex<SleepFigures>,
}

/// The history of a process's sleep so far.
#[derive(Clone, Default, Debug)]
pub struct SleepFigures {
    /// Parks that succeeded.
    pub parks: u64,
    /// Wakes that succeeded.
    pub wakes: u64,
    /// The last park.
    pub last_park: Transfer,
    /// The last wake.
    pub last_wake: Transfer,
    /// The last failure of a park or a wake since the last success.
    pub failure: Option<String>,
}

impl Sleeping {
    /// Returns the sleep of a process that is awake. `lock` is unlocked, and used by this process
    /// alone.
    pub(super) fn new(options: SleepOptions, lock: &'static AsymmetricRwLock) -> Self {
        let idle = Mutex::new(Idle::new(Instant::now()));
        Self { options, sleeper: MemorySleep::new(lock), idle, figures: Mutex::default() }
    }

    /// Returns the idle time after which the memory is parked.
    pub(super) fn idle_limit(&self) -> Option<Duration> {
        self.options.idle_ms.map(Duration::from_millis)
    }

    /// Returns how long a call waits for memory of the device to wake.
    pub(super) fn wake_patience(&self) -> Duration {
        Duration::from_millis(self.options.wake_timeout_ms)
    }

    /// Returns how often the maintenance thread has to check whether the memory is to be parked.
    pub(super) fn look_every(&self) -> Duration {
        let idle = self.idle_limit().map_or(Duration::MAX, |idle| idle / 8);
        if self.options.yields { idle.min(YIELD_LOOKS) } else { idle }
    }

    /// Looks at the threads, and returns since when the process is idle.
    pub(super) fn idle_time(&self) -> Duration {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        idle.note(other_threads(), now);
        idle.time(now)
    }

    /// Ends the idle time: the process works without calls, or cannot be parked.
    pub(super) fn postpone(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).busy(Instant::now());
    }

    pub(super) fn figures(&self) -> MutexGuard<'_, SleepFigures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
