//! The pool of pages of a device: every physical handle, mapped in any range or in none.
//!
//! ```text
//!            create                     map elsewhere: the old mapping becomes an alias
//! (device) ─────────▶ moving ─▶ home ─────────────▶ moving ─▶ home
//!     ▲                 ▲         │ unmap                        │ unmap
//!     └──── destroy ────┴─ spare ◀┴──────────────────────────────┘
//! ```
//!
//! A page is a physical handle. A page is *home* while blocks at a place use the page, *spare*
//! while no work uses the page, and *moving* while an operation holds the page. A page that left an
//! elastic range is *departed* until the work before the page's [departure](departures) is
//! complete; work ordered after the departure may use the page earlier. A moved page keeps the old
//! mapping as an *alias* until the work on the old addresses is complete; the memory of a page goes
//! back to the device only after the page's last alias.
//!
//! The folder holds tables, and never calls the device.

pub(crate) mod counts;
pub(crate) mod departed;
pub(crate) mod departures;
pub(crate) mod guards;
pub(crate) mod pins;

use crate::device::{PhysicalHandle, Saved};
use crate::pages::departed::Departed;
use crate::pages::departures::Departures;
use crate::pages::guards::{Guards, Shelf};
use crate::pages::pins::Pins;
use crate::streams::fences::Fence;
use crate::sync::impl_empty;
use crate::tables::slot_table::{NONE, SlotTable, Vacant, vacant};
use crate::tables::{CapacityError, Storage};

/// The state of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Mapped in a range, and listed by the range.
    Home,
    /// In the list of spare pages.
    Spare,
    /// Of no use at the old place, and used by the work before the departure.
    Departed,
    /// Mapped under guarded blocks only. Each mapping counts as an alias.
    Guarded,
    /// Held by an operation.
    Moving,
    /// Parked: a place in a heap, the contents of which the host keeps, without memory of the
    /// device.
    Asleep,
    /// Mapped at the place of an asleep page. The waking page replaces the asleep page once the
    /// contents are copied.
    Waking,
    /// Mapped at the place of an asleep page after a failed wake, since the device failed to unmap
    /// the page. The next wake fills the page.
    Left,
    /// Never used again: the device failed to remove a mapping. The entry stays until the last
    /// alias is removed.
    Lost,
}

/// The contents of a parked page after the wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// Anything.
    Nothing,
    /// Zeroes.
    Zeroes,
    /// The contents saved by the host.
    Saved(Saved),
}

/// A physical handle of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// The device's name for the memory. Meaningless while the page is asleep.
    pub handle: PhysicalHandle,
    /// Length in bytes.
    pub bytes: u64,
    /// Old mappings still to be unmapped.
    pub aliases: u32,
    /// Whether the device failed to remove a mapping: the memory stays with the device's driver
    /// even after the handle is destroyed. A stuck page is not mapped again, and leaves the table
    /// with the last alias.
    pub stuck: bool,
    /// The state of the page.
    pub place: Place,
    /// While the page moves: the slot of the old heap, and the detached block at the old place.
    /// `None` for a page without a home.
    pub origin: Option<(u32, u32)>,
    /// The departure behind which the page may be used, or [`NONE`]. Not `NONE` ⟹ an entry of a
    /// range keeps the departure, and the page has an alias in the range.
    pub behind: u32,
    /// The contents of the page after the wake. Not [`Kept::Nothing`] ⟹ the page is asleep, or is
    /// about to be.
    pub kept: Kept,
    /// The [`Place::Waking`] or [`Place::Left`] page at the place of the asleep page, or [`NONE`].
    /// Not `NONE` ⟹ the page is asleep.
    pub replacement: u32,
    /// The follower: the page mapped behind the page at the last mapping in a heap, or [`NONE`].
    follower: u32,
    /// How often in a row the follower was mapped behind the page.
    met: u32,
    /// The group of departed pages with the page, or [`NONE`].
    group: u32,
    /// The number of departures of pages before the page's last departure.
    order: u64,
    /// The next page in the page's list, or the next vacant entry.
    next: u32,
}

