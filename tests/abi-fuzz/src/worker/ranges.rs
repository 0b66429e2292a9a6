//! Elastic ranges: reserved, committed, used, decommitted, released.

use super::Worker;
use crate::abi;
use crate::contents::{Action, Contents};
use crate::finding;
use crate::places::Stream;
use crate::world::add;
use cachalot::c::abi::cachalot_range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Greatest number of a thread's ranges.
const MOST_RANGES: usize = 4;
/// Pages of a range at most.
const MOST_PAGES: usize = 16;

/// A range, and the known state of the range's pages.
#[derive(Debug)]
pub(crate) struct Reserved {
    range: cachalot_range,
    device: usize,
    /// Contents of each page; `None` without memory.
    pages: Vec<Option<Contents>>,
    /// The streams named by a commit or a decommit.
    named: Vec<Arc<Stream>>,
    /// The streams with uses or commits of the range, in order.
    users: Vec<Arc<Stream>>,
}

// SAFETY: the range has an allocator's handle, which is a number, and addresses.
unsafe impl Send for Reserved {}

impl Reserved {
    /// Returns whether the range is on a device.
    pub(crate) fn is_on(&self, device: usize) -> bool {
        self.device == device
    }

    /// Returns the first address, and the address behind the last.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        let base = self.range.base.addr() as u64;
        (base, base + self.range.bytes as u64)
    }

    /// Returns the bytes with memory.
    pub(crate) fn committed_bytes(&self) -> usize {
        self.pages.iter().flatten().count() * self.range.page_bytes
    }
}

/// Adds a stream to a list of different streams, at the end.
fn note(streams: &mut Vec<Arc<Stream>>, stream: &Arc<Stream>) {
    streams.retain(|other| !Arc::ptr_eq(other, stream));
    streams.push(Arc::clone(stream));
}

impl Worker {
    /// Reserves a range.
    pub(crate) fn range_reserve(&mut self) {
        if self.ranges.len() >= MOST_RANGES {
            return;
        }
        let device = self.any_device();
        let bytes = self.rng.usize(1..=MOST_PAGES << 21);
        let mut range = std::mem::MaybeUninit::<cachalot_range>::zeroed();
        let reply = self.world.allocator.range_reserve(device as i32, bytes, range.as_mut_ptr());
        if !reply.judge(self.situation_of_device()) {
            return;
        }
        // SAFETY: the call has succeeded and so has written the range; all bytes zero is a range as
        // well.
        let range = unsafe { range.assume_init() };
        if range.bytes < bytes || range.bytes % range.page_bytes != 0 {
            finding::report("range", &format!("{range:?} for {bytes} bytes"));
        }
        add(&self.world.tally.ranges);
        let pages = vec![None; range.bytes / range.page_bytes];
        self.ranges.push(Reserved { range, device, pages, named: Vec::new(), users: Vec::new() });
    }

    /// Takes a random range out of the thread's list.
    fn take_range(&mut self) -> Option<Reserved> {
        if self.ranges.is_empty() {
            return None;
        }
        let index = self.rng.usize(..self.ranges.len());
        Some(self.ranges.swap_remove(index))
    }

    /// Returns the first and the last page of a random part.
    fn any_part(&mut self, reserved: &Reserved) -> (usize, usize) {
        let first = self.rng.usize(..reserved.pages.len());
        (first, self.rng.usize(first..reserved.pages.len().min(first + 6)))
    }

    /// Commits a part of a range.
    pub(crate) fn range_commit(&mut self) {
        let share = self.world.case.memory / u64::from(self.world.case.threads) / 4;
        let committed: usize = self.ranges.iter().map(Reserved::committed_bytes).sum();
        if committed as u64 > share {
            return self.range_decommit();
        }
        let Some(mut reserved) = self.take_range() else { return };
        let stream = self.any_stream_of(reserved.device);
        let (first, last) = self.any_part(&reserved);
        if let Some(_alive) = stream.alive() {
            let page_bytes = reserved.range.page_bytes;
            let (offset, bytes) = (first * page_bytes, (last - first + 1) * page_bytes);
            self.enter(reserved.device);
            let reply = abi::range_commit(reserved.range, offset, bytes, abi::stream(stream.handle));
            self.say(|| format!("commit {first}..={last} on {:#x}: {}", stream.handle, reply.status));
            if reply.judge(self.situation_of_device()) {
                for page in &mut reserved.pages[first..=last] {
                    page.get_or_insert(Contents::Unknown);
                }
                note(&mut reserved.named, &stream);
                // Only later work of this stream may use the new memory, and work ordered after it.
                note(&mut reserved.users, &stream);
            }
        }
        self.ranges.push(reserved);
    }

