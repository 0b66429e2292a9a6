//! The stress program: see [`options::Arguments`].

mod block;
mod captures;
mod checker;
mod churn;
mod elastic;
mod emulated;
mod instrumented;
mod mutant;
mod options;
mod report;
mod run;
mod setup;
mod shadow;
mod shared;
mod sizes;
mod stage;
mod subject;
mod sweep;
mod tenant;
mod times;
mod verdict;
mod visit;
mod worker;

use clap::Parser;
use options::{Arguments, Command, RunOptions};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Sweep(options)) => sweep::sweep(&options),
        Some(Command::Churn(options)) => churn::churn(&options),
        None => stress(arguments.run),
    }
}

/// Executes a stress run, and prints the report.
fn stress(mut options: RunOptions) -> ExitCode {
    options.fill_defaults();
    let line = options.replay();
    eprintln!("seed {}: {line}", options.seed());
    // A thread that panics would leave the other threads waiting at a barrier.
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        eprintln!("repeat with {line}");
        std::process::abort();
    }));
    match run::run(&options) {
        Ok(report) => {
            if options.json {
                println!("{}", serde_json::to_string(&report).expect("numbers and texts"));
            } else {
                println!("{report}");
            }
            if report.is_good() {
                return ExitCode::SUCCESS;
            }
            eprintln!("{} findings; repeat with {}", report.corruptions, report.replay);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(setup::NOT_BEGUN)
        }
    }
}
