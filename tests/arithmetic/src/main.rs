//! Prints the constants and values of the core's arithmetic for `proofs.py`, and checks every size
//! below 2^32.

mod code;
mod sweep;
mod units;

use clap::{Parser, Subcommand};
use std::io::{BufRead, Write};
use std::process::ExitCode;

/// The arithmetic of the core.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Prints the constants, one a line: a name and a number.
    Constants,
    /// Reads lines of a function and numbers, and prints the value of each.
    Values,
    /// Checks each function for every size below 2^32.
    Sweep {
        /// Log2 of the first size that is left out.
        #[arg(long, default_value_t = 32)]
        log2: u32,
    },
}

fn main() -> ExitCode {
    match Options::parse().act {
        Act::Constants => {
            code::CONSTANTS.iter().for_each(|(name, value)| println!("{name} {value}"));
            ExitCode::SUCCESS
        }
        Act::Values => values(),
        Act::Sweep { log2 } if sweep::run(1 << log2) == 0 => ExitCode::SUCCESS,
        Act::Sweep { .. } => ExitCode::FAILURE,
    }
}

/// Prints the values of the functions and numbers on the standard input.
fn values() -> ExitCode {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap_or_default();
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
        let value = numbers.ok().and_then(|numbers| code::value(name, &numbers));
        let Some(value) = value else {
            eprintln!("`{line}` names no function with its numbers");
            return ExitCode::FAILURE;
        };
        if writeln!(out, "{value}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
