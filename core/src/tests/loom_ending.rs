//! Models of threads that end the waits of blocks, explored by loom, beside a wait for all blocks
//! and beside a copy of the device. The queues, the deferred frees, the flags and the count of the
//! threads are the core's own; the steps between the locks follow `arena/waits`, over a device
//! without unfinished work.

use super::loom::explore;
use crate::arena::flags::Flags;
use crate::device::Event;
use crate::streams::deferred_frees::{DeferredFrees, Until, UseFence};
use crate::streams::event_queue::EventQueues;
use crate::streams::fences::{Fence, Waiter};
use crate::streams::groups::Groups;
use crate::streams::pending::PendingBlock;
use crate::sync::empty;
use crate::tables::slot_table::NONE;
use crate::tables::{Fixed, Growable};
use crate::units::StreamId;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The stream of all uses.
const STREAM: StreamId = StreamId(7);
/// The block that waits.
const BLOCK: PendingBlock = PendingBlock { slot: 0, index: 0 };

/// A device with one group of streams and one block, which is pending.
struct Device {
    queues: Mutex<EventQueues<Growable>>,
    deferred: Mutex<DeferredFrees<Growable>>,
    /// The count of the threads. The queues in it are not used.
    groups: Groups<spin::mutex::SpinMutex<()>, Fixed<1, 2, 4, 4>>,
    flags: Flags,
    /// Whether the block is pending, under the lock of its heap.
    pending: Mutex<bool>,
}

impl Device {
    fn new() -> Self {
        Self {
            queues: Mutex::default(),
            deferred: Mutex::default(),
            groups: empty!(),
            flags: empty!(),
            pending: Mutex::new(true),
        }
    }

    /// A device whose block waits in the queue of the stream.
    fn queued() -> Arc<Self> {
        let device = Self::new();
        let mut queues = device.queues.lock().unwrap();
        let (number, _) = queues.events_for(Waiter::Blocks).lend().unwrap();
        queues.push(Fence { stream: STREAM, number, event: Event(1) }, BLOCK).unwrap();
        device.flags.follow(0, &queues);
        drop(queues);
        Arc::new(device)
    }

    /// A device whose block waits for the fence of a use.
    fn ordered() -> Arc<Self> {
        let device = Self::new();
        let mut deferred = device.deferred.lock().unwrap();
        let fence = Fence { stream: STREAM, number: 1, event: Event(1) };
        let entry = deferred.add(BLOCK, Until::Fence(UseFence { fence, next: NONE })).unwrap();
        deferred.put_back(entry);
        device.flags.follow_deferred(&deferred);
        drop(deferred);
        Arc::new(device)
    }

    /// Ends the wait of the block in its heap.
    fn free(&self) {
        let was_pending = core::mem::take(&mut *self.pending.lock().unwrap());
        assert!(was_pending, "a wait ends once");
    }

    /// `DeviceWaits::poll_queue` and `DeviceWaits::free_from`.
    fn poll_queue(&self) {
        let begun = self.queues.lock().unwrap().begin_poll(0);
        if begun.is_none() {
            return;
        }
        let mut queues = self.queues.lock().unwrap();
        let mut first = queues.finish_poll(0, |_heap| true);
        let _ending = self.groups.begin_ending(0);
        let finished = queues.take_finished(&mut first);
        self.flags.follow(0, &queues);
        drop(queues);
        finished.into_iter().for_each(|_block| self.free());
    }

    /// `DeviceWaits::poll_ordered` and `DeviceWaits::end_deferred`.
    fn poll_ordered(&self) {
        let taken = self.deferred.lock().unwrap().take_oldest(BLOCK.slot);
        let Some(entry) = taken else { return };
        let _ending = self.groups.begin_ending(0);
        let mut deferred = self.deferred.lock().unwrap();
        deferred.remove(entry);
        self.flags.follow_deferred(&deferred);
        drop(deferred);
        self.free();
    }

    /// `DeviceWaits::wait_for_events`. Checks that the wait of the block has ended.
    fn wait_for_events(&self) {
        if self.flags.are_waiting() {
            while self.deferred.lock().unwrap().has_ordered() {
                self.poll_ordered();
                thread::yield_now();
            }
            while self.queues.lock().unwrap().is_waiting() {
                self.poll_queue();
                thread::yield_now();
            }
        }
        while self.groups.are_ending() {
            thread::yield_now();
        }
        assert!(!*self.pending.lock().unwrap(), "a wait for all blocks has missed one");
    }

    /// A copy for a forecast, which locks the heaps and the deferred frees at once. Its waits end
    /// in the copy alone.
    fn copy(&self) {
        let (pending, mut deferred) = {
            let pending = self.pending.lock().unwrap();
            (*pending, self.deferred.lock().unwrap().clone())
        };
        deferred.forget_threads();
        assert!(pending || !deferred.has_ordered(), "a copy ends the wait of a free block");
    }
}

#[test]
fn loom_a_wait_for_all_blocks_includes_one_that_another_thread_takes_out_of_a_queue() {
    explore(|| {
        let device = Device::queued();
        let other = device.clone();
        let polls = thread::spawn(move || other.poll_queue());
        device.wait_for_events();
        polls.join().unwrap();
        assert!(!device.groups.are_ending());
    });
}

#[test]
fn loom_a_wait_for_all_blocks_includes_one_with_a_fence_that_another_thread_takes() {
    explore(|| {
        let device = Device::ordered();
        let other = device.clone();
        let polls = thread::spawn(move || other.poll_ordered());
        device.wait_for_events();
        polls.join().unwrap();
        assert!(!device.groups.are_ending());
    });
}

#[test]
fn loom_a_copy_ends_no_wait_that_another_thread_has_ended() {
    explore(|| {
        let device = Device::ordered();
        let other = device.clone();
        let polls = thread::spawn(move || other.poll_ordered());
        device.copy();
        polls.join().unwrap();
        device.copy();
    });
}
