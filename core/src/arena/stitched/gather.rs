//! The search for free pages: those of the request's own stream first, then those of others.
//!
//! A page of another stream may move once the work that used the page precedes the request's work:
//! at once if the page is [quiet](crate::streams::epochs), else behind an event of its stream that
//! the requesting stream is ordered behind. The host never waits.
//!
//! Private pools in use neither give nor take pages, since a captured graph may write to them at
//! every replay. Nothing moves between streams while a graph is captured.

use super::Stitcher;
use crate::arena::heaps::slot_of;
use crate::arena::request::Request;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
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

impl<D: DeviceMemory, R: Lock, S: Storage> Stitcher<'_, D, R, S> {
    /// Appends free pages of at least `wanted` bytes to `batch`, or as many bytes as there are, with
    /// at most `moves` pages, which are counted down.
    pub(super) fn gather(
        &self,
        request: &Request,
        wanted: u64,
        moves: &mut u32,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let end = batch.bytes + wanted;
        let own = if self.options.completed_pages_only {
            self.begin_epochs(request.slot / 2);
            Wanted::Quiet
        } else {
            Wanted::Free
        };
        self.take_from(own, request.slot / 2, end, moves, batch);
        if batch.bytes >= end {
            return Ok(());
        }
        self.device().quiet().poll();
        self.for_others(request, |pair| {
            self.take_from(Wanted::Quiet, pair, end, moves, batch);
            Ok(batch.bytes < end)
        })?;
        if batch.bytes >= end || self.options.completed_pages_only {
            return Ok(());
        }
        self.for_others(request, |pair| {
            let before = batch.count;
            let permission = self.device().arena.driver.may_record(&self.device().arena.flags);
            if permission.is_none() {
                return Ok(false);
            }
            self.take_from(Wanted::Free, pair, end, moves, batch);
            if batch.count > before {
                self.order_behind(pair, request.stream)?;
            }
            Ok(batch.bytes < end)
        })
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
        let heaps = &self.device().arena.heaps;
        let pools = core::iter::once(0).chain(heaps.unused_pools());
        for pair in pools.flat_map(|pool| heaps.pairs_of(pool)) {
            if pair.pair != request.slot / 2 && !act(pair.pair)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes free pages of one pair, so that the batch has `end` bytes if the pages suffice.
    pub(super) fn take_from(&self, wanted: Wanted, pair: u32, end: u64, moves: &mut u32, batch: &mut Batch) {
        let device = self.device();
        let (step, quiet_only) = (self.step(), wanted == Wanted::Quiet);
        let slots = slots_of(pair);
        let mut counts = PageCounts::new(step);
        self.count_free(pair, quiet_only, &mut counts);
        let mut chosen = counts.choose(end.saturating_sub(batch.bytes), *moves);
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
    fn order_behind(&self, pair: u32, stream: StreamId) -> Result<(), Error> {
        let device = self.device();
        let other = device.heaps.lock(slots_of(pair)[0]).stream;
        let event = device.call(D::create_event)?;
        let ordered = device
            .call(|memory| memory.record(event, other))
            .and_then(|()| device.call(|memory| memory.order_behind(stream, event)));
        let destroyed = device.call(|memory| memory.destroy_event(event));
        Ok(ordered.and(destroyed)?)
    }

    /// Begins an epoch of both heaps of `pair`, so that what is free now becomes quiet.
    pub(super) fn begin_epochs(&self, pair: u32) {
        for slot in slots_of(pair) {
            self.device().quiet().begin(slot);
        }
    }
}

/// Returns the slots of the small and the large heap of a pair.
fn slots_of(pair: u32) -> [u32; 2] {
    [PoolKind::Small, PoolKind::Large].map(|kind| slot_of(pair, kind))
}
