//! Tests of slabs: the classes, which object comes next, and everything against a naive account.

use super::slab::{LARGEST_MAX, SLAB_BYTES, Slabs, largest, round};
use super::tests_model::{Naive, Told, World, steps};
use cachalot_core::suballoc::{SubAllocator, SubBlock};
use cachalot_core::{Fixed, Growable, Storage};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;

const KIB: u64 = 1024;

fn slabs() -> Slabs<Growable> {
    Slabs::default()
}

fn rounded(bytes: u64) -> Option<u64> {
    (bytes <= LARGEST_MAX).then(|| round(bytes))
}

fn add<S: Storage>(slabs: &mut Slabs<S>, segment: u32, size: u64) {
    assert!(slabs.make_room(SLAB_BYTES, size));
    slabs.add_segment(segment, u64::from(segment + 1) << 21, SLAB_BYTES, size);
}

fn take<S: Storage>(slabs: &mut Slabs<S>, size: u64) -> (u32, u64) {
    let SubBlock { addr, segment, .. } = slabs.take_told(size).unwrap().unwrap();
    (segment, addr - (u64::from(segment + 1) << 21))
}

fn give<S: Storage>(slabs: &mut Slabs<S>, (segment, offset): (u32, u64), size: u64) {
    let addr = (u64::from(segment + 1) << 21) + offset;
    slabs.give_told(SubBlock { addr, segment, number: (offset / size) as u32 }, size);
}

/// Returns the sizes of the slabs' classes: the powers of two from 512 bytes to 512 KiB and the
/// midpoints between them, without the midpoints that are no multiple of 512.
fn classes() -> Vec<u64> {
    let powers = (0..=10).map(|log2| 512_u64 << log2);
    let all = powers.flat_map(|power| [power, power / 2 * 3]);
    all.filter(|&size| size.is_multiple_of(512) && size <= LARGEST_MAX).collect()
}

#[test]
fn requests_are_rounded_to_powers_of_two_and_midpoints() {
    for (bytes, size) in [
        (1, 512),
        (512, 512),
        (513, 1024),
        (768, 1024),
        (1024, 1024),
        (1025, 1536),
        (1537, 2048),
        (2049, 3072),
        (3073, 4096),
        (64 * KIB, 64 * KIB),
        (64 * KIB + 1, 96 * KIB),
        (66 * KIB, 96 * KIB),
        (96 * KIB, 96 * KIB),
        (96 * KIB + 1, 128 * KIB),
        (384 * KIB + 1, 512 * KIB),
        (512 * KIB, 512 * KIB),
    ] {
        assert_eq!(round(bytes), size, "{bytes}");
    }
}

#[test]
fn behind_the_last_free_object_of_a_word_the_next_may_be_anywhere_in_a_later_one() {
    let mut slabs = slabs();
    add(&mut slabs, 0, 512);
    let number = |(segment, offset): (u32, u64)| (segment, offset / 512);
    assert!((0..200).all(|object| number(take(&mut slabs, 512)) == (0, object)));
    let freed = [3, 70, 139];
    freed.iter().for_each(|&object| give(&mut slabs, (0, object * 512), 512));
    for object in freed.into_iter().chain([200, 201]) {
        assert_eq!(number(take(&mut slabs, 512)), (0, object));
    }
}

#[test]
fn every_request_gets_the_smallest_class_that_suffices() {
    let classes = classes();
    for bytes in 1..=LARGEST_MAX {
        assert_eq!(Some(round(bytes)), classes.iter().copied().find(|&class| class >= bytes), "{bytes}");
    }
}

#[test]
fn the_largest_class_is_an_option_and_rounded_down_to_a_class() {
    for most in [0, 1, 511, 512, 513, 1023, 1024, 1535, 1536, 100 * KIB, LARGEST_MAX - 1, LARGEST_MAX, u64::MAX] {
        assert_eq!(Some(largest(most)), classes().into_iter().rfind(|&class| class <= most.max(512)), "{most}");
    }
}

