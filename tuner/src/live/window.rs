//! Turns a window of an allocator's requests into a program, with the memory that was reserved
//! during the window.

use crate::program::{Operation, Program};
use cachalot_core::{Action, BlockState, DevicePtr, StreamId, TraceEntry, Window};
use std::collections::HashMap;

/// The program of a window.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The calls: first requests for the blocks that are live at the start of the window, by
    /// address, and then the calls in the window. A freed block counts as live until it no longer
    /// waits for streams.
    pub(super) program: Program,
    /// The number of requests in the window.
    pub(super) requests: usize,
    /// The most bytes held from the device during the window.
    pub(super) reserved_bytes: u64,
}

/// A block in use at the start of the window.
#[derive(Clone, Copy)]
struct Early {
    at: DevicePtr,
    bytes: u64,
    stream: StreamId,
}

/// The numbers of the live blocks, which are reused.
#[derive(Default)]
struct Slots {
    held: HashMap<DevicePtr, u32>,
    free: Vec<u32>,
    count: u32,
}

impl Slots {
    fn take(&mut self, at: DevicePtr) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        self.held.insert(at, slot);
        slot
    }

    fn give(&mut self, at: DevicePtr) -> Option<u32> {
        let slot = self.held.remove(&at)?;
        self.free.push(slot);
        Some(slot)
    }
}

/// Reads the events of a window that are later than `since`, which is in ticks of the device.
pub(super) fn seen(window: &Window, since: u64) -> Seen {
    let first = window.events.partition_point(|event| event.time_us <= since);
    let events = &window.events[first..];
    let mut slots = Slots::default();
    let mut operations = Vec::with_capacity(events.len());
    for Early { at, bytes, stream } in early(events, window) {
        let slot = slots.take(at);
        operations.push(Operation::Malloc { bytes, stream, slot });
    }
    let mut requests = 0;
    for event in events {
        match event.action {
            Action::Alloc => {
                // Threads may have allocated and freed while the window was read, so the block may
                // have been freed without an event here.
                operations.extend(slots.give(event.addr).map(|slot| Operation::Free { slot }));
                let slot = slots.take(event.addr);
                operations.push(Operation::Malloc { bytes: event.size, stream: event.stream, slot });
                requests += 1;
            }
            Action::FreeCompleted => {
                operations.extend(slots.give(event.addr).map(|slot| Operation::Free { slot }));
            }
            Action::OutOfMemory => operations.push(Operation::Refused { bytes: event.size, stream: event.stream }),
            _ => {}
        }
    }
    let program = Program { operations, slots: slots.count, start: 0 };
    Seen { program, requests, reserved_bytes: reserved_bytes(events, window) }
}

/// Returns the blocks that are live at the start of the window, by address: those that are freed in
/// the window without an earlier request in it, and those that are in use at its end without a
/// request in it.
fn early(events: &[TraceEntry], window: &Window) -> Vec<Early> {
    let mut known: HashMap<DevicePtr, bool> = HashMap::new();
    let mut early = Vec::new();
    for event in events {
        let TraceEntry { action, addr: at, size: bytes, stream, .. } = *event;
        match action {
            Action::Alloc => {
                known.insert(at, true);
            }
            Action::FreeCompleted if known.insert(at, false).is_none() => early.push(Early { at, bytes, stream }),
            _ => {}
        }
    }
    for segment in &window.segments {
        for block in &segment.blocks {
            if block.state != BlockState::Inactive && !known.contains_key(&block.address) {
                let (at, bytes) = (block.address, block.requested_size);
                early.push(Early { at, bytes, stream: segment.stream });
            }
        }
    }
    early.sort_unstable_by_key(|block| block.at);
    early
}

/// Returns the most bytes held from the device from the first request of the window on.
fn reserved_bytes(events: &[TraceEntry], window: &Window) -> u64 {
    let mut reserved: u64 = window.segments.iter().map(|segment| segment.total_size - segment.parked).sum();
    let mut peak = reserved;
    // Memory that went back before the first request does not count.
    let first = events.iter().position(|event| event.action == Action::Alloc).unwrap_or(0);
    // This goes backwards from the end, where the number is known.
    for event in events[first..].iter().rev() {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved = reserved.saturating_sub(event.size),
            Action::SegmentFree | Action::SegmentUnmap => reserved += event.size,
            _ => {}
        }
        peak = peak.max(reserved);
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::OnDevice;
    use crate::program::{DEVICE, Run, Settings, Subject};
    use cachalot_core::simulated::SimulatedDevice;
    use cachalot_core::{Config, MIB};

    const STREAM: StreamId = StreamId(4);

    fn tuned() -> OnDevice {
        let settings = Settings { config: Config::parse("tune:auto").expect("settings"), limit: None };
        OnDevice::create(SimulatedDevice::new(1 << 40), &settings).expect("an allocator")
    }

    fn window(allocator: &OnDevice) -> Window {
        allocator.tuning(DEVICE).expect("the device").window()
    }

    #[test]
    fn a_window_is_the_program_again() {
        let allocator = tuned();
        let malloc = |mib: u64| allocator.malloc(DEVICE, mib * MIB, STREAM).expect("memory");
        let (one, two) = (malloc(30), malloc(7));
        allocator.free(one).expect("it is live");
        let three = malloc(25);
        let seen = super::seen(&window(&allocator), 0);
        let at = |mib: u64, slot| Operation::Malloc { bytes: mib * MIB, stream: STREAM, slot };
        assert_eq!(seen.program.operations, [at(30, 0), at(7, 1), Operation::Free { slot: 0 }, at(25, 0)]);
        assert_eq!((seen.requests, seen.program.slots), (3, 2));
        assert_eq!(seen.reserved_bytes, 50 * MIB);
        allocator.free(two).expect("it is live");
        allocator.free(three).expect("it is live");
    }

    #[test]
    fn blocks_from_before_are_requested_first() {
        let allocator = tuned();
        let malloc = |mib: u64| allocator.malloc(DEVICE, mib * MIB, STREAM).expect("memory");
        let (stays, freed) = (malloc(12), malloc(40));
        let since = window(&allocator).events.last().expect("events").time_us;
        allocator.free(freed).expect("it is live");
        let later = malloc(3);
        let whole = window(&allocator);
        let seen = super::seen(&whole, since);
        let mut run: Run<OnDevice> = Run::new(tuned());
        run.perform_all(&seen.program.operations).expect("it is a program");
        let live = seen.program.live_bytes().collect::<Vec<_>>();
        assert_eq!(live, [12 * MIB, 52 * MIB, 12 * MIB, 15 * MIB]);
        assert_eq!(seen.requests, 1);
        for block in [stays, later] {
            allocator.free(block).expect("it is live");
        }
    }

    #[test]
    fn memory_given_back_before_the_first_request_does_not_count() {
        let allocator = tuned();
        let malloc = |mib: u64| allocator.malloc(DEVICE, mib * MIB, STREAM).expect("memory");
        let big = malloc(100);
        allocator.free(big).expect("it is live");
        let since = window(&allocator).events.last().expect("events").time_us;
        allocator.empty_cache(DEVICE).expect("nothing is in use");
        let _small = malloc(30);
        let whole = window(&allocator);
        assert_eq!(super::seen(&whole, since).reserved_bytes, 30 * MIB);
        assert_eq!(super::seen(&whole, 0).reserved_bytes, 100 * MIB);
    }
}
