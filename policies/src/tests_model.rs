//! Drives a sub-allocator as a heap does, next to a naive account of the expected sub-blocks, and
//! checks the tiling of all segments after every step.

use cachalot_core::suballoc::CapacityError;
use cachalot_core::suballoc::{SubAllocator, SubBlock};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// A naive account, which finds the expected sub-blocks by a search through everything.
pub(super) trait Naive {
    fn add(&mut self, segment: u32, base: u64, bytes: u64, size: u64);
    fn remove(&mut self, segment: u32);
    /// Returns the address and the segment of the sub-block to allocate.
    fn take(&mut self, size: u64) -> Option<(u64, u32)>;
    fn give(&mut self, sub_block: SubBlock, size: u64);
}

/// Compares the results of a sub-allocator with the free sub-blocks reported by `visit_free`.
pub(super) trait Told: SubAllocator {
    fn take_told(&mut self, size: u64) -> Result<Option<SubBlock>, CapacityError> {
        let Some((sub_block, free)) = self.allocate(size)? else { return Ok(None) };
        assert_eq!(free.now, self.free_sub_blocks(sub_block.segment));
        Ok(Some(sub_block))
    }

    fn give_told(&mut self, sub_block: SubBlock, size: u64) {
        let before = self.free_sub_blocks(sub_block.segment);
        let free = self.free(sub_block, size);
        let visited = self.free_sub_blocks(sub_block.segment);
        assert_eq!(free.before, before);
        assert!(free.now == visited || visited == 1, "{} sub-blocks, not {visited}", free.now);
    }

    fn free_sub_blocks(&self, segment: u32) -> u32 {
        let mut sub_blocks = 0;
        self.visit_free(segment, &mut |_, _| sub_blocks += 1);
        sub_blocks
    }
}

impl<C: SubAllocator> Told for C {}

/// A step of the program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Requests a number of bytes.
    Take(u64),
    /// Frees a live sub-block.
    Give(usize),
    /// Removes a wholly free segment.
    Remove(usize),
}

/// Returns steps with requests that are drawn from `bytes`.
pub(super) fn steps(bytes: impl Strategy<Value = u64> + 'static, most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => bytes.prop_map(Step::Take),
        5 => any::<usize>().prop_map(Step::Give),
        1 => any::<usize>().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..most)
}

/// The heap that the sub-allocator serves.
pub(super) struct World<'a, C> {
    pub suballocator: C,
    /// The rounded size of a request, or `None` if the sub-allocator does not serve the request.
    round: fn(u64) -> Option<u64>,
    naive: Option<&'a mut dyn Naive>,
    /// Segments by number: base and bytes.
    segments: BTreeMap<u32, (u64, u64)>,
    pub taken: Vec<(SubBlock, u64)>,
    /// Numbers without a segment, the next number last, and the count of all numbers.
    numbers: (Vec<u32>, u32),
    /// The greatest count of numbers.
    most: u32,
    /// The number of requests that were refused because there was no room.
    pub refused: u32,
}

impl<'a, C: SubAllocator> World<'a, C> {
    pub(super) fn new(
        suballocator: C,
        round: fn(u64) -> Option<u64>,
        naive: Option<&'a mut dyn Naive>,
        most: u32,
    ) -> Self {
        let (segments, taken, numbers) = (BTreeMap::new(), Vec::new(), (Vec::new(), 0));
        Self { suballocator, round, naive, segments, taken, numbers, most, refused: 0 }
    }

    /// Returns the number for another segment, from a table that doubles.
    fn number(&mut self) -> Option<u32> {
        let (vacant, all) = &mut self.numbers;
        if vacant.is_empty() {
            let more = (*all * 2).clamp(1, self.most);
            vacant.extend(*all..more);
            *all = more;
        }
        vacant.pop()
    }

    /// Returns an address without a segment. The first addresses descend, so the order of addresses
    /// is not that of numbers.
    fn base(&self) -> u64 {
        let mut bases = (1..=4096_u64).rev().map(|place| (place << 40) + place * 512);
        bases.find(|&base| self.segments.values().all(|&(held, _)| held != base)).unwrap()
    }

    pub(super) fn run(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for &step in steps {
            match step {
                Step::Take(bytes) => self.take(bytes)?,
                Step::Give(_) if self.taken.is_empty() => {}
                Step::Give(which) => self.give(which % self.taken.len()),
                Step::Remove(which) => self.remove(which),
            }
            self.check()?;
        }
        while let Some(last) = self.taken.len().checked_sub(1) {
            self.give(last);
            self.check()?;
        }
        while !self.segments.is_empty() {
            self.remove(0);
            self.check()?;
        }
        Ok(())
    }

