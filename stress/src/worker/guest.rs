//! Guests: streams created, used and destroyed by a thread within a round. Blocks of a guest are
//! live or pending at the guest's end, and a guest uses blocks of other streams. The driver reuses
//! the guest's handle for the next stream.
//!
//! ```text
//! guest   ─ obtain ─ fill ─┬─ free at home             before its end
//!                          └─▶ a lane ─ verify ─┬─ free   pending at its end
//!                                               └─ held   beyond its end, freed by any thread
//! a lane  ─ filled ─▶ guest ─ verify ─┬─ free             pending at its end, on the guest
//!                                     └─ held             freed when the guest is gone
//! ```

use super::Worker;
use crate::block::Block;
use crate::options::Identity;
use crate::sizes;
use crate::stage::{Device, Line};
use crate::verdict::Kind;
use cachalot_core::{DeviceResult, MIB};
use cachalot_cuda::driver::types::CuStream;
use cachalot_kernels::Findings;
use std::ops::Range;

/// Number of blocks requested by a guest.
const BLOCKS: Range<u32> = 1..6;
/// Largest block of a guest. Several guests must fit in addition to all other blocks.
const LARGEST: u64 = 2 * MIB;
/// Upper bound for the number of a lane's blocks used by a guest.
const VISITED: usize = 4;

impl Worker {
    /// Creates a stream, uses the stream, and destroys the stream.
    pub(super) fn run_guest_stream(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let stage = &self.shared.devices[self.places[place].device];
        let line = match stage.make_line() {
            Ok(line) => line,
            Err(error) => return self.device_failed("stream_create", error),
        };
        self.use_guest(place, line);
        self.end_line(stage, line);
    }

    /// Destroys a stream, with a report where the run reports. The stream's work may be incomplete.
    pub(super) fn end_line(&mut self, stage: &Device, line: Line) {
        if self.shared.options.identity == Identity::Reported && !self.report_end(stage, line) {
            // The allocator does not know of the end, so the stream is not destroyed.
            return;
        }
        if let Err(error) = stage.destroy_stream(line.handle) {
            self.device_failed("stream_destroy", error);
        }
    }

    /// Runs a thread with work on the thread's own default stream, and waits for the thread.
    pub(super) fn run_guest_thread(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let stage = &self.shared.devices[self.places[place].device];
        let stay = || {
            self.enter_context();
            match stage.cuda.stream_id(CuStream::PER_THREAD) {
                Ok(id) => {
                    let line = Line { handle: CuStream::PER_THREAD, id };
                    self.use_guest(place, line);
                    self.report_end(stage, line);
                }
                Err(error) => self.device_failed("stream_id", error),
            }
        };
        // `join` also waits for the thread's destructors; the end of a scope does not. A panic ends
        // the process.
        let _joined = std::thread::scope(|scope| scope.spawn(stay).join());
    }

    /// Uses a guest beside a lane. The guest's work may be incomplete at the return.
    fn use_guest(&mut self, place: usize, guest: Line) {
        self.counts.guests += 1;
        let device = self.places[place].device;
        let stage = &self.shared.devices[device];
        let largest = self.shared.options.max_bytes(stage.total_bytes).min(LARGEST);
        let mut own = Vec::new();
        for _ in 0..self.rng.u32(BLOCKS) {
            let bytes = sizes::pick(&mut self.rng, largest);
            own.extend(self.obtain(device, guest, bytes, true));
        }
        let most = self.shared.options.hold_us;
        if most > 0 && self.rng.bool() {
            let microseconds = self.rng.u64(1..=most);
            if let Err(error) = stage.kernels.hold(guest.handle, microseconds) {
                self.device_failed("hold", error);
            }
        }
        for block in &mut own {
            match stage.kernels.fill(guest.handle, block.region(), block.life) {
                Ok(()) => block.written = true,
                Err(error) => self.device_failed("fill", error),
            }
        }
        let visited = self.lend_to(place, guest);
        self.free_some(visited);
        // No other stream has used these blocks, so their free needs no event.
        let at_home = own.split_off(self.rng.usize(0..=own.len()));
        self.free_some(at_home);
        self.hand_to_lane(place, guest, own);
    }

