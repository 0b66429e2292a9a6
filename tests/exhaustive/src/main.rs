//! Searches settings for programs against the theorems, or for planted defects, and prints the
//! tables.
//!
//! ```text
//! cachalot-exhaustive --length 8 --seconds 600      every setting
//! cachalot-exhaustive --setting stitched-streams    one setting
//! cachalot-exhaustive --defects                     every planted defect
//! ```

use cachalot_exhaustive::defects::PLANTED;
use cachalot_exhaustive::letter::text;
use cachalot_exhaustive::report;
use cachalot_exhaustive::search::{Bounds, Outcome, search};
use cachalot_exhaustive::setting::{SETTINGS, Setting, named};
use cachalot_tests::figures::line;
use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;

/// Runs every short program on the core, and checks the theorems after each call.
#[derive(Parser)]
struct Options {
    /// The settings searched; all if left out.
    #[arg(long, value_parser = setting)]
    setting: Vec<&'static Setting>,
    /// The longest program, in calls.
    #[arg(long, default_value_t = 5)]
    length: u32,
    /// The longest time for a setting. The table tells the longest programs of which all were run.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Of how many meetings of two programs in one state one is checked: whether both go on
    /// equally. 0 checks none.
    #[arg(long, default_value_t = 0)]
    meetings: u64,
    /// Searches the planted defects instead.
    #[arg(long)]
    defects: bool,
}

fn setting(name: &str) -> Result<&'static Setting, String> {
    named(name).ok_or_else(|| {
        let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        format!("there is no setting of this name: the settings are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let options = Options::parse();
    std::panic::set_hook(Box::new(|_| {}));
    let bounds =
        Bounds { length: options.length, time: Duration::from_secs(options.seconds), meetings: options.meetings };
    let is_right = if options.defects { defects(&bounds) } else { settings(&options.setting, &bounds) };
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Searches settings. Returns whether nothing was found.
fn settings(settings: &[&'static Setting], bounds: &Bounds) -> bool {
    let all: Vec<&'static Setting> = SETTINGS.iter().collect();
    let mut is_right = true;
    println!("{}", line(&report::SEARCHES));
    for setting in if settings.is_empty() { &all } else { settings } {
        let outcome = search(setting, None, bounds);
        println!("{}", report::search_row(setting, &outcome));
        eprintln!("{}: states by length {:?}", setting.name, outcome.states);
        is_right &= outcome.found.is_none();
        tell_differing(&outcome);
    }
    is_right
}

/// Prints two programs with one key that go on differently, if there are any.
fn tell_differing(outcome: &Outcome) {
    if let Some((one, other, letter)) = &outcome.differing {
        eprintln!("one key, and different states with `{letter}`:\n  {}\n  {}", text(one), text(other));
    }
}

/// Searches every planted defect. Returns whether all were found.
fn defects(bounds: &Bounds) -> bool {
    let mut are_found = true;
    println!("{}", line(&report::DEFECTS));
    for planted in &PLANTED {
        let Some(setting) = named(planted.setting) else { return false };
        let outcome = search(setting, Some(planted.defect), bounds);
        println!("{}", report::defect_row(planted, &outcome));
        are_found &= outcome.found.is_some();
    }
    are_found
}
