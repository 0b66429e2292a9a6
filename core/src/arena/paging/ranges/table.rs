//! The table of elastic ranges. It knows which parts have memory and which mappings are stale.
//!
//! ```text
//! range   | piece: 11111111 | piece: 1100 | stale piece: 00 | gap …………………… |
//!           page 7            page 2        page 9, departure 4
//! ```
//!
//! A *piece* is a mapping of a page. Each bit of its mask is a step of 2 MiB, and is set while the
//! program has this step committed. A piece without a bit is *stale*. It waits for the work before
//! its departure. Then it is *idle* as long as the page is not in use, and a commit takes it back
//! without a call to the device. Once the page serves elsewhere, the place is *left*, and the
//! mapping is to be removed. A *lost* piece is a mapping that the device failed to remove; nothing
//! is mapped at its addresses again.
//!
//! Nothing in this file calls the device.

use crate::device::{DeviceError, ErrorKind};
use crate::stats::{HeapCounters, Stat};
use crate::sync::impl_empty;
use crate::tables::Storage;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, Vacant, vacant};
use crate::units::{NO_STREAM, StreamId};

/// The maximum number of steps in a page of a range, which is the number of bits in a mask.
pub(crate) const MOST_STEPS: u64 = 64;

/// The most pages of a growth, together with those that are mapped ahead.
pub(crate) const MOST_AHEAD: u64 = 8;

/// The number of places noted for upkeep. The oldest are forgotten, and are mapped by commits.
const FRONTS: usize = 64;

/// An elastic range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeEntry {
    /// Device address of the first byte.
    pub base: u64,
    /// Reserved addresses, in bytes.
    pub bytes: u64,
    /// The number of times that the entry was used before.
    generation: u32,
    /// Whether the program holds the range. A range that is neither held nor vacant is removed once
    /// its last piece is unmapped.
    pub is_held: bool,
    /// Whether an operation holds the range. Other operations wait.
    pub is_busy: bool,
    /// Whether a piece is lost, which means that the addresses are never released.
    pub is_lost: bool,
    /// The number of pieces, including stale ones but not lost ones.
    pub pieces: u32,
    /// The first of the uses of the range, or [`NONE`].
    uses: u32,
    /// The departure after which the work of all ended streams is complete, or [`NONE`].
    pub ended: u32,
    /// The next vacant entry.
    next: u32,
}

impl Vacant for RangeEntry {
    fn vacant(next: u32) -> Self {
        Self {
            base: 0,
            bytes: 0,
            generation: 0,
            is_held: false,
            is_busy: false,
            is_lost: false,
            pieces: 0,
            uses: NONE,
            ended: NONE,
            next,
        }
    }

    fn vacate(&mut self, next: u32) {
        *self = Self { generation: self.generation.wrapping_add(1), ..Self::vacant(next) };
    }

    fn next_vacant(&self) -> u32 {
        self.next
    }
}

/// What is known of a stale piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Staleness {
    /// The departure is not known to be complete.
    Waiting,
    /// No work uses the mapping, and the page is not in use.
    Idle,
    /// No work uses the mapping, and the page serves elsewhere, or the range is released.
    Left,
}

/// A mapping of a page in a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Device address of the first byte.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The number of the page in the device's pool of pages. For a lost piece, the device's error
    /// code.
    pub page: u32,
    /// The number of the range.
    pub range: u32,
    /// Bit `n` is set ⟺ step `n` is committed. 0 ⟺ the piece is stale or lost.
    pub mask: u64,
    /// The departure of the decommitted steps, or [`NONE`] if there are none. A stale piece always
    /// has one.
    pub departure: u32,
    /// How often the memory before had grown in a row when the page was mapped: 0 for a first part,
    /// such as a prompt.
    pub growths: u8,
    /// Whether a commit has taken back the page of a stale piece.
    pub is_revived: bool,
    /// The stage of a stale piece, and [`Staleness::Waiting`] for others.
    stage: Staleness,
    /// Whether the device failed to remove the mapping, which may then remain forever.
    is_lost: bool,
}

impl Piece {
    /// Returns a piece without a committed step: the mapping of `page` at `bytes` of a range, from
    /// `at` on.
    pub(crate) fn mapped(range: u32, at: u64, bytes: u64, page: u32) -> Self {
        Self { at, bytes, range, ..Self::vacant(page) }
    }

