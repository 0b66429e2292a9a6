//! The events of a device, which are of two kinds, and how a stream waits for each.
//!
//! A driver may lose the wait of a stream: if a thread records an event on the stream of a launch
//! and makes another stream wait for it while another thread is inside `cuGraphLaunch`, then
//! `cuStreamWaitEvent` may have no effect. Polls of such an event and waits of the host work
//! correctly. So does the wait of a stream for an event that is made for other processes, too
//! (`CU_EVENT_INTERPROCESS`). The program `stress/gpu/graph_order.cu` tests a driver, and
//! `tests/results/graph_order.md` has the results.
//!
//! So events after which streams are ordered are made for other processes, although none uses them.
//! Such an event takes longer to record, and a process can have at most 4,096 of them. If an event
//! is of the other kind, the host waits instead of the stream.

use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::CuEvent;
use crate::handle::Handle;
use cachalot_core::Event;

/// The bit that marks the core's number of an event for streams. The driver's handles are
/// addresses, which do not have this bit.
const FOR_STREAMS: u64 = 1 << 63;

/// An event of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceEvent {
    /// The driver's handle.
    pub(crate) handle: CuEvent,
    /// Whether a stream may wait for the event.
    pub(crate) is_for_streams: bool,
}

impl DeviceEvent {
    /// Returns the event with the core's number.
    pub(crate) const fn of(event: Event) -> Self {
        Self { handle: CuEvent((event.0 & !FOR_STREAMS) as usize), is_for_streams: event.0 & FOR_STREAMS != 0 }
    }

    /// Returns the core's number.
    pub(crate) const fn number(self) -> Event {
        Event(self.handle.0 as u64 | if self.is_for_streams { FOR_STREAMS } else { 0 })
    }

    /// Makes later work of a stream wait for the event, which is recorded. If the event is for the
    /// host, the host waits instead. The context is entered.
    pub(crate) fn hold_back(self, driver: &Driver, stream: &Handle<'_>) -> CuResult {
        if self.is_for_streams {
            return stream.wait_for(driver, self.handle);
        }
        // SAFETY: takes no host pointers; the caller has the event.
        unsafe { driver.event_synchronize(self.handle) }
    }
}
