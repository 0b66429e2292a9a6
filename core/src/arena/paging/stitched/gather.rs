//! The search for free pages: first pages of the request's own stream, then pages of other streams.
//!
//! A page of another stream may move once its work precedes the request's work. If the page is
//! [quiet](crate::heap::epochs), it may move at once. Otherwise an event is recorded on the page's
//! stream, and the requesting stream is ordered after it. The host never waits.
//!
//! Pages move within a pool, and from the default pool to the others. The memory of a captured
//! graph neither gives nor takes pages: the graph may write to it at every replay, and when the
//! pool has no users any more, the last replays may still be running, on any stream. Nothing moves
//! between streams while a graph is captured.

use super::Stitcher;
use crate::arena::Platform;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::heaps::slot_of;
use crate::arena::paging::mapping::PageGuard;
use crate::arena::request::Request;
use crate::config::rounding::PoolKind;
use crate::device::{ErrorKind, StreamOrder};
use crate::error::Error;
use crate::heap::moves::{PagedHeap, Wanted};
use crate::pages::Batch;
use crate::pages::counts::PageCounts;
use crate::tables::Lazy;
use crate::units::{NO_STREAM, StreamId};
use core::iter::once;

/// The size that a batch should have, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::arena) struct PageRequest {
    /// The length that is enough.
    pub end: u64,
    /// The maximum length.
    pub room: u64,
}

/// The call that needs free pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::arena) struct Requester {
    /// The stream on which the pages will be used.
    pub stream: StreamId,
    /// The pool for which the pages are, which holds no memory of a captured graph.
    pub pool: u32,
    /// The requester's pair in this pool, if any. The caller uses it.
    pub own: Option<u32>,
}

impl From<&Request> for Requester {
    fn from(request: &Request) -> Self {
        Self { stream: request.stream, pool: request.pool, own: Some(request.slot / 2) }
    }
}

impl<'a, P: Platform> Stitcher<'a, P> {
    /// Appends free pages to `batch`: as many as wanted or all, but at most `moves` pages.
    /// Subtracts them from `moves`.
    pub(in crate::arena) fn gather(
        &self,
        requester: Requester,
        wanted_pages: PageRequest,
        moves: &mut u32,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let end = wanted_pages.end;
        let completed_only = self.options.completed_pages_only;
        if let Some(own) = requester.own {
            // No other call may start an epoch of a stream that only its own requests may use.
            if completed_only || !self.mapper().driver.may_use(requester.stream, NO_STREAM) {
                self.begin_epochs(own, requester.stream);
            }
            if completed_only {
                self.mapper().given_up().poll_departures();
            }
            self.take_from(self.wanted(), own, wanted_pages, moves, batch);
        }
        if batch.bytes >= end {
            return Ok(());
        }
        for again in [false, true] {
            if again && !self.begin_epochs_of_gone(requester)? {
                break;
            }
            self.mapper().given_up().poll_departures();
            for other in self.others(requester) {
                self.take_from(Wanted::Quiet, other.pair, wanted_pages, moves, batch);
                if completed_only && !again {
                    // The pages that are free now will be quiet for one of the next requests.
                    self.begin_epochs(other.pair, requester.stream);
                }
                if batch.bytes >= end {
                    return Ok(());
                }
            }
        }
        if completed_only {
            return Ok(());
        }
        for other in self.others(requester) {
            // Held until the streams are ordered, so that no capture starts in between.
            let Some(_permission) = self.mapper().driver.may_record() else { break };
            self.take_in_order(requester, other.pair, wanted_pages, moves, batch)?;
            if batch.bytes >= end {
                break;
            }
        }
        Ok(())
    }

