//! Short programs of every setting, the planted defects, and the programs of corrected defects.

use cachalot_exhaustive::defects::PLANTED;
use cachalot_exhaustive::letter::text;
use cachalot_exhaustive::search::{Bounds, meet_at_random, search};
use cachalot_exhaustive::setting::{SETTINGS, named};
use std::time::Duration;

/// Time for any search of a test. A search of a test ends by the length of its programs.
const TIME: Duration = Duration::from_secs(600);

/// Searches the short programs of a setting, and checks the key at some meetings.
fn search_short(name: &str) {
    let setting = named(name).unwrap_or_else(|| panic!("there is no setting {name}"));
    let bounds = Bounds { length: setting.short, time: TIME, meetings: 16 };
    let outcome = search(setting, None, &bounds);
    if let Some(found) = outcome.found {
        panic!("{}: {}: {}", setting.name, text(&found.program), found.violation);
    }
    // The outside cannot see all that the allocator knows of the work done: see the README.
    assert!(outcome.unequal * 20 <= outcome.meetings, "{}: {:?}", setting.name, outcome.differing);
    assert_eq!(outcome.length, setting.short, "{}: all programs were run", setting.name);
}

macro_rules! short_programs {
    ($($name:ident)*) => {
        /// A test for each setting, so that the searches run side by side.
        mod every_short_program_keeps_the_theorems {
            $(
                #[test]
                fn $name() {
                    super::search_short(&stringify!($name).replace('_', "-"));
                }
            )*
        }

        /// The settings with such a test.
        const SEARCHED: &[&str] = &[$(stringify!($name)),*];
    };
}

short_programs! {
    caching_model
    improved_model
    expandable_model
    caching_records
    caching_streams
    improved_streams
    expandable_streams
    stitched_streams
    caching_captures
    improved_captures
    expandable_captures
    stitched_captures
    caching_faults
    improved_faults
    expandable_faults
    stitched_faults
    caching_ranges
    expandable_ranges
    stitched_ranges
    expandable_parking
    stitched_parking
    expandable_parking_faults
    stitched_parking_faults
    caching_switched
    improved_switched
    expandable_switched
    stitched_switched
    stitched_switched_ranges
    stitched_switched_parking
    stitched_switched_faults
    expandable_switched_parking
    direct_captures
    direct_faults
    expandable_everything
    stitched_everything
    caching_long
    caching_long_uses
    caching_long_faults
    caching_long_captures
    improved_long
    improved_long_uses
    improved_long_faults
    improved_long_captures
    expandable_long
    expandable_long_uses
    expandable_long_faults
    expandable_long_captures
    expandable_long_ranges
    expandable_long_parking
    stitched_long
    stitched_long_uses
    stitched_long_faults
    stitched_long_captures
    stitched_long_ranges
    stitched_long_parking
}

#[test]
fn every_setting_is_searched() {
    let names: Vec<String> = SETTINGS.iter().map(|setting| setting.name.replace('-', "_")).collect();
    assert_eq!(SEARCHED, names);
}

/// A program that is cut off at a key met before must have nothing new to show.
#[test]
fn random_programs_with_one_key_go_on_equally() {
    for name in ["caching-long", "improved-long", "improved-long-uses", "expandable-long", "stitched-long"] {
        let setting = named(name).unwrap_or_else(|| panic!("there is no setting {name}"));
        let meetings = meet_at_random(setting, 100, 16);
        assert!(meetings.checked > 20, "{name}: {} meetings", meetings.checked);
        let differing = meetings.differing.map(|(one, other, letter)| (text(&one), text(&other), letter));
        assert_eq!(differing, None, "{name}");
    }
}

#[test]
fn every_planted_defect_is_found() {
    for planted in &PLANTED {
        let setting = named(planted.setting).unwrap_or_else(|| panic!("there is no setting {}", planted.setting));
        let bounds = Bounds { length: 8, time: TIME, meetings: 0 };
        let found = search(setting, Some(planted.defect), &bounds).found;
        let found = found.unwrap_or_else(|| panic!("not found: {}", planted.sentence));
        println!("{} {}: {}", planted.after, text(&found.program), found.violation);
        assert_eq!(found.violation.theorem, planted.breaks, "{}: {}", planted.sentence, found.violation);
    }
}

#[test]
fn settings_have_names_of_their_own() {
    for setting in &SETTINGS {
        assert!(std::ptr::eq(named(setting.name).unwrap(), setting), "{} twice", setting.name);
    }
}
