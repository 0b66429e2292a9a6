//! Pins, extents and descriptors of pages, and pages that move to the host.

use super::Worker;
use super::block::Block;
use super::graphs::Graph;
use crate::abi;
use crate::finding;
use crate::permitted::Situation;
use crate::places::Rest;
use crate::world::add;
use cachalot::c::abi::{CACHALOT_COLD, CACHALOT_EXTENT_SEGMENT, CACHALOT_HOT, cachalot_advice, cachalot_extent};
use cachalot::c::status::CACHALOT_OK;

/// Greatest number of a thread's pins.
const MOST_PINS: usize = 6;

/// A pin, whose block may be freed.
#[derive(Debug)]
pub(crate) struct Pin {
    address: u64,
    extents: Vec<cachalot_extent>,
}

impl Worker {
    /// Pins a block.
    pub(crate) fn pin(&mut self) {
        let Some(index) = self.any_block().filter(|_| self.pins.len() < MOST_PINS) else { return };
        let (address, domain) = (self.blocks[index].address, &self.blocks[index].domain);
        let mut situation = self.situation_of_device();
        if domain.rest() != Rest::Awake || self.world.case.threads > 1 {
            situation |= Situation::PARKED;
        }
        let reply = self.world.allocator.pin(abi::pointer(address));
        self.say(|| format!("pin {address:#x}: {}", reply.status));
        if !reply.judge(situation) {
            return;
        }
        add(&self.world.tally.pins);
        let extents = self.extents(index, situation);
        self.export(address, &extents);
        self.pins.push(Pin { address, extents });
    }

    /// Returns the extents of a block, which must cover the block and be mapped.
    pub(crate) fn extents(&self, index: usize, situation: Situation) -> Vec<cachalot_extent> {
        let (block, allocator) = (&self.blocks[index], self.world.allocator);
        let at = abi::pointer(block.address);
        let mut count = 0;
        let counted = allocator.extents(at, std::ptr::null_mut(), &mut count);
        if counted.status_in(situation) != CACHALOT_OK {
            return Vec::new();
        }
        let mut extents = vec![abi::NO_EXTENT; count];
        if allocator.extents(at, extents.as_mut_ptr(), &mut count).status_in(situation) != CACHALOT_OK {
            return Vec::new();
        }
        let mut end = 0;
        for extent in &extents {
            let inside = extent.memory_offset + extent.bytes <= extent.memory_bytes;
            if extent.offset != end || extent.bytes == 0 || !inside {
                finding::report("extents", &format!("{block:?}: {extents:?}"));
            }
            end += extent.bytes;
            let ordinary = extent.flags & CACHALOT_EXTENT_SEGMENT != 0;
            let awake = block.domain.rest() == Rest::Awake && self.world.case.threads == 1;
            if !ordinary && awake && !self.world.is_mapped(block.address + extent.offset, extent.bytes) {
                finding::report("hooks", &format!("{block:?}: on_map did not name {extent:?}"));
            }
        }
        if end < block.bytes as u64 {
            finding::report("extents", &format!("{block:?} is longer than {extents:?}"));
        }
        extents
    }

    /// Exports a page of pinned memory as a descriptor, and closes the descriptor.
    fn export(&self, address: u64, extents: &[cachalot_extent]) {
        let Some(first) = extents.first() else { return };
        let ordinary = first.flags & CACHALOT_EXTENT_SEGMENT != 0;
        let mut descriptor = -1;
        let reply = self.world.allocator.export_fd(abi::pointer(address + first.offset), &mut descriptor);
        // Pages of the host are not exported.
        let stays = ordinary || self.world.case.spills();
        let situation = if stays { Situation::ORDINARY } else { Situation::NONE };
        if reply.judge(self.situation_of_device() | situation) {
            // SAFETY: the descriptor is new and the thread's own.
            unsafe { libc::close(descriptor) };
        }
    }

    /// Moves a large block, or one of a graph's memory, to the host or back. Address and contents
    /// stay.
    pub(crate) fn advise(&mut self) {
        let advice = if self.rng.bool() { CACHALOT_COLD } else { CACHALOT_HOT };
        let of_graph = self.rng.u8(..4) == 0;
        // Only whole pages move.
        let chosen = [(); 8].map(|()| self.any_block());
        let outputs = self.graphs.iter().flat_map(Graph::outputs).filter(|_| of_graph);
        let largest = chosen.into_iter().flatten().map(|index| &self.blocks[index]).chain(outputs);
        if let Some(block) = largest.max_by_key(|block| block.bytes) {
            self.give_advice(block, advice);
        }
    }

    /// Moves a block to the host or back.
    fn give_advice(&self, block: &Block, advice: cachalot_advice) {
        // Held, so that no thread parks the block.
        let Some(_awake) = block.domain.awake() else { return };
        self.world.gone(block.address);
        let mut moved = 0;
        let reply = self.world.allocator.advise(abi::pointer(block.address), advice, &mut moved);
        self.world.born(block.address, block.bytes, &block.domain);
        self.say(|| format!("advice {advice} for {:#x}: {} {moved:#x}", block.address, reply.status));
        // Without `spill`, no block is cold.
        if reply.judge(self.situation_of_device() | Situation::ORDINARY) && moved > 0 {
            add(&self.world.tally.moved);
        }
    }

    /// Undoes a pin, chosen at random.
    pub(crate) fn unpin(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.pins.len());
        let pin = self.pins.swap_remove(index);
        self.undo(&pin);
    }

    /// Undoes a pin.
    fn undo(&self, pin: &Pin) {
        self.say(|| format!("unpin {:#x} of {} extents", pin.address, pin.extents.len()));
        self.world.allocator.unpin(abi::pointer(pin.address)).judge(self.situation_of_device());
    }

    /// Undoes every pin of the thread.
    pub(crate) fn unpin_all(&mut self) {
        for pin in std::mem::take(&mut self.pins) {
            self.undo(&pin);
        }
    }
}
