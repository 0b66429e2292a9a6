//! The model's reclaim ladder, and all operations that release memory.

use super::blocks::{Block, FreeBlock, Owner, Segment, State};
use super::pools::Purpose;
use super::{Answer, Model, Refusal, Request, Shortage, rounding};
use cachalot_core::{DevicePtr, ErrorKind, PoolId, PoolKind, Route, Segments, StreamId};

impl Model {
    pub(super) fn reclaim(&mut self, request: &Request) -> Answer<u64> {
        if !request.capturing {
            self.release_ended();
        }
        self.collect_garbage();
        self.reject_early(request)?;
        if let Some(addr) = self.obtain(request)? {
            return Ok(addr);
        }
        if let Some(addr) = self.search_pools_for_anyone(request) {
            return Ok(addr);
        }
        if self.release_oversize(request)
            && let Some(addr) = self.obtain(request)?
        {
            return Ok(addr);
        }
        if !request.capturing {
            if self.caching
                && let Some(addr) = self.search_in_turn(request)?
            {
                return Ok(addr);
            }
            self.wait_for_events()?;
            let again = if self.caching { self.search(request) } else { self.obtain(request)? };
            if let Some(addr) = again {
                return Ok(addr);
            }
            self.release_cached(None)?;
            self.statistics.count("num_alloc_retries");
            if let Some(addr) = self.obtain(request)? {
                return Ok(addr);
            }
            // The wait has made memory free that these two can use.
            if let Some(addr) = self.search_pools_for_anyone(request) {
                return Ok(addr);
            }
            if self.release_oversize(request)
                && let Some(addr) = self.obtain(request)?
            {
                return Ok(addr);
            }
        }
        Err(self.out_of_memory(request))
    }

    /// Serves a request of the default pool from the private pools with the option `use_on_oom`.
    fn search_pools_for_anyone(&mut self, request: &Request) -> Option<u64> {
        if !self.caching || request.owner.pool != 0 {
            return None;
        }
        self.pools_for_anyone().into_iter().find_map(|pool| {
            let owner = Owner { pool, ..request.owner };
            self.search(&Request { owner, ..*request })
        })
    }

    fn reject_early(&mut self, request: &Request) -> Answer<()> {
        let bytes = self.segment_bytes(request);
        let total = self.device.memory_info()?.total;
        let allowed = (self.config.per_process_memory_fraction() * total as f64).round() as u64;
        if !self.caching || !self.config.throw_on_device_oom() || self.reserved() + bytes <= allowed {
            return Ok(());
        }
        self.statistics.count("num_oom_rejections");
        Err(Refusal::Rejected(bytes))
    }

    pub(super) fn out_of_memory(&mut self, request: &Request) -> Refusal {
        self.statistics.count("num_ooms");
        let segment = self.segment_bytes(request);
        let free = |of_owner: &dyn Fn(&Owner) -> bool| {
            let segments = self.memory.segments.iter().filter(|segment| of_owner(&segment.owner));
            let blocks = segments.flat_map(|segment| &segment.blocks);
            blocks.filter(|block| block.state == State::Free).map(|block| block.size).collect::<Vec<_>>()
        };
        let [allocated, active] = ["allocated_bytes", "active_bytes"].map(|name| self.statistics.current(name));
        Refusal::OutOfMemory(Shortage {
            requested: request.bytes,
            block: request.size,
            segment,
            allocated,
            reserved: self.reserved(),
            pending: active - allocated,
            private_free: free(&|owner| owner.pool != 0).into_iter().sum(),
            largest_free: free(&|owner| *owner == request.owner).into_iter().max().unwrap_or(0),
            largest_free_elsewhere: free(&|owner| *owner != request.owner).into_iter().max().unwrap_or(0),
        })
    }

    fn fits_limit(&self, bytes: u64) -> bool {
        self.limit.is_none_or(|limit| self.reserved() + bytes <= limit)
    }

    /// Returns the bytes of a new segment for a request: the request's own, without a cache.
    fn segment_bytes(&self, request: &Request) -> u64 {
        if self.caching { rounding::segment(request.size, &self.config) } else { request.size }
    }

    pub(super) fn obtain(&mut self, request: &Request) -> Answer<Option<u64>> {
        let bytes = self.segment_bytes(request);
        if self.caching && self.expands() {
            return if self.fits_limit(bytes) { self.expand(request) } else { Ok(None) };
        }
        self.obtain_segment(request, bytes)
    }