    /// Takes free pages of a pair, as [`take_from`](Self::take_from) does, and orders the
    /// requesting stream after the work on the pages. Takes no page from an ended or capturing
    /// stream, and no page for a capturing stream.
    fn take_in_order(
        &self,
        requester: Requester,
        pair: u32,
        wanted_pages: PageRequest,
        moves: &mut u32,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let mapper = self.mapper();
        if mapper.driver.usable_stream(&mapper.heaps.lock(slots_of(pair)[0]), requester.stream).is_none() {
            return Ok(());
        }
        // Taken before the event is recorded, because a page that is freed later may have later
        // work.
        let before = *moves;
        let mut found = PageGuard::empty(self.mapper());
        let rest = PageRequest { end: wanted_pages.end - batch.bytes, room: wanted_pages.room - batch.bytes };
        self.take_from(Wanted::Free, pair, rest, moves, &mut found.batch);
        if found.batch.count == 0 {
            return Ok(());
        }
        match self.order_behind(pair, requester.stream) {
            Ok(true) => self.mapper().paging.pool.lock().join(batch, found.keep()),
            // The pages of this pair stay where they are.
            Ok(false) => *moves = before,
            Err(error) => {
                *moves = before;
                // A capture that was not announced.
                if !error.is_of_capture() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Starts epochs of heaps with free pages that are not quiet, if their streams may be gone. No
    /// later call may name such a stream, so the pages would never become quiet otherwise. Returns
    /// whether any epoch was started. Starts none for a stream that captures, because a fence of
    /// all streams would break the capture.
    fn begin_epochs_of_gone(&self, requester: Requester) -> Result<bool, Error> {
        let mapper = self.mapper();
        if requester.stream == NO_STREAM || !mapper.driver.device().can_record_all() {
            return Ok(false);
        }
        let may_be_gone = |slot: u32| !mapper.driver.may_use(mapper.heaps.lock(slot).stream, NO_STREAM);
        let slots = self.others(requester).flat_map(|other| slots_of(other.pair));
        let mut busy = slots.filter(|&slot| may_be_gone(slot) && self.has_busy_pages(slot)).peekable();
        if busy.peek().is_none() || mapper.driver.call(|memory| memory.is_capturing(requester.stream))? {
            return Ok(false);
        }
        Ok(mapper.given_up().begin_epochs_of_all(busy))
    }

    /// Waits for the work on the free pages of the request's private pool that could not move at
    /// once. Those of the default pool go back to the device if memory is short, but a pool in use
    /// keeps its own, and the request would fail beside them.
    ///
    /// # Errors
    /// The errors of the device. A capturing stream permits no wait, which is not an error.
    pub(crate) fn wait_for_free_pages(&self, request: &Request) -> Result<(), Error> {
        if request.pool == 0 || !self.may_move(request) {
            return Ok(());
        }
        self.wait_for_pair(request.slot / 2, request.stream)?;
        self.others(request.into()).try_for_each(|other| self.wait_for_pair(other.pair, request.stream))
    }

    /// Makes the free pages of a pair quiet by a wait for its stream, if that is usable. The caller
    /// uses the pair.
    fn wait_for_pair(&self, pair: u32, named: StreamId) -> Result<(), Error> {
        let mapper = self.mapper();
        for slot in slots_of(pair).into_iter().filter(|&slot| self.has_busy_pages(slot)) {
            let (stream, stamp) = {
                let mut heap = mapper.heaps.lock(slot);
                let Some(stream) = mapper.driver.usable_stream(&heap, named) else { continue };
                // Blocks that are freed during the wait get a later stamp.
                (stream, mapper.heaps.stamp(&mut heap))
            };
            match mapper.driver.synchronize(stream) {
                Err(error) if error.kind == ErrorKind::NotPermittedInCapture => continue,
                waited => waited?,
            }
            let mut heap = mapper.heaps.lock(slot);
            if heap.sets.is_made() {
                heap.sets.quiet = heap.sets.quiet.max(stamp);
            }
        }
        Ok(())
    }

    /// Returns whether a heap has free pages with work that is not known to be complete.
    fn has_busy_pages(&self, slot: u32) -> bool {
        let mut heap = self.mapper().heaps.lock(slot);
        let [free, quiet] = [Wanted::Free, Wanted::Quiet].map(|wanted| {
            let mut counts = PageCounts::new(self.step());
            PagedHeap(&mut heap).count_free_pages(wanted, &mut counts, self.step());
            counts.bytes()
        });
        free > quiet
    }

    /// Counts the pages that may move for a request.
    pub(super) fn free_pages(&self, request: &Request) -> PageCounts {
        let mut counts = PageCounts::new(self.step());
        self.count_free(self.wanted(), request.slot / 2, &mut counts);
        for other in self.others(request.into()) {
            self.count_free(self.wanted(), other.pair, &mut counts);
        }
        counts
    }

    /// Counts the wanted free pages of a pair of heaps.
    pub(super) fn count_free(&self, wanted: Wanted, pair: u32, counts: &mut PageCounts) {
        for slot in slots_of(pair) {
            PagedHeap(&mut self.mapper().heaps.lock(slot)).count_free_pages(wanted, counts, self.step());
        }
    }

    /// Returns which free pages may move for a request at all.
    pub(super) fn wanted(&self) -> Wanted {
        if self.options.completed_pages_only { Wanted::Quiet } else { Wanted::Free }
    }

    /// Iterates over the pairs from which pages may move to a requester, other than the requester's
    /// own pair: those of its pool, and then those of the default pool.
    pub(super) fn others(&self, requester: Requester) -> impl Iterator<Item = PairUse<'a, P>> {
        let heaps = self.mapper().heaps;
        let shared = (requester.pool != 0).then_some(0);
        let pairs = once(requester.pool).chain(shared).flat_map(|pool| heaps.pairs_of(pool));
        pairs.filter(move |other| Some(other.pair) != requester.own)
    }

    /// Takes free pages of a pair, as many as wanted if there are enough.
    pub(super) fn take_from(
        &self,
        wanted: Wanted,
        pair: u32,
        wanted_pages: PageRequest,
        moves: &mut u32,
        batch: &mut Batch,
    ) {
        let mapper = self.mapper();
        let mut counts = PageCounts::new(self.step());
        self.count_free(wanted, pair, &mut counts);
        let mut chosen =
            counts.choose(wanted_pages.end.saturating_sub(batch.bytes), wanted_pages.room - batch.bytes, *moves);
        for slot in slots_of(pair) {
            let mut heap = mapper.heaps.lock(slot);
            PagedHeap(&mut heap).take_pages(wanted, &mut chosen, self.step(), |home, block| {
                let mut pages = mapper.paging.pool.lock();
                pages.begin_move(home.page, slot, block);
                pages.append(batch, home.page);
                *moves -= 1;
            });
        }
    }

    /// Orders later work on `stream` after the present work on the stream of `pair`. Returns false
    /// if only the host could wait. The caller has permission to record.
    pub(super) fn order_behind(&self, pair: u32, stream: StreamId) -> Result<bool, Error> {
        let mapper = self.mapper();
        let other = mapper.heaps.lock(slots_of(pair)[0]).stream;
        mapper.order_behind_stream(stream, other)
    }

    /// Starts an epoch of both heaps of `pair`, so that the memory that is free now becomes quiet.
    /// `named` is the stream that the call names.
    pub(super) fn begin_epochs(&self, pair: u32, named: StreamId) {
        for slot in slots_of(pair) {
            self.mapper().given_up().begin_epoch(slot, named);
        }
    }
}

/// Returns the slots of the small and the large heap of a pair.
pub(super) fn slots_of(pair: u32) -> [u32; 2] {
    [PoolKind::Small, PoolKind::Large].map(|kind| slot_of(pair, kind))
}
