//! Guarded blocks. Each has addresses that no other block uses, and is remembered for a number of
//! frees after its addresses were unmapped.
//!
//! ```text
//! reserved  |        pages of the block         | never mapped |        the end of the block at the end of a page
//!           |............|======== block =======|              |
//!
//! held ─ free ─▶ freed ─ the work known at the free is complete ─▶ unmapped ─ some frees later ─▶ forgotten
//!                  └──── the same, while pinned ─▶ pinned ─ unpin ───▲
//! ```
//!
//! Small blocks may share a page: the page is mapped once for each of them, and each block is at a
//! different offset. The *shelf* is the page that the next blocks are cut from. Offsets are used
//! only once: a page is used again when none of its blocks is left.

use crate::device::explanation::UsedOn;
use crate::sync::impl_empty;
use crate::tables::hash_index::{HashIndex, Indexed};
use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Storage};
use crate::units::{DevicePtr, StreamId};

/// The stage that a guarded block has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GuardStage {
    /// The program has the block.
    Held,
    /// The block was freed, but the work known at the free may still be running.
    Freed,
    /// The block was freed, and the work known at the free is complete, but the program has pinned
    /// the memory.
    Pinned,
    /// The addresses are unmapped, and no other block uses them.
    Unmapped,
}

/// The addresses of one guarded block, and the page mapped there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GuardedPlace {
    /// The first address of the block.
    pub at: DevicePtr,
    /// The length of the block in bytes.
    pub size: u64,
    /// The reserved addresses.
    pub base: DevicePtr,
    /// The length of the reserved addresses in bytes. Not 0.
    pub span: u64,
    /// Where the page is mapped.
    pub mapped: DevicePtr,
    /// The number of the page.
    pub page: u32,
}

/// A guarded block.
#[derive(Clone, Debug)]
pub(crate) struct GuardedBlock {
    /// Where the block is. The span is 0 in a vacant entry.
    pub place: GuardedPlace,
    /// How many bytes the program requested.
    pub requested: u64,
    /// The stream on which the block was allocated.
    pub stream: StreamId,
    /// The call sites of the request and of the free; 0 if they are unknown.
    pub sites: [u32; 2],
    /// The streams that the program declared as users of the block, until the free.
    pub uses: UsedOn,
    /// The stage that the block has reached.
    pub stage: GuardStage,
    /// How many guarded blocks had been freed when this one was, including it.
    pub freed: u64,
    /// The next block with the same hash. In a vacant entry, the next vacant entry.
    chain: u32,
    /// The unmapped block that is one younger than this one, or [`NONE`].
    younger: u32,
}

impl GuardedBlock {
    /// Returns an entry for a block that the program is about to get.
    pub(crate) fn held(place: GuardedPlace, requested: u64, stream: StreamId, site: u32) -> Self {
        Self { place, requested, stream, sites: [site, 0], ..Self::vacant(NONE) }
    }
}

impl Vacant for GuardedBlock {
    fn vacant(next: u32) -> Self {
        let null = DevicePtr::NULL;
        Self {
            place: GuardedPlace { at: null, size: 0, base: null, span: 0, mapped: null, page: NONE },
            requested: 0,
            stream: StreamId::DEFAULT,
            sites: [0; 2],
            uses: UsedOn::new(),
            stage: GuardStage::Held,
            freed: 0,
            chain: next,
            younger: NONE,
        }
    }

    fn next_vacant(&self) -> u32 {
        self.chain
    }
}

impl Indexed for GuardedBlock {
    fn key(&self) -> u64 {
        self.place.at.0
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn set_chain(&mut self, next: u32) {
        self.chain = next;
    }
}

/// A page that small blocks share, and how much of it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shelf {
    /// The number of the page.
    pub page: u32,
    /// How many bytes at the start of the page are used.
    pub used: u64,
}

/// The guarded blocks of a device.
#[derive(Clone)]
pub(crate) struct Guards<S: Storage> {
    table: SlotTable<GuardedBlock, S>,
    /// Finds each block by its first address.
    index: HashIndex<S>,
    /// The block that was unmapped first, and the one that was unmapped last; [`NONE`] if there are
    /// none.
    oldest: u32,
    youngest: u32,
    /// The number of unmapped blocks.
    unmapped: u32,
    /// The number of frees of guarded blocks.
    pub frees: u64,
    /// The page that small blocks are cut from.
    pub shelf: Option<Shelf>,
    /// The most bytes of pages that guarded blocks have used at the same time.
    pub most_bytes: u64,
}

impl_empty! { [S: Storage] Guards<S> { table, index, oldest: NONE, youngest: NONE, unmapped, frees, shelf, most_bytes } }

impl<S: Storage> Guards<S> {
    /// Makes room for another block.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full.
    pub(crate) fn make_room(&mut self) -> Result<(), CapacityError> {
        let room = self.table.make_room(1) && self.index.make_room(self.table.entries_mut());
        if room { Ok(()) } else { Err(CapacityError) }
    }

    /// Adds a block. The caller has made room.
    pub(crate) fn add(&mut self, block: GuardedBlock) {
        let entry = self.table.insert(block);
        self.index.insert(entry, self.table.entries_mut());
    }

    /// Returns the block that starts at `at`.
    pub(crate) fn at(&mut self, at: DevicePtr) -> Option<&mut GuardedBlock> {
        let entry = self.index.find(at.0, self.table.entries())?;
        Some(&mut self.table[entry])
    }

