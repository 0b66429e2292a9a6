//! Resynchronization: handles requests that do not follow the sequence, and requests for which the
//! planned bytes are in use.

use super::deviations::{RUN, SKIPPED};
use super::sequence::{Placement, Sequence, ServedRequest};
use crate::stats::PlannedReport;
use crate::tables::slot_table::NONE;

/// How far ahead a single request is looked for. This way, up to two missing requests are
/// noticed at once.
const NEAR: u32 = 2;

/// How far ahead two requests in a row are looked for. A single match that far ahead may be a
/// coincidence, because sizes are rarely unique.
const LOOKAHEAD: usize = 32;

/// Limits how often the whole sequence is searched: at most once for each `len / SEARCH_INTERVAL`
/// extra requests. Spread over the extra requests, a search then costs about as much per request as
/// looking ahead.
const SEARCH_INTERVAL: u64 = 64;

impl Sequence {
    /// Returns the number of requests served from the plan.
    pub(crate) fn served(&self) -> u64 {
        let passed = self.deviations.passed + u64::from(self.cursor - self.deviations.began);
        passed - self.deviations.unserved + self.deviations.counts.reordered
    }

    /// Adds the counts of the sequence to a report.
    pub(crate) fn add_to(&self, report: &mut PlannedReport) {
        let counts = self.deviations.counts;
        report.served += self.served();
        report.lasting += counts.lasting;
        report.extra += counts.extra;
        report.missing += counts.missing;
        report.reordered += counts.reordered;
        report.occupied += counts.occupied;
    }

    /// Serves a request that [`next`](Self::next) did not serve. Returns `None` if the fallback
    /// must serve it.
    pub(crate) fn next_deviating(&mut self, bytes: u64) -> Option<Placement> {
        // This is the next request. `next` did not serve it because it is not planned, or because a
        // block is overdue.
        if self.entries[self.cursor as usize].matches(bytes) {
            return self.serve_at_cursor(bytes);
        }
        if let Some(placement) = self.serve_skipped(bytes) {
            return Some(placement);
        }
        let near = (self.cursor + 1..self.len().min(self.cursor + 1 + NEAR))
            .find(|&number| self.entries[number as usize].matches(bytes));
        if let Some(number) = near.or_else(|| self.find_run(bytes)) {
            // `find_run` may return a place before the cursor, if the program has started the
            // sequence again.
            if number >= self.cursor {
                self.skip_to(number);
            } else {
                self.deviations.counts.missing += u64::from(self.len() - self.cursor);
                self.begin_at(number);
            }
            return self.serve_at_cursor(bytes);
        }
        self.deviations.counts.extra += 1;
        None
    }

    /// Ends the iteration, and starts the next one.
    pub(crate) fn restart(&mut self) {
        // If an iteration has no requests at all, none are missing.
        if self.cursor > 0 || self.deviations.extras > 0 {
            self.deviations.counts.missing += u64::from(self.len() - self.cursor);
        }
        self.begin_at(0);
        self.deviations.extras = 0;
    }

    /// Serves the request at the cursor, if it is planned and its planned bytes are free. Advances
    /// the cursor in any case.
    fn serve_at_cursor(&mut self, bytes: u64) -> Option<Placement> {
        let ServedRequest { slot, until, .. } = self.entries[self.cursor as usize];
        if slot == NONE {
            self.deviations.counts.lasting += 1;
        } else if self.is_free(self.cursor) {
            let placement = self.occupy(self.cursor, bytes);
            self.step();
            return placement;
        } else {
            self.deviations.counts.occupied += 1;
        }
        self.deviations.unserved += 1;
        self.step();
        // The block is not created in this pass, so it counts as ended.
        if slot != NONE {
            self.end(until);
        }
        None
    }

    /// Serves a skipped request, if its block is planned to be live now.
    fn serve_skipped(&mut self, bytes: u64) -> Option<Placement> {
        let skipped = self.deviations.skipped[..self.deviations.skipped_len.min(SKIPPED)].iter();
        let fits = |&&number: &&u32| {
            number < self.cursor && {
                let entry = &self.entries[number as usize];
                entry.until > self.cursor && entry.matches(bytes)
            }
        };
        // If several match, take the earliest: programs tend to catch up in order.
        let number = *skipped.filter(fits).min()?;
        if !self.is_free(number) {
            return None;
        }
        for skipped in &mut self.deviations.skipped {
            if *skipped == number {
                // No request has this number, so this one is not served again.
                *skipped = NONE;
            }
        }
        // `skip_to` counted the block as ended, but now it is live again.
        let until = self.entries[number as usize].until;
        self.entries[until as usize - 1].due += 1;
        self.deviations.counts.reordered += 1;
        self.occupy(number, bytes)
    }