impl Page {
    /// Returns an entry for a handle just created by the device.
    pub(crate) fn created(handle: PhysicalHandle, bytes: u64) -> Self {
        Self { handle, bytes, ..Self::vacant(NONE) }
    }
}

vacant!(Page, next, keeps, |next| Self {
    handle: PhysicalHandle(0),
    bytes: 0,
    aliases: 0,
    stuck: false,
    place: Place::Moving,
    origin: None,
    behind: NONE,
    kept: Kept::Nothing,
    replacement: NONE,
    follower: NONE,
    met: 0,
    group: NONE,
    order: 0,
    next,
});

/// Bytes of the pages, by place. The sum of all but `asleep` and `guarded_blocks` is the sum of all
/// handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageBytes {
    /// Bytes of the pages at home.
    pub home: u64,
    /// Bytes of the spare pages.
    pub spare: u64,
    /// Bytes of the departed pages.
    pub departed: u64,
    /// Bytes of the pages under guarded blocks.
    pub guarded: u64,
    /// Bytes of the guarded blocks. A part of `guarded`.
    pub guarded_blocks: u64,
    /// Bytes of the pages held by operations.
    pub moving: u64,
    /// Bytes of the places of asleep pages. An asleep page has no memory of the device.
    pub asleep: u64,
    /// Bytes of the waking pages and of the pages left by failed wakes.
    pub waking: u64,
    /// Bytes of the lost pages with old mappings left.
    lost: u64,
}

impl_empty! { PageBytes { home, spare, departed, guarded, guarded_blocks, moving, asleep, waking, lost } }

/// Moving pages, in the order in which they are mapped: a list through [`Page`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// The first page.
    pub first: u32,
    last: u32,
    /// Number of pages.
    pub count: u32,
    /// Bytes of all pages.
    pub bytes: u64,
}

impl Batch {
    /// The batch without a page.
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, count: 0, bytes: 0 };

    /// Returns the batch of one page of `bytes`, which is in no list.
    pub(crate) const fn of(page: u32, bytes: u64) -> Self {
        Self { first: page, last: page, count: 1, bytes }
    }
}

/// All pages of a device.
#[derive(Clone)]
pub(crate) struct PagePool<S: Storage> {
    table: SlotTable<Page, S>,
    /// The first spare page.
    spare: u32,
    /// The departed pages.
    departed: Departed<S>,
    /// The departures of departed pages and of stale mappings of ranges.
    pub departures: Departures<S>,
    /// The parts of memory pinned by the program.
    pub pins: Pins<S>,
    /// The guarded blocks.
    pub guards: Guards<S>,
    /// Bytes by place.
    pub bytes: PageBytes,
    /// Length of the largest page ever created, in bytes.
    pub largest: u64,
}

impl_empty! { [S: Storage] PagePool<S> { table, spare: NONE, departed, departures, pins, guards, bytes, largest } }

impl<S: Storage> core::ops::Index<u32> for PagePool<S> {
    type Output = Page;
    fn index(&self, page: u32) -> &Page {
        &self.table[page]
    }
}

impl<S: Storage> PagePool<S> {
    /// Returns the length of every page in bytes, by handle.
    #[cfg(feature = "alloc")]
    pub(crate) fn lengths(&self) -> alloc::collections::BTreeMap<u64, u64> {
        let vacant: alloc::collections::BTreeSet<u32> = self.table.vacant().collect();
        let pages = (0..).zip(self.table.entries()).filter(|(number, _)| !vacant.contains(number));
        pages.map(|(_, page)| (page.handle.0, page.bytes)).collect()
    }

