//! Distribution of request sizes: from 1 byte to 1 GiB, every octave, small sizes most often.

use fastrand::Rng;

/// A class of sizes: from the end of the previous class to 2^`end`. Out of [`CHANCES`] requests,
/// `chances` are in the class, with all octaves equally likely.
struct Class {
    chances: u32,
    end: u32,
}

/// Sum of the chances of all classes.
const CHANCES: u32 = 100_000;

/// Large blocks are rare, since their bytes would take the time of all others. The average with
/// these chances is 200 KiB.
const CLASSES: [Class; 5] = [
    Class { chances: 70_000, end: 12 },
    Class { chances: 26_000, end: 18 },
    Class { chances: 3_890, end: 23 },
    Class { chances: 100, end: 27 },
    Class { chances: 10, end: 30 },
];

/// One request out of [`EDGES`] is a power of two, give or take a byte, since rounding changes
/// there.
const EDGES: u32 = 16;

/// Draws a size of at most `max` bytes.
pub(crate) fn pick(rng: &mut Rng, max: u64) -> u64 {
    let mut chance = rng.u32(0..CHANCES);
    let mut begin = 0;
    for Class { chances, end } in CLASSES {
        if chance < chances {
            let octave = rng.u32(begin..end);
            let bytes = if rng.u32(0..EDGES) == 0 {
                (1 << octave) + rng.u64(0..3) - 1
            } else {
                (1 << octave) + rng.u64(0..1 << octave)
            };
            return bytes.clamp(1, max);
        }
        (chance, begin) = (chance - chances, end);
    }
    1
}

#[cfg(test)]
mod tests {
    use super::{CHANCES, CLASSES, pick};

    #[test]
    fn every_octave_is_drawn_and_no_size_is_out_of_bounds() {
        assert_eq!(CLASSES.iter().map(|class| class.chances).sum::<u32>(), CHANCES);
        let mut rng = fastrand::Rng::with_seed(5);
        let mut seen = [false; 31];
        for _ in 0..400_000 {
            let bytes = pick(&mut rng, 1 << 30);
            assert!((1..=1 << 30).contains(&bytes));
            seen[bytes.ilog2() as usize] = true;
        }
        assert!(seen[..30].iter().all(|&seen| seen), "{seen:?}");
        assert!((0..10_000).all(|_| pick(&mut rng, 100) <= 100));
    }
}