    /// Returns whether a block with mapped addresses starts at `at`.
    pub(crate) fn is_mapped(&self, at: DevicePtr) -> bool {
        let entry = self.index.find(at.0, self.table.entries());
        entry.is_some_and(|entry| self.table[entry].stage != GuardStage::Unmapped)
    }

    /// Records the free of the block at `at`, with its call site and the streams that the program
    /// declared as users.
    pub(crate) fn note_free(&mut self, at: DevicePtr, site: u32, uses: UsedOn) {
        self.frees += 1;
        let frees = self.frees;
        if let Some(block) = self.at(at) {
            (block.stage, block.sites[1], block.uses, block.freed) = (GuardStage::Freed, site, uses, frees);
        }
    }

    /// Records that the program has the block at `at` again, because its free failed.
    pub(crate) fn undo_free(&mut self, at: DevicePtr) {
        if let Some(block) = self.at(at) {
            block.stage = GuardStage::Held;
        }
    }

    /// Records that the block at `at` is kept because it is pinned, although its free is complete.
    /// Returns false if there is no mapped block.
    pub(crate) fn stay_pinned(&mut self, at: DevicePtr) -> bool {
        let block = self.at(at).filter(|block| block.stage != GuardStage::Unmapped);
        block.map(|block| block.stage = GuardStage::Pinned).is_some()
    }

    /// Records the end of the last pin of the block at `at`. Returns whether the block was kept
    /// only because of it.
    pub(crate) fn end_pin(&mut self, at: DevicePtr) -> bool {
        let block = self.at(at).filter(|block| block.stage == GuardStage::Pinned);
        block.map(|block| block.stage = GuardStage::Freed).is_some()
    }

    /// Marks the block at `at` as unmapped. The caller unmaps the addresses, and then calls
    /// [`keep_away`](Self::keep_away). Returns the place of the block, or `None` if there is no
    /// block or it is unmapped already.
    pub(crate) fn unmap(&mut self, at: DevicePtr) -> Option<GuardedPlace> {
        let entry = self.index.find(at.0, self.table.entries())?;
        if self.table[entry].stage == GuardStage::Unmapped {
            return None;
        }
        let place = self.table[entry].place;
        self.table[entry].stage = GuardStage::Unmapped;
        Some(place)
    }

    /// Keeps the addresses of the block at `at`, which are now unmapped, from being used by later
    /// blocks until [`forget_oldest`](Self::forget_oldest).
    pub(crate) fn keep_away(&mut self, at: DevicePtr) {
        let Some(entry) = self.index.find(at.0, self.table.entries()) else { return };
        if self.youngest == NONE {
            self.oldest = entry;
        } else {
            self.table[self.youngest].younger = entry;
        }
        self.youngest = entry;
        self.unmapped += 1;
    }

    /// Forgets the block that was unmapped first, if more than `keep` are unmapped. Returns its
    /// place.
    pub(crate) fn forget_oldest(&mut self, keep: u64) -> Option<GuardedPlace> {
        if u64::from(self.unmapped) <= keep {
            return None;
        }
        let entry = self.oldest;
        let GuardedBlock { place, younger, .. } = self.table[entry];
        self.index.take(place.at.0, self.table.entries_mut());
        self.table.remove(entry);
        self.unmapped -= 1;
        self.oldest = younger;
        if younger == NONE {
            self.youngest = NONE;
        }
        Some(place)
    }

    /// Returns the block that has `ptr` among its reserved addresses.
    pub(crate) fn around(&self, ptr: DevicePtr) -> Option<&GuardedBlock> {
        let is_around = |block: &&GuardedBlock| {
            let GuardedPlace { base, span, .. } = block.place;
            (base.0..base.0 + span).contains(&ptr.0)
        };
        self.table.entries().iter().find(is_around)
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::Growable;

    fn block(number: u64) -> GuardedBlock {
        let base = DevicePtr(number << 24);
        let place = GuardedPlace { at: base.offset(512), size: 1024, base, span: 1 << 22, mapped: base, page: 0 };
        GuardedBlock::held(place, 1000, StreamId(3), 7)
    }

    #[test]
    fn a_block_is_known_until_enough_others_were_unmapped() {
        let mut guards = Guards::<Growable>::default();
        for number in 1..=3 {
            guards.make_room().unwrap();
            guards.add(block(number));
        }
        for (kept, number) in (0..).zip([2, 1, 3]) {
            let at = block(number).place.at;
            guards.note_free(at, 9, UsedOn::new());
            assert!(guards.is_mapped(at));
            assert_eq!(guards.unmap(at), Some(block(number).place));
            assert_eq!(guards.unmapped, kept, "the device unmaps it still");
            guards.keep_away(at);
            assert_eq!((guards.unmap(at), guards.is_mapped(at)), (None, false));
        }
        assert_eq!(guards.forget_oldest(3), None);
        assert_eq!(guards.forget_oldest(2), Some(block(2).place));
        assert!(guards.around(DevicePtr(2 << 24)).is_none());
        let known = guards.around(DevicePtr((3 << 24) + (1 << 22) - 1)).unwrap();
        assert_eq!((known.stage, known.freed, known.sites), (GuardStage::Unmapped, 3, [7, 9]));
        assert_eq!([0, 0, 0].map(|keep| guards.forget_oldest(keep).is_some()), [true, true, false]);
    }
}
