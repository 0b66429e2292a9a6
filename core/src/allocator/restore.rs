//! The state of a device, restored from a snapshot.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::snapshot::SnapshotSegment;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Puts the allocator of a device that holds no memory yet into the state of a
    /// [`snapshot`](Self::snapshot).
    ///
    /// This is for replays that start in the middle of a recorded program. `segments` are all
    /// segments of one device, in the order of their addresses; which device they name does not
    /// matter. Afterwards, the program has every allocated block, at its recorded address.
    ///
    /// A snapshot does not record some things, so these are not restored: the events that pending
    /// blocks wait for, the ages of free blocks, the length of the next region under `policy:bfc`,
    /// and the statistics of earlier events. A pending block is restored as allocated, so the
    /// program announces its streams and frees it again. The ages of free blocks, the regions, and
    /// the peaks of the statistics start anew with the restored state. Private pools must exist,
    /// see [`Pools::retain`](crate::Pools::retain).
    ///
    /// Device: called for every segment. The device must place an ordinary segment at the recorded
    /// address, and reserve addresses around the first part of an expandable segment, as a
    /// [`SimulatedDevice`](crate::simulated::SimulatedDevice) does after
    /// [`script_addresses`](crate::simulated::SimulatedDevice::script_addresses). The restore takes
    /// one address for each ordinary segment, and the address of the first part for each expandable
    /// segment.
    ///
    /// # Errors
    /// * [`Error::UnknownDevice`], [`Error::UnknownPool`].
    /// * [`Error::SnapshotRefused`]: the segments contradict each other, the limit, or the policy.
    ///   A policy with sub-blocks, such as `policy:buddy`, restores nothing.
    /// * [`Error::TableFull`], [`Error::Device`].
    ///
    /// After an error, the segments before the one that failed may be restored.
    pub fn restore(&mut self, device: DeviceIndex, segments: &[SnapshotSegment]) -> Result<(), Error> {
        self.begin("restore", device)?.restore(segments)
    }
}
