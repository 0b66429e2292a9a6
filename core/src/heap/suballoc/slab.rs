//! Equal objects in slabs: a segment of 2 MiB serves one size, and a bitmap says which of its objects are free.
//!
//! ```text
//! class 96 KiB   group 0   slab 7 ↔ slab 4          1 taken; behind those nothing, so that the slab may be cut for another class
//!                group 1   slab 9 ↔ slab 2          2 or 3 taken
//!                   ⋮                               the last group that has slabs serves the next request
//! slab 9         summary 1 · words …0111            bit b of word w set ⟺ object 64 w + b is free
//! ```
//!
//! Requests are served from the first slab of the fullest group, its free object at the lowest address first: the slabs with few objects
//! taken are left alone until nothing is (`TCMalloc`'s span prioritisation: lists by the bit width of the number of objects taken,
//! `central_freelist.h`, 2023). The slab that entered a group last comes first, those of which nothing is taken after all others; a slab
//! that is full is in no group. Nothing here depends on how many slabs or free objects there are.

use super::segment_table::{SegmentEntry, SegmentTable};

pub(crate) use super::geometric_classes::round_up as round;
use super::geometric_classes::{class_of, divide, round_down};
use super::{Free, SubAllocator, SubBlock};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::{MIB, UNIT};

/// Bytes of a slab: what a virtual-memory granule and the least segment of the caching policy are.
pub(crate) const SLAB_BYTES: u64 = 2 * MIB;

/// The largest class there may be, in bytes: 4 objects a slab. The worst fit is then 384 KiB, which leaves a sixteenth of the slab.
pub(crate) const LARGEST_MAX: u64 = SLAB_BYTES / 4;

/// Words of a bitmap: one bit for each of the smallest objects.
const WORDS: usize = (SLAB_BYTES / UNIT) as usize / 64;

/// Two classes an octave, from [`UNIT`] to [`LARGEST_MAX`].
const CLASSES: usize = class_of(LARGEST_MAX) + 1;

/// Groups of a class: one for each doubling of the number of objects taken.
const GROUPS: usize = 16;

const _: () = assert!(WORDS <= 64, "a summary bit for each word");
const _: () = assert!(WORDS * 64 < 1 << GROUPS, "a group for every number of objects");

/// The largest class of at most `bytes`, from 512 bytes to 512 KiB.
#[inline]
pub(crate) fn largest(bytes: u64) -> u64 {
    round_down(bytes.clamp(UNIT, LARGEST_MAX))
}

/// The group of a slab of which `taken` objects are.
#[inline(always)]
const fn group_of(taken: u32) -> usize {
    (taken | 1).ilog2() as usize % GROUPS
}

/// One slab. What every operation reads comes before the bitmap, in a line of the cache.
#[repr(C, align(64))]
struct Entry {
    base: u64,
    /// 0 ⟺ no segment has this number.
    bytes: u64,
    /// Bytes of an object.
    size: u64,
    /// Bit `w` is set iff `words[w]` is not 0.
    summary: u64,
    /// The free object at the lowest address; `NONE` iff all are taken.
    lowest: u32,
    /// Objects that the slab is cut into.
    objects: u32,
    /// Those and the tail that no further one fits in, if there is one.
    pieces: u32,
    /// How many objects are taken: `objects` ⟺ the slab is in no group.
    taken: u32,
    class: u32,
    /// Neighbours in the group, whose last slab and first are neighbours too.
    prev: u32,
    next: u32,
    /// Bit `b` of word `w` is set iff object `64 w + b` is there and free.
    words: [u64; WORDS],
}

impl SegmentEntry for Entry {
    const VACANT: Self = Self {
        base: 0,
        bytes: 0,
        size: 0,
        summary: 0,
        lowest: NONE,
        objects: 0,
        pieces: 0,
        taken: 0,
        class: 0,
        prev: NONE,
        next: NONE,
        words: [0; WORDS],
    };
}

