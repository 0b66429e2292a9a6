//! The unused events of a device, which are kept for later work.

use crate::context::Context;
use crate::device_event::DeviceEvent;
use crate::driver::types::{CuEvent, CuEventFlags};
use crate::shared_event::SharedEvent;
use cachalot_core::DeviceResult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The greatest number of events for streams that are kept. A process can have 4,096, including
/// those of the program.
const KEPT_FOR_STREAMS: usize = 64;

/// The unused events of a device. They may be incomplete, so each is recorded before its next use.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents(Mutex<Spare>);

/// The unused events, by their kinds, so that the search for one kind does not pass any of the
/// other.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    for_host: Vec<DeviceEvent>,
    for_streams: Vec<DeviceEvent>,
}

impl Spare {
    /// Returns the events of a kind.
    fn of(&mut self, is_for_streams: bool) -> &mut Vec<DeviceEvent> {
        if is_for_streams { &mut self.for_streams } else { &mut self.for_host }
    }
}

impl SpareEvents {
    /// Locks the events. Poison is ignored, because a panic under the lock leaves only whole
    /// entries.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an unused event for the host: a spare one, or a new one.
    pub(crate) fn take(&self, context: &Context) -> DeviceResult<DeviceEvent> {
        self.take_spare(false).map_or_else(|| create(context), Ok)
    }

    /// Returns an unused event for streams, as [`take`](Self::take) does.
    pub(crate) fn take_for_streams(&self, context: &Context) -> DeviceResult<DeviceEvent> {
        self.take_spare(true).map_or_else(|| create_for_streams(context), Ok)
    }

    /// Takes the latest spare event of a kind.
    fn take_spare(&self, is_for_streams: bool) -> Option<DeviceEvent> {
        self.lock().of(is_for_streams).pop()
    }

    /// Keeps an unused event. Destroys one for streams if many are kept.
    pub(crate) fn keep(&self, context: &Context, event: DeviceEvent) {
        let mut spare = self.lock();
        let of_kind = spare.of(event.is_for_streams);
        if !event.is_for_streams || of_kind.len() < KEPT_FOR_STREAMS {
            return of_kind.push(event);
        }
        drop(spare);
        // The failure concerns no caller: nothing uses the event.
        let _ = destroy(context, event);
    }

    /// Gives up shared events. The last thread that has an event keeps it here, or destroys it if
    /// it belongs to another context.
    pub(crate) fn give_up(&self, context: &Context, events: impl IntoIterator<Item = SharedEvent>) {
        for (event, of) in events.into_iter().filter_map(SharedEvent::give_up) {
            if of == context.handle() {
                self.keep(context, event);
            } else {
                // The failure concerns no caller: nothing uses the event.
                let _ = destroy(context, event);
            }
        }
    }

    /// Destroys the events, when the device is closed. No other thread may be inside a call of the
    /// device.
    pub(crate) fn close(&self, context: &Context) -> DeviceResult<()> {
        let mut result = Ok(());
        let Spare { for_host, for_streams } = core::mem::take(&mut *self.lock());
        for event in for_host.into_iter().chain(for_streams) {
            result = result.and(destroy(context, event));
        }
        result
    }
}

/// The flags of an event without timing that is made for other processes, too.
const FOR_STREAMS: CuEventFlags = CuEventFlags(CuEventFlags::DISABLE_TIMING.0 | CuEventFlags::INTERPROCESS.0);

/// Creates an event for the host.
pub(crate) fn create(context: &Context) -> DeviceResult<DeviceEvent> {
    let handle = create_with(context, CuEventFlags::DISABLE_TIMING)?;
    Ok(DeviceEvent { handle, is_for_streams: false })
}

/// Creates an event for streams. If the driver makes no such event, or no more of them, creates an
/// event for the host.
pub(crate) fn create_for_streams(context: &Context) -> DeviceResult<DeviceEvent> {
    match create_with(context, FOR_STREAMS) {
        Ok(handle) => Ok(DeviceEvent { handle, is_for_streams: true }),
        Err(_) => create(context),
    }
}

/// Creates an event with the given flags.
fn create_with(context: &Context, flags: CuEventFlags) -> DeviceResult<CuEvent> {
    let mut event = CuEvent::NULL;
    context.call(|driver| {
        // SAFETY: `event` outlives the call, which writes one handle to it.
        unsafe { driver.event_create(&raw mut event, flags) }
    })?;
    Ok(event)
}

/// Destroys an event that nothing uses any longer.
pub(crate) fn destroy(context: &Context, event: DeviceEvent) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes no host pointers; the event was made by this crate, and nothing refers to
        // it any longer.
        unsafe { driver.event_destroy(event.handle) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::CudaDevice;
    use crate::fake;

    #[test]
    fn events_of_each_kind_are_kept_apart_and_few_of_those_for_streams() {
        let device = CudaDevice::open(fake::driver(), 0).expect("the fake opens");
        let (spare, context) = (&device.spare_events, &device.context);
        let made: Vec<_> = (0..100).map(|_| create_for_streams(context).expect("an event")).collect();
        assert!(made.iter().all(|event| event.is_for_streams));
        made.into_iter().for_each(|event| spare.keep(context, event));
        (0..100).for_each(|_| spare.keep(context, create(context).expect("an event")));
        let kept = |spare: &Spare| (spare.for_host.len(), spare.for_streams.len());
        assert_eq!(kept(&spare.lock()), (100, KEPT_FOR_STREAMS));
        assert!(!spare.take(context).expect("an event").is_for_streams);
        assert!(spare.take_for_streams(context).expect("an event").is_for_streams);
        assert_eq!(kept(&spare.lock()), (99, KEPT_FOR_STREAMS - 1));
    }
}
