//! Runs of the stress program for the tests, on the emulated driver built next to the program.

use cachalot_emulated_driver::install::built_library;
use serde_json::Value;
use std::process::{Command, Output};

/// Arguments of a run that takes seconds and makes every kind of step.
pub(crate) const SHORT: &str = "--json --ops 8000 --threads 3 --streams 4 --devices 2 --disturb 40 --round 1000 --batch 16 \
                                --blocks 100 --max-mib 8 --hold-us 500";

/// Returns a command for the program, on a driver with two devices.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot-stress"));
    // Only the test sets other variables of the driver.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CACHALOT_")) {
        command.env_remove(name);
    }
    command.env("CACHALOT_LIBCUDA", built_library().expect("the driver was built with the test"));
    command.env("CACHALOT_EMU_DEVICES", "2");
    command
}

/// Runs the program on a driver that delays all work. Returns `None`, and prints a line, without
/// kernels for the driver.
pub(crate) fn run(arguments: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if cachalot_kernels::emulated_image().is_none() {
        eprintln!("skipped: no C++ compiler, so no kernels for the emulated driver");
        return None;
    }
    let mut command = program();
    command.env("CACHALOT_EMU_DELAY_US", "300");
    command.args(arguments.split_whitespace()).envs(variables.iter().copied());
    Some(command.output().expect("the program starts"))
}

/// Runs the churn, which needs no kernels.
pub(crate) fn churn(arguments: &str) -> Output {
    program().arg("churn").args(arguments.split_whitespace()).output().expect("the program starts")
}

/// Returns the report of a run, after checking that the run succeeded.
pub(crate) fn good(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}
