//! The lock: readers take a guard, and the writer locks them out.

use crate::barrier::Barrier;
use crate::reader_slot::ReaderSlot;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// A readers-writer lock that costs a reader a store and two loads, and the writer a system call.
#[derive(Debug)]
pub struct AsymmetricRwLock {
    readers_blocked: AtomicBool,
    barrier: Barrier,
}

/// The error of a reader while the writer has the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadersBlocked;

/// A read guard of a thread. Ends the read when dropped.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    /// `None`: an outer guard of the thread lasts longer.
    _outer: Option<OuterReadGuard<'a>>,
}

/// A read guard of a thread that had none. Ends the read when dropped.
#[derive(Debug)]
pub struct OuterReadGuard<'a> {
    slot: &'a ReaderSlot,
}

impl AsymmetricRwLock {
    /// Returns an unlocked lock. Calls the system once, to choose the barrier.
    pub fn new() -> Self {
        Self { readers_blocked: AtomicBool::new(false), barrier: Barrier::of_system() }
    }

    /// Takes a read guard, with the calling thread's slot. A thread that has a guard gets another
    /// one even while the writer has the lock, because the writer sees the outer guard. Does not
    /// wait and does not call the system.
    ///
    /// # Errors
    /// [`ReadersBlocked`].
    #[inline]
    pub fn read<'a>(&self, slot: &'a ReaderSlot) -> Result<ReadGuard<'a>, ReadersBlocked> {
        if slot.is_reading() {
            return Ok(ReadGuard { _outer: None });
        }
        self.acquire(slot, self.barrier).map(|guard| ReadGuard { _outer: Some(guard) }).ok_or(ReadersBlocked)
    }

    /// Takes a read guard, with the calling thread's slot, if that costs no fence. `None`: the
    /// writer has the lock, the thread has a guard, or a read costs a fence. Does not wait and
    /// calls nothing.
    #[inline]
    pub fn read_without_fence<'a>(&self, slot: &'a ReaderSlot) -> Option<OuterReadGuard<'a>> {
        let barrier = self.barrier;
        if barrier.is_free() { self.acquire(slot, barrier) } else { None }
    }

    /// Takes an outer guard, unless the writer has the lock or the thread has a guard. `barrier` is
    /// the lock's: [`read_without_fence`](Self::read_without_fence) has looked at it, so the
    /// compiler leaves the fence out there.
    #[inline]
    fn acquire<'a>(&self, slot: &'a ReaderSlot, barrier: Barrier) -> Option<OuterReadGuard<'a>> {
        let before = slot.enter()?;
        barrier.light();
        // Acquire: a thread that finds the lock unlocked again sees the writer's work.
        if self.readers_blocked.load(Ordering::Acquire) {
            slot.restore(before);
            return None;
        }
        Some(OuterReadGuard { slot })
    }

    /// Takes a read guard even while readers are blocked. For the writer, because its own calls may
    /// read.
    pub fn read_as_writer<'a>(&self, slot: &'a ReaderSlot) -> ReadGuard<'a> {
        ReadGuard { _outer: slot.enter().map(|_| OuterReadGuard { slot }) }
    }

    /// Blocks new readers. After the return, every thread that has a guard, or is about to get one
    /// because it has not seen the lock, has an odd slot: the writer [scans](crate::scan) the slots
    /// until none is odd. Only one thread at a time may be the writer.
    pub fn block_readers(&self) {
        self.readers_blocked.store(true, Ordering::Relaxed);
        self.barrier.heavy();
    }

    /// Lets readers in again.
    pub fn unblock_readers(&self) {
        self.readers_blocked.store(false, Ordering::Release);
    }

    /// Returns whether readers are blocked at the moment.
    pub fn blocks_readers(&self) -> bool {
        self.readers_blocked.load(Ordering::Acquire)
    }
}

impl Default for AsymmetricRwLock {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for OuterReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{AsymmetricRwLock, ReadersBlocked};
    use crate::reader_slot::{ReaderSlot, scan};
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    #[test]
    fn a_blocked_reader_gets_no_guard_and_leaves_its_slot_as_it_was() {
        let (lock, slot) = (AsymmetricRwLock::new(), ReaderSlot::new());
        drop(lock.read(&slot).unwrap());
        let before = scan([&slot]);
        lock.block_readers();
        assert_eq!(lock.read(&slot).err(), Some(ReadersBlocked));
        assert_eq!(scan([&slot]), before);
        lock.unblock_readers();
        drop(lock.read(&slot).unwrap());
        assert_ne!(scan([&slot]), before, "a read shows");
    }

    #[test]
    fn a_guard_inside_a_guard_ends_with_the_outer_one() {
        let (lock, slot) = (AsymmetricRwLock::new(), ReaderSlot::new());
        let outer = lock.read(&slot).unwrap();
        lock.block_readers();
        drop(lock.read(&slot).unwrap());
        assert!(scan([&slot]).is_reading);
        drop(outer);
        assert!(!scan([&slot]).is_reading);
    }

    #[test]
    fn the_writer_may_read() {
        let (lock, slot) = (AsymmetricRwLock::new(), ReaderSlot::new());
        lock.block_readers();
        let writer = lock.read_as_writer(&slot);
        drop(lock.read(&slot).unwrap());
        drop(writer);
        assert_eq!(lock.read(&slot).err(), Some(ReadersBlocked));
    }

    #[test]
    fn readers_never_use_memory_that_the_writer_has() {
        let lock = AsymmetricRwLock::new();
        let slots: Vec<ReaderSlot> = (0..4).map(|_| ReaderSlot::new()).collect();
        // The memory is 0 unless the writer has it.
        let (memory, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for slot in &slots {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        match lock.read(slot) {
                            Ok(inside) => {
                                assert_eq!(memory.load(Ordering::Relaxed), 0, "in use by the writer");
                                drop(inside);
                            }
                            Err(ReadersBlocked) => std::thread::yield_now(),
                        }
                    }
                });
            }
            for _ in 0..100 {
                lock.block_readers();
                while scan(&slots).is_reading {
                    std::thread::yield_now();
                }
                memory.store(1, Ordering::Relaxed);
                std::thread::yield_now();
                memory.store(0, Ordering::Relaxed);
                lock.unblock_readers();
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