impl Entry {
    /// Cuts the slab, which is whole, for objects of `size`.
    fn cut(&mut self, size: u64) {
        let objects = (divide(self.bytes, size) as usize).min(WORDS * 64);
        self.size = size;
        self.class = class_of(size) as u32;
        self.objects = objects as u32;
        self.pieces = self.objects + u32::from(self.tail() > 0);
        self.words = [0; WORDS];
        self.words[..objects / 64].fill(!0);
        if !objects.is_multiple_of(64) {
            self.words[objects / 64] = !(!0 << (objects % 64));
        }
        self.summary = !0 >> (64 - objects.div_ceil(64));
        self.lowest = 0;
    }

    /// Takes the free object at the lowest address, of which there is one.
    #[inline(always)]
    fn take_lowest(&mut self) -> u32 {
        let object = self.lowest;
        let word = object as usize / 64 % WORDS;
        let bits = self.words[word] & (self.words[word] - 1);
        self.words[word] = bits;
        self.lowest = if bits == 0 { self.lowest_behind(word) } else { object & !63 | bits.trailing_zeros() };
        self.taken += 1;
        object
    }

    /// The free object at the lowest address after the last one of a word was taken.
    #[inline(never)]
    fn lowest_behind(&mut self, word: usize) -> u32 {
        self.summary &= !(1 << word);
        if self.summary == 0 {
            return NONE;
        }
        let word = self.summary.trailing_zeros();
        word * 64 + self.words[word as usize].trailing_zeros()
    }

    /// Gives an object back that was taken.
    #[inline(always)]
    fn give(&mut self, object: u32) {
        let word = object as usize / 64 % WORDS;
        let before = self.words[word];
        debug_assert!(before >> (object % 64) & 1 == 0, "a piece is given back once");
        if before == 0 {
            self.summary |= 1 << word;
        }
        self.words[word] = before | 1 << (object % 64);
        self.lowest = self.lowest.min(object);
        self.taken -= 1;
    }

    /// The bytes behind the last object, which no further one fits in.
    fn tail(&self) -> u64 {
        self.bytes - u64::from(self.objects) * self.size
    }
}

/// The policy. Classes are powers of two and the midpoints between them, so that at most a third of a piece above 1 KiB is wasted.
pub(crate) struct Slabs<S: Storage> {
    entries: SegmentTable<Entry, S>,
    /// Bit `g` of `groups[c]` is set iff `first[c][g]` leads to a slab.
    groups: [u32; CLASSES],
    /// The first slab of each group.
    first: [[u32; GROUPS]; CLASSES],
    /// The slab that serves the next request of each class: the first of the last group that has one; `NONE` iff none has.
    serving: [u32; CLASSES],
}

impl<S: Storage> Default for Slabs<S> {
    fn default() -> Self {
        Self {
            entries: SegmentTable::default(),
            groups: [0; CLASSES],
            first: [[NONE; GROUPS]; CLASSES],
            serving: [NONE; CLASSES],
        }
    }
}

impl<S: Storage> Slabs<S> {
    /// Moves a slab to where it belongs, now that not `before` objects of it are taken but one more or less.
    #[inline(never)]
    fn regroup(&mut self, segment: u32, before: u32) {
        let Entry { objects, taken, class, next, .. } = self.entries[segment];
        if before != objects {
            // Before the slabs of which nothing is taken it is as good as behind them.
            let last = taken == 0 && (self.first[class as usize][0] == next || self.entries[next].taken == 0);
            if last {
                return;
            }
            self.leave(segment, before);
        }
        if taken != objects {
            self.enter(segment);
        }
    }

