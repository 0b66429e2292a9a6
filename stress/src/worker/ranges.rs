//! Steps with elastic ranges: parts committed, written, checked on several streams, and
//! decommitted, and whole ranges released after queued work.
//!
//! A page's contents are known in the order of a single place, the page's home. Every other place
//! is ordered after the home before a use of the page, and then becomes the home.

use super::Worker;
use super::refusals::Reason::{self, Capture, Memory};
use crate::elastic::ElasticRange;
use crate::stage::Line;
use cachalot_core::Error;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Number of steps in a disturbance.
const STEPS: Range<u32> = 1..7;
/// Number of pages of a range.
const PAGES: Range<u64> = 2..9;
/// Bytes of a page on every device so far. A range has more pages where pages are shorter.
const PAGE: u64 = 2 << 20;

impl Worker {
    /// Makes some steps with random ranges.
    pub(super) fn range_steps(&mut self) {
        for _ in 0..self.rng.u32(STEPS) {
            self.range_step();
        }
    }

    /// Makes a step with a random range, taken out of the shared list for the step. Reserves a
    /// range if few exist.
    fn range_step(&mut self) {
        let shared = self.shared;
        let taken = {
            let mut ranges = shared.ranges.lock();
            let (count, most) = (ranges.len(), shared.options.ranges as usize * shared.devices.len());
            let few = count < most && self.rng.usize(0..most) >= count;
            if few || count == 0 { None } else { Some(ranges.swap_remove(self.rng.usize(0..count))) }
        };
        let Some(mut range) = taken.or_else(|| self.reserve()) else { return };
        let place = self.place_on(range.device);
        match self.rng.u32(0..12) {
            0..=3 => self.commit(&mut range, place),
            4 => self.commit_as_guest(&mut range, place),
            5 | 6 => self.use_pages(&mut range, place),
            7 => {
                self.name_stream(&mut range, place);
            }
            8..=10 => self.decommit(&mut range, place),
            _ => match self.release(range) {
                Some(left) => range = left,
                None => return,
            },
        }
        shared.ranges.lock().push(range);
    }

    /// Returns a random place of a device.
    fn place_on(&mut self, device: usize) -> usize {
        let first = self.places.iter().position(|place| place.device == device).expect("a lane of each device");
        first + self.rng.usize(0..self.shared.devices[device].lanes.len())
    }

    fn reserve(&mut self) -> Option<ElasticRange> {
        let shared = self.shared;
        let device = self.rng.usize(0..shared.devices.len());
        let since = shared.captures.now();
        let bytes = self.rng.u64(PAGES) * PAGE;
        match shared.subject.ranges(shared.devices[device].index).unwrap().reserve(bytes) {
            Ok(reservation) => {
                self.counts.ranges += 1;
                let number = shared.ranges_made.fetch_add(1, Ordering::Relaxed);
                Some(ElasticRange::new(device, reservation, number))
            }
            Err(error) => {
                self.refused_for("reserve_range", &error, since, &[]);
                None
            }
        }
    }

    /// Chooses some adjacent pages of a range.
    fn some_pages(&mut self, range: &ElasticRange) -> Range<usize> {
        let begin = self.rng.usize(0..range.pages.len());
        begin..begin + self.rng.usize(1..=(range.pages.len() - begin).min(4))
    }

    /// Orders a stream after the last uses of the committed pages among `pages`.
    fn order_pages(&mut self, range: &ElasticRange, pages: Range<usize>, line: Line) -> bool {
        let mut homes: Vec<usize> =
            range.pages[pages].iter().filter(|page| page.committed).map(|page| page.home).collect();
        homes.sort_unstable();
        homes.dedup();
        for home in homes {
            let before = self.line(home);
            if before != line
                && let Err(error) = self.put_behind(range.device, line, before)
            {
                self.device_failed("order", error);
                return false;
            }
        }
        true
    }

    /// Calls the allocator for a part. Returns whether the call succeeded.
    fn call(&mut self, what: &str, reasons: &[Reason], call: impl FnOnce() -> Result<(), Error>) -> bool {
        let since = self.shared.captures.now();
        let done = call();
        if let Err(error) = &done {
            self.refused_for(what, error, since, reasons);
        }
        done.is_ok()
    }

