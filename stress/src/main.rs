//! The stress program: see [`options::Arguments`].

mod block;
mod checker;
mod churn;
mod emulated;
mod mutant;
mod options;
mod report;
mod run;
mod shadow;
mod shared;
mod sizes;
mod stage;
mod subject;
mod sweep;
mod tap;
mod times;
mod verdict;
mod visit;
mod worker;

use clap::Parser;
use options::{Arguments, Command, RunOptions};
use std::process::ExitCode;

/// The run did not begin: there is no driver, no device or no kernel for it, or the configuration is wrong.
const NOT_BEGUN: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Sweep(options)) => sweep::sweep(&options),
        Some(Command::Churn(options)) => churn::churn(&options),
        None => stress(arguments.run),
    }
}

/// One run.
fn stress(mut options: RunOptions) -> ExitCode {
    options.settle();
    let line = options.replay();
    eprintln!("seed {}: {line}", options.seed());
    // A thread that panics would leave the others waiting for it.
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        said(panic);
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
            ExitCode::from(NOT_BEGUN)
        }
    }
}
