//! The end of a run: everything is checked and freed, and the allocator is shown to work.

use super::Worker;
use crate::emulated;
use crate::shared::Shared;
use crate::stage::Device;
use crate::verdict::Kind;
use cachalot_core::{DeviceMemory, MIB};

/// The most that is obtained from the device for any of [`PROOF`].
const LARGEST_SEGMENT: u64 = 20 * MIB;
/// Sizes of which one block each is had and used on every lane after faults.
const PROOF: [u64; 4] = [1, 512, 100_000, 3 * MIB / 2];

impl Worker {
    /// Ends this thread's part. The faults are over. Every thread comes to every barrier, whatever happens.
    pub(super) fn end(&mut self) {
        let shared = self.shared;
        if shared.barrier.wait().is_leader() {
            shared.expect_no_faults();
            if shared.options.faults.is_some() {
                emulated::clear_plan();
            }
            let left = std::mem::take(&mut *shared.exchange.lock());
            for (place, block) in left {
                self.held[block.device] += block.bytes;
                self.places[place].filled.push(block);
            }
        }
        shared.barrier.wait();
        if shared.options.faults.is_some() {
            Device::unwind(shared.devices[0].cuda.driver());
            self.enter_context();
        }
        // First: little else can be done while a stream captures.
        let captures = !shared.is_stopped() && !self.end_captures();
        self.end_tenancy();
        self.restore_caching();
        if !shared.is_stopped() {
            self.settle();
            if captures || !self.graphs.is_empty() {
                shared.verdict.report(Kind::Leak, "a graph or a capture cannot be ended".to_owned());
            }
            self.free_all();
            self.settle();
        }
        if shared.barrier.wait().is_leader() && !shared.is_stopped() {
            self.prove_alive();
            self.audit();
        }
        shared.barrier.wait();
    }

    /// Checks and frees everything that this thread holds.
    fn free_all(&mut self) {
        for place in 0..self.places.len() {
            self.fill(place);
            let blocks = std::mem::take(&mut self.places[place].filled);
            let mut used = self.use_on(place, blocks, false);
            self.ready.append(&mut used);
        }
        for block in std::mem::take(&mut self.ready) {
            if let Err(block) = self.give_back(block) {
                self.ready.push(block);
            }
        }
    }

    /// Every lane can be had blocks on, which can be written, checked and freed.
    fn prove_alive(&mut self) {
        let shared = self.shared;
        self.calm();
        for place in 0..self.places.len() {
            let (device, line) = (self.places[place].device, self.line(place));
            for bytes in PROOF {
                match self.obtain(device, line, bytes, true) {
                    Some(block) => self.places[place].fresh.push(block),
                    None if self.is_exhausted(device) => {}
                    None => shared.verdict.report(Kind::Refused, format!("{bytes} bytes cannot be had at the end")),
                }
            }
        }
        self.free_all();
        self.settle();
    }

    /// Whether faults took so much memory that there is none left. Whether all of it is accounted for is looked at last.
    fn is_exhausted(&self, device: usize) -> bool {
        let stage = &self.shared.devices[device];
        self.shared.options.faults.is_some()
            && stage.cuda.memory_info().is_ok_and(|memory| memory.free < LARGEST_SEGMENT)
    }
}

/// After a context was lost: what needs the device is refused without a driver call, and the books still agree. What
/// does not need it, a request that the cache serves among it, goes on.
pub(crate) fn check_lost(shared: &Shared) {
    let subject = &shared.subject;
    let before = emulated::all_calls();
    let mut lost = 0;
    for stage in shared.devices {
        if stage.cuda.health().is_ok() {
            continue;
        }
        lost += 1;
        if let Ok(block) = subject.malloc(stage.index, stage.total_bytes, stage.lanes[0].line().id) {
            shared.verdict.report(Kind::Accepted, format!("a whole device's memory in a lost context: {block}"));
        }
        // What there is to do at all needs the device, so whether these fail depends on what there is.
        let _nothing_to_do = subject.process_events(stage.index).and(subject.trim(stage.index, 0));
        let _nothing_to_do = subject.empty_cache(stage.index);
    }
    if lost == shared.devices.len() && emulated::all_calls() != before {
        shared.verdict.report(Kind::Unexpected, "driver calls in a lost context".to_owned());
    }
    if let Err(broken) = subject.check_invariants() {
        shared.verdict.report(Kind::Invariant, broken.to_owned());
    }
}
