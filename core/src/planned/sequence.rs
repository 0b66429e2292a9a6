//! The sequence of a lane: the next request, the planned address of the request's block, and
//! whether the bytes at the address are free.
//!
//! A single comparison decides whether the bytes are free. The lane counts its
//! [`overdue`](Sequence::overdue) blocks: live blocks planned to be free by now. When the cursor
//! passes a request, the live blocks planned to end at the request become overdue
//! ([`ServedRequest::due`]). No block is overdue ⟹ the plan has every live block live now, so no
//! live block shares bytes with the next.

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
    /// The number of requests of the iteration after which the block is free again. Greater than
    /// the request's own number, and at most the length of the sequence.
    pub until: u32,
    /// The offset in the segment; `None` for an unplanned block, which outlives the iteration.
    pub offset: Option<u64>,
}

/// A request in the form in which it is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedRequest {
    /// The size in bytes.
    pub size: u64,
    /// The slot of the planned address; `NONE` ⟺ the block outlives the iteration and is not
    /// planned.
    pub slot: u32,
    /// The number of requests after which the block is free again.
    pub until: u32,
    /// The number of blocks planned to end before the next request.
    pub ends: u32,
    /// The number of blocks in `ends` still live, or not requested yet.
    pub due: u32,
}

impl ServedRequest {
    /// Returns whether a request of `bytes` matches: the sizes are equal in units.
    #[inline(always)]
    pub(crate) fn matches(&self, bytes: u64) -> bool {
        // One comparison for `size − UNIT < bytes ≤ size`: a larger `bytes` wraps to a large
        // difference.
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

/// The owner of the block at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressOwner {
    /// The lane. The value is the requested size in bytes.
    Resident(u64),
    /// A heap: the lane has delegated the block.
    Delegated,
    /// No live block starts at the address.
    Nothing,
}

/// The sequence of a lane, with the position of the program in the sequence.
#[derive(Clone)]
pub(crate) struct Sequence {
    /// The requests in order, and behind them a sentinel matching no request.
    pub(crate) entries: Vec<ServedRequest>,
    /// The addresses at which blocks start.
    pub(crate) slots: AddressTable,
    /// The number of the next request.
    pub(crate) cursor: u32,
    /// The number of live blocks planned to be free by now.
    pub(crate) overdue: u32,
    /// The number of delegated blocks.
    pub(crate) delegated: u32,
    /// The deviations so far.
    pub(crate) deviations: Deviations,
}

impl Sequence {
    /// Creates the sequence of a segment at `base`. The steps have been verified.
    pub(crate) fn new(base: u64, steps: &[SequenceStep]) -> Self {
        let mut addresses: Vec<u64> = steps.iter().filter_map(|step| Some(base + step.offset?)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let slots = AddressTable::new(&addresses);
        // A sentinel of size `u64::MAX`: `matches` is false for every request, so that the cursor
        // may stand behind the last request without a test.
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
        Self { entries, slots, cursor: 0, overdue: 0, delegated: 0, deviations: Deviations::default() }
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32 - 1
    }

    /// Serves the next request of the sequence, if no block is overdue. Fast path of the planned
    /// policy.
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
        // `overdue` was 0, so this assignment stands for an addition.
        self.overdue = entry.due;
        self.cursor += 1;
        Some(Placement { addr: slot.addr, size: entry.size })
    }

    /// Returns the address for a request, as [`next`](Self::next) would place it.
    pub(crate) fn peek(&self, bytes: u64) -> Option<u64> {
        let next = self.entries.get(self.cursor as usize)?;
        if next.matches(bytes) && self.overdue == 0 {
            return self.slots.addr(next.slot);
        }
        // Off the sequence the answer depends on searches that change the state: use a copy.
        self.clone().next_deviating(bytes).map(|handed| handed.addr)
    }

    /// Frees the block at exactly `addr`; with `requested` given, only if the block was requested
    /// with `requested` bytes. Returns the block and the requested size. `None` if no block is live
    /// at `addr`, or the lane has delegated the block.
    #[inline(always)]
    pub(crate) fn free(&mut self, addr: u64, requested: Option<u64>) -> Option<(Placement, u64)> {
        let slot = self.slots.get_at_mut(addr)?;
        let PlannedAddress { size, requested: actual, until, .. } = *slot;
        if size == 0 || slot.is_delegated() || requested.is_some_and(|requested| requested != actual) {
            return None;
        }
        slot.size = 0;
        self.end(until);
        Some((Placement { addr, size }, actual))
    }

