//! The forecast of a growth: whether free pages and new memory together would serve a request.

use super::Stitcher;
use crate::arena::forecast::Forecast;
use crate::arena::request::Request;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::stitched::{PagedHeap, Wanted};
use crate::pages::counts::PageCounts;
use crate::sync::Lock;
use crate::tables::Storage;

impl<D: DeviceMemory, R: Lock, S: Storage> Stitcher<'_, D, R, S> {
    /// Returns the effect that [`grow`](Self::grow) would have, or `None` if it could not serve the
    /// request. Free pages count whether or not their work is complete: without a moved page, the
    /// request would wait for the work and use the page all the same.
    pub(crate) fn forecast(&self, request: &Request) -> Result<Option<Forecast>, Error> {
        let heaps = &self.device().arena.heaps;
        if let Some(other) = self.other_heap(request)
            && let Some(ptr) = heaps.lock(other).peek(request.size)
        {
            return Ok(Some(Forecast::Hit(ptr)));
        }
        let lacking = PagedHeap(&mut heaps.lock(request.slot)).lacking(request.size);
        let needed = lacking.unwrap_or(request.size.next_multiple_of(self.step()));
        if lacking.is_none() && self.range_to_reserve()? < request.size + self.step() {
            return Ok(None);
        }
        let limit = self.device().ledger.limit();
        let spare = self.device().page_pool.lock().bytes.spare;
        let mut at_hand = limit.saturating_sub(self.device().ledger.reserved()).saturating_add(spare);
        if at_hand < needed && super::may_move(request) {
            at_hand += self.movable_bytes(request)?;
        }
        Ok((at_hand >= needed).then_some(Forecast::Expand))
    }

    /// Returns the bytes of the free pages that may move to the heap of a request.
    fn movable_bytes(&self, request: &Request) -> Result<u64, Error> {
        let device = self.device();
        let mut counts = PageCounts::new(self.step());
        for pair in device.arena.heaps.pairs_of(0) {
            let stream = device.heaps.lock(super::gather::slots_of(pair.pair)[0]).stream;
            // Another stream that captures can neither be ordered before the request nor waited for.
            if pair.pair != request.slot / 2 && device.call(|memory| memory.is_capturing(stream))? {
                continue;
            }
            self.count_free(Wanted::Free, pair.pair, &mut counts);
        }
        Ok(counts.bytes())
    }
}
