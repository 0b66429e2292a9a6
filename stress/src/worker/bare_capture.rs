//! Captures without a report to the allocator: the graph requests no memory and needs no pool, and
//! all calls of the allocator continue during the capture.

use super::Worker;
use crate::instrumented::QUESTIONS;
use crate::options::Identity;
use crate::sizes;
use cachalot_core::{MIB, StreamOrder};
use cachalot_cuda::driver::types::{CuCaptureMode, CuGraphExec};

/// The largest request during a capture.
const LARGEST: u64 = 2 * MIB;
/// Duration of the captured kernel, in microseconds.
const BUSY_US: u64 = 1;

impl Worker {
    /// Captures a graph without memory. During the capture, frees blocks announced as used by the
    /// capturing stream.
    pub(super) fn capture_alone(&mut self) {
        let shared = self.shared;
        // A request may then record an event of the whole device, which breaks a capture that was
        // not announced: see the header.
        if shared.options.identity == Identity::Asked && shared.config.policy_name() == "stitched" {
            return;
        }
        let place = self.rng.usize(0..self.places.len());
        let device = self.places[place].device;
        if !self.end_stuck_capture(device) {
            return;
        }
        let line = self.sites[device].line;
        let _no_wait = shared.device_waits.read();
        let Ok(_no_park) = shared.untold.try_read() else { return };
        let stage = &shared.devices[device];
        // The uses are announced before the capture. The frees during the capture then must not
        // record events on the capturing stream.
        let lent = self.lend_to(place, line);
        shared.captures.begin();
        let modes = [CuCaptureMode::GLOBAL, CuCaptureMode::THREAD_LOCAL, CuCaptureMode::RELAXED];
        let mode = modes[self.rng.usize(0..modes.len())];
        let begun = {
            let _no_question = QUESTIONS.write();
            stage.begin_capture(line.handle, mode)
        };
        let recorded = begun.and_then(|()| stage.kernels.hold(line.handle, BUSY_US));
        for block in lent {
            if let Err(block) = self.free_block(block) {
                self.ready.push(block);
            }
        }
        self.go_on(place);
        // End the capture even if its start failed: a call that failed may have taken effect.
        let ended = stage.end_capture(line.handle);
        if ended.is_err() {
            self.sites[device].stuck = stage.cuda.is_capturing(line.id) != Ok(false);
        }
        if !self.sites[device].stuck {
            shared.captures.end();
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
            Err(error) => self.device_failed("a capture without a report to the allocator", error),
        }
    }

    /// Requests and frees a block, and makes another call, on a second stream during the capture.
    fn go_on(&mut self, place: usize) {
        let (shared, device, lane) = (self.shared, self.places[place].device, self.line(place));
        let index = shared.devices[device].index;
        let since = shared.captures.now();
        let bytes = sizes::pick(&mut self.rng, LARGEST);
        if let Some(block) = self.obtain(device, lane, bytes, true)
            && let Err(block) = self.free_block(block)
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
            self.failed_releasing("a call during a capture", &error, since);
        }
    }
}
