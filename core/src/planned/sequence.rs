//! The sequence of a plan: the next request, the planned address of its block, and whether the
//! bytes at this address are free.
//!
//! It takes a single comparison to decide whether the bytes are free. The sequence counts its
//! [`overdue`](Sequence::overdue) blocks: live blocks that were planned to be free by now. When the
//! cursor passes a request, the live blocks that were planned to end there become overdue
//! ([`ServedRequest::due`]). No block is overdue ⟹ the plan has every live block live now, so none
//! of them shares bytes with the next one.

use super::address_table::{AddressTable, PlannedAddress};
use super::deviations::Deviations;
use crate::tables::slot_table::NONE;
use crate::units::UNIT;
use alloc::vec::Vec;

/// A request of a sequence, as observed and planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SequenceStep {
    /// The size in bytes, a multiple of the [`UNIT`].
    pub size: u64,
    /// How many requests of the iteration come before the block is free again. It is greater than
    /// the request's own number, and at most the length of the sequence.
    pub until: u32,
    /// The offset in the segment, or `None` for a block that is not planned because it outlives the
    /// iteration.
    pub offset: Option<u64>,
}

/// A request in the form in which it is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedRequest {
    /// The size in bytes.
    pub size: u64,
    /// The slot of the planned address; `NONE` ⟺ the block is not planned because it outlives the
    /// iteration.
    pub slot: u32,
    /// How many requests come before the block is free again.
    pub until: u32,
    /// How many blocks are planned to end before the next request.
    pub ends: u32,
    /// How many of these blocks are still live, or not requested yet.
    pub due: u32,
}

impl ServedRequest {
    /// Returns whether a request for `bytes` matches: both sizes are the same when rounded up to
    /// units.
    #[inline(always)]
    pub(crate) fn matches(&self, bytes: u64) -> bool {
        // One comparison tests `size − UNIT < bytes ≤ size`: if `bytes` is larger than `size`, the
        // difference wraps to a large number.
        self.size.wrapping_sub(bytes) < UNIT
    }
}

/// A block placed by a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    /// The address.
    pub addr: u64,
    /// The size in bytes.
    pub size: u64,
}

/// The sequence of a plan, and the position of the program in it.
#[derive(Clone)]
pub(crate) struct Sequence {
    /// The requests in order, followed by a sentinel that matches no request.
    pub(crate) entries: Vec<ServedRequest>,
    /// The addresses at which blocks start.
    pub(crate) slots: AddressTable,
    /// The number of the next request.
    pub(crate) cursor: u32,
    /// How many live blocks were planned to be free by now.
    pub(crate) overdue: u32,
    /// The number of listed blocks: those for which the heap has an entry.
    pub(crate) listed: u32,
    /// The deviations so far.
    pub(crate) deviations: Deviations,
}