    /// Returns a lost piece: `bytes` of a range, from `at` on, where the device failed to remove
    /// the mapping.
    fn lost(range: u32, at: u64, bytes: u64, error: DeviceError) -> Self {
        Self { is_lost: true, ..Self::mapped(range, at, bytes, error.code) }
    }

    /// Returns the address just past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.bytes
    }

    /// Returns whether no step is committed, so that the mapping should be removed.
    pub(crate) fn is_stale(&self) -> bool {
        self.mask == 0 && !self.is_lost
    }

    /// Returns the error with which the device failed to remove the mapping of a lost piece, or
    /// `None` for other pieces.
    pub(crate) fn error(&self) -> Option<DeviceError> {
        self.is_lost.then_some(DeviceError::new(ErrorKind::Other, self.page))
    }

    /// Returns the key of a stale piece in the set of its stage. Returns `None` if the piece is in
    /// none, as when it has just been added and has no departure.
    fn stale_key(&self) -> Option<Key> {
        let major = u64::from(if self.stage == Staleness::Waiting { self.departure } else { self.range });
        (self.is_stale() && self.departure != NONE).then_some(Key { major, minor: self.at })
    }

    /// Returns the bits of the steps from `begin` to `end`, both of which may be outside the piece.
    pub(crate) fn bits(&self, begin: u64, end: u64, step: u64) -> u64 {
        let first = begin.saturating_sub(self.at).min(self.bytes) / step;
        let last = end.saturating_sub(self.at).min(self.bytes) / step;
        below(last) & !below(first)
    }

    /// Returns the bits of all steps.
    pub(crate) fn all_bits(&self, step: u64) -> u64 {
        below(self.bytes / step)
    }
}

/// Returns a mask with the lowest `count` bits.
fn below(count: u64) -> u64 {
    if count >= MOST_STEPS { u64::MAX } else { (1 << count) - 1 }
}

vacant!(Piece, page, |next| Self {
    at: 0,
    bytes: 0,
    page: next,
    range: NONE,
    mask: 0,
    departure: NONE,
    growths: 0,
    is_revived: false,
    stage: Staleness::Waiting,
    is_lost: false,
});

/// A part of a range, as addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The number of the range.
    pub range: u32,
    /// Device address of the first byte.
    pub begin: u64,
    /// Device address just past the last byte.
    pub end: u64,
}

/// The addresses after a growing part, in which pages may be mapped ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The addresses. Empty if there are no pages for them.
    pub tail: Part,
    /// How often the memory before has grown in a row, which is noted in the pages of this growth.
    pub growths: u8,
}

/// A stream named in a commit or a decommit of a range.
#[derive(Clone, Copy, Debug)]
struct Use {
    range: u32,
    stream: StreamId,
    /// The next use of the range, or [`NONE`]. In a vacant entry, the next vacant one.
    next: u32,
}

vacant!(Use, next, |next| Self { range: NONE, stream: NO_STREAM, next });

/// The sets of stale pieces.
#[derive(Clone)]
struct StaleSets<S: Storage> {
    /// The root of the set of waiting pieces, by departure and address.
    waiting: Link,
    /// The root of the set of idle pieces, by range and address.
    idle: Link,
    /// The root of the set of left pieces, by range and address.
    left: Link,
    /// The nodes of all sets, with room for every piece.
    nodes: RadixTree<S>,
}

impl_empty! { [S: Storage] StaleSets<S> { waiting, idle, left, nodes } }

impl<S: Storage> StaleSets<S> {
    /// Adds a piece, if it is stale.
    fn add(&mut self, entry: u32, pieces: &SlotTable<Piece, S>) {
        let stage = pieces[entry].stage;
        if pieces[entry].stale_key().is_some() {
            let root = self.nodes.insert(self.root(stage), entry, by_stale_key(pieces));
            *self.root_mut(stage) = root;
        }
    }

    /// Removes the piece with number `entry`. `before` is its value when it was added.
    fn remove(&mut self, entry: u32, before: &Piece, pieces: &SlotTable<Piece, S>) {
        if let Some(key) = before.stale_key() {
            let key = |piece: u32| if piece == entry { key } else { by_stale_key(pieces)(piece) };
            let root = self.nodes.remove(self.root(before.stage), entry, key);
            *self.root_mut(before.stage) = root;
        }
    }

    /// Returns the root of the set of the pieces in `stage`.
    fn root(&self, stage: Staleness) -> Link {
        match stage {
            Staleness::Waiting => self.waiting,
            Staleness::Idle => self.idle,
            Staleness::Left => self.left,
        }
    }

