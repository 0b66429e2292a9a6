//! The slab policy: a segment of 2 MiB serves objects of a single size, and a bitmap records which
//! objects are free.
//!
//! ```text
//! class 96 KiB   group 0   slab 7 ↔ slab 4          1 live object; then the unused slabs
//!                group 1   slab 9 ↔ slab 2          2 or 3 live objects
//!                   ⋮                             the last group with a slab serves requests
//! slab 9         summary 1 · words …0111            bit b of word w set ⟺ object 64 w + b is free
//! ```
//!
//! A request is served from the first slab of the fullest group, by the free object at the lowest
//! address. Slabs with few live objects are left alone, so that they become unused. This is
//! `TCMalloc`'s span prioritisation: lists by the bit width of the number of live objects,
//! `central_freelist.h`, 2023. The slab that entered a group last comes first, unused slabs come
//! last, and a full slab is in no group. The cost of a request or of a free does not depend on the
//! number of slabs or free objects, except where `recuttable` passes unused slabs of other lengths.

use super::segment_table::{SegmentEntry, SegmentTable};

pub(crate) use super::geometric_classes::round_up as round;
use super::geometric_classes::{class_of, divide, round_down};
use alloc::boxed::Box;
use cachalot_core::config::{OptionReference, Suballocation};
use cachalot_core::records::NONE;
use cachalot_core::suballoc::CapacityError;
use cachalot_core::suballoc::{FreeDelta, SubAllocator, SubBlock};
use cachalot_core::{Growable, Storage};
use cachalot_core::{MIB, UNIT};
use core::iter::successors;

/// The length of a slab in bytes: a granule of virtual memory, and the smallest segment of the
/// caching policy.
pub(crate) const SLAB_BYTES: u64 = 2 * MIB;

/// The largest possible class, in bytes: 4 objects per slab. With this limit, the worst fit is 384
/// KiB, which wastes a sixteenth of the slab.
pub(crate) const LARGEST_MAX: u64 = SLAB_BYTES / 4;

/// The number of words in a bitmap: one bit for each object of the smallest class.
const WORDS: usize = (SLAB_BYTES / UNIT) as usize / 64;

/// The number of classes: two in each doubling, from [`UNIT`] to [`LARGEST_MAX`].
const CLASSES: usize = class_of(LARGEST_MAX) + 1;

/// The number of groups in a class: one for each doubling of the number of live objects.
const GROUPS: usize = 16;

const _: () = assert!(WORDS <= 64, "a summary bit for each word");
const _: () = assert!(WORDS * 64 < 1 << GROUPS, "a group for every number of objects");

/// The policy: small requests are served from slabs. They are rounded up to a power of two or to
/// one and a half times a power of two, from 512 bytes on, so a request of 66 KiB takes 96 KiB, and
/// not 128. Larger requests are placed as under `caching`.
pub(crate) const POLICY: Suballocation = Suballocation {
    type_name: "Slab",
    round: Some(round),
    largest: Some(|options| largest(options[0])),
    options: [LARGEST_MAX, 0, 0, 0],
    settings: &[OptionReference {
        key: "largest_object_kb",
        field: "largest_object",
        default: "512",
        example: "64",
        unit: 1 << 10,
        accepts: |kib| (1..=LARGEST_MAX >> 10).contains(&kib),
        accepted: "a whole number of KiB from 1 to 512",
        effect: "The largest request for a slab, rounded down to a size of slabs. Larger requests are placed as under \
                 `caching`.",
    }],
    shared: &["large_segment_size_mb"],
    ..Suballocation::new("slab", |_| Box::new(Slabs::<Growable>::default()))
};

/// Returns the largest class that is at most `bytes`, from 512 bytes to 512 KiB.
#[inline]
pub(crate) fn largest(bytes: u64) -> u64 {
    round_down(bytes.clamp(UNIT, LARGEST_MAX))
}

/// Returns the group of a slab with `live` live objects.
#[inline(always)]
const fn group_of(live: u32) -> usize {
    (live | 1).ilog2() as usize % GROUPS
}

