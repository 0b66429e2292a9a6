//! What becomes of a request that is not the next one, or whose bytes are not free.

use super::deviations::{BEHIND, TRACE};
use super::sequence::{Entry, Placement, Sequence};
use crate::tables::slot_table::NONE;

/// How far ahead a single request is looked for: that many missing ones are noticed at once.
const NEAR: u32 = 2;

/// How far ahead two requests in a row are looked for. One alone may be there by chance, sizes are seldom unique.
const AHEAD: usize = 32;

/// The whole sequence is searched once for so many of its requests and one extra request: that costs each of those as much as
/// looking ahead.
const SHARE: u64 = 64;

impl Sequence {
    /// How many requests were served.
    pub(crate) fn served(&self) -> u64 {
        let passed = self.astray.passed + u64::from(self.cursor - self.astray.began);
        passed - self.astray.unserved + self.astray.counts.reordered
    }

    /// Serves a request that [`next`](Self::next) did not, or says that it is the fallback's.
    pub(crate) fn otherwise(&mut self, bytes: u64) -> Option<Placement> {
        if self.entries[self.cursor as usize].is_for(bytes) {
            return self.take(bytes);
        }
        if let Some(handed) = self.take_behind(bytes) {
            return Some(handed);
        }
        let near = (self.cursor + 1..self.len().min(self.cursor + 1 + NEAR))
            .find(|&number| self.entries[number as usize].is_for(bytes));
        if let Some(number) = near.or_else(|| self.find_trace(bytes)) {
            if number >= self.cursor {
                self.pass_to(number);
            } else {
                self.astray.counts.missing += u64::from(self.len() - self.cursor);
                self.begin_at(number);
            }
            return self.take(bytes);
        }
        self.astray.counts.extra += 1;
        None
    }

    /// The iteration ends, and the next begins.
    pub(crate) fn begin_anew(&mut self) {
        // Where nothing was requested nothing is missing.
        if self.cursor > 0 || self.astray.extras > 0 {
            self.astray.counts.missing += u64::from(self.len() - self.cursor);
        }
        self.begin_at(0);
        self.astray.extras = 0;
    }

    /// Serves the request at the cursor, if it is planned and its bytes are free.
    fn take(&mut self, bytes: u64) -> Option<Placement> {
        let Entry { place, until, .. } = self.entries[self.cursor as usize];
        if place == NONE {
            self.astray.counts.lasting += 1;
        } else if self.is_free(self.cursor) {
            let handed = self.occupy(self.cursor, bytes);
            self.step();
            return handed;
        } else {
            self.astray.counts.occupied += 1;
        }
        self.astray.unserved += 1;
        self.step();
        if place != NONE {
            self.end(until);
        }
        None
    }

    /// Serves a request that was passed over, and is not over yet.
    fn take_behind(&mut self, bytes: u64) -> Option<Placement> {
        let missed = self.astray.missed[..self.astray.missed_len.min(BEHIND)].iter();
        let fits = |&&number: &&u32| {
            number < self.cursor && {
                let entry = &self.entries[number as usize];
                entry.until > self.cursor && entry.is_for(bytes)
            }
        };
        let number = *missed.filter(fits).min()?;
        if !self.is_free(number) {
            return None;
        }
        for missed in &mut self.astray.missed {
            if *missed == number {
                // No request's number: it is served once.
                *missed = NONE;
            }
        }
        let until = self.entries[number as usize].until;
        self.entries[until as usize - 1].due += 1;
        self.astray.counts.reordered += 1;
        self.occupy(number, bytes)
    }

    /// Passes over the requests before `number`.
    fn pass_to(&mut self, number: u32) {
        while self.cursor < number {
            let passed = self.cursor;
            let Entry { place, until, .. } = self.entries[passed as usize];
            self.step();
            if place != NONE {
                self.end(until);
                self.astray.missed[self.astray.missed_len % BEHIND] = passed;
                self.astray.missed_len += 1;
            }
            self.astray.unserved += 1;
            self.astray.counts.missing += 1;
        }
    }

    /// The cursor moves on by one.
    fn step(&mut self) {
        self.late += self.entries[self.cursor as usize].due;
        self.cursor += 1;
    }

    fn occupy(&mut self, number: u32, bytes: u64) -> Option<Placement> {
        let Entry { size, place, until, .. } = self.entries[number as usize];
        let place = self.places.get(place)?;
        debug_assert!(place.size == 0, "whatever lives there is late");
        (place.size, place.requested, place.until) = (size, bytes, until);
        Some(Placement { addr: place.addr, size })
    }

    /// Whether a request is the next one, and something late is where it is to lie.
    pub(crate) fn is_occupied(&mut self, bytes: u64) -> bool {
        let next = &self.entries[self.cursor as usize];
        next.is_for(bytes) && next.place != NONE && !self.is_free(self.cursor)
    }

    /// Whether nothing late is where a request is to lie that the plan has alive now.
    fn is_free(&mut self, number: u32) -> bool {
        if self.late == 0 {
            return true;
        }
        let Entry { size, place, .. } = self.entries[number as usize];
        let Some(&mut super::address_table::HeapRef { addr, .. }) = self.places.get(place) else { return false };
        let mut known = core::mem::take(&mut self.astray.late);
        let cursor = self.cursor;
        let mut is_late =
            |&number: &u32| self.places.get(number).is_some_and(|place| place.size > 0 && place.until <= cursor);
        // As many as there are, and late: these are all.
        if known.len() != self.late as usize || !known.iter().all(&mut is_late) {
            known.clear();
            let all = self.places.all().filter(|(_, place)| place.size > 0 && place.until <= cursor);
            known.extend(all.map(|(number, _)| number));
        }
        let free = !known.iter().any(|&number| self.places.get(number).is_some_and(|place| place.overlaps(addr, size)));
        self.astray.late = known;
        free
    }

    /// Where in the sequence the last extra requests and this one stand in a row: two not far ahead, or eight anywhere, behind the
    /// cursor if they stand there.
    fn find_trace(&mut self, bytes: u64) -> Option<u32> {
        let Self { astray, entries, cursor, .. } = self;
        if astray.at != *cursor {
            (astray.at, astray.extras) = (*cursor, 0);
        }
        astray.trace[astray.extras as usize % TRACE] = bytes;
        astray.extras += 1;
        let (extras, trace) = (astray.extras as usize, astray.trace);
        let stand = |last: usize, count: usize| {
            (0..count.min(extras)).all(|back| entries[last - back].is_for(trace[(extras - 1 - back) % TRACE]))
        };
        let (next, end) = (*cursor as usize, entries.len() - 1);
        let all = astray.counts.extra;
        let due = astray.searched == 0 || (all - astray.searched) * SHARE > end as u64;
        let nearby = (next + 1..end.min(next + 1 + AHEAD)).find(|&last| extras > 1 && stand(last, 2));
        let found = nearby.or_else(|| {
            if extras < TRACE || !due {
                return None;
            }
            astray.searched = all.max(1);
            let mut everywhere = (next + TRACE..end).chain(TRACE - 1..end.min(next + TRACE));
            everywhere.find(|&last| stand(last, TRACE))
        });
        found.map(|last| last as u32)
    }
}