    /// Returns the root of the set of the pieces in `stage`, to change it.
    fn root_mut(&mut self, stage: Staleness) -> &mut Link {
        match stage {
            Staleness::Waiting => &mut self.waiting,
            Staleness::Idle => &mut self.idle,
            Staleness::Left => &mut self.left,
        }
    }
}

/// Returns the function by which stale pieces are ordered.
fn by_stale_key<S: Storage>(pieces: &SlotTable<Piece, S>) -> impl Fn(u32) -> Key {
    |piece| pieces[piece].stale_key().expect("only stale pieces are in the sets")
}

/// The elastic ranges of a device.
#[derive(Clone)]
pub(crate) struct RangeTable<S: Storage> {
    ranges: SlotTable<RangeEntry, S>,
    pieces: SlotTable<Piece, S>,
    /// The root of the set of pieces.
    root: Link,
    /// The nodes of the set.
    by_address: RadixTree<S>,
    stale: StaleSets<S>,
    uses: SlotTable<Use, S>,
    /// The root of the set of uses, by stream and range.
    by_stream: Link,
    /// The nodes of the set.
    use_nodes: RadixTree<S>,
    /// The bytes of a step, or 0 before the first range.
    step: u64,
    /// The number of pieces for which commits in progress have room.
    promised: u32,
    /// The ends of memory that has grown, and that has no pages ahead: for upkeep. 0 is none.
    fronts: [u64; FRONTS],
    /// The number of fronts that were ever noted.
    noted: usize,
}

impl_empty! {
    [S: Storage] RangeTable<S> {
        ranges,
        pieces,
        root,
        by_address,
        stale,
        uses,
        by_stream,
        use_nodes,
        step,
        promised,
        fronts: [0; FRONTS],
        noted,
    }
}

/// Returns the function that orders pieces by address.
fn by_address<S: Storage>(pieces: &SlotTable<Piece, S>) -> impl Fn(u32) -> Key {
    |piece| Key { major: 0, minor: pieces[piece].at }
}

/// Returns the function that orders uses by stream, and then by range.
fn by_stream<S: Storage>(uses: &SlotTable<Use, S>) -> impl Fn(u32) -> Key {
    |used| Key { major: uses[used].stream.0, minor: u64::from(uses[used].range) }
}

impl<S: Storage> RangeTable<S> {
    /// Makes room for another range. Returns false if the table is full.
    pub(crate) fn make_room_for_range(&mut self) -> bool {
        self.ranges.make_room(1)
    }

    /// Adds a range that the program holds, in steps of `step` bytes. The caller has made room.
    /// Returns the number and the generation.
    pub(crate) fn add_range(&mut self, base: u64, bytes: u64, step: u64) -> (u32, u32) {
        self.step = step;
        let (ranges, vacancies) = self.ranges.parts();
        let number = vacancies.occupy(ranges);
        let range = &mut ranges[number as usize];
        // An entry keeps nothing but its generation.
        (range.base, range.bytes, range.is_held) = (base, bytes, true);
        (number, range.generation)
    }

    /// Removes a range that has only lost pieces, together with those pieces.
    pub(crate) fn remove_range(&mut self, range: u32) {
        let RangeEntry { base, bytes, pieces, is_lost, .. } = self.ranges[range];
        debug_assert!(pieces == 0, "a range with mappings keeps its addresses");
        let whole = Part { range, begin: base, end: base + bytes };
        while let Some(entry) = is_lost.then(|| self.entry(whole, base)).flatten() {
            self.root = self.by_address.remove(self.root, entry, by_address(&self.pieces));
            self.pieces.remove(entry);
        }
        self.ranges.remove(range);
    }

    /// Returns the range with the given number, if the program holds it in the given generation.
    pub(crate) fn find(&mut self, number: u32, generation: u32) -> Option<&mut RangeEntry> {
        let range = self.ranges.entries_mut().get_mut(number as usize)?;
        (range.is_held && range.generation == generation).then_some(range)
    }

    /// Returns the range with the given number.
    pub(crate) fn range(&mut self, number: u32) -> &mut RangeEntry {
        &mut self.ranges.entries_mut()[number as usize]
    }

    /// Promises room for `count` more pieces, until [`end_promise`](Self::end_promise). Returns
    /// false if a table is full.
    pub(crate) fn promise_pieces(&mut self, count: u32) -> bool {
        let promised = self.promised + count;
        let pieces = self.pieces.len() + promised;
        let room = self.pieces.make_room(promised)
            && self.by_address.make_room_for(pieces)
            && self.stale.nodes.make_room_for(pieces);
        if room {
            self.promised = promised;
        }
        room
    }

