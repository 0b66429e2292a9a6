//! MegEngine's best fit: serves the buffers in the order of time, as an allocator would. Each
//! buffer takes the smallest free block that is large enough. O(n log n).

use super::events::{self, Event};
use super::first_fit::PATIENCE;
use super::problem::align_up;
use super::{Algorithm, Chains, Plan, Problem, Watch};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

/// Best fit in the order of time: `StaticMemAllocBestFit` of MegEngine (2022). In a problem with
/// several alignments, every buffer gets the coarsest one.
pub struct BestFit;

impl Algorithm for BestFit {
    fn name(&self) -> &'static str {
        "best-fit"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        events::best(&chains, watch, offsets)
    }
}

/// Computes the offset of each chain by replaying the events on a free list, or returns `None` if
/// `watch` stopped this.
fn offsets(chains: &Chains, events: &[Event], watch: &dyn Watch) -> Option<Vec<u64>> {
    let members = chains.members();
    let alignment = chains.all().iter().map(|chain| chain.alignment).max().unwrap_or(1);
    let mut free = Free { alignment, ..Free::default() };
    let mut places = vec![0; members.len()];
    for (number, event) in events.iter().enumerate() {
        if number.is_multiple_of(PATIENCE) && watch.stop() {
            return None;
        }
        match *event {
            Event::Free(member) => free.release(places[member as usize], members[member as usize].size),
            Event::Allocate(member) => places[member as usize] = free.allocate(members[member as usize].size),
            Event::Overwrite(member) => {
                let (own, target) = (&members[member as usize], &members[member as usize - 1]);
                // This frees the whole target and then takes the writer's bytes out again, so that
                // the rest merges with its free neighbours.
                let place = places[member as usize - 1];
                free.release(place, target.size);
                places[member as usize] = place + own.offset - target.offset;
                free.occupy(places[member as usize], own.size);
            }
        }
    }
    // The first member of a chain has offset 0 inside the chain.
    Some(chains.all().iter().map(|chain| places[chain.range().start]).collect())
}

/// The free bytes of an address space without an end.
#[derive(Default)]
struct Free {
    /// The end of each free block, by address. Two free blocks never touch.
    by_address: BTreeMap<u64, u64>,
    /// The free blocks by usable size: the bytes from the first aligned address on, then the first
    /// aligned address, then the address of the block. Contains only blocks with a usable byte.
    by_size: BTreeSet<(u64, u64, u64)>,
    /// The end of all bytes that were ever used; a multiple of `alignment`.
    top: u64,
    /// The alignment of every allocated address: the coarsest alignment of the problem.
    alignment: u64,
}

impl Free {
    /// Allocates `size` bytes in the smallest free block with enough usable bytes, or at the top if
    /// there is none.
    fn allocate(&mut self, size: u64) -> u64 {
        // The smallest usable size comes first, and among blocks of the same size the lowest
        // address.
        let fit = self.by_size.range((size, 0, 0)..).next().copied();
        if let Some((_, address, _)) = fit {
            self.occupy(address, size);
            return address;
        }
        let address = self.top;
        self.top = align_up(address + size, self.alignment);
        // The bytes up to the aligned top are free. They become usable when this block is freed and
        // both merge.
        self.release(address + size, self.top - address - size);
        address
    }

    /// Frees bytes and merges them with the free blocks on both sides.
    fn release(&mut self, address: u64, size: u64) {
        if size == 0 {
            return;
        }
        let (mut low, mut high) = (address, address + size);
        if let Some((&before, &end)) = self.by_address.range(..low).next_back()
            && end == low
        {
            self.remove(before, end);
            low = before;
        }
        if let Some(&end) = self.by_address.get(&high) {
            self.remove(high, end);
            high = end;
        }
        self.insert(low, high);
    }

    /// Marks free bytes as used. They are inside one free block, of which the parts below and above
    /// remain.
    fn occupy(&mut self, address: u64, size: u64) {
        let Some((&low, &high)) = self.by_address.range(..=address).next_back() else {
            return;
        };
        self.remove(low, high);
        self.insert(low, address);
        self.insert(address + size, high);
    }

    /// Returns the key of a free block in `by_size`, or `None` if the block has no usable byte.
    fn key(&self, low: u64, high: u64) -> Option<(u64, u64, u64)> {
        let aligned = align_up(low, self.alignment);
        (aligned < high).then(|| (high - aligned, aligned, low))
    }

    /// Adds a free block to both indexes. Does nothing for an empty range.
    fn insert(&mut self, low: u64, high: u64) {
        if low < high {
            self.by_address.insert(low, high);
            self.by_size.extend(self.key(low, high));
        }
    }

    /// Removes a free block from both indexes.
    fn remove(&mut self, low: u64, high: u64) {
        self.by_address.remove(&low);
        if let Some(key) = self.key(low, high) {
            self.by_size.remove(&key);
        }
    }
}
