//! The one place in which events are created and recorded: [fences](crate::streams::fences) of a
//! device.
//!
//! No lock is held during a call to the device.

use crate::arena::driver::Driver;
use crate::arena::platform::Platform;
use crate::arena::waits::Waits;
use crate::device::{DeviceResult, Event, Segments, StreamOrder};
use crate::error::Error;
use crate::streams::fences::{Fence, Waiter};
use crate::sync::Ordering;
use crate::tables::CapacityError;
use crate::units::StreamId;

/// How many idle events after which streams are ordered a group of streams keeps where memory is
/// given back in part.
const KEPT_EVENTS: usize = 4;

impl<P: Platform> Waits<P> {
    /// Records a fence on `stream` for a waiter, which the caller [ends](Self::end_fence): for
    /// blocks after the announced work, and for streams after all work that the stream has. The
    /// caller has permission to record.
    ///
    /// # Errors
    /// [`Error::TableFull`]; the first error of the device. No fence is left then.
    pub(in crate::arena) fn record_fence(
        &self,
        driver: &Driver<P::Device>,
        stream: StreamId,
        waiter: Waiter,
    ) -> Result<Fence, Error> {
        let record = match waiter {
            Waiter::Blocks => P::Device::record_announced,
            Waiter::Streams => P::Device::record,
        };
        self.record_by(driver, stream, waiter, |device, event| record(device, event, stream))
    }

    /// Records a fence after the present work of every stream of the device, as
    /// [`record_fence`](Self::record_fence) does. The fence counts as one of `stream`, which may be
    /// gone.
    pub(in crate::arena) fn record_fence_of_all(
        &self,
        driver: &Driver<P::Device>,
        stream: StreamId,
        waiter: Waiter,
    ) -> Result<Fence, Error> {
        self.record_by(driver, stream, waiter, P::Device::record_all)
    }

    /// Records a fence with a call of the device.
    fn record_by(
        &self,
        driver: &Driver<P::Device>,
        stream: StreamId,
        waiter: Waiter,
        record: impl FnOnce(&P::Device, Event) -> DeviceResult<()>,
    ) -> Result<Fence, Error> {
        let (number, made) = self.take_event(driver, stream, waiter)?;
        let recorded = made.and_then(|event| driver.call(|device| record(device, event)).map(|()| event));
        match recorded {
            Ok(event) => {
                if waiter == Waiter::Streams && driver.device().orders(event) {
                    self.queues.lock_of(stream).events_for(waiter).may_share(stream, event);
                }
                Ok(Fence { stream, number, event })
            }
            Err(error) => {
                self.queues.lock_of(stream).events_for(waiter).end(made.ok());
                Err(error.into())
            }
        }
    }

    /// Takes an event for a fence on `stream`, and the number of its loan: an idle one, or a new
    /// one. If the device has no more events for streams: an idle one of other streams, or one that
    /// the stream has on loan. Without any, the event is one for which the host would wait,
    /// [which](StreamOrder::orders) the caller can tell.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The loan is to be ended, also if no event could be made.
    fn take_event(
        &self,
        driver: &Driver<P::Device>,
        stream: StreamId,
        waiter: Waiter,
    ) -> Result<(u64, DeviceResult<Event>), Error> {
        let lent = self.queues.lock_of(stream).events_for(waiter).lend();
        let (number, idle) = lent.map_err(|CapacityError| Error::TableFull("events"))?;
        if let Some(event) = idle {
            return Ok((number, Ok(event)));
        }
        if waiter == Waiter::Blocks {
            return Ok((number, self.make_event(driver, waiter)));
        }
        let is_short = self.is_short_of_events();
        let better = if is_short { self.take_used_event(driver, stream, number) } else { None };
        if let Some((number, event)) = better {
            return Ok((number, Ok(event)));
        }
        let made = self.make_event(driver, waiter);
        let Ok(event) = made else { return Ok((number, made)) };
        let is_enough = driver.device().orders(event);
        self.short.store(u32::from(!is_enough), Ordering::Relaxed);
        let better = if is_enough || is_short { None } else { self.take_used_event(driver, stream, number) };
        let Some((number, better)) = better else { return Ok((number, made)) };
        // What was made is not lost: blocks can wait for it.
        self.keep_for_blocks(stream, event);
        Ok((number, Ok(better)))
    }

    /// Takes an event that was made before, for the loan `number` of `stream`: an idle one of other
    /// streams, or one that the stream has on loan, which is then another loan. Returns the number
    /// of the loan, and the event.
    fn take_used_event(&self, driver: &Driver<P::Device>, stream: StreamId, number: u64) -> Option<(u64, Event)> {
        let take = |group| self.queues.lock(group).events_for(Waiter::Streams).take_idle();
        if let Some(event) = (0..self.queues.count()).find_map(take) {
            return Some((number, event));
        }
        // A fence on a stream that captures would take the event from the others.
        if driver.call(|device| device.is_capturing(stream)) != Ok(false) {
            return None;
        }
        let mut order = self.queues.lock_of(stream);
        let shared = order.events_for(Waiter::Streams).share(stream)?;
        order.events_for(Waiter::Streams).end(None);
        Some(shared)
    }

