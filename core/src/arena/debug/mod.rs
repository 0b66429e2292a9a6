//! The debug layer: guarded blocks, contents written to blocks and checked, and watched frees.
//!
//! ```text
//! malloc ─▶ guarded? ─┬─ the request's turn ─▶ a block at its own addresses ─┐
//!                     └─ no ─▶ any other way ────────────────────────────────┴▶ placed: watched, filled
//! free ─ with uses ─▶ freed: what is known is noted ─▶ the waits ─▶ completed: checked, filled, unmapped
//! ```
//!
//! Requests and frees come here while a flag of [`flags::DEBUG`] is set. This is where it is
//! decided which of the parts a block needs, off the fast paths. Each block that a part handles has
//! a use by its own stream, so its free takes the same way as that of a block used by several
//! streams, and ends in [`completed`](DebugLayer::completed). Blocks of plans are left out.

mod explain;
mod filling;
mod guarding;

pub(crate) use guarding::end_quarantine;
pub(in crate::arena) use guarding::{end_pin, freed, undo_freed};
use guarding::{is_guarded, remove_guarded, stays_pinned};

use crate::arena::driver::Driver;
use crate::arena::flags::{self, Flags};
use crate::arena::heaps::{HeapGuard, Heaps};
use crate::arena::holdings::Holdings;
use crate::arena::{OwnerMap, Platform};
use crate::config::{Config, Filling, Guard};
use crate::device::DeviceResult;
use crate::page_map::{HeapRef, Owner};
use crate::streams::pending::PendingBlock;
#[cfg(feature = "alloc")]
use crate::sync::Ordering;
use crate::sync::{AtomicU32, impl_empty};
use crate::units::{DevicePtr, NO_STREAM, StreamId};
use spin::Once;

/// The debug layer of a device: its settings, and a count of requests.
#[derive(Debug)]
pub(crate) struct DebugLayer {
    /// Which requests get a guarded block, and what is written to blocks. Set at the start, and
    /// never changed.
    set: Once<(Guard, Filling)>,
    /// The number of requests since the last guarded block.
    since: AtomicU32,
}

impl_empty! { DebugLayer { set: Once::new(), since } }

impl DebugLayer {
    /// Takes the settings from the configuration.
    pub(super) fn start(&self, flags: &Flags, config: &Config) {
        self.set.call_once(|| (config.guard(), config.filling()));
        self.watch_frees(flags, false);
    }

    /// Returns a copy for another device.
    #[cfg(feature = "alloc")]
    pub(super) fn copy(&self) -> Self {
        let set = Once::initialized((self.guard(), self.filling()));
        Self { set, since: AtomicU32::new(self.since.load(Ordering::Relaxed)) }
    }

    /// Sets whether the own stream of each block counts as a use. It always does if blocks are
    /// filled or have a canary.
    pub(crate) fn watch_frees(&self, flags: &Flags, on: bool) {
        flags.set(flags::WATCHED, on || self.filling() != Filling::NOTHING);
    }

    /// Returns which requests get a guarded block.
    fn guard(&self) -> Guard {
        self.set.get().map_or(Guard::Off, |&(guard, _)| guard)
    }

    /// Returns what is written to blocks.
    fn filling(&self) -> Filling {
        self.set.get().map_or(Filling::NOTHING, |&(_, filling)| filling)
    }

    /// Watches and fills a new block of the heap in `slot`, as the settings say. A guarded block
    /// has its use from the start. `bytes` and `stream` are those of the request.
    ///
    /// # Errors
    /// The error of the device.
    pub(super) fn placed<P: Platform>(
        &self,
        held: &Holdings<'_, P>,
        slot: u32,
        (ptr, is_guarded): (DevicePtr, bool),
        bytes: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        if !is_guarded && held.driver.flags.has(flags::WATCHED) {
            held.heaps.watch(held.driver, slot, ptr);
        }
        self.fill_new(held.driver, held.heaps, slot, ptr, bytes, stream)
    }

    /// Frees a pending block that no longer waits for any work, after its contents are checked and
    /// filled. A guarded block is unmapped, unless it is kept for a pin. Unlocks the heap. Returns
    /// whether the block is free.
    pub(super) fn completed<'a, P: Platform>(
        &self,
        held: &Holdings<'a, P>,
        heap: HeapGuard<'a, P>,
        block: PendingBlock,
    ) -> bool {
        let mut heap = heap;
        let PendingBlock { slot, index } = block;
        if stays_pinned(held, &mut heap, index) {
            return false;
        }
        if held.driver.flags.has(flags::WATCHED) && self.tends_frees() && heap.pool == 0 {
            // The block remains pending for this thread, which calls the device without the lock.
            heap.uses().hold(index);
            drop(heap);
            self.end_contents(held.recorder(), held.paging, slot, index);
            heap = held.heaps.lock(slot);
            heap.uses().end_waits(index, 1);
        }
        // Removed under the same lock under which it becomes free, so that no request finds the
        // block.
        let guarded = held.end_pending(heap, block, |heap| remove_guarded(held, slot, heap, index));
        if let Some(at) = guarded {
            // The free has succeeded, whatever happens here: the leaked bytes count a failure, and
            // the health of the context shows a loss.
            let _counted = held.release_guarded(at, None);
        }
        true
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns the heap of the live block at `ptr`, or `None` for a block of a plan.
    pub(super) fn owner_of(&self, pages: &OwnerMap<P>, ptr: DevicePtr) -> Option<HeapRef> {
        match pages.owner(ptr) {
            Owner::Heap(owner) => Some(owner),
            Owner::Shared => {
                let has_block = |&slot: &u32| self.lock(slot).lookup(ptr).is_some();
                self.slot_numbers().find(has_block).map(|slot| self.heap_ref(slot))
            }
            Owner::Planned(_) | Owner::None => None,
        }
    }

    /// Lets the free of the block at `ptr`, of the heap in `slot`, wait for the block's own stream,
    /// too. If there is no room for the use, the free is complete at once.
    fn watch(&self, driver: &Driver<P::Device>, slot: u32, ptr: DevicePtr) {
        let mut heap = self.lock(slot);
        let reports_end = driver.may_use(heap.stream, NO_STREAM);
        if let Some(block) = heap.lookup(ptr)
            // A captured graph orders the uses of its blocks.
            && heap.pool == 0
            && heap.uses().make_room().is_ok()
        {
            heap.uses().add_own(block, reports_end);
        }
    }
}
