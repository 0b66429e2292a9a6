//! The states of sleep, and the changes between them.
//!
//! One thread at a time parks or wakes, and holds no lock meanwhile: other threads wait for the end
//! of the change, and could not use the memory before it.

use crate::control::{ControlRefusal, RefusalKind, SleepState};
use crate::sleep::threads::{other_threads, own, own_of_table, own_outside};
use cachalot_gate::{AsymmetricRwLock, OuterReadGuard, ReadGuard, Scan};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The pause between two looks at the threads or the device.
const PAUSE: Duration = Duration::from_micros(200);

/// The memory of a [`MemorySleep`]. Called by one thread at a time.
pub trait Body {
    /// The error of a call whose memory is parked and cannot come back.
    type Error: Clone;

    /// Returns whether all work submitted before the call is complete. Does not wait.
    fn is_idle(&self) -> bool;

    /// Parks the memory. No thread uses it, and all work is complete.
    ///
    /// # Errors
    /// The reason. All memory is awake then.
    fn park(&self) -> Result<(), ControlRefusal>;

    /// Brings the memory back.
    ///
    /// # Errors
    /// The code for the caller. All memory is parked then.
    fn wake(&self) -> Result<(), Self::Error>;
}

/// The sleep of a process.
#[derive(Debug)]
pub struct MemorySleep<E> {
    rwlock: &'static AsymmetricRwLock,
    state: Mutex<Progress<E>>,
    /// Notified after every change of the phase.
    changed: Condvar,
}

/// The phase, and the end of the last try to wake.
#[derive(Debug)]
struct Progress<E> {
    phase: SleepState,
    /// The last phase without a change: awake or parked.
    settled: SleepState,
    /// When the memory became awake or parked.
    since: Instant,
    /// The number of tries to wake that have ended.
    tries: u64,
    /// The error of the last try to wake.
    error: Option<E>,
}

/// A guard of a call that uses no memory: no thread parks or wakes until it is dropped.
#[derive(Debug)]
pub enum PhaseGuard<'a, E> {
    /// The memory is awake.
    Awake(AwakeGuard),
    /// The memory is parked. Calls that would wake the memory wait for the end, and the thread must
    /// make no such call.
    Parked(Change<'a, E>),
}

/// A guard of a call that uses memory: the memory stays awake until it is dropped.
#[derive(Debug)]
pub struct AwakeGuard {
    _read: Option<ReadGuard<'static>>,
}

impl AwakeGuard {
    /// Returns a guard for memory that never sleeps.
    pub const fn without_lock() -> Self {
        Self { _read: None }
    }
}

/// Starts a call of the calling thread that uses the memory of `rwlock`, as
/// [`MemorySleep::enter_outside`] does, and calls nothing. `None`: memory may be asleep, the thread
/// is inside a call, or only the loader knows the thread's slot.
#[inline]
pub fn fast_guard(rwlock: &AsymmetricRwLock) -> Option<OuterReadGuard<'static>> {
    rwlock.read_without_fence(own_of_table()?)
}

