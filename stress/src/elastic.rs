//! An elastic range of the run: which pages have memory, and what the pages contain.

use crate::checker::Row;
use crate::stage::block_region;
use cachalot_core::{DevicePtr, Reservation, StreamId};
use cachalot_kernels::Life;
use std::ops::Range;

/// Marks the numbers of ranges among those of blocks.
const RANGES: u64 = 1 << 63;
/// Bits of a pattern's generation for the number of the writes to a page.
const WRITE_BITS: u32 = 40;

/// A page of a range.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Page {
    /// Whether the page has memory.
    pub(crate) committed: bool,
    /// Whether the page contains the pattern of `writes`.
    pub(crate) written: bool,
    /// Number of writes so far.
    pub(crate) writes: u64,
    /// The place in whose order the contents are known. All earlier work with the page precedes.
    pub(crate) home: usize,
}

/// An elastic range.
#[derive(Debug)]
pub(crate) struct ElasticRange {
    pub(crate) device: usize,
    pub(crate) reservation: Reservation,
    /// Number of the range, different from the numbers of all other ranges and blocks.
    number: u64,
    pub(crate) pages: Vec<Page>,
    /// The streams that a commit or a decommit has named. A release waits for their work.
    pub(crate) named: Vec<StreamId>,
}

impl ElasticRange {
    /// Describes a new range, the `number`-th of the run.
    pub(crate) fn new(device: usize, reservation: Reservation, number: u64) -> Self {
        let pages = vec![Page::default(); (reservation.bytes / reservation.page_bytes) as usize];
        Self { device, reservation, number: RANGES | number, pages, named: Vec::new() }
    }

    /// Returns the address of a page.
    pub(crate) fn address(&self, page: usize) -> DevicePtr {
        self.reservation.base.offset(page as u64 * self.reservation.page_bytes)
    }

    /// Returns the offset and the bytes of some pages.
    pub(crate) fn part(&self, pages: &Range<usize>) -> (u64, u64) {
        let each = self.reservation.page_bytes;
        (pages.start as u64 * each, pages.len() as u64 * each)
    }

    /// Returns the memory and the pattern of a committed page, for filling and checking.
    pub(crate) fn row(&self, page: usize) -> Row {
        // SAFETY: the page is committed, and is decommitted only after the kernels that use the
        // page.
        let region = unsafe { block_region(self.address(page), self.reservation.page_bytes) };
        let generation = (page as u64) << WRITE_BITS | self.pages[page].writes;
        (region, Life { block: self.number, generation })
    }

    /// Notes that a commit or a decommit has named a stream.
    pub(crate) fn name(&mut self, stream: StreamId) {
        if !self.named.contains(&stream) {
            self.named.push(stream);
        }
    }
}
