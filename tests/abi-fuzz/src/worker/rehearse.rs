//! Forecasts, compared with the effects of the requests.

use super::Worker;
use crate::abi::{self, blank};
use crate::finding;
use crate::permitted::Situation;
use crate::places::Rest;
use crate::world::add;
use cachalot::c::abi::{
    CACHALOT_BOUND_DEVICE, CACHALOT_WOULD_FAIL, CACHALOT_WOULD_HIT, cachalot_device_info, cachalot_fit,
    cachalot_forecast, cachalot_remaining_memory, cachalot_statistics,
};
use cachalot::c::status::CACHALOT_OK;
use std::sync::Arc;

impl Worker {
    /// Returns whether a device has pending frees or decommitted memory.
    fn has_pending(&self, device: usize) -> bool {
        let mut found = blank::<cachalot_statistics>();
        self.world.allocator.stats(device as i32, &mut found).judge(self.situation());
        let mut left = blank::<cachalot_remaining_memory>();
        let read = self.world.allocator.remaining(device as i32, &mut left).judge(self.situation_of_device());
        found.active_blocks.current != found.allocations.current || !read || left.spare_bytes > 0
    }

    /// Compares a forecast with the request.
    pub(crate) fn forecast(&mut self) {
        let stream = self.any_stream();
        let bytes = self.any_size();
        let Some(alive) = stream.alive() else { return };
        let alone = self.world.case.threads == 1 && !self.has_pending(stream.device);
        let mut outlook = blank::<cachalot_forecast>();
        let mut situation = self.situation();
        if stream.domain.rest() != Rest::Awake || self.world.case.threads > 1 {
            situation |= Situation::PARKED;
        }
        self.enter(stream.device);
        let (device, handle) = (stream.device as i32, abi::stream(stream.handle));
        let told = self.world.allocator.forecast(device, bytes, handle, &mut outlook).judge(situation);
        drop(alive);
        add(&self.world.tally.forecasts);
        let domain = Arc::clone(&stream.domain);
        let block = self.request(bytes, &stream, &domain, Situation::NONE);
        let address = block.as_ref().map(|block| block.address);
        if alone && told && !self.world.case.faults && domain.rest() == Rest::Awake {
            let wrong = match outlook.outcome {
                CACHALOT_WOULD_HIT => address != Some(outlook.address.addr() as u64),
                CACHALOT_WOULD_FAIL => address.is_some(),
                _ => false,
            };
            if wrong {
                let text = format!("of {bytes:#x} on {:#x}: {outlook:?}, and malloc returned", stream.handle);
                finding::report("forecast", &format!("{text} {address:x?}"));
            }
        }
        self.blocks.extend(block);
    }

    /// Compares an answer on several requests with the requests.
    pub(crate) fn would_fit(&mut self) {
        let stream = self.any_stream();
        let ready = self.world.case.threads == 1
            && !self.world.case.faults
            && stream.domain.rest() == Rest::Awake
            && stream.alive().is_some()
            && !self.has_pending(stream.device);
        if !ready {
            return self.ask_whether_fits();
        }
        self.enter(stream.device);
        // The answer is from the latest state of the device that the library knows.
        self.world
            .allocator
            .device_info(stream.device as i32, &mut blank::<cachalot_device_info>())
            .judge(self.situation());
        let sizes: Vec<usize> = (0..self.rng.usize(1..12)).map(|_| self.any_size()).collect();
        let mut fit = blank::<cachalot_fit>();
        let (device, handle) = (stream.device as i32, abi::stream(stream.handle));
        let allocator = self.world.allocator;
        let reply = allocator.would_fit(device, sizes.as_ptr(), sizes.len(), handle, &mut fit);
        if reply.status_in(self.situation()) != CACHALOT_OK {
            return;
        }
        add(&self.world.tally.fits);
        let domain = Arc::clone(&stream.domain);
        let mut served = 0;
        for &bytes in &sizes {
            let Some(block) = self.request(bytes, &stream, &domain, Situation::NONE) else { break };
            self.blocks.push(block);
            served += 1;
        }
        // The driver rounds segments up, which the count of free bytes does not know.
        let is_near = fit.bound == CACHALOT_BOUND_DEVICE || fit.device_free_bytes < fit.new_bytes + (4 << 20);
        if fit.served != served && !is_near {
            finding::report("would_fit", &format!("{fit:?}, and malloc served {served} of {sizes:x?}"));
        }
    }
}
