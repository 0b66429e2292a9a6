//! The handles of streams that calls are using. The report of a stream's end waits for the calls
//! that use its handle.
//!
//! ```text
//! a call:    place ← handle            the number of the handle is still the stream's?  use the handle    place ← 0
//! a report:  next number of the handle    read every place by a read-modify-write   wait while a place has the handle
//! ```
//!
//! Each thread usually has its own place, so a call writes a cache line that no other thread reads.
//! A place names the handle, so a report waits only for calls with the reported handle. To wait for
//! other calls could be a deadlock, because a call may wait for the reporting thread through the
//! program's own locks.
//!
//! A report misses no call, because both write the place: the call enters the handle, and the
//! report writes the value back unchanged. If the call writes first, the report finds the handle.
//! If the report writes first, the call also sees that the report has given the handle its next
//! number, and does not use the handle.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of places. More calls at the same time share a list under a lock.
const PLACES: usize = 32;

/// The value of a free place. No stream has the handle 0.
const FREE: u64 = 0;

/// An atomic word: that of the standard library, or of a model checker.
pub(crate) trait Word {
    /// Writes `new` if the word is `current`. Returns whether the word was `current`. Acquires and
    /// releases.
    fn exchange(&self, current: u64, new: u64) -> bool;

    /// Returns the word by a read-modify-write, which changes nothing. Acquires and releases.
    fn latest(&self) -> u64;

    /// Returns the word. Acquires.
    fn load(&self) -> u64;

    /// Writes the word. Releases.
    fn store(&self, new: u64);
}

impl Word for AtomicU64 {
    #[inline]
    fn exchange(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn latest(&self) -> u64 {
        self.fetch_add(0, Ordering::AcqRel)
    }

    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, new: u64) {
        self.store(new, Ordering::Release);
    }
}

/// A place on its own cache lines. It takes 128 bytes, because processors fetch cache lines in
/// pairs.
#[derive(Debug)]
#[repr(align(128))]
struct CacheLine<A>(A);

/// The handles in use.
#[derive(Debug)]
pub(crate) struct InUse<A = AtomicU64, const N: usize = PLACES> {
    places: [CacheLine<A>; N],
    /// The handles of calls without a free place.
    more: Mutex<Vec<u64>>,
}

/// The use of a handle, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Use<'a, A: Word = AtomicU64, const N: usize = PLACES> {
    all: &'a InUse<A, N>,
    handle: u64,
    /// The index of the place, or `None` if the handle is in the list.
    place: Option<usize>,
}

impl InUse {
    /// Creates a record without any use. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self { places: [const { CacheLine(AtomicU64::new(FREE)) }; PLACES], more: Mutex::new(Vec::new()) }
    }
}

