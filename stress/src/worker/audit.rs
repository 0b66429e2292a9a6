//! Where the threads meet: everything is queued and read, nobody calls the allocator, and the books must agree.

use super::{Place, Worker};
use crate::options::Identity;
use crate::verdict::Kind;
use cachalot_core::BlockState;
use std::sync::atomic::Ordering;

impl Worker {
    /// Meets the other threads. One of them checks the books and puts another stream behind one lane.
    pub(super) fn meet(&mut self) {
        for place in 0..self.places.len() {
            self.fill(place);
        }
        self.settle();
        self.rounds += 1;
        if self.is_quiet() {
            self.end_tenancy();
            self.restore_caching();
        }
        let shared = self.shared;
        if shared.barrier.wait().is_leader() {
            self.audit();
            shared.captures.store(0, Ordering::Release);
            self.replace_stream();
            if self.is_quiet() {
                self.calm();
            }
            shared.decide();
        }
        shared.barrier.wait();
    }

    /// Waits for everything that this thread has under way, and reads what was found.
    pub(super) fn settle(&mut self) {
        self.settle_graphs();
        self.read_guests();
        for place in 0..self.places.len() {
            let line = self.line(place);
            let Place { checker, .. } = &mut self.places[place];
            if let Err(error) = checker.settle(line.handle, &self.shared.verdict) {
                self.device_failed("settle", error);
            }
        }
    }

    /// The allocator's books agree with themselves and with what the program holds.
    pub(super) fn audit(&mut self) {
        let (subject, verdict) = (&self.shared.subject, &self.shared.verdict);
        if let Err(broken) = subject.check_invariants() {
            verdict.report(Kind::Invariant, broken.to_owned());
        }
        let live = self.shared.live.load(Ordering::Acquire);
        let (mut counted, mut listed) = (0, 0_i64);
        for stage in self.shared.devices {
            match subject.stats(stage.index) {
                Ok(stats) => counted += stats.allocations().current,
                Err(error) => self.shared.refused("stats", &error),
            }
        }
        for segment in subject.snapshot() {
            let held = segment.blocks.iter().filter(|block| block.state == BlockState::ActiveAllocated);
            listed += held.count() as i64;
        }
        if (counted, listed) != (live, live) {
            let text = format!("{live} blocks are held; the statistics say {counted}, the snapshot lists {listed}");
            verdict.report(Kind::Books, text);
        }
        self.shared.shadow.prune();
    }

    /// Destroys the stream behind a lane and puts a new one there, to which the driver likes to give an old handle.
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
            // The old one stays; the new one is no use and no harm.
            return;
        }
        stage.lanes[lane].set(new);
        if let Err(error) = stage.destroy_stream(old.handle) {
            self.device_failed("stream_destroy", error);
        }
    }
}