    /// Puts a slab that is in no group into its own: at the front, or if nothing is taken at the back.
    fn enter(&mut self, segment: u32) {
        let Entry { class, taken, .. } = self.entries[segment];
        let (class, group) = (class as usize, group_of(taken));
        let first = self.first[class][group];
        if first == NONE {
            (self.entries[segment].prev, self.entries[segment].next) = (segment, segment);
            self.groups[class] |= 1 << group;
        } else {
            let last = core::mem::replace(&mut self.entries[first].prev, segment);
            self.entries[last].next = segment;
            (self.entries[segment].prev, self.entries[segment].next) = (last, first);
        }
        if first == NONE || taken > 0 {
            self.first[class][group] = segment;
        }
        self.choose(class);
    }

    /// Takes a slab out of the group of `taken`.
    fn leave(&mut self, segment: u32, taken: u32) {
        let Entry { prev, next, class, .. } = self.entries[segment];
        let (class, group) = (class as usize, group_of(taken));
        if next == segment {
            self.first[class][group] = NONE;
            self.groups[class] &= !(1 << group);
        } else {
            self.entries[next].prev = prev;
            self.entries[prev].next = next;
            if self.first[class][group] == segment {
                self.first[class][group] = next;
            }
        }
        self.choose(class);
    }

    /// Looks which slab serves the next request of a class whose groups have changed.
    fn choose(&mut self, class: usize) {
        let last = self.groups[class].checked_ilog2();
        self.serving[class] = last.map_or(NONE, |group| self.first[class][group as usize % GROUPS]);
    }

    /// A slab of which nothing is taken, whatever it is cut for.
    fn whole(&self) -> Option<u32> {
        let firsts = self.first.iter().map(|groups| groups[0]).filter(|&first| first != NONE);
        firsts.map(|first| self.entries[first].prev).find(|&last| self.entries[last].taken == 0)
    }

    /// The slab that is cut anew for a class that has none with a free object: a whole one of another class.
    fn to_recut(&self) -> Option<u32> {
        // One that was obtained past the cache is as large as one object.
        self.whole().filter(|&segment| self.entries[segment].bytes == SLAB_BYTES)
    }

    /// Takes an object of a class that has no slab with a free one: a whole slab of another class, if there is one, is cut anew.
    #[cold]
    fn recut_and_take(&mut self, size: u64) -> Option<(SubBlock, Free)> {
        let segment = self.to_recut()?;
        self.leave(segment, 0);
        self.entries[segment].cut(size);
        self.enter(segment);
        self.take_from(segment, size)
    }

    /// Takes the free object at the lowest address of a slab that has one, and says what that changes. `None` if there is no
    /// slab.
    #[inline(always)]
    fn take_from(&mut self, segment: u32, size: u64) -> Option<(SubBlock, Free)> {
        // There is no entry at `NONE`.
        let slab = self.entries.get_mut(segment)?;
        let number = slab.take_lowest();
        let Entry { base, taken, objects, pieces, .. } = *slab;
        // The group changes at powers of two; with the first object it stays.
        if taken == objects || taken.is_power_of_two() && taken > 1 {
            self.regroup(segment, taken - 1);
        }
        let now = pieces - taken;
        Some((
            SubBlock { addr: base + u64::from(number) * size, segment, number },
            Free { alone: taken == 1, before: now + 1, now },
        ))
    }
}

impl<S: Storage> SubAllocator<S> for Slabs<S> {
    fn segment_bytes(&self, _size: u64) -> u64 {
        SLAB_BYTES
    }

