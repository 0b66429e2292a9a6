//! Transitions of blocks between states: filled, checked, used on other streams, passed to other
//! threads.

use super::{Place, Worker};
use crate::block::Block;
use crate::stage::{Device, Line};
use crate::visit::Visit;
use cachalot_core::StreamId;
use std::mem;
use std::sync::Arc;

/// Upper bound for the number of blocks on the way to another thread.
const EXCHANGED: usize = 1024;

impl Worker {
    /// Writes every fresh block of a place.
    pub(super) fn fill(&mut self, place: usize) {
        let line = self.line(place);
        let Place { fresh, checker, .. } = &mut self.places[place];
        let mut blocks = mem::take(fresh);
        if blocks.is_empty() {
            return;
        }
        let rows: Vec<_> = blocks.iter().map(Block::row).collect();
        let filled = checker.fill(line.handle, &rows);
        for block in &mut blocks {
            block.written = filled.is_ok();
        }
        self.places[place].filled.append(&mut blocks);
        if let Err(error) = filled {
            self.device_failed("fill", error);
        }
    }

    /// Checks some blocks of a place, and makes the blocks ready for the free.
    pub(super) fn retire(&mut self) {
        if self.places.iter().all(|place| place.filled.is_empty()) {
            // Only fresh blocks are left: fill the blocks, so that they can be checked and freed.
            (0..self.places.len()).for_each(|place| self.fill(place));
        }
        let begin = self.rng.usize(0..self.places.len());
        let places = self.places.len();
        let Some(place) =
            (0..places).map(|step| (begin + step) % places).find(|&at| !self.places[at].filled.is_empty())
        else {
            return;
        };
        let most = self.shared.options.batch as usize;
        let blocks = self.take_some(place, most);
        let mut checked = self.use_on(place, blocks, false);
        self.ready.append(&mut checked);
    }

    /// Takes from 1 to `most` random blocks of a place.
    pub(super) fn take_some(&mut self, place: usize, most: usize) -> Vec<Block> {
        let filled = &mut self.places[place].filled;
        let count = if filled.is_empty() { 0 } else { self.rng.usize(1..=most.min(filled.len())) };
        (0..count).map(|_| filled.swap_remove(self.rng.usize(0..filled.len()))).collect()
    }

