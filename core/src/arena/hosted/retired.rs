//! Segments retired after a change of the settings: no request gets them any more, and they go
//! back to the device once the device has finished with them.
//!
//! An event on the segments' own stream tells the end of the work. Nothing here waits for the device.

use crate::arena::{Arena, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::Event as Counted;
use crate::streams::fences::Fence;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;
use alloc::vec::Vec;

/// Segments of a stream, retired together. They are in no heap and not in the page map, and
/// count as held from the device.
#[derive(Clone)]
pub(crate) struct Retired {
    /// Recorded behind the last work that may use the segments. Without one, they wait until cached
    /// memory is released.
    pub fence: Option<Fence>,
    pub segments: Vec<(DevicePtr, u64)>,
}

/// All retired segments.
pub(crate) type RetiredList = Vec<Retired>;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Returns the bytes of all retired segments.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.tuning.lock().retired.iter().flat_map(|group| &group.segments).map(|(_, bytes)| bytes).sum()
    }

    /// Returns the address of the first retired segment.
    pub(crate) fn first_retired(&self) -> Option<DevicePtr> {
        self.tuning.lock().retired.iter().flat_map(|group| &group.segments).map(|&(base, _)| base).next()
    }

    /// Gives retired segments back with which the device has finished. With `all`, gives every retired
    /// segment back, which may wait for the device.
    ///
    /// # Errors
    /// The last failure. All other segments are given back even so.
    pub(crate) fn release_retired(&self, all: bool) -> Result<(), Error> {
        let mut outcome = Ok(());
        // Taken out, so that each group belongs to one thread.
        let groups = core::mem::take(&mut self.tuning.lock().retired);
        for group in groups {
            let is_complete = |fence: Fence| self.call(|device| device.is_complete(fence.event)) == Ok(true);
            if !all && !group.fence.is_some_and(is_complete) || self.flags.has(flags::LOST) {
                self.tuning.lock().retired.push(group);
                continue;
            }
            if let Some(fence) = group.fence {
                self.end_fence(fence);
            }
            for (base, bytes) in group.segments {
                self.peaks.device.count(Counted::DeviceFree);
                match self.release_memory(base, bytes) {
                    Ok(()) => self.tuning.lock().report.given_back_bytes += bytes,
                    Err(error) => outcome = Err(error),
                }
            }
        }
        outcome
    }
}
