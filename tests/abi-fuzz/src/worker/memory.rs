//! Requests, frees and uses of blocks.

use super::Worker;
use super::block::Block;
use crate::abi;
use crate::finding;
use crate::history;
use crate::permitted::Situation;
use crate::places::{Domain, Rest, Stream};
use crate::world::add;
use cachalot::c::abi::cachalot_block;
use cachalot::c::status::CACHALOT_OK;
use std::ptr::null_mut;
use std::sync::Arc;

/// Greatest number of a thread's blocks.
const MOST_BLOCKS: usize = 80;

impl Worker {
    /// Returns a random size, mostly small.
    pub(crate) fn any_size(&mut self) -> usize {
        let rng = &mut self.rng;
        let most = match rng.u8(..100) {
            0..35 => 4 << 10,
            35..60 => 256 << 10,
            60..75 => 2 << 20,
            75..92 => 8 << 20,
            92..98 => 24 << 20,
            _ => 64 << 20,
        };
        let most = most.min((self.world.case.memory / 3) as usize);
        let bytes = rng.usize(1..=most);
        // Sizes return, as in programs.
        if rng.bool() { bytes.next_power_of_two() } else { bytes }
    }

    /// Requests a block of `domain` with a live stream. A refusal must be permitted.
    pub(crate) fn request(
        &mut self,
        bytes: usize,
        stream: &Arc<Stream>,
        domain: &Arc<Domain>,
        situation: Situation,
    ) -> Option<Block> {
        let _alive = stream.alive()?;
        // Other threads park and wake during requests, unless that is left out.
        let calm = self.world.case.leaves_out("request_while_busy");
        let _calm = calm.then(|| domain.lock());
        if calm && domain.rest() == Rest::Busy {
            return None;
        }
        let mut situation = self.situation() | situation;
        if domain.rest() != Rest::Awake || self.world.case.threads > 1 {
            situation |= Situation::PARKED;
        }
        let seen = domain.changes();
        let mut address = null_mut();
        self.enter(stream.device);
        let reply = self.world.allocator.malloc(stream.device as i32, bytes, abi::stream(stream.handle), &mut address);
        add(&self.world.tally.mallocs);
        self.say(|| format!("malloc {bytes:#x} on {:#x}: {} {address:?}", stream.handle, reply.status));
        if !reply.judge(situation) {
            add(&self.world.tally.refused);
            self.say(abi::last_error);
            return None;
        }
        let address = address.addr() as u64;
        if (address == 0) != (bytes == 0) || !address.is_multiple_of(256) {
            finding::report("address", &format!("malloc of {bytes} returns {address:#x}"));
        }
        if bytes == 0 {
            return None;
        }
        history::note(address, bytes as u64, || format!("malloc on {:#x} in {}", stream.handle, domain.name));
        self.world.born(address, bytes, domain);
        Some(Block::new(address, bytes, stream, domain, seen))
    }

    /// Requests a block of the default pool, and mostly writes to the block.
    pub(crate) fn malloc(&mut self) {
        while self.blocks.len() >= MOST_BLOCKS || self.is_over_budget() {
            self.free();
        }
        let bytes = if self.rng.u8(..100) == 0 { 0 } else { self.any_size() };
        let stream = self.any_stream();
        let domain = Arc::clone(&stream.domain);
        let Some(mut block) = self.request(bytes, &stream, &domain, Situation::NONE) else { return };
        if self.rng.u8(..10) > 0 {
            self.touch(&mut block, &stream, true);
        }
        self.blocks.push(block);
    }

    /// Returns whether the thread holds as much memory as its part of the devices.
    pub(crate) fn is_over_budget(&self) -> bool {
        let held: usize = self.blocks.iter().map(|block| block.bytes).sum();
        let case = &self.world.case;
        let percent = match (case.spills(), case.tight) {
            (true, _) => 140,
            (false, true) => 90,
            (false, false) => 10,
        };
        !self.blocks.is_empty() && held as u64 > case.memory / 100 * percent / u64::from(case.threads)
    }

    /// Frees a block, mostly after a check.
    pub(crate) fn free(&mut self) {
        let Some(index) = self.any_block() else { return };
        let mut block = self.blocks.swap_remove(index);
        self.check_before_free(&mut block);
        self.give_up(block, false);
    }

