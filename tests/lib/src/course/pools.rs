//! Private pools, routes, captures and tags.

use super::{Course, note, tag};
use crate::host::{DEVICE, MIB};
use cachalot_core::{PoolId, PoolOptions, Route, RoutePurpose, StreamId, TagLimits};

impl Course {
    /// Returns a pool, rarely the default pool.
    fn any_pool(&mut self) -> PoolId {
        let first = usize::from(self.pools.len() > 1 && self.random.u8(..12) > 0);
        self.pools[self.random.usize(first..self.pools.len())]
    }

    fn options(&mut self) -> PoolOptions {
        PoolOptions { use_on_oom: self.random.bool(), no_split: self.random.bool() }
    }

    pub(super) fn pools(&mut self) {
        let (pool, options, stream) = (self.any_pool(), self.options(), self.stream());
        let allocator = &self.allocator;
        let number = if self.pools.len() == 1 { self.random.u8(..4) } else { self.random.u8(..20) };
        let answer = match number {
            0 | 1 => {
                let created = allocator.pools(DEVICE).unwrap().create(options);
                let created = self.told("create", created);
                self.pools.extend(created);
                return;
            }
            2 => {
                let name = PoolId(self.random.u64(..6), self.random.u64(..3));
                let retained = allocator.pools(DEVICE).unwrap().retain(name, options);
                self.pools.extend(retained.is_ok().then_some(name));
                retained
            }
            3 => allocator.pools(DEVICE).unwrap().set_options(pool, options),
            4 => {
                let released = allocator.pools(DEVICE).unwrap().release(pool);
                if released.is_ok() && self.random.u8(..4) > 0 {
                    self.pools.retain(|&kept| kept != pool);
                }
                released
            }
            5 => {
                let supplied = pool != PoolId::DEFAULT && self.random.bool();
                self.device().set_supplied(pool, supplied);
                self.allocator.pools(DEVICE).unwrap().empty(pool)
            }
            6..=8 => return self.begin_route(pool, stream),
            9 | 10 => return self.begin_capture(pool, stream),
            11..=13 => {
                let Some((pool, captured)) = self.routes.pop() else { return };
                return self.end_route(pool, captured);
            }
            14 => {
                let mut sums = Vec::new();
                let answer = allocator
                    .pools(DEVICE)
                    .map(|pools| pools.reserved(|pool, kind, bytes| sums.push((pool, kind, bytes))));
                note!(self, "of pools {sums:?} {:?}", self.allocator.pools(DEVICE).unwrap().users(pool));
                answer
            }
            _ => return self.tags(pool),
        };
        self.told("pool", answer);
    }

    fn begin_route(&mut self, pool: PoolId, stream: StreamId) {
        let route = match self.random.u8(..4) {
            0 => Route::All,
            1 => Route::Thread(self.random.u64(..2)),
            2 => {
                // The number names one route alone.
                self.led += 1;
                self.device().set_led(self.led, [stream]);
                Route::Host(self.led)
            }
            _ => Route::Stream(stream),
        };
        let begun = self.allocator.pools(DEVICE).unwrap().begin_route(pool, route, RoutePurpose::Requests);
        if self.told("route", begun).is_some() {
            self.routes.push((pool, None));
        }
    }

    fn begin_capture(&mut self, pool: PoolId, stream: StreamId) {
        let begun =
            self.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(stream), RoutePurpose::Capture);
        if self.told("capture", begun).is_some() {
            self.device().set_capturing(stream, true);
            self.device().capture_work(stream);
            self.routes.push((pool, Some(stream)));
        }
    }

    /// Ends a route; of a capture, with the capturing stream.
    pub(super) fn end_route(&mut self, pool: PoolId, captured: Option<StreamId>) {
        let ended = match captured {
            Some(stream) => {
                self.device().set_capturing(stream, false);
                self.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture)
            }
            None => self.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests),
        };
        self.told("end of route", ended.map(drop));
    }

    fn tags(&mut self, pool: PoolId) {
        let tag = tag(&mut self.random);
        let known = self.allocator.tags(DEVICE).unwrap().held(tag);
        note!(
            self,
            "tag {known:?} Ok({:?})",
            self.allocator.tags(DEVICE).unwrap().next(Some(tag).filter(|_| self.random.bool()))
        );
        let answer = match self.random.u8(..4) {
            0 => {
                let max = self.random.bool().then(|| self.random.u64(..80) * MIB);
                let low = self.random.u64(..24) * MIB;
                let limits = TagLimits { max, low, weight: self.random.u32(..300), clear: self.random.bool() };
                self.allocator.tags(DEVICE).unwrap().limit(tag, Some(limits).filter(|_| self.random.u8(..5) > 0))
            }
            1 => {
                let on = self.random.bool();
                self.allocator.parking(DEVICE).and_then(|parking| parking.serve_elsewhere(tag, on))
            }
            _ => {
                let tag = Some(tag).filter(|_| self.random.u8(..6) > 0);
                self.allocator.parking(DEVICE).and_then(|parking| parking.tag_pool(pool, tag))
            }
        };
        self.told("tag", answer);
    }
}
