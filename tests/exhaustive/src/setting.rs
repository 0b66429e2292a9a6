//! The settings searched: a policy, a device of a few units, four sizes, and an alphabet.

use crate::letter::Alphabet;
use cachalot_core::MIB;

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name.
    pub name: &'static str,
    /// The configuration.
    pub config: &'static str,
    /// The memory of the device, in bytes.
    pub capacity: u64,
    /// The sizes of requests, in bytes.
    pub sizes: [u64; 4],
    /// The calls.
    pub alphabet: Alphabet,
    /// Whether the naive model takes part.
    pub has_model: bool,
    /// The length of programs searched by `tests/run`.
    pub short: u32,
}

const CACHING: &str = "large_segment_size_mb:12";
const IMPROVED: &str = "decisions:improved,large_segment_size_mb:12";
const EXPANDABLE: &str = "expandable_segments:True,large_segment_size_mb:12";
const DIRECT: &str = "policy:direct";
const STITCHED: &str = "policy:stitched,slack:0";

/// Requests, frees, both announcements of uses, and completed work.
const STREAMS: Alphabet = Alphabet { records: true, uses: true, ..Alphabet::PLAIN };
/// Two sizes, of which the smaller shares a segment.
const RECORDS: Alphabet = Alphabet { sizes: &[1, 3], records: true, ..Alphabet::PLAIN };
/// The calls known to the model.
const MODELLED: Alphabet = Alphabet { sizes: &[0, 2, 3], records: true, captures: true, ..Alphabet::PLAIN };
const CAPTURES: Alphabet = Alphabet { sizes: &[1, 3], records: true, uses: true, captures: true, ..Alphabet::PLAIN };
const FAULTS: Alphabet = Alphabet { sizes: &[1, 2], records: true, upkeep: true, failures: 3, ..Alphabet::PLAIN };
const RANGES: Alphabet = Alphabet { sizes: &[1, 3], ranges: true, upkeep: true, ..Alphabet::PLAIN };
const PARKING: Alphabet = Alphabet { sizes: &[1, 3], records: true, parking: true, ..Alphabet::PLAIN };
const PARKING_FAULTS: Alphabet = Alphabet { sizes: &[3], parking: true, failures: 3, ..Alphabet::PLAIN };
/// The cache turned off and on.
const SWITCHES: Alphabet = Alphabet { sizes: &[1, 3], records: true, switches: true, ..Alphabet::PLAIN };
const SWITCHED_MODEL: Alphabet = Alphabet { captures: true, ..SWITCHES };
const SWITCHED_RANGES: Alphabet = Alphabet { sizes: &[3], blocks: 2, ranges: true, switches: true, ..Alphabet::PLAIN };
const SWITCHED_PARKING: Alphabet =
    Alphabet { sizes: &[3], blocks: 2, records: true, parking: true, switches: true, ..Alphabet::PLAIN };
const SWITCHED_FAULTS: Alphabet = Alphabet { sizes: &[3], blocks: 2, switches: true, failures: 2, ..Alphabet::PLAIN };
/// Every call.
const EVERYTHING: Alphabet = Alphabet {
    sizes: &[0, 1, 2, 3],
    blocks: 3,
    records: true,
    uses: true,
    captures: true,
    ranges: true,
    parking: true,
    upkeep: true,
    switches: true,
    failures: 3,
};

/// One size and two blocks, for long programs.
const LONG: Alphabet = Alphabet { sizes: &[3], blocks: 2, records: true, ..Alphabet::PLAIN };
const LONG_USES: Alphabet = Alphabet { records: false, uses: true, ..LONG };
const LONG_FAULTS: Alphabet = Alphabet { sizes: &[3], blocks: 2, upkeep: true, failures: 2, ..Alphabet::PLAIN };
const LONG_CAPTURES: Alphabet = Alphabet { captures: true, ..LONG };
const LONG_PARKING: Alphabet = Alphabet { sizes: &[3], blocks: 2, parking: true, ..Alphabet::PLAIN };
const LONG_RANGES: Alphabet = Alphabet { sizes: &[3], blocks: 1, ranges: true, ..Alphabet::PLAIN };

/// Half a small segment and more; two that share a large segment; a whole segment.
const SEGMENTS: [u64; 4] = [MIB * 3 / 4, 5 * MIB, 7 * MIB, 12 * MIB];
/// Less than a page, a page, and more pages.
const PAGES: [u64; 4] = [MIB * 3 / 4, 2 * MIB, 3 * MIB, 6 * MIB];

/// The memory of a device with two large segments and two small ones.
const FEW_SEGMENTS: u64 = 28 * MIB;
/// The memory of a device with six pages.
const FEW_PAGES: u64 = 12 * MIB;

