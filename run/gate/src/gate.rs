//! A gate, open or closed.

use crate::barrier::Barrier;
use crate::reader_slot::ReaderSlot;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// A gate before memory, sometimes needed by a single thread alone.
#[derive(Debug)]
pub struct Gate {
    closed: AtomicBool,
    barrier: Barrier,
}

/// The refusal of a closed gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

/// The time of a thread inside. Ends when dropped.
#[derive(Debug)]
pub struct Inside<'a> {
    /// `None`: an outer visit of the thread lasts longer.
    _visit: Option<Visit<'a>>,
}

/// The visit of a thread that was outside. Ends when dropped.
#[derive(Debug)]
pub struct Visit<'a> {
    slot: &'a ReaderSlot,
}

impl Gate {
    /// Returns an open gate. Asks the system for its barrier.
    pub fn new() -> Self {
        Self { closed: AtomicBool::new(false), barrier: Barrier::of_system() }
    }

    /// Goes in, with the calling thread's slot. A thread inside goes in also while the gate is closed: the closer sees the
    /// outer visit. Takes no lock, calls no system.
    ///
    /// # Errors
    /// [`Closed`].
    #[inline]
    pub fn enter<'a>(&self, slot: &'a ReaderSlot) -> Result<Inside<'a>, Closed> {
        if slot.is_inside() {
            return Ok(Inside { _visit: None });
        }
        self.pass(slot, self.barrier).map(|visit| Inside { _visit: Some(visit) }).ok_or(Closed)
    }

    /// Goes in, with the slot of the calling thread, where the way in costs no fence. `None`: the gate is closed, the thread is inside,
    /// or the way costs a fence. Takes no lock, calls nothing.
    #[inline]
    pub fn visit<'a>(&self, slot: &'a ReaderSlot) -> Option<Visit<'a>> {
        let barrier = self.barrier;
        if barrier.is_free() { self.pass(slot, barrier) } else { None }
    }

    /// Goes in, unless the gate is closed or the thread is inside. `barrier` is the gate's: [`visit`](Self::visit) has looked at it, and the
    /// compiler leaves the fence out there.
    #[inline]
    fn pass<'a>(&self, slot: &'a ReaderSlot, barrier: Barrier) -> Option<Visit<'a>> {
        let before = slot.go_in()?;
        barrier.light();
        // Acquire: a thread that finds the gate open again sees the closer's work.
        if self.closed.load(Ordering::Acquire) {
            slot.go_back(before);
            return None;
        }
        Some(Visit { slot })
    }

    /// Goes in through an open or closed gate: for the closer, whose calls may come back to the gate.
    pub fn enter_as_closer<'a>(&self, slot: &'a ReaderSlot) -> Inside<'a> {
        Inside { _visit: slot.go_in().map(|_| Visit { slot }) }
    }

    /// Closes the gate. Every thread inside, and every thread on the way in without a view of the closed gate, has an odd slot
    /// from the return on. A single thread at a time closes and opens.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.barrier.heavy();
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Returns whether the gate is closed at the moment.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Visit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.go_out();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Closed, Gate};
    use crate::reader_slot::{ReaderSlot, look};
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    #[test]
    fn a_closed_gate_refuses_and_leaves_the_slot_as_it_was() {
        let (gate, slot) = (Gate::new(), ReaderSlot::new());
        drop(gate.enter(&slot).unwrap());
        let before = look([&slot]);
        gate.close();
        assert_eq!(gate.enter(&slot).err(), Some(Closed));
        assert_eq!(look([&slot]), before);
        gate.open();
        drop(gate.enter(&slot).unwrap());
        assert_ne!(look([&slot]), before, "a visit shows");
    }

    #[test]
    fn a_visit_inside_a_visit_ends_with_the_outer_one() {
        let (gate, slot) = (Gate::new(), ReaderSlot::new());
        let outer = gate.enter(&slot).unwrap();
        gate.close();
        drop(gate.enter(&slot).unwrap());
        assert!(look([&slot]).inside);
        drop(outer);
        assert!(!look([&slot]).inside);
    }

    #[test]
    fn the_closer_passes_its_own_gate() {
        let (gate, slot) = (Gate::new(), ReaderSlot::new());
        gate.close();
        let closer = gate.enter_as_closer(&slot);
        drop(gate.enter(&slot).unwrap());
        drop(closer);
        assert_eq!(gate.enter(&slot).err(), Some(Closed));
    }

    #[test]
    fn threads_never_use_memory_that_the_closer_has() {
        let gate = Gate::new();
        let slots: Vec<ReaderSlot> = (0..4).map(|_| ReaderSlot::new()).collect();
        // The memory is 0 unless the closer has it.
        let (memory, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for slot in &slots {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        match gate.enter(slot) {
                            Ok(inside) => {
                                assert_eq!(memory.load(Ordering::Relaxed), 0, "in use by the closer");
                                drop(inside);
                            }
                            Err(Closed) => std::thread::yield_now(),
                        }
                    }
                });
            }
            for _ in 0..100 {
                gate.close();
                while look(&slots).inside {
                    std::thread::yield_now();
                }
                memory.store(1, Ordering::Relaxed);
                std::thread::yield_now();
                memory.store(0, Ordering::Relaxed);
                gate.open();
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
