//! Tests of `cachalot run` over the emulated driver.

mod archive;
mod everyone;
mod groups;
mod limits;
mod loading;
mod names;
mod nvml;
mod one_memory;
mod pressure;
mod refusals;
mod served;
mod sleeping;
mod spilling;
mod surroundings;
mod survival;

use crate::common::{Finished, finish};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a C program of the tests, and returns the path of the program.
fn compile(source: &str, folder: &Path, flags: &[&str]) -> PathBuf {
    let program = folder.join(source.trim_end_matches(".c"));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(source);
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(file).args(flags).arg("-ldl");
    assert!(command.status().expect("a C compiler").success(), "{command:?}");
    program
}

/// Installs the emulated driver in a folder, and returns the path of `libcuda.so.1`.
fn driver(folder: &Path, hidden: &[&str]) -> PathBuf {
    cachalot_emulated_driver::install::install(&folder.join("driver"), hidden).expect("the emulated driver is built")
}

/// Returns `cachalot run`, with private folders in `folder` and the given driver.
fn run(folder: &Path, driver: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    clean(&mut command).env("XDG_CACHE_HOME", folder).arg("run").arg("--driver").arg(driver);
    command
}

/// Takes the variables of drivers out of a command's environment.
fn clean(command: &mut Command) -> &mut Command {
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "CACHALOT_LIBCUDA", "CACHALOT_RUN"] {
        command.env_remove(name);
    }
    // Requests that are refused on purpose leave no files.
    command.env("CACHALOT_RECORDER", "files:0")
}

/// Runs a command, checks the success, and returns the output without the last line break.
fn output_of(command: &mut Command) -> String {
    let Finished { status, output, errors } = finish(command);
    assert_eq!(status, 0, "{command:?}\n{output}{errors}");
    output.trim_end().to_owned()
}
