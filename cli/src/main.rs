//! The `cachalot` command.
#![forbid(unsafe_code)]

mod commands;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A GPU memory allocator's decisions, on recorded programs and without a GPU.
#[derive(Parser)]
#[command(name = "cachalot", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Repeat every decision of recorded programs, and measure
    Replay(Box<commands::replay::Args>),
    Compare(commands::compare::Args),
    Plan(commands::plan::Args),
    Inspect(commands::inspect::Args),
    /// Write the memory snapshot that a replayed program ends in, for torch's tools
    Snapshot(Box<commands::snapshot::Args>),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Replay(args) => commands::replay::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Snapshot(args) => commands::snapshot::run(&args),
    }
}
