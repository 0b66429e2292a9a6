//! The limits of control groups on the memory of devices (`dmem`, Linux 6.14), which NVIDIA's MPS
//! sets and keeps since CUDA 13.4.
//!
//! A group has a hard limit (`dmem.max`), beyond which requests fail, and a share that is protected
//! (`dmem.min`). A process of a group beyond its share is ended first if others need the memory. A
//! line of these files is `REGION BYTES`, and the region of a GPU `nvidia/PLACE/vidmem`, with the
//! place on the bus. A kernel without these files leaves the limits to the driver, whose management
//! library tells them (`nvmlDeviceGetMemoryLimits_v1`).
//!
//! ```text
//!   max ─── requests fail
//!  15/16 ── given back: what others of the group may take next
//!   share ─ given back: what others may have the process ended for
//! ```
//!
//! What a group with members wants back, its members give by how much each is beyond its own share:
//! the shares are the weights.

use crate::host_memory::{group_folders, in_system, place_of, read};
use crate::management::{GroupLimits, limits_of_group};
use cachalot_core::MemoryInfo;
use std::path::Path;

/// The part of a hard limit that is left to the other processes of the group, as a divisor.
const LEFT_BELOW_LIMIT: u64 = 16;

impl GroupLimits {
    /// Reads the limits from a group's folder. The best-effort share (`dmem.low`) counts where no
    /// other one is set. Returns `None` if the folder does not have the device.
    fn of_folder(folder: &Path, bus_id: &str) -> Option<Self> {
        let bytes = |file: &str| of_region(&read(folder.join(file))?, bus_id);
        let set = |file: &str| bytes(file).filter(|&bytes| bytes > 0);
        let share = set("dmem.min").or_else(|| set("dmem.low"));
        Some(Self { used: bytes("dmem.current")?, share, most: bytes("dmem.max") })
    }

    /// Returns the bytes used beyond the share.
    fn over(&self) -> u64 {
        self.used.saturating_sub(self.share.unwrap_or(0))
    }

    /// Returns the bytes that the group wants back: beyond its share, or beyond 15/16 of its limit.
    fn owed(&self) -> u64 {
        let limit = self.most.map(|limit| limit - limit / LEFT_BELOW_LIMIT);
        let most = self.share.into_iter().chain(limit).min();
        most.map_or(0, |most| self.used.saturating_sub(most))
    }
}

/// What the control groups of this process leave it of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupMemory {
    /// The least of the hard limits. `u64::MAX` without one.
    pub limit: u64,
    /// The least that a limit has left. `u64::MAX` without one.
    pub free: u64,
    /// The part of this process's group of what the groups want back.
    pub owed: u64,
}

impl GroupMemory {
    /// Nothing bounds the process, and nobody wants memory back.
    pub const UNBOUNDED: Self = Self { limit: u64::MAX, free: u64::MAX, owed: 0 };

    /// Asks for the control groups of this process on the device at a place on the bus. Reads some
    /// files of the system. If the kernel does not count the memory of devices and
    /// `asks_management`, asks the driver's management library.
    #[must_use]
    pub fn of(bus_id: &str, asks_management: bool) -> Self {
        let of_driver = |folder: &Path| asks_management.then(|| limits_of_group(bus_id, folder))?;
        Self::under(&in_system(""), bus_id, of_driver)
    }

    /// Asks as [`of`](Self::of) does, with the system's files in a folder. `of_driver` tells the
    /// limits of a group that the kernel does not count.
    pub(crate) fn under(system: &Path, bus_id: &str, of_driver: impl Fn(&Path) -> Option<GroupLimits>) -> Self {
        let groups = read(system.join("proc/self/cgroup")).unwrap_or_default();
        let folders = group_folders(&groups, &system.join("sys/fs/cgroup"));
        let mut all = Self::UNBOUNDED;
        let mut is_counted = false;
        for (at, folder) in folders.iter().enumerate() {
            let Some(limits) = GroupLimits::of_folder(folder, bus_id) else { continue };
            let member = at.checked_sub(1).map(|member| folders[member].as_path());
            all.add(limits, member.map_or(limits.owed(), |member| part(limits.owed(), folder, member, bus_id)));
            is_counted = true;
        }
        if !is_counted && let Some(limits) = folders.first().and_then(|folder| of_driver(folder)) {
            all.add(limits, limits.owed());
        }
        all
    }

