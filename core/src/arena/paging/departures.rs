//! Departures of a device: fences after the last work with pages and blocks that are given up. They
//! are recorded, polled and waited for here.
//!
//! One walk polls all of them, for the pages of ranges and for the free blocks of heaps alike.
//!
//! ```text
//! decommit ───┐                 ┌ complete ─▶ pages: their old places may be unmapped
//!             ├─▶ departure ────┤
//! epoch ──────┤                 ├ complete ─▶ blocks: the heap's mark of quiet memory moves up
//! retire ─────┘                 └ complete ─▶ segment: given back at the next idle moment (retired.rs)
//! ```

use crate::arena::Platform;
use crate::arena::driver::Driver;
use crate::arena::heaps::Heaps;
use crate::arena::paging::Paging;
use crate::arena::waits::Waits;
use crate::device::{DeviceError, DeviceResult, ErrorKind, Event, StreamOrder};
use crate::error::Error;
use crate::pages::departures::{Departing, Departure};
use crate::streams::fences::{Fence, Waiter};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Lazy};
use crate::units::StreamId;

/// The parts of a device that are needed when memory is given up while work may still use it: the
/// pages and the fences, and the heaps that learn of the end.
pub(crate) struct GivenUp<'a, P: Platform> {
    pub(in crate::arena) driver: &'a Driver<P::Device>,
    pub(in crate::arena) heaps: &'a Heaps<P>,
    pub(in crate::arena) paging: &'a Paging<P>,
    pub(in crate::arena) waits: &'a Waits<P>,
}