    /// Skips the requests before `number`, and counts each as missing.
    fn skip_to(&mut self, number: u32) {
        while self.cursor < number {
            let passed = self.cursor;
            let ServedRequest { slot, until, .. } = self.entries[passed as usize];
            self.step();
            if slot != NONE {
                self.end(until);
                self.deviations.skipped[self.deviations.skipped_len % SKIPPED] = passed;
                self.deviations.skipped_len += 1;
            }
            self.deviations.unserved += 1;
            self.deviations.counts.missing += 1;
        }
    }

    /// Advances the cursor by one request. Live blocks that were planned to end at this request
    /// become overdue.
    fn step(&mut self) {
        self.overdue += self.entries[self.cursor as usize].due;
        self.cursor += 1;
    }

    /// Places the block of request `number` at its planned address.
    fn occupy(&mut self, number: u32, bytes: u64) -> Option<Placement> {
        let ServedRequest { size, slot, until, .. } = self.entries[number as usize];
        let slot = self.slots.get_mut(slot)?;
        debug_assert!(slot.size == 0, "a block there would be overdue");
        (slot.size, slot.requested, slot.until) = (size, bytes, until);
        Some(Placement { addr: slot.addr, size })
    }

    /// Returns whether this is the next request, and an overdue block is on its planned bytes.
    pub(crate) fn is_occupied(&mut self, bytes: u64) -> bool {
        let next = &self.entries[self.cursor as usize];
        next.matches(bytes) && next.slot != NONE && !self.is_free(self.cursor)
    }

    /// Returns whether no overdue block is on the bytes of a request. The request must be planned
    /// to be live now.
    fn is_free(&mut self, number: u32) -> bool {
        if self.overdue == 0 {
            return true;
        }
        let ServedRequest { size, slot, .. } = self.entries[number as usize];
        let Some(&mut super::address_table::PlannedAddress { addr, .. }) = self.slots.get_mut(slot) else {
            return false;
        };
        let mut known = core::mem::take(&mut self.deviations.overdue);
        let cursor = self.cursor;
        let mut is_overdue =
            |&number: &u32| self.slots.get_mut(number).is_some_and(|slot| slot.size > 0 && slot.until <= cursor);
        // The list from the last call is complete if it has as many blocks as are overdue, and all
        // of them still are. Otherwise, collect them again.
        if known.len() != self.overdue as usize || !known.iter().all(&mut is_overdue) {
            known.clear();
            let all = self.slots.all().filter(|(_, slot)| slot.size > 0 && slot.until <= cursor);
            known.extend(all.map(|(number, _)| number));
        }
        let free =
            !known.iter().any(|&number| self.slots.get_mut(number).is_some_and(|slot| slot.overlaps(addr, size)));
        self.deviations.overdue = known;
        free
    }

    /// Returns where in the sequence the latest extra requests and this request are, if they all
    /// occur there in a row. A little ahead, two requests are enough. Elsewhere it takes eight, and
    /// the part after the cursor is searched before the part in front of it.
    fn find_run(&mut self, bytes: u64) -> Option<u32> {
        let Self { deviations, entries, cursor, .. } = self;
        if deviations.at != *cursor {
            (deviations.at, deviations.extras) = (*cursor, 0);
        }
        deviations.run[deviations.extras as usize % RUN] = bytes;
        deviations.extras += 1;
        let (extras, run) = (deviations.extras as usize, deviations.run);
        let matches_run = |last: usize, count: usize| {
            (0..count.min(extras)).all(|back| entries[last - back].matches(run[(extras - 1 - back) % RUN]))
        };
        let (next, end) = (*cursor as usize, entries.len() - 1);
        let all = deviations.counts.extra;
        // The first search is free. Later ones wait until enough extra requests have come to pay
        // for it.
        let due = deviations.searched == 0 || (all - deviations.searched) * SEARCH_INTERVAL > end as u64;
        let nearby = (next + 1..end.min(next + 1 + LOOKAHEAD)).find(|&last| extras > 1 && matches_run(last, 2));
        let found = nearby.or_else(|| {
            if extras < RUN || !due {
                return None;
            }
            deviations.searched = all.max(1);
            let mut everywhere = (next + RUN..end).chain(RUN - 1..end.min(next + RUN));
            everywhere.find(|&last| matches_run(last, RUN))
        });
        found.map(|last| last as u32)
    }
}
