//! Elastic ranges, parked memory, pins and upkeep.

use super::{Course, note, tag};
use crate::host::{DEVICE, MIB};
use cachalot_core::{ParkMode, ParkOrder, ParkTarget};

/// The pages of the simulated device.
const PAGE: u64 = 2 * MIB;

impl Course {
    pub(super) fn ranges(&mut self) {
        if self.ranges.is_empty() || self.random.u8(..12) == 0 {
            let bytes = self.random.u64(..64) * MIB;
            let reserved = self.allocator.ranges(DEVICE).unwrap().reserve(bytes);
            let reserved = self.told("reserve", reserved);
            self.ranges.extend(reserved);
            return;
        }
        let number = self.random.usize(..self.ranges.len());
        let range = self.ranges[number];
        let stream = self.stream();
        let (offset, bytes) = (self.random.u64(..16) * PAGE, self.random.u64(1..9) * PAGE);
        let allocator = &self.allocator;
        let answer = match self.random.u8(..16) {
            0 => {
                let released = allocator.ranges(DEVICE).unwrap().release(range.range);
                if released.is_ok() {
                    self.ranges.swap_remove(number);
                }
                released
            }
            1 => allocator.ranges(DEVICE).unwrap().commit(range.range, offset + 1, bytes, stream),
            2..=8 => allocator.ranges(DEVICE).unwrap().commit(range.range, offset, bytes, stream),
            9 => {
                let launched = self.device().launch(stream, range.base.offset(offset), bytes);
                return note!(self, "in range {launched:?}");
            }
            _ => allocator.ranges(DEVICE).unwrap().decommit(range.range, offset, bytes, stream),
        };
        self.told("range", answer);
        note!(self, "committed {:?}", self.allocator.ranges(DEVICE).unwrap().committed_bytes(range.range));
    }

    pub(super) fn parking(&mut self) {
        let target = match self.random.u8(..8) {
            0..=3 => ParkTarget::Tag(tag(&mut self.random)),
            4 | 5 => ParkTarget::Stream(self.stream()),
            6 => ParkTarget::Streams,
            _ => ParkTarget::LargeOfStreams,
        };
        let mode = [ParkMode::Keep, ParkMode::Drop, ParkMode::Zero][self.random.usize(..3)];
        let order = if self.random.bool() { ParkOrder::Device } else { ParkOrder::Streams };
        let Ok(parking) = self.allocator.parking(DEVICE) else { return };
        let answer = match self.random.u8(..8) {
            0..=2 => parking.park(target, mode, order),
            3 => parking.wake_start(target),
            4 => parking.wake_wait(target),
            _ => parking.wake(target),
        };
        let (report, remaining) = (parking.report(target), parking.remaining());
        note!(self, "parked {report:?} {remaining:?} {}", self.device().kept());
        self.told("park", answer);
    }

    pub(super) fn pages(&mut self) {
        let Ok(pages) = self.allocator.pages(DEVICE) else { return };
        let most_us = [0, 100, 10_000, u64::MAX][self.random.usize(..4)];
        let block = (!self.held.is_empty()).then(|| self.held[self.random.usize(..self.held.len())].ptr);
        match (self.random.u8(..10), block) {
            (0, Some(ptr)) => {
                let pinned = pages.pin(ptr);
                self.pinned.extend(pinned.is_ok().then_some(ptr));
                let exported = self.allocator.pages(DEVICE).and_then(|pages| pages.export(ptr));
                note!(self, "pin {pinned:?} {exported:?}");
            }
            (1, _) => {
                let Some(ptr) = self.pinned.pop() else { return };
                let unpinned = self.allocator.pages(DEVICE).and_then(|pages| pages.unpin(ptr));
                note!(self, "unpin {unpinned:?}");
            }
            (2 | 3, Some(ptr)) => {
                let mut extents = Vec::new();
                let answer = pages.extents(ptr, |extent| extents.push(extent));
                note!(self, "extents {extents:?} {answer:?}");
            }
            _ => {
                let maintained = pages.maintain(most_us);
                note!(self, "upkeep {maintained:?}");
            }
        }
    }
}