/// A slab. The fields that every operation reads share the first cache line, and the bitmap
/// follows.
#[derive(Clone)]
#[repr(C, align(64))]
struct SlabEntry {
    /// The address of the first byte.
    base: u64,
    /// The length in bytes; 0 ⟺ the entry is vacant.
    bytes: u64,
    /// The size of an object in bytes.
    size: u64,
    /// Bit `w` is set iff `words[w]` is not 0.
    summary: u64,
    /// The free object at the lowest address; `NONE` iff no object is free.
    lowest: u32,
    /// The number of objects, live and free.
    objects: u32,
    /// The number of objects, plus one if there is a tail, which is too small for an object.
    sub_blocks: u32,
    /// The number of live objects; it is `objects` ⟺ the slab is in no group.
    live: u32,
    /// The class of `size`.
    class: u32,
    /// The previous slab of the group. The list is a ring, so the last slab comes before the first
    /// one.
    prev: u32,
    /// The next slab of the group, in the ring.
    next: u32,
    /// Bit `b` of word `w` is set iff object `64 w + b` exists and is free.
    words: [u64; WORDS],
}

impl SegmentEntry for SlabEntry {
    const VACANT: Self = Self {
        base: 0,
        bytes: 0,
        size: 0,
        summary: 0,
        lowest: NONE,
        objects: 0,
        sub_blocks: 0,
        live: 0,
        class: 0,
        prev: NONE,
        next: NONE,
        words: [0; WORDS],
    };
}

impl SlabEntry {
    /// Cuts a slab without live objects into objects of `size` bytes.
    fn cut(&mut self, size: u64) {
        debug_assert!(self.live == 0 && size <= self.bytes, "the slab is unused and holds an object");
        let objects = (divide(self.bytes, size) as usize).min(WORDS * 64);
        self.size = size;
        self.class = class_of(size) as u32;
        self.objects = objects as u32;
        self.sub_blocks = self.objects + u32::from(self.tail() > 0);
        self.words = [0; WORDS];
        self.words[..objects / 64].fill(!0);
        if !objects.is_multiple_of(64) {
            self.words[objects / 64] = !(!0 << (objects % 64));
        }
        self.summary = !0 >> (64 - objects.div_ceil(64));
        self.lowest = 0;
    }

    /// Allocates the free object at the lowest address. At least one object is free.
    #[inline(always)]
    fn take_lowest(&mut self) -> u32 {
        debug_assert!(self.live < self.objects, "an object is free");
        let object = self.lowest;
        let word = object as usize / 64 % WORDS;
        // The object is the lowest set bit of its word, and clearing the lowest set bit needs no
        // shift.
        let bits = self.words[word] & (self.words[word] - 1);
        self.words[word] = bits;
        self.lowest = if bits == 0 { self.lowest_behind(word) } else { object & !63 | bits.trailing_zeros() };
        self.live += 1;
        object
    }

    /// Returns the free object at the lowest address after the last free object of `word` was
    /// allocated.
    #[inline(never)]
    fn lowest_behind(&mut self, word: usize) -> u32 {
        self.summary &= !(1 << word);
        if self.summary == 0 {
            return NONE;
        }
        let word = self.summary.trailing_zeros();
        word * 64 + self.words[word as usize].trailing_zeros()
    }

    /// Frees a live object.
    #[inline(always)]
    fn free(&mut self, object: u32) {
        let word = object as usize / 64 % WORDS;
        let before = self.words[word];
        debug_assert!(before >> (object % 64) & 1 == 0, "an object is freed once");
        if before == 0 {
            self.summary |= 1 << word;
        }
        self.words[word] = before | 1 << (object % 64);
        self.lowest = self.lowest.min(object);
        self.live -= 1;
    }

    /// Returns the number of bytes after the last object.
    fn tail(&self) -> u64 {
        self.bytes - u64::from(self.objects) * self.size
    }
}