impl Sequence {
    /// Creates the sequence of a segment at `base`. The steps must have been verified.
    pub(crate) fn new(base: u64, steps: &[SequenceStep]) -> Self {
        let mut addresses: Vec<u64> = steps.iter().filter_map(|step| Some(base + step.offset?)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let slots = AddressTable::new(&addresses);
        // The sentinel has the size `u64::MAX`, so `matches` is false for every request, and the
        // cursor may be after the last request without a test.
        let last = SequenceStep { size: u64::MAX, until: steps.len() as u32 + 1, offset: None };
        let mut entries: Vec<ServedRequest> = steps
            .iter()
            .chain([&last])
            .map(|&SequenceStep { size, until, offset }| {
                let slot = offset.and_then(|offset| slots.number(base + offset)).unwrap_or(NONE);
                ServedRequest { size, slot, until, ends: 0, due: 0 }
            })
            .collect();
        for step in steps.iter().filter(|step| step.offset.is_some()) {
            let last = &mut entries[step.until as usize - 1];
            (last.ends, last.due) = (last.ends + 1, last.due + 1);
        }
        Self { entries, slots, cursor: 0, overdue: 0, listed: 0, deviations: Deviations::default() }
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32 - 1
    }

    /// Serves the next request of the sequence, if no block is overdue. This is the fast path of
    /// the planned policy.
    #[inline(always)]
    pub(crate) fn next(&mut self, bytes: u64) -> Option<Placement> {
        let entry = self.entries.get(self.cursor as usize)?;
        if !entry.matches(bytes) || self.overdue > 0 {
            return None;
        }
        // An unplanned request has the slot `NONE`, which is out of bounds.
        let slot = self.slots.get_mut(entry.slot)?;
        debug_assert!(slot.size == 0, "a block there would be overdue");
        (slot.size, slot.requested, slot.until) = (entry.size, bytes, entry.until);
        // `overdue` was 0, so an assignment has the same effect as an addition.
        self.overdue = entry.due;
        self.cursor += 1;
        Some(Placement { addr: slot.addr, size: entry.size })
    }

    /// Returns the address at which [`next`](Self::next) would place a request.
    pub(crate) fn peek(&self, bytes: u64) -> Option<u64> {
        let next = self.entries.get(self.cursor as usize)?;
        if next.matches(bytes) && self.overdue == 0 {
            return self.slots.addr(next.slot);
        }
        // Off the sequence, the answer depends on searches that change the state, so use a copy.
        self.clone().next_deviating(bytes).map(|handed| handed.addr)
    }

    /// Frees the unlisted block that starts at exactly `addr`. If `requested` is given, this only
    /// happens if it is the requested size. Returns the block and the requested size, or `None` if
    /// there is no such block.
    #[inline(always)]
    pub(crate) fn free(&mut self, addr: u64, requested: Option<u64>) -> Option<(Placement, u64)> {
        let slot = self.slots.get_at_mut(addr)?;
        let PlannedAddress { size, requested: actual, until, .. } = *slot;
        if !slot.is_unlisted() || requested.is_some_and(|requested| requested != actual) {
            return None;
        }
        slot.size = 0;
        self.end(until);
        Some((Placement { addr, size }, actual))
    }

    /// Returns the unlisted block that contains `addr`, with the requested size.
    pub(crate) fn unlisted_at(&self, addr: u64) -> Option<(Placement, u64)> {
        // Most callers pass the first byte, which takes one probe of the table. Only an address
        // inside a block needs the walk over all blocks.
        if let Some(slot) = self.slots.get_at(addr).filter(|slot| slot.is_unlisted()) {
            return Some((Placement { addr, size: slot.size }, slot.requested));
        }
        self.unlisted().find(|(block, _)| (block.addr..block.addr + block.size).contains(&addr))
    }

    /// Counts a block that was planned to end before request `until` as ended: it was freed, or
    /// never created.
    #[inline(always)]
    pub(crate) fn end(&mut self, until: u32) {
        // The cursor has passed the planned end, so the block was counted as overdue.
        if until <= self.cursor {
            self.overdue -= 1;
        } else if let Some(last) = self.entries.get_mut(until as usize - 1) {
            last.due -= 1;
        }
    }

    /// Lists the block that contains `addr`: from now on the heap has an entry for the block. The
    /// bytes remain occupied. Returns the block and the requested size, or `None` if there is no
    /// unlisted block at `addr`.
    pub(crate) fn list(&mut self, addr: u64) -> Option<(Placement, u64)> {
        let listed = self.unlisted_at(addr)?;
        self.slots.get_at_mut(listed.0.addr)?.list();
        self.listed += 1;
        Some(listed)
    }

    /// Ends the listed block that starts at `addr`, so its bytes are free.
    pub(crate) fn end_listed(&mut self, addr: u64) {
        if let Some(slot) = self.slots.get_at_mut(addr).filter(|slot| slot.is_listed()) {
            let until = slot.until;
            slot.size = 0;
            self.listed -= 1;
            self.end(until);
        }
    }

    /// Iterates over the unlisted blocks, with their requested sizes.
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = (Placement, u64)> {
        let held = self.slots.all().filter(|(_, slot)| slot.is_unlisted());
        held.map(|(_, slot)| (Placement { addr: slot.addr, size: slot.size }, slot.requested))
    }

    /// Returns the live blocks, listed and unlisted, by address.
    pub(crate) fn live(&self) -> Vec<Placement> {
        let live = self.slots.all().filter(|(_, slot)| slot.size > 0);
        let mut live: Vec<_> = live.map(|(_, slot)| Placement { addr: slot.addr, size: slot.size }).collect();
        live.sort_unstable_by_key(|block| block.addr);
        live
    }

    /// Ends the sequence: no request matches any more. The live blocks are still freed one by one.
    pub(crate) fn retire(&mut self) {
        self.begin_at(0);
        // The sentinel stays. No block is due at it: each is overdue.
        self.entries.drain(..self.entries.len() - 1);
        self.entries.shrink_to_fit();
    }

    /// Starts the sequence again, at request `cursor`. Every live block becomes overdue.
    pub(crate) fn begin_at(&mut self, cursor: u32) {
        self.deviations.passed += u64::from(self.cursor - self.deviations.began);
        self.overdue = 0;
        for slot in self.slots.all_mut().filter(|slot| slot.size > 0) {
            // 0 is at most every cursor, so `end` will count the block as overdue.
            slot.until = 0;
            self.overdue += 1;
        }
        for entry in &mut self.entries {
            entry.due = entry.ends;
        }
        (self.cursor, self.deviations.began) = (cursor, cursor);
        self.deviations.clear_skipped();
        // Requests before `cursor` are not made in this pass. If their blocks were planned to live
        // beyond it, they count as ended.
        for number in 0..cursor as usize {
            let ServedRequest { until, slot, .. } = self.entries[number];
            if slot != NONE && until > cursor {
                self.end(until);
            }
        }
    }

    /// Checks every invariant, for tests.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.live().windows(2).any(|pair| pair[1].addr < pair[0].addr + pair[0].size) {
            return Err("two blocks of a plan share bytes");
        }
        let count = |is: &dyn Fn(&PlannedAddress) -> bool| {
            self.slots.all().filter(|(_, slot)| slot.size > 0 && is(slot)).count() as u32
        };
        if count(&PlannedAddress::is_listed) != self.listed {
            return Err("the count of a plan's listed blocks is wrong");
        }
        if count(&|slot| slot.until <= self.cursor) == self.overdue {
            Ok(())
        } else {
            Err("the count of a plan's overdue blocks is wrong")
        }
    }
}
