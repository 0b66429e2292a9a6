//! MegEngine's best fit: what an allocator would do that meets the buffers in the order of time, the smallest free block first.
//! O(n log n).

use super::events::{self, Event};
use super::problem::align_up;
use super::{Algorithm, Chains, Plan, Problem, Watch};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

/// `StaticMemAllocBestFit` of MegEngine (2022). With several alignments in a problem, everything is aligned to the coarsest.
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

/// The offset of each chain.
fn offsets(chains: &Chains, events: &[Event]) -> Vec<u64> {
    let members = chains.members();
    let alignment = chains.all().iter().map(|chain| chain.alignment).max().unwrap_or(1);
    let mut free = Free { alignment, ..Free::default() };
    let mut places = vec![0; members.len()];
    for event in events {
        match *event {
            Event::Free(member) => free.give_back(places[member as usize], members[member as usize].size),
            Event::Take(member) => places[member as usize] = free.take(members[member as usize].size),
            Event::Overwrite(member) => {
                let (own, target) = (&members[member as usize], &members[member as usize - 1]);
                let place = places[member as usize - 1];
                free.give_back(place, target.size);
                places[member as usize] = place + own.offset - target.offset;
                free.carve(places[member as usize], own.size);
            }
        }
    }
    chains.all().iter().map(|chain| places[chain.range().start]).collect()
}

/// The free bytes.
#[derive(Default)]
struct Free {
    /// Every free block's end by its address. No two touch.
    by_address: BTreeMap<u64, u64>,
    /// The free blocks by the bytes from their first aligned address on, and that address; and their own. Those with no such
    /// byte are not here.
    by_size: BTreeSet<(u64, u64, u64)>,
    /// Nothing was ever taken from here on; aligned.
    top: u64,
    alignment: u64,
}

impl Free {
    /// The address of `size` bytes: in the smallest free block that has them, else at the top.
    fn take(&mut self, size: u64) -> u64 {
        let fit = self.by_size.range((size, 0, 0)..).next().copied();
        if let Some((_, address, _)) = fit {
            self.carve(address, size);
            return address;
        }
        let address = self.top;
        self.top = align_up(address + size, self.alignment);
        self.give_back(address + size, self.top - address - size);
        address
    }

    /// Makes bytes free.
    fn give_back(&mut self, address: u64, size: u64) {
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

    /// Takes free bytes away.
    fn carve(&mut self, address: u64, size: u64) {
        let Some((&low, &high)) = self.by_address.range(..=address).next_back() else {
            return;
        };
        self.remove(low, high);
        self.insert(low, address);
        self.insert(address + size, high);
    }

    fn key(&self, low: u64, high: u64) -> Option<(u64, u64, u64)> {
        let aligned = align_up(low, self.alignment);
        (aligned < high).then(|| (high - aligned, aligned, low))
    }

    fn insert(&mut self, low: u64, high: u64) {
        if low < high {
            self.by_address.insert(low, high);
            self.by_size.extend(self.key(low, high));
        }
    }

    fn remove(&mut self, low: u64, high: u64) {
        self.by_address.remove(&low);
        if let Some(key) = self.key(low, high) {
            self.by_size.remove(&key);
        }
    }
}
