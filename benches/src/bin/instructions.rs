//! Instructions a pair of `malloc` and `free` takes: a table for every size, or one measured loop for `valgrind`.

use cachalot_benches::crowd::{Crowd, Layout};
use cachalot_benches::instructions::available;
use cachalot_benches::report::instructions;
use cachalot_benches::workload::{SUBJECTS, lane};
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;

/// Instructions a pair of malloc and free takes.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Job>,
}

#[derive(Subcommand)]
enum Job {
    /// Only do some pairs: what is run under valgrind
    Run(Run),
}

#[derive(Args)]
struct Run {
    /// Number of the subject
    subject: usize,
    /// Bytes of a request
    bytes: u64,
    /// Free blocks of the same size around; 0 for a fresh allocator
    around: u64,
    /// How many pairs
    pairs: u64,
}

fn run(job: &Run) -> ExitCode {
    let crowd = match job.around {
        0 => Some(Crowd::alone(job.bytes)),
        around => Crowd::new(Layout::Equal, job.bytes, around),
    };
    let subject = SUBJECTS.get(job.subject);
    let Some(mut lane) = subject.and_then(|name| lane(name, &crowd?)) else {
        eprintln!("there is no such subject, or it cannot hold that");
        return ExitCode::FAILURE;
    };
    (lane.run)(job.pairs);
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    if let Some(Job::Run(job)) = Cli::parse().command {
        return run(&job);
    }
    let Some(program) = std::env::current_exe().ok().filter(|_| available()) else {
        eprintln!("valgrind is not installed");
        return ExitCode::FAILURE;
    };
    print!("{}", instructions(&program));
    ExitCode::SUCCESS
}
