//! The table of ranges alone: masks of pieces, and numbers of ranges.

use super::*;
use crate::arena::paging::ranges::table::{MOST_STEPS, Piece};

#[test]
fn the_bits_of_a_piece_are_those_of_the_steps_within() {
    for steps in [1, 2, 7, 8, 63, MOST_STEPS] {
        let piece = Piece::mapped(0, 100 * PAGE, steps * PAGE, 0);
        let bits = |begin: u64, end: u64| {
            let within = |step: &u64| (begin..end).contains(&(100 + step));
            (0..steps).filter(within).fold(0, |mask: u64, step| mask | 1 << step)
        };
        for (begin, end) in
            [(100, 100 + steps), (0, 500), (101, 102), (99, 101), (100, 104), (103, 200), (0, 100), (170, 180)]
        {
            assert_eq!(piece.bits(begin * PAGE, end * PAGE, PAGE), bits(begin, end), "{steps} steps, {begin}..{end}");
        }
        assert_eq!(piece.all_bits(PAGE), bits(100, 100 + steps));
    }
}

#[test]
fn a_number_given_again_is_not_that_of_the_released_range() {
    let allocator = allocator("");
    let reserve = || allocator.ranges(DEVICE).unwrap().reserve(4 * PAGE).unwrap();
    let first = [(); 4].map(|()| reserve().range);
    first.iter().for_each(|&range| allocator.ranges(DEVICE).unwrap().release(range).unwrap());
    let again = [(); 4].map(|()| reserve());
    for (number, range) in again.iter().enumerate() {
        assert!(again[..number].iter().all(|other| other.range != range.range && other.base != range.base));
        allocator.ranges(DEVICE).unwrap().commit(range.range, 0, PAGE, ONE).unwrap();
    }
    for range in first {
        assert_eq!(allocator.ranges(DEVICE).unwrap().commit(range, 0, PAGE, ONE), Err(Error::UnknownRange(range)));
        assert_eq!(allocator.ranges(DEVICE).unwrap().release(range), Err(Error::UnknownRange(range)));
    }
    assert_eq!(counted(&allocator), (4 * PAGE as i64, 4 * PAGE as i64));
}
