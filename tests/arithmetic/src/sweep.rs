//! Every size below a bound, one after the other: the functions of the core against their
//! definitions.

use crate::code::{bins, class_divide, class_of, class_round_down, class_round_up, divisions};
use cachalot_core::rounding::{Divisions, PoolKind, SMALL_MAX, round_size, segment_size};
use cachalot_core::{Config, GRAIN, MIB, UNIT};
use std::time::Instant;

/// Numbers of divisions that are swept.
const DIVISIONS: [u64; 5] = [1, 2, 8, 64, 1024];

/// Checks each function for the sizes below `bound`, and prints a row of CSV for each. Returns how
/// many values are wrong.
pub(crate) fn run(bound: u64) -> usize {
    println!("function,sizes,seconds,wrong");
    let mut wrong = 0;
    let mut check = |name: &str, check: &mut dyn FnMut(u64) -> bool| {
        let begun = Instant::now();
        let found = (1..bound).filter(|&size| !check(size)).count();
        println!("\"{name}\",{},{:.1},{found}", bound - 1, begun.elapsed().as_secs_f64());
        wrong += found;
    };
    for number in DIVISIONS {
        let divisions = divisions(number).unwrap_or_default();
        let mut last = 0;
        check(&format!("`round_size` with {number} divisions"), &mut |bytes| {
            let size = round_size(bytes, &divisions).unwrap_or_default();
            let is_right = is_rounded(bytes, size, number) && size >= last;
            last = size;
            is_right
        });
    }
    let config = Config::new();
    check("`segment_size`", &mut |bytes| {
        let size = round_size(bytes, &Divisions::NONE).unwrap_or_default();
        let segment = segment_size(size, &config);
        segment >= size
            && segment.is_multiple_of(2 * MIB)
            && (PoolKind::of(size) == PoolKind::Small) == (size <= SMALL_MAX)
    });
    let mut last = 0;
    check("`bin_of`", &mut |size| {
        let bin = bins::bin_of(size);
        let is_right = bin >= last && bin < bins::BINS && (size >= bins::EXACT * GRAIN || bin as u64 == size / GRAIN);
        last = bin;
        is_right
    });
    let mut expected = UNIT;
    check("`geometric_classes::round_up`", &mut |bytes| {
        if bytes > expected {
            expected = next_class(expected);
        }
        class_round_up(bytes) == expected
    });
    let (mut class, mut number) = (UNIT, 0);
    check("`geometric_classes::round_down`, `class_of`, `divide`", &mut |bytes| {
        if bytes < UNIT {
            return true;
        }
        if bytes >= next_class(class) {
            // The midpoint between one and two units is no size, and keeps its number.
            number += if class == UNIT { 2 } else { 1 };
            class = next_class(class);
        }
        class_round_down(bytes) == class && class_of(class) == number && class_divide(bytes, class) == bytes / class
    });
    wrong
}

/// Returns the next power of two, or the midpoint before it. The first midpoint is no multiple of a
/// unit.
fn next_class(class: u64) -> u64 {
    match class {
        UNIT => 2 * UNIT,
        _ if class.is_power_of_two() => class / 2 * 3,
        _ => class / 3 * 4,
    }
}

/// Whether `size` is the least multiple of the step of `bytes`, of at least `bytes`. The step is a
/// power of two.
fn is_rounded(bytes: u64, size: u64, divisions: u64) -> bool {
    let power = 1 << bytes.ilog2();
    let step = if divisions > 1 && bytes > UNIT * divisions { power >> divisions.trailing_zeros() } else { UNIT };
    size >= bytes && size - bytes < step && size & (step - 1) == 0 && step >= UNIT
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_size_below_two_mebibytes_is_right() {
        assert_eq!(super::run(1 << 21), 0);
    }
}
