//! Blocks whose pages move to the host and back while they are live.

use super::Worker;
use cachalot_core::{Advice, DeviceError, Error, ErrorKind, MIB};

/// Sizes of the blocks that move. Only whole pages under a block do, of up to 20 MiB each.
const MOVED: (u64, u64) = (4 * MIB, 48 * MIB);

impl Worker {
    /// Requests and writes a block with pages of its own, and says that it is cold, and perhaps
    /// that it is hot again. The contents are checked when the block is used or freed.
    ///
    /// Moves nothing during a capture unknown to the allocator.
    pub(super) fn advise(&mut self, device: usize) {
        let (shared, since) = (self.shared, self.shared.captures.now());
        let stage = &shared.devices[device];
        let places: Vec<_> = (0..self.places.len()).filter(|&at| self.places[at].device == device).collect();
        let place = self.rng.choice(places).expect("every device has a lane");
        let bytes = self.rng.u64(MOVED.0..=MOVED.1.min(stage.total_bytes / 4).max(MOVED.0));
        let Some(block) = self.obtain(device, self.line(place), bytes, true) else { return };
        let ptr = block.ptr;
        self.places[place].fresh.push(block);
        self.fill(place);
        let Ok(_alone) = shared.untold.try_write() else { return };
        for advice in [Advice::Cold, Advice::Hot].into_iter().take(self.rng.usize(1..=2)) {
            match shared.subject.pages(stage.index).and_then(|pages| pages.advise(ptr, advice)) {
                Ok(moved) => self.counts.advised_bytes += moved,
                // Some drivers have no copy within a device, and then no block ever moves.
                Err(Error::Device(DeviceError { kind: ErrorKind::Unsupported, .. }))
                    if self.counts.advised_bytes == 0 =>
                {
                    return;
                }
                // The contents are copied through other addresses.
                Err(Error::OutOfAddresses { .. }) if shared.is_faulty() => return self.counts.ooms += 1,
                Err(error) => {
                    if matches!(error, Error::Device(DeviceError { kind: ErrorKind::ContextLost, .. })) {
                        // A page of the block may have no memory, and the emulated context is not
                        // lost.
                        self.places[place].filled.retain(|block| block.ptr != ptr);
                    }
                    return self.failed_releasing("advice", &error, since);
                }
            }
        }
    }
}