    /// Commits pages for a stream, and claims the addresses of pages without memory before. Returns
    /// the claimed pages.
    fn commit_for(&mut self, range: &mut ElasticRange, pages: &Range<usize>, line: Line) -> Option<Vec<usize>> {
        let (shared, index) = (self.shared, self.shared.devices[range.device].index);
        let ((offset, bytes), id) = (range.part(pages), range.reservation.range);
        let commit = || shared.subject.ranges(index).unwrap().commit(id, offset, bytes, line.id);
        if !self.call("commit_range", &[Memory, Capture], commit) {
            return None;
        }
        self.counts.commits += 1;
        range.name(line.id);
        let new: Vec<usize> = pages.clone().filter(|&page| !range.pages[page].committed).collect();
        for &page in &new {
            range.pages[page].committed = true;
            range.pages[page].written = false;
            self.claim(range.address(page), range.reservation.page_bytes, range.row(page).1.block);
        }
        Some(new)
    }

    /// Commits pages on a lane, writes the new pages, and checks the rest.
    fn commit(&mut self, range: &mut ElasticRange, place: usize) {
        let (pages, line) = (self.some_pages(range), self.line(place));
        if !self.order_pages(range, pages.clone(), line) {
            return;
        }
        let Some(new) = self.commit_for(range, &pages, line) else { return };
        self.check_pages(range, pages.filter(|page| !new.contains(page)), place);
        self.write_pages(range, &new, place);
    }

    /// Commits pages on a stream that ends with its work incomplete. A lane is ordered after the
    /// work.
    fn commit_as_guest(&mut self, range: &mut ElasticRange, place: usize) {
        let stage = &self.shared.devices[range.device];
        let guest = match stage.make_line() {
            Ok(line) => line,
            Err(error) => return self.device_failed("stream_create", error),
        };
        self.counts.guests += 1;
        let (pages, lane) = (self.some_pages(range), self.line(place));
        if self.order_pages(range, pages.clone(), guest)
            && let Some(new) = self.commit_for(range, &pages, guest)
        {
            for page in new {
                range.pages[page].writes += 1;
                let (region, life) = range.row(page);
                match stage.kernels.fill(guest.handle, region, life) {
                    Ok(()) => range.pages[page].written = true,
                    Err(error) => self.device_failed("fill", error),
                }
                range.pages[page].home = place;
            }
        }
        if let Err(error) = self.put_behind(range.device, lane, guest) {
            // The lane's later work needs the guest's.
            let waited = stage.synchronize(guest.handle);
            self.device_failed("order", waited.err().unwrap_or(error));
        }
        self.end_line(stage, guest);
    }

    /// Checks the pages with contents, on the stream of a place after the pages' last uses.
    fn check_pages(&mut self, range: &mut ElasticRange, pages: impl Iterator<Item = usize>, place: usize) {
        let line = self.line(place);
        let mut rows = Vec::new();
        for page in pages.filter(|&page| range.pages[page].committed).collect::<Vec<_>>() {
            range.pages[page].home = place;
            if range.pages[page].written {
                rows.push(range.row(page));
            }
        }
        match self.places[place].checker.verify(line.handle, &rows, &self.shared.verdict) {
            Ok(checked) => {
                self.counts.verified_blocks += checked.blocks;
                self.counts.verified_bytes += checked.bytes;
            }
            Err(error) => self.device_failed("verify", error),
        }
    }

    /// Writes pages anew, on the stream of a place after their last uses.
    fn write_pages(&mut self, range: &mut ElasticRange, pages: &[usize], place: usize) {
        let line = self.line(place);
        for &page in pages {
            range.pages[page].writes += 1;
            range.pages[page].home = place;
        }
        let rows: Vec<_> = pages.iter().map(|&page| range.row(page)).collect();
        let filled = self.places[place].checker.fill(line.handle, &rows);
        for &page in pages {
            range.pages[page].written = filled.is_ok();
        }
        if let Err(error) = filled {
            self.device_failed("fill", error);
        }
    }

    /// Checks committed pages on a lane, and perhaps writes them anew. The lane need not be named
    /// by any call.
    fn use_pages(&mut self, range: &mut ElasticRange, place: usize) {
        let (pages, line) = (self.some_pages(range), self.line(place));
        if !self.order_pages(range, pages.clone(), line) {
            return;
        }
        if self.rng.bool() {
            self.hold(place);
        }
        self.check_pages(range, pages.clone(), place);
        if self.rng.bool() {
            let committed: Vec<usize> = pages.filter(|&page| range.pages[page].committed).collect();
            self.write_pages(range, &committed, place);
        }
    }