    /// Ends a promise of room for `count` pieces, whether or not it was used.
    pub(crate) fn end_promise(&mut self, count: u32) {
        self.promised -= count;
    }

    /// Adds a piece, for which room was promised.
    pub(crate) fn add_piece(&mut self, piece: Piece) {
        self.range(piece.range).pieces += 1;
        let entry = self.pieces.insert(piece);
        self.root = self.by_address.insert(self.root, entry, by_address(&self.pieces));
        self.stale.add(entry, &self.pieces);
    }

    /// Adds a lost piece, for which room was promised, because the device failed to remove the
    /// mapping of `bytes` at `at`.
    pub(crate) fn add_lost(&mut self, range: u32, at: u64, bytes: u64, error: DeviceError) {
        let entry = self.pieces.insert(Piece::lost(range, at, bytes, error));
        self.root = self.by_address.insert(self.root, entry, by_address(&self.pieces));
        self.range(range).is_lost = true;
    }

    /// Returns the stale piece at `at`.
    pub(crate) fn stale(&self, at: u64) -> Piece {
        self.pieces[self.first_from(at).expect("a piece is listed")]
    }

    /// Removes the stale piece at `at` after its mapping was removed. If the device failed to
    /// remove the mapping, the piece is lost instead.
    pub(crate) fn end_stale(&mut self, at: u64, unmapped: Result<(), DeviceError>) {
        let entry = self.first_from(at).expect("a piece is listed");
        let piece = self.pieces[entry];
        self.stale.remove(entry, &piece, &self.pieces);
        self.range(piece.range).pieces -= 1;
        if let Err(error) = unmapped {
            self.pieces[entry] = Piece::lost(piece.range, piece.at, piece.bytes, error);
            self.range(piece.range).is_lost = true;
        } else {
            self.root = self.by_address.remove(self.root, entry, by_address(&self.pieces));
            self.pieces.remove(entry);
        }
    }

    /// Notes that a departure is complete. Its stale pieces are idle if `is_departed` returns true
    /// for the page, and left otherwise. All of those of a released range are left, because nothing
    /// is committed there again.
    pub(crate) fn end_waiting(&mut self, departure: u32, is_departed: impl Fn(u32) -> bool) {
        let bound = Key { major: u64::from(departure), minor: 0 };
        while let Some(entry) = self.stale.nodes.at_least(self.stale.waiting, bound, by_stale_key(&self.pieces))
            && self.pieces[entry].departure == departure
        {
            let Piece { page, range, .. } = self.pieces[entry];
            let is_idle = is_departed(page) && self.range(range).is_held;
            self.set_stage(entry, if is_idle { Staleness::Idle } else { Staleness::Left });
        }
    }

    /// Notes that `page` serves elsewhere, and left the place at `at` before.
    pub(crate) fn leave(&mut self, at: u64, page: u32) {
        // Another thread may have removed the mapping, and another page may be there.
        let found = self.first_from(at).filter(|&entry| self.pieces[entry].at == at);
        if let Some(entry) = found
            && (self.pieces[entry].page, self.pieces[entry].stage) == (page, Staleness::Idle)
        {
            self.set_stage(entry, Staleness::Left);
        }
    }

    /// Notes that the idle pieces of a released range are left.
    pub(crate) fn leave_all(&mut self, range: u32) {
        while let Some((_, at)) = self.next_stale(range, Staleness::Idle).filter(|&(first, _)| first == range) {
            let entry = self.first_from(at).expect("a piece is listed");
            self.set_stage(entry, Staleness::Left);
        }
    }

    /// Sets the stage of a stale piece with a departure.
    fn set_stage(&mut self, entry: u32, stage: Staleness) {
        let before = self.pieces[entry];
        self.stale.remove(entry, &before, &self.pieces);
        self.pieces[entry].stage = stage;
        self.stale.add(entry, &self.pieces);
    }

    /// Returns the range and the address of the first piece that is idle or left, as `stage` says,
    /// starting from the range with number `range`.
    pub(crate) fn next_stale(&self, range: u32, stage: Staleness) -> Option<(u32, u64)> {
        let bound = Key { major: u64::from(range), minor: 0 };
        let entry = self.stale.nodes.at_least(self.stale.root(stage), bound, by_stale_key(&self.pieces))?;
        Some((self.pieces[entry].range, self.pieces[entry].at))
    }

