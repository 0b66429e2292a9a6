//! End of a run: every block is checked and freed, and the allocator must still work.

use super::Worker;
use crate::emulated;
use crate::shared::Shared;
use crate::stage::Device;
use crate::verdict::Kind;
use cachalot_core::{MIB, Segments};

/// The largest segment for a request of [`PROOF`], in bytes.
const LARGEST_SEGMENT: u64 = 20 * MIB;
/// Sizes of the blocks requested and used on every lane after the faults.
const PROOF: [u64; 4] = [1, 512, 100_000, 3 * MIB / 2];

impl Worker {
    /// Ends the thread's part, after the last fault. Every thread reaches every barrier, on every
    /// path.
    pub(super) fn end(&mut self) {
        let shared = self.shared;
        if shared.barrier.wait().is_leader() {
            shared.expect_no_faults();
            if shared.options.faults.is_some() {
                emulated::clear_plan();
            }
            // Blocks between two threads go to the leader, which frees them.
            let left = std::mem::take(&mut *shared.exchange.lock());
            for (place, block) in left {
                self.held[block.device] += block.bytes;
                self.places[place].filled.push(block);
            }
        }
        shared.barrier.wait();
        if shared.options.faults.is_some() {
            // A failed pop may have left a context on the thread's stack.
            Device::unwind(shared.devices[0].cuda.driver());
            self.enter_context();
        }
        // End captures first: few calls succeed while a stream captures.
        let captures = !shared.is_stopped() && !self.end_captures();
        self.end_route();
        self.restore_caching();
        if !shared.is_stopped() {
            self.finish_queued();
            if captures || !self.graphs.is_empty() {
                shared.verdict.report(Kind::Leak, "a graph or a capture cannot be ended".to_owned());
            }
            // Finish twice: `free_all` reads blocks of finished work, and queues checks of its own.
            self.free_all();
            self.finish_queued();
        }
        if shared.barrier.wait().is_leader() && !shared.is_stopped() {
            self.undo_settings();
            self.end_ranges();
            self.end_tenants();
            self.prove_alive();
            self.audit();
        }
        shared.barrier.wait();
    }

    /// Checks and frees all blocks of the thread.
    fn free_all(&mut self) {
        for place in 0..self.places.len() {
            self.fill(place);
            let blocks = std::mem::take(&mut self.places[place].filled);
            let mut used = self.use_on(place, blocks, false);
            self.ready.append(&mut used);
        }
        for block in std::mem::take(&mut self.ready) {
            if let Err(block) = self.free_block(block) {
                self.ready.push(block);
            }
        }
    }

    /// Checks that every lane can request, write, check and free blocks.
    fn prove_alive(&mut self) {
        let shared = self.shared;
        for place in 0..self.places.len() {
            let (device, line) = (self.places[place].device, self.line(place));
            for bytes in PROOF {
                match self.obtain(device, line, bytes, true) {
                    Some(block) => self.places[place].fresh.push(block),
                    None if self.is_exhausted(device) => {}
                    None => shared.verdict.report(Kind::Refused, format!("{bytes} bytes were refused at the end")),
                }
            }
        }
        self.free_all();
        self.finish_queued();
    }

    /// Returns whether faults have exhausted the device's memory, or the limit, which counts what
    /// was lost. The final check of the bytes accounts for the loss.
    fn is_exhausted(&self, device: usize) -> bool {
        let stage = &self.shared.devices[device];
        let lost = self.shared.subject.stats(stage.index).map_or(0, |stats| stats.leaked_bytes());
        self.shared.options.faults.is_some()
            && (stage.limit.is_some_and(|limit| limit < lost + LARGEST_SEGMENT)
                || stage.cuda.memory_info().is_ok_and(|memory| memory.free < LARGEST_SEGMENT))
    }
}

/// Checks the allocator after a lost context. A call that needs the device must fail without a
/// driver call, and the invariants must hold. All other calls still succeed, such as a request
/// served from the cache.
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
        // Both calls may succeed: without any segment or event, neither needs the device.
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