    /// Writes to and checks pages of a range, on a stream named by an earlier call.
    pub(crate) fn range_use(&mut self) {
        let Some(mut reserved) = self.take_range() else { return };
        if !reserved.named.is_empty() {
            let stream = Arc::clone(&reserved.named[self.rng.usize(..reserved.named.len())]);
            self.use_pages(&mut reserved, &stream);
        }
        self.ranges.push(reserved);
    }

    /// Writes to and checks pages on a stream.
    fn use_pages(&mut self, reserved: &mut Reserved, stream: &Arc<Stream>) {
        let Some(_alive) = stream.alive().filter(|_| stream.is_usable_by(self.id)) else { return };
        if !reserved.users.iter().all(|before| self.order(stream, before)) {
            return;
        }
        note(&mut reserved.users, stream);
        let page_bytes = reserved.range.page_bytes;
        for (index, page) in reserved.pages.iter_mut().enumerate() {
            let address = reserved.range.base.addr() as u64 + (index * page_bytes) as u64;
            let Some(contents) = page.as_mut().filter(|_| self.rng.u8(..3) > 0) else { continue };
            if self.rng.bool() {
                self.submit(stream, address, page_bytes, Action::Check(*contents), false);
            } else {
                let tag = self.world.tags.fetch_add(1, Ordering::Relaxed);
                self.submit(stream, address, page_bytes, Action::Write(tag), false);
                *contents = Contents::Tag(tag);
            }
        }
    }

    /// Decommits a part of a range, with memory or without, behind all users of the range.
    pub(crate) fn range_decommit(&mut self) {
        let Some(mut reserved) = self.take_range() else { return };
        let stream = self.any_stream_of(reserved.device);
        let (first, last) = self.any_part(&reserved);
        self.decommit(&mut reserved, &stream, first, last);
        self.ranges.push(reserved);
    }

    /// Decommits a part of a range on a stream.
    fn decommit(&mut self, reserved: &mut Reserved, stream: &Arc<Stream>, first: usize, last: usize) {
        let Some(_alive) = stream.alive().filter(|_| stream.is_usable_by(self.id)) else { return };
        if !reserved.users.iter().all(|before| self.order(stream, before)) {
            return;
        }
        let page_bytes = reserved.range.page_bytes;
        let (offset, bytes) = (first * page_bytes, (last - first + 1) * page_bytes);
        self.enter(reserved.device);
        let reply = abi::range_decommit(reserved.range, offset, bytes, abi::stream(stream.handle));
        self.say(|| format!("decommit {first}..={last} on {:#x}: {}", stream.handle, reply.status));
        if reply.judge(self.situation()) {
            reserved.pages[first..=last].fill(None);
            note(&mut reserved.named, stream);
            note(&mut reserved.users, stream);
        }
    }

    /// Releases a range with work under way.
    pub(crate) fn range_release(&mut self) {
        let Some(reserved) = self.take_range() else { return };
        self.release_range(reserved);
    }

    /// Releases a range. After a failure, the thread keeps the range.
    fn release_range(&mut self, reserved: Reserved) {
        self.enter(reserved.device);
        let reply = abi::range_release(reserved.range);
        self.say(|| format!("release of range {}: {}", reserved.range.number, reply.status));
        if !reply.judge(self.situation()) {
            self.ranges.push(reserved);
        }
    }

    /// Releases every range of the thread.
    pub(crate) fn release_ranges(&mut self) {
        for reserved in std::mem::take(&mut self.ranges) {
            self.release_range(reserved);
        }
    }
}
