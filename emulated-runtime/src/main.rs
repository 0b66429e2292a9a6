//! `emulated-runtime install <folder>`: installs a `libcudart.so.13`.

use cachalot_emulated_runtime::install;
use clap::{Parser, Subcommand};
use std::io::Result;
use std::path::PathBuf;

/// A libcudart.so.13 for machines without a GPU, over the emulated driver.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Copies the library to a folder as libcudart.so.13 and libcudart.so, and prints the path of
    /// libcudart.so.13.
    Install { folder: PathBuf },
    /// Prints the folder of `cachalot_host_kernels.h`.
    Include,
}

fn main() -> Result<()> {
    let path = match Arguments::parse().command {
        Command::Install { folder } => install::install(&folder)?,
        Command::Include => install::include_folder(),
    };
    println!("{}", path.display());
    Ok(())
}
