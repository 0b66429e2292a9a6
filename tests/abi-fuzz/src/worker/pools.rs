//! Private pools without a tag, and requests routed to the pools.

use super::Worker;
use crate::abi;
use crate::finding;
use crate::permitted::Situation;
use crate::places::{Domain, Rest};
use cachalot::c::abi::{
    CACHALOT_POOL_NO_SPLIT, CACHALOT_POOL_USE_ON_OOM, CACHALOT_ROUTE_ALL, CACHALOT_ROUTE_STREAM, CACHALOT_ROUTE_THREAD,
    cachalot_pool,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Greatest number of a thread's pools.
const MOST_POOLS: usize = 3;

/// A private pool of a thread, with a single user.
#[derive(Debug)]
pub(crate) struct Pool {
    device: usize,
    name: cachalot_pool,
    /// Never parked.
    domain: Arc<Domain>,
}

impl Worker {
    /// Makes a pool.
    pub(crate) fn pool_make(&mut self) {
        if self.pools.len() >= MOST_POOLS {
            return;
        }
        let device = self.any_device();
        let flags = match self.rng.u8(..6) {
            0 => CACHALOT_POOL_USE_ON_OOM,
            1 => CACHALOT_POOL_NO_SPLIT,
            2 => CACHALOT_POOL_USE_ON_OOM | CACHALOT_POOL_NO_SPLIT,
            _ => 0,
        };
        let mut name = cachalot_pool::default();
        let allocator = self.world.allocator;
        if self.rng.bool() {
            allocator.pool_create(device as i32, flags, &mut name).judge(self.situation());
        } else {
            name = cachalot_pool { first: 1 << 60, second: self.world.tags.fetch_add(1, Ordering::Relaxed) };
            allocator.pool_retain(device as i32, name, flags).judge(self.situation());
        }
        self.place_pool(device, name);
        self.say(|| format!("pool {name:?} flags {flags}"));
        self.pools.push(Pool { device, name, domain: Arc::new(Domain::new("pool".to_owned())) });
    }

    /// Sometimes says where the new pages of a pool lie, mostly on the host.
    pub(crate) fn place_pool(&mut self, device: usize, name: cachalot_pool) {
        if self.rng.u8(..4) == 0 {
            let on = i32::from(self.rng.u8(..4) > 0);
            self.say(|| format!("pool {name:?} on the host: {on}"));
            // Without `spill`, it is refused.
            let reply = self.world.allocator.pool_spill(device as i32, name, on);
            reply.judge(self.situation_of_device() | Situation::ORDINARY);
        }
    }

    /// Releases a pool, whose blocks live on.
    pub(crate) fn pool_end(&mut self) {
        if self.pools.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.pools.len());
        let pool = self.pools.swap_remove(index);
        self.release(&pool);
        if self.rng.bool() {
            let reply = self.world.allocator.pool_empty(pool.device as i32, pool.name);
            reply.judge(self.situation() | Situation::GONE);
        }
    }

    /// Releases a pool of the thread.
    fn release(&self, pool: &Pool) {
        let (allocator, device) = (self.world.allocator, pool.device as i32);
        let mut users = 0;
        allocator.pool_users(device, pool.name, &mut users).judge(self.situation());
        if users != 1 {
            finding::report("pool", &format!("{pool:?} has {users} users"));
        }
        allocator.pool_release(device, pool.name).judge(self.situation());
    }

    /// Releases every pool of the thread.
    pub(crate) fn release_pools(&mut self) {
        for pool in std::mem::take(&mut self.pools) {
            self.release(&pool);
        }
    }

    /// Requests blocks of a pool. With several threads, the route covers only the calling thread: a
    /// wider route would lead requests of other threads.
    pub(crate) fn pool_requests(&mut self) {
        if self.pools.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.pools.len());
        let (device, name) = (self.pools[index].device, self.pools[index].name);
        let domain = Arc::clone(&self.pools[index].domain);
        // Blocks of a pool whose pages lay elsewhere before stay.
        self.place_pool(device, name);
        let stream = self.any_stream_of(device);
        let Some(alive) = stream.alive() else { return };
        let route = match self.rng.u8(..4) {
            0 if self.world.case.threads == 1 => CACHALOT_ROUTE_ALL,
            1 if self.world.case.threads == 1 => CACHALOT_ROUTE_STREAM,
            _ => CACHALOT_ROUTE_THREAD,
        };
        let allocator = self.world.allocator;
        self.enter(device);
        if !allocator.pool_begin(device as i32, name, route, abi::stream(stream.handle)).judge(self.situation()) {
            return;
        }
        for _ in 0..self.rng.u8(1..5) {
            if self.is_over_budget() {
                self.free();
                continue;
            }
            let bytes = self.any_size();
            if let Some(mut block) = self.request(bytes, &stream, &domain, Situation::NONE) {
                debug_assert_eq!(domain.rest(), Rest::Awake);
                self.touch(&mut block, &stream, true);
                self.blocks.push(block);
            }
        }
        drop(alive);
        allocator.pool_end(device as i32, name).judge(self.situation());
        allocator.pool_release(device as i32, name).judge(self.situation());
    }
}
