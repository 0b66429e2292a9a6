//! The `cachalot` command.
#![forbid(unsafe_code)]
// These panic where the reader of the output has gone: `complain!` and `commands::print` do not.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod commands;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  cachalot replay --check tests/traces/gpt2_varlen.csv.gz
  cachalot compare --config expandable_segments:True snapshot.pickle
  cachalot compare --limit 14GiB snapshot.pickle
  cachalot tune snapshot.pickle
  cachalot plan buffers.csv --capacity 1MiB
  cachalot inspect snapshot.pickle
  cachalot diff before.pickle after.pickle
  cachalot view snapshot.pickle -o memory.html
  cachalot run --limit 12GiB -- ./program
  cachalot emulate -- ./program
  cachalot park server
  cachalot top --once

`cachalot COMMAND --help` explains a command, and has more examples.";

/// Run programs on cachalot's GPU memory allocator, and examine recorded programs without a GPU.
#[derive(Parser)]
#[command(name = "cachalot", version = env!("CACHALOT_VERSION"), after_help = EXAMPLES)]
struct Cli {
    /// Whether the output is coloured; `auto` colours a terminal unless `NO_COLOR` is set
    #[arg(long, global = true, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<commands::run::RunArgs>),
    Emulate(commands::emulate::EmulateArgs),
    Park(commands::sleep::ParkArgs),
    Wake(commands::sleep::WakeArgs),
    Trim(commands::sleep::TrimArgs),
    Status(commands::sleep::StatusArgs),
    Top(commands::top::TopArgs),
    Group(commands::group::GroupArgs),
    Ledger(commands::ledger::LedgerArgs),
    Replay(Box<commands::replay::ReplayArgs>),
    Compare(commands::compare::CompareArgs),
    Tune(Box<commands::tune::TuneArgs>),
    Predict(commands::predict::PredictArgs),
    Plan(commands::plan::PlanArgs),
    Inspect(commands::inspect::InspectArgs),
    Diff(commands::diff::DiffArgs),
    Export(commands::export::ExportArgs),
    Snapshot(Box<commands::snapshot::SnapshotArgs>),
    View(commands::view::ViewArgs),
    Completions(commands::manual::CompletionsArgs),
    Man(commands::manual::ManArgs),
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(status) = commands::predict::script::run(&arguments) {
        return status;
    }
    let cli = Cli::try_parse().unwrap_or_else(|mut error| {
        if error.kind() == ErrorKind::UnknownArgument {
            // The tip to write an unknown option after `--` would make it the name of a file.
            error.insert(ContextKind::Suggested, ContextValue::None);
        }
        error.exit()
    });
    // Every stream of `anstream` follows this choice from here on.
    match cli.color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Emulate(args) => commands::emulate::run(&args),
        Command::Park(args) => commands::sleep::park(&args),
        Command::Wake(args) => commands::sleep::wake(&args),
        Command::Trim(args) => commands::sleep::trim(&args),
        Command::Status(args) => commands::sleep::status(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Group(args) => commands::group::run(&args),
        Command::Ledger(args) => commands::ledger::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        Command::Predict(args) => commands::predict::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Diff(args) => commands::diff::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Snapshot(args) => commands::snapshot::run(&args),
        Command::View(args) => commands::view::run(&args),
        Command::Completions(args) => commands::manual::completions(&args, Cli::command()),
        Command::Man(args) => commands::manual::man(&args, Cli::command()),
    }
}
