//! `cachalot run`: start a program with a library in front of the CUDA driver.

mod driver;
mod environment;
pub(super) mod folder;
mod kernel_limit;
mod names;
mod needing;
mod processor;
pub(super) mod program;
mod spill;

use super::BAD_INPUT;
use super::bytes;
use cachalot_run::Options;
use cachalot_run::control::MOST_NAME;
use cachalot_run::group::watch::groups;
use cachalot_run::options::{GroupOptions, SleepOptions};
use cachalot_run::shared::folder::of_user;
use cachalot_run::shared::time::milliseconds;
use program::Startable;
use spill::Spill;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const LONG_ABOUT: &str = "\
Start a program with a library in front of the CUDA driver

The library serves the device memory that the program asks the driver for,
enforces limits, and keeps a book of who holds memory. Every other call goes to
the driver. The program needs no change, and may link the CUDA runtime
statically. Children of the program run in the same way.

The command prepares a private folder, sets LD_LIBRARY_PATH, LD_PRELOAD and
CACHALOT_RUN, and becomes the program. With CACHALOT_DISABLE=1 the program runs
without the library. The exit status is the program's. The command exits with 2
if the library cannot be put in front of the driver, with 126 if the program
cannot be executed, and with 127 if the program does not exist.";

const EXAMPLES: &str = "\
Examples:
  cachalot run -- python train.py
  cachalot run --limit 12GiB -- ./server
  cachalot run --spill 16GiB -- ./simulation
  cachalot run --group team --limit 40GiB -- ./job
  cachalot run --park-idle 5m -- ./server
  cachalot run --park-idle 5m --park-to /var/tmp -- ./server
  cachalot run --record trace.csv -- ./program";

/// Start a program with a library in front of the CUDA driver
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct RunArgs {
    /// The settings of the allocator, in PyTorch's syntax
    #[arg(long, value_name = "STRING", visible_alias = "settings", value_parser = checked_settings)]
    config: Option<String>,
    /// A policy of the allocator with default settings
    #[arg(long, value_name = "NAME", value_parser = super::settings::policy(), conflicts_with = "config")]
    policy: Option<&'static str>,
    /// The limit of the program's memory, or of the group's: bytes, or a number with KiB, MiB, GiB,
    /// TiB, or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    limit: Option<u64>,
    /// Serve from the host's memory what the GPU, or the limit, has no room for: at most this many
    /// bytes for each GPU, or `auto` for half of the host's free memory. Slower instead of out of
    /// memory
    #[arg(long, value_name = "BYTES|auto", value_parser = Spill::parse, conflicts_with = "observe")]
    spill: Option<Spill>,
    /// Share the limit with every program of the named group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Have the kernel keep the limit for this control group, in place of the library: the program
    /// becomes a member. Needs root, and a driver with limits of control groups (615)
    #[arg(long, value_name = "FOLDER", requires = "limit")]
    control_group: Option<PathBuf>,
    /// Have NVML say the limit inside the program: the total, used and free memory of a device
    #[arg(long, conflicts_with = "control_group")]
    nvml: bool,
    /// The name of the process for park, wake and status; without the option, the name of the
    /// program. Children of the program have the name, too
    #[arg(long, value_name = "NAME", value_parser = checked_name)]
    name: Option<String>,
    /// Memory kept for the program: the rest of the group cannot take it
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, requires = "group")]
    low: Option<u64>,
    /// The most memory of the group that the program may take
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, requires = "group")]
    max: Option<u64>,
    /// The share of the program relative to the weights of the rest of the group
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "group")]
    weight: u32,
    /// Freed memory of a context that may wait before a request asks the driver which frees are
    /// complete. More makes pairs of request and free cheaper, and holds more memory
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, default_value = "64MiB")]
    slack: u64,
    /// Record the program's requests and frees as a trace
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Serve no memory: only count, limit and record
    #[arg(long)]
    observe: bool,
    /// Have `cuMemFree` wait for the device, as the driver's does
    #[arg(long)]
    sync_free: bool,
    /// Clear freed memory before the next use
    #[arg(long)]
    zero: bool,
    /// Find the caller of each request, and not only of each call of the driver
    #[arg(long)]
    ledger: bool,
    /// Write the ledger at the end of the program; `%p` in the name is the process id
    #[arg(long, value_name = "FILE")]
    ledger_file: Option<PathBuf>,
    /// Keep the call stack of each entry of the ledger
    #[arg(long)]
    ledger_stacks: bool,
    /// Park the memory after this time without a call, such as 5m, 30s or 500ms: the contents go to
    /// the host, and come back before the next call that may use the memory
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    park_idle: Option<Duration>,
    /// Park the contents to files in this folder instead of the host's memory, for a host with less
    /// memory than the device. Lets `cachalot park` park the memory, too
    #[arg(long, value_name = "FOLDER")]
    park_to: Option<PathBuf>,
    /// Let `cachalot park` and the group park the memory
    #[arg(long)]
    parkable: bool,
    /// Leave blocks of requests up to 1 MiB on the GPU while they take at most this many bytes
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, default_value = "0")]
    keep_awake: u64,
    /// Have the group park this program when another member needs memory, and wait in turn for
    /// memory of the group
    #[arg(long = "yield", requires = "group")]
    yields: bool,
    /// How long the memory stays awake at least before the group may have it parked
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1s", requires = "yields")]
    awake: Duration,
    /// How long a call waits for memory of the device to wake, before the call fails
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "60s")]
    wake_timeout: Duration,
    /// Have children of the program run without the library
    #[arg(long)]
    no_follow: bool,
    /// Start the program even if the library cannot be put in front of the driver
    #[arg(long)]
    optional: bool,
    /// The real driver, instead of the first driver on the loader's way
    #[arg(long, value_name = "PATH")]
    driver: Option<PathBuf>,
    /// The program and the arguments
    // No hyphens: a misspelled option is no program. After the program everything is an argument.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Checks a text of settings, and returns the text unchanged.
