//! The search for free pages: those of the request's own stream first, then those of others.
//!
//! A page of another stream may move once the work that used the page precedes the request's work:
//! at once if the page is [quiet](crate::streams::epochs), else behind an event of its stream that
//! the requesting stream is ordered behind. The host never waits.
//!
//! Private pools neither give nor take pages. A captured graph may write to a pool in use at every
//! replay, and the last replays may still run, on any stream, when the pool has no users any longer.
//! Nothing moves between streams while a graph is captured.

use super::Stitcher;
use crate::arena::heaps::slot_of;
use crate::arena::request::Request;
use crate::config::rounding::PoolKind;
use crate::device::{DeviceMemory, DeviceResult, ErrorKind};
use crate::error::Error;
use crate::pages::Batch;
use crate::pages::counts::PageCounts;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::StreamId;

/// Which pages of a pair of heaps may move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// All free pages.
    Free,
    /// Free pages that no work uses any longer.
    Quiet,
}

/// How large a batch is to become, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wish {
    /// The batch suffices with this length.
    pub(super) end: u64,
    /// The batch must not become longer than this.
    pub(super) room: u64,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Stitcher<'_, D, R, S> {
    /// Appends free pages to `batch`, as many as are wished for or as there are, but at most `moves`
    /// pages, which are counted down.
    pub(super) fn gather(
        &self,
        request: &Request,
        wish: Wish,
        moves: &mut u32,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let end = wish.end;
        let completed_only = self.options.completed_pages_only;
        if completed_only {
            self.begin_epochs(request.slot / 2);
            self.device().quiet().poll();
        }
        let own = if completed_only { Wanted::Quiet } else { Wanted::Free };
        self.take_from(own, request.slot / 2, wish, moves, batch);
        if batch.bytes >= end {
            return Ok(());
        }
        self.device().quiet().poll();
        self.for_others(request, |pair| {
            self.take_from(Wanted::Quiet, pair, wish, moves, batch);
            if completed_only {
                // The free pages of this moment are quiet for one of the next requests.
                self.begin_epochs(pair);
            }
            Ok(batch.bytes < end)
        })?;
        if batch.bytes >= end || completed_only {
            return Ok(());
        }
        self.for_others(request, |pair| {
            // Kept until the streams are ordered: no capture begins in between.
            let permission = self.device().arena.driver.may_record(&self.device().arena.flags);
            if permission.is_none() {
                return Ok(false);
            }
            self.take_in_order(request, pair, wish, moves, batch)?;
            Ok(batch.bytes < end)
        })
    }

    /// Takes free pages of one pair, as [`take_from`](Self::take_from) does, and orders the
    /// requesting stream behind the work that used them. Takes none from a stream that has ended or
    /// captures, nor for one that captures.
    fn take_in_order(
        &self,
        request: &Request,
        pair: u32,
        wish: Wish,
        moves: &mut u32,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        // The handle of an ended stream may not be used.
        if self.device().heaps.lock(slots_of(pair)[0]).ended {
            return Ok(());
        }
        // Taken before the event is recorded: a page that is freed later may have later work.
        let (before, mut taken) = (*moves, Batch::EMPTY);
        let rest = Wish { end: wish.end - batch.bytes, room: wish.room - batch.bytes };
        self.take_from(Wanted::Free, pair, rest, moves, &mut taken);
        if taken.count == 0 {
            return Ok(());
        }
        match self.order_behind(pair, request.stream) {
            Ok(()) => {
                self.device().page_pool.lock().join(batch, taken);
                Ok(())
            }
            Err(error) => {
                self.give_back(&taken);
                *moves = before;
                // A capture that nothing announced: this pair's pages stay where they are.
                if error.kind == ErrorKind::NotPermittedInCapture { Ok(()) } else { Err(error.into()) }
            }
        }
    }

    /// Counts the pages that could move for a request.
    pub(super) fn free_pages(&self, request: &Request) -> Result<PageCounts, Error> {
        let mut counts = PageCounts::new(self.step());
        let only = self.options.completed_pages_only;
        self.count_free(request.slot / 2, only, &mut counts);
        self.for_others(request, |pair| {
            self.count_free(pair, only, &mut counts);
            Ok(true)
        })?;
        Ok(counts)
    }

    /// Counts the free pages of a pair of heaps.
    fn count_free(&self, pair: u32, quiet_only: bool, counts: &mut PageCounts) {
        for slot in slots_of(pair) {
            let mut heap = self.device().arena.heaps.lock(slot);
            if !heap.retained {
                heap.count_free_pages(counts, self.step(), quiet_only);
            }
        }
    }

    /// Calls `act` with each pair whose pages may move to another stream, except for the request's
    /// own pair, until `act` returns false.
    fn for_others(&self, request: &Request, mut act: impl FnMut(u32) -> Result<bool, Error>) -> Result<(), Error> {
        for pair in self.device().arena.heaps.pairs_of(0) {
            if pair.pair != request.slot / 2 && !act(pair.pair)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes free pages of one pair, as many as are wished for if the pages suffice.
    pub(super) fn take_from(&self, wanted: Wanted, pair: u32, wish: Wish, moves: &mut u32, batch: &mut Batch) {
        let device = self.device();
        let (step, quiet_only) = (self.step(), wanted == Wanted::Quiet);
        let slots = slots_of(pair);
        let mut counts = PageCounts::new(step);
        self.count_free(pair, quiet_only, &mut counts);
        let mut chosen = counts.choose(wish.end.saturating_sub(batch.bytes), wish.room - batch.bytes, *moves);
        for slot in slots {
            let mut heap = device.heaps.lock(slot);
            if heap.retained {
                continue;
            }
            heap.take_pages(&mut chosen, step, quiet_only, |home, block| {
                let mut pages = device.page_pool.lock();
                pages.begin_move(home.page, slot, block);
                pages.append(batch, home.page);
                *moves -= 1;
            });
        }
    }

    /// Orders later work on `stream` behind the present work on the stream of `pair`.
    fn order_behind(&self, pair: u32, stream: StreamId) -> DeviceResult<()> {
        let device = self.device();
        let other = device.heaps.lock(slots_of(pair)[0]).stream;
        let event = device.call(D::create_event)?;
        let ordered = device
            .call(|memory| memory.record(event, other))
            .and_then(|()| device.call(|memory| memory.order_behind(stream, event)));
        let destroyed = device.call(|memory| memory.destroy_event(event));
        ordered.and(destroyed)
    }

    /// Begins an epoch of both heaps of `pair`, so that what is free now becomes quiet.
    pub(super) fn begin_epochs(&self, pair: u32) {
        for slot in slots_of(pair) {
            self.device().quiet().begin(slot);
        }
    }
}

/// Returns the slots of the small and the large heap of a pair.
pub(super) fn slots_of(pair: u32) -> [u32; 2] {
    [PoolKind::Small, PoolKind::Large].map(|kind| slot_of(pair, kind))
}
