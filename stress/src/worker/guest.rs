//! Streams that come and go: one thread makes a stream, uses it and destroys it, while blocks of it are held and pending, and
//! while it uses blocks of others. The driver gives its handle to the next one.
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
use crate::visit::Visit;
use cachalot_core::{DeviceResult, MIB};
use cachalot_cuda::driver::types::CuStream;
use cachalot_kernels::Findings;
use std::ops::Range;

/// Blocks that a guest obtains.
const BLOCKS: Range<u32> = 1..6;
/// Guests use small blocks, so that several fit beside everything else.
const LARGEST: u64 = 2 * MIB;
/// Blocks of a lane that a guest uses, at most.
const VISITED: usize = 4;

impl Worker {
    /// A created stream comes and goes.
    pub(super) fn host_stream(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let stage = &self.shared.devices[self.places[place].device];
        let line = match stage.make_line() {
            Ok(line) => line,
            Err(error) => return self.device_failed("stream_create", error),
        };
        self.entertain(place, line);
        if self.shared.options.identity == Identity::Reported && !self.report_end(stage, line) {
            // The allocator does not know that the stream goes, so it stays.
            return;
        }
        if let Err(error) = stage.destroy_stream(line.handle) {
            self.device_failed("stream_destroy", error);
        }
    }

    /// A thread that uses its own default stream comes and goes.
    pub(super) fn host_thread(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let stage = &self.shared.devices[self.places[place].device];
        let stay = || {
            self.enter_context();
            match stage.cuda.stream_id(CuStream::PER_THREAD) {
                Ok(id) => {
                    let line = Line { handle: CuStream::PER_THREAD, id };
                    self.entertain(place, line);
                    self.report_end(stage, line);
                }
                Err(error) => self.device_failed("stream_id", error),
            }
        };
        // A scope by itself does not wait for what happens when a thread ends. A panic ends the process.
        let _joined = std::thread::scope(|scope| scope.spawn(stay).join());
    }

    /// What a guest does beside a lane. Its work may not be done when this returns.
    fn entertain(&mut self, place: usize, guest: Line) {
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
        let at_home = own.split_off(self.rng.usize(0..=own.len()));
        self.free_some(at_home);
        self.hand_to_lane(place, guest, own);
    }

    /// Lets another stream of the same device check some blocks of a lane. They are to be freed then.
    pub(super) fn lend_to(&mut self, place: usize, guest: Line) -> Vec<Block> {
        let (device, lane) = (self.places[place].device, self.line(place));
        let stage = &self.shared.devices[device];
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
        match Visit::mark(stage, guest.handle, guest.id) {
            Ok(visit) => used.iter_mut().for_each(|block| block.add_visit(&visit)),
            Err(error) => self.device_failed("visit", error),
        }
        self.counts.visits += used.len() as u64;
        used
    }

    /// Lets a lane check a guest's own blocks. Some are freed, the others are the lane's from then on.
    fn hand_to_lane(&mut self, place: usize, guest: Line, blocks: Vec<Block>) {
        let (device, lane) = (self.places[place].device, self.line(place));
        if let Err(error) = self.put_behind(device, lane, guest) {
            self.device_failed("order", error);
            // Nothing but their own stream has used them.
            self.ready.extend(blocks);
            return;
        }
        let mut used = self.use_on(place, blocks, false);
        let kept = used.split_off(self.rng.usize(0..=used.len()));
        self.places[place].filled.extend(kept);
        for block in used {
            if let Err(block) = self.give_back(block) {
                self.ready.push(block);
            }
        }
    }

    /// Frees some blocks at once and the others when their turn comes.
    fn free_some(&mut self, mut blocks: Vec<Block>) {
        self.ready.extend(blocks.split_off(self.rng.usize(0..=blocks.len())));
        for block in blocks {
            if let Err(block) = self.give_back(block) {
                self.ready.push(block);
            }
        }
    }

    /// Puts what is queued on `later` from here on behind what is queued on `earlier`.
    fn put_behind(&self, device: usize, later: Line, earlier: Line) -> DeviceResult<()> {
        let (stage, event) = (&self.shared.devices[device], self.order[device]);
        stage.record(event, earlier.handle)?;
        stage.wait_for(later.handle, event)
    }

    /// Reports a stream whose work may not be done. Whether it was.
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
        for other in self.shared.devices {
            if let Err(error) = self.shared.subject.stream_destroyed(other.index, number) {
                self.failed("stream_destroyed", &error);
            }
        }
        true
    }

    /// Reads what guests have found so far.
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
