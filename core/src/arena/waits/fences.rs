//! The only place that creates and records events: the [fences](crate::streams::fences) of a
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

/// The number of idle events for streams that a group of streams keeps when memory is given back in
/// part.
const KEPT_EVENTS: usize = 4;

impl<P: Platform> Waits<P> {
    /// Records a fence on `stream` for a waiter. The fence comes after the announced work if blocks
    /// wait, and after all work of the stream if streams wait. The caller has permission to record,
    /// and must [end](Self::end_fence) the fence.
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
    /// [`record_fence`](Self::record_fence) does. It counts as a fence of `stream`, which may be
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

    /// Takes an event for a fence on `stream`: an idle one, or a new one. Returns the number of its
    /// loan as well. If the device has no more events for streams, takes an idle one from other
    /// streams, or shares one that the stream has on loan. Failing that, returns an event for which
    /// the host would wait; the caller can tell with [`orders`](StreamOrder::orders).
    ///
    /// # Errors
    /// [`Error::TableFull`]. The caller must end the loan, even if no event could be made.
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
        // The event that was made is not lost: blocks can wait for it.
        self.keep_for_blocks(stream, event);
        Ok((number, Ok(better)))
    }

    /// Takes an event that was made earlier for the loan `number` of `stream`: an idle one from
    /// other streams, or one that the stream has on loan, which then replaces this loan. Returns
    /// the number of the loan, and the event.
    fn take_used_event(&self, driver: &Driver<P::Device>, stream: StreamId, number: u64) -> Option<(u64, Event)> {
        let take = |group| self.queues.lock(group).events_for(Waiter::Streams).take_idle();
        if let Some(event) = (0..self.queues.count()).find_map(take) {
            return Some((number, event));
        }
        // A fence on a stream that captures would take the event away from its other users.
        if driver.call(|device| device.is_capturing(stream)) != Ok(false) {
            return None;
        }
        let mut order = self.queues.lock_of(stream);
        let shared = order.events_for(Waiter::Streams).share(stream)?;
        order.events_for(Waiter::Streams).end(None);
        Some(shared)
    }

    /// Keeps an event after which no stream can be ordered, for blocks of the stream's group.
    fn keep_for_blocks(&self, stream: StreamId, event: Event) {
        // If there is no room, the event is lost until the context ends.
        let _kept = self.queues.lock_of(stream).events_for(Waiter::Blocks).accept(event);
    }

    /// Creates an event. If the waiter needs it, a stream can be ordered after the event.
    fn make_event(&self, driver: &Driver<P::Device>, waiter: Waiter) -> DeviceResult<Event> {
        // An ordered device orders streams before a release.
        let orders = || self.orders.load(Ordering::Relaxed) != 0 || driver.device().is_ordered();
        let can_order = waiter == Waiter::Streams || orders();
        self.made.store(1, Ordering::Relaxed);
        driver.call(if can_order { P::Device::create_order_event } else { P::Device::create_event })
    }

    /// Ends a fence for a waiter, so that its event can be recorded again.
    pub(in crate::arena) fn end_fence(&self, driver: &Driver<P::Device>, fence: Fence, waiter: Waiter) {
        let is_left = waiter == Waiter::Streams && !driver.device().orders(fence.event);
        let idle = if is_left { None } else { Some(fence.event) };
        self.queues.lock_of(fence.stream).events_for(waiter).end(idle);
        if is_left {
            // The next fence of a stream asks the device again for an event made for streams.
            self.keep_for_blocks(fence.stream, fence.event);
        }
    }

    /// Returns whether the device had no more events for streams at the last attempt.
    pub(in crate::arena) fn is_short_of_events(&self) -> bool {
        self.short.load(Ordering::Relaxed) != 0
    }

    /// Orders later work on `stream` after the present work of the stream `first`. Returns false if
    /// only the host could wait, because there are no more events. The caller has permission to
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
        // The order remains when the event is recorded again, because the driver takes the event's
        // state at the call.
        let ordered = if orders { driver.call(|device| device.order_behind(stream, fence.event)) } else { Ok(()) };
        self.end_fence(driver, fence, Waiter::Streams);
        ordered?;
        Ok(orders)
    }

    /// Gives the idle events for streams back to the device, because a process has few of them and
    /// the program needs some, too. A failure leaves an event that nothing uses.
    pub(crate) fn give_events_back(&self, driver: &Driver<P::Device>) {
        self.give_back_above(driver, 0);
    }

    /// Gives idle events back as [`give_events_back`](Self::give_events_back) does, but keeps a
    /// few.
    pub(crate) fn give_spare_events_back(&self, driver: &Driver<P::Device>) {
        self.give_back_above(driver, KEPT_EVENTS);
    }

    /// Gives the idle events for streams back to the device, but keeps `kept` for each group and
    /// waiter.
    fn give_back_above(&self, driver: &Driver<P::Device>, kept: usize) {
        // Under a policy that orders streams after such events, blocks wait for them, too.
        let _unused = self.destroy_idle(driver, kept, |event| driver.device().orders(event));
        self.short.store(0, Ordering::Relaxed);
    }

    /// Destroys the events that no fence uses.
    ///
    /// # Errors
    /// The first error of the device, after all events were tried.
    pub(crate) fn destroy_idle_events(&self, driver: &Driver<P::Device>) -> Result<(), Error> {
        self.destroy_idle(driver, 0, |_| true).map_err(Error::from)
    }

    /// Destroys the idle events for which `is_spare` returns true, but keeps `kept` for each group
    /// and waiter.
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
            // Most programs have one stream and no events, and visiting all groups would take a
            // tenth of a cold request.
            return result;
        }
        let next = |group| self.queues.lock(group).take_idle_above(kept, &is_spare);
        for group in 0..self.queues.count() {
            // The lock is released before the call to the device.
            while let Some(event) = next(group) {
                result = result.and(driver.call(|device| device.destroy_event(event)));
            }
        }
        result
    }
}