/// The slab policy of one heap. Classes are powers of two and the midpoints between them, so at
/// most a third of a sub-block is wasted if it is larger than 1 KiB.
#[derive(Clone)]
pub(crate) struct Slabs<S: Storage> {
    /// The slabs, by the numbers of their segments.
    entries: SegmentTable<SlabEntry, S>,
    /// Bit `g` of `groups[c]` is set iff `first[c][g]` is not `NONE`.
    groups: [u32; CLASSES],
    /// The first slab of each group, or `NONE`.
    first: [[u32; GROUPS]; CLASSES],
    /// The slab for the next request of each class: the first slab of the last group that has one;
    /// `NONE` iff all groups of the class are empty.
    serving: [u32; CLASSES],
}

impl<S: Storage> Default for Slabs<S> {
    fn default() -> Self {
        let entries = SegmentTable::default();
        Self { entries, groups: [0; CLASSES], first: [[NONE; GROUPS]; CLASSES], serving: [NONE; CLASSES] }
    }
}

impl<S: Storage> Slabs<S> {
    /// Moves a slab to the group of its present number of live objects. The number was `before`.
    #[inline(never)]
    fn regroup(&mut self, segment: u32, before: u32) {
        let SlabEntry { objects, live, class, next, .. } = self.entries[segment];
        if before != objects {
            // Unused slabs are last in group 0, and their order does not matter, so a slab just
            // before another unused one stays where it is.
            let last = live == 0 && (self.first[class as usize][0] == next || self.entries[next].live == 0);
            if last {
                return;
            }
            self.leave(segment, before);
        }
        if live != objects {
            self.enter(segment);
        }
    }

    /// Adds a slab to its group: at the front, or at the back if it is unused.
    fn enter(&mut self, segment: u32) {
        let SlabEntry { class, live, .. } = self.entries[segment];
        let (class, group) = (class as usize, group_of(live));
        let first = self.first[class][group];
        if first == NONE {
            (self.entries[segment].prev, self.entries[segment].next) = (segment, segment);
            self.groups[class] |= 1 << group;
        } else {
            let last = core::mem::replace(&mut self.entries[first].prev, segment);
            self.entries[last].next = segment;
            (self.entries[segment].prev, self.entries[segment].next) = (last, first);
        }
        if first == NONE || live > 0 {
            self.first[class][group] = segment;
        }
        self.update_serving(class);
    }

    /// Removes a slab from the group for `live` live objects.
    fn leave(&mut self, segment: u32, live: u32) {
        let SlabEntry { prev, next, class, .. } = self.entries[segment];
        let (class, group) = (class as usize, group_of(live));
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
        self.update_serving(class);
    }

    /// Updates which slab serves the next request of a class, after the groups of the class have
    /// changed.
    fn update_serving(&mut self, class: usize) {
        let last = self.groups[class].checked_ilog2();
        self.serving[class] = last.map_or(NONE, |group| self.first[class][group as usize % GROUPS]);
    }

    /// Returns an unused slab that can be cut anew for a class without a free object.
    fn recuttable(&self) -> Option<u32> {
        // Unused slabs are at the back of group 0. A segment that was allocated past the cache is
        // only as large as one object, and must not hide a slab before it. Only such segments make
        // the walk longer than one step for each class.
        let mut firsts = self.first.iter().map(|groups| groups[0]).filter(|&first| first != NONE);
        firsts.find_map(|first| self.unused_up_from(first).find(|&at| self.entries[at].bytes == SLAB_BYTES))
    }

    /// Iterates over the slabs without live objects in the group that starts with `first`, from the
    /// back.
    fn unused_up_from(&self, first: u32) -> impl Iterator<Item = u32> {
        let last = self.entries[first].prev;
        let slabs = successors(Some(last), move |&at| (at != first).then(|| self.entries[at].prev));
        slabs.take_while(|&at| self.entries[at].live == 0)
    }

    /// Allocates an object of a class without free objects, from an unused slab of another class,
    /// which is cut anew. Returns `None` if no slab is unused.
    #[cold]
    fn recut_and_take(&mut self, size: u64) -> Option<(SubBlock, FreeDelta)> {
        let segment = self.recuttable()?;
        self.leave(segment, 0);
        self.entries[segment].cut(size);
        self.enter(segment);
        self.take_from(segment, size)
    }