#[test]
fn a_slab_of_any_class_is_handed_out_from_its_front_to_its_tail_and_all_of_it() {
    for size in classes() {
        let mut slabs = slabs();
        add(&mut slabs, 0, size);
        let objects = SLAB_BYTES / size;
        assert!(objects >= 4 && SLAB_BYTES % size <= SLAB_BYTES / 16, "{size}");
        assert!((0..objects).all(|object| take(&mut slabs, size) == (0, object * size)), "{size}");
        assert_eq!(slabs.take_told(size), Ok(None));
        assert_eq!(slabs.check(), Ok(()));
        assert_eq!(slabs.free_sub_blocks(0), u32::from(!SLAB_BYTES.is_multiple_of(size)));
        for object in (0..objects).rev() {
            give(&mut slabs, (0, object * size), size);
        }
        assert_eq!(slabs.free_sub_blocks(0), 1);
        assert_eq!(slabs.check(), Ok(()));
    }
}

#[test]
fn the_tail_that_no_object_fits_in_is_a_free_piece() {
    let mut slabs = slabs();
    add(&mut slabs, 0, 384 * KIB);
    let first = take(&mut slabs, 384 * KIB);
    let mut last = (0, 0);
    slabs.visit_free(0, &mut |addr, bytes| last = (addr - SLAB_BYTES, bytes));
    assert_eq!(last, (5 * 384 * KIB, 128 * KIB));
    assert_eq!(slabs.free_sub_blocks(0), 5);
    give(&mut slabs, first, 384 * KIB);
}

#[test]
fn the_free_object_at_the_lowest_address_comes_first() {
    let mut slabs = slabs();
    add(&mut slabs, 0, 512);
    (0..4096).for_each(|_| _ = take(&mut slabs, 512));
    for object in [4095, 64, 3000, 65, 63] {
        give(&mut slabs, (0, object * 512), 512);
    }
    for object in [63, 64, 65, 3000, 4095] {
        assert_eq!(take(&mut slabs, 512), (0, object * 512));
    }
}

#[test]
fn the_fullest_slab_comes_first_and_the_emptiest_runs_empty() {
    let mut slabs = slabs();
    let size = 128 * KIB;
    for segment in 0..3 {
        add(&mut slabs, segment, size);
        (0..16).for_each(|_| _ = take(&mut slabs, size));
    }
    // 1, 9 and 3 objects stay taken.
    for (segment, left) in [(0, 1), (1, 9), (2, 3)] {
        (left..16).for_each(|object| give(&mut slabs, (segment, object * size), size));
    }
    assert!((9..16).all(|object| take(&mut slabs, size) == (1, object * size)));
    assert!((3..10).all(|object| take(&mut slabs, size) == (2, object * size)));
    give(&mut slabs, (0, 0), size);
    assert_eq!(slabs.free_sub_blocks(0), 1);
    assert_eq!(take(&mut slabs, size).0, 2, "a whole slab comes last");
    slabs.remove_segment(0);
    assert_eq!(slabs.check(), Ok(()));
}

#[test]
fn a_whole_slab_is_cut_anew_for_another_class() {
    let mut slabs = slabs();
    add(&mut slabs, 0, 512);
    assert_eq!(take(&mut slabs, 96 * KIB), (0, 0));
    assert_eq!(slabs.free_sub_blocks(0), 20 + 1);
    assert_eq!(slabs.take_told(512), Ok(None), "it is whole no longer");
    give(&mut slabs, (0, 0), 96 * KIB);
    assert_eq!(take(&mut slabs, 512), (0, 0));
    assert_eq!(slabs.free_sub_blocks(0), 4095);
}

#[test]
fn a_segment_as_large_as_its_object_does_not_hide_a_whole_slab() {
    // A segment that was allocated past the cache: once in the class of the whole slab, and once in
    // a class that is searched before.
    for odd in [1024, 512] {
        let mut slabs = slabs();
        add(&mut slabs, 0, 1024);
        slabs.add_segment(1, 2 << 21, odd, odd);
        assert_eq!(slabs.peek(96 * KIB), Some(1 << 21));
        assert_eq!(take(&mut slabs, 96 * KIB), (0, 0));
        assert_eq!(slabs.check(), Ok(()));
    }
}

#[test]
fn a_class_uses_its_own_whole_slabs_before_others() {
    let mut slabs = slabs();
    add(&mut slabs, 0, 512);
    add(&mut slabs, 1, 1024);
    add(&mut slabs, 2, 512);
    assert_eq!(take(&mut slabs, 1024).0, 1);
    assert_eq!(take(&mut slabs, 512).0, 0, "the one that was obtained first");
}

