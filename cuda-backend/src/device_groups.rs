//! The limits of control groups on the memory of devices (`dmem`, Linux 6.14), which NVIDIA's MPS
//! sets and keeps since CUDA 13.4.
//!
//! A group has a hard limit (`dmem.max`), beyond which requests fail, and a share that is protected
//! (`dmem.min`). A process of a group beyond its share is ended first if others need the memory. A
//! line of these files is `REGION BYTES`, and the region of a GPU `nvidia/PLACE/vidmem`, with the
//! place on the bus.

use crate::host_memory::{group_folders, in_system, place_of, read};
use std::path::{Path, PathBuf};

/// The part of a hard limit that is left to the other processes of the group, as a divisor.
const LEFT_BELOW_LIMIT: u64 = 16;

/// Returns the bytes of a device, by its place on the bus, that the control groups of this process
/// want back: what a group uses beyond its protected share, or beyond 15/16 of its limit. 0 without
/// such groups. Reads some files of the system, and calls no driver.
pub(crate) fn owed(bus_id: &str) -> u64 {
    owed_under(&in_system(""), bus_id)
}

/// Returns the bytes wanted back as [`owed`] does, from the system's files in a folder.
fn owed_under(system: &Path, bus_id: &str) -> u64 {
    let groups = read(system.join("proc/self/cgroup")).unwrap_or_default();
    let folders = group_folders(&groups, &system.join("sys/fs/cgroup"));
    let owed = |folder: &PathBuf| {
        let bytes = |file: &str| of_region(&read(folder.join(file))?, bus_id);
        let used = bytes("dmem.current")?;
        let share = bytes("dmem.min").filter(|&share| share > 0);
        let limit = bytes("dmem.max").map(|limit| limit - limit / LEFT_BELOW_LIMIT);
        let most = share.into_iter().chain(limit).min()?;
        Some(used.saturating_sub(most))
    };
    folders.iter().filter_map(owed).max().unwrap_or(0)
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
    use super::{of_region, owed_under};

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not have the system's files")]
    fn a_group_wants_back_what_is_beyond_its_share_or_near_its_limit() {
        const DEVICE: &str = "00000000:3B:00.0";
        let system = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let set = |file: &str, bytes: &str| {
            write(&format!("sys/fs/cgroup/{file}"), &format!("nvidia/0000:3b:00.0/vidmem {bytes}\n"));
        };
        let owed = || owed_under(system.path(), DEVICE);
        assert_eq!(owed(), 0, "no groups");
        write("proc/self/cgroup", "1:memory:/pod\n0::/pod/one\n");
        set("pod/one/dmem.current", "1000");
        assert_eq!(owed(), 0, "no limits");
        set("pod/one/dmem.min", "0");
        set("pod/one/dmem.max", "max");
        assert_eq!(owed(), 0, "limits that were never set");
        set("pod/one/dmem.min", "900");
        assert_eq!(owed(), 100, "beyond the share");
        set("pod/one/dmem.max", "800");
        assert_eq!(owed(), 250, "beyond 15/16 of the limit");
        // The group around it has more members, and less left.
        set("pod/dmem.current", "1600");
        set("pod/dmem.max", "1280");
        assert_eq!(owed(), 400);
        assert_eq!(owed_under(system.path(), "0000:3C:00.0"), 0, "another device");
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