    /// Adds the limits of a group, of whose wants this process's group owes `owed` bytes.
    fn add(&mut self, limits: GroupLimits, owed: u64) {
        let free = limits.most.map_or(u64::MAX, |most| most.saturating_sub(limits.used));
        self.limit = self.limit.min(limits.most.unwrap_or(u64::MAX));
        self.free = self.free.min(free);
        self.owed = self.owed.max(owed);
    }

    /// Returns the memory of a device as far as the groups leave it to the process.
    #[must_use]
    pub fn within(self, memory: MemoryInfo) -> MemoryInfo {
        let total = memory.total.min(self.limit);
        MemoryInfo { free: memory.free.min(self.free).min(total), total }
    }
}

/// Returns the part of `member` in the bytes that a group wants back: by how much the member is
/// beyond its share, among all members. A group whose members are all within their shares wants all
/// from each.
fn part(owed: u64, group: &Path, member: &Path, bus_id: &str) -> u64 {
    let over = |folder: &Path| GroupLimits::of_folder(folder, bus_id).map_or(0, |limits| limits.over());
    if owed == 0 {
        return 0;
    }
    let members = std::fs::read_dir(group).into_iter().flatten().flatten();
    let all = members.map(|member| over(&member.path())).fold(0_u64, u64::saturating_add);
    if all == 0 {
        return owed;
    }
    // Rounded up, so that the parts make up the whole; at most `owed`.
    (u128::from(owed) * u128::from(over(member))).div_ceil(u128::from(all)) as u64
}