#[test]
fn a_table_that_is_full_refuses_a_further_slab() {
    let mut slabs = Slabs::<Fixed<1, 1, 3, 1>>::default();
    for segment in [2, 0, 1] {
        add(&mut slabs, segment, 512);
    }
    assert!(!slabs.make_room(SLAB_BYTES, 512));
    assert_eq!(slabs.check(), Ok(()));
    slabs.remove_segment(2);
    assert!(slabs.make_room(SLAB_BYTES, 512));
    add(&mut slabs, 2, 1024);
    assert_eq!(take(&mut slabs, 1024), (2, 0));
}

/// A slab.
struct NaiveSlab {
    segment: u32,
    base: u64,
    size: u64,
    /// Offsets of the taken objects.
    taken: BTreeSet<u64>,
    /// The rank in the slab's group: the slab with the highest rank comes first.
    place: i64,
}

impl NaiveSlab {
    fn group(&self) -> Option<u32> {
        let taken = self.taken.len();
        (taken as u64 != SLAB_BYTES / self.size).then(|| (taken | 1).ilog2())
    }
}

#[derive(Default)]
struct NaiveSlabs {
    slabs: Vec<NaiveSlab>,
    clock: i64,
}

impl NaiveSlabs {
    /// Changes a slab, and ranks it anew in its group.
    fn change(&mut self, segment: u32, change: impl FnOnce(&mut NaiveSlab)) {
        self.clock += 1;
        let (at, slab) = self.slabs.iter_mut().enumerate().find(|(_, slab)| slab.segment == segment).unwrap();
        let before = (slab.size, slab.group());
        change(slab);
        if (slab.size, slab.group()) != before {
            slab.place = if slab.taken.is_empty() { -self.clock } else { self.clock };
        } else if slab.taken.is_empty() {
            let slab = &self.slabs[at];
            let is_behind = |other: &NaiveSlab| other.size == slab.size && other.place < slab.place;
            if self.slabs.iter().any(|other| is_behind(other) && other.taken.len() == 1) {
                self.slabs[at].place = -self.clock;
            }
        }
    }
}

impl Naive for NaiveSlabs {
    fn add(&mut self, segment: u32, base: u64, _bytes: u64, size: u64) {
        self.clock += 1;
        self.slabs.push(NaiveSlab { segment, base, size, taken: BTreeSet::new(), place: -self.clock });
    }

    fn remove(&mut self, segment: u32) {
        self.slabs.retain(|slab| slab.segment != segment);
    }

    fn take(&mut self, size: u64) -> Option<(u64, u32)> {
        let own = self.slabs.iter().filter(|slab| slab.size == size && slab.group().is_some());
        let other = || {
            let whole = self.slabs.iter().filter(|slab| slab.taken.is_empty());
            whole.min_by_key(|slab| (slab.size, slab.place))
        };
        let &NaiveSlab { segment, base, .. } = own.max_by_key(|slab| (slab.group(), slab.place)).or_else(other)?;
        let mut offset = 0;
        self.change(segment, |slab| {
            slab.size = size;
            offset = (0..SLAB_BYTES).step_by(size as usize).find(|offset| !slab.taken.contains(offset)).unwrap();
            slab.taken.insert(offset);
        });
        Some((base + offset, segment))
    }

    fn give(&mut self, piece: SubBlock, _size: u64) {
        self.change(piece.segment, |slab| assert!(slab.taken.remove(&(piece.addr - slab.base))));
    }
}

proptest! {
    #[test]
    fn takes_what_a_naive_account_says(
        steps in steps(prop::sample::select(&[1, 700, 1500, 48 * KIB, 66 * KIB, 128 * KIB][..]), 60)
    ) {
        let mut naive = NaiveSlabs::default();
        World::new(slabs(), rounded, Some(&mut naive), u32::MAX).run(&steps)?;
    }

    /// Runs with few classes of few objects, so slabs fill up, become empty, and change their
    /// class.
    #[test]
    fn takes_what_a_naive_account_says_of_large_objects(
        steps in steps(prop::sample::select(&[192 * KIB, 256 * KIB, 384 * KIB, 512 * KIB][..]), 400)
    ) {
        let mut naive = NaiveSlabs::default();
        World::new(slabs(), rounded, Some(&mut naive), u32::MAX).run(&steps)?;
    }

    #[test]
    fn a_full_table_changes_nothing(steps in steps(prop::sample::select(&[384 * KIB, 512 * KIB][..]), 300)) {
        let mut naive = NaiveSlabs::default();
        let slabs = Slabs::<Fixed<1, 1, 5, 1>>::default();
        World::new(slabs, rounded, Some(&mut naive), 5).run(&steps)?;
    }
}
