//! The physical memory of a device, or of the host for devices: a sparse file in memory, divided
//! into pages of 2 MiB.
//!
//! A device has one file instead of a file for each allocation, because a program may have more
//! allocations than the system allows open files. A part of the file mapped twice gives an alias.

use crate::values::config::Poison;
use crate::values::ranges::Ranges;
use cachalot_emulated_machine::processes::Holdings;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The allocation granularity of the device: 2 MiB, as on every real device so far.
pub(crate) const PAGE: u64 = 2 << 20;
/// Fill byte of new memory.
pub(crate) const POISON_NEW: u8 = 0xa5;
/// Fill byte of freed memory in pages that stay mapped.
pub(crate) const POISON_FREED: u8 = 0xdd;
/// Greatest size that [`Poison::Edges`] fills completely.
const POISON_WHOLE: u64 = 2 << 20;
/// Bytes filled at each end of a larger range by [`Poison::Edges`].
const POISON_EDGE: u64 = 64 << 10;
/// Least size of freed memory that goes back to the system at once. Getting the memory again costs
/// more than the poison.
const PUNCH: u64 = 64 << 20;

/// A part of the device's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Start of the part in the file.
    pub(crate) offset: u64,
    /// Length of the part.
    pub(crate) bytes: u64,
}

/// The memory of a device or of the host: the file and the free pages.
#[derive(Debug)]
pub(crate) struct Pages {
    file: Arc<File>,
    total: u64,
    free: Ranges,
    poison: Poison,
    /// Where other processes read how much is used, and the number of the device there.
    told: Option<(Arc<Holdings>, usize)>,
}

impl Pages {
    /// Creates memory of `bytes` bytes, rounded down to whole pages, all free.
    ///
    /// # Panics
    /// If the system has no memory files, a requirement of the emulated driver.
    pub(crate) fn new(bytes: u64, poison: Poison) -> Self {
        let total = bytes / PAGE * PAGE;
        // SAFETY: the name is a C string, the only requirement of the call.
        let descriptor = unsafe { libc::memfd_create(c"cachalot-emulated-device".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(descriptor >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        // SAFETY: the call above created the descriptor, and no other owner exists.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(total).expect("a sparse file of the device's size");
        Self { file: Arc::new(file), total, free: Ranges::new(0, total), poison, told: None }
    }

    /// Tells other processes from now on how much of the memory is used, as that of `device`.
    pub(crate) fn tell(&mut self, holdings: Arc<Holdings>, device: usize) {
        self.told = Some((holdings, device));
    }

    /// Tells other processes how much of the memory is used.
    fn note(&self) {
        if let Some((holdings, device)) = &self.told {
            // Without room in the file system, the others see an older number.
            let _ = holdings.set(*device, self.total - self.free());
        }
    }

    /// Returns the device's memory in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.free.free_total()
    }

    /// Returns the descriptor of the file, for a mapping.
    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Takes `bytes` (whole pages), in one extent if possible.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Vec<Extent>> {
        if bytes > self.free() {
            return None;
        }
        let mut extents = Vec::new();
        if let Some(offset) = self.free.take(bytes, PAGE) {
            extents.push(Extent { offset, bytes });
        } else {
            let mut missing = bytes;
            while missing > 0 {
                let (offset, bytes) = self.free.take_some(missing)?;
                extents.push(Extent { offset, bytes });
                missing -= bytes;
            }
        }
        self.note();
        Some(extents)
    }

    /// Frees pages. The contents of small extents stay until the next use, as on a real device.
    pub(crate) fn give(&mut self, extents: &[Extent]) {
        for extent in extents {
            if extent.bytes >= PUNCH {
                let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let (offset, bytes) = (extent.offset.cast_signed(), extent.bytes.cast_signed());
                // SAFETY: the descriptor is open. Punching a hole touches no memory of the
                // process.
                unsafe { libc::fallocate(self.descriptor(), flags, offset, bytes) };
            }
            self.free.give(extent.offset, extent.bytes);
        }
        self.note();
    }

    /// Fills `[from, from + bytes)` of the extents as the poison setting says.
    pub(crate) fn poison(&self, extents: &[Extent], from: u64, bytes: u64, value: u8) {
        match self.poison {
            Poison::Off => {}
            Poison::Edges if bytes > POISON_WHOLE => {
                self.fill(extents, from, POISON_EDGE, value);
                self.fill(extents, from + bytes - POISON_EDGE, POISON_EDGE, value);
            }
            Poison::Edges | Poison::Full => self.fill(extents, from, bytes, value),
        }
    }

    /// Writes `value` to `[from, from + bytes)` of the extents.
    fn fill(&self, extents: &[Extent], from: u64, bytes: u64, value: u8) {
        let buffer = [value; 16 << 10];
        for (mut offset, mut left) in pieces(extents, from, bytes) {
            while left > 0 {
                let now = left.min(buffer.len() as u64);
                self.file.write_all_at(&buffer[..now as usize], offset).expect("memory for the poison fill");
                offset += now;
                left -= now;
            }
        }
    }
}

/// Copies `[from, from + into.len())` of the extents of a device's file, without any mapping.
pub(crate) fn read(file: &File, extents: &[Extent], from: u64, into: &mut [u8]) {
    let mut done = 0;
    for (offset, bytes) in pieces(extents, from, into.len() as u64) {
        let end = done + bytes as usize;
        file.read_exact_at(&mut into[done..end], offset).expect("inside the device's file");
        done = end;
    }
}

/// Returns offset and length in the file of each piece of `[from, from + bytes)` of the
/// concatenated extents.
fn pieces(extents: &[Extent], from: u64, bytes: u64) -> Vec<(u64, u64)> {
    let (mut start, end, mut found) = (0, from + bytes, Vec::new());
    for extent in extents {
        let low = from.max(start);
        let high = end.min(start + extent.bytes);
        if low < high {
            found.push((extent.offset + low - start, high - low));
        }
        start += extent.bytes;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Extent, PAGE, POISON_NEW, Pages, pieces, read};
    use crate::values::config::Poison;

    #[test]
    fn memory_in_pieces_is_one_allocation() {
        let mut pages = Pages::new(4 * PAGE, Poison::Full);
        let all: Vec<_> = (0..4).filter_map(|_| pages.take(PAGE)).collect();
        assert_eq!((all.len(), pages.free()), (4, 0));
        pages.give(&all[0]);
        pages.give(&all[2]);
        let split = pages.take(2 * PAGE).unwrap_or_default();
        assert_eq!(split.len(), 2);
        pages.poison(&split, PAGE - 3, 5, POISON_NEW);
        let mut bytes = [0; 6];
        read(pages.file(), &split, PAGE - 4, &mut bytes);
        assert_eq!(bytes, [0, POISON_NEW, POISON_NEW, POISON_NEW, POISON_NEW, POISON_NEW]);
        assert_eq!(pages.take(PAGE), None);
    }

    #[test]
    fn pieces_cross_extents() {
        let extents = [Extent { offset: 100, bytes: 10 }, Extent { offset: 300, bytes: 10 }];
        assert_eq!(pieces(&extents, 5, 10), [(105, 5), (300, 5)]);
        assert_eq!(pieces(&extents, 12, 3), [(302, 3)]);
    }
}
