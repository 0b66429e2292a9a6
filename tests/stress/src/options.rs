//! What is asked for on the command line, and the line that asks for it again.

use crate::mutant::Mutant;
use cachalot_core::units::MIB;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fmt::Write;

/// Threads, streams and kernels against the allocator, on the driver that CACHALOT_LIBCUDA names, else on libcuda.so.1.
///
/// Every block is written by a kernel when it is obtained and checked by a kernel before it is freed; a map on the host
/// tells overlaps. The exit status is 1 if anything was wrong.
#[derive(Parser, Debug)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Fails every driver call of a small run in turn, on the emulated driver, each in a process of its own.
    Sweep(SweepOptions),
}

/// One run.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunOptions {
    /// Where all choices come from; the time if not given.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Ends after so many requests and frees, all threads together.
    #[arg(long)]
    pub(crate) ops: Option<u64>,
    /// Ends after so long; 20 if --ops is not given either.
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Threads. With one, a run is repeated by its seed.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Streams of each device; the first is the legacy default stream.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) streams: u32,
    /// Devices, from the first on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) devices: u32,
    /// The allocator's configuration, as in PYTORCH_CUDA_ALLOC_CONF.
    #[arg(long, default_value = "")]
    pub(crate) config: String,
    /// A limit, a release, a capture, a pool or the like after so many requests and frees of a thread, on average.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) disturb: u64,
    /// Threads meet for an audit after so many requests and frees of each.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) round: u64,
    /// Blocks that are written or checked by one launch, at most.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) batch: u32,
    /// Blocks that a thread holds, on average.
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) blocks: u32,
    /// The largest request in MiB; at most an eighth of the device.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) max_mib: u64,
    /// Streams are held busy for up to so many microseconds now and then.
    #[arg(long, default_value_t = 300)]
    pub(crate) hold_us: u64,
    /// Prints the result as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Breaks the allocator on purpose: the run must then find something wrong.
    #[arg(long)]
    pub(crate) mutant: Option<Mutant>,
    /// The fault plan of the emulated driver fails calls before or after they act: errors of the device are expected until the
    /// plan is cleared at the end.
    #[arg(long, hide = true)]
    pub(crate) faults: Option<Faults>,
}

/// When the fault plan's calls fail.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Faults {
    /// Without having done anything.
    Before,
    /// After they did everything.
    After,
}

impl Faults {
    /// As the command line and the fault plan have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// How long a run lasts if nothing else is said.
const DEFAULT_SECONDS: f64 = 20.0;

impl RunOptions {
    /// Fills in what the command line left open.
    pub(crate) fn settle(&mut self) {
        if self.seed.is_none() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            self.seed = Some(now.as_nanos() as u64 % 1_000_000_007);
        }
        if self.ops.is_none() && self.seconds.is_none() {
            self.seconds = Some(DEFAULT_SECONDS);
        }
    }

    /// The seed.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }

    /// The largest request in bytes on a device of so many.
    pub(crate) fn max_bytes(&self, device_bytes: u64) -> u64 {
        (self.max_mib * MIB).min(device_bytes / 8)
    }

    /// The command line that repeats this run.
    pub(crate) fn replay(&self) -> String {
        let mut line = format!("cachalot-stress --seed {}", self.seed());
        let mut add = |name: &str, value: String| {
            let _ = write!(line, " --{name} {value}");
        };
        if let Some(ops) = self.ops {
            add("ops", ops.to_string());
        }
        if let Some(seconds) = self.seconds {
            add("seconds", seconds.to_string());
        }
        let numbers: [(&str, u64); 9] = [
            ("threads", self.threads.into()),
            ("streams", self.streams.into()),
            ("devices", self.devices.into()),
            ("disturb", self.disturb),
            ("round", self.round),
            ("batch", self.batch.into()),
            ("blocks", self.blocks.into()),
            ("max-mib", self.max_mib),
            ("hold-us", self.hold_us),
        ];
        for (name, value) in numbers {
            add(name, value.to_string());
        }
        if !self.config.is_empty() {
            add("config", format!("'{}'", self.config));
        }
        if let Some(mutant) = self.mutant {
            add("mutant", mutant.name());
        }
        if let Some(faults) = self.faults {
            add("faults", faults.name().to_owned());
        }
        line
    }
}

/// The sweep over faults.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepOptions {
    /// Each call is failed at these of its occurrences, as far as the run makes so many: `all` for every one up to --most,
    /// `some` for the Fibonacci numbers up to it.
    #[arg(long, value_enum, default_value_t = Occurrences::Some)]
    pub(crate) occurrences: Occurrences,
    /// The last occurrence that is failed.
    #[arg(long, default_value_t = 200)]
    pub(crate) most: u64,
    /// Every code at each occurrence, not one of them in turn.
    #[arg(long)]
    pub(crate) every_code: bool,
    /// Only this function of the driver.
    #[arg(long)]
    pub(crate) function: Option<String>,
    /// Where all choices come from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Processes at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) jobs: u32,
}

/// Which occurrences of a call are failed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occurrences {
    /// Every one.
    All,
    /// The Fibonacci numbers.
    Some,
}