    /// Returns the first piece of `part` that ends after `from`.
    pub(crate) fn piece(&self, part: Part, from: u64) -> Option<Piece> {
        self.entry(part, from).map(|entry| self.pieces[entry])
    }

    /// Calls `change` with the first piece of `part` that ends after `from`. Returns the end of
    /// this piece.
    pub(crate) fn change(&mut self, part: Part, from: u64, change: impl FnOnce(&mut Piece)) -> Option<u64> {
        let entry = self.entry(part, from)?;
        let before = self.pieces[entry];
        let piece = &mut self.pieces[entry];
        change(piece);
        if !piece.is_stale() {
            piece.stage = Staleness::Waiting;
        }
        let end = piece.end();
        if before.stale_key() != piece.stale_key() {
            self.stale.remove(entry, &before, &self.pieces);
            self.stale.add(entry, &self.pieces);
        }
        Some(end)
    }

    /// Returns the first addresses of `part`, from `from` on, that are in no piece, as start and
    /// end.
    pub(crate) fn gap(&self, part: Part, from: u64) -> Option<(u64, u64)> {
        let mut begin = from.max(part.begin);
        while let Some(piece) = self.piece(part, begin) {
            if piece.at > begin {
                return Some((begin, piece.at));
            }
            begin = piece.end();
        }
        (begin < part.end).then_some((begin, part.end))
    }

    /// Returns the addresses after `part` in which pages may be mapped ahead, if the part is short
    /// and follows committed memory. Each growth in a row doubles the pages of the next one.
    pub(crate) fn ahead_of(&self, part: Part) -> Option<Ahead> {
        let growths = (self.growths_before(part)? + 1).min(MOST_AHEAD.ilog2() as u8);
        let begin = part.end;
        let free = (1 << growths) * self.step;
        let bytes = self.ranges[part.range].base + self.ranges[part.range].bytes - begin;
        let tail = Part { begin, end: begin + bytes.min(free - free.min(part.end - part.begin)), ..part };
        let (at, end) = self.gap(tail, begin)?;
        (at == begin).then_some(Ahead { tail: Part { end, ..tail }, growths })
    }

    /// Returns how often the committed memory that ends where `part` begins has grown in a row.
    fn growths_before(&self, part: Part) -> Option<u8> {
        let before = Part { begin: part.begin.checked_sub(self.step)?, end: part.begin, ..part };
        let piece = self.piece(before, before.begin)?;
        let last = piece.bits(before.begin, before.end, self.step);
        let is_short = part.end - part.begin <= MOST_AHEAD * self.step;
        (is_short && piece.range == part.range && piece.mask & last != 0).then_some(piece.growths)
    }

    /// Notes the end of a part that has grown, if there are no pages ahead of it.
    pub(crate) fn note_front(&mut self, part: Part) {
        let end = Part { begin: part.end, ..part };
        if self.growths_before(part).is_some() && self.ahead_of(end).is_some() {
            self.fronts[self.noted % FRONTS] = part.end;
            self.noted += 1;
        }
    }

    /// Returns whether a front is noted.
    pub(crate) fn has_fronts(&self) -> bool {
        self.fronts.iter().any(|&at| at != 0)
    }

    /// Takes a front.
    pub(crate) fn take_front(&mut self) -> Option<u64> {
        self.fronts.iter_mut().find(|at| **at != 0).map(core::mem::take)
    }

    /// Returns the range with a piece that ends at `at`.
    pub(crate) fn range_before(&self, at: u64) -> Option<u32> {
        let before = self.by_address.below(self.root, Key { major: 0, minor: at }, by_address(&self.pieces))?;
        (self.pieces[before].end() == at).then_some(self.pieces[before].range)
    }

    /// Notes the use of a range on `stream`. Returns false if the table is full.
    pub(crate) fn note_use(&mut self, range: u32, stream: StreamId) -> bool {
        let last = self.uses_of(range).last();
        if self.uses_of(range).any(|used| self.uses[used].stream == stream) {
            return true;
        }
        if !self.uses.make_room(1) || !self.use_nodes.make_room(1) {
            return false;
        }
        let used = self.uses.insert(Use { range, stream, next: NONE });
        self.by_stream = self.use_nodes.insert(self.by_stream, used, by_stream(&self.uses));
        match last {
            Some(last) => self.uses[last].next = used,
            None => self.range(range).uses = used,
        }
        true
    }