    /// Makes another stream of the device check some blocks of a lane. Returns the blocks, which
    /// the caller must free.
    pub(super) fn lend_to(&mut self, place: usize, guest: Line) -> Vec<Block> {
        let (device, lane) = (self.places[place].device, self.line(place));
        let stage = &self.shared.devices[device];
        // A place may contain blocks of other devices. The check below launches kernels of the
        // guest's device only.
        let (ours, others): (Vec<_>, Vec<_>) =
            self.take_some(place, VISITED).into_iter().partition(|block| block.device == device);
        self.places[place].filled.extend(others);
        if ours.is_empty() {
            return ours;
        }
        if let Err(error) = self.put_behind(device, guest, lane) {
            self.places[place].filled.extend(ours);
            self.device_failed("order", error);
            return Vec::new();
        }
        let (mut used, left): (Vec<_>, Vec<_>) = ours.into_iter().partition(|block| self.announce(guest, block));
        self.places[place].filled.extend(left);
        let result = self.sites[device].guests;
        for block in used.iter().filter(|block| block.written) {
            if let Err(error) = stage.kernels.verify(guest.handle, block.region(), block.life, result) {
                self.device_failed("verify", error);
            }
        }
        // One event after all checks serves every block.
        if let Some(visit) = self.end_visit(stage, guest) {
            used.iter_mut().for_each(|block| block.add_visit(&visit));
        }
        self.counts.visits += used.len() as u64;
        used
    }

    /// Makes a lane check a guest's own blocks. Frees some blocks, and leaves the rest to the lane.
    fn hand_to_lane(&mut self, place: usize, guest: Line, blocks: Vec<Block>) {
        let (device, lane) = (self.places[place].device, self.line(place));
        if let Err(error) = self.put_behind(device, lane, guest) {
            self.device_failed("order", error);
            // Only the guest has used the blocks, so they may be freed.
            self.ready.extend(blocks);
            return;
        }
        let mut used = self.use_on(place, blocks, false);
        let kept = used.split_off(self.rng.usize(0..=used.len()));
        self.places[place].filled.extend(kept);
        for block in used {
            if let Err(block) = self.free_block(block) {
                self.ready.push(block);
            }
        }
    }

    /// Frees some blocks at once, and queues the rest for a later free.
    fn free_some(&mut self, mut blocks: Vec<Block>) {
        self.ready.extend(blocks.split_off(self.rng.usize(0..=blocks.len())));
        for block in blocks {
            if let Err(block) = self.free_block(block) {
                self.ready.push(block);
            }
        }
    }

    /// Orders all later work of `later` after the present work of `earlier`.
    pub(super) fn put_behind(&self, device: usize, later: Line, earlier: Line) -> DeviceResult<()> {
        let (stage, event) = (&self.shared.devices[device], self.order[device]);
        stage.record(event, earlier.handle)?;
        stage.wait_for(later.handle, event)
    }

    /// Reports the coming destruction of a stream, whose work may be incomplete. Returns whether
    /// the report succeeded.
    pub(super) fn report_end(&mut self, stage: &Device, line: Line) -> bool {
        let number = match stage.cuda.stream_destroyed(line.handle) {
            Ok(number) => number,
            Err(error) => {
                self.device_failed("stream_destroyed", error);
                return false;
            }
        };
        if number != line.id {
            let text = format!("stream {:?} was reported, and {number:?} retired", line.id);
            self.shared.verdict.report(Kind::Books, text);
        }
        // Every device may have heaps of the stream, or blocks that wait for the stream.
        for other in self.shared.devices {
            if let Err(error) = self.shared.subject.stream_destroyed(other.index, number) {
                self.failed("stream_destroyed", &error);
            }
        }
        true
    }

    /// Reports the findings of guests so far.
    pub(super) fn read_guests(&mut self) {
        for device in 0..self.sites.len() {
            let (stage, site) = (&self.shared.devices[device], &self.sites[device]);
            match stage.read(site.reader, site.guests, 1) {
                Ok(found) if found[0] == Findings::NONE => {}
                Ok(found) => {
                    let text = format!("{:?} on a stream that came and went", found[0]);
                    self.shared.verdict.report(Kind::Content, text);
                }
                Err(error) => self.device_failed("read", error),
            }
        }
    }
}
