//! Audit between rounds: all work is complete, no thread calls the allocator, and the allocator's
//! counters must agree with the run.

use super::{Place, Worker};
use crate::options::Identity;
use crate::verdict::Kind;
use cachalot_core::BlockState;
use std::sync::atomic::Ordering;

impl Worker {
    /// Meets the other threads. One thread audits the allocator and replaces the stream of one
    /// lane.
    pub(super) fn meet(&mut self) {
        // Every block has contents from here on, so later checks cover every block.
        for place in 0..self.places.len() {
            self.fill(place);
        }
        self.finish_queued();
        self.rounds += 1;
        if self.is_quiet() {
            self.end_route();
            self.restore_caching();
        }
        let shared = self.shared;
        // The leader works alone between the two barriers, so no call changes the state during the
        // audit.
        if shared.barrier.wait().is_leader() {
            self.finish_tenants();
            self.audit();
            self.replace_stream();
            if self.is_quiet() {
                self.undo_settings();
            }
            shared.decide_end();
        }
        shared.barrier.wait();
    }

    /// Waits for all work queued by the thread, and reports the findings.
    pub(super) fn finish_queued(&mut self) {
        self.finish_graphs();
        self.read_guests();
        for place in 0..self.places.len() {
            let line = self.line(place);
            let Place { checker, .. } = &mut self.places[place];
            if let Err(error) = checker.finish(line.handle, &self.shared.verdict) {
                self.device_failed("finish", error);
            }
        }
    }

    /// Checks the allocator's invariants, and compares the counters with the run's live blocks.
    pub(super) fn audit(&mut self) {
        let (subject, verdict) = (&self.shared.subject, &self.shared.verdict);
        if let Err(broken) = subject.check_invariants() {
            verdict.report(Kind::Invariant, broken.to_owned());
        }
        let live = self.shared.live.load(Ordering::Acquire);
        let (mut counted, mut listed, mut spilled) = (0, 0_i64, 0);
        for stage in self.shared.devices {
            match subject.stats(stage.index).map(|view| view.totals()) {
                Ok(stats) => counted += stats.allocations().current,
                Err(error) => self.shared.refused("stats", &error),
            }
            spilled += subject.pages(stage.index).map_or(0, |pages| pages.stats().spilled);
        }
        self.shared.spilled_bytes.fetch_max(spilled, Ordering::AcqRel);
        for segment in subject.snapshot() {
            // The statistics and the snapshot are independent sources; both must match the run's
            // count.
            let held = segment.blocks.iter().filter(|block| block.state == BlockState::ActiveAllocated);
            listed += held.count() as i64;
        }
        // The statistics count each range as a block.
        let ranges = self.shared.ranges.lock().len() as i64;
        if (counted, listed) != (live + ranges, live) {
            let text = format!(
                "{live} blocks and {ranges} ranges are held; the statistics say {counted}, the snapshot lists {listed}"
            );
            verdict.report(Kind::Books, text);
        }
        self.shared.shadow.prune();
    }

    /// Replaces the stream of a lane. The driver tends to reuse the old handle for the new stream.
    fn replace_stream(&mut self) {
        let shared = self.shared;
        let device = self.rng.usize(0..shared.devices.len());
        let stage = &shared.devices[device];
        if stage.lanes.len() < 2 || shared.is_stopped() {
            return;
        }
        let lane = self.rng.usize(1..stage.lanes.len());
        let old = stage.lanes[lane].line();
        let made = stage.synchronize(old.handle).and_then(|()| stage.make_line());
        let new = match made {
            Ok(new) => new,
            Err(error) => return self.device_failed("stream_create", error),
        };
        if shared.options.identity == Identity::Reported && !self.report_end(stage, old) {
            // The old stream stays in use. The unused new stream does no harm.
            return;
        }
        stage.lanes[lane].set(new);
        if let Err(error) = stage.destroy_stream(old.handle) {
            self.device_failed("stream_destroy", error);
        }
    }
}
