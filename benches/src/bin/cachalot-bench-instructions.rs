//! Counts the instructions of a pair of `malloc` and `free`: prints a table for every size, or runs
//! one measured loop for `valgrind`.

use cachalot_benches::crowd::{Crowd, Layout};
use cachalot_benches::lanes::{POLICIES, SUBJECTS, lane};
use cachalot_benches::program::Program;
use cachalot_benches::report::instructions;
use cachalot_instructions::available;
use clap::{Args, Parser, Subcommand};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Count the instructions of a pair of malloc and free
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Job>,
}

#[derive(Subcommand)]
enum Job {
    /// Only run a number of pairs, for use under valgrind
    Run(Run),
    /// Only run a recorded program, for use under valgrind
    Replay(Replay),
}

#[derive(Args)]
struct Replay {
    /// Number of the subject
    subject: usize,
    /// The recording: NAME.csv.gz
    recording: PathBuf,
    /// Number of runs after the warm-up
    times: u64,
}

fn replay(job: &Replay) -> Result<(), Box<dyn Error>> {
    let program = Program::read(&job.recording)?;
    let subject = SUBJECTS.iter().chain(&POLICIES).nth(job.subject).ok_or("there is no such subject")?;
    let mut lane = lane(subject, &program).ok_or("the subject cannot run that program")?;
    (lane.run)(job.times);
    println!("{} operations a run", lane.operations);
    Ok(())
}

#[derive(Args)]
struct Run {
    /// Number of the subject; numbers of the policies follow
    subject: usize,
    /// Bytes of a request
    bytes: u64,
    /// Number of equal free blocks around, or 0 for a fresh allocator
    around: u64,
    /// Number of pairs
    pairs: u64,
}

fn run(job: &Run) -> ExitCode {
    let crowd = match job.around {
        0 => Some(Crowd::alone(job.bytes)),
        around => Crowd::new(Layout::Equal, job.bytes, around),
    };
    let subject = SUBJECTS.iter().chain(&POLICIES).nth(job.subject);
    let Some(mut lane) = subject.and_then(|name| lane(name, &crowd?)) else {
        eprintln!("there is no such subject, or it cannot hold that");
        return ExitCode::FAILURE;
    };
    (lane.run)(job.pairs);
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Some(Job::Run(job)) => return run(&job),
        Some(Job::Replay(job)) => {
            let Err(error) = replay(&job) else { return ExitCode::SUCCESS };
            eprintln!("{}: {error}", job.recording.display());
            return ExitCode::FAILURE;
        }
        None => {}
    }
    let Some(program) = std::env::current_exe().ok().filter(|_| available()) else {
        eprintln!("valgrind is not installed");
        return ExitCode::FAILURE;
    };
    println!("{}", instructions(&program));
    ExitCode::SUCCESS
}
