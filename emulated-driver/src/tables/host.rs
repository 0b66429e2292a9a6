//! Pinned ranges of the host's memory.

use crate::values::code::{Answer, Code};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// A pinned range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) context: u64,
    pub(crate) bytes: u64,
    /// Whether the driver has mapped the memory.
    pub(crate) own: bool,
    /// The number that no other memory of the process has or had.
    pub(crate) id: u64,
    /// Whether copies are synchronous for the host: stored, and without effect.
    pub(crate) sync_memops: bool,
}

/// All pinned ranges, by address. No two overlap.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    pub(crate) ranges: BTreeMap<u64, Pinned>,
}

impl HostMemory {
    /// Returns the number of pinned ranges.
    pub(crate) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the bytes of all pinned ranges.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.values().map(|range| range.bytes).sum()
    }

    /// Returns whether a copy's range is pinned.
    ///
    /// # Errors
    /// `INVALID_VALUE` if only a part of the range is pinned, or parts by different registrations.
    pub(crate) fn is_pinned(&self, at: u64, bytes: u64) -> Answer<bool> {
        let end = at.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        match self.overlapping(at, end) {
            None => Ok(false),
            Some((start, range)) if start <= at && end <= start + range.bytes => Ok(true),
            Some(_) => Err(Code::INVALID_VALUE),
        }
    }

    /// Returns a range that overlaps `[at, end)`.
    pub(crate) fn overlapping(&self, at: u64, end: u64) -> Option<(u64, Pinned)> {
        let (&start, &range) = self.ranges.range(..end).next_back()?;
        (start + range.bytes > at).then_some((start, range))
    }

    /// Forgets the ranges of an ending context, and unmaps the driver's own.
    pub(crate) fn forget_all(&mut self, context: u64) {
        self.ranges.retain(|&start, range| {
            let ends = range.context == context;
            if ends && range.own {
                unmap(start, range.bytes);
            }
            !ends
        });
    }
}

/// Unmaps memory that the driver has mapped.
pub(crate) fn unmap(start: u64, bytes: u64) {
    // SAFETY: the range is the driver's own, and no longer listed.
    unsafe { libc::munmap(start as *mut c_void, bytes as usize) };
}
