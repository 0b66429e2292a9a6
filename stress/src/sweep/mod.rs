//! Fault sweep: fails every driver call of a small run in turn. Each case runs in a separate
//! process, which must end in order and report no fault.

mod cases;
mod child;
mod table;

use crate::options::SweepOptions;
use cachalot_cuda::driver::LIBRARY_VARIABLE;
use cachalot_emulated_driver::install::built_library;
use cases::{Calls, Case, SCENARIOS, cases};
use child::{Child, Without};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use table::{Outcome, Table};

/// Number of cases between two lines about the progress.
const CASES_BETWEEN_LINES: usize = 500;

/// Runs the sweep, and prints the results as a table.
pub(crate) fn sweep(options: &SweepOptions) -> ExitCode {
    match begin(options) {
        Ok((child, calls)) => {
            let cases: Vec<Case> = cases(options, &calls).into_iter().step_by(options.every as usize).collect();
            let table = run(&child, &cases, options.jobs(), Table::new(&calls));
            println!("{table}");
            let missing = run_without(&child, &calls, options);
            if table.is_good() && missing { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(crate::setup::NOT_BEGUN)
        }
    }
}

/// Runs every scenario once without faults, to count the calls.
fn begin(options: &SweepOptions) -> Result<(Child, Calls), String> {
    let named = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from);
    let library = named.map_or_else(built_library, Ok).map_err(|error| error.to_string())?;
    let child = Child { library, seed: options.seed };
    let calls = (0..SCENARIOS.len()).map(|scenario| child.calls(scenario)).collect::<Result<_, _>>()?;
    Ok((child, calls))
}

/// Removes every called function from the driver in turn, and prints the results. Returns whether
/// no fault was found.
fn run_without(child: &Child, calls: &Calls, options: &SweepOptions) -> bool {
    let called: BTreeSet<&str> = calls.iter().flat_map(|functions| functions.keys()).map(String::as_str).collect();
    let wanted = |function: &&str| options.function.is_empty() || options.function.iter().any(|name| name == function);
    let (mut worked, mut refused, mut good) = (Vec::new(), Vec::new(), true);
    for function in called.into_iter().filter(wanted).step_by(options.every as usize) {
        match child.judge_without(function) {
            Ok(Without::Worked) => worked.push(function),
            Ok(Without::Refused) => refused.push(function),
            Err(why) => {
                eprintln!("without {function}: {why}");
                good = false;
            }
        }
    }
    println!("\nWorks without: {}.\nDoes not start without: {}.", worked.join(", "), refused.join(", "));
    good
}

/// Runs every case, several concurrently.
fn run(child: &Child, cases: &[Case], jobs: usize, table: Table) -> Table {
    let (next, table) = (AtomicUsize::new(0), Mutex::new(table));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = child.judge(case);
                    if let Outcome::Wrong(why) = &outcome {
                        eprintln!("{case}: {why}");
                    }
                    let mut table = table.lock();
                    let done = table.add(case, &outcome);
                    if done.is_multiple_of(CASES_BETWEEN_LINES) {
                        eprintln!("{done} of {} cases", cases.len());
                    }
                }
            });
        }
    });
    table.into_inner()
}
