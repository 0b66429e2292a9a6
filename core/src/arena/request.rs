//! A request: rounded, and routed to the heap that serves it.

use crate::arena::heaps::PairUse;
use crate::arena::registry::RouteEntry;
use crate::arena::{Arena, flags};
use crate::config::rounding::{PoolKind, divide};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::{MAX_REQUEST, StreamId};

/// A request on its way through the slow path. Its pair of heaps is used for as long as this exists, so no other call can give
/// the pair to another stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The size that the program requested, in bytes.
    pub bytes: u64,
    /// The size of the block that serves the request, in bytes: `bytes`, rounded by the policy.
    pub size: u64,
    /// The kind of heap that serves blocks of `size`.
    pub kind: PoolKind,
    pub stream: StreamId,
    /// The number of the pool; 0 is the default pool.
    pub pool: u32,
    /// The slot of the heap that serves the request.
    pub slot: u32,
    /// The route into the pool, if the pool is private.
    pub route: Option<RouteEntry>,
    /// The stream is capturing a graph: nothing may be waited for or released.
    pub capturing: bool,
    /// The call site of the request; 0 if none is recorded.
    pub site: u32,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Rounds and routes a request, and calls `serve` with it. `pair` finds or makes the pair of heaps. The pool stays in use
    /// until `serve` has returned.
    ///
    /// Errors: [`Error::TooLarge`], those of `pair` and `serve`, and those of the device if it is asked about a capture.
    pub(crate) fn with_request<T>(
        &self,
        bytes: u64,
        stream: StreamId,
        call_site: u32,
        pair: impl for<'a> FnOnce(&'a Self, u32, StreamId) -> Result<PairUse<'a, D, R, S>, Error>,
        serve: impl FnOnce(&Request) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // Rounding cannot overflow below the limit, and may reach the limit.
        let size = if bytes < MAX_REQUEST { self.round(bytes) } else { MAX_REQUEST };
        if size >= MAX_REQUEST {
            return Err(Error::TooLarge(bytes));
        }
        let kind = self.kind_of(size);
        let route = if self.flags.has(flags::ROUTES) { self.enter_pool(stream) } else { None };
        let pool = route.map_or(0, |route| route.pool);
        let is_capturing = || Ok(self.flags.has(flags::CAPTURE) && self.call(|device| device.is_capturing(stream))?);
        let serve = |capturing| {
            let pair = pair(self, pool, stream)?;
            serve(&Request {
                bytes,
                size,
                kind,
                stream,
                pool,
                slot: pair.slot(kind),
                route,
                capturing,
                site: call_site,
            })
        };
        // One way out, whatever fails: a pool that was entered is left again.
        let served = is_capturing().and_then(serve);
        if pool != 0 {
            self.leave_pool(pool);
        }
        served
    }

    /// Counts a search of the free blocks of a pool, if they age: the count is the clock of their ages.
    pub(crate) fn count_search(&self, request: &Request) {
        if self.flags.has(flags::AGES) {
            let pool = self.shared_pool(request.pool);
            pool.searches[request.kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The size of the block for a request of `bytes`, which is below [`MAX_REQUEST`]. The result may lie above that limit. A
    /// request of zero bytes is rounded as a request of one byte.
    fn round(&self, bytes: u64) -> u64 {
        self.round_with(self.flags.load(), bytes.max(1))
    }

    /// The size of the block for a request of `bytes`, which is positive. `word` is the word of flags.
    #[inline(always)]
    pub(super) fn round_with(&self, word: u32, bytes: u64) -> u64 {
        // Nearly every configuration rounds to the unit alone, so the fast path asks for that with one bit.
        if word & flags::ROUNDING == 0 {
            self.round_to_unit(bytes)
        } else if self.policy.rounds_otherwise() {
            self.policy.round(bytes, self.small_max)
        } else {
            self.divide(bytes)
        }
    }

    /// Rounds up as `roundup_power2_divisions` says. Out of line: few programs set it.
    #[inline(never)]
    fn divide(&self, bytes: u64) -> u64 {
        divide(bytes, |interval| self.divisions[interval].load(Ordering::Relaxed))
    }

    /// Rounds up to a multiple of the policy's unit, a power of two.
    #[inline(always)]
    fn round_to_unit(&self, bytes: u64) -> u64 {
        (bytes + (self.unit - 1)) & !(self.unit - 1)
    }

    /// The kind of heap that serves blocks of `size` bytes.
    #[inline(always)]
    pub(super) fn kind_of(&self, size: u64) -> PoolKind {
        if size <= self.small_max { PoolKind::Small } else { PoolKind::Large }
    }
}
