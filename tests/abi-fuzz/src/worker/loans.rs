//! Tagged pools that lend their memory for a while.

use super::Worker;
use super::parking::Target;
use crate::abi;
use crate::permitted::Situation;
use crate::places::Rest;
use cachalot::c::status::{CACHALOT_ERROR_PARKED, CACHALOT_ERROR_UNKNOWN_TAG, CACHALOT_OK};
use std::sync::Arc;

impl Worker {
    /// Lends the memory of a group, or of one of its pools, makes requests meanwhile, and brings it
    /// back. To other threads the memory is parked until then.
    pub(crate) fn lend(&mut self) {
        let Some(group) = self.any_group().filter(|group| group.owner.is_none()) else { return };
        let stream = self.any_stream_of(group.device);
        let Some(_alive) = stream.alive() else { return };
        if group.domain.begin(&[Rest::Awake]).is_none() {
            return;
        }
        let target = Target::Group(Arc::clone(&group));
        let (allocator, device) = (self.world.allocator, target.device());
        let pool = group.pools.lock().first().copied().filter(|_| self.rng.bool());
        let lent = match pool {
            Some(pool) => allocator.pool_lend(device, pool),
            None => allocator.tag_lend(device, group.tag),
        };
        self.say(|| format!("lend {target}: {}", lent.status));
        let mut rest = Rest::Awake;
        if lent.status_in(self.situation_of(&target)) == CACHALOT_OK {
            for _ in 0..self.rng.u8(..4) {
                self.malloc();
            }
            self.enter(stream.device);
            let reclaimed = match pool {
                Some(pool) => allocator.pool_reclaim(device, pool, abi::stream(stream.handle)),
                None => allocator.tag_reclaim(device, group.tag, abi::stream(stream.handle)),
            };
            self.say(|| format!("reclaim {target}: {}", reclaimed.status));
            let status = reclaimed.status_in(self.situation_of(&target));
            if !matches!(status, CACHALOT_OK | CACHALOT_ERROR_UNKNOWN_TAG) {
                // The next wake brings it back.
                rest = Rest::Parked;
            }
        }
        group.domain.set(rest);
    }

    /// Brings the memory of a group back that [`lend`](Self::lend) could not. Returns whether the
    /// target is not lent.
    pub(crate) fn bring_back(&self, target: &Target) -> bool {
        let Target::Group(group) = target else { return true };
        let stream = abi::stream(self.world.legacy[group.device].handle);
        self.enter(group.device);
        let reply = self.world.allocator.tag_reclaim(target.device(), group.tag, stream);
        let status = reply.status_in(self.situation_of(target) | Situation::PARKED);
        matches!(status, CACHALOT_OK | CACHALOT_ERROR_PARKED | CACHALOT_ERROR_UNKNOWN_TAG)
    }
}
