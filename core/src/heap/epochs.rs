//! Epochs: which free blocks of a heap the device has finished with.
//!
//! A heap stamps each block that becomes free with the heap's clock. To begin an *epoch* of a heap,
//! the caller advances the clock and records a fence on the heap's stream. Blocks with an earlier
//! stamp were freed before the recording, so all work that used the blocks precedes the fence. Once
//! the fence is complete, the blocks are *quiet*: a release of the segment waits for no work.
//!
//! ```text
//! freed_at    7    7    8    8 │ 9    9
//! clock       7 ───▶ 8 ───────▶│ 9
//!                 epoch 8      epoch 9: its fence is complete ⟹ blocks with freed_at < 9 are quiet
//! ```
//!
//! The fences wait among the [departures](crate::pages::departures) of the device. The heap only
//! counts the epochs.

use crate::sync::impl_empty;

/// The number of epochs of one heap that may be unfinished at one time.
pub(crate) const MAX_UNFINISHED: u32 = 4;

/// The unfinished epochs of the heap in a slot. The heap may have had another stream and pool when
/// they began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epochs {
    /// Epochs with a fence not known to be complete. At most [`MAX_UNFINISHED`].
    unfinished: u32,
    /// The stamp of the epoch that began last.
    last: u64,
}

impl_empty! { Epochs { unfinished, last } }

impl Epochs {
    /// Returns whether another epoch may begin.
    pub(crate) fn has_room(self) -> bool {
        self.unfinished < MAX_UNFINISHED
    }

    /// Begins an epoch with the clock at `stamp`. There is room.
    pub(crate) fn begin(&mut self, stamp: u64) {
        debug_assert!(self.has_room(), "the caller asks for room first");
        (self.unfinished, self.last) = (self.unfinished + 1, stamp);
    }

    /// Ends an epoch.
    pub(crate) fn end(&mut self) {
        debug_assert!(self.unfinished > 0, "an epoch ends once");
        self.unfinished -= 1;
    }

    /// Returns the stamp of the newest unfinished epoch: blocks with an earlier stamp become quiet
    /// without another fence. 0 without an unfinished epoch.
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
