//! A model of gathered frees, explored by loom. The queues are the core's own; the steps between
//! the locks follow `arena/waits/gathered.rs`, over a device without unfinished work.

use super::loom::explore;
use crate::device::Event;
use crate::streams::event_queue::EventQueues;
use crate::streams::fences::{Fence, Waiter};
use crate::streams::pending::PendingBlock;
use crate::tables::Growable;
use crate::units::StreamId;
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::vec::Vec;

/// The stream of all uses.
const STREAM: StreamId = StreamId(7);

/// The stream, as known to the device.
#[derive(Default)]
struct Stream {
    /// How many pieces of work were submitted.
    submitted: u64,
    /// For each event, how many pieces of work the event covers.
    events: Vec<u64>,
}

/// The pending blocks of a device.
#[derive(Default)]
struct Device {
    queues: Mutex<EventQueues<Growable>>,
    stream: Mutex<Stream>,
    /// For each waiting block, the piece of work on the block.
    waiting: Mutex<[Option<u64>; 3]>,
}

impl Device {
    /// `DeviceWaits::gather`, of a block just used by the stream.
    fn free(&self, block: u32) {
        self.free_of(0, block);
    }

    /// [`free`](Self::free) for a block of `heap`.
    fn free_of(&self, heap: u32, block: u32) {
        let work = {
            let mut stream = self.stream.lock().unwrap();
            stream.submitted += 1;
            stream.submitted
        };
        self.waiting.lock().unwrap()[block as usize] = Some(work);
        let due = self.queues.lock().unwrap().gather(STREAM, PendingBlock { slot: heap, index: block }).unwrap();
        if let Some(queue) = due {
            while self.poll(queue) > 0 {}
            self.record(queue);
        }
    }

    /// `DeviceWaits::record_queue`.
    fn record(&self, queue: usize) {
        let begun = self.queues.lock().unwrap().begin_recording(queue);
        if begun.is_none() {
            return;
        }
        // `fences::record`.
        let (number, idle) = self.queues.lock().unwrap().events_for(Waiter::Blocks).lend().unwrap();
        let event = {
            let mut stream = self.stream.lock().unwrap();
            let submitted = stream.submitted;
            let event = idle.unwrap_or(Event(stream.events.len() as u64));
            match stream.events.get_mut(event.0 as usize) {
                Some(covered) => *covered = submitted,
                None => stream.events.push(submitted),
            }
            event
        };
        self.queues.lock().unwrap().finish_recording(queue, Some(Fence { stream: STREAM, number, event }));
    }

    /// `DeviceWaits::poll_queue`. Checks for each freed block, once, that the event covers the
    /// block.
    fn poll(&self, queue: usize) -> u32 {
        self.pass(queue, |_heap| true)
    }

    /// `DeviceWaits::order_first`: passes the first event of a queue for the blocks of the heaps
    /// with `leaves` true.
    fn pass(&self, queue: usize, leaves: impl Fn(u32) -> bool) -> u32 {
        let begun = self.queues.lock().unwrap().begin_poll(queue);
        let Some(event) = begun else { return 0 };
        let covered = self.stream.lock().unwrap().events[event.0 as usize];
        let (mut first, mut count) = (self.queues.lock().unwrap().finish_poll(queue, leaves), 0);
        loop {
            let finished = self.queues.lock().unwrap().take_finished(&mut first);
            if finished.is_empty() {
                return count;
            }
            for PendingBlock { index: block, .. } in finished {
                let work = self.waiting.lock().unwrap()[block as usize].take().expect("a block waits once");
                assert!(work <= covered, "the event was recorded before the work was submitted");
                count += 1;
            }
        }
    }
}

#[test]
fn loom_an_event_covers_the_blocks_gathered_before_it_and_no_other() {
    explore(|| {
        let device = Arc::new(Device::default());
        device.free(0);
        let other = device.clone();
        let freeing = thread::spawn(move || other.free(1));
        // A request that misses.
        device.poll(0);
        device.record(0);
        device.free(2);
        freeing.join().unwrap();
        device.record(0);
        while device.poll(0) > 0 {}
        assert_eq!(*device.waiting.lock().unwrap(), [None; 3]);
        assert!(!device.queues.lock().unwrap().is_waiting());
    });
}

/// A thread passes the event for the blocks of a heap, while another thread frees a block, queries
/// the event and records the next event.
#[test]
fn loom_an_event_passed_for_one_heap_stays_behind_the_blocks_of_the_others() {
    explore(|| {
        let device = Arc::new(Device::default());
        device.free_of(0, 0);
        device.free_of(1, 1);
        device.record(0);
        let other = device.clone();
        let freeing = thread::spawn(move || {
            other.free_of(0, 2);
            other.poll(0);
        });
        device.pass(0, |heap| heap == 1);
        device.record(0);
        freeing.join().unwrap();
        device.record(0);
        while device.poll(0) > 0 {}
        assert_eq!(*device.waiting.lock().unwrap(), [None; 3]);
        assert!(!device.queues.lock().unwrap().is_waiting());
    });
}
