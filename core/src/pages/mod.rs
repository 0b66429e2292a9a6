//! The pool of pages of a device: every physical handle, whether or not it is mapped in a range.
//!
//! ```text
//!            create                     map elsewhere: the old mapping becomes an alias
//! (device) ─────────▶ moving ─▶ home ─────────────▶ moving ─▶ home
//!     ▲                 ▲         │ unmap                        │ unmap
//!     └──── destroy ────┴─ spare ◀┴──────────────────────────────┘
//! ```
//!
//! A page is a physical handle. It is *home* while it is mapped at a place that blocks use, *spare*
//! while no work uses it, and *moving* while an operation holds it. A page that left an elastic
//! range is *departed* until the work before its [departure](departures) is complete; work that is
//! ordered after the departure may use it earlier. When a page moves, its old mapping remains as an
//! *alias* until the work on the old addresses is complete. The memory of a page is given back to
//! the device only after its last alias is gone.
//!
//! This folder contains only tables, and never calls the device.

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
    /// Mapped in a range, which lists it.
    Home,
    /// In the list of spare pages.
    Spare,
    /// In the list of spare pages of the host.
    SpareOfHost,
    /// No longer used at its old place, except by the work before the departure.
    Departed,
    /// Mapped only under guarded blocks. Each mapping counts as an alias.
    Guarded,
    /// Held by an operation.
    Moving,
    /// Parked: it has a place in a heap, but no device memory.
    Asleep,
    /// Mapped at the place of an asleep page. It replaces that page once the contents are copied.
    Waking,
    /// Mapped at the place of an asleep page after a failed wake, because the device failed to
    /// unmap it. The next wake fills it.
    Left,
    /// Never used again, because the device failed to remove a mapping. The entry is kept until the
    /// last alias is removed.
    Lost,
}

/// The contents of a parked page after it wakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// Undefined contents.
    Nothing,
    /// Zeroes.
    Zeroes,
    /// The contents that the host saved.
    Saved(Saved),
}

/// A physical handle of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// The device's name for the memory. Meaningless while the page is asleep.
    pub handle: PhysicalHandle,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether the memory is that of the host. Such a page is at home, departed, moving, or spare.
    /// Of a page asleep: whether it is to wake on the host.
    pub is_host: bool,
    /// The number of old mappings that have not been unmapped yet.
    pub aliases: u32,
    /// Whether the device failed to remove a mapping. Then the driver keeps the memory even after
    /// the handle is destroyed. A stuck page is not mapped again, and leaves the table with its
    /// last alias.
    pub stuck: bool,
    /// The state of the page.
    pub place: Place,
    /// While the page moves: the slot of the old heap, and the detached block at the old place.
    /// `None` if the page was not at home.
    pub origin: Option<(u32, u32)>,
    /// The departure after which the page may be used, or [`NONE`]. Not `NONE` ⟹ an entry of a
    /// range holds the departure, and the page has an alias in that range.
    pub behind: u32,
    /// The contents of the page after it wakes. Not [`Kept::Nothing`] ⟹ the page is asleep, or is
    /// about to be.
    pub kept: Kept,
    /// The [`Place::Waking`] or [`Place::Left`] page at the place of this page, or [`NONE`]. Not
    /// `NONE` ⟹ this page is asleep.
    pub replacement: u32,
    /// The page that was mapped right after this one (its *follower*) when it was last mapped in a
    /// heap, or [`NONE`].
    follower: u32,
    /// How often in a row that page was mapped right after this one.
    met: u32,
    /// The group of departed pages that this page is in, or [`NONE`].
    group: u32,
    /// The rank among departed pages, of which the lowest is taken first.
    rank: u64,
    /// The address at which the page was when it last departed.
    left_at: u64,
    /// The next page in the list that this page is in. In a vacant entry, the next vacant entry.
    next: u32,
}

impl Page {
    /// Returns an entry for a handle that the device just created.
    pub(crate) fn created(handle: PhysicalHandle, bytes: u64, is_host: bool) -> Self {
        Self { handle, bytes, is_host, ..Self::vacant(NONE) }
    }
}