impl<E: Clone> MemorySleep<E> {
    /// Returns the sleeper of a process that is awake. `rwlock` is unlocked, and used by this
    /// sleeper alone.
    pub fn new(rwlock: &'static AsymmetricRwLock) -> Self {
        let state = Progress {
            phase: SleepState::Awake,
            settled: SleepState::Awake,
            since: Instant::now(),
            tries: 0,
            error: None,
        };
        Self { rwlock, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns the phase, and for how long the memory has been awake or parked.
    pub fn phase(&self) -> (SleepState, Duration) {
        let state = self.lock();
        (state.phase, state.since.elapsed())
    }

    /// Starts a call that uses memory. Wakes the memory first. Takes no lock while the memory is
    /// awake.
    ///
    /// # Errors
    /// The error of [`Body::wake`].
    #[inline]
    pub fn enter(&self, body: &impl Body<Error = E>) -> Result<AwakeGuard, E> {
        match self.rwlock.read(own()) {
            Ok(guard) => Ok(AwakeGuard { _read: Some(guard) }),
            Err(_) => self.enter_blocked(body),
        }
    }

    /// [Starts](Self::enter) a call that uses memory, unless the thread is inside a served call,
    /// which keeps the memory that it uses awake by itself.
    ///
    /// # Errors
    /// The error of [`Body::wake`].
    #[inline]
    pub fn enter_outside(&self, body: &impl Body<Error = E>) -> Result<AwakeGuard, E> {
        match own_outside().map(|slot| self.rwlock.read(slot)) {
            None => Ok(AwakeGuard::without_lock()),
            Some(Ok(guard)) => Ok(AwakeGuard { _read: Some(guard) }),
            Some(Err(_)) => self.enter_blocked(body),
        }
    }

    /// Starts a call while readers are blocked.
    #[cold]
    fn enter_blocked(&self, body: &impl Body<Error = E>) -> Result<AwakeGuard, E> {
        loop {
            self.wake(body)?;
            if let Ok(guard) = self.rwlock.read(own()) {
                return Ok(AwakeGuard { _read: Some(guard) });
            }
        }
    }

    /// Wakes the memory, or waits for the waking thread.
    ///
    /// # Errors
    /// The error of [`Body::wake`].
    pub fn wake(&self, body: &impl Body<Error = E>) -> Result<(), E> {
        let mut state = self.lock();
        let tries = state.tries;
        loop {
            match state.phase {
                SleepState::Awake => return Ok(()),
                SleepState::Parked if state.tries != tries => {
                    // The thread that was first has just failed.
                    if let Some(error) = &state.error {
                        return Err(error.clone());
                    }
                    break;
                }
                SleepState::Parked => break,
                SleepState::Parking | SleepState::Waking => state = self.wait(state),
            }
        }
        let mut change = self.change(state, SleepState::Waking, SleepState::Parked);
        let woken = body.wake();
        if woken.is_ok() {
            change.then = SleepState::Awake;
        }
        let mut state = self.lock();
        state.tries += 1;
        state.error = woken.clone().err();
        drop(state);
        woken
    }

    /// Parks the memory of a process that has been idle since `scan`, with all work complete. Waits
    /// for nothing.
    ///
    /// # Errors
    /// The reason. The memory is awake then, or as before.
    pub fn park_idle(&self, body: &impl Body<Error = E>, scan: Scan) -> Result<(), ControlRefusal> {
        if !body.is_idle() {
            return Err(still_working());
        }
        let Some(change) = self.start_to_park()? else { return Ok(()) };
        let still = other_threads();
        change.end(if still.is_reading || still != scan { Err(still_inside()) } else { body.park() })
    }

    /// Parks the memory of a process in use: holds new calls back, waits up to `patience` for the
    /// calls and the work in progress, and parks.
    ///
    /// # Errors
    /// The reason. The memory is awake then, or as before.
    pub fn park(&self, body: &impl Body<Error = E>, patience: Duration) -> Result<(), ControlRefusal> {
        let end = Instant::now() + patience;
        let Some(change) = self.start_to_park()? else { return Ok(()) };
        change.end(loop {
            let inside = other_threads().is_reading;
            if !inside && body.is_idle() {
                break body.park();
            }
            if Instant::now() >= end {
                break Err(if inside { still_inside() } else { still_working() });
            }
            std::thread::sleep(PAUSE);
        })
    }

    /// Starts a call that uses no memory, and that no park or wake may meet in the middle. Wakes
    /// nothing. Takes no lock while the memory is awake.
    pub fn hold_phase(&self) -> PhaseGuard<'_, E> {
        loop {
            if let Ok(guard) = self.rwlock.read(own()) {
                return PhaseGuard::Awake(AwakeGuard { _read: Some(guard) });
            }
            let mut state = self.lock();
            while is_change(state.phase) {
                state = self.wait(state);
            }
            if state.phase == SleepState::Parked {
                return PhaseGuard::Parked(self.change(state, SleepState::Waking, SleepState::Parked));
            }
        }
    }

    /// Calls `act` while no thread parks or wakes, and returns the answer.
    pub fn hold<T>(&self, act: impl FnOnce() -> T) -> T {
        let mut state = self.lock();
        while is_change(state.phase) {
            state = self.wait(state);
        }
        let phase = state.phase;
        let _change = self.change(state, SleepState::Waking, phase);
        act()
    }

    /// Blocks readers. `None`: the memory is parked.
    fn start_to_park(&self) -> Result<Option<Change<'_, E>>, ControlRefusal> {
        let state = self.lock();
        match state.phase {
            SleepState::Parked => Ok(None),
            SleepState::Parking | SleepState::Waking => {
                Err(ControlRefusal::new(RefusalKind::Busy, "another thread parks or wakes the memory"))
            }
            SleepState::Awake => {
                // After a panic in the middle, the next call wakes the memory.
                let change = self.change(state, SleepState::Parking, SleepState::Parked);
                self.rwlock.block_readers();
                Ok(Some(change))
            }
        }
    }

