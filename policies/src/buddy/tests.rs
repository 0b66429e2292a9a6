//! The buddy policy in fixed examples, and against a model with immediate splits and merges.

use super::order_bitmap::{ORDERS, OrderBitmap};
use super::tree::Tree;
use super::{Buddies, MAX_ARENA, MIN_BLOCK, round};
use crate::tests_model::{Told, World, steps};
use cachalot_core::records::NONE;
use cachalot_core::suballoc::{SubAllocator, SubBlock};
use cachalot_core::{Fixed, Growable, Storage};
use cachalot_core::{MAX_REQUEST, MIB};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

const KIB: u64 = MIN_BLOCK;
const BASE: u64 = 0x7f00_0000_0000;

fn buddies<S: Storage>(arena_bytes: u64) -> Buddies<S> {
    Buddies::new(arena_bytes)
}

/// Adds a segment for pieces of `size`, as a heap does. Returns its length in bytes, or `None` if
/// the policy has no room.
fn obtain<S: Storage>(buddies: &mut Buddies<S>, segment: u32, base: u64, size: u64) -> Option<u64> {
    let bytes = buddies.segment_bytes(size);
    buddies.make_room(bytes, size).then(|| buddies.add_segment(segment, base, bytes, size))?;
    Some(bytes)
}

fn free<S: Storage>(buddies: &Buddies<S>, segment: u32) -> Vec<(u64, u64)> {
    let mut free = Vec::new();
    buddies.visit_free(segment, &mut |addr, bytes| free.push((addr, bytes)));
    free
}

fn piece(addr: u64, segment: u32) -> SubBlock {
    SubBlock { addr, segment, number: NONE }
}

/// Takes a piece of segment 0, after predicting it. Returns its offset.
fn take(buddies: &mut Buddies<Growable>, size: u64) -> u64 {
    let predicted = buddies.peek(size);
    let SubBlock { addr, segment, .. } = buddies.take_told(size).unwrap_or_default().expect("a block that fits");
    assert_eq!((predicted, segment, buddies.check()), (Some(addr), 0, Ok(())));
    addr - BASE
}

fn give(buddies: &mut Buddies<Growable>, at: u64, size: u64) {
    buddies.give_told(piece(BASE + at, 0), size);
    assert_eq!(buddies.check(), Ok(()));
}

/// The free blocks of segment 0, in KiB from the base.
fn map(buddies: &Buddies<Growable>) -> Vec<(u64, u64)> {
    free(buddies, 0).into_iter().map(|(addr, bytes)| ((addr - BASE) / KIB, bytes / KIB)).collect()
}

#[test]
fn requests_round_to_powers_of_two() {
    let buddies = buddies::<Growable>(MIB);
    let rounded =
        [(1, KIB), (1023, KIB), (1024, KIB), (1025, 2 * KIB), (66 * KIB, 128 * KIB), (MIB, MIB), (MIB + 1, 2 * MIB)];
    for (bytes, size) in rounded {
        assert_eq!(round(bytes), size);
    }
    assert_eq!(round(MAX_REQUEST - 1), MAX_REQUEST);
    assert_eq!([KIB, MIB, 2 * MIB].map(|size| buddies.segment_bytes(size)), [MIB, MIB, 2 * MIB]);
}

#[test]
fn the_rest_of_a_split_serves_before_equal_blocks_behind_it() {
    let mut all = buddies::<Growable>(16 * KIB);
    assert_eq!(obtain(&mut all, 0, BASE, KIB), Some(16 * KIB));
    assert_eq!([4, 4, 4, 2, 2].map(|kib| take(&mut all, kib * KIB) / KIB), [0, 4, 8, 12, 14]);
    assert_eq!(all.peek(KIB), None);
    give(&mut all, 0, 4 * KIB);
    assert_eq!(take(&mut all, KIB), 0);
    give(&mut all, 14 * KIB, 2 * KIB);
    assert_eq!(map(&all), [(1, 1), (2, 2), (14, 2)]);
    assert_eq!([2, 2, 1].map(|kib| take(&mut all, kib * KIB) / KIB), [2, 14, 1]);
}

#[test]
fn blocks_freed_in_one_word_and_in_several_serve_from_the_lowest_on() {
    // 64 leaves are a word, and 4096 are 64 words.
    let mut all = buddies::<Growable>(64 * KIB);
    assert_eq!(obtain(&mut all, 0, BASE, KIB), Some(64 * KIB));
    assert_eq!([(); 6].map(|()| take(&mut all, KIB) / KIB), [0, 1, 2, 3, 4, 5]);
    [0, 2, 4].iter().for_each(|kib| give(&mut all, kib * KIB, KIB));
    assert_eq!([(); 3].map(|()| take(&mut all, KIB) / KIB), [0, 2, 4]);
    let mut all = buddies::<Growable>(4096 * KIB);
    assert_eq!(obtain(&mut all, 0, BASE, KIB), Some(4096 * KIB));
    let words = [0, 64, 128];
    for word in words {
        assert_eq!([1, 1, 2, 4, 8, 16, 32].map(|kib| take(&mut all, kib * KIB) / KIB)[0], word);
    }
    words.iter().for_each(|kib| give(&mut all, kib * KIB, KIB));
    assert_eq!(words.map(|_| take(&mut all, KIB) / KIB), words);
}

