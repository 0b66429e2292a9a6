//! Options of the command line, and the command line that repeats a run.

use crate::mutant::Mutant;
use cachalot_core::MIB;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fmt::Write;

/// Runs threads, streams and kernels against the allocator, on the driver named by
/// `CACHALOT_LIBCUDA`, else on libcuda.so.1.
///
/// Threads request and free blocks of 1 byte to 1 GiB on shared streams, pass blocks to other
/// threads, use blocks on other streams and devices, and capture graphs that allocate. At random
/// times a thread sets a limit, releases the cache, changes the settings or opens a private pool. A
/// kernel writes each block after the request, and a kernel checks each block before the free, many
/// blocks per launch. A map on the host detects at once if two blocks share memory, or if a block
/// is served while another stream still uses the memory. Every other round consists of requests,
/// frees and kernels only. After each round and at the end, the allocator's counters must agree
/// with the run, and at the end all memory must be released.
///
/// The exit status is 1 if a fault was found, and 2 if the run could not start. The command line
/// that repeats a run is printed first. With one thread, the repeated run is identical; with
/// several threads, each thread draws the same random numbers. Percentiles describe the time of a
/// call in nanoseconds, including two readings of the clock.
///
/// With `--tenants` and `--ranges`, tagged pools, streams and graphs are parked and woken, and
/// elastic ranges are filled and emptied, while streams come and go and graphs are captured. An
/// error that the documentation of a call does not permit under these disturbances is a finding.
///
/// With a GPU: `cachalot-stress --seconds 300 --threads 16 --streams 16`, and `--devices 2` for two
/// devices. All four disturbances at once:
/// `cachalot-stress --ops 20000000 --threads 16 --streams 16 --disturb 300 --round 20000 --max-mib 64 --tenants 4 --ranges 8 --config policy:stitched`.
/// With a third of the memory on the host:
/// `--limit-mib 4096 --config expandable_segments:True,spill:8G`. Without a GPU:
/// `CACHALOT_LIBCUDA=.../libcuda.so.1` names an emulated driver; `CACHALOT_EMU_DEVICES` and
/// `CACHALOT_EMU_MEMORY` set the emulated devices.
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
    /// Fails every driver call of a small run in turn, on the emulated driver, each in a separate
    /// process.
    ///
    /// A call fails once or from then on, and before or after its effect. The code is a passing
    /// error, an error that loses the context, the code of a driver that shuts down, or, for calls
    /// that allocate, out of memory. The run must neither crash nor hang. No block may overlap
    /// another block. Only memory taken by a call that failed after its effect may leak. The
    /// invariants must hold. After the faults the allocator must work again, unless the allocator
    /// reported a lost context. The result is printed as a table in Markdown. Afterwards each
    /// function is removed from the driver: the run must then work without the function, or not
    /// start and print the reason. The exit status is 1 if a fault was found.
    Sweep(SweepOptions),
    /// Creates and destroys streams, threads, private pools and blocks through the C interface, and
    /// checks that host memory stays flat.
    ///
    /// Streams end while blocks of the streams are live, or pending because of other streams, or in
    /// private pools. Threads that used their own default stream end, and every other thread
    /// reports the end. After each tenth of a phase the host's memory is printed: the process's
    /// own, without the memory shared with emulated devices. The exit status is 1 if memory grows
    /// by more than the bound after the first tenth, if a call is refused, or if memory or blocks
    /// remain at the end of a phase.
    ///
    /// The campaign:
    /// `cachalot-stress churn --simulated --streams 1000000 --threads 100000 --pools 100000 --ops 100000000`,
    /// then without `--simulated` on the driver, and on the driver with `--asked` too.
    Churn(ChurnOptions),
}

/// Options of the churn.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChurnOptions {
    /// Streams to create and destroy (0 skips the phase).
    #[arg(long, default_value_t = 100_000)]
    pub(crate) streams: u64,
    /// Threads that use their own default streams (0 skips the phase).
    #[arg(long, default_value_t = 10_000)]
    pub(crate) threads: u64,
    /// Private pools (0 skips the phase).
    #[arg(long, default_value_t = 10_000)]
    pub(crate) pools: u64,
    /// Requests and frees (0 skips the phase).
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) ops: u64,
    /// Threads that work concurrently.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    /// Number of devices, from the first on.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) devices: u32,
    /// Use simulated devices instead of the driver's devices.
    #[arg(long)]
    pub(crate) simulated: bool,
    /// Report no stream: the driver identifies streams (`CACHALOT_ASK_STREAM_ID`).
    #[arg(long, conflicts_with = "simulated")]
    pub(crate) asked: bool,
    /// Blocks of ended streams and threads that each worker keeps live.
    #[arg(long, default_value_t = 64)]
    pub(crate) held: usize,
    /// KiB by which memory may grow after the first tenth of a phase. Up to 96 idle streams of a
    /// device keep 36 KiB each, and the host's allocator keeps the peak if a worker is preempted
    /// during the release of the streams.
    #[arg(long, default_value_t = 16_384)]
    pub(crate) bound_kib: u64,
    /// The allocator's configuration, as in `PYTORCH_CUDA_ALLOC_CONF`.
    #[arg(long, default_value = "")]
    pub(crate) config: String,
}