vacant!(Page, next, keeps, |next| Self {
    handle: PhysicalHandle(0),
    bytes: 0,
    is_host: false,
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
    rank: 0,
    left_at: 0,
    next,
});

/// Bytes of the pages, by place. The sum of all fields except `asleep` and `guarded_blocks` is the
/// sum of all handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageBytes {
    /// Bytes of the pages at home.
    pub home: u64,
    /// Bytes of the spare pages.
    pub spare: u64,
    /// Bytes of the spare pages of the host.
    pub spare_of_host: u64,
    /// Bytes of the departed pages.
    pub departed: u64,
    /// Bytes of the pages under guarded blocks.
    pub guarded: u64,
    /// Bytes of the guarded blocks. They are part of `guarded`.
    pub guarded_blocks: u64,
    /// Bytes of the pages that operations hold.
    pub moving: u64,
    /// Bytes of the places of asleep pages. An asleep page has no device memory.
    pub asleep: u64,
    /// Bytes of the waking pages and of the pages left by failed wakes.
    pub waking: u64,
    /// Bytes of the lost pages that still have old mappings.
    lost: u64,
}

impl_empty! { PageBytes { home, spare, spare_of_host, departed, guarded, guarded_blocks, moving, asleep, waking, lost } }

/// Moving pages, in the order in which they are mapped: a list that is linked through the
/// [`Page`]s.
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
    /// The batch without pages.
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, count: 0, bytes: 0 };

    /// Returns a batch of one page of `bytes`, which must not be in a list.
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
    /// The first spare page of the host.
    spare_of_host: u32,
    /// The departed pages.
    departed: Departed<S>,
    /// The departures of departed pages and of stale mappings of ranges.
    pub departures: Departures<S>,
    /// The parts of memory that the program has pinned.
    pub pins: Pins<S>,
    /// The guarded blocks.
    pub guards: Guards<S>,
    /// Bytes by place.
    pub bytes: PageBytes,
    /// The length of the largest page ever created, in bytes.
    pub largest: u64,
}

impl_empty! { [S: Storage] PagePool<S> { table, spare: NONE, spare_of_host: NONE, departed, departures, pins, guards, bytes, largest } }

impl<S: Storage> core::ops::Index<u32> for PagePool<S> {
    type Output = Page;
    fn index(&self, page: u32) -> &Page {
        &self.table[page]
    }
}

impl<S: Storage> PagePool<S> {
    /// Returns the length of every page of the device in bytes, by handle.
    #[cfg(feature = "alloc")]
    pub(crate) fn lengths(&self) -> alloc::collections::BTreeMap<u64, u64> {
        let vacant: alloc::collections::BTreeSet<u32> = self.table.vacant().collect();
        let pages = (0..).zip(self.table.entries()).filter(|(number, page)| !vacant.contains(number) && !page.is_host);
        pages.map(|(_, page)| (page.handle.0, page.bytes)).collect()
    }