fn checked_settings(text: &str) -> Result<String, String> {
    cachalot_policies::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Checks the name of a process, and returns the name unchanged.
fn checked_name(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if !(1..=MOST_NAME).contains(&length) {
        return Err(format!("a name has 1 to {MOST_NAME} characters, not {length}"));
    }
    if text.chars().any(char::is_control) {
        return Err("a name has no control characters".to_owned());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a name of digits alone would be the id of a process".to_owned());
    }
    Ok(text.to_owned())
}

/// Checks that files can be made in a folder, and returns its absolute path.
fn writable_folder(folder: &Path) -> Result<PathBuf, String> {
    let folder = std::path::absolute(folder).map_err(|error| format!("--park-to: {error}"))?;
    match tempfile::tempfile_in(&folder) {
        Ok(_) => Ok(folder),
        Err(error) => Err(format!("--park-to: {}: {error}", folder.display())),
    }
}

/// Runs the command. Returns only if the program could not be started.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let mut program = match Startable::find(&args.program) {
        Ok(program) => program,
        Err(status) => return status,
    };
    environment::without_library().apply(&mut program.command);
    if let Some(value) = std::env::var_os("CACHALOT_DISABLE").filter(|value| !value.is_empty() && value != "0") {
        complain!("CACHALOT_DISABLE={}: the program runs without the library", value.display());
        return program.start();
    }
    if let Err(mistake) = cachalot_run::check_log() {
        complain!("{mistake}");
    }
    match prepare(args, &program) {
        Ok(environment) => environment.apply(&mut program.command),
        Err(reason) if args.optional => complain!("{reason}; the program runs without the library"),
        Err(reason) => {
            complain!("{reason}");
            return ExitCode::from(BAD_INPUT);
        }
    }
    program.start()
}

/// Puts the library in front of the driver, and returns the environment for the program.
///
/// # Errors
/// The obstacle, as a line for the user.
fn prepare(args: &RunArgs, program: &Startable) -> Result<environment::Changes, String> {
    program.check()?;
    let driver = driver::find(args.driver.as_deref())?;
    let front = folder::front_library()?;
    let options = args.options()?;
    if let (Some(group), Some(limit)) = (&args.control_group, args.limit) {
        kernel_limit::keep(group, limit)?;
    }
    let nvml = args.nvml.then(|| driver::find_nvml(&driver)).transpose()?;
    let folder = folder::prepare(&front, &driver, nvml.as_deref(), options.has_limit())?;
    Ok(environment::with_library(&folder, &options))
}

