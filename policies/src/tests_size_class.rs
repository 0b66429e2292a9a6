//! Tests of size classes: rounding, chunks that become whole again, and everything against a naive
//! account.

use super::size_class::{POLICY, SizeClasses};
use super::tests_model::{Naive, Told, World, steps};
use cachalot_core::MIB;
use cachalot_core::suballoc::CapacityError;
use cachalot_core::suballoc::{SubAllocator, SubBlock};
use cachalot_core::{Fixed, Growable, Storage};
use proptest::prelude::*;
use std::vec::Vec;

const KIB: u64 = 1024;
const GIB: u64 = 1024 * MIB;

type Table = Fixed<1, 1, 6, 1>;

fn of_chunks<S: Storage>(chunk_bytes: u64) -> SizeClasses<S> {
    SizeClasses::new(chunk_bytes)
}

fn round(bytes: u64) -> u64 {
    bytes.next_multiple_of(POLICY.unit)
}

fn add<S: Storage>(classes: &mut SizeClasses<S>, segment: u32, size: u64) {
    let bytes = classes.segment_bytes(size);
    assert!(classes.make_room(bytes, size));
    classes.add_segment(segment, u64::from(segment + 1) << 40, bytes, size);
}

fn take<S: Storage>(classes: &mut SizeClasses<S>, size: u64) -> SubBlock {
    classes.take_told(size).unwrap().unwrap()
}

/// The place of a piece: segment, and offset in the segment.
fn at(piece: SubBlock) -> (u32, u64) {
    (piece.segment, piece.addr - (u64::from(piece.segment + 1) << 40))
}

#[test]
fn requests_are_rounded_to_1_kib() {
    for (bytes, size) in [
        (1, KIB),
        (1024, KIB),
        (1025, 2 * KIB),
        (66 * KIB, 66 * KIB),
        (5 * GIB + 1, 5 * GIB + KIB),
        ((1 << 60) - 1, 1 << 60),
    ] {
        assert_eq!(round(bytes), size, "{bytes}");
    }
}

#[test]
fn a_chunk_is_an_option_and_larger_requests_get_their_own() {
    let default = SizeClasses::<Growable>::new(POLICY.options[0]);
    let five = of_chunks::<Growable>(5 * GIB);
    let odd = of_chunks::<Growable>(3 * MIB);
    for (size, of_default, of_five, of_odd) in [
        (KIB, GIB, 5 * GIB, 4 * MIB),
        (4 * MIB, GIB, 5 * GIB, 4 * MIB),
        (4 * MIB + KIB, GIB, 5 * GIB, 6 * MIB),
        (GIB, GIB, 5 * GIB, GIB),
        (GIB + KIB, GIB + 2 * MIB, 5 * GIB, GIB + 2 * MIB),
        (5 * GIB + KIB, 5 * GIB + 2 * MIB, 5 * GIB + 2 * MIB, 5 * GIB + 2 * MIB),
        (1 << 60, 1 << 60, 1 << 60, 1 << 60),
    ] {
        assert_eq!(default.segment_bytes(size), of_default, "{size}");
        assert_eq!(five.segment_bytes(size), of_five, "{size}");
        assert_eq!(odd.segment_bytes(size), of_odd, "{size}");
    }
    for (chunk_bytes, bytes) in [(0, 2 * MIB), (u64::MAX, 1 << 60)] {
        assert_eq!(of_chunks::<Growable>(chunk_bytes).segment_bytes(KIB), bytes);
    }
}

#[test]
fn only_the_very_size_is_taken_again_the_last_one_given_back_first() {
    let mut classes = of_chunks::<Growable>(2 * MIB);
    add(&mut classes, 0, KIB);
    let pieces: Vec<_> = (0..4).map(|_| take(&mut classes, 3 * KIB)).collect();
    assert_eq!(at(pieces[3]), (0, 9 * KIB));
    classes.give_told(pieces[2], 3 * KIB);
    classes.give_told(pieces[1], 3 * KIB);
    assert_eq!(at(take(&mut classes, 2 * KIB)), (0, 12 * KIB), "a piece is not split");
    assert_eq!(at(take(&mut classes, 6 * KIB)), (0, 14 * KIB), "nor are two merged");
    assert_eq!(take(&mut classes, 3 * KIB), pieces[1]);
    assert_eq!(take(&mut classes, 3 * KIB), pieces[2]);
    assert_eq!(at(take(&mut classes, 3 * KIB)), (0, 20 * KIB));
    assert_eq!(classes.check(), Ok(()));
}