/// Returns the bytes that a file has for the device at a place on the bus. `None`: it does not name
/// the device, or sets no limit (`max`).
fn of_region(text: &str, bus_id: &str) -> Option<u64> {
    let place = place_of(bus_id)?;
    text.lines().find_map(|line| {
        let (region, bytes) = line.trim().rsplit_once(' ')?;
        let is_named = region.split('/').any(|part| part.to_ascii_lowercase().ends_with(&place));
        if is_named { bytes.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::{GroupLimits, GroupMemory, of_region};
    use cachalot_core::MemoryInfo;
    use std::path::Path;

    const DEVICE: &str = "00000000:3B:00.0";

    /// Files of a system in a folder.
    struct System(tempfile::TempDir);

    impl System {
        /// Returns a system whose process is in the group `pod/one`.
        fn new() -> Self {
            let system = Self(tempfile::tempdir().expect("a folder"));
            system.write("proc/self/cgroup", "1:memory:/pod\n0::/pod/one\n");
            system
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }

        /// Sets a file of a group for the device.
        fn set(&self, file: &str, bytes: &str) {
            self.write(&format!("sys/fs/cgroup/{file}"), &format!("nvidia/0000:3b:00.0/vidmem {bytes}\n"));
        }

        fn of(&self, bus_id: &str) -> GroupMemory {
            GroupMemory::under(self.0.path(), bus_id, |_| None)
        }

        fn owed(&self) -> u64 {
            self.of(DEVICE).owed
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not have the system's files")]
    fn a_group_wants_back_what_is_beyond_its_share_or_near_its_limit() {
        let system = System::new();
        assert_eq!(system.of(DEVICE), GroupMemory::UNBOUNDED, "no groups");
        system.set("pod/one/dmem.current", "1000");
        assert_eq!(system.of(DEVICE), GroupMemory::UNBOUNDED, "no limits");
        system.set("pod/one/dmem.min", "0");
        system.set("pod/one/dmem.max", "max");
        assert_eq!(system.of(DEVICE), GroupMemory::UNBOUNDED, "limits that were never set");
        system.set("pod/one/dmem.low", "950");
        assert_eq!(system.owed(), 50, "beyond the best-effort share");
        system.set("pod/one/dmem.min", "900");
        assert_eq!(system.owed(), 100, "beyond the share");
        system.set("pod/one/dmem.max", "800");
        assert_eq!(system.owed(), 250, "beyond 15/16 of the limit");
        // The group around it has more members, and less left.
        system.set("pod/dmem.current", "1600");
        system.set("pod/dmem.max", "1280");
        assert_eq!(system.owed(), 400);
        assert_eq!(system.of("0000:3C:00.0"), GroupMemory::UNBOUNDED, "another device");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not have the system's files")]
    fn members_of_a_group_give_by_what_is_beyond_their_shares() {
        let system = System::new();
        system.set("pod/dmem.current", "1600");
        system.set("pod/dmem.max", "1280");
        for (member, used, share) in [("one", "700", "600"), ("two", "900", "600"), ("three", "10", "600")] {
            system.set(&format!("pod/{member}/dmem.current"), used);
            system.set(&format!("pod/{member}/dmem.max"), "max");
            system.set(&format!("pod/{member}/dmem.low"), share);
        }
        // The group wants 400 back. Its members are 100, 300 and 0 beyond their shares.
        let of = |member: &str| {
            system.write("proc/self/cgroup", &format!("0::/pod/{member}\n"));
            system.owed()
        };
        assert_eq!([of("one"), of("two"), of("three")], [100, 300, 0]);
        system.set("pod/two/dmem.current", "600");
        system.set("pod/one/dmem.current", "600");
        assert_eq!([of("one"), of("two")], [400, 400], "nobody is beyond its share");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not have the system's files")]
    fn the_least_limit_bounds_the_free_and_the_whole_memory() {
        let system = System::new();
        system.set("pod/one/dmem.current", "300");
        system.set("pod/one/dmem.max", "1000");
        system.set("pod/dmem.current", "4500");
        system.set("pod/dmem.max", "5000");
        let found = system.of(DEVICE);
        assert_eq!((found.limit, found.free), (1000, 500));
        let within = |free, total| found.within(MemoryInfo { free, total });
        assert_eq!(within(8000, 9000), MemoryInfo { free: 500, total: 1000 });
        assert_eq!(within(20, 800), MemoryInfo { free: 20, total: 800 });
        system.set("pod/one/dmem.current", "1200");
        assert_eq!(system.of(DEVICE).free, 0, "a limit that was lowered");
        assert_eq!(GroupMemory::UNBOUNDED.within(MemoryInfo { free: 7, total: 9 }), MemoryInfo { free: 7, total: 9 });
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not have the system's files")]
    fn the_driver_tells_the_limits_of_groups_that_the_kernel_does_not_count() {
        let system = System::new();
        let of_driver = |folder: &Path| {
            assert_eq!(folder, system.0.path().join("sys/fs/cgroup/pod/one"));
            Some(GroupLimits { used: 90, share: Some(80), most: Some(100) })
        };
        let ask = || GroupMemory::under(system.0.path(), DEVICE, of_driver);
        std::fs::create_dir_all(system.0.path().join("sys/fs/cgroup/pod/one")).expect("made");
        assert_eq!(ask(), GroupMemory { limit: 100, free: 10, owed: 10 });
        system.set("pod/one/dmem.current", "1000");
        assert_eq!(ask(), GroupMemory::UNBOUNDED, "the kernel counts");
    }

    #[test]
    fn a_line_of_a_region_has_the_bytes() {
        let text = "drm/0000:03:00.0/vram0 7\nnvidia/0000:3b:00.0/vidmem 1073741824\nnvidia/0000:3c:00.0/vidmem max\n";
        assert_eq!(of_region(text, "00000000:3B:00.0"), Some(1 << 30));
        assert_eq!(of_region(text, "0000:03:00.0"), Some(7));
        assert_eq!((of_region(text, "0000:3C:00.0"), of_region(text, "0000:3D:00.0")), (None, None));
        assert_eq!((of_region("", "0000:3C:00.0"), of_region(text, "")), (None, None));
        assert_eq!(of_region("nvidia/0000:3b:00.0/vidmem\nnvidia/0000:3b:00.0/vidmem many", "0000:3b:00.0"), None);
    }
}