#[test]
fn blocks_split_leftmost_and_merge_with_their_siblings() {
    let mut all = buddies::<Growable>(16 * KIB);
    assert_eq!(all.take_told(KIB).unwrap_or_default(), None);
    assert_eq!(obtain(&mut all, 0, BASE, KIB), Some(16 * KIB));
    assert_eq!(map(&all), [(0, 16)]);
    assert_eq!(take(&mut all, KIB), 0);
    assert_eq!(map(&all), [(1, 1), (2, 2), (4, 4), (8, 8)]);
    // The smallest block that fits is taken, not the first one: 4 KiB passes smaller blocks.
    assert_eq!(take(&mut all, 4 * KIB), 4 * KIB);
    assert_eq!(map(&all), [(1, 1), (2, 2), (8, 8)]);
    assert_eq!(take(&mut all, 2 * KIB), 2 * KIB);
    assert_eq!(take(&mut all, 2 * KIB), 8 * KIB);
    assert_eq!(map(&all), [(1, 1), (10, 2), (12, 4)]);
    assert_eq!(all.take_told(8 * KIB).unwrap_or_default(), None);
    // Neighbours that are not siblings stay separate: [1, 2) and [2, 4).
    give(&mut all, 2 * KIB, 2 * KIB);
    assert_eq!(map(&all), [(1, 1), (2, 2), (10, 2), (12, 4)]);
    // Of two blocks of the same size, the one at the lower address is taken.
    assert_eq!(take(&mut all, 2 * KIB), 2 * KIB);
    give(&mut all, 2 * KIB, 2 * KIB);
    give(&mut all, 8 * KIB, 2 * KIB);
    assert_eq!(map(&all), [(1, 1), (2, 2), (8, 8)]);
    give(&mut all, 0, KIB);
    assert_eq!(map(&all), [(0, 4), (8, 8)]);
    give(&mut all, 4 * KIB, 4 * KIB);
    assert_eq!(map(&all), [(0, 16)]);
}

#[test]
fn a_block_that_was_split_earlier_merges_while_another_is_the_remainder() {
    let mut all = buddies::<Growable>(16 * KIB);
    obtain(&mut all, 0, BASE, KIB);
    assert_eq!([1, 8, 1, 2].map(|kib| take(&mut all, kib * KIB) / KIB), [0, 8, 1, 2]);
    assert_eq!(map(&all), [(4, 4)]);
    give(&mut all, 8 * KIB, 8 * KIB);
    assert_eq!(take(&mut all, 4 * KIB), 4 * KIB);
    // Now the upper half is split, and the lower one merges without it.
    assert_eq!(take(&mut all, KIB), 8 * KIB);
    for (at, kib) in [(1, 1), (2, 2), (4, 4), (0, 1)] {
        give(&mut all, at * KIB, kib * KIB);
    }
    assert_eq!(map(&all), [(0, 8), (9, 1), (10, 2), (12, 4)]);
    give(&mut all, 8 * KIB, KIB);
    assert_eq!(map(&all), [(0, 16)]);
}

#[test]
fn an_arena_fills_to_the_last_leaf() {
    let mut all = buddies::<Growable>(4 * MIB);
    obtain(&mut all, 0, BASE, KIB);
    for at in 0..4096 {
        assert_eq!(all.take_told(KIB).unwrap_or_default(), Some(piece(BASE + at * KIB, 0)));
    }
    assert_eq!((all.take_told(KIB).unwrap_or_default(), free(&all, 0).len(), all.check()), (None, 0, Ok(())));
    // Every second one is freed, so no two are siblings and nothing merges.
    for at in (0..4096).step_by(2) {
        all.give_told(piece(BASE + at * KIB, 0), KIB);
    }
    assert_eq!((all.take_told(2 * KIB).unwrap_or_default(), all.free_sub_blocks(0), all.check()), (None, 2048, Ok(())));
    for at in (0..2048).map(|pair| 4095 - 2 * pair) {
        all.give_told(piece(BASE + at * KIB, 0), KIB);
    }
    assert_eq!((free(&all, 0), all.check()), (Vec::from([(BASE, 4 * MIB)]), Ok(())));
}