/// Options of a stress run.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunOptions {
    /// Seed of all random choices, by default the time.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// End after this number of requests and frees, in all threads together.
    #[arg(long)]
    pub(crate) ops: Option<u64>,
    /// End after this number of seconds (20 by default without --ops).
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Number of threads. With one thread, the seed repeats a run exactly.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Streams of each device; the first is the legacy default stream.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) streams: u32,
    /// Number of devices, from the first on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) devices: u32,
    /// Number of runs at a time on each device, in their own processes. This run stays below its
    /// part of the memory.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) sharers: u32,
    /// The limit of each device's memory in MiB. With `spill` in the configuration, the run uses
    /// more than that, and the rest of its memory is the host's.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) limit_mib: Option<u64>,
    /// The allocator's configuration, as in `PYTORCH_CUDA_ALLOC_CONF`.
    #[arg(long, default_value = "")]
    pub(crate) config: String,
    /// How the allocator learns of the reuse of a stream's handle.
    #[arg(long, value_enum, default_value_t = Identity::Reported)]
    pub(crate) identity: Identity,
    /// Average number of a thread's requests and frees between disturbances (limits, releases,
    /// captures, pools and more).
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) disturb: u64,
    /// Requests and frees of each thread between two audits, at which all threads meet.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) round: u64,
    /// Upper bound for the number of blocks that one launch writes or checks.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) batch: u32,
    /// Average number of live blocks of a thread.
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) blocks: u32,
    /// The largest request in MiB; at most an eighth of the device.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) max_mib: u64,
    /// At random times a stream is held busy, for up to this number of microseconds.
    #[arg(long, default_value_t = 300)]
    pub(crate) hold_us: u64,
    /// Parts of the program on each device whose memory is parked and woken: the blocks of a tag,
    /// or of a stream. Captured graphs are parked as well, between their runs.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) tenants: u32,
    /// Elastic ranges of each device, whose parts are committed, used and decommitted.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) ranges: u32,
    /// Number of other threads that wait for all work of the devices, over and over, by an event of
    /// the context.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) device_waits: u32,
    /// Print the result as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Break the allocator on purpose: the run must then report a finding.
    #[arg(long)]
    pub(crate) mutant: Option<Mutant>,
    /// The emulated driver's fault plan fails calls before or after their effect. Errors of the
    /// device are expected until the plan is cleared at the end.
    #[arg(long, hide = true)]
    pub(crate) faults: Option<Faults>,
}

/// The way to distinguish streams with a reused handle.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// Each stream is reported before its destruction.
    Reported,
    /// No stream is reported: the driver is asked for each stream's id.
    Asked,
}

/// When the calls of the fault plan fail.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Faults {
    /// Before any effect.
    Before,
    /// After the whole effect.
    After,
}

impl Faults {
    /// Returns the name on the command line and in the fault plan.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// Duration of a run without `--ops` and `--seconds`.
const DEFAULT_SECONDS: f64 = 20.0;

impl RunOptions {
    /// Sets the options that the command line left open.
    pub(crate) fn fill_defaults(&mut self) {
        if self.seed.is_none() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            self.seed = Some(now.as_nanos() as u64 % 1_000_000_007);
        }
        if self.ops.is_none() && self.seconds.is_none() {
            self.seconds = Some(DEFAULT_SECONDS);
        }
    }

    /// Returns the seed.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }

    /// Returns the largest request in bytes, on a device of `device_bytes` bytes.
    pub(crate) fn max_bytes(&self, device_bytes: u64) -> u64 {
        (self.max_mib * MIB).min(device_bytes / 8)
    }

    /// Returns the command line that repeats the run.
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
        for (name, value, least) in [
            ("sharers", self.sharers, 2),
            ("tenants", self.tenants, 1),
            ("ranges", self.ranges, 1),
            ("device-waits", self.device_waits, 1),
        ] {
            if value >= least {
                add(name, value.to_string());
            }
        }
        if let Some(limit) = self.limit_mib {
            add("limit-mib", limit.to_string());
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

/// Options of the fault sweep.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepOptions {
    /// The occurrences of each call that are failed.
    #[arg(long, value_enum, default_value_t = Occurrences::Some)]
    pub(crate) occurrences: Occurrences,
    /// With `--occurrences all`, number of occurrences failed one by one, before the Fibonacci
    /// numbers beyond.
    #[arg(long, default_value_t = 200)]
    pub(crate) most: u64,
    /// Of all cases, run only every n-th.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) every: u32,
    /// Fail only the given functions of the driver.
    #[arg(long, value_delimiter = ',')]
    pub(crate) function: Vec<String>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Concurrent processes, by default the number of processors.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) jobs: Option<u32>,
}

impl SweepOptions {
    /// Returns the number of concurrent processes.
    pub(crate) fn jobs(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or_else(all, |jobs| jobs as usize)
    }
}

/// Selection of the occurrences of a call that are failed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occurrences {
    /// In the scenario with most calls of the function, all occurrences up to `--most`, and some
    /// beyond; some occurrences in the other scenarios.
    All,
    /// Occurrences at the Fibonacci numbers.
    Some,
}