    /// Iterates over the entries of the uses of a range, in the order in which they were noted.
    fn uses_of(&self, range: u32) -> impl Iterator<Item = u32> {
        let some = |used: u32| Some(used).filter(|&used| used != NONE);
        core::iter::successors(some(self.ranges[range].uses), move |&used| some(self.uses[used].next))
    }

    /// Returns the stream of the `nth` use of a range.
    pub(crate) fn used_by(&self, range: u32, nth: usize) -> Option<StreamId> {
        self.uses_of(range).nth(nth).map(|used| self.uses[used].stream)
    }

    /// Returns a range that was used on `stream`.
    pub(crate) fn range_on(&self, stream: StreamId) -> Option<u32> {
        let bound = Key { major: stream.0, minor: 0 };
        let used = self.use_nodes.at_least(self.by_stream, bound, by_stream(&self.uses))?;
        (self.uses[used].stream == stream).then_some(self.uses[used].range)
    }

    /// Removes the uses of a range on one stream, or on all streams if `stream` is `None`.
    pub(crate) fn forget_uses(&mut self, range: u32, stream: Option<StreamId>) {
        let (mut before, mut at) = (NONE, self.ranges[range].uses);
        while at != NONE {
            let Use { stream: on, next, .. } = self.uses[at];
            if stream.is_none_or(|stream| stream == on) {
                self.by_stream = self.use_nodes.remove(self.by_stream, at, by_stream(&self.uses));
                self.uses.remove(at);
                if before == NONE {
                    self.range(range).uses = next;
                } else {
                    self.uses[before].next = next;
                }
            } else {
                before = at;
            }
            at = next;
        }
    }

    /// Checks the pieces and the counters. Returns the bytes of the pages at home in ranges.
    ///
    /// # Errors
    /// A description of the broken invariant.
    pub(crate) fn check(&self, counters: &HeapCounters) -> Result<u64, &'static str> {
        let (mut at, mut seen, mut lost, mut home, mut committed) = (0, 0, 0, 0, 0);
        while let Some(entry) = self.first_from(at) {
            let piece = &self.pieces[entry];
            let range = &self.ranges[piece.range];
            if piece.at < range.base || piece.end() > range.base + range.bytes {
                return Err("a piece lies outside of its range");
            }
            let listed = self.stale.root(piece.stage);
            let found =
                piece.stale_key().and_then(|key| self.stale.nodes.at_least(listed, key, by_stale_key(&self.pieces)));
            if piece.is_stale() && found != Some(entry) {
                return Err("a stale piece is not in its set");
            }
            if piece.is_stale() && piece.departure == NONE || piece.mask & !piece.all_bits(self.step) != 0 {
                return Err("a piece has a step that it has not, or is stale without a departure");
            }
            if piece.is_lost && !(range.is_lost && piece.mask == 0 && piece.departure == NONE) {
                return Err("a lost piece is in use, or its range knows of none");
            }
            lost += u32::from(piece.is_lost);
            home += if piece.mask == 0 { 0 } else { piece.bytes };
            committed += u64::from(piece.mask.count_ones()) * self.step;
            (at, seen) = (piece.end(), seen + 1);
        }
        let counted: u32 = self.ranges.entries().iter().map(|range| range.pieces).sum();
        if (seen, seen) != (self.pieces.len(), counted + lost) {
            return Err("two pieces of ranges overlap, or one is not listed");
        }
        let held = self.ranges.entries().iter().filter(|range| range.is_held).count() as i64;
        let sums = [Stat::Allocation, Stat::Segment, Stat::AllocatedBytes, Stat::RequestedBytes, Stat::ReservedBytes];
        let sums = sums.map(|stat| counters.current(stat));
        if sums != [held, held, committed as i64, committed as i64, home as i64] {
            return Err("the counters of the ranges are not the sums of the ranges");
        }
        Ok(home)
    }

    /// Returns the entry of the first piece of `part` that ends after `from`.
    fn entry(&self, part: Part, from: u64) -> Option<u32> {
        let from = from.max(part.begin);
        let bound = Key { major: 0, minor: from };
        let before = self.by_address.below(self.root, bound, by_address(&self.pieces));
        let before = before.filter(|&entry| self.pieces[entry].end() > from);
        before.or_else(|| self.first_from(from)).filter(|&entry| self.pieces[entry].at < part.end)
    }

    /// Returns the entry of the first piece that starts at `at` or after it.
    fn first_from(&self, at: u64) -> Option<u32> {
        self.by_address.at_least(self.root, Key { major: 0, minor: at }, by_address(&self.pieces))
    }
}