    fn take(&mut self, bytes: u64) -> Result<(), TestCaseError> {
        let Some(size) = (self.round)(bytes) else { return Ok(()) };
        prop_assert!(size >= bytes && size.is_multiple_of(512));
        prop_assert_eq!((self.round)(size), Some(size));
        let segment_bytes = self.suballocator.segment_bytes(size);
        prop_assert!(segment_bytes >= size);
        let Ok(mut sub_block) = self.take_as_told(size)? else {
            self.refused += 1;
            return Ok(());
        };
        if sub_block.is_none() {
            if !self.unseen(|suballocator| suballocator.make_room(segment_bytes, size))? {
                self.refused += 1;
                return Ok(());
            }
            let Some(segment) = self.number() else { return Ok(()) };
            let base = self.base();
            self.suballocator.add_segment(segment, base, segment_bytes, size);
            if let Some(naive) = &mut self.naive {
                naive.add(segment, base, segment_bytes, size);
            }
            self.segments.insert(segment, (base, segment_bytes));
            sub_block = self.take_as_told(size)?.unwrap_or_default();
            prop_assert!(sub_block.is_some(), "a new segment has a sub_block of the size that it was obtained for");
        }
        self.taken.extend(sub_block.map(|sub_block| (sub_block, size)));
        Ok(())
    }

    /// Makes room, or fails to do so. Neither changes the free sub-blocks.
    fn unseen(&mut self, make_room: impl FnOnce(&mut C) -> bool) -> Result<bool, TestCaseError> {
        let before = self.free();
        let room = make_room(&mut self.suballocator);
        prop_assert_eq!(self.free(), before);
        Ok(room)
    }

    fn take_as_told(&mut self, size: u64) -> Result<Result<Option<SubBlock>, CapacityError>, TestCaseError> {
        let before = self.free();
        let predicted = self.suballocator.peek(size);
        let taken = self.suballocator.take_told(size);
        if self.most == u32::MAX {
            prop_assert_eq!(
                Ok(predicted),
                taken.map(|sub_block| Some(sub_block?.addr)),
                "the sub_block that was predicted"
            );
        }
        if !matches!(taken, Ok(Some(_))) {
            prop_assert_eq!(self.free(), before, "what is not served cannot be seen");
        }
        if let (Ok(taken), Some(naive)) = (taken, &mut self.naive) {
            let place = taken.map(|sub_block| (sub_block.addr, sub_block.segment));
            prop_assert_eq!(place, naive.take(size), "a sub-block of {}", size);
        }
        Ok(taken)
    }

    fn give(&mut self, which: usize) {
        let (sub_block, size) = self.taken.swap_remove(which);
        self.suballocator.give_told(sub_block, size);
        if let Some(naive) = &mut self.naive {
            naive.give(sub_block, size);
        }
    }

    fn remove(&mut self, which: usize) {
        let in_use = |segment| self.taken.iter().any(|(sub_block, _)| sub_block.segment == segment);
        let free: Vec<u32> = self.segments.keys().copied().filter(|&segment| !in_use(segment)).collect();
        let Some(&segment) = free.get(which % free.len().max(1)) else { return };
        self.suballocator.remove_segment(segment);
        if let Some(naive) = &mut self.naive {
            naive.remove(segment);
        }
        self.segments.remove(&segment);
        self.numbers.0.push(segment);
    }

    /// Returns every free sub-block: its segment, address and length.
    pub(super) fn free(&self) -> Vec<(u32, u64, u64)> {
        let mut all = Vec::new();
        for &segment in self.segments.keys() {
            self.suballocator.visit_free(segment, &mut |addr, bytes| all.push((segment, addr, bytes)));
        }
        all
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.suballocator.check(), Ok(()));
        let all = self.free();
        for (&segment, &(base, bytes)) in &self.segments {
            let free: Vec<(u64, u64)> =
                all.iter().filter(|sub_block| sub_block.0 == segment).map(|&(_, addr, bytes)| (addr, bytes)).collect();
            prop_assert!(free.is_sorted());
            let taken = self.taken.iter().filter(|(sub_block, _)| sub_block.segment == segment);
            let mut tiles: Vec<(u64, u64)> = taken.map(|&(sub_block, size)| (sub_block.addr, size)).collect();
            if tiles.is_empty() {
                prop_assert_eq!(&free, &[(base, bytes)], "what is wholly free is whole");
            }
            tiles.extend(free);
            tiles.sort_unstable();
            let end = tiles.iter().try_fold(base, |at, &(addr, bytes)| (addr == at && bytes > 0).then_some(at + bytes));
            prop_assert_eq!(end, Some(base + bytes), "sub-blocks tile their segment");
        }
        Ok(())
    }
}
