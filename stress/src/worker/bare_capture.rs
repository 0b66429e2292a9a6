//! Captures that the allocator is not told of: the graph requests nothing, so it needs no pool, and every call of the allocator
//! goes on meanwhile.

use super::Worker;
use crate::sizes;
use cachalot_core::{DeviceMemory, MIB};
use cachalot_cuda::driver::types::{CuCaptureMode, CuGraphExec};
use std::sync::atomic::Ordering;

/// The largest request during a capture.
const LARGEST: u64 = 2 * MIB;
/// The kernel that is captured keeps its stream busy for so long.
const BUSY_US: u64 = 1;

impl Worker {
    /// Captures a graph that uses no memory, and frees blocks meanwhile that the capturing stream was said to use.
    pub(super) fn capture_alone(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let device = self.places[place].device;
        if !self.unstick(device) {
            return;
        }
        let (shared, line) = (self.shared, self.sites[device].line);
        let stage = &shared.devices[device];
        let lent = self.lend_to(place, line);
        shared.captures.fetch_add(1, Ordering::AcqRel);
        let modes = [CuCaptureMode::GLOBAL, CuCaptureMode::THREAD_LOCAL, CuCaptureMode::RELAXED];
        let begun = stage.begin_capture(line.handle, modes[self.rng.usize(0..modes.len())]);
        let recorded = begun.and_then(|()| stage.kernels.hold(line.handle, BUSY_US));
        for block in lent {
            if let Err(block) = self.give_back(block) {
                self.ready.push(block);
            }
        }
        self.go_on(place);
        // Even if it did not begin: a call that failed may have acted.
        let ended = stage.end_capture(line.handle);
        if ended.is_err() {
            self.sites[device].stuck = stage.cuda.is_capturing(line.id) != Ok(false);
        }
        let runs_on = self.line(place).handle;
        let ran = recorded.and(ended).and_then(|captured| {
            let ready = stage.instantiate(captured);
            let ran = ready.and_then(|ready| stage.replay(ready, runs_on)).and_then(|()| stage.synchronize(runs_on));
            let destroyed = stage.destroy_graph(captured, ready.unwrap_or(CuGraphExec::NULL));
            ran.and(destroyed)
        });
        match ran {
            Ok(()) => self.counts.bare_graphs += 1,
            Err(error) => self.device_failed("a capture that the allocator was not told of", error),
        }
    }

    /// A request, a free and more on another stream than the one that captures.
    fn go_on(&mut self, place: usize) {
        let (shared, device, lane) = (self.shared, self.places[place].device, self.line(place));
        let index = shared.devices[device].index;
        let bytes = sizes::pick(&mut self.rng, LARGEST);
        if let Some(block) = self.obtain(device, lane, bytes, true)
            && let Err(block) = self.give_back(block)
        {
            self.ready.push(block);
        }
        let done = match self.rng.u32(0..4) {
            0 => shared.subject.process_events(index),
            1 => shared.subject.trim(index, 0),
            2 => shared.subject.empty_cache(index),
            _ => Ok(()),
        };
        if let Err(error) = done {
            self.starved("a call during a capture", &error);
        }
    }
}
