//! The gate in every order of loads and stores.

use crate::gate::Gate;
use crate::reader_slot::{ReaderSlot, look};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The memory behind a gate, and the slots of two threads.
struct Guarded {
    gate: Gate,
    slots: [ReaderSlot; 2],
    memory: UnsafeCell<u32>,
}

// SAFETY: the model checks that no two threads have the cell at a time, which is the claim under test.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { gate: Gate::new(), slots: [ReaderSlot::new(), ReaderSlot::new()], memory: UnsafeCell::new(0) })
    }

    /// Reads the memory, if the gate is open.
    fn visit(&self, thread: usize) -> Option<u32> {
        let inside = self.gate.enter(&self.slots[thread]).ok()?;
        // SAFETY: see `Sync`.
        let read = self.memory.with(|memory| unsafe { *memory });
        drop(inside);
        Some(read)
    }

    /// Writes the memory, if no thread is inside.
    fn take(&self) -> bool {
        self.gate.close();
        let free = !look(&self.slots).inside;
        if free {
            // SAFETY: see `Sync`.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
        }
        self.gate.open();
        free
    }
}

#[test]
fn two_threads_and_a_closer_never_have_the_memory_together() {
    loom::model(|| {
        let guarded = Guarded::new();
        let threads: Vec<_> = [0, 1]
            .map(|thread| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || {
                    guarded.visit(thread);
                })
            })
            .into();
        guarded.take();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_thread_that_finds_the_gate_open_again_sees_the_closers_work() {
    loom::model(|| {
        let guarded = Guarded::new();
        let thread = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || [guarded.visit(0), guarded.visit(0)])
        };
        let taken = u32::from(guarded.take());
        let read: Vec<u32> = thread.join().unwrap().into_iter().flatten().collect();
        assert!(read.is_sorted() && read.iter().all(|&read| read <= taken), "{read:?}");
    });
}
