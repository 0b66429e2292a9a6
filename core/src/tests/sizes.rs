//! The sizes published by PyTorch: the rounding of requests, and the lengths of segments.

use crate::arena::policy::segment_size;
use crate::config::Config;
use crate::config::rounding::*;
use crate::heap::split_rules::{Rules, Source};
use crate::units::{MAX_REQUEST, MIB, UNIT};
use proptest::prelude::*;

fn should_split(remaining: u64, size: u64, kind: PoolKind, config: &Config, expandable: bool) -> bool {
    let source = if expandable { Source::Pages } else { Source::Device };
    Rules::new(config, kind, false, source).should_split(remaining, size)
}

fn with_divisions(divisions: u32) -> Config {
    let mut config = Config::default();
    config.set_roundup_power2_divisions(Divisions::new([divisions; INTERVALS]).unwrap());
    config
}

fn config(text: &str) -> Config {
    Config::parse(text).unwrap()
}

/// The block and the segment of the first request of an empty cache.
fn first(bytes: u64, config: &Config) -> (u64, u64) {
    let size = round_size(bytes, config.roundup_power2_divisions()).unwrap();
    let segment = segment_size(size, config);
    let split = should_split(segment - size, size, PoolKind::of(size), config, false);
    (if split { size } else { segment }, segment)
}

/// The published table: the block and the segment for the first request of an empty cache.
fn published(r: u64) -> (u64, u64) {
    let plain = r.div_ceil(512) * 512;
    match r {
        ..=MIB => (plain, 2 * MIB),
        _ if r <= 10 * MIB - 512 => (plain, 20 * MIB),
        _ if r <= 10 * MIB => (10 * MIB, 10 * MIB),
        _ if r <= 11 * MIB - 512 => (plain, 12 * MIB),
        _ => {
            let j = r.div_ceil(2 * MIB) * 2;
            // The table gives whole blocks from (j − 1) M − 511 on; below that more than 1 M
            // remains.
            let block = if r >= (j - 1) * MIB - 511 { j * MIB } else { plain };
            (block, j * MIB)
        }
    }
}

#[test]
fn requests_are_rounded_to_512() {
    let config = Config::default();
    for (bytes, size) in [
        (0, 512),
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (1200, 1536),
        (MIB, MIB),
        (MIB + 1, 1_049_088),
        (84 * MIB, 88_080_384),
        (MAX_REQUEST - 513, MAX_REQUEST - 512),
        (MAX_REQUEST - 1, MAX_REQUEST),
    ] {
        assert_eq!(round_size(bytes, config.roundup_power2_divisions()), Some(size), "{bytes}");
        // One division is none.
        assert_eq!(round_size(bytes, with_divisions(1).roundup_power2_divisions()), Some(size), "{bytes}");
    }
}

#[test]
fn requests_of_2_to_the_60_and_more_are_refused() {
    for config in [Config::default(), with_divisions(4)] {
        for bytes in [MAX_REQUEST, MAX_REQUEST + 1, u64::MAX] {
            assert_eq!(round_size(bytes, config.roundup_power2_divisions()), None);
        }
    }
}

#[test]
fn requests_are_rounded_by_divisions() {
    for (divisions, bytes, size) in [
        (4, 0, 512),
        (4, 1200, 1536),
        (4, 2048, 2048),
        (4, 2049, 2560),
        (4, 84 * MIB, 96 * MIB),
        (4, 100 * MIB, 112 * MIB),
        (4, 112 * MIB, 112 * MIB),
        (4, 128 * MIB, 128 * MIB),
        (4, 1025 * MIB, 1280 * MIB),
        (2, 1025, 1536),
        (2, 2049, 3072),
        (8, 84 * MIB, 88 * MIB),
        (16, 512 * 16, 512 * 16),
        (16, 512 * 16 + 1, 512 * 17),
        (1 << 31, 3 * MIB + 1, 3 * MIB + 512),
        (4, MAX_REQUEST - 1, MAX_REQUEST),
    ] {
        let config = with_divisions(divisions);
        assert_eq!(round_size(bytes, config.roundup_power2_divisions()), Some(size), "{bytes} by {divisions}");
    }
}

#[test]
fn each_interval_has_its_own_divisions() {
    let config = config("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:16]");
    for (bytes, size) in [
        (84 * MIB, 88 * MIB),
        (127 * MIB + 1, 128 * MIB),
        (128 * MIB + 1, 192 * MIB),
        (400 * MIB, 512 * MIB),
        (1025 * MIB, 1025 * MIB),
        (2047 * MIB + 1, 2047 * MIB + 512),
        (2049 * MIB, 2176 * MIB),
        (65 << 30, 68 << 30),
        (1 << 50 | 1, (1 << 50) + (1 << 46)),
        // Below 1 MiB the first interval's 8 hold, above 512 × 8.
        (4096, 4096),
        (4097, 4608),
        (9000, 9216),
    ] {
        assert_eq!(round_size(bytes, config.roundup_power2_divisions()), Some(size), "{bytes}");
    }
}

#[test]
fn divisions_are_powers_of_two_or_none() {
    assert_eq!(Divisions::new([0; INTERVALS]), Some(Divisions::NONE));
    assert_eq!(Divisions::default(), Divisions::NONE);
    for bad in [3, 6, u32::MAX] {
        let mut of_interval = [1; INTERVALS];
        of_interval[INTERVALS - 1] = bad;
        assert_eq!(Divisions::new(of_interval), None);
    }
}

