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

/// What a request comes down to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// As the program asked, in bytes.
    pub bytes: u64,
    /// What that is rounded to.
    pub size: u64,
    pub kind: PoolKind,
    pub stream: StreamId,
    /// Number of the pool.
    pub pool: u32,
    /// The slot of the heap that serves it.
    pub slot: u32,
    /// What leads it into its pool, if that is a private one.
    pub route: Option<RouteEntry>,
    /// Its stream is capturing a graph.
    pub capturing: bool,
    /// Where in the program it is made, as far as that is recorded.
    pub site: u32,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Rounds and routes a request, and finds or makes the heap that serves it, in the pair that `pair` uses. The pool is not given
    /// up before `serve` is done.
    pub(crate) fn with_request<T>(
        &self,
        bytes: u64,
        stream: StreamId,
        from: u32,
        pair: impl for<'a> FnOnce(&'a Self, u32, StreamId) -> Result<PairUse<'a, D, R, S>, Error>,
        serve: impl FnOnce(&Request) -> Result<T, Error>,
    ) -> Result<T, Error> {
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
            serve(&Request { bytes, size, kind, stream, pool, slot: pair.slot(kind), route, capturing, site: from })
        };
        let served = is_capturing().and_then(serve);
        if pool != 0 {
            self.leave_pool(pool);
        }
        served
    }

    /// A search of the free blocks counts in the ages of those that are passed over.
    pub(crate) fn count_search(&self, request: &Request) {
        if self.flags.has(flags::AGES) {
            let pool = self.shared_pool(request.pool);
            pool.searches[request.kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What a request of `bytes`, below [`MAX_REQUEST`], is rounded to: perhaps beyond that. Nothing is rounded like one byte.
    fn round(&self, bytes: u64) -> u64 {
        self.round_with(self.flags.load(), bytes.max(1))
    }

    /// The same of something, given what there is to be seen to.
    #[inline(always)]
    pub(super) fn round_with(&self, noted: u32, bytes: u64) -> u64 {
        if noted & flags::ROUNDING == 0 {
            self.round_to_unit(bytes)
        } else if self.policy.rounds_otherwise() {
            self.policy.round(bytes, self.small_max)
        } else {
            self.divide(bytes)
        }
    }

    /// The next multiple of what the divisions in force say.
    #[inline(never)]
    fn divide(&self, bytes: u64) -> u64 {
        divide(bytes, |interval| self.divisions[interval].load(Ordering::Relaxed))
    }

    /// The next multiple of the unit.
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