    /// Makes room for another page.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full.
    pub(crate) fn make_room(&mut self) -> Result<(), CapacityError> {
        if self.table.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Adds a page just created by the device, as moving. Room was made.
    pub(crate) fn add(&mut self, handle: PhysicalHandle, bytes: u64) -> u32 {
        self.bytes.moving += bytes;
        self.largest = self.largest.max(bytes);
        self.table.insert(Page::created(handle, bytes))
    }

    /// Removes a moving page, which is destroyed or lost.
    pub(crate) fn remove(&mut self, page: u32) -> Page {
        let entry = self.table[page];
        debug_assert!(entry.place == Place::Moving, "only a page in hand is removed");
        self.bytes.moving -= entry.bytes;
        self.table.remove(page);
        entry
    }

    /// Gives up a moving page after a failure of the device to unmap. The entry is removed with the
    /// last alias.
    pub(crate) fn lose(&mut self, page: u32) {
        self.put(page, Place::Lost);
        self.remove_if_lost(page);
    }

    /// Removes a lost page without an old mapping.
    fn remove_if_lost(&mut self, page: u32) {
        let Page { place, aliases, bytes, .. } = self.table[page];
        if place == Place::Lost && aliases == 0 {
            self.bytes.lost -= bytes;
            self.table.remove(page);
        }
    }

    /// Takes a spare page of exactly `bytes`, which is then moving.
    pub(crate) fn take_spare(&mut self, bytes: u64) -> Option<u32> {
        self.take_spare_if(|page| page.bytes == bytes && !page.stuck)
    }

    /// Returns the length of the largest spare page of at most `bytes`.
    pub(crate) fn largest_spare(&self, bytes: u64) -> Option<u64> {
        let usable = self.spares().map(|page| &self.table[page]).filter(|page| page.bytes <= bytes && !page.stuck);
        usable.map(|page| page.bytes).max()
    }

    /// Returns whether the spare pages hold more bytes than guarded blocks have ever used at once,
    /// and none has `bytes`. A page serves guarded blocks of its own size only, so a program of
    /// ever new sizes would fill the device with spare pages.
    pub(crate) fn has_spares_of_other_sizes(&self, bytes: u64) -> bool {
        self.bytes.spare > self.guards.most_bytes && !self.spares().any(|page| self.table[page].bytes == bytes)
    }

    /// Takes a destroyable spare page: a spare page without an alias. The page is then moving.
    pub(crate) fn take_destroyable(&mut self) -> Option<u32> {
        self.take_spare_if(|page| page.aliases == 0)
    }

    /// Takes the first spare page for which `wanted` returns true, which is then moving.
    fn take_spare_if(&mut self, wanted: impl Fn(&Page) -> bool) -> Option<u32> {
        let mut before = NONE;
        let mut page = self.spare;
        while page != NONE && !wanted(&self.table[page]) {
            (before, page) = (page, self.table[page].next);
        }
        if page == NONE {
            return None;
        }
        let next = self.table[page].next;
        if before == NONE {
            self.spare = next;
        } else {
            self.table[before].next = next;
        }
        self.put(page, Place::Moving);
        Some(page)
    }

    /// Puts a moving page into the list of spare pages.
    pub(crate) fn make_spare(&mut self, page: u32) {
        debug_assert!(self.table[page].place == Place::Moving, "a page in hand becomes spare");
        self.put(page, Place::Spare);
        self.table[page].origin = None;
        self.table[page].next = self.spare;
        self.spare = page;
    }

    /// Ends the departure of `page`: no work before `departure` uses the page any longer, and the
    /// alias in the range is unmapped, or `stuck` for good. Returns whether the page was departed,
    /// and the fence if the departure is over. A departed page is then moving.
    pub(crate) fn finish_departure(&mut self, page: u32, departure: u32, stuck: bool) -> (bool, Option<Fence>) {
        let was_departed = self.take_back(page, departure);
        self.remove_alias(page, stuck);
        if self.table[page].behind == departure {
            self.table[page].behind = NONE;
        }
        (was_departed, self.departures.release(departure))
    }

    /// Changes the place of a page, and the sums of bytes.
    fn put(&mut self, page: u32, place: Place) {
        let entry = &mut self.table[page];
        *self.bytes.of(entry.place) -= entry.bytes;
        *self.bytes.of(place) += entry.bytes;
        entry.place = place;
    }

    /// Marks a page as stuck in a mapping after a failure of the device to unmap.
    pub(crate) fn mark_stuck(&mut self, page: u32) {
        self.table[page].stuck = true;
    }

    /// Counts an alias of `page`: a mapping stale from now on.
    pub(crate) fn add_alias(&mut self, page: u32) {
        self.table[page].aliases += 1;
    }

    /// Counts an alias of `page` at the old place. Returns the old place: the slot of a heap and
    /// the detached block. The caller counts the alias before listing the place as stale, since any
    /// thread may unmap a listed place at once.
    pub(crate) fn count_alias_of_origin(&mut self, page: u32) -> Option<(u32, u32)> {
        let origin = self.table[page].origin?;
        self.add_alias(page);
        Some(origin)
    }

    /// Counts an alias of `page` as unmapped, or as `stuck` for good.
    pub(crate) fn remove_alias(&mut self, page: u32, stuck: bool) {
        if stuck {
            self.unlist_departed(page);
        }
        let entry = &mut self.table[page];
        entry.aliases -= 1;
        entry.stuck |= stuck;
        self.remove_if_lost(page);
    }

    /// Puts a moving page under a guarded block of `size` bytes, which counts as the page's alias.
    pub(crate) fn begin_to_guard(&mut self, page: u32, size: u64) {
        self.put(page, Place::Guarded);
        self.add_alias(page);
        self.bytes.guarded_blocks += size;
        self.guards.most_bytes = self.guards.most_bytes.max(self.bytes.guarded);
    }

    /// Returns whether the shelf has `bytes` left.
    pub(crate) fn has_room_on_shelf(&self, bytes: u64) -> bool {
        self.guards.shelf.as_ref().is_some_and(|shelf| shelf.used + bytes <= self.table[shelf.page].bytes)
    }

    /// Cuts `bytes` off the page that small guarded blocks share, for a block that counts as the
    /// page's alias. Returns the page, and the offset in it; `None` if no page has `bytes` left.
    pub(crate) fn cut_off_shelf(&mut self, bytes: u64) -> Option<(u32, u64)> {
        let Shelf { page, used } = self.guards.shelf.as_mut()?;
        let (page, offset) = (*page, *used);
        if offset + bytes > self.table[page].bytes {
            return None;
        }
        *used += bytes;
        self.add_alias(page);
        self.bytes.guarded_blocks += bytes;
        Some((page, offset))
    }

    /// Ends a mapping of `page` under a guarded block of `size` bytes, which is unmapped or `stuck`
    /// for good. The page is spare after the last one. Returns the bytes to count as leaked.
    pub(crate) fn end_guard(&mut self, page: u32, size: u64, stuck: bool) -> u64 {
        self.bytes.guarded_blocks -= size;
        self.remove_alias(page, stuck);
        let Page { aliases, stuck, bytes, .. } = self.table[page];
        if aliases > 0 {
            return 0;
        }
        self.guards.shelf = self.guards.shelf.filter(|shelf| shelf.page != page);
        self.put(page, Place::Moving);
        if stuck {
            self.lose(page);
            return bytes;
        }
        self.make_spare(page);
        0
    }

    /// Marks a page at home as moving, once the mapping is lost.
    pub(crate) fn leave_home(&mut self, page: u32) {
        self.put(page, Place::Moving);
    }

    /// Marks a page at home as moving, from the detached `block` of the heap in `slot`.
    pub(crate) fn begin_move(&mut self, page: u32, slot: u32, block: u32) {
        self.put(page, Place::Moving);
        self.table[page].origin = Some((slot, block));
    }

    /// Marks a moving page as home, at the new place or back at the old place.
    pub(crate) fn settle(&mut self, page: u32) {
        self.put(page, Place::Home);
        self.table[page].origin = None;
        // From now on the order of the stream that uses the page counts.
        self.table[page].behind = NONE;
    }

    /// Marks an unmapped page at home as asleep. Returns a copy of the entry with the handle, which
    /// is to be destroyed.
    pub(crate) fn fall_asleep(&mut self, page: u32) -> Page {
        let awake = self.table[page];
        debug_assert!(awake.place == Place::Home && self.has_one_mapping(page), "the memory of the page is free now");
        self.put(page, Place::Asleep);
        self.table[page].handle = PhysicalHandle(0);
        awake
    }

    /// Replaces the contents kept for a page until the wake. Returns the contents kept before.
    pub(crate) fn keep(&mut self, page: u32, kept: Kept) -> Kept {
        core::mem::replace(&mut self.table[page].kept, kept)
    }

    /// Returns the page left mapped by a failed wake at the place of `page`.
    pub(crate) fn left(&self, page: u32) -> Option<u32> {
        let replacement = self.table[page].replacement;
        (replacement != NONE && self.table[replacement].place == Place::Left).then_some(replacement)
    }

    /// Returns whether the replacement of `page` is stuck: mapped, and not accessible.
    pub(crate) fn is_replacement_stuck(&self, page: u32) -> bool {
        self.table[self.table[page].replacement].stuck
    }

    /// Marks the accessible page left at the place of `page` as waking: the contents of the asleep
    /// `page` are being copied.
    pub(crate) fn begin_to_fill(&mut self, page: u32) {
        let replacement = self.table[page].replacement;
        self.put(replacement, Place::Waking);
        self.table[replacement].stuck = false;
    }

    /// Marks the replacement of `page` as left: `page` stays asleep, and the replacement stays
    /// mapped at the place.
    pub(crate) fn leave_replacement(&mut self, page: u32) {
        self.put(self.table[page].replacement, Place::Left);
    }

    /// Marks the moving page `replacement` as waking, mapped at the place of the asleep `page`.
    pub(crate) fn begin_to_wake(&mut self, page: u32, replacement: u32) {
        debug_assert!(self.table[page].place == Place::Asleep, "only a page asleep wakes");
        self.put(replacement, Place::Waking);
        self.table[page].replacement = replacement;
    }

    /// Undoes [`begin_to_wake`](Self::begin_to_wake). Returns the replacement, which is mapped
    /// nowhere and moving again.
    pub(crate) fn stay_asleep(&mut self, page: u32) -> u32 {
        let replacement = core::mem::replace(&mut self.table[page].replacement, NONE);
        self.put(replacement, Place::Moving);
        self.table[replacement].stuck = false;
        replacement
    }

    /// Removes an asleep page, whose place is given up. Returns the contents kept for the page.
    pub(crate) fn remove_asleep(&mut self, page: u32) -> Kept {
        let Page { place, bytes, kept, .. } = self.table[page];
        debug_assert!(place == Place::Asleep, "only a page asleep has no memory");
        self.bytes.asleep -= bytes;
        self.table.remove(page);
        kept
    }

    /// Puts the replacement of an asleep page into the page's place. The replacement is home then.
    /// Returns the replacement, and the contents kept for the page.
    pub(crate) fn wake(&mut self, page: u32) -> (u32, Kept) {
        let replacement = self.table[page].replacement;
        self.settle(replacement);
        (replacement, self.remove_asleep(page))
    }

    /// Appends a moving page to a batch.
    pub(crate) fn append(&mut self, batch: &mut Batch, page: u32) {
        debug_assert!(self.table[page].place == Place::Moving, "a page in hand is appended");
        self.table[page].next = NONE;
        if batch.last == NONE {
            batch.first = page;
        } else {
            self.table[batch.last].next = page;
        }
        batch.last = page;
        batch.bytes += self.table[page].bytes;
        batch.count += 1;
    }

    /// Moves the pages of `more` to the end of `batch`.
    pub(crate) fn join(&mut self, batch: &mut Batch, more: Batch) {
        if batch.count == 0 {
            *batch = more;
        } else if more.count > 0 {
            self.table[batch.last].next = more.first;
            (batch.last, batch.count) = (more.last, batch.count + more.count);
            batch.bytes += more.bytes;
        }
    }

    /// Counts the meetings of the pages of a batch, mapped in order: how often in a row each page
    /// was mapped beside the next page, in either order.
    pub(crate) fn count_meetings(&mut self, batch: &Batch) {
        let mut page = Some(batch.first).filter(|_| batch.count > 0);
        while let Some(this) = page {
            page = self.next(this);
            let follower = page.unwrap_or(NONE);
            // The entry of the follower is that of its last mapping: its turn comes next.
            let met = page.map_or(0, |follower| self.meetings(this, follower).max(self.meetings(follower, this)));
            let entry = &mut self.table[this];
            (entry.follower, entry.met) = (follower, met.saturating_add(1));
        }
    }

    /// Returns whether `page` is mapped at home and held by no operation.
    pub(crate) fn is_home(&self, page: u32) -> bool {
        self.table[page].place == Place::Home
    }

    /// Returns whether `page` can be destroyed once its mapping is removed.
    pub(crate) fn has_one_mapping(&self, page: u32) -> bool {
        let Page { aliases, stuck, .. } = self.table[page];
        aliases == 0 && !stuck
    }

    /// Returns how often in a row `follower` was mapped behind `page`.
    pub(crate) fn meetings(&self, page: u32, follower: u32) -> u32 {
        let entry = &self.table[page];
        if entry.follower == follower { entry.met } else { 0 }
    }

    /// Returns the page behind `page` in the page's list.
    pub(crate) fn next(&self, page: u32) -> Option<u32> {
        Some(self.table[page].next).filter(|&next| next != NONE)
    }

    /// Iterates over the spare pages.
    fn spares(&self) -> impl Iterator<Item = u32> {
        core::iter::successors(Some(self.spare).filter(|&page| page != NONE), |&page| self.next(page))
    }

    /// Checks the sums by place.
    ///
    /// # Errors
    /// A description of the broken invariant.
    pub(crate) fn check(&self) -> Result<PageBytes, &'static str> {
        let spare = self.spares().try_fold(0, |sum, page| {
            let page = &self.table[page];
            if page.place == Place::Spare { Ok(sum + page.bytes) } else { Err("the list of spare pages holds another") }
        })?;
        let departed = self.table.entries().iter().filter(|page| page.place == Place::Departed);
        if (spare, departed.map(|page| page.bytes).sum()) == (self.bytes.spare, self.bytes.departed) {
            Ok(self.bytes)
        } else {
            Err("the bytes of the spare or of the departed pages are not their sum")
        }
    }
}

impl PageBytes {
    /// Returns the bytes in use by no block: of spare, departed and waking pages, and
    /// [beside](Self::beside_guarded) guarded blocks.
    pub(crate) fn unused(&self) -> u64 {
        self.spare + self.departed + self.waking + self.beside_guarded()
    }

    /// Returns the bytes that guarded blocks leave of their pages.
    pub(crate) fn beside_guarded(&self) -> u64 {
        self.guarded - self.guarded_blocks
    }

    /// Returns the bytes of the pages in `place`.
    fn of(&mut self, place: Place) -> &mut u64 {
        match place {
            Place::Home => &mut self.home,
            Place::Spare => &mut self.spare,
            Place::Departed => &mut self.departed,
            Place::Guarded => &mut self.guarded,
            Place::Moving => &mut self.moving,
            Place::Asleep => &mut self.asleep,
            Place::Waking | Place::Left => &mut self.waking,
            Place::Lost => &mut self.lost,
        }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