#[test]
fn a_chunk_of_which_nothing_is_taken_is_whole() {
    let mut classes = of_chunks::<Growable>(2 * MIB);
    add(&mut classes, 0, KIB);
    let pieces = [5, 7, 9].map(|kib| (take(&mut classes, kib * KIB), kib * KIB));
    assert_eq!(classes.free_sub_blocks(0), 1);
    for (piece, size) in pieces {
        classes.give_told(piece, size);
    }
    assert_eq!(classes.free_sub_blocks(0), 1);
    let again = take(&mut classes, 7 * KIB);
    assert_eq!(at(again), (0, 5 * KIB), "as long as nothing else needs the room, its cuts are there");
    assert_eq!(classes.free_sub_blocks(0), 3);
    classes.give_told(again, 7 * KIB);
    assert_eq!(at(take(&mut classes, 2 * MIB)), (0, 0), "all of it can be had");
    assert_eq!((classes.free_sub_blocks(0), classes.take_told(KIB)), (0, Ok(None)));
    assert_eq!(classes.check(), Ok(()));
}

#[test]
fn the_smallest_tail_that_suffices_is_cut() {
    let mut classes = of_chunks::<Growable>(2 * MIB);
    for (segment, kib) in [(0, 1000), (1, 1500), (2, 1500)] {
        add(&mut classes, segment, KIB);
        assert_eq!(at(take(&mut classes, kib * KIB)), (segment, 0));
    }
    assert_eq!(at(take(&mut classes, 548 * KIB)), (1, 1500 * KIB), "the lowest of equals");
    assert_eq!(at(take(&mut classes, 549 * KIB)), (0, 1000 * KIB));
    assert_eq!(at(take(&mut classes, 400 * KIB)), (0, 1549 * KIB));
    assert_eq!(at(take(&mut classes, 400 * KIB)), (2, 1500 * KIB));
    assert_eq!(classes.take_told(400 * KIB), Ok(None));
}

#[test]
fn a_removed_chunk_takes_its_free_sub_blocks_along() {
    let mut classes = of_chunks::<Growable>(2 * MIB);
    add(&mut classes, 0, KIB);
    let pieces: Vec<_> = (0..10).map(|_| take(&mut classes, KIB)).collect();
    pieces.iter().for_each(|&piece| classes.give_told(piece, KIB));
    classes.remove_segment(0);
    assert_eq!((classes.check(), classes.take_told(KIB)), (Ok(()), Ok(None)));
}

#[test]
fn a_table_that_is_full_refuses_a_further_piece_but_not_one_that_is_free() {
    let mut classes = of_chunks::<Table>(2 * MIB);
    add(&mut classes, 5, KIB);
    let pieces: Vec<_> = (1..=6).map(|kib| take(&mut classes, kib * KIB)).collect();
    assert!(classes.take_told(KIB) == Err(CapacityError) && !classes.make_room(2 * MIB, KIB));
    classes.give_told(pieces[2], 3 * KIB);
    assert!(classes.take_told(KIB) == Err(CapacityError) && !classes.make_room(2 * MIB, 3 * KIB));
    assert_eq!(take(&mut classes, 3 * KIB), pieces[2]);
    assert_eq!(classes.check(), Ok(()));
}

#[test]
fn a_table_that_is_full_forgets_the_cuts_of_a_whole_chunk() {
    let mut classes = of_chunks::<Table>(2 * MIB);
    add(&mut classes, 0, KIB);
    let pieces: Vec<_> = (1..=6).map(|kib| take(&mut classes, kib * KIB)).collect();
    for (piece, kib) in pieces.into_iter().zip(1..) {
        classes.give_told(piece, kib * KIB);
    }
    assert_eq!(at(take(&mut classes, 9 * KIB)), (0, 0));
    assert_eq!(classes.check(), Ok(()));
}

/// A piece: address, size, chunk, and the time of the free; `None` for a live piece.
struct NaivePiece(u64, u64, u32, Option<u64>);

