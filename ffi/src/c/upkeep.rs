//! Upkeep by a thread of the library: calls [`Pages::maintain`](cachalot_core::Pages::maintain) for
//! every device, again and again, and does the work of idle moments.

use crate::c::device::SharedAllocator;
use crate::c::idle::IdleWork;
use crate::c::status::{CACHALOT_ERROR_BUSY, Outcome, Status};
use cachalot_core::DeviceIndex;
use cachalot_cuda::BackgroundWork;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The interval between rounds of upkeep, and the time for each round.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Pause between two rounds; `None` ends the thread.
    interval: Option<Duration>,
    /// Driver time for each device in a round, in microseconds.
    max_us: u64,
}

/// The thread, if running, and the orders for the thread.
#[derive(Default)]
pub(crate) struct Upkeep {
    orders: Arc<(Mutex<Option<Pace>>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A reference to an allocator, for the upkeep thread. The allocator outlives the thread, because
/// [`Upkeep::stop`] joins the thread first.
struct Borrowed(*const SharedAllocator);

// SAFETY: `Allocator` may be used from any thread, and the pointer is valid while the thread runs.
unsafe impl Send for Borrowed {}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Upkeep {
    /// Starts the thread or changes the pace. `None` for `interval` ends the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    ///
    /// # Safety
    /// [`stop`](Self::stop) is called before `allocator` is dropped or moved.
    pub(crate) unsafe fn set(
        &self,
        allocator: &SharedAllocator,
        idle: &Arc<IdleWork>,
        interval: Option<Duration>,
        max_us: u64,
    ) -> Outcome {
        let Some(interval) = interval else {
            self.stop();
            return Ok(());
        };
        let mut thread = locked(&self.thread);
        *locked(&self.orders.0) = Some(Pace { interval: Some(interval), max_us });
        self.orders.1.notify_all();
        if thread.is_none() {
            let (orders, allocator) = (Arc::clone(&self.orders), Borrowed(core::ptr::from_ref(allocator)));
            let idle = Arc::clone(idle);
            let run = move || {
                let borrowed = allocator;
                // SAFETY: the caller of `set` joins the thread before the end of the allocator.
                run(&orders, unsafe { &*borrowed.0 }, &idle);
            };
            let started = Builder::new().name("cachalot-upkeep".into()).spawn(run);
            *thread =
                Some(started.map_err(|error| Status::new(CACHALOT_ERROR_BUSY, format_args!("no thread: {error}")))?);
        }
        Ok(())
    }

    /// Ends the thread, and returns after the end.
    pub(crate) fn stop(&self) {
        let mut thread = locked(&self.thread);
        if let Some(running) = thread.take() {
            *locked(&self.orders.0) = Some(Pace { interval: None, max_us: 0 });
            self.orders.1.notify_all();
            // A panic in the thread has ended the upkeep, and nothing else.
            let _ended = running.join();
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Keeps up every device of `allocator` until the orders or the exit of the process end the thread.
fn run(orders: &(Mutex<Option<Pace>>, Condvar), allocator: &SharedAllocator, idle: &IdleWork) {
    let mut guard = locked(&orders.0);
    while let Some(Pace { interval: Some(interval), max_us }) = *guard {
        drop(guard);
        for device in (0..allocator.device_count()).map(DeviceIndex) {
            // Held for a device alone, since the end of the process waits.
            let Some(_work) = BackgroundWork::begin() else { return };
            // A failure is counted by the allocator, or is met by the next request.
            let _left = allocator.pages(device).and_then(|pages| pages.maintain(max_us));
            let _tuned = idle.run(allocator, device);
        }
        guard = locked(&orders.0);
        // A change of the orders ends the pause.
        guard = orders.1.wait_timeout(guard, interval).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c::capi::{cachalot_destroy, cachalot_maintain_every};
    use crate::c::status::CACHALOT_OK;
    use crate::c::{handle, tests};

    #[test]
    fn no_interval_ends_the_thread() {
        let allocator = tests::create();
        let upkeep = &handle::instance(allocator).expect("it is live").upkeep;
        for interval_us in [1000, 50, 0, 0, 1000] {
            assert_eq!(cachalot_maintain_every(allocator, interval_us, 0), CACHALOT_OK);
            assert_eq!(locked(&upkeep.thread).is_some(), interval_us > 0, "{interval_us}");
        }
        let orders = Arc::downgrade(&upkeep.orders);
        assert_eq!(cachalot_destroy(allocator), CACHALOT_OK);
        assert_eq!(orders.strong_count(), 0, "the thread has ended");
    }
}
