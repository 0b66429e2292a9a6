//! Queries with known answers, and invalid calls with an expected refusal. No call changes the
//! allocator's state.

use super::Worker;
use crate::verdict::Kind;
use cachalot_core::{Allocation, DevicePtr, Error, MAX_REQUEST, UNIT};

impl Worker {
    /// Queries a block of the thread, or makes an invalid call.
    pub(super) fn inspect(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let filled = self.places[place].filled.len();
        if filled == 0 {
            return;
        }
        let at = self.rng.usize(0..filled);
        match self.rng.u32(0..4) {
            0 | 1 => self.query_block(place, at),
            2 => self.free_invalid(place, at),
            _ => self.request_invalid(),
        }
    }

    /// Compares the allocator's information about an address inside a block with the run's own.
    fn query_block(&mut self, place: usize, at: usize) {
        let block = &self.places[place].filled[at];
        let asked = block.ptr.offset(self.rng.u64(0..block.bytes));
        let index = self.shared.devices[block.device].index;
        let verdict = &self.shared.verdict;
        match self.shared.subject.base_of(asked) {
            Ok(Allocation { base, size, requested, stream, device, .. })
                if (base, requested, stream, device) == (block.ptr, block.bytes, block.home, index)
                    && size >= block.bytes => {}
            Ok(wrong) => {
                verdict.report(Kind::Books, format!("{asked} is in {block:?}, but base_of returns {wrong:?}"));
            }
            Err(error) => self.shared.refused(&format!("base_of {asked} in {block:?}"), &error),
        }
    }

    /// Frees with a wrong size, an inner address, the null address, or an impossible address.
    fn free_invalid(&mut self, place: usize, at: usize) {
        let block = &self.places[place].filled[at];
        let (ptr, bytes) = (block.ptr, block.bytes);
        let subject = &self.shared.subject;
        let (what, answer) = match self.rng.u32(0..4) {
            0 => ("a free of the null address", subject.free(DevicePtr::NULL)),
            1 => ("a free with a wrong size", subject.free_sized(ptr, bytes + self.rng.u64(1..=bytes))),
            2 => ("a free from within", subject.free(ptr.offset(if bytes > UNIT { UNIT } else { 1 }))),
            _ => ("a free of the last address", subject.free(DevicePtr(u64::MAX))),
        };
        let null = what.ends_with("the null address");
        match answer {
            Ok(()) if null => {}
            Err(Error::InvalidPointer { .. } | Error::WrongSize { .. }) if !null => {}
            Ok(()) => self.shared.verdict.report(Kind::Accepted, format!("{what}: {ptr}, {bytes} bytes")),
            Err(error) => self.shared.refused(what, &error),
        }
    }

    /// Requests 0 bytes, and more bytes than any device has.
    fn request_invalid(&mut self) {
        let place = self.rng.usize(0..self.places.len());
        let (device, line) = (self.places[place].device, self.line(place));
        let index = self.shared.devices[device].index;
        let subject = &self.shared.subject;
        let verdict = &self.shared.verdict;
        match subject.malloc(index, 0, line.id) {
            Ok(DevicePtr::NULL) => {}
            other => verdict.report(Kind::Books, format!("a request of nothing: {other:?}")),
        }
        for bytes in [MAX_REQUEST, u64::MAX] {
            // The allocator checks the health of the device first.
            match subject.malloc(index, bytes, line.id) {
                Err(Error::TooLarge(_)) => {}
                Err(Error::Device(error)) => self.shared.device_failed("an absurd request", error),
                other => verdict.report(Kind::Accepted, format!("a request of {bytes} bytes: {other:?}")),
            }
        }
    }
}
