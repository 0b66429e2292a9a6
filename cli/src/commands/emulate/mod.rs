//! `cachalot emulate`: run a program on emulated GPUs.

mod cannot;
mod libraries;

use super::run::folder;
use super::run::program::Startable;
use super::{BAD_INPUT, bytes};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Run a program on emulated GPUs, on a machine without any

The program finds an emulated CUDA driver (libcuda.so.1), an emulated CUDA
runtime (libcudart.so.13) and an emulated NVML (libnvidia-ml.so.1) in the place
of NVIDIA's. Memory, streams, events and graphs work as on a GPU. Kernels do
not: the machine code of a GPU is not run. What of a program cannot run is said
in a line before it starts.

The command sets LD_LIBRARY_PATH, LD_PRELOAD and variables that begin with
CACHALOT_EMU_, and becomes the program: the exit status and the signals are the
program's. Variables with CACHALOT_EMU_ that are set before are kept where no
option says otherwise. The command exits with 2 if the program cannot be given
the libraries, with 126 if it cannot be executed, and with 127 if it does not
exist.";

const EXAMPLES: &str = "\
Examples:
  cachalot emulate -- ./program
  cachalot emulate --devices 8 --memory 80GiB --capability 9.0 -- ./program
  cachalot emulate --skip-kernels -- ./program
  cachalot emulate --nvml machine.json -- gpustat
  cachalot emulate -- cachalot run --record trace.csv -- ./program";

/// Run a program on emulated GPUs, on a machine without any
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct EmulateArgs {
    /// How many GPUs there are: 2 without the option
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    devices: Option<u64>,
    /// The memory of each GPU: 1 GiB without the option. The machine's memory is only used for what
    /// the program writes
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    memory: Option<u64>,
    /// The compute capability of the GPUs: 9.0 without the option
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = capability)]
    capability: Option<(u32, u32)>,
    /// A library with the program's kernels, compiled for the host: see the emulated runtime
    #[arg(long, value_name = "FILE")]
    kernels: Option<PathBuf>,
    /// A kernel without a function for the host does nothing, and its launch succeeds. Without the
    /// option, the launch fails
    #[arg(long)]
    skip_kernels: bool,
    /// A description of the machine for NVML, in JSON: names, processes, load, errors
    #[arg(long, value_name = "FILE")]
    nvml: Option<PathBuf>,
    /// The program and the arguments
    // No hyphens: a misspelled option is no program. After the program everything is an argument.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Reads a compute capability.
fn capability(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let is_real = |&(major, minor): &(u32, u32)| (3..100).contains(&major) && minor < 10;
    parts.filter(is_real).ok_or_else(|| "a compute capability is two numbers, such as 9.0".to_owned())
}

/// Runs the command. Returns only if the program could not be started.
pub(crate) fn run(args: &EmulateArgs) -> ExitCode {
    let mut program = match Startable::find(&args.program) {
        Ok(program) => program,
        Err(status) => return status,
    };
    if let Err(reason) = prepare(args, &mut program) {
        complain!("{reason}");
        return ExitCode::from(BAD_INPUT);
    }
    if let Some(remark) = cannot::remark(&program.path, args.kernels.is_some() || args.skip_kernels) {
        complain!("{}: {remark}", program.path.display());
    }
    program.start()
}

/// Gives a program the libraries and the settings.
///
/// # Errors
/// The obstacle, as a line for the user.
fn prepare(args: &EmulateArgs, program: &mut Startable) -> Result<(), String> {
    program.check()?;
    let command = &mut program.command;
    let folder = libraries::folder()?;
    command.env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", folder.as_os_str()));
    // A program that names a folder of its own for the runtime (DT_RPATH), as PyTorch does, finds
    // the runtime that is loaded already.
    command.env("LD_PRELOAD", before("LD_PRELOAD", folder.join(libraries::RUNTIME).as_os_str()));
    // Names a driver for cachalot itself, which would not look in the folder.
    command.env_remove("CACHALOT_LIBCUDA");
    let numbers = [("CACHALOT_EMU_DEVICES", args.devices), ("CACHALOT_EMU_MEMORY", args.memory)];
    for (name, value) in numbers {
        if let Some(value) = value {
            command.env(name, value.to_string());
        }
    }
    if let Some(capability) = args.capability {
        command.env(ATTRIBUTES, with_capability(std::env::var(ATTRIBUTES).ok(), capability)?);
    }
    if args.skip_kernels {
        command.env("CACHALOT_EMU_KERNELS", "skip");
    }
    for (name, option, file) in
        [("CACHALOT_HOST_KERNELS", "--kernels", &args.kernels), ("CACHALOT_EMU_NVML", "--nvml", &args.nvml)]
    {
        if let Some(file) = file {
            let found =
                std::fs::canonicalize(file).map_err(|error| format!("{option}: {}: {error}", file.display()))?;
            command.env(name, found);
        }
    }
    // Programs of a user see each other, as on one machine. Without a folder, each is alone.
    if std::env::var_os(PROCESSES).is_none()
        && let Ok(base) = folder::base()
    {
        command.env(PROCESSES, base.join("emulated"));
    }
    Ok(())
}

/// The variable with changed attributes of the devices.
const ATTRIBUTES: &str = "CACHALOT_EMU_ATTRIBUTES";

/// The variable with the folder of the processes that hold memory.
const PROCESSES: &str = "CACHALOT_EMU_PROCESSES";

/// The numbers of the attributes with the compute capability, in `CUdevice_attribute`.
const CAPABILITY: [&str; 2] = ["75", "76"];

/// Returns a variable of the loader with an entry before the others.
fn before(name: &str, entry: &OsStr) -> OsString {
    let mut value = entry.to_owned();
    if let Some(rest) = std::env::var_os(name).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

/// Returns the changed attributes with a compute capability among them.
fn with_capability(set: Option<String>, capability: (u32, u32)) -> Result<String, String> {
    let set = set.filter(|text| !text.is_empty()).unwrap_or_else(|| "{}".to_owned());
    let mut attributes: BTreeMap<String, i64> =
        serde_json::from_str(&set).map_err(|error| format!("{ATTRIBUTES} is an object of numbers: {error}"))?;
    for (name, number) in CAPABILITY.into_iter().zip([capability.0, capability.1]) {
        attributes.insert(name.to_owned(), number.into());
    }
    serde_json::to_string(&attributes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{capability, with_capability};

    #[test]
    fn a_compute_capability_is_two_numbers() {
        assert_eq!((capability("9.0"), capability("12.1")), (Ok((9, 0)), Ok((12, 1))));
        for text in ["9", "9.x", "-1.0", "9.0.1", "0.0", "9.11"] {
            assert!(capability(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_compute_capability_joins_the_other_attributes() {
        let joined = with_capability(Some(r#"{"102":0,"75":7}"#.to_owned()), (8, 6));
        assert_eq!(joined.as_deref(), Ok(r#"{"102":0,"75":8,"76":6}"#));
        assert_eq!(with_capability(None, (9, 0)).as_deref(), Ok(r#"{"75":9,"76":0}"#));
        assert!(with_capability(Some("[]".to_owned()), (9, 0)).is_err());
    }
}