/// A chunk: number, base, bytes, and the number of bytes already cut.
struct NaiveChunk(u32, u64, u64, u64);

#[derive(Default)]
struct NaiveClasses {
    pieces: Vec<NaivePiece>,
    chunks: Vec<NaiveChunk>,
    clock: u64,
}

impl NaiveClasses {
    fn dissolve(&mut self, chunk: u32) {
        self.chunks.iter_mut().find(|entry| entry.0 == chunk).unwrap().3 = 0;
        self.pieces.retain(|piece| piece.2 != chunk);
    }

    fn whole(&self) -> Vec<u32> {
        let in_use = |chunk| self.pieces.iter().any(|piece| piece.2 == chunk && piece.3.is_none());
        self.chunks.iter().map(|chunk| chunk.0).filter(|&chunk| !in_use(chunk)).collect()
    }

    fn fitting(&self, size: u64) -> Option<u32> {
        let fitting = self.chunks.iter().filter(|chunk| chunk.2 - chunk.3 >= size);
        fitting.min_by_key(|chunk| (chunk.2 - chunk.3, chunk.1)).map(|chunk| chunk.0)
    }
}

impl Naive for NaiveClasses {
    fn add(&mut self, segment: u32, base: u64, bytes: u64, _size: u64) {
        self.chunks.push(NaiveChunk(segment, base, bytes, 0));
    }

    fn remove(&mut self, segment: u32) {
        self.dissolve(segment);
        self.chunks.retain(|chunk| chunk.0 != segment);
    }

    fn take(&mut self, size: u64) -> Option<(u64, u32)> {
        let free = self.pieces.iter_mut().filter(|piece| piece.1 == size && piece.3.is_some());
        if let Some(piece) = free.max_by_key(|piece| piece.3) {
            piece.3 = None;
            return Some((piece.0, piece.2));
        }
        if self.fitting(size).is_none() {
            self.whole().into_iter().for_each(|chunk| self.dissolve(chunk));
        }
        let segment = self.fitting(size)?;
        if self.whole().contains(&segment) {
            self.dissolve(segment);
        }
        let chunk = self.chunks.iter_mut().find(|chunk| chunk.0 == segment).unwrap();
        let addr = chunk.1 + chunk.3;
        chunk.3 += size;
        self.pieces.push(NaivePiece(addr, size, segment, None));
        Some((addr, segment))
    }

    fn give(&mut self, piece: SubBlock, size: u64) {
        self.clock += 1;
        let entry = self.pieces.iter_mut().find(|entry| entry.0 == piece.addr).unwrap();
        assert_eq!((entry.1, entry.2, entry.3), (size, piece.segment, None));
        entry.3 = Some(self.clock);
    }
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..12_u64, 1..=KIB).prop_map(|(kib, more)| kib * KIB + more),
        2 => prop::sample::select(&[300 * KIB, 700 * KIB, 1500 * KIB, 2 * MIB][..]),
        1 => (2..7_u64).prop_map(|mib| mib * MIB + 1),
    ]
}

proptest! {
    #[test]
    fn takes_what_a_naive_account_says(steps in steps(sizes(), 300)) {
        let mut naive = NaiveClasses::default();
        World::new(of_chunks::<Growable>(2 * MIB), |bytes| Some(round(bytes)), Some(&mut naive), u32::MAX).run(&steps)?;
    }

    #[test]
    fn a_full_table_changes_nothing(steps in steps(sizes(), 100)) {
        World::new(of_chunks::<Table>(2 * MIB), |bytes| Some(round(bytes)), None, 6).run(&steps)?;
    }
}

#[test]
fn a_program_that_fills_the_table_is_refused_and_goes_on() {
    use super::tests_model::Step::{Give, Take};
    let mut world = World::new(of_chunks::<Table>(2 * MIB), |bytes| Some(round(bytes)), None, 6);
    let fill: Vec<_> = (1..=9).map(|kib| Take(kib * KIB)).collect();
    world.run(&[&fill[..], &[Give(0), Take(KIB), Take(9 * KIB)]].concat()).unwrap();
    assert_eq!((world.refused, world.taken.len()), (4, 0));
}
