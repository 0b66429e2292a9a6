//! Instructions a pair of `malloc` and `free` takes: a table for every size, or one measured loop for `valgrind`.

use cachalot_benches::crowd::{Crowd, Layout, SIZES};
use cachalot_benches::instructions::{available, per_pair};
use cachalot_benches::workload::{SUBJECTS, lane};
use clap::{Args, Parser, Subcommand};
use comfy_table::{Table, presets};
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
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["bytes", "free blocks"].into_iter().chain(SUBJECTS));
    for bytes in SIZES {
        for around in [0, 1, 1000] {
            let mut row = vec![bytes.to_string(), around.to_string()];
            for subject in 0..SUBJECTS.len() {
                let arguments = ["run".into(), subject.to_string(), bytes.to_string(), around.to_string()];
                row.push(per_pair(&program, &arguments).map_or("–".into(), |count| format!("{count:.0}")));
            }
            table.add_row(row);
        }
    }
    println!("{table}");
    ExitCode::SUCCESS
}
