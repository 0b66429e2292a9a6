//! The state of a device, taken over from a snapshot.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::snapshot::SnapshotSegment;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Puts the allocator of a device, which holds no memory yet, into the state of a
    /// [`snapshot`](Self::snapshot).
    ///
    /// For replays from the middle of a recorded program. `segments` are all segments of a device
    /// in the order of their addresses; the device named in the segments does not matter. Every
    /// allocated block is then held by the program, at the recorded address.
    ///
    /// Not restored, since a snapshot has no record: the events awaited by pending blocks, the ages
    /// of free blocks, the length of the next region under `policy:bfc`, and the statistics of
    /// earlier events. A pending block is restored as allocated: the program announces the block's
    /// streams and frees the block again. Free blocks begin to age now, regions begin to grow anew,
    /// and the peaks of the statistics begin at the restored state. Private pools must exist, see
    /// [`Pools::retain`](crate::Pools::retain).
    ///
    /// Device: called for every segment. The device must place an ordinary segment at the recorded
    /// address, and reserve addresses around the first part of an expandable segment, as a
    /// [`SimulatedDevice`](crate::simulated::SimulatedDevice) does after
    /// [`script_addresses`](crate::simulated::SimulatedDevice::script_addresses). The restore takes
    /// an address for each ordinary segment, and the address of the first part for each expandable
    /// segment.
    ///
    /// # Errors
    /// * [`Error::UnknownDevice`], [`Error::UnknownPool`].
    /// * [`Error::SnapshotRefused`]: the segments contradict each other, the limit, or the policy.
    ///   A policy with sub-blocks, such as `policy:buddy`, restores nothing.
    /// * [`Error::TableFull`], [`Error::Device`].
    ///
    /// After an error, segments below the failing segment may be restored.
    pub fn restore(&mut self, device: DeviceIndex, segments: &[SnapshotSegment]) -> Result<(), Error> {
        self.begin("restore", device)?.restore(segments)
    }
}
