//! The lock, in every order of loads and stores.

use crate::reader_slot::{ReaderSlot, scan};
use crate::rwlock::AsymmetricRwLock;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Memory under a lock, and the slots of two readers.
struct Guarded {
    lock: AsymmetricRwLock,
    slots: [ReaderSlot; 2],
    memory: UnsafeCell<u32>,
}

// SAFETY: the model checks that no two threads have the cell at a time, which is the claim under
// test.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lock: AsymmetricRwLock::new(),
            slots: [ReaderSlot::new(), ReaderSlot::new()],
            memory: UnsafeCell::new(0),
        })
    }

    /// Reads the memory, unless the writer has the lock.
    fn read(&self, thread: usize) -> Option<u32> {
        let inside = self.lock.read(&self.slots[thread]).ok()?;
        // SAFETY: see `Sync`.
        let read = self.memory.with(|memory| unsafe { *memory });
        drop(inside);
        Some(read)
    }

    /// Writes the memory, if no thread reads.
    fn take(&self) -> bool {
        self.lock.block_readers();
        let free = !scan(&self.slots).is_reading;
        if free {
            // SAFETY: see `Sync`.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
        }
        self.lock.unblock_readers();
        free
    }
}

#[test]
fn two_readers_and_a_writer_never_have_the_memory_together() {
    loom::model(|| {
        let guarded = Guarded::new();
        let threads: Vec<_> = [0, 1]
            .map(|thread| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || {
                    guarded.read(thread);
                })
            })
            .into();
        guarded.take();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_reader_that_finds_the_lock_unlocked_again_sees_the_writers_work() {
    loom::model(|| {
        let guarded = Guarded::new();
        let thread = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || [guarded.read(0), guarded.read(0)])
        };
        let taken = u32::from(guarded.take());
        let read: Vec<u32> = thread.join().unwrap().into_iter().flatten().collect();
        assert!(read.is_sorted() && read.iter().all(|&read| read <= taken), "{read:?}");
    });
}