    fn obtain_segment(&mut self, request: &Request, bytes: u64) -> Answer<Option<u64>> {
        if !self.fits_limit(bytes) {
            return Ok(None);
        }
        let base = match self.device.obtain(bytes) {
            Ok(base) => base.0,
            Err(error) if error.kind == ErrorKind::OutOfMemory => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (owner, kind) = (request.owner, request.owner.kind);
        let blocks = vec![Block::new(base, bytes, State::Free)];
        self.memory.segments.push(Segment { base, bytes, owner, granule: None, blocks });
        self.statistics.change("segment", kind, 1);
        self.statistics.change("reserved_bytes", kind, bytes.cast_signed());
        self.statistics.count("num_device_alloc");
        if self.is_oversize(bytes) {
            self.statistics.change_oversize("oversize_segments", 1);
        }
        self.hand_out(base, request);
        Ok(Some(base))
    }

    /// Releases the segment that consists of the free block at `addr`.
    fn release(&mut self, addr: u64) {
        let (s, _) = self.memory.at(addr);
        let Segment { base, bytes, owner, .. } = self.memory.segments.remove(s);
        self.device.release(DevicePtr(base), bytes).expect("the device obtained it");
        self.statistics.change("segment", owner.kind, -1);
        self.statistics.change("reserved_bytes", owner.kind, -bytes.cast_signed());
        self.statistics.count("num_device_free");
        if self.is_oversize(bytes) {
            self.statistics.change_oversize("oversize_segments", -1);
        }
    }

    /// Releases every wholly free ordinary segment whose owner is `wanted`.
    pub(super) fn release_ordinary(&mut self, wanted: impl Fn(Owner) -> bool) {
        let of_wanted = self.memory.segments.iter().filter(|segment| wanted(segment.owner));
        let bases: Vec<_> = of_wanted.map(|segment| segment.base).collect();
        for base in bases {
            if self.memory.is_releasable(base) {
                self.release(base);
            }
        }
    }

    /// Collects segments by age. The average age is fixed for one pass over the large free blocks
    /// of the default pool.
    fn collect_garbage(&mut self) {
        let (Some(limit), Some(threshold)) = (self.limit, self.config.garbage_collection_threshold()) else { return };
        let Some(target) = self.reserved().checked_sub((threshold * limit as f64) as u64).filter(|&target| target > 0)
        else {
            return;
        };
        let now = self.pool(0).searches[PoolKind::Large as usize];
        let age = |model: &Self, addr: u64| now - model.memory.block(addr).born;
        let mut old: Vec<FreeBlock> = self.memory.free_list(0, PoolKind::Large);
        old.retain(|block| self.memory.is_releasable(block.addr));
        let mut reclaimed = 0;
        while reclaimed < target && !old.is_empty() {
            let ages: u64 = old.iter().map(|block| age(self, block.addr)).sum();
            let average = ages as f64 / old.len() as f64;
            let (go, stay): (Vec<_>, Vec<_>) =
                old.into_iter().partition(|block| age(self, block.addr) as f64 >= average);
            for block in &go {
                reclaimed += block.size;
                self.release(block.addr);
            }
            old = stay;
            if go.is_empty() {
                break;
            }
        }
    }

    /// Releases the smallest oversize segment of the owner that makes enough room, or else several
    /// from the largest down. An expandable block in the first place ends the pass, together with
    /// all blocks above.
    fn release_oversize(&mut self, request: &Request) -> bool {
        let Some(max) = self.max_split() else { return false };
        if self.keeps_graphs(request.owner.pool) {
            return false;
        }
        let wanted = request.size.max(max);
        let mut list = self.memory.free_list_of(request.owner);
        list.retain(|block| self.memory.is_releasable(block.addr) || self.memory.is_expandable(block.addr));
        let enough = list.iter().position(|block| block.size >= wanted);
        if let Some(first) = enough.map(|first| list[first])
            && !self.memory.is_expandable(first.addr)
        {
            self.release(first.addr);
            return true;
        }
        list.truncate(enough.unwrap_or(list.len()));
        let mut released = 0;
        for block in list.into_iter().rev() {
            if released >= wanted || block.size < max {
                break;
            }
            if !self.memory.is_expandable(block.addr) {
                released += block.size;
                self.release(block.addr);
            }
        }
        released >= wanted
    }

    /// Empties the cache of the default pool and of the unused private pools, or of a single pool.
    fn release_cached(&mut self, only: Option<usize>) -> Answer<()> {
        let mut result = Ok(());
        for pool in self.releasable_pools() {
            if only.is_some_and(|only| only != pool) {
                continue;
            }
            let kinds = if pool == 0 { [PoolKind::Large, PoolKind::Small] } else { [PoolKind::Small, PoolKind::Large] };
            for kind in kinds {
                self.release_ordinary(|owner| owner.pool == pool && owner.kind == kind);
                for stream in self.streams_of(pool, kind) {
                    result = result.and(self.unmap_free(Owner { pool, kind, stream }));
                }
            }
        }
        self.forget_unused_pools();
        result
    }

    /// Lists the streams with segments of one kind in a pool, ascending.
    fn streams_of(&self, pool: usize, kind: PoolKind) -> Vec<StreamId> {
        let owners = self.memory.segments.iter().map(|segment| segment.owner);
        let mut streams: Vec<_> =
            owners.filter(|owner| (owner.pool, owner.kind) == (pool, kind)).map(|owner| owner.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Waits for all pending frees, then empties the cache.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn empty_cache(&mut self) -> Answer<()> {
        let waited = self.wait_for_events();
        let released = self.release_cached(None);
        waited.and(released)
    }

    /// Returns whether a captured graph has memory of a pool with users.
    fn keeps_graphs(&self, pool: usize) -> bool {
        pool != 0 && self.pool(pool).captured && !self.is_unused(pool)
    }

    /// Waits for all pending frees, then empties the cache of a private pool without memory of a
    /// graph.
    ///
    /// # Errors
    /// [`Refusal::UnknownPool`], [`Refusal::GraphMemory`], and errors of the device.
    pub fn empty_pool(&mut self, id: PoolId) -> Answer<()> {
        let named = self.pools.iter().position(|pool| pool.as_ref().is_some_and(|pool| pool.id == id));
        let pool = named.filter(|&pool| pool != 0).ok_or(Refusal::UnknownPool)?;
        let waited = self.wait_for_events();
        let keeps = self.keeps_graphs(pool);
        let mut released = if self.unused_pools().contains(&pool) { self.release_cached(Some(pool)) } else { Ok(()) };
        if !self.is_unused(pool) && !keeps {
            for kind in [PoolKind::Large, PoolKind::Small] {
                self.release_ordinary(|owner| owner.pool == pool && owner.kind == kind);
                for stream in self.streams_of(pool, kind) {
                    released = released.and(self.unmap_free(Owner { pool, kind, stream }));
                }
            }
        }
        let holds = self.memory.segments.iter().any(|segment| segment.owner.pool == pool);
        self.forget_unused_pools();
        waited.and(released).and(if keeps && holds { Err(Refusal::GraphMemory) } else { Ok(()) })
    }

    /// Trims the cache until at most `keep` bytes are reserved. Releases wholly free segments
    /// first, the largest first and the latest among equals, then unused granules of expandable
    /// segments.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn trim(&mut self, keep: u64) -> Answer<()> {
        let pools = self.releasable_pools();
        while self.reserved() > keep {
            let may_go =
                |segment: &&Segment| pools.contains(&segment.owner.pool) && self.memory.is_releasable(segment.base);
            let largest =
                self.memory.segments.iter().filter(may_go).max_by_key(|segment| (segment.bytes, segment.base));
            let Some(base) = largest.map(|segment| segment.base) else { break };
            self.release(base);
        }
        for &pool in &pools {
            for kind in [PoolKind::Large, PoolKind::Small] {
                for stream in self.streams_of(pool, kind) {
                    if self.reserved() > keep {
                        self.unmap_free(Owner { pool, kind, stream })?;
                    }
                }
            }
        }
        self.forget_unused_pools();
        Ok(())
    }

    /// Releases the cached memory of a destroyed stream.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn stream_destroyed(&mut self, stream: StreamId) -> Answer<()> {
        // Before the stream ends: gathered frees wait for an event that is recorded while it
        // exists.
        for entry in &mut self.routes {
            if entry.purpose != Purpose::Requests && entry.route == Route::Stream(stream) {
                (entry.route, entry.capture) = (Route::Stream(StreamId(u64::MAX)), false);
            }
        }
        let mut result = self.record_gathered().map(|_| ());
        for pool in 0..self.pools.len() {
            self.ended.insert((pool, stream));
        }
        for pool in self.releasable_pools() {
            result = result.and(self.release_stream(pool, stream));
        }
        self.forget_unused_pools();
        result
    }

    /// Releases the memory of ended streams that became free since the report. A failure of the
    /// device does not fail the request.
    fn release_ended(&mut self) {
        let releasable = self.releasable_pools();
        for (pool, stream) in self.ended.clone() {
            if releasable.contains(&pool) {
                let _counted = self.release_stream(pool, stream);
            }
        }
        self.forget_unused_pools();
    }

    fn release_stream(&mut self, pool: usize, stream: StreamId) -> Answer<()> {
        let mut result = Ok(());
        for kind in [PoolKind::Small, PoolKind::Large] {
            let owner = Owner { pool, kind, stream };
            self.release_ordinary(|of| of == owner);
            result = result.and(self.unmap_free(owner));
        }
        result
    }
}
