//! `emulated-driver install <folder>`: installs a `libcuda.so.1`, complete or as an older driver,
//! and a `libcudart.so.13` and a `libnvidia-ml.so.1` if asked.

use cachalot_emulated_driver::install;
use clap::{Parser, Subcommand};
use std::io::Result;
use std::path::PathBuf;

/// A libcuda.so.1 for machines without a GPU.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Copies the library to a folder as libcuda.so.1 and libcuda.so, and prints the path of
    /// libcuda.so.1.
    Install {
        folder: PathBuf,
        /// Symbols missing from the copy.
        #[arg(long, value_delimiter = ',')]
        hide: Vec<String>,
        /// Driver version of the copy (1000 * major + 10 * minor): later symbols are missing.
        #[arg(long)]
        version: Option<i32>,
        /// Copies the emulated runtime, too, as libcudart.so.13 and libcudart.so.
        #[arg(long)]
        runtime: bool,
        /// Copies the emulated NVML, too, as libnvidia-ml.so.1 and libnvidia-ml.so.
        #[arg(long)]
        nvml: bool,
    },
    /// Prints the driver symbols of the library.
    Symbols,
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Install { folder, hide, version, runtime, nvml } => {
            let mut hidden: Vec<&str> = hide.iter().map(String::as_str).collect();
            hidden.extend(version.map(install::newer_than).unwrap_or_default());
            println!("{}", install::install(&folder, &hidden)?.display());
            if runtime {
                println!("{}", install::install_runtime(&folder)?.display());
            }
            if nvml {
                println!("{}", install::install_nvml(&folder)?.display());
            }
        }
        Command::Symbols => println!("{}", install::symbols().join("\n")),
    }
    Ok(())
}
