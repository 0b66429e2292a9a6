//! Short programs of every setting, the planted defects, and the programs of corrected defects.

use cachalot_exhaustive::defects::PLANTED;
use cachalot_exhaustive::letter::text;
use cachalot_exhaustive::search::{Bounds, meet_at_random, search};
use cachalot_exhaustive::setting::{SETTINGS, Setting, named};
use std::time::Duration;

/// Time for any search of a test. A search of a test ends by the length of its programs.
const TIME: Duration = Duration::from_secs(600);

/// Searches the short programs of a setting, and checks the key at some meetings.
fn search_short(setting: &'static Setting) {
    let bounds = Bounds { length: setting.short, time: TIME, meetings: 16 };
    let outcome = search(setting, None, &bounds);
    if let Some(found) = outcome.found {
        panic!("{}: {}: {}", setting.name, text(&found.program), found.violation);
    }
    // The outside cannot see all that the allocator knows of the work done: see the README.
    assert!(outcome.unequal * 20 <= outcome.meetings, "{}: {:?}", setting.name, outcome.differing);
    assert_eq!(outcome.length, setting.short, "{}: all programs were run", setting.name);
}

#[test]
fn every_short_program_keeps_the_theorems() {
    SETTINGS.iter().for_each(search_short);
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