    /// Returns the live block at exactly `addr` with the requested size, unless the block is
    /// delegated.
    pub(crate) fn resident(&self, addr: u64) -> Option<(Placement, u64)> {
        let slot = self.slots.get_at(addr).filter(|slot| slot.size > 0 && !slot.is_delegated())?;
        Some((Placement { addr, size: slot.size }, slot.requested))
    }

    /// Returns the owner of the block at exactly `addr`.
    pub(crate) fn find(&self, addr: u64) -> AddressOwner {
        match self.slots.get_at(addr) {
            Some(slot) if slot.size > 0 && slot.is_delegated() => AddressOwner::Delegated,
            Some(slot) if slot.size > 0 => AddressOwner::Resident(slot.requested),
            _ => AddressOwner::Nothing,
        }
    }

    /// Counts as ended a block planned to end before request `until`. The block was freed, or never
    /// made.
    #[inline(always)]
    pub(crate) fn end(&mut self, until: u32) {
        // The cursor has passed the planned end, so the block was counted as overdue.
        if until <= self.cursor {
            self.overdue -= 1;
        } else if let Some(last) = self.entries.get_mut(until as usize - 1) {
            last.due -= 1;
        }
    }

    /// Delegates the block at `addr` to a heap. The bytes stay occupied. Returns the block and the
    /// requested size; `None` without a live block at `addr`, or if the block is delegated already.
    pub(crate) fn delegate(&mut self, addr: u64) -> Option<(Placement, u64)> {
        let slot = self.slots.get_at_mut(addr).filter(|slot| slot.size > 0 && !slot.is_delegated())?;
        let left = (Placement { addr, size: slot.size }, slot.requested);
        slot.delegate();
        self.delegated += 1;
        Some(left)
    }

    /// Ends a delegated block: its bytes are free.
    pub(crate) fn take_back(&mut self, addr: u64) {
        if let Some(slot) = self.slots.get_at_mut(addr).filter(|slot| slot.size > 0 && slot.is_delegated()) {
            let until = slot.until;
            slot.size = 0;
            self.delegated -= 1;
            self.end(until);
        }
    }

    /// Iterates over the live blocks, except delegated blocks, with their requested sizes.
    pub(crate) fn residents(&self) -> impl Iterator<Item = (Placement, u64)> {
        let held = self.slots.all().filter(|(_, slot)| slot.size > 0 && !slot.is_delegated());
        held.map(|(_, slot)| (Placement { addr: slot.addr, size: slot.size }, slot.requested))
    }

    /// Begins the sequence again, at request `cursor`. Every live block becomes overdue.
    pub(crate) fn begin_at(&mut self, cursor: u32) {
        self.deviations.passed += u64::from(self.cursor - self.deviations.began);
        self.overdue = 0;
        for slot in self.slots.all_mut().filter(|slot| slot.size > 0) {
            // 0 is at most every cursor: `end` will count the block as overdue.
            slot.until = 0;
            self.overdue += 1;
        }
        for entry in &mut self.entries {
            entry.due = entry.ends;
        }
        (self.cursor, self.deviations.began) = (cursor, cursor);
        self.deviations.clear_skipped();
        // Requests before `cursor` are not made in this pass. Those planned to live beyond it count
        // as ended.
        for number in 0..cursor as usize {
            let ServedRequest { until, slot, .. } = self.entries[number];
            if slot != NONE && until > cursor {
                self.end(until);
            }
        }
    }

    /// Checks every invariant, for tests. Compares all pairs of live blocks.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let held: Vec<&PlannedAddress> = self.slots.all().map(|(_, slot)| slot).filter(|slot| slot.size > 0).collect();
        for (number, slot) in held.iter().enumerate() {
            if held[..number].iter().any(|other| other.overlaps(slot.addr, slot.size)) {
                return Err("two blocks of a lane share bytes");
            }
        }
        if held.iter().filter(|slot| slot.is_delegated()).count() as u32 != self.delegated {
            return Err("the count of a lane's delegated blocks is wrong");
        }
        let overdue = held.iter().filter(|slot| slot.until <= self.cursor).count() as u32;
        if overdue == self.overdue { Ok(()) } else { Err("the count of a lane's overdue blocks is wrong") }
    }
}