impl<A: Word, const N: usize> InUse<A, N> {
    /// Announces the use of a handle, by the thread with the number `thread`. Afterwards the caller
    /// checks whether the handle still belongs to the stream, and uses it only if it does.
    #[inline]
    pub(crate) fn begin(&self, handle: u64, thread: u64) -> Use<'_, A, N> {
        let first = thread as usize;
        let place =
            (0..N).map(|step| first.wrapping_add(step) % N).find(|&at| self.places[at].0.exchange(FREE, handle));
        if place.is_none() {
            self.more().push(handle);
        }
        Use { all: self, handle, place }
    }

    /// Waits until no call uses a handle. Its next number was published before, so later calls find
    /// that number. `pause` lets other threads run.
    pub(crate) fn wait_until_unused(&self, handle: u64, pause: impl Fn()) {
        for place in &self.places {
            let mut found = place.0.latest();
            while found == handle {
                pause();
                found = place.0.load();
            }
        }
        while self.more().contains(&handle) {
            pause();
        }
    }

    /// Locks the list. Poison is ignored, because no code under the lock panics.
    fn more(&self) -> MutexGuard<'_, Vec<u64>> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Word, const N: usize> Drop for Use<'_, A, N> {
    #[inline]
    fn drop(&mut self) {
        if let Some(at) = self.place {
            return self.all.places[at].0.store(FREE);
        }
        let mut more = self.all.more();
        if let Some(at) = more.iter().position(|handle| *handle == self.handle) {
            more.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle.
    const HANDLE: u64 = 0x1_0000;

    impl<A: Word, const N: usize> InUse<A, N> {
        /// Creates a record without any use, with places of any kind.
        fn of(place: impl Fn(u64) -> A) -> Self {
            Self { places: core::array::from_fn(|_| CacheLine(place(FREE))), more: Mutex::new(Vec::new()) }
        }
    }

    /// Returns whether any place or the list has a handle.
    fn is_used<const N: usize>(uses: &InUse<AtomicU64, N>, handle: u64) -> bool {
        uses.places.iter().any(|place| place.0.latest() == handle) || uses.more().contains(&handle)
    }

    #[test]
    fn a_use_lasts_as_long_as_its_value() {
        let uses = InUse::new();
        let first = uses.begin(HANDLE, 5);
        let second = uses.begin(HANDLE, 5);
        drop(first);
        assert!(is_used(&uses, HANDLE));
        drop(second);
        assert!(!is_used(&uses, HANDLE));
        uses.wait_until_unused(HANDLE, || panic!("no call uses the handle"));
    }

    #[test]
    fn more_uses_than_places_are_known_too() {
        let uses = InUse::<AtomicU64, 2>::of(AtomicU64::new);
        let held: Vec<_> = (0..7).map(|index| uses.begin(HANDLE + index % 4, index)).collect();
        assert!((0..4).all(|index| is_used(&uses, HANDLE + index)));
        uses.wait_until_unused(HANDLE + 9, || panic!("no call uses the handle"));
        drop(held);
        assert!((0..4).all(|index| !is_used(&uses, HANDLE + index)));
    }

    #[test]
    fn a_wait_ends_with_the_last_use_of_the_handle_and_is_kept_by_no_other() {
        let uses = InUse::<AtomicU64, 1>::of(AtomicU64::new);
        let other = uses.begin(HANDLE + 1, 0);
        let held = core::cell::RefCell::new(vec![uses.begin(HANDLE, 0), uses.begin(HANDLE, 1)]);
        uses.wait_until_unused(HANDLE, || drop(held.borrow_mut().pop()));
        assert!(held.borrow().is_empty());
        drop(other);
    }

    /// The protocol in every order of steps.
    #[cfg(not(miri))]
    mod loom {
        use super::*;
        use ::loom::cell::UnsafeCell;
        use ::loom::sync::Arc;
        use ::loom::sync::atomic::AtomicU64;
        use ::loom::thread;

        impl Word for AtomicU64 {
            fn exchange(&self, current: u64, new: u64) -> bool {
                self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }

            fn latest(&self) -> u64 {
                self.fetch_add(0, Ordering::AcqRel)
            }

            fn load(&self) -> u64 {
                self.load(Ordering::Acquire)
            }

            fn store(&self, new: u64) {
                // The checker does not order a plain store and another thread's read-modify-write.
                // Every memory model does, because every location has one order of its changes.
                self.swap(new, Ordering::Release);
            }
        }

        /// A stream with its calls.
        struct Stream {
            uses: InUse<AtomicU64, 2>,
            /// The number of the handle: 0 for the stream, 1 for the next stream.
            number: AtomicU64,
            /// Whether the program has destroyed the stream. The checker fails if two threads
            /// access the cell without an order and an access is a write.
            destroyed: UnsafeCell<bool>,
        }

        // SAFETY: the checker watches every access.
        unsafe impl Sync for Stream {}

        impl Stream {
            /// A call by the thread with the number `thread`.
            fn call(&self, thread: u64) {
                let _use = self.uses.begin(HANDLE, thread);
                if self.number.load(Ordering::Acquire) == 0 {
                    // SAFETY: the pointer is the cell's, and no thread changes the cell during the
                    // read.
                    let destroyed = self.destroyed.with(|destroyed| unsafe { destroyed.read() });
                    assert!(!destroyed, "a destroyed stream was used");
                }
            }

            /// Reports the end of the stream, and destroys the stream.
            fn end(&self) {
                self.number.store(1, Ordering::Release);
                self.uses.wait_until_unused(HANDLE, thread::yield_now);
                // SAFETY: the pointer is the cell's, and no other thread uses the cell during the
                // write.
                self.destroyed.with_mut(|destroyed| unsafe { destroyed.write(true) });
            }
        }

        /// Runs calls of threads with the given numbers during a report, in every order.
        fn explore(threads: &'static [u64]) {
            let mut model = ::loom::model::Builder::new();
            (model.preemption_bound, model.max_branches) = (Some(3), 100_000);
            model.check(move || {
                let stream = Arc::new(Stream {
                    uses: InUse::of(AtomicU64::new),
                    number: AtomicU64::new(0),
                    destroyed: UnsafeCell::new(false),
                });
                let calls: Vec<_> = threads
                    .iter()
                    .map(|&number| {
                        let stream = Arc::clone(&stream);
                        thread::spawn(move || stream.call(number))
                    })
                    .collect();
                stream.end();
                calls.into_iter().for_each(|call| call.join().expect("no panic"));
            });
        }

        #[test]
        fn no_call_uses_a_stream_whose_end_was_reported() {
            explore(&[0]);
        }

        #[test]
        fn no_call_of_two_threads_uses_a_stream_whose_end_was_reported() {
            explore(&[0, 1]);
            // Both start with one place.
            explore(&[1, 1]);
        }
    }
}