    /// Only a further slab needs an entry, and it needs one whatever it is cut for.
    #[inline]
    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        self.entries.is_ready() || self.entries.make_room()
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, size: u64) {
        self.entries.insert(segment, Entry { base, bytes, ..Entry::VACANT });
        self.entries[segment].cut(size);
        self.enter(segment);
    }

    fn remove_segment(&mut self, segment: u32) {
        self.leave(segment, 0);
        self.entries.remove(segment);
    }

    #[inline(always)]
    fn take(&mut self, size: u64) -> Result<Option<(SubBlock, Free)>, CapacityError> {
        let taken = self.take_from(self.serving[class_of(size)], size);
        Ok(taken.or_else(|| self.recut_and_take(size)))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        if let Some(slab) = self.entries.entries().get(self.serving[class_of(size)] as usize) {
            return Some(slab.base + u64::from(slab.lowest) * size);
        }
        self.to_recut().map(|segment| self.entries[segment].base)
    }

    #[inline(always)]
    fn give(&mut self, piece: SubBlock, _size: u64) -> Free {
        let slab = &mut self.entries[piece.segment];
        slab.give(piece.number);
        let Entry { taken, objects, pieces, next, .. } = *slab;
        let before = taken + 1;
        // Without its last object it stays, too, where it is alone.
        if before == objects || before.is_power_of_two() && (before > 1 || next != piece.segment) {
            self.regroup(piece.segment, before);
        }
        Free { alone: taken == 0, before: pieces - before, now: pieces - taken }
    }

    /// A slab of which nothing is taken is one piece; else every free object is one, and so is the tail that none fits in.
    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let slab = &self.entries[segment];
        if slab.taken == 0 {
            return visit(slab.base, slab.bytes);
        }
        let (size, tail) = (slab.size, slab.tail());
        for (word, mut bits) in slab.words.into_iter().enumerate() {
            while bits != 0 {
                visit(slab.base + (word as u64 * 64 + u64::from(bits.trailing_zeros())) * size, size);
                bits &= bits - 1;
            }
        }
        if tail > 0 {
            visit(slab.base + slab.bytes - tail, tail);
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let mut expected = 0;
        for slab in self.entries.entries().iter().filter(|slab| slab.bytes > 0) {
            if class_of(slab.size) != slab.class as usize || u64::from(slab.objects) * slab.size > slab.bytes {
                return Err("a slab has more objects than fit");
            }
            if slab.pieces != slab.objects + u32::from(slab.tail() > 0) {
                return Err("a slab counts a tail that is not there, or the other way round");
            }
            let free: u32 = slab.words.iter().map(|word| word.count_ones()).sum();
            let end = slab.objects as usize;
            let behind = slab.words.iter().skip(end / 64 + 1).any(|&word| word != 0)
                || slab.words.get(end / 64).is_some_and(|word| word >> (end % 64) != 0);
            if free + slab.taken != slab.objects || behind {
                return Err("a slab's bitmap disagrees with its objects");
            }
            if (0..WORDS).any(|word| (slab.words[word] == 0) == (slab.summary >> word & 1 == 1)) {
                return Err("a summary bit disagrees with its word");
            }
            let lowest = (0..).zip(&slab.words).find(|(_, word)| **word != 0);
            if slab.lowest != lowest.map_or(NONE, |(at, word)| at * 64 + word.trailing_zeros()) {
                return Err("another object is said to be the first free one of its slab");
            }
            expected += u32::from(free > 0);
        }
        let last = |class: usize| self.first[class].iter().rfind(|&&first| first != NONE);
        if (0..CLASSES).any(|class| self.serving[class] != *last(class).unwrap_or(&NONE)) {
            return Err("another slab is said to serve the next request of its class");
        }
        let mut listed = 0;
        for (class, group) in (0..CLASSES).flat_map(|class| (0..GROUPS).map(move |group| (class, group))) {
            let first = self.first[class][group];
            if (first == NONE) == (self.groups[class] >> group & 1 == 1) {
                return Err("a group's bit disagrees with the group");
            }
            let (mut at, mut whole) = (first, false);
            while at != NONE {
                let slab = &self.entries[at];
                let full = slab.taken == slab.objects;
                if slab.class as usize != class || group_of(slab.taken) != group || full || listed == expected {
                    return Err("a group holds a slab that is not its own");
                }
                if self.entries[slab.next].prev != at || whole && slab.taken > 0 {
                    return Err("a group is out of order");
                }
                (listed, whole) = (listed + 1, slab.taken == 0);
                at = if slab.next == first { NONE } else { slab.next };
            }
        }
        if listed == expected { Ok(()) } else { Err("a slab with free objects is in no group") }
    }
}
