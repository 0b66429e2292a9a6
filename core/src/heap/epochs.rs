//! Epochs: how a heap knows which free blocks the device has finished with.
//!
//! A heap stamps each block that becomes free with its clock. To start an *epoch*, the caller
//! advances the clock and records a fence on the heap's stream. Blocks with an earlier stamp were
//! freed before the fence was recorded, so all work that used them precedes the fence. Once the
//! fence is complete, these blocks are *quiet*: their segment can be released without a wait for
//! work.
//!
//! ```text
//! freed_at    7    7    8    8 │ 9    9
//! clock       7 ───▶ 8 ───────▶│ 9
//!                 epoch 8      epoch 9: its fence is complete ⟹ blocks with freed_at < 9 are quiet
//! ```
//!
//! The fences wait in the [departures](crate::pages::departures) of the device. The heap only
//! counts the epochs.

use crate::sync::impl_empty;

/// The most epochs of one heap that may be unfinished at the same time.
pub(crate) const MAX_UNFINISHED: u32 = 4;

/// The unfinished epochs of the heap in a slot. When they started, the heap in the slot may have
/// had another stream and pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epochs {
    /// The number of epochs with a fence that is not known to be complete. At most
    /// [`MAX_UNFINISHED`].
    unfinished: u32,
    /// The stamp of the latest epoch.
    last: u64,
}

impl_empty! { Epochs { unfinished, last } }

impl Epochs {
    /// Returns whether another epoch may start.
    pub(crate) fn has_room(self) -> bool {
        self.unfinished < MAX_UNFINISHED
    }

    /// Starts an epoch with the clock at `stamp`. There must be room for it.
    pub(crate) fn begin(&mut self, stamp: u64) {
        debug_assert!(self.has_room(), "the caller asks for room first");
        (self.unfinished, self.last) = (self.unfinished + 1, stamp);
    }

    /// Ends an epoch.
    pub(crate) fn end(&mut self) {
        debug_assert!(self.unfinished > 0, "an epoch ends once");
        self.unfinished -= 1;
    }

    /// Returns the stamp of the newest unfinished epoch, or 0 if there is none. Blocks with an
    /// earlier stamp will become quiet without another fence.
    pub(crate) fn newest(self) -> u64 {
        if self.unfinished > 0 { self.last } else { 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_newest_epoch_is_told_until_the_last_one_has_ended() {
        let mut epochs = Epochs::default();
        assert_eq!(epochs.newest(), 0);
        (1..=u64::from(MAX_UNFINISHED)).for_each(|stamp| epochs.begin(stamp * 10));
        assert!(!epochs.has_room());
        for _ in 0..MAX_UNFINISHED {
            assert_eq!(epochs.newest(), u64::from(MAX_UNFINISHED) * 10);
            epochs.end();
        }
        assert_eq!((epochs.newest(), epochs.has_room()), (0, true));
    }
}
