//! The sequence of one lane: which request comes next, where its block lies, and whether the bytes there are free.
//!
//! That nothing is still there that should be gone is one comparison: the lane counts the blocks that are [`late`](Sequence::late).
//! When it comes by a request, those join them that end there and are not free yet ([`Entry::due`]). None is late ⟹ every block that
//! the program holds is one that the plan has alive now, and those share no bytes with the next.

use super::address_table::{HeapRef, Places};
use super::deviations::Deviations;
use crate::tables::slot_table::NONE;
use crate::units::UNIT;
use alloc::vec::Vec;

/// One request of a sequence, as it was observed and planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// Length in bytes, a multiple of the [`UNIT`].
    pub size: u64,
    /// After so many requests of the iteration it is free again; above its own number, at most the length of the sequence.
    pub until: u32,
    /// Where it lies in the segment; `None`: it outlives the iteration, and is not planned.
    pub offset: Option<u64>,
}

/// One request, ready to be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Length in bytes.
    pub size: u64,
    /// The number of its place; `NONE` ⟺ it outlives the iteration, and is not planned.
    pub place: u32,
    /// After so many requests it is free again.
    pub until: u32,
    /// How many blocks are free again before the next request, by the plan.
    pub ends: u32,
    /// How many of those are not free yet, or still to come.
    pub due: u32,
}

impl Entry {
    /// Whether it is this request that is served here: one of as many units.
    #[inline(always)]
    pub(crate) fn is_for(&self, bytes: u64) -> bool {
        self.size.wrapping_sub(bytes) < UNIT
    }
}

/// A block that was handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    pub addr: u64,
    pub size: u64,
}

/// Who has the block that begins at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// The lane, and it was asked for with so many bytes.
    Here(u64),
    /// A heap.
    Away,
    /// There is none.
    Nowhere,
}

#[derive(Clone)]
pub(crate) struct Sequence {
    /// In order; one behind the last that no request is for.
    pub(crate) entries: Vec<Entry>,
    pub(crate) places: Places,
    /// The next request.
    pub(crate) cursor: u32,
    /// How many blocks are still there whose time has passed.
    pub(crate) late: u32,
    /// Blocks that a heap cares for.
    pub(crate) away: u32,
    pub(crate) astray: Deviations,
}

impl Sequence {
    /// A sequence whose offsets count from `base`. The steps were verified.
    pub(crate) fn new(base: u64, steps: &[Step]) -> Self {
        let mut addresses: Vec<u64> = steps.iter().filter_map(|step| Some(base + step.offset?)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let places = Places::new(&addresses);
        let last = Step { size: u64::MAX, until: steps.len() as u32 + 1, offset: None };
        let mut entries: Vec<Entry> = steps
            .iter()
            .chain([&last])
            .map(|&Step { size, until, offset }| {
                let place = offset.and_then(|offset| places.number(base + offset)).unwrap_or(NONE);
                Entry { size, place, until, ends: 0, due: 0 }
            })
            .collect();
        for step in steps.iter().filter(|step| step.offset.is_some()) {
            let last = &mut entries[step.until as usize - 1];
            (last.ends, last.due) = (last.ends + 1, last.due + 1);
        }
        Self { entries, places, cursor: 0, late: 0, away: 0, astray: Deviations::default() }
    }

    /// How many requests it has.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32 - 1
    }

    /// Serves a request that is the next one, if all is as planned.
    #[inline(always)]
    pub(crate) fn next(&mut self, bytes: u64) -> Option<Placement> {
        let entry = self.entries.get(self.cursor as usize)?;
        if !entry.is_for(bytes) || self.late > 0 {
            return None;
        }
        let place = self.places.get(entry.place)?;
        debug_assert!(place.size == 0, "whatever lives there is late");
        (place.size, place.requested, place.until) = (entry.size, bytes, entry.until);
        self.late = entry.due;
        self.cursor += 1;
        Some(Placement { addr: place.addr, size: entry.size })
    }

    /// The address that a request would be served from, by [`next`](Self::next) or [`otherwise`](Self::otherwise).
    pub(crate) fn peek(&self, bytes: u64) -> Option<u64> {
        let next = self.entries.get(self.cursor as usize)?;
        if next.is_for(bytes) && self.late == 0 {
            return self.places.addr(next.place);
        }
        // What is not the next request changes what comes after it: a copy is asked.
        self.clone().otherwise(bytes).map(|handed| handed.addr)
    }