impl RunArgs {
    /// Checks that the files of the program's end can be made, before the program has worked for
    /// hours.
    fn check_files(&self) -> Result<(), String> {
        for (option, file) in [("--record", &self.record), ("--ledger-file", &self.ledger_file)] {
            let Some(file) = file else { continue };
            let folder = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
            // A device or a pipe is written as it is.
            let is_special = file.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
            let place = if is_special { file } else { folder };
            let fault = match place.metadata() {
                Err(error) => error.to_string(),
                Ok(found) if !is_special && !found.is_dir() => "is no folder".to_owned(),
                Ok(_) => match rustix::fs::access(place, rustix::fs::Access::WRITE_OK) {
                    Ok(()) if file.is_dir() => "is a folder".to_owned(),
                    Ok(()) => continue,
                    Err(error) => error.to_string(),
                },
            };
            return Err(format!("{option}: {}: {fault}", place.display()));
        }
        Ok(())
    }

    /// Checks the group's name and terms, and a limit against groups of the name that have living
    /// members. The program would start, and each of its requests would be refused.
    fn check_group(&self) -> Result<(), String> {
        let Some(name) = &self.group else { return Ok(()) };
        let options = self.group_options(name);
        cachalot_run::group::check(&options, self.own_limit()).map_err(|error| format!("--group: {error}"))?;
        let living = of_user().and_then(|folder| groups(&folder)).unwrap_or_default();
        let limits: Vec<_> =
            living.iter().filter(|group| group.name == *name).filter_map(|group| group.named).collect();
        match (self.own_limit(), limits.first()) {
            (Some(named), Some(held)) if !limits.contains(&named) => Err(format!(
                "--limit: group `{name}` has a limit of {}, and not of {}: name the group's limit, or none",
                bytes::show(*held),
                bytes::show(named)
            )),
            _ => Ok(()),
        }
    }

    /// Returns the limit that the library keeps.
    fn own_limit(&self) -> Option<u64> {
        self.limit.filter(|_| self.control_group.is_none())
    }

    fn group_options(&self, name: &str) -> GroupOptions {
        GroupOptions { name: name.to_owned(), low: self.low.unwrap_or(0), max: self.max, weight: self.weight }
    }

    /// Returns the options for the program's process.
    fn options(&self) -> Result<Options, String> {
        let settings = self.policy.map(|name| format!("policy:{name}")).or_else(|| self.config.clone());
        let settings = settings.unwrap_or_default();
        let settings = self.spill.map_or(Ok(settings.clone()), |spill| spill.settings(&settings))?;
        let record = self.record.as_deref().map(std::path::absolute).transpose();
        let ledger_file = self.ledger_file.as_deref().map(std::path::absolute).transpose();
        let park_to = self.park_to.as_deref().map(writable_folder).transpose()?;
        self.check_files()?;
        self.check_group()?;
        Ok(Options {
            observe: self.observe,
            settings,
            sync_free: self.sync_free,
            zero: self.zero,
            limit: self.own_limit(),
            group: self.group.as_deref().map(|name| self.group_options(name)),
            record: record.map_err(|error| format!("--record: {error}"))?,
            ledger: self.ledger,
            ledger_file: ledger_file.map_err(|error| format!("--ledger-file: {error}"))?,
            ledger_stacks: self.ledger_stacks,
            no_follow: self.no_follow,
            sleep: (self.parkable || self.yields || self.park_idle.is_some() || park_to.is_some()).then(|| {
                SleepOptions {
                    idle_ms: self.park_idle.map(milliseconds),
                    wake_timeout_ms: milliseconds(self.wake_timeout),
                    keep_awake: self.keep_awake,
                    yields: self.yields,
                    awake_ms: milliseconds(self.awake),
                    folder: park_to,
                    ..SleepOptions::default()
                }
            }),
            name: self.name.clone(),
            slack: self.slack,
        })
    }
}