    /// Names the stream of a place in a commit or decommit without an effect. Returns whether the
    /// call succeeded.
    fn name_stream(&mut self, range: &mut ElasticRange, place: usize) -> bool {
        let (shared, line) = (self.shared, self.line(place));
        let index = shared.devices[range.device].index;
        let page = self.rng.usize(0..range.pages.len());
        let ((offset, bytes), id) = (range.part(&(page..page + 1)), range.reservation.range);
        let named = if range.pages[page].committed {
            let commit = || shared.subject.ranges(index).unwrap().commit(id, offset, bytes, line.id);
            self.call("commit_range of a committed page", &[Capture], commit)
        } else {
            let decommit = || shared.subject.ranges(index).unwrap().decommit(id, offset, bytes, line.id);
            self.call("decommit_range of an empty page", &[Capture], decommit)
        };
        if named {
            range.name(line.id);
        }
        named
    }

    /// Decommits pages after the queued work of a lane, which follows all work with the pages.
    fn decommit(&mut self, range: &mut ElasticRange, place: usize) {
        let (pages, line) = (self.some_pages(range), self.line(place));
        if !self.order_pages(range, pages.clone(), line) {
            return;
        }
        self.check_pages(range, pages.clone(), place);
        let (shared, index) = (self.shared, self.shared.devices[range.device].index);
        let given: Vec<usize> = pages.clone().filter(|&page| range.pages[page].committed).collect();
        self.unclaim_pages(range, &given);
        let ((offset, bytes), id) = (range.part(&pages), range.reservation.range);
        let decommit = || shared.subject.ranges(index).unwrap().decommit(id, offset, bytes, line.id);
        if self.call("decommit_range", &[Capture], decommit) {
            self.counts.decommits += 1;
            range.name(line.id);
            given.into_iter().for_each(|page| range.pages[page].committed = false);
        } else {
            self.claim_pages(range, &given);
        }
    }

    /// Releases a range, with queued work on several streams. Returns the range if not released.
    fn release(&mut self, mut range: ElasticRange) -> Option<ElasticRange> {
        let committed: Vec<usize> = (0..range.pages.len()).filter(|&page| range.pages[page].committed).collect();
        for &page in &committed {
            let home = range.pages[page].home;
            self.check_pages(&mut range, std::iter::once(page), home);
        }
        // The release waits for the streams that commits and decommits have named: the others
        // precede one of them.
        let lanes = self.shared.devices[range.device].lanes.len();
        let first = self.places.iter().position(|place| place.device == range.device).expect("a lane of each device");
        let known = (first..first + lanes).find(|&place| range.named.contains(&self.line(place).id));
        let named = if let Some(place) = known {
            place
        } else {
            let place = self.place_on(range.device);
            if !self.name_stream(&mut range, place) {
                return Some(range);
            }
            place
        };
        let line = self.line(named);
        for &page in &committed {
            let home = self.line(range.pages[page].home);
            if !range.named.contains(&home.id)
                && let Err(error) = self.put_behind(range.device, line, home)
            {
                self.device_failed("order", error);
                return Some(range);
            }
        }
        self.unclaim_pages(&range, &committed);
        let (shared, index) = (self.shared, self.shared.devices[range.device].index);
        let id = range.reservation.range;
        if self.call("release_range", &[Capture], || shared.subject.ranges(index).unwrap().release(id)) {
            self.counts.releases += 1;
            return None;
        }
        self.claim_pages(&range, &committed);
        Some(range)
    }

    /// Marks the addresses of pages as in use.
    fn claim_pages(&self, range: &ElasticRange, pages: &[usize]) {
        for &page in pages {
            self.claim(range.address(page), range.reservation.page_bytes, range.row(page).1.block);
        }
    }

    /// Marks the addresses of pages as unused, before a call gives up their memory.
    fn unclaim_pages(&self, range: &ElasticRange, pages: &[usize]) {
        for &page in pages {
            let (at, bytes) = (range.address(page), range.reservation.page_bytes);
            if !self.shared.shadow.unclaim(at, bytes) {
                let text = format!("a page of a range at {at} lost its claim");
                self.shared.verdict.report(crate::verdict::Kind::Books, text);
            }
        }
    }

    /// Releases all ranges. No other thread works.
    pub(super) fn end_ranges(&mut self) {
        let ranges = std::mem::take(&mut *self.shared.ranges.lock());
        for range in ranges {
            if let Some(left) = self.release(range)
                && !self.shared.is_stopped()
            {
                let text = format!("{left:?} cannot be released at the end");
                self.shared.verdict.report(crate::verdict::Kind::Refused, text);
            }
        }
    }
}
