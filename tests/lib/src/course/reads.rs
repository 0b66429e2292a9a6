//! Readings: answers about addresses, forecasts, statistics, segments, events.

use super::noted::Noted;
use super::{CALLS, Course, Subject, note};
use crate::host::{DEVICE, MIB};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, DevicePtr, MemoryInfo, PoolId, PoolOptions, SnapshotSegment, Statistic};

impl Course {
    /// Returns an address: in or behind a block, or of nothing.
    fn address(&mut self) -> DevicePtr {
        match self.any_block() {
            Some(block) if self.random.u8(..8) > 0 => {
                let held = self.held[block];
                held.ptr.offset(self.random.u64(..held.bytes.saturating_add(3 * MIB).min(1 << 32)))
            }
            _ => DevicePtr(self.random.u64(..1 << 48)),
        }
    }

    pub(super) fn reads(&mut self) {
        let (address, bytes, stream) = (self.address(), self.bytes(), self.stream());
        match self.random.u8(..10) {
            0 => {
                self.told("base", self.allocator.base_of(address));
            }
            1 | 2 => {
                self.told("explained", self.allocator.explain(address));
            }
            3 => {
                self.told("forecast", self.allocator.forecast(DEVICE).unwrap().malloc(bytes, stream));
            }
            4 => {
                let sizes = [bytes, 3 * MIB, 700, 30 * MIB, bytes];
                let Ok(forecast) = self.allocator.forecast(DEVICE) else { return };
                let fit = forecast.would_fit(&sizes, stream);
                let exact = forecast.would_fit_on(self.device().duplicate(), &sizes, stream);
                note!(self, "fits {fit:?} {exact:?}");
            }
            5 => {
                let memory = MemoryInfo { free: self.random.u64(..300) * MIB, total: 300 * MIB };
                let noted = self.allocator.forecast(DEVICE).map(|forecast| forecast.note_memory(memory));
                note!(self, "memory {noted:?}");
            }
            6 => {
                self.told("peaks", self.allocator.stats(DEVICE).map(|stats| stats.reset_peaks()));
            }
            7 => {
                self.told("sums", self.allocator.stats(DEVICE).map(|stats| stats.reset_accumulated()));
            }
            8 => self.placed(),
            _ => self.events(),
        }
    }

    /// Frees a block, and takes its memory again at the old address.
    fn placed(&mut self) {
        let Some(block) = self.any_block().filter(|&block| !self.held[block].shared) else { return };
        let held = self.held[block];
        let Ok(found) = self.allocator.base_of(held.ptr) else { return };
        if self.told("free", self.allocator.free(held.ptr)).is_none() {
            return;
        }
        let size = if self.random.bool() || found.size <= 512 { found.size } else { found.size - 512 };
        let placed = self.allocator.malloc_at(PoolId::DEFAULT, held.ptr, size, held.bytes);
        if self.told("placed", placed).is_none() {
            self.held.swap_remove(block);
        }
    }

    fn events(&mut self) {
        let mut entries = Vec::new();
        let read = self.allocator.trace(DEVICE).map(|trace| trace.for_each(|entry| entries.push(*entry)));
        note!(self, "events {entries:?} {read:?}");
    }

    /// Writes every statistic, segment and block.
    pub(super) fn read_all(&mut self) {
        let stats = self.allocator.stats(DEVICE).expect("there is one device").totals();
        stats.for_each(|key, value| self.notes.write(format_args!("{key} {value}")));
        let reading = self.allocator.stats(DEVICE).expect("there is one device").reading();
        for statistic in Statistic::ALL {
            note!(self, "{} {} {}", statistic.name, reading.value(statistic), reading.is_in_use(statistic));
        }
        let pages = self.allocator.pages(DEVICE).expect("there is one device");
        let (stats, reclaimed) = (pages.stats(), pages.reclaim_stats());
        note!(self, "Ok({stats:?}) Ok({reclaimed:?})");
        for segment in self.allocator.snapshot() {
            note!(self, "{segment:?}");
        }
        let calls = CALLS.map(|call| self.device().calls(call));
        let (limit, leaked) = (
            self.allocator.settings(DEVICE).map(|settings| settings.limit()),
            self.allocator.stats(DEVICE).map(|stats| stats.leaked_bytes()),
        );
        note!(self, "{calls:?} {limit:?} {leaked:?} {:?}", self.allocator.health(DEVICE));
    }

    /// Puts another allocator into the present state, and writes the state.
    pub(super) fn restored(&mut self) {
        let snapshot = self.allocator.snapshot();
        let device = SimulatedDevice::new(1 << 30);
        device.script_addresses(addresses(&snapshot));
        let config = self.allocator.settings(DEVICE).expect("there is one device").config();
        let mut copy: Subject = Allocator::new([Noted::new(device)], &config).expect("one device fits");
        for segment in &snapshot {
            let _ = copy.pools(DEVICE).unwrap().retain(segment.pool, PoolOptions::default());
        }
        let restored = copy.restore(DEVICE, &snapshot);
        note!(self, "restored {restored:?} {:?} {:?}", copy.snapshot() == snapshot, copy.snapshot());
        let stats = copy.stats(DEVICE).expect("there is one device").totals();
        stats.for_each(|key, value| self.notes.write(format_args!("{key} {value}")));
        for held in &self.held {
            note!(self, "{:?}", copy.free(held.ptr));
        }
        note!(self, "{:?} {:?}", copy.check_invariants(), copy.empty_cache(DEVICE));
    }
}

/// Returns the addresses of ordinary segments, and of the first part of each expandable segment.
fn addresses(snapshot: &[SnapshotSegment]) -> Vec<u64> {
    let mut last = None;
    let mut addresses = Vec::new();
    for segment in snapshot {
        let owner = (segment.stream, segment.kind, segment.pool);
        if !segment.is_expandable || last != Some(owner) {
            addresses.push(segment.address.0);
        }
        last = segment.is_expandable.then_some(owner);
    }
    addresses
}