const fn caching(name: &'static str, config: &'static str, alphabet: Alphabet, short: u32) -> Setting {
    Setting { name, config, capacity: FEW_SEGMENTS, sizes: SEGMENTS, alphabet, has_model: false, short }
}

const fn modelled(name: &'static str, config: &'static str, alphabet: Alphabet, short: u32) -> Setting {
    Setting { has_model: true, ..caching(name, config, alphabet, short) }
}

const fn stitched(name: &'static str, alphabet: Alphabet, short: u32) -> Setting {
    Setting { capacity: FEW_PAGES, sizes: PAGES, ..caching(name, STITCHED, alphabet, short) }
}

/// Every setting.
pub static SETTINGS: [Setting; 55] = [
    modelled("caching-model", CACHING, MODELLED, 4),
    modelled("improved-model", IMPROVED, MODELLED, 4),
    modelled("expandable-model", EXPANDABLE, MODELLED, 4),
    caching("caching-records", CACHING, RECORDS, 5),
    caching("caching-streams", CACHING, STREAMS, 3),
    caching("improved-streams", IMPROVED, STREAMS, 3),
    caching("expandable-streams", EXPANDABLE, STREAMS, 3),
    stitched("stitched-streams", STREAMS, 3),
    caching("caching-captures", CACHING, CAPTURES, 4),
    caching("improved-captures", IMPROVED, CAPTURES, 4),
    caching("expandable-captures", EXPANDABLE, CAPTURES, 4),
    stitched("stitched-captures", CAPTURES, 4),
    caching("caching-faults", CACHING, FAULTS, 4),
    caching("improved-faults", IMPROVED, FAULTS, 4),
    caching("expandable-faults", EXPANDABLE, FAULTS, 4),
    stitched("stitched-faults", FAULTS, 4),
    caching("caching-ranges", CACHING, RANGES, 3),
    caching("expandable-ranges", EXPANDABLE, RANGES, 3),
    stitched("stitched-ranges", RANGES, 3),
    caching("expandable-parking", EXPANDABLE, PARKING, 4),
    stitched("stitched-parking", PARKING, 4),
    caching("expandable-parking-faults", EXPANDABLE, PARKING_FAULTS, 4),
    stitched("stitched-parking-faults", PARKING_FAULTS, 4),
    modelled("caching-switched", CACHING, SWITCHED_MODEL, 4),
    modelled("improved-switched", IMPROVED, SWITCHED_MODEL, 4),
    modelled("expandable-switched", EXPANDABLE, SWITCHED_MODEL, 4),
    stitched("stitched-switched", SWITCHES, 4),
    stitched("stitched-switched-ranges", SWITCHED_RANGES, 4),
    stitched("stitched-switched-parking", SWITCHED_PARKING, 4),
    stitched("stitched-switched-faults", SWITCHED_FAULTS, 4),
    caching("expandable-switched-parking", EXPANDABLE, SWITCHED_PARKING, 4),
    caching("direct-captures", DIRECT, CAPTURES, 4),
    caching("direct-faults", DIRECT, FAULTS, 4),
    caching("expandable-everything", EXPANDABLE, EVERYTHING, 3),
    stitched("stitched-everything", EVERYTHING, 3),
    caching("caching-long", CACHING, LONG, 5),
    caching("caching-long-uses", CACHING, LONG_USES, 5),
    caching("caching-long-faults", CACHING, LONG_FAULTS, 5),
    caching("caching-long-captures", CACHING, LONG_CAPTURES, 5),
    caching("improved-long", IMPROVED, LONG, 5),
    caching("improved-long-uses", IMPROVED, LONG_USES, 5),
    caching("improved-long-faults", IMPROVED, LONG_FAULTS, 5),
    caching("improved-long-captures", IMPROVED, LONG_CAPTURES, 5),
    caching("expandable-long", EXPANDABLE, LONG, 5),
    caching("expandable-long-uses", EXPANDABLE, LONG_USES, 5),
    caching("expandable-long-faults", EXPANDABLE, LONG_FAULTS, 5),
    caching("expandable-long-captures", EXPANDABLE, LONG_CAPTURES, 5),
    caching("expandable-long-ranges", EXPANDABLE, LONG_RANGES, 5),
    caching("expandable-long-parking", EXPANDABLE, LONG_PARKING, 5),
    stitched("stitched-long", LONG, 5),
    stitched("stitched-long-uses", LONG_USES, 5),
    stitched("stitched-long-faults", LONG_FAULTS, 5),
    stitched("stitched-long-captures", LONG_CAPTURES, 5),
    stitched("stitched-long-ranges", LONG_RANGES, 5),
    stitched("stitched-long-parking", LONG_PARKING, 5),
];

/// Returns the setting with a name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}