    /// Makes room for another page.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full.
    pub(crate) fn make_room(&mut self) -> Result<(), CapacityError> {
        if self.table.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Adds a page that the device just created, as moving. The caller has made room.
    pub(crate) fn add(&mut self, page: Page) -> u32 {
        self.bytes.moving += page.bytes;
        self.largest = self.largest.max(page.bytes);
        self.table.insert(page)
    }

    /// Removes a moving page that is destroyed or lost.
    pub(crate) fn remove(&mut self, page: u32) -> Page {
        let entry = self.table[page];
        debug_assert!(entry.place == Place::Moving, "only a page in hand is removed");
        self.bytes.moving -= entry.bytes;
        self.table.remove(page);
        entry
    }

    /// Gives up a moving page after the device failed to unmap it. The entry is removed with its
    /// last alias.
    pub(crate) fn lose(&mut self, page: u32) {
        self.put(page, Place::Lost);
        self.remove_if_lost(page);
    }

    /// Removes a lost page if it has no old mappings.
    fn remove_if_lost(&mut self, page: u32) {
        let Page { place, aliases, bytes, .. } = self.table[page];
        if place == Place::Lost && aliases == 0 {
            self.bytes.lost -= bytes;
            self.table.remove(page);
        }
    }

    /// Takes a spare page of exactly `bytes` from the list of `place`. It is then moving.
    pub(crate) fn take_spare(&mut self, place: Place, bytes: u64) -> Option<u32> {
        self.take_spare_if(place, |page| page.bytes == bytes && !page.stuck)
    }

    /// Returns whether a page of exactly `bytes` is spare.
    pub(crate) fn has_spare(&self, bytes: u64) -> bool {
        self.spares().any(|page| self.table[page].bytes == bytes && !self.table[page].stuck)
    }

    /// Returns the length of the largest spare page that has at most `bytes`.
    pub(crate) fn largest_spare(&self, bytes: u64) -> Option<u64> {
        let usable = self.spares().map(|page| &self.table[page]).filter(|page| page.bytes <= bytes && !page.stuck);
        usable.map(|page| page.bytes).max()
    }

    /// Returns whether the spare pages hold more bytes than guarded blocks have ever used at the
    /// same time, and none of them has `bytes`. A page only serves guarded blocks of its size,
    /// so a program that keeps using new sizes would fill the device with spare pages.
    pub(crate) fn has_spares_of_other_sizes(&self, bytes: u64) -> bool {
        self.bytes.spare > self.guards.most_bytes && !self.spares().any(|page| self.table[page].bytes == bytes)
    }

    /// Takes a page that can be destroyed because it has no alias from the list of `place`. It is
    /// then moving.
    pub(crate) fn take_destroyable(&mut self, place: Place) -> Option<u32> {
        self.take_spare_if(place, |page| page.aliases == 0)
    }

    /// Returns the bytes of the spare pages of the device that can be destroyed.
    pub(crate) fn destroyable_bytes(&self) -> u64 {
        self.spares().map(|page| &self.table[page]).filter(|page| page.aliases == 0).map(|page| page.bytes).sum()
    }

    /// Takes the first page of the list of `place` for which `wanted` returns true. It is then
    /// moving.
    fn take_spare_if(&mut self, place: Place, wanted: impl Fn(&Page) -> bool) -> Option<u32> {
        let mut before = NONE;
        let mut page = *self.first_spare(place);
        while page != NONE && !wanted(&self.table[page]) {
            (before, page) = (page, self.table[page].next);
        }
        if page == NONE {
            return None;
        }
        let next = self.table[page].next;
        if before == NONE {
            *self.first_spare(place) = next;
        } else {
            self.table[before].next = next;
        }
        self.put(page, Place::Moving);
        Some(page)
    }

    /// Returns the first page of the list of spare pages in `place`.
    fn first_spare(&mut self, place: Place) -> &mut u32 {
        if place == Place::SpareOfHost { &mut self.spare_of_host } else { &mut self.spare }
    }

    /// Puts a moving page into the list of spare pages, those of the device or of the host.
    pub(crate) fn make_spare(&mut self, page: u32) {
        debug_assert!(self.table[page].place == Place::Moving, "a page in hand becomes spare");
        let place = if self.table[page].is_host { Place::SpareOfHost } else { Place::Spare };
        self.put(page, place);
        let next = core::mem::replace(self.first_spare(place), page);
        let entry = &mut self.table[page];
        (entry.origin, entry.next) = (None, next);
    }

    /// Ends the departure of `page`: no work before `departure` uses the page any more, and its
    /// alias in the range is unmapped, or `stuck` forever. Returns whether the page was departed,
    /// and the fence if the departure is over. A page that was departed is then moving.
    pub(crate) fn finish_departure(&mut self, page: u32, departure: u32, stuck: bool) -> (bool, Option<Fence>) {
        let was_departed = self.take_back(page, departure);
        self.remove_alias(page, stuck);
        if self.table[page].behind == departure {
            self.table[page].behind = NONE;
        }
        (was_departed, self.departures.release(departure))
    }

    /// Changes the place of a page, and updates the sums of bytes.
    fn put(&mut self, page: u32, place: Place) {
        let entry = &mut self.table[page];
        *self.bytes.of(entry.place) -= entry.bytes;
        *self.bytes.of(place) += entry.bytes;
        entry.place = place;
    }

    /// Marks a page as stuck in a mapping, because the device failed to unmap it.
    pub(crate) fn mark_stuck(&mut self, page: u32) {
        self.table[page].stuck = true;
    }

    /// Counts an alias of `page`, for a mapping that is stale from now on.
    pub(crate) fn add_alias(&mut self, page: u32) {
        self.table[page].aliases += 1;
    }

    /// Counts an alias of `page` at its old place, and returns this place: the slot of a heap, and
    /// the detached block. The caller counts the alias before it lists the place as stale, because
    /// any thread may unmap a listed place at once.
    pub(crate) fn count_alias_of_origin(&mut self, page: u32) -> Option<(u32, u32)> {
        let origin = self.table[page].origin?;
        self.add_alias(page);
        Some(origin)
    }

    /// Records that an alias of `page` is unmapped, or `stuck` forever.
    pub(crate) fn remove_alias(&mut self, page: u32, stuck: bool) {
        if stuck {
            self.unlist_departed(page);
        }
        let entry = &mut self.table[page];
        entry.aliases -= 1;
        entry.stuck |= stuck;
        self.remove_if_lost(page);
    }

    /// Puts a moving page under a guarded block of `size` bytes. The block counts as an alias of
    /// the page.
    pub(crate) fn begin_to_guard(&mut self, page: u32, size: u64) {
        self.put(page, Place::Guarded);
        self.add_alias(page);
        self.bytes.guarded_blocks += size;
        self.guards.most_bytes = self.guards.most_bytes.max(self.bytes.guarded);
    }

    /// Returns whether `bytes` are left on the shelf.
    pub(crate) fn has_room_on_shelf(&self, bytes: u64) -> bool {
        self.guards.shelf.as_ref().is_some_and(|shelf| shelf.used + bytes <= self.table[shelf.page].bytes)
    }

    /// Cuts `bytes` off the page that small guarded blocks share. The block counts as an alias of
    /// the page. Returns the page and the offset in it, or `None` if the page does not have `bytes`
    /// left.
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

    /// Ends a mapping of `page` under a guarded block of `size` bytes, which is unmapped, or
    /// `stuck` forever. After its last block, the page is spare. Returns how many bytes to count as
    /// leaked.
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

    /// Marks a page at home as moving, after its mapping was lost.
    pub(crate) fn leave_home(&mut self, page: u32) {
        self.put(page, Place::Moving);
    }

    /// Marks a page at home as moving away from the detached `block` of the heap in `slot`.
    pub(crate) fn begin_move(&mut self, page: u32, slot: u32, block: u32) {
        self.put(page, Place::Moving);
        self.table[page].origin = Some((slot, block));
    }

    /// Marks a moving page as home, either at the new place or back at the old one.
    pub(crate) fn settle(&mut self, page: u32) {
        self.put(page, Place::Home);
        self.table[page].origin = None;
        // From now on, the order of the stream that uses the page is what counts.
        self.table[page].behind = NONE;
    }

    /// Marks a page at home as asleep, after it was unmapped. Returns a copy of the entry with the
    /// handle, which the caller destroys.
    pub(crate) fn fall_asleep(&mut self, page: u32) -> Page {
        let awake = self.table[page];
        debug_assert!(awake.place == Place::Home && self.has_one_mapping(page), "the memory of the page is free now");
        debug_assert!(!awake.is_host, "memory of the host stays mapped");
        self.put(page, Place::Asleep);
        self.table[page].handle = PhysicalHandle(0);
        awake
    }

    /// Sets whether a page asleep is to wake on the host. Returns false if it was set so before, or
    /// if the page is awake or about to wake.
    pub(crate) fn set_wakes_on_host(&mut self, page: u32, on_host: bool) -> bool {
        let entry = &mut self.table[page];
        let changes = entry.place == Place::Asleep && entry.replacement == NONE && entry.is_host != on_host;
        if changes {
            entry.is_host = on_host;
        }
        changes
    }

    /// Replaces what is kept of a page until it wakes. Returns what was kept before.
    pub(crate) fn keep(&mut self, page: u32, kept: Kept) -> Kept {
        core::mem::replace(&mut self.table[page].kept, kept)
    }

    /// Returns the page that a failed wake left mapped at the place of `page`.
    pub(crate) fn left(&self, page: u32) -> Option<u32> {
        let replacement = self.table[page].replacement;
        (replacement != NONE && self.table[replacement].place == Place::Left).then_some(replacement)
    }

    /// Returns whether the replacement of `page` is stuck: mapped, but not accessible.
    pub(crate) fn is_replacement_stuck(&self, page: u32) -> bool {
        self.table[self.table[page].replacement].stuck
    }

    /// Marks the accessible page that was left at the place of `page` as waking, because the
    /// contents of `page`, which is asleep, are being copied to it.
    pub(crate) fn begin_to_fill(&mut self, page: u32) {
        let replacement = self.table[page].replacement;
        self.put(replacement, Place::Waking);
        self.table[replacement].stuck = false;
    }

    /// Marks the replacement of `page` as left: `page` remains asleep, and the replacement remains
    /// mapped at its place.
    pub(crate) fn leave_replacement(&mut self, page: u32) {
        self.put(self.table[page].replacement, Place::Left);
    }

    /// Marks the moving page `replacement` as waking. It is mapped at the place of `page`, which is
    /// asleep.
    pub(crate) fn begin_to_wake(&mut self, page: u32, replacement: u32) {
        debug_assert!(self.table[page].place == Place::Asleep, "only a page asleep wakes");
        self.put(replacement, Place::Waking);
        self.table[page].replacement = replacement;
    }

    /// Undoes [`begin_to_wake`](Self::begin_to_wake). Returns the replacement, which is no longer
    /// mapped, and is moving again.
    pub(crate) fn stay_asleep(&mut self, page: u32) -> u32 {
        let replacement = core::mem::replace(&mut self.table[page].replacement, NONE);
        self.put(replacement, Place::Moving);
        self.table[replacement].stuck = false;
        replacement
    }

    /// Removes an asleep page when its place is given up. Returns what was kept of the page.
    pub(crate) fn remove_asleep(&mut self, page: u32) -> Kept {
        let Page { place, bytes, kept, .. } = self.table[page];
        debug_assert!(place == Place::Asleep, "only a page asleep has no memory");
        self.bytes.asleep -= bytes;
        self.table.remove(page);
        kept
    }

    /// Replaces an asleep page with its replacement, which is then home. Returns the replacement,
    /// and what was kept of the page.
    pub(crate) fn wake(&mut self, page: u32) -> (u32, Kept) {
        let replacement = self.table[page].replacement;
        self.settle(replacement);
        (replacement, self.remove_asleep(page))
    }

    /// Puts `new`, a moving page that was mapped in the place of `old`, at home there, and makes
    /// `old` spare.
    pub(crate) fn take_place(&mut self, old: u32, new: u32) {
        self.settle(new);
        self.leave_home(old);
        self.make_spare(old);
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

    /// Cuts a batch after its first pages with `bytes`. The others are then in no list.
    pub(crate) fn cut(&mut self, batch: &mut Batch, bytes: u64) {
        let (mut kept, mut page) = (Batch::EMPTY, batch.first);
        while kept.bytes < bytes {
            let next = self.table[page].next;
            self.append(&mut kept, page);
            page = next;
        }
        *batch = kept;
    }

    /// Appends the pages of `more` to `batch`.
    pub(crate) fn join(&mut self, batch: &mut Batch, more: Batch) {
        if batch.count == 0 {
            *batch = more;
        } else if more.count > 0 {
            self.table[batch.last].next = more.first;
            (batch.last, batch.count) = (more.last, batch.count + more.count);
            batch.bytes += more.bytes;
        }
    }

    /// Counts the meetings of the pages of a batch that is mapped in order: how often in a row each
    /// page was mapped next to the page after it, in either order.
    pub(crate) fn count_meetings(&mut self, batch: &Batch) {
        let mut page = Some(batch.first).filter(|_| batch.count > 0);
        while let Some(this) = page {
            page = self.next(this);
            let follower = page.unwrap_or(NONE);
            // The entry of the follower still describes its previous mapping, because its turn
            // comes next.
            let met = page.map_or(0, |follower| self.meetings(this, follower).max(self.meetings(follower, this)));
            let entry = &mut self.table[this];
            (entry.follower, entry.met) = (follower, met.saturating_add(1));
        }
    }

    /// Returns whether `page` is mapped at home, and not held by an operation.
    pub(crate) fn is_home(&self, page: u32) -> bool {
        self.table[page].place == Place::Home
    }

    /// Returns whether `page` can be destroyed once its mapping is removed.
    pub(crate) fn has_one_mapping(&self, page: u32) -> bool {
        let Page { aliases, stuck, .. } = self.table[page];
        aliases == 0 && !stuck
    }

    /// Returns how often in a row `follower` was mapped right after `page`.
    pub(crate) fn meetings(&self, page: u32, follower: u32) -> u32 {
        let entry = &self.table[page];
        if entry.follower == follower { entry.met } else { 0 }
    }

    /// Returns the page after `page` in the list that it is in.
    pub(crate) fn next(&self, page: u32) -> Option<u32> {
        Some(self.table[page].next).filter(|&next| next != NONE)
    }

    /// Iterates over the spare pages of the device.
    fn spares(&self) -> impl Iterator<Item = u32> {
        self.list(self.spare)
    }

    /// Iterates over a list of pages, from `first` on.
    fn list(&self, first: u32) -> impl Iterator<Item = u32> {
        core::iter::successors(Some(first).filter(|&page| page != NONE), |&page| self.next(page))
    }

    /// Checks the sums of bytes by place.
    ///
    /// # Errors
    /// A description of the broken invariant.
    pub(crate) fn check(&self) -> Result<PageBytes, &'static str> {
        let sum = |first, place| {
            self.list(first).try_fold(0, |sum, page| {
                let page = &self.table[page];
                let is_spare = page.place == place && page.is_host == (place == Place::SpareOfHost);
                if is_spare { Ok(sum + page.bytes) } else { Err("a list of spare pages holds another") }
            })
        };
        let spare = (sum(self.spare, Place::Spare)?, sum(self.spare_of_host, Place::SpareOfHost)?);
        let departed = self.table.entries().iter().filter(|page| page.place == Place::Departed);
        let listed = (self.bytes.spare, self.bytes.spare_of_host);
        if (spare, departed.map(|page| page.bytes).sum()) == (listed, self.bytes.departed) {
            Ok(self.bytes)
        } else {
            Err("the bytes of the spare or of the departed pages are not their sum")
        }
    }
}

impl PageBytes {
    /// Returns the bytes that no block uses: those of spare, departed and waking pages, and those
    /// [next to](Self::beside_guarded) guarded blocks. Only departed ones may be the host's.
    pub(crate) fn unused(&self) -> u64 {
        self.spare + self.departed + self.waking + self.beside_guarded()
    }

    /// Returns the bytes next to guarded blocks, on the pages of those blocks.
    pub(crate) fn beside_guarded(&self) -> u64 {
        self.guarded - self.guarded_blocks
    }

    /// Returns the bytes of the pages in `place`.
    fn of(&mut self, place: Place) -> &mut u64 {
        match place {
            Place::Home => &mut self.home,
            Place::Spare => &mut self.spare,
            Place::SpareOfHost => &mut self.spare_of_host,
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