    /// Allocates the free object at the lowest address of a slab that has one. Returns `None` if
    /// `segment` is `NONE`.
    #[inline(always)]
    fn take_from(&mut self, segment: u32, size: u64) -> Option<(SubBlock, FreeDelta)> {
        // No entry has the number `NONE`, so the bounds check is also the test for an absent slab.
        let slab = self.entries.get_mut(segment)?;
        let number = slab.take_lowest();
        let SlabEntry { base, live, objects, sub_blocks, .. } = *slab;
        // The group changes when the number of live objects reaches a power of two. The first
        // object is an exception, because 0 and 1 share group 0.
        if live == objects || live.is_power_of_two() && live > 1 {
            self.regroup(segment, live - 1);
        }
        let now = sub_blocks - live;
        Some((
            SubBlock { addr: base + u64::from(number) * size, segment, number },
            FreeDelta { alone: live == 1, before: now + 1, now },
        ))
    }
}

impl<S: Storage> SubAllocator for Slabs<S> {
    fn segment_bytes(&self, _size: u64) -> u64 {
        SLAB_BYTES
    }

    /// Makes room for another slab. Nothing else needs an entry, and the entry does not depend on
    /// the class.
    #[inline]
    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        self.entries.is_ready() || self.entries.make_room()
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, size: u64) {
        self.entries.insert(segment, SlabEntry { base, bytes, ..SlabEntry::VACANT });
        self.entries[segment].cut(size);
        self.enter(segment);
    }

    fn remove_segment(&mut self, segment: u32) {
        self.leave(segment, 0);
        self.entries.remove(segment);
    }

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        let allocated = self.take_from(self.serving[class_of(size)], size);
        Ok(allocated.or_else(|| self.recut_and_take(size)))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        if let Some(slab) = self.entries.entries().get(self.serving[class_of(size)] as usize) {
            return Some(slab.base + u64::from(slab.lowest) * size);
        }
        self.recuttable().map(|segment| self.entries[segment].base)
    }

    #[inline(always)]
    fn free(&mut self, sub_block: SubBlock, _size: u64) -> FreeDelta {
        let slab = &mut self.entries[sub_block.segment];
        slab.free(sub_block.number);
        let SlabEntry { live, objects, sub_blocks, next, .. } = *slab;
        let before = live + 1;
        // The reverse of `take_from`. A slab that becomes unused moves to the back of group 0,
        // unless it is alone there.
        if before == objects || before.is_power_of_two() && (before > 1 || next != sub_block.segment) {
            self.regroup(sub_block.segment, before);
        }
        FreeDelta { alone: live == 0, before: sub_blocks - before, now: sub_blocks - live }
    }

    /// Visits a slab without live objects as a single free sub-block. In any other slab, visits
    /// each free object and the tail.
    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let slab = &self.entries[segment];
        if slab.live == 0 {
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

    fn copy(&self) -> Box<dyn SubAllocator> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<(), &'static str> {
        let mut expected = 0;
        for slab in self.entries.entries().iter().filter(|slab| slab.bytes > 0) {
            if class_of(slab.size) != slab.class as usize || u64::from(slab.objects) * slab.size > slab.bytes {
                return Err("a slab has more objects than fit");
            }
            if slab.sub_blocks != slab.objects + u32::from(slab.tail() > 0) {
                return Err("a slab counts a tail that is not there, or the other way round");
            }
            let free: u32 = slab.words.iter().map(|word| word.count_ones()).sum();
            let end = slab.objects as usize;
            let behind = slab.words.iter().skip(end / 64 + 1).any(|&word| word != 0)
                || slab.words.get(end / 64).is_some_and(|word| word >> (end % 64) != 0);
            if free + slab.live != slab.objects || behind {
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
                let full = slab.live == slab.objects;
                if slab.class as usize != class || group_of(slab.live) != group || full || listed == expected {
                    return Err("a group holds a slab that is not its own");
                }
                if self.entries[slab.next].prev != at || whole && slab.live > 0 {
                    return Err("a group is out of order");
                }
                (listed, whole) = (listed + 1, slab.live == 0);
                at = if slab.next == first { NONE } else { slab.next };
            }
        }
        if listed == expected { Ok(()) } else { Err("a slab with free objects is in no group") }
    }
}