    /// Keeps an event, after which no stream can be ordered, for blocks of a stream's group.
    fn keep_for_blocks(&self, stream: StreamId, event: Event) {
        // Without room the event is lost until the context ends.
        let _kept = self.queues.lock_of(stream).events_for(Waiter::Blocks).accept(event);
    }

    /// Creates an event, one after which a stream can be ordered where the waiter wants this.
    fn make_event(&self, driver: &Driver<P::Device>, waiter: Waiter) -> DeviceResult<Event> {
        // An ordered device orders streams before a release.
        let orders = || self.orders.load(Ordering::Relaxed) != 0 || driver.device().is_ordered();
        let can_order = waiter == Waiter::Streams || orders();
        self.made.store(1, Ordering::Relaxed);
        driver.call(if can_order { P::Device::create_order_event } else { P::Device::create_event })
    }

    /// Ends a fence for a waiter: its event is recorded again.
    pub(in crate::arena) fn end_fence(&self, driver: &Driver<P::Device>, fence: Fence, waiter: Waiter) {
        let is_left = waiter == Waiter::Streams && !driver.device().orders(fence.event);
        let idle = if is_left { None } else { Some(fence.event) };
        self.queues.lock_of(fence.stream).events_for(waiter).end(idle);
        if is_left {
            // The next fence of a stream asks the device again for an event made for it.
            self.keep_for_blocks(fence.stream, fence.event);
        }
    }

    /// Returns whether the device had no more events for streams at the last attempt.
    pub(in crate::arena) fn is_short_of_events(&self) -> bool {
        self.short.load(Ordering::Relaxed) != 0
    }

    /// Orders later work on `stream` after the work that the stream `first` has now. Returns false
    /// if only the host could wait, because there are no more events. The caller has permission to
    /// record.
    ///
    /// # Errors
    /// [`Error::TableFull`]; those of the device.
    pub(in crate::arena) fn order_behind_stream(
        &self,
        driver: &Driver<P::Device>,
        stream: StreamId,
        first: StreamId,
    ) -> Result<bool, Error> {
        let fence = self.record_fence(driver, first, Waiter::Streams)?;
        let orders = driver.device().orders(fence.event);
        // The order stays if the event is recorded again: the driver takes the event's state at the
        // call.
        let ordered = if orders { driver.call(|device| device.order_behind(stream, fence.event)) } else { Ok(()) };
        self.end_fence(driver, fence, Waiter::Streams);
        ordered?;
        Ok(orders)
    }

    /// Gives the idle events after which streams are ordered back to the device: a process has few
    /// of them, for the program, too. A failure leaves an event that nothing uses.
    pub(crate) fn give_events_back(&self, driver: &Driver<P::Device>) {
        self.give_back_above(driver, 0);
    }

    /// Gives idle events back as [`give_events_back`](Self::give_events_back) does, but for a few.
    pub(crate) fn give_spare_events_back(&self, driver: &Driver<P::Device>) {
        self.give_back_above(driver, KEPT_EVENTS);
    }

    /// Gives the idle events after which streams are ordered back to the device, but for `kept` of
    /// each group and waiter.
    fn give_back_above(&self, driver: &Driver<P::Device>, kept: usize) {
        // Blocks wait for such events, too, under a policy that orders streams after them.
        let _unused = self.destroy_idle(driver, kept, |event| driver.device().orders(event));
        self.short.store(0, Ordering::Relaxed);
    }

    /// Destroys the events of no fence.
    ///
    /// # Errors
    /// The first error of the device, after all events were tried.
    pub(crate) fn destroy_idle_events(&self, driver: &Driver<P::Device>) -> Result<(), Error> {
        self.destroy_idle(driver, 0, |_| true).map_err(Error::from)
    }

    /// Destroys idle events of which `is_spare` is true, but for `kept` of each group and waiter.
    ///
    /// # Errors
    /// The first error of the device, after all events were tried.
    fn destroy_idle(
        &self,
        driver: &Driver<P::Device>,
        kept: usize,
        is_spare: impl Fn(Event) -> bool,
    ) -> DeviceResult<()> {
        let mut result = Ok(());
        if self.made.load(Ordering::Relaxed) == 0 {
            // Most programs have one stream and no events: the visits of all groups would be a
            // tenth of a cold request.
            return result;
        }
        let next = |group| self.queues.lock(group).take_idle_above(kept, &is_spare);
        for group in 0..self.queues.count() {
            // The lock ends before the call to the device.
            while let Some(event) = next(group) {
                result = result.and(driver.call(|device| device.destroy_event(event)));
            }
        }
        result
    }
}