    /// Starts a change of the phase, which ends with the phase `then`.
    fn change(&self, mut state: MutexGuard<'_, Progress<E>>, phase: SleepState, then: SleepState) -> Change<'_, E> {
        state.phase = phase;
        Change { sleeper: self, then, _read: self.rwlock.read_as_writer(own()) }
    }

    /// Waits for a change of the phase.
    fn wait<'a>(&self, state: MutexGuard<'a, Progress<E>>) -> MutexGuard<'a, Progress<E>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Progress<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change of the phase by one thread. It ends when dropped.
#[derive(Debug)]
pub struct Change<'a, E> {
    sleeper: &'a MemorySleep<E>,
    /// The phase at the end: awake or parked.
    then: SleepState,
    /// The driver may take the lock again from the calls of the change.
    _read: ReadGuard<'static>,
}

impl<E> Change<'_, E> {
    /// Ends a try to park.
    fn end(mut self, parked: Result<(), ControlRefusal>) -> Result<(), ControlRefusal> {
        if parked.is_err() {
            self.then = SleepState::Awake;
        }
        parked
    }
}

impl<E> Drop for Change<'_, E> {
    fn drop(&mut self) {
        let mut state = self.sleeper.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.then != state.settled {
            (state.settled, state.since) = (self.then, Instant::now());
        }
        state.phase = self.then;
        if self.then == SleepState::Awake {
            self.sleeper.rwlock.unblock_readers();
        }
        drop(state);
        self.sleeper.changed.notify_all();
    }
}

/// Returns whether a thread parks or wakes.
fn is_change(phase: SleepState) -> bool {
    matches!(phase, SleepState::Parking | SleepState::Waking)
}

fn still_inside() -> ControlRefusal {
    ControlRefusal::new(RefusalKind::NeverIdle, "a thread is still inside a call of the driver, or submits more work")
}

fn still_working() -> ControlRefusal {
    ControlRefusal::new(RefusalKind::NeverIdle, "work on the device has not ended")
}

