//! Writes to blocks: clears or fills them when they are new or freed, and writes a canary after the
//! requested bytes.
//!
//! ```text
//! block   | requested bytes | canary, at most 1,024 bytes |
//! free ─ the work known at the free is complete ─▶ canary read ─▶ block filled ─▶ free for later requests
//! ```
//!
//! The own stream of each block counts as a use (`WATCHED`), so every free comes to the end of its
//! waits.

use crate::arena::Platform;
use crate::arena::debug::{DebugLayer, is_guarded};
use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::heaps::Heaps;
use crate::arena::paging::Paging;
use crate::arena::tracing::Recorder;
use crate::config::{CANARY_MARGIN, Filling};
use crate::device::{Contents, DeviceMemory, DeviceResult, Host, Segments, StreamOrder};
use crate::error::Error;
use crate::heap::block::BlockEntry;
use crate::heap::home_pages::HomePage;
use crate::units::{DeviceIndex, DevicePtr, NO_STREAM, StreamId, UNIT};

/// The value of the bytes after the requested ones.
const CANARY: u8 = 0xCB;

/// The greatest number of bytes after the requested ones that are checked: the margin, and the most
/// that rounding up to a unit adds.
const CHECKED: usize = 1024;

const _: () = assert!(CHECKED as u64 >= CANARY_MARGIN + UNIT);

/// Returns how many bytes after the requested ones of a block are checked.
fn checked_bytes(size: u64, requested: u64) -> usize {
    (size - requested).min(CHECKED as u64) as usize
}

impl DebugLayer {
    /// Writes the values of the settings to a new block of the heap in `slot`, in the order of its
    /// stream.
    ///
    /// # Errors
    /// The error of the device.
    pub(super) fn fill_new<P: Platform>(
        &self,
        driver: &Driver<P::Device>,
        heaps: &Heaps<P>,
        slot: u32,
        ptr: DevicePtr,
        requested: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let Filling { on_alloc, canary, .. } = self.filling();
        if on_alloc.is_none() && !canary {
            return Ok(());
        }
        let Some(contents) = driver.device().contents() else { return Ok(()) };
        let size = {
            let heap = heaps.lock(slot);
            heap.lookup(ptr).map_or(requested, |block| heap.blocks[block].size)
        };
        let slack = checked_bytes(size, requested) as u64;
        on_alloc.map_or(Ok(()), |value| driver.call(|_| contents.fill(stream, ptr, size, value)))?;
        let at = ptr.offset(requested);
        if canary && slack > 0 { driver.call(|_| contents.fill(stream, at, slack, CANARY)) } else { Ok(()) }
    }

    /// Checks and fills a pending block of the heap in `slot` that no longer waits for any work. No
    /// other call touches the block. A failure of the device shows in its health.
    pub(super) fn end_contents<P: Platform>(
        &self,
        Recorder { driver, heaps, history }: Recorder<'_, P>,
        paging: &Paging<P>,
        slot: u32,
        block: u32,
    ) {
        let Some(contents) = driver.device().contents() else { return };
        // A park that is about to unmap pages waits until no call uses the pair.
        let _used = heaps.enter_pair(slot / 2);
        let (BlockEntry { addr, size, requested, .. }, stream) = {
            let mut heap = heaps.lock(slot);
            if heap.rests() {
                return;
            }
            (heap.blocks[block], driver.usable_stream(&heap, NO_STREAM))
        };
        let at = DevicePtr(addr);
        // A copy to the host would break a capture.
        if self.filling().canary && !driver.flags.has(flags::CAPTURE) {
            let first = first_damage(driver, contents, at.offset(requested), checked_bytes(size, requested));
            let explain = |address| {
                let guarded = paging.explain(DeviceIndex(heaps.device()), address);
                guarded.or_else(|| heaps.explain(&history.sites, slot, address))
            };
            if let Some(explanation) = first.and_then(explain) {
                driver.device().on_damage(&explanation);
            }
        }
        // On a stream that is being captured, the fill would be part of the graph, and each replay
        // would fill the block again.
        let is_captured = |stream| driver.call(|device| device.is_capturing(stream)) != Ok(false);
        let captured = driver.flags.has(flags::CAPTURE) && stream.is_some_and(is_captured);
        if let Some(value) = self.filling().on_free.filter(|_| !captured) {
            // If no stream is known to exist, the device uses its own one, and the call waits for
            // the fill.
            let filled = driver.call(|_| contents.fill(stream.unwrap_or(NO_STREAM), at, size, value));
            // The pages of a guarded block go to other streams, so the fill must be complete.
            if let Some(stream) = stream.filter(|_| filled.is_ok() && is_guarded(&driver.flags, paging, at)) {
                let _shown_by_health = driver.synchronize(stream);
            }
        }
    }

    /// Returns whether freed blocks are checked or filled.
    pub(in crate::arena) fn tends_frees(&self) -> bool {
        self.filling().ends_frees()
    }

    /// Returns the value with which freed memory is filled, if it is filled.
    pub(in crate::arena) fn value_of_freed(&self) -> Option<u8> {
        self.filling().on_free
    }

    /// After a park, lets the ends of frees in the heap of `slot` read and write blocks again, and
    /// fills the free memory if some of them have not done so meanwhile. The heap's pages are
    /// mapped, and it serves no request. A failure shows in the health of the device.
    pub(in crate::arena) fn end_rest<P: Platform>(&self, driver: &Driver<P::Device>, heaps: &Heaps<P>, slot: u32) {
        let missed = heaps.lock(slot).end_rest();
        let (Some(contents), Some(value)) = (driver.device().contents(), self.value_of_freed()) else {
            return;
        };
        if !missed {
            return;
        }
        let mut from = 0;
        loop {
            // The lock ends with this statement.
            let next = heaps.lock(slot).next_free(from);
            let Some(block) = next else { return };
            from = block.end();
            // This is on no stream of the program, and the call waits, because the next request may
            // be on another stream than the heap's.
            let _shown_by_health = driver.call(|_| contents.fill(NO_STREAM, DevicePtr(block.addr), block.size, value));
        }
    }

    /// Writes the canaries of live blocks on a page again, after a park that has not kept the
    /// contents, and waits for the end.
    pub(in crate::arena) fn renew_canaries<P: Platform>(
        &self,
        driver: &Driver<P::Device>,
        heaps: &Heaps<P>,
        slot: u32,
        page: &HomePage,
    ) -> Result<(), Error> {
        let Some(contents) = driver.device().contents().filter(|_| self.filling().canary) else {
            return Ok(());
        };
        let mut from = 0;
        loop {
            // The lock ends with this statement.
            let next = heaps.lock(slot).next_used(from, page.at, page.end());
            let Some(block) = next else { return Ok(()) };
            from = block.end();
            let begin = block.addr + block.requested;
            let end = (begin + checked_bytes(block.size, block.requested) as u64).min(page.end());
            let begin = begin.max(page.at);
            if begin < end {
                driver.call(|_| contents.fill(NO_STREAM, DevicePtr(begin), end - begin, CANARY))?;
            }
        }
    }
}

/// Returns the address of the first overwritten byte among the `bytes` bytes from `at` on.
fn first_damage<D: DeviceMemory>(
    driver: &Driver<D>,
    contents: &dyn Contents,
    at: DevicePtr,
    bytes: usize,
) -> Option<DevicePtr> {
    let mut room = [CANARY; CHECKED];
    let read = &mut room[..bytes];
    if bytes == 0 || driver.call(|_| contents.read(at, read)).is_err() {
        return None;
    }
    read.iter().position(|&byte| byte != CANARY).map(|offset| at.offset(offset as u64))
}
