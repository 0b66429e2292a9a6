//! What is asked for on the command line, and the line that asks for it again.

use crate::mutant::Mutant;
use cachalot_core::MIB;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fmt::Write;

/// Threads, streams and kernels against the allocator, on the driver that `CACHALOT_LIBCUDA` names, else on libcuda.so.1.
///
/// Threads request and free blocks of 1 byte to 1 GiB on streams that they share, hand blocks to one another, use them on other
/// streams and devices, and capture graphs that allocate; now and then one sets a limit, releases the cache, changes the settings
/// or opens a pool. A kernel writes each block when it is obtained, and a kernel checks it before it is freed, many blocks with
/// one launch; a map on the host tells at once if two blocks share memory, or if one is handed out that another stream still uses.
/// Every other round there is nothing but requests, frees and kernels. After each, and at the end, the books must agree, and all
/// memory must have gone back.
///
/// The exit status is 1 if anything was wrong, and 2 if the run could not begin. The line that repeats a run is printed first; on
/// one thread it is the same run again; on several, each thread draws the same numbers again. Percentiles are those of the time that
/// a call takes, in nanoseconds, with two looks at the clock.
///
/// On a machine with a GPU: `cachalot-stress --seconds 300 --threads 16 --streams 16`, and `--devices 2` for two. Without one:
/// `CACHALOT_LIBCUDA=.../libcuda.so.1` names an emulated driver; `CACHALOT_EMU_DEVICES` and `CACHALOT_EMU_MEMORY` say what it has.
#[derive(Parser, Debug)]
#[command(version, args_conflicts_with_subcommands = true, args_override_self = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Fails every driver call of a small run in turn, on the emulated driver, each in a process of its own.
    ///
    /// A call fails once or from then on, before or after it acted, by an error that passes, one that breaks the context, one that
    /// says that the driver is shutting down, or, where that is possible, for want of memory. The run must not crash or hang; no
    /// block may overlap another; nothing may leak but what a call took that failed after it acted; the invariants must hold; and
    /// once the faults are over the allocator must work again, unless it said that the context is lost. A table of the cases is
    /// printed, in Markdown. Then each function is taken out of the driver: the run must work without it, or not begin and say
    /// why. The exit status is 1 if anything was wrong.
    Sweep(SweepOptions),
    /// Lets streams, threads, private pools and blocks come and go through the C interface, and sees whether memory stays flat.
    ///
    /// Streams end while blocks of theirs are held, or pending because another stream uses them, or lie in private pools; threads
    /// that used their own default stream end, and every other one reports it. After each tenth of a phase the host's memory is
    /// printed: the process's own, without what emulated devices share with it. The exit status is 1 if it grows by more than the
    /// bound after the first tenth, if a call is refused, or if anything is left at the end of a phase.
    ///
    /// The campaign: `cachalot-stress churn --simulated --streams 1000000 --threads 100000 --pools 100000 --ops 100000000`, without
    /// `--simulated` on the driver, and there with `--asked` too.
    Churn(ChurnOptions),
}

/// What comes and goes.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChurnOptions {
    /// Streams that come and go; 0 leaves a phase out.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) streams: u64,
    /// Threads that use their own default streams.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) threads: u64,
    /// Private pools.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) pools: u64,
    /// Requests and frees.
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) ops: u64,
    /// Threads at work at the same time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    /// Devices, from the first on.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) devices: u32,
    /// Simulated devices in place of the driver's.
    #[arg(long)]
    pub(crate) simulated: bool,
    /// Streams are not reported: the driver is asked which stream a handle is (`CACHALOT_ASK_STREAM_ID`).
    #[arg(long, conflicts_with = "simulated")]
    pub(crate) asked: bool,
    /// Blocks of streams and threads that are gone are held until each worker has so many of them.
    #[arg(long, default_value_t = 64)]
    pub(crate) held: usize,
    /// KiB by which memory may grow after the first tenth of a phase. Up to 96 idle streams of a device keep 36 KiB each, and the
    /// host's allocator keeps the peak when a worker is preempted while it releases them.
    #[arg(long, default_value_t = 16_384)]
    pub(crate) bound_kib: u64,
    /// The allocator's configuration, as in `PYTORCH_CUDA_ALLOC_CONF`.
    #[arg(long, default_value = "")]
    pub(crate) config: String,
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
    /// The allocator's configuration, as in `PYTORCH_CUDA_ALLOC_CONF`.
    #[arg(long, default_value = "")]
    pub(crate) config: String,
    /// How the allocator learns that a stream's handle has gone to another stream.
    #[arg(long, value_enum, default_value_t = Identity::Reported)]
    pub(crate) identity: Identity,
    /// A limit, a release, a capture, a pool or the like after so many requests and frees of a thread, on average.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
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

/// How streams are told apart that have the same handle one after the other.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// Each stream is reported before it is destroyed.
    Reported,
    /// None is: the driver is asked.
    Asked,
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
        if self.identity == Identity::Asked {
            add("identity", "asked".to_owned());
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
    /// At which of its occurrences in a run each call is failed.
    #[arg(long, value_enum, default_value_t = Occurrences::Some)]
    pub(crate) occurrences: Occurrences,
    /// With `--occurrences all`, so many are failed one by one, and the Fibonacci numbers beyond.
    #[arg(long, default_value_t = 200)]
    pub(crate) most: u64,
    /// Of all cases, only every so-manieth.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) every: u32,
    /// Only these functions of the driver.
    #[arg(long, value_delimiter = ',')]
    pub(crate) function: Vec<String>,
    /// Where all choices come from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Processes at once; as many as there are processors if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) jobs: Option<u32>,
}

impl SweepOptions {
    /// Processes at once.
    pub(crate) fn jobs(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or_else(all, |jobs| jobs as usize)
    }
}

/// Which occurrences of a call are failed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occurrences {
    /// Every one up to `--most`, and some beyond, in the scenario that calls the function most often; some in the others.
    All,
    /// The Fibonacci numbers.
    Some,
}
