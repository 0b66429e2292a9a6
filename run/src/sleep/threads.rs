//! The state of each thread of the process: its reader slot, and whether it is inside a served
//! call.
//!
//! ```text
//! thread's pointer ─▶ entry of the table: the thread's own state              a launch of most threads
//!                  └▶ another thread's: the loader's data ─▶ another state    a launch of a thread that found its entry taken
//! ```
//!
//! A launch of a parkable program finds the state without the loader's function for thread-local
//! data, because this function reads three cache lines that the driver has pushed out of the
//! nearest cache by the next launch.
//!
//! A thread takes a state at its first call, and another thread takes it over after the first
//! thread has ended. States live as long as the process, because the writer of the lock may read
//! any slot at any time.

use crate::sleep::call_state::{CALL_STATE, TABLE_LEN, ThreadState};
use cachalot_gate::{ReaderSlot, Scan, scan};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The owner of a state whose thread has ended inside a call: no thread's pointer.
const LOST: usize = usize::MAX;

/// Every state that a thread has had.
struct ThreadStates {
    all: Vec<&'static ThreadState>,
    /// States outside the table, left by ended threads.
    spare: Vec<&'static ThreadState>,
}

static STATES: Mutex<ThreadStates> = Mutex::new(ThreadStates { all: Vec::new(), spare: Vec::new() });

thread_local! {
    /// Constant and without a destructor, so an ending thread may still call.
    static OWN: Cell<Option<&'static ThreadState>> = const { Cell::new(None) };
    static RETURNED: Returned = const { Returned };
}

/// A served call of a thread. Ends when dropped.
#[derive(Debug)]
pub struct Serving(&'static ThreadState);

impl Serving {
    /// Starts a call. `None` inside a served call: the driver may call functions by name, and finds
    /// the library's.
    #[inline]
    pub fn enter() -> Option<Self> {
        let state = own_state();
        if state.serving.load(Ordering::Relaxed) {
            return None;
        }
        state.serving.store(true, Ordering::Relaxed);
        Some(Self(state))
    }
}

impl Drop for Serving {
    #[inline]
    fn drop(&mut self) {
        self.0.serving.store(false, Ordering::Relaxed);
    }
}

/// Gives the thread's state back when the thread ends.
struct Returned;

impl Drop for Returned {
    fn drop(&mut self) {
        // A call of a later destructor takes a state again, which nobody gives back.
        let Some(state) = OWN.take() else { return };
        let mut states = lock();
        if state.reader.is_reading() || state.serving.load(Ordering::Relaxed) {
            // The thread has ended in the middle of a call, and a later thread with its pointer has
            // its own state.
            state.owner.store(LOST, Ordering::Relaxed);
        } else if state.owner.swap(0, Ordering::Relaxed) == 0 {
            states.spare.push(state);
        }
    }
}

/// Returns the calling thread's slot.
#[inline]
pub(super) fn own() -> &'static ReaderSlot {
    &own_state().reader
}

/// Returns the calling thread's slot, or `None` inside a served call.
#[inline]
pub(super) fn own_outside() -> Option<&'static ReaderSlot> {
    let state = own_state();
    (!state.serving.load(Ordering::Relaxed)).then_some(&state.reader)
}

/// Returns the calling thread's slot, or `None` inside a served call or if another thread has its
/// entry of the table. Calls nothing.
#[inline]
pub(super) fn own_of_table() -> Option<&'static ReaderSlot> {
    let thread = thread();
    let state = table_entry(thread);
    (state.owner.load(Ordering::Relaxed) == thread && !state.serving.load(Ordering::Relaxed)).then_some(&state.reader)
}

/// Returns the calling thread's state.
#[inline]
fn own_state() -> &'static ThreadState {
    let thread = thread();
    let state = table_entry(thread);
    // Only the thread itself writes its pointer, or a thread before it with the same pointer, whose
    // state it takes over.
    if state.owner.load(Ordering::Relaxed) == thread { state } else { find(thread) }
}

/// Returns a thread's entry of the table.
#[inline]
fn table_entry(thread: usize) -> &'static ThreadState {
    // The product's upper bits depend on all bits of the pointer.
    let at = (thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - TABLE_LEN.ilog2());
    &CALL_STATE.states[at as usize % TABLE_LEN]
}

/// Returns a number of the calling thread, which no other living thread has, and which is not 0:
/// the pointer to the thread's data.
#[inline]
fn thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: the ABI of Linux on x86-64 has the pointer to a thread's data at its start, and
        // `fs` points there. Only reads memory.
        unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly)) };
        pointer
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    OWN.with(|own| core::ptr::from_ref(own).addr())
}

/// Returns the state of a thread that does not have its entry of the table, or takes a state.
#[cold]
fn find(thread: usize) -> &'static ThreadState {
    OWN.get().unwrap_or_else(|| take(thread))
}

/// Takes a state for the calling thread: its entry of the table, unless another thread has it.
#[cold]
fn take(thread: usize) -> &'static ThreadState {
    let mut states = lock();
    let own = table_entry(thread);
    let state = if own.owner.load(Ordering::Relaxed) == 0 {
        own.owner.store(thread, Ordering::Relaxed);
        own
    } else {
        states.spare.pop().unwrap_or_else(|| Box::leak(Box::new(ThreadState::new())))
    };
    if states.all.iter().all(|known| !core::ptr::eq(*known, state)) {
        states.all.push(state);
    }
    drop(states);
    OWN.set(Some(state));
    let _ = RETURNED.try_with(|_| ());
    state
}

/// Reads the slots of all threads but the calling one.
pub fn other_threads() -> Scan {
    let own = own();
    scan(lock().all.iter().map(|state| &state.reader).filter(|slot| !core::ptr::eq(*slot, own)))
}

fn lock() -> MutexGuard<'static, ThreadStates> {
    STATES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Serving, TABLE_LEN, own, own_outside};
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
    fn more_threads_than_the_table_holds_have_their_own_slots() {
        let threads = TABLE_LEN + 40;
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