    /// The program gives up the block at exactly `addr`, if (where `requested` is given) it asked for so many bytes. Answers the
    /// block, and what it was asked for with; `None` if it is not held, or a heap cares for it.
    #[inline(always)]
    pub(crate) fn free(&mut self, addr: u64, requested: Option<u64>) -> Option<(Placement, u64)> {
        let place = self.places.at(addr)?;
        let HeapRef { size, requested: actual, until, .. } = *place;
        if size == 0 || place.is_away() || requested.is_some_and(|requested| requested != actual) {
            return None;
        }
        place.size = 0;
        self.end(until);
        Some((Placement { addr, size }, actual))
    }

    /// The block that begins at `addr`, with what was asked for, if the program holds it and no heap cares for it.
    pub(crate) fn here(&self, addr: u64) -> Option<(Placement, u64)> {
        let place = self.places.look(addr).filter(|place| place.size > 0 && !place.is_away())?;
        Some((Placement { addr, size: place.size }, place.requested))
    }

    /// Who has the block that begins at `addr`.
    pub(crate) fn held_at(&self, addr: u64) -> Held {
        match self.places.look(addr) {
            Some(place) if place.size > 0 && place.is_away() => Held::Away,
            Some(place) if place.size > 0 => Held::Here(place.requested),
            _ => Held::Nowhere,
        }
    }

    /// One that is planned to end before request `until` has ended, or never was there.
    #[inline(always)]
    pub(crate) fn end(&mut self, until: u32) {
        if until <= self.cursor {
            self.late -= 1;
        } else if let Some(last) = self.entries.get_mut(until as usize - 1) {
            last.due -= 1;
        }
    }

    /// A heap cares for the block at `addr` from here on; its bytes stay occupied. `None` if the program holds none there, or a heap
    /// does already.
    pub(crate) fn go_away(&mut self, addr: u64) -> Option<(Placement, u64)> {
        let place = self.places.at(addr).filter(|place| place.size > 0 && !place.is_away())?;
        let left = (Placement { addr, size: place.size }, place.requested);
        place.go_away();
        self.away += 1;
        Some(left)
    }

    /// The bytes of a block that a heap cared for are free.
    pub(crate) fn come_back(&mut self, addr: u64) {
        if let Some(place) = self.places.at(addr).filter(|place| place.size > 0 && place.is_away()) {
            let until = place.until;
            place.size = 0;
            self.away -= 1;
            self.end(until);
        }
    }

    /// The blocks that the program holds and no heap cares for, with what was asked for.
    pub(crate) fn held(&self) -> impl Iterator<Item = (Placement, u64)> {
        let held = self.places.all().filter(|(_, place)| place.size > 0 && !place.is_away());
        held.map(|(_, place)| (Placement { addr: place.addr, size: place.size }, place.requested))
    }

    /// The sequence begins anew at request `cursor`. What the program still holds is late from now on.
    pub(crate) fn begin_at(&mut self, cursor: u32) {
        self.astray.passed += u64::from(self.cursor - self.astray.began);
        self.late = 0;
        for place in self.places.all_mut().filter(|place| place.size > 0) {
            place.until = 0;
            self.late += 1;
        }
        for entry in &mut self.entries {
            entry.due = entry.ends;
        }
        (self.cursor, self.astray.began) = (cursor, cursor);
        self.astray.forget_missed();
        // What would have been handed out before, and lived on, never was there.
        for number in 0..cursor as usize {
            let Entry { until, place, .. } = self.entries[number];
            if place != NONE && until > cursor {
                self.end(until);
            }
        }
    }

    /// Checks every invariant, for tests: it compares all with all.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let held: Vec<&HeapRef> = self.places.all().map(|(_, place)| place).filter(|place| place.size > 0).collect();
        for (number, place) in held.iter().enumerate() {
            if held[..number].iter().any(|other| other.overlaps(place.addr, place.size)) {
                return Err("two blocks of a lane share bytes");
            }
        }
        if held.iter().filter(|place| place.is_away()).count() as u32 != self.away {
            return Err("a lane's blocks in a heap's care are not those that are counted");
        }
        let late = held.iter().filter(|place| place.until <= self.cursor).count() as u32;
        if late == self.late { Ok(()) } else { Err("a lane's late blocks are not those that are counted") }
    }
}