impl<P: Platform> GivenUp<'_, P> {
    /// Records a fence after the present work on `stream`, on which `what` was given up. `None`
    /// means that all work is complete. Returns the departure, with a reference to it. The caller
    /// has permission to record.
    ///
    /// # Errors
    /// [`Error::TableFull`]; the first error of the device.
    pub(in crate::arena) fn begin_departure(&self, stream: Option<StreamId>, what: Departing) -> Result<u32, Error> {
        let fence = stream.map(|stream| self.waits.record_fence(self.driver, stream, Waiter::Streams)).transpose()?;
        self.add_departure(fence, what)
    }

    /// Adds the departure of `what` after a recorded fence. Returns the departure, with a reference
    /// to it.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The fence has then been ended.
    pub(in crate::arena) fn add_departure(&self, fence: Option<Fence>, what: Departing) -> Result<u32, Error> {
        let departure = self.paging.pool.lock().departures.add(fence, what);
        departure.map_err(|CapacityError| {
            self.end_departure(fence);
            Error::TableFull("events of departures")
        })
    }

    /// Removes a reference to a departure. May be called with the lock of the ranges held.
    pub(in crate::arena) fn release_departure(&self, departure: u32) {
        let over = self.paging.pool.lock().departures.release(departure);
        self.end_departure(over);
    }

    /// Ends the fence of a departure that is over. May be called with the lock of the ranges held.
    pub(in crate::arena) fn end_departure(&self, over: Option<Fence>) {
        if let Some(fence) = over {
            self.waits.end_fence(self.driver, fence, Waiter::Streams);
        }
    }

    /// Orders later work on `stream` after a departure, unless it already is. `orders` is true if
    /// the caller has permission to record and the stream does not capture. The caller holds the
    /// piece or the reference that keeps the departure.
    ///
    /// # Errors
    /// Those of the device; [`ErrorKind::NotPermittedInCapture`] if the order is needed and
    /// `orders` is false.
    pub(super) fn order_behind_departure(&self, stream: StreamId, departure: u32, orders: bool) -> Result<(), Error> {
        if departure == NONE {
            return Ok(());
        }
        let entry = self.paging.pool.lock().departures.hold(departure);
        self.order_behind_held(stream, (departure, entry), orders)
    }

    /// Orders later work on `stream` after the departure of a page, as
    /// [`order_behind_departure`](Self::order_behind_departure) does. Returns the departure, or
    /// [`NONE`] if the page has none. If it is `last`, the stream is already ordered after it.
    ///
    /// # Errors
    /// Those of `order_behind_departure`.
    pub(super) fn order_behind_page(&self, stream: StreamId, page: u32, last: u32, orders: bool) -> Result<u32, Error> {
        let held = {
            let mut pages = self.paging.pool.lock();
            let behind = pages[page].behind;
            if behind == NONE || behind == last {
                return Ok(behind);
            }
            // Held before the lock is dropped, because another thread may remove the stale mapping
            // that keeps the departure.
            (behind, pages.departures.hold(behind))
        };
        self.order_behind_held(stream, held, orders)?;
        Ok(held.0)
    }

    /// Orders later work on `stream` after a departure, and releases the caller's reference to it.
    fn order_behind_held(
        &self,
        stream: StreamId,
        (departure, entry): (u32, Departure),
        orders: bool,
    ) -> Result<(), Error> {
        let ordered = match (entry.fence.filter(|_| !entry.complete), entry.precedes(stream), orders) {
            (None, ..) | (Some(_), true, true) => Ok(()),
            (Some(fence), false, true) => self.driver.call(|memory| memory.order_behind(stream, fence.event)),
            (Some(_), _, false) => Err(in_capture()),
        };
        self.release_departure(departure);
        Ok(ordered?)
    }

    /// Polls the departures, and acts on those that are complete. Does not wait.
    ///
    /// A failed call is not an error. The pages are then used no earlier, and the blocks stay busy
    /// even if their work is complete. If the context is lost, this is noted, and the next call to
    /// the device reports it.
    pub(crate) fn poll_departures(&self) {
        if self.paging.pool.lock().departures.is_empty() {
            return;
        }
        let mut from = 0;
        loop {
            let next = self.paging.pool.lock().departures.hold_oldest(from, |_| true);
            let Some((queue, departure, entry)) = next else { break };
            let complete = self.query_departure(entry, P::Device::is_complete);
            {
                let departures = &mut self.paging.pool.lock().departures;
                match complete {
                    Ok(true) => departures.complete(departure),
                    Ok(false) => {}
                    // Otherwise an epoch would be polled forever.
                    Err(_) => departures.give_up(departure),
                }
            }
            self.release_departure(departure);
            // The later departures of the stream do not complete before this one.
            from = if complete == Ok(true) { queue } else { queue + 1 };
        }
        self.follow_completed();
    }

    /// Waits for a departure.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn wait_for_departure(&self, departure: u32) -> Result<(), Error> {
        if self.driver.holds_frees() {
            return Err(in_capture().into());
        }
        let entry = self.paging.pool.lock().departures.hold(departure);
        let waited = self.query_departure(entry, |memory, event| memory.wait(event).map(|()| true));
        if waited.is_ok() {
            self.paging.pool.lock().departures.complete(departure);
        }
        self.release_departure(departure);
        waited?;
        Ok(())
    }

    /// Waits for the work before every decommit so far.
    ///
    /// # Errors
    /// The first error of the device, after all departures were tried.
    pub(super) fn wait_for_pages(&self) -> Result<(), Error> {
        let (mut from, mut result) = (0, Ok(()));
        // Without this bound, other threads could add departures forever.
        let added = self.paging.pool.lock().departures.added();
        loop {
            let next = self.paging.pool.lock().departures.hold_oldest(from, Departure::is_of_pages);
            let Some((queue, departure, entry)) = next else { return result };
            let waited = if entry.age < added { self.wait_for_departure(departure) } else { Ok(()) };
            // The departure is then complete, and another one is the oldest of its queue.
            from = if entry.age < added && waited.is_ok() { queue } else { queue + 1 };
            result = result.and(waited);
            self.release_departure(departure);
        }
    }

    /// Polls a departure, or waits for it, with `ask`.
    fn query_departure(
        &self,
        departure: Departure,
        ask: impl Fn(&P::Device, Event) -> DeviceResult<bool>,
    ) -> DeviceResult<bool> {
        // A segment without a fence stays retired until cached memory is released.
        let none = Ok(departure.is_of_pages());
        departure.fence.map_or(none, |fence| self.driver.call(|memory| ask(memory, fence.event)))
    }

    /// Acts on complete departures: stale mappings of ranges may be removed, and free blocks become
    /// quiet.
    fn follow_completed(&self) {
        loop {
            // Locked until the departure has been handled, because the references of pieces change
            // under this lock.
            let mut ranges = self.paging.ranges.lock();
            let completed = self.paging.pool.lock().departures.next_completed();
            let Some((departure, Departure { what, fence, .. })) = completed else { return };
            match what {
                Departing::Pages => {
                    ranges.end_waiting(departure, |page| self.paging.pool.lock().follow_departure(page, departure));
                }
                Departing::Blocks { slot, pool, stamp } => {
                    drop(ranges);
                    let mut heap = self.heaps.lock(slot);
                    heap.epochs.end();
                    // The heap may belong to another stream by now, and the fence says nothing
                    // about the work of that stream. A heap without tables has no block.
                    let is_same = fence.is_some_and(|fence| fence.stream == heap.stream) && heap.pool == pool;
                    if is_same && heap.sets.is_made() {
                        heap.sets.quiet = heap.sets.quiet.max(stamp);
                    }
                    drop(heap);
                    self.release_departure(departure);
                }
                // Released at an idle moment, because the device may wait for other work.
                Departing::Segment { .. } | Departing::Nothing => {}
            }
        }
    }
}

/// Returns the error of an operation that a capture does not permit.
pub(super) fn in_capture() -> DeviceError {
    DeviceError::new(ErrorKind::NotPermittedInCapture, 0)
}