#[cfg(test)]
mod tests {
    use super::{Body, MemorySleep, PhaseGuard};
    use crate::control::{ControlRefusal, RefusalKind, SleepState};
    use crate::sleep::other_threads;
    use cachalot_gate::AsymmetricRwLock;
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Keeps the other tests waiting. The threads of a program have common slots, and each of two
    /// parkers would wait for the other.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleeper() -> MemorySleep<u32> {
        MemorySleep::new(Box::leak(Box::new(AsymmetricRwLock::new())))
    }

    /// Memory that is 0 while awake.
    #[derive(Default)]
    struct Fake {
        parked: AtomicU64,
        works: AtomicBool,
        fails: AtomicBool,
    }

    impl Body for Fake {
        type Error = u32;

        fn is_idle(&self) -> bool {
            !self.works.load(Ordering::Relaxed)
        }

        fn park(&self) -> Result<(), ControlRefusal> {
            if self.fails.load(Ordering::Relaxed) {
                return Err(ControlRefusal::new(RefusalKind::Driver, "planted"));
            }
            assert_eq!(self.parked.swap(1, Ordering::Relaxed), 0);
            Ok(())
        }

        fn wake(&self) -> Result<(), u32> {
            if self.fails.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                return Err(2);
            }
            assert_eq!(self.parked.swap(0, Ordering::Relaxed), 1);
            Ok(())
        }
    }

    #[test]
    fn the_first_call_wakes_and_the_others_wait_for_it() {
        let _alone = alone();
        let (sleeper, body) = (sleeper(), Fake::default());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let inside = sleeper.enter(&body).unwrap();
                        assert_eq!(body.parked.load(Ordering::Relaxed), 0);
                        drop(inside);
                        std::thread::yield_now();
                    }
                });
            }
            for _ in 0..50 {
                match sleeper.park(&body, PATIENCE) {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.kind, RefusalKind::Busy, "{error}"),
                }
                std::thread::yield_now();
            }
        });
        assert_eq!(sleeper.wake(&body), Ok(()));
        assert_eq!(sleeper.phase().0, SleepState::Awake);
    }

    #[test]
    fn a_refused_park_leaves_the_memory_awake() {
        let _alone = alone();
        let (sleeper, body) = (sleeper(), Fake::default());
        body.works.store(true, Ordering::Relaxed);
        assert_eq!(sleeper.park(&body, Duration::ZERO).unwrap_err().kind, RefusalKind::NeverIdle);
        assert_eq!(sleeper.park_idle(&body, other_threads()).unwrap_err().kind, RefusalKind::NeverIdle);
        body.works.store(false, Ordering::Relaxed);
        body.fails.store(true, Ordering::Relaxed);
        assert_eq!(sleeper.park(&body, PATIENCE).unwrap_err().kind, RefusalKind::Driver);
        assert_eq!(sleeper.phase().0, SleepState::Awake);
        drop(sleeper.enter(&body).unwrap());
    }

    #[test]
    fn a_call_inside_keeps_the_memory_awake() {
        let _alone = alone();
        let (sleeper, body) = (sleeper(), Fake::default());
        std::thread::scope(|scope| {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let (came, here) = std::sync::mpsc::channel();
            let (sleeper, body) = (&sleeper, &body);
            scope.spawn(move || {
                let inside = sleeper.enter(body).unwrap();
                came.send(()).unwrap();
                wait.recv().unwrap();
                drop(inside);
            });
            here.recv().unwrap();
            assert_eq!(sleeper.park(body, Duration::ZERO).unwrap_err().kind, RefusalKind::NeverIdle);
            assert_eq!(sleeper.park_idle(body, other_threads()).unwrap_err().kind, RefusalKind::NeverIdle);
            go.send(()).unwrap();
        });
        assert_eq!(sleeper.park(&body, PATIENCE), Ok(()));
    }

    #[test]
    fn calls_during_a_failed_wake_get_its_error_once_and_later_ones_try_again() {
        let _alone = alone();
        let (sleeper, body) = (sleeper(), Fake::default());
        sleeper.park(&body, PATIENCE).unwrap();
        body.fails.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(sleeper.enter(&body).unwrap_err(), 2));
            }
        });
        assert_eq!(sleeper.phase().0, SleepState::Parked);
        body.fails.store(false, Ordering::Relaxed);
        drop(sleeper.enter(&body).unwrap());
        assert_eq!(sleeper.phase().0, SleepState::Awake);
    }

    #[test]
    fn a_phase_guard_wakes_nothing_and_keeps_the_memory_where_it_is() {
        let _alone = alone();
        let (sleeper, body) = (sleeper(), Fake::default());
        let PhaseGuard::Awake(inside) = sleeper.hold_phase() else { panic!("awake") };
        std::thread::scope(|scope| {
            let parker = scope.spawn(|| sleeper.park(&body, Duration::ZERO).unwrap_err().kind);
            assert_eq!(parker.join().unwrap(), RefusalKind::NeverIdle);
        });
        drop(inside);
        assert_eq!(sleeper.park(&body, PATIENCE), Ok(()));
        let PhaseGuard::Parked(change) = sleeper.hold_phase() else { panic!("parked") };
        std::thread::scope(|scope| {
            let waker = scope.spawn(|| sleeper.wake(&body));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(body.parked.load(Ordering::Relaxed), 1, "the wake waits");
            drop(change);
            assert_eq!(waker.join().unwrap(), Ok(()));
        });
        assert_eq!(body.parked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_parks_while_a_thread_holds_the_state() {
        let _alone = alone();
        let (sleeper, body) = (sleeper(), Fake::default());
        sleeper.hold(|| assert_eq!(sleeper.park(&body, PATIENCE).unwrap_err().kind, RefusalKind::Busy));
        assert_eq!(sleeper.phase().0, SleepState::Awake);
    }
}