#[test]
fn the_smallest_block_is_taken_whichever_arena_has_it() {
    let mut all = buddies::<Growable>(8 * KIB);
    assert_eq!(obtain(&mut all, 0, BASE, KIB), Some(8 * KIB));
    assert_eq!(obtain(&mut all, 1, BASE / 2, 64 * KIB), Some(64 * KIB));
    assert_eq!(all.take_told(16 * KIB).unwrap_or_default(), Some(piece(BASE / 2, 1)));
    assert_eq!(all.take_told(2 * KIB).unwrap_or_default(), Some(piece(BASE, 0)));
    assert_eq!(all.take_told(8 * KIB).unwrap_or_default(), Some(piece(BASE / 2 + 16 * KIB, 1)));
    assert_eq!(all.take_told(8 * KIB).unwrap_or_default(), Some(piece(BASE / 2 + 24 * KIB, 1)));
    assert_eq!(free(&all, 1), [(BASE / 2 + 32 * KIB, 32 * KIB)]);
    all.give_told(piece(BASE, 0), 2 * KIB);
    all.remove_segment(0);
    assert_eq!(all.check(), Ok(()));
    // The words of an arena are used again, and so is its number.
    let words = all.trees.words.len();
    assert_eq!(obtain(&mut all, 0, BASE * 2, KIB), Some(8 * KIB));
    assert_eq!(all.trees.words.len(), words);
    assert_eq!((free(&all, 0), all.check()), (Vec::from([(BASE * 2, 8 * KIB)]), Ok(())));
}

#[test]
fn tables_cost_two_bits_a_leaf() {
    let kib = |bytes: u64| Tree::words((bytes / KIB).ilog2()) as u64 * 8 / 1024;
    assert_eq!([64 * MIB, 1024 * MIB].map(kib), [16, 260]);
    assert_eq!(Tree::words(0), 1);
    let mut all = buddies::<Growable>(MIB);
    assert!(!all.make_room(2 * MAX_ARENA, 2 * MAX_ARENA));
    assert!(!all.make_room(MAX_REQUEST, MAX_REQUEST));
}

#[test]
fn a_table_that_is_full_is_found_out_before_anything_changes() {
    // Eight words: one arena of 128 KiB, which needs five, or eight of 32 KiB, which need one each.
    let mut large = buddies::<Fixed<1, 1, 8, 1>>(128 * KIB);
    assert_eq!(obtain(&mut large, 0, BASE, KIB), Some(128 * KIB));
    assert_eq!(obtain(&mut large, 1, BASE * 2, KIB), None);
    assert_eq!((free(&large, 0), large.check()), (Vec::from([(BASE, 128 * KIB)]), Ok(())));
    let mut small = buddies::<Fixed<1, 1, 8, 1>>(32 * KIB);
    for segment in 0..8 {
        assert_eq!(obtain(&mut small, segment, BASE << segment, KIB), Some(32 * KIB));
    }
    assert_eq!(obtain(&mut small, 8, BASE << 8, KIB), None);
    small.remove_segment(5);
    assert_eq!(obtain(&mut small, 5, BASE, KIB), Some(32 * KIB));
    assert_eq!(small.check(), Ok(()));
    // Beyond the first 64, there are no arenas without a row for each 64.
    let mut rows = OrderBitmap::<Fixed<1, 1, { 2 * ORDERS }, 1>>::default();
    assert_eq!([64, 128, 129].map(|count| rows.make_room_for(count)), [true, true, false]);
    let mut none = buddies::<Fixed<1, 1, 0, 1>>(KIB);
    assert_eq!(obtain(&mut none, 0, BASE, KIB), None);
}

#[test]
fn arenas_are_found_in_order_however_many() {
    for count in [1_u32, 64, 65, 4096, 4097, 20_000] {
        let mut bitmap = OrderBitmap::<Growable>::default();
        let mut room = 0;
        for arena in (0..count).map(|at| at.wrapping_mul(7919) % count) {
            room = room.max(arena as usize + 1);
            assert!(bitmap.make_room_for(room));
            bitmap.insert(arena % 2 * 3, arena);
        }
        assert!(bitmap.check());
        let odd = count / 2;
        assert_eq!(bitmap.orders(), if odd > 0 { 0b1001 } else { 1 });
        for at in 0..odd {
            assert_eq!(bitmap.first(3), 2 * at + 1);
            bitmap.remove(3, 2 * at + 1);
        }
        assert!(bitmap.check() && bitmap.orders() == 1 && bitmap.first(0) == 0);
    }
    assert!(!OrderBitmap::<Growable>::default().make_room_for((1 << 18) + 1));
}

/// A buddy system that is a set of free blocks, and splits and merges at once.
#[derive(Default)]
struct Model {
    /// Order, segment and offset of each free block.
    free: BTreeSet<(u32, u32, u64)>,
    /// The order of each segment in use.
    orders: BTreeMap<u32, u32>,
}

