//! What each thread of the process has: a slot, and whether it is inside a served call.
//!
//! ```text
//! thread's pointer ─▶ place in the table: the thread's own seat              a launch of most threads
//!                  └▶ another thread's: the loader's data ─▶ another seat    a launch of a thread whose place is taken
//! ```
//!
//! A launch of a parkable program finds its seat without the loader's function for the data of a thread, which reads three cache lines that
//! the driver has pushed out of the nearest cache by the next launch.
//!
//! A thread takes a seat at its first call, and another thread takes the seat over when the thread has ended. Seats live as long
//! as the process: the closer of a gate may read any slot at any time.

use crate::sleep::passage::{PASSAGE, PLACES, Seat};
use cachalot_gate::{Look, ReaderSlot, look};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The owner of a seat whose thread has ended inside a call: no thread's pointer.
const LOST: usize = usize::MAX;

/// Every seat that a thread has had.
struct Seats {
    all: Vec<&'static Seat>,
    /// The seats beside the table of ended threads.
    spare: Vec<&'static Seat>,
}

static SEATS: Mutex<Seats> = Mutex::new(Seats { all: Vec::new(), spare: Vec::new() });

thread_local! {
    /// Constant and without a destructor, so an ending thread may still call.
    static OWN: Cell<Option<&'static Seat>> = const { Cell::new(None) };
    static RETURNED: Returned = const { Returned };
}

/// The time of a thread in a served call.
#[derive(Debug)]
pub struct Serving(&'static Seat);

impl Serving {
    /// Begins a call. `None` inside a served call: the driver may call functions by name, and finds the library's.
    #[inline]
    pub fn enter() -> Option<Self> {
        let seat = seat();
        if seat.serving.load(Ordering::Relaxed) {
            return None;
        }
        seat.serving.store(true, Ordering::Relaxed);
        Some(Self(seat))
    }
}

impl Drop for Serving {
    #[inline]
    fn drop(&mut self) {
        self.0.serving.store(false, Ordering::Relaxed);
    }
}

/// Gives the thread's seat back when the thread ends.
struct Returned;

impl Drop for Returned {
    fn drop(&mut self) {
        // A call of a later destructor takes a seat again, which nobody gives back.
        let Some(seat) = OWN.take() else { return };
        let mut seats = lock();
        if seat.slot.is_inside() || seat.serving.load(Ordering::Relaxed) {
            // The thread has ended in the middle of a call, and a later thread with its pointer has a seat of its own.
            seat.owner.store(LOST, Ordering::Relaxed);
        } else if seat.owner.swap(0, Ordering::Relaxed) == 0 {
            seats.spare.push(seat);
        }
    }
}

/// Returns the calling thread's slot.
#[inline]
pub(super) fn own() -> &'static ReaderSlot {
    &seat().slot
}

/// Returns the calling thread's slot, or `None` inside a served call.
#[inline]
pub(super) fn own_outside() -> Option<&'static ReaderSlot> {
    let seat = seat();
    (!seat.serving.load(Ordering::Relaxed)).then_some(&seat.slot)
}

/// Returns the calling thread's slot, or `None` inside a served call or if the thread's place of the table is not its own. Calls
/// nothing.
#[inline]
pub(super) fn own_of_table() -> Option<&'static ReaderSlot> {
    let thread = thread();
    let seat = place(thread);
    (seat.owner.load(Ordering::Relaxed) == thread && !seat.serving.load(Ordering::Relaxed)).then_some(&seat.slot)
}

/// Returns the calling thread's seat.
#[inline]
fn seat() -> &'static Seat {
    let thread = thread();
    let seat = place(thread);
    // Only the thread itself writes its pointer, or a thread before it with the same pointer, whose seat it takes over.
    if seat.owner.load(Ordering::Relaxed) == thread { seat } else { find(thread) }
}

/// Returns the place of a thread in the table.
#[inline]
fn place(thread: usize) -> &'static Seat {
    // The product's upper bits depend on all bits of the pointer.
    let at = (thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2());
    &PASSAGE.seats[at as usize % PLACES]
}

/// Returns a number of the calling thread, which no other living thread has, and which is not 0: the pointer to the thread's data.
#[inline]
fn thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: the ABI of Linux on x86-64 has the pointer to a thread's data at its begin, and `fs` leads there. Reads memory alone.
        unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly)) };
        pointer
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    OWN.with(|own| core::ptr::from_ref(own).addr())
}

/// Returns the seat of a thread that does not have its place of the table, or takes a seat.
#[cold]
fn find(thread: usize) -> &'static Seat {
    OWN.get().unwrap_or_else(|| take(thread))
}

/// Takes a seat for the calling thread: its place of the table, unless another thread has the place.
#[cold]
fn take(thread: usize) -> &'static Seat {
    let mut seats = lock();
    let own = place(thread);
    let seat = if own.owner.load(Ordering::Relaxed) == 0 {
        own.owner.store(thread, Ordering::Relaxed);
        own
    } else {
        seats.spare.pop().unwrap_or_else(|| Box::leak(Box::new(Seat::new())))
    };
    if seats.all.iter().all(|known| !core::ptr::eq(*known, seat)) {
        seats.all.push(seat);
    }
    drop(seats);
    OWN.set(Some(seat));
    let _ = RETURNED.try_with(|_| ());
    seat
}

/// Looks at the slots of all threads but the calling one.
pub fn other_threads() -> Look {
    let own = own();
    look(lock().all.iter().map(|seat| &seat.slot).filter(|slot| !core::ptr::eq(*slot, own)))
}

fn lock() -> MutexGuard<'static, Seats> {
    SEATS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{PLACES, Serving, own, own_outside};
    use std::collections::BTreeSet;

    #[test]
    fn a_call_inside_a_call_is_the_drivers_until_the_outer_one_ends() {
        let outer = Serving::enter().expect("the first call");
        assert!(Serving::enter().is_none());
        // The refusal has not ended the outer call.
        assert!(Serving::enter().is_none());
        assert!(own_outside().is_none());
        drop(outer);
        assert!(own_outside().is_some_and(|slot| core::ptr::eq(slot, own())));
        assert!(Serving::enter().is_some());
    }

    #[test]
    fn more_threads_than_places_have_their_own_slots() {
        let threads = PLACES + 40;
        let ready = std::sync::Barrier::new(threads);
        let slots: Vec<usize> = std::thread::scope(|scope| {
            let ask = || {
                let slot = core::ptr::from_ref(own()).addr();
                // All live at once.
                ready.wait();
                assert_eq!(core::ptr::from_ref(own()).addr(), slot, "the same at every call");
                let outer = Serving::enter().expect("outside");
                assert!(own_outside().is_none());
                drop(outer);
                slot
            };
            let asked: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|thread| thread.join().expect("a thread")).collect()
        });
        let different: std::collections::BTreeSet<usize> = slots.into_iter().collect();
        assert_eq!(different.len(), threads);
    }

    #[test]
    fn a_threads_slot_serves_a_later_thread() {
        let of_a_thread = || std::thread::spawn(|| core::ptr::from_ref(own()).addr()).join().unwrap();
        // Other tests take slots, too, so a later thread need not get the first one again.
        let slots: BTreeSet<usize> = (0..64).map(|_| of_a_thread()).collect();
        assert!(slots.len() < 64, "{slots:?}");
    }
}