    /// Frees a block with its size.
    pub(crate) fn free_sized(&mut self) {
        let Some(index) = self.any_block() else { return };
        let mut block = self.blocks.swap_remove(index);
        self.check_before_free(&mut block);
        self.give_up(block, true);
    }

    /// Checks a block in most cases, on the block's stream if possible.
    fn check_before_free(&mut self, block: &mut Block) {
        if self.rng.u8(..8) > 0 {
            let stream = self.stream_for(block);
            self.touch(block, &stream, false);
        }
    }

    /// Frees a block. After a failure, the thread keeps the block.
    pub(crate) fn give_up(&mut self, block: Block, sized: bool) {
        let at = abi::pointer(block.address);
        self.world.gone(block.address);
        self.say(|| format!("free {:#x}+{:#x} of {:#x}", block.address, block.bytes, block.stream.handle));
        let allocator = self.world.allocator;
        // At number 0 all work is done, so this is another name of `free`.
        let reply = match (sized, block.bytes % 8) {
            (true, _) => allocator.free_sized(at, block.bytes),
            (false, 0) => allocator.free_at(at, 0),
            (false, _) => allocator.free(at),
        };
        if !reply.judge(self.situation()) {
            self.world.born(block.address, block.bytes, &block.domain);
            self.blocks.push(block);
        }
    }

    /// Writes to a block, on the block's stream if possible.
    pub(crate) fn write(&mut self) {
        let Some(index) = self.any_block() else { return };
        let mut block = self.blocks.swap_remove(index);
        let stream = self.stream_for(&block);
        self.touch(&mut block, &stream, true);
        self.blocks.push(block);
    }

    /// Checks a block, on the block's stream if possible.
    pub(crate) fn check(&mut self) {
        let Some(index) = self.any_block() else { return };
        let mut block = self.blocks.swap_remove(index);
        let stream = self.stream_for(&block);
        self.touch(&mut block, &stream, false);
        self.blocks.push(block);
    }

    /// Writes to or checks a block on any stream of the device.
    pub(crate) fn use_elsewhere(&mut self) {
        let Some(index) = self.any_block() else { return };
        let mut block = self.blocks.swap_remove(index);
        let stream = self.any_stream_of(block.stream.device);
        let write = self.rng.bool();
        self.touch(&mut block, &stream, write);
        self.blocks.push(block);
    }

    /// Gives a block up to any thread.
    pub(crate) fn offer(&mut self) {
        let Some(index) = self.any_block() else { return };
        let mut offered = self.world.offered.lock();
        if offered.len() < MOST_BLOCKS {
            offered.push(self.blocks.swap_remove(index));
        }
    }

    /// Takes a block given up by a thread, and frees the block at times.
    pub(crate) fn take(&mut self) {
        let mut offered = self.world.offered.lock();
        if offered.is_empty() {
            return;
        }
        let index = self.rng.usize(..offered.len());
        let mut block = offered.swap_remove(index);
        drop(offered);
        if self.rng.bool() {
            self.check_before_free(&mut block);
            self.give_up(block, false);
        } else {
            self.blocks.push(block);
        }
    }

    /// Compares the library's description of a block with the request.
    pub(crate) fn describe(&mut self) {
        let Some(index) = self.any_block() else { return };
        let inside = self.rng.usize(..self.blocks[index].bytes) as u64;
        let block = &self.blocks[index];
        let mut found = abi::blank::<cachalot_block>();
        let reply = self.world.allocator.base_of(abi::pointer(block.address + inside), &mut found);
        if reply.status_in(self.situation()) != CACHALOT_OK {
            return;
        }
        let mut length = 0;
        let at = abi::pointer(block.address + inside);
        let reply = self.world.allocator.explain_address(at, std::ptr::null_mut(), 0, &mut length);
        if reply.status_in(self.situation()) == CACHALOT_OK && length == 0 {
            finding::report("explain_address", &format!("{block:?} is explained by nothing"));
        }
        let segment = found.segment_base.addr() as u64;
        let end = segment + found.segment_bytes as u64;
        let fits = found.base.addr() as u64 == block.address
            && found.requested_bytes == block.bytes
            && found.bytes >= block.bytes
            && found.device as usize == block.stream.device
            && segment <= block.address
            && block.address + found.bytes as u64 <= end;
        if !fits {
            finding::report("base_of", &format!("{block:?} is described as {found:?}"));
        }
    }
}