#[test]
fn the_pool_follows_the_rounded_size() {
    assert_eq!(PoolKind::of(512), PoolKind::Small);
    assert_eq!(PoolKind::of(MIB), PoolKind::Small);
    assert_eq!(PoolKind::of(MIB + 512), PoolKind::Large);
}

#[test]
fn segments() {
    let default = Config::default();
    let twelve = config("large_segment_size_mb:12");
    for (size, segment, segment_of_twelve) in [
        (512, 2 * MIB, 2 * MIB),
        (MIB, 2 * MIB, 2 * MIB),
        (MIB + 512, 20 * MIB, 12 * MIB),
        (10 * MIB - 512, 20 * MIB, 12 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB, 12 * MIB),
        (12 * MIB, 12 * MIB, 12 * MIB),
        (12 * MIB + 512, 14 * MIB, 14 * MIB),
        (MAX_REQUEST, MAX_REQUEST, MAX_REQUEST),
    ] {
        assert_eq!(segment_size(size, &default), segment, "{size}");
        assert_eq!(segment_size(size, &twelve), segment_of_twelve, "{size}");
    }
}

#[test]
fn the_published_table_holds_at_every_boundary_and_between() {
    let config = Config::default();
    let check = |r| assert_eq!(first(r, &config), published(r), "{r}");
    for mib in 0..=200 {
        for r in (mib * MIB).saturating_sub(1025)..=mib * MIB + 1025 {
            if r > 0 {
                check(r);
            }
        }
    }
    // A step that meets every remainder of 512.
    (1..300 * MIB).step_by(4099).for_each(check);
}

#[test]
fn the_published_examples_split_as_told() {
    let config = Config::default();
    let split = |block, size| should_split(block - size, size, PoolKind::of(size), &config, false);
    assert!(split(20 * MIB, 3 * MIB));
    assert!(!split(18 * MIB, 17 * MIB), "1 MiB is not worth splitting off");
    assert!(!split(3 * MIB, 2 * MIB), "1 MiB is not worth splitting off");
    assert!(!split(12 * MIB, 11 * MIB), "1 MiB is not worth splitting off");
    assert!(split(12 * MIB, 11 * MIB - 512));
    assert!(split(2 * MIB, MIB), "in the small pool every remainder is");
    assert!(split(1024, 512), "in the small pool every remainder is");
    assert!(!split(MIB, MIB));
}

#[test]
fn oversize_blocks_are_given_whole() {
    let config = config("max_split_size_mb:64");
    let split = |size, expandable| should_split(32 * MIB, size, PoolKind::Large, &config, expandable);
    assert!(split(64 * MIB - 512, false));
    assert!(!split(64 * MIB, false));
    assert!(split(64 * MIB, true));
}

#[test]
fn with_expandable_segments_every_remainder_is_split_off() {
    let config = Config::default();
    let split = |remaining, expandable| should_split(remaining, 17 * MIB, PoolKind::Large, &config, expandable);
    assert!(!split(0, true));
    assert!(split(512, true));
    assert!(!split(512, false));
    assert!(!split(MIB, false));
    assert!(split(MIB + 512, false));
}

/// Rounding as in the reference, with divisions and remainders instead of shifts and masks.
fn told(bytes: u64, divisions: u32) -> u64 {
    let divisions = u64::from(divisions);
    if bytes < 512 {
        return 512;
    }
    let mut power = 1;
    while power * 2 <= bytes {
        power *= 2;
    }
    let step = if divisions > 1 && bytes > 512 * divisions { power / divisions } else { 512 };
    bytes.div_ceil(step) * step
}

proptest! {
    #[test]
    fn rounding_is_as_told_and_stable(
        log2 in 0u32..60,
        low in any::<u64>(),
        logs in prop::array::uniform16(prop::option::of(0u32..32)),
    ) {
        let bytes = (1 << log2) | (low & ((1 << log2) - 1));
        let of_interval = logs.map(|log2| log2.map_or(0, |log2| 1 << log2));
        let mut config = Config::default();
        config.set_roundup_power2_divisions(Divisions::new(of_interval).unwrap());

        let size = round_size(bytes, config.roundup_power2_divisions()).unwrap();
        let interval = (log2.clamp(20, 35) - 20) as usize;
        prop_assert_eq!(size, told(bytes, of_interval[interval]));
        prop_assert!(size >= bytes && size.is_multiple_of(UNIT) && size <= MAX_REQUEST);
        prop_assert!(segment_size(size, &config) >= size);
        prop_assert_eq!(segment_size(size, &config) % (2 * MIB), 0);
        prop_assert_eq!(round_size(bytes, &Divisions::NONE), Some(told(bytes, 0)));
    }

    #[test]
    fn a_rounded_size_rounds_to_itself(bytes in 0..MAX_REQUEST - MIB, log2 in 0u32..32) {
        let config = with_divisions(1 << log2);
        let size = round_size(bytes, config.roundup_power2_divisions()).unwrap();
        if size < MAX_REQUEST {
            prop_assert_eq!(round_size(size, config.roundup_power2_divisions()), Some(size));
        }
    }
}