    /// Checks blocks in the order of a place's stream, and rewrites the blocks if `rewrite`. The
    /// contents must be known in the order of the place's stream. Returns the used blocks. Blocks
    /// whose use could not be announced stay at the place, unchecked.
    pub(super) fn use_on(&mut self, place: usize, blocks: Vec<Block>, rewrite: bool) -> Vec<Block> {
        let line = self.line(place);
        // An unannounced use would be a fault of the run, not of the allocator.
        let (mut used, left): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| self.announce(line, block));
        self.places[place].filled.extend(left);
        // After a failed fill the contents are unknown, and not checked.
        let rows: Vec<_> = used.iter().filter(|block| block.written).map(Block::row).collect();
        let verified = self.places[place].checker.verify(line.handle, &rows, &self.shared.verdict);
        match verified {
            Ok(checked) => {
                self.counts.verified_blocks += checked.blocks;
                self.counts.verified_bytes += checked.bytes;
            }
            Err(error) => self.device_failed("verify", error),
        }
        if rewrite {
            self.rewrite(place, line, &mut used);
        }
        self.mark_visit(place, line, &mut used);
        used
    }

    /// Writes blocks with their next patterns, in the order of a place's stream.
    fn rewrite(&mut self, place: usize, line: Line, blocks: &mut [Block]) {
        for block in blocks.iter_mut() {
            block.life.generation += 1;
        }
        let rows: Vec<_> = blocks.iter().map(Block::row).collect();
        let filled = self.places[place].checker.fill(line.handle, &rows);
        for block in blocks {
            block.written = filled.is_ok();
        }
        if let Err(error) = filled {
            self.device_failed("fill", error);
        }
    }

    /// Announces the use of a block by a stream to the allocator. Returns false if the call failed:
    /// the stream must not use the block.
    pub(super) fn announce(&mut self, line: Line, block: &Block) -> bool {
        if !block.is_foreign_to(line) {
            return true;
        }
        match self.shared.subject.record_stream(block.ptr, line.id) {
            Ok(()) => true,
            Err(error) => {
                self.failed("record_stream", &error);
                false
            }
        }
    }

    /// Records the end of a stream's visit to all foreign blocks among `blocks`.
    fn mark_visit(&mut self, place: usize, line: Line, blocks: &mut [Block]) {
        if !blocks.iter().any(|block| block.is_foreign_to(line)) {
            return;
        }
        let device = &self.shared.devices[self.places[place].device];
        if let Some(visit) = self.end_visit(device, line) {
            blocks.iter_mut().filter(|block| block.is_foreign_to(line)).for_each(|block| block.add_visit(&visit));
        }
    }

    /// Records the end of a stream's queued work with announced blocks, and tells the allocator's
    /// device of the work: the stream may end without a report.
    pub(super) fn end_visit(&mut self, device: &'static Device, line: Line) -> Option<Arc<Visit>> {
        let visit = Visit::mark(device, line.handle, line.id);
        // Told last, so that the visit has ended when the allocator's event is complete.
        if let Err(error) = device.cuda.stream_in_use(line.handle) {
            // A free would wait for earlier work only.
            let waited = device.synchronize(line.handle);
            self.device_failed("stream_in_use", waited.err().unwrap_or(error));
        }
        visit.inspect_err(|error| self.device_failed("visit", *error)).ok()
    }

    /// Moves some blocks to another stream, which waits for the present stream, checks the blocks,
    /// and perhaps rewrites the blocks.
    pub(super) fn visit(&mut self) {
        let from = self.rng.usize(0..self.places.len());
        let to = self.rng.usize(0..self.places.len());
        let devices = self.shared.devices;
        let (there, here) = (self.places[from].device, self.places[to].device);
        if from == to || self.places[from].filled.is_empty() {
            return;
        }
        let most = (self.shared.options.batch as usize / 2).max(1);
        let mut blocks = self.take_some(from, most);
        // The default stream has one number on all devices. For a block of another device, the
        // number would mean the stream of the block's own device.
        let default = self.line(to).id == StreamId::DEFAULT;
        let reached = |block: &Block| block.device == here || !default && devices[here].reaches.contains(&block.device);
        let unreached: Vec<_> = blocks.extract_if(.., |block| !reached(block)).collect();
        self.places[from].filled.extend(unreached);
        let (before, after) = (self.line(from), self.line(to));
        let event = self.order[there];
        // Order the visit after the stream that wrote the blocks last.
        let ordered =
            devices[there].record(event, before.handle).and_then(|()| devices[here].wait_for(after.handle, event));
        if let Err(error) = ordered {
            self.places[from].filled.append(&mut blocks);
            return self.device_failed("order", error);
        }
        if self.rng.bool() {
            // On a delayed stream, a premature reuse of the blocks becomes visible.
            self.hold(to);
        }
        self.counts.visits += blocks.len() as u64;
        let rewrite = self.rng.bool();
        let mut used = self.use_on_visit(from, to, blocks, rewrite);
        self.places[to].filled.append(&mut used);
    }

    /// Uses blocks with [`use_on`](Self::use_on). Blocks whose use could not be announced return to
    /// the place `from`.
    fn use_on_visit(&mut self, from: usize, to: usize, blocks: Vec<Block>, rewrite: bool) -> Vec<Block> {
        // `use_on` leaves unannounced blocks at the place `to`. With an empty list there, exactly
        // these blocks are found and moved back.
        let stayed = mem::take(&mut self.places[to].filled);
        let used = self.use_on(to, blocks, rewrite);
        let mut back = mem::replace(&mut self.places[to].filled, stayed);
        self.places[from].filled.append(&mut back);
        used
    }

    /// Keeps a stream busy for a while, to delay queued work.
    pub(super) fn hold(&mut self, place: usize) {
        let most = self.shared.options.hold_us;
        if most == 0 {
            return;
        }
        let line = self.line(place);
        let microseconds = self.rng.u64(1..=most);
        let kernels = &self.shared.devices[self.places[place].device].kernels;
        if let Err(error) = kernels.hold(line.handle, microseconds) {
            self.device_failed("hold", error);
        }
    }

    /// Passes blocks to other threads, or takes a passed block.
    pub(super) fn exchange(&mut self) {
        let shared = self.shared;
        if self.rng.bool() {
            let handed = {
                let mut exchange = shared.exchange.lock();
                let count = exchange.len();
                if count == 0 { None } else { Some(exchange.swap_remove(self.rng.usize(0..count))) }
            };
            let Some((place, block)) = handed else { return };
            self.held[block.device] += block.bytes;
            self.counts.exchanged += 1;
            self.places[place].filled.push(block);
            return;
        }
        let place = self.rng.usize(0..self.places.len());
        for block in self.take_some(place, 4) {
            let mut exchange = shared.exchange.lock();
            if exchange.len() >= EXCHANGED {
                // The exchange is full: the block stays with the thread.
                drop(exchange);
                self.places[place].filled.push(block);
                continue;
            }
            self.held[block.device] -= block.bytes;
            exchange.push((place, block));
        }
    }
}