impl Model {
    fn take(&mut self, order: u32) -> Option<(u32, u64)> {
        let (found, segment, at) = *self.free.range((order, 0, 0)..).next()?;
        self.free.remove(&(found, segment, at));
        self.free.extend((order..found).map(|split| (split, segment, at + (KIB << split))));
        Some((segment, at))
    }

    fn give(&mut self, (mut order, segment, mut at): (u32, u32, u64)) {
        while order < self.orders[&segment] && self.free.remove(&(order, segment, at ^ KIB << order)) {
            at &= !(KIB << order);
            order += 1;
        }
        self.free.insert((order, segment, at));
    }

    fn map(&self, segment: u32) -> Vec<(u64, u64)> {
        let held = self.free.iter().filter(|(_, holder, _)| *holder == segment);
        let mut map: Vec<_> = held.map(|&(order, _, at)| (base(segment) + at, KIB << order)).collect();
        map.sort_unstable();
        map
    }
}

fn base(segment: u32) -> u64 {
    BASE + u64::from(segment) * 64 * MIB
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u32),
    Give(usize),
    /// Frees the block that was taken last.
    Undo,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u32..9).prop_map(Step::Take),
        1 => (9_u32..14).prop_map(Step::Take),
        5 => any::<usize>().prop_map(Step::Give),
        3 => Just(Step::Undo),
        1 => Just(Step::Release),
    ]
}

proptest! {
    /// Drives the policy as a heap does, with tables that are soon full.
    #[test]
    fn a_full_table_changes_nothing(steps in steps((0_u32..9, 1..=KIB).prop_map(|(order, more)| (KIB << order) - KIB + more), 150)) {
        World::new(buddies::<Fixed<1, 1, 12, 1>>(64 * KIB), |bytes| Some(round(bytes)), None, 12).run(&steps)?;
    }

    /// Compares the free and the taken blocks with the model after every step. At the end, every
    /// segment is wholly free.
    #[test]
    fn agrees_with_splitting_and_merging_at_once(steps in prop::collection::vec(step(), 1..250), arena in 0_u32..13) {
        let mut all = buddies::<Growable>(KIB << arena);
        let mut model = Model::default();
        let mut taken = Vec::new();
        for step in steps {
            match step {
                Step::Take(order) => {
                    let size = KIB << order;
                    let mut piece = all.take_told(size).unwrap_or_default();
                    if piece.is_none() {
                        prop_assert_eq!(model.take(order), None);
                        let segment = (0..=250).find(|number| !model.orders.contains_key(number)).expect("a number");
                        let bytes = obtain(&mut all, segment, base(segment), size).expect("room");
                        model.orders.insert(segment, order.max(arena));
                        model.free.insert((order.max(arena), segment, 0));
                        prop_assert_eq!(bytes, KIB << order.max(arena));
                        piece = all.take_told(size).unwrap_or_default();
                    }
                    let SubBlock { addr, segment, .. } = piece.expect("a block that fits");
                    prop_assert_eq!(model.take(order), Some((segment, addr - base(segment))));
                    taken.push((order, segment, addr - base(segment)));
                }
                Step::Give(_) | Step::Undo if !taken.is_empty() => {
                    let at = if let Step::Give(at) = step { at % taken.len() } else { taken.len() - 1 };
                    let (order, segment, offset) = taken.remove(at);
                    all.give_told(piece(base(segment) + offset, segment), KIB << order);
                    model.give((order, segment, offset));
                }
                Step::Release => {
                    let whole = |&(segment, order): &(&u32, &u32)| model.free.contains(&(*order, *segment, 0));
                    if let Some((&segment, &order)) = model.orders.iter().find(whole) {
                        all.remove_segment(segment);
                        model.free.remove(&(order, segment, 0));
                        model.orders.remove(&segment);
                    }
                }
                Step::Give(_) | Step::Undo => {}
            }
            prop_assert_eq!(all.check(), Ok(()));
            for &segment in model.orders.keys() {
                let map = free(&all, segment);
                prop_assert_eq!(&map, &model.map(segment));
                let held = taken.iter().filter(|(_, holder, _)| *holder == segment);
                let bytes: u64 = held.map(|(order, ..)| KIB << order).chain(map.iter().map(|(_, bytes)| *bytes)).sum();
                prop_assert_eq!(bytes, KIB << model.orders[&segment]);
            }
        }
        for (order, segment, offset) in taken {
            all.give_told(piece(base(segment) + offset, segment), KIB << order);
        }
        for (segment, order) in model.orders {
            prop_assert_eq!(free(&all, segment), [(base(segment), KIB << order)]);
            all.remove_segment(segment);
        }
        prop_assert_eq!((all.check(), all.take_told(KIB).unwrap_or_default()), (Ok(()), None));
    }
}
