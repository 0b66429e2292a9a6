//! Counts the instructions of a pair of `malloc` and `free`, through the Rust interface and through
//! the C interface, and of a cycle of two streams, and compares the counts with
//! `tests/results/instructions.md`. Also counts the instructions of an object among few objects and
//! among many. Both counts must be about equal.
//!
//! ```text
//! check ─▶ valgrind runs `pairs` twice, with different numbers of pairs ─▶ difference per pair ─▶ table ± 1 %
//!       └▶ valgrind runs `growth` among few objects and among many ─▶ cost of an object ─▶ many ≤ 1.5 · few
//! ```
//!
//! Instructions are the only figure of speed that no second program on the machine disturbs. The
//! count depends on the compiler. With another compiler than the table's, the program skips the
//! comparison with the table, and still compares few objects with many.

mod cycles;

use cachalot::cuda::driver::LIBRARY_VARIABLE;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, DeviceIndex, DevicePtr, EventTimes, StreamId};
use cachalot_emulated_driver::install::built_library;
use cachalot_instructions::growth::PROGRAMS;
use cachalot_instructions::interfaces::{self, Interface, Pair};
use cachalot_instructions::{available, per_pair_of, per_pair_under};
use cachalot_policies::Tables;
use clap::{Parser, Subcommand};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The tables in `tests/results/instructions/`.
const TABLES: [&str; 4] = ["pairs", "cycles", "cold", "interfaces"];
/// The policies, and the rows of the table.
const POLICIES: [&str; 6] = ["caching", "stitched", "bfc", "buddy", "size_class", "slab"];
/// The columns of the table: the options of the program that is counted.
const COLUMNS: [(&str, &[&str]); 3] = [
    ("split off a larger block", &[]),
    ("block of that size cached", &["--cached"]),
    ("cached and recorded", &["--cached", "--recorded"]),
];
/// The events that are kept of recorded pairs: few, so that the ring is full for most of them.
const EVENTS: usize = 1000;
/// The columns of the table of cycles.
const INSTRUCTIONS: &str = "instructions";
const CALLS: &str = "calls to the device";
/// The sizes of requests for which no memory is cached, and the rows of their table.
const COLD: [(&str, u64); 3] = [("20 MiB", 20 << 20), ("100 MiB", 100 << 20), ("1 GiB", 1 << 30)];
/// The column of the table of such requests.
const RELEASED: &str = "request, free and release";
/// Such requests of the shorter of the two runs.
const COLD_REQUESTS: u64 = 500;
/// The size of each request, in bytes.
const BYTES: u64 = 4096;
/// Pairs of the shorter of the two runs.
const PAIRS: u64 = 10_000;
/// The largest share by which a count may exceed the table's.
const TOLERANCE: f64 = 0.01;
/// Numbers of objects, few and many, for the comparison of an object's cost.
const FEW: u64 = 250;
const MANY: u64 = 2_500;
/// Largest ratio of an object's cost among many objects to the cost among few. Trees are a level
/// deeper among many objects. A walk over all objects costs ten times as much.
const GROWTH: f64 = 1.5;

/// The columns of the table of interfaces.
const RUST: &str = "Rust interface";
const C: &str = "C interface";
/// The column with the price of the C interface.
const DIFFERENCE: &str = "difference";

/// Counts the instructions of a pair of malloc and free.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    job: Option<Job>,
}

#[derive(Subcommand)]
enum Job {
    /// Makes pairs: the program that is counted
    Pairs {
        policy: String,
        pairs: u64,
        /// Caches a block of the size of the requests first
        #[arg(long)]
        cached: bool,
        /// Records the events, with numbered times, as the flight recorder does
        #[arg(long)]
        recorded: bool,
    },
    /// Makes cycles of a block that two streams use: the program that is counted
    Cycles { config: String, cycles: u64 },
    /// Makes requests for which no memory is cached: the program that is counted
    Cold { bytes: u64, requests: u64 },
    /// Makes pairs through the Rust or the C interface: the program that is counted
    Interface { interface: Interface, pair: Pair, pairs: u64 },
    /// Runs a program of `growth` with a number of objects: the program that is counted
    Growth { program: usize, count: u64 },
}

type Simulated = Allocator<SimulatedDevice, parking_lot::RawMutex, Tables>;

const DEVICE: DeviceIndex = DeviceIndex(0);

// Not inlined, as in a program that calls the library from many places.
#[inline(never)]
fn malloc(allocator: &Simulated) -> Result<DevicePtr, cachalot_core::Error> {
    allocator.malloc(DEVICE, BYTES, StreamId(0))
}

#[inline(never)]
fn free(allocator: &Simulated, block: DevicePtr) -> Result<(), cachalot_core::Error> {
    allocator.free(block)
}

/// Makes `pairs` pairs of requests and frees.
fn make_pairs(policy: &str, cached: bool, recorded: bool, pairs: u64) -> Result<(), Box<dyn Error>> {
    let config = cachalot_policies::parse(&format!("policy:{policy}"))?;
    let allocator = Simulated::new([SimulatedDevice::new(1 << 44)], &config)?;
    if recorded {
        allocator.trace(DEVICE)?.record_with(EVENTS, EventTimes::Numbered)?;
    }
    if cached {
        // The live blocks on both sides keep the cached block from merging.
        let block = malloc(&allocator)?;
        let _live = (malloc(&allocator)?, malloc(&allocator)?);
        free(&allocator, block)?;
    }
    for _ in 0..pairs {
        let block = malloc(&allocator)?;
        free(&allocator, std::hint::black_box(block))?;
    }
    Ok(())
}

/// The committed tables: the compiler, and the counts by the first cell of the row and the column.
struct Table {
    compiler: String,
    counts: BTreeMap<(String, String), f64>,
}

/// Reads the tables in `tests/results/instructions/`.
fn read(folder: &Path) -> Result<Table, Box<dyn Error>> {
    let mut table = Table { compiler: String::new(), counts: BTreeMap::new() };
    for line in csv::Reader::from_path(folder.join("head.csv"))?.deserialize() {
        let (what, is): (String, String) = line?;
        if what == "compiler" {
            table.compiler = is;
        }
    }
    for name in TABLES {
        let mut reader = csv::Reader::from_path(folder.join(name).with_extension("csv"))?;
        let header = reader.headers()?.clone();
        for row in reader.records() {
            let row = row?;
            for (column, count) in header.iter().zip(&row).skip(1) {
                table.counts.insert((row[0].to_owned(), column.to_owned()), count.parse()?);
            }
        }
    }
    Ok(table)
}

/// Returns the compiler of this build, under the name in the table.
fn compiler() -> Result<String, Box<dyn Error>> {
    let output = Command::new("rustc").arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Counts every policy, and prints the table. Returns whether each count is within the committed
/// count.
fn check() -> Result<bool, Box<dyn Error>> {
    if !available() {
        println!("skipped: instructions of a pair, since valgrind is not installed");
        return Ok(true);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results/instructions");
    let table = read(&path)?;
    let compiler = compiler()?;
    let is_comparable = table.compiler == compiler;
    if !is_comparable {
        println!("skipped: the counts of tests/results/instructions.md are of {}, this is {compiler}", table.compiler);
    }
    let program = std::env::current_exe()?;
    let mut is_within = true;
    for policy in POLICIES {
        for (column, options) in COLUMNS {
            let arguments: Vec<String> = ["pairs", policy].iter().chain(options).copied().map(str::to_owned).collect();
            let pair = per_pair_of(&program, &arguments, PAIRS).ok_or("valgrind could not count the instructions")?;
            let allowed = table.counts.get(&(policy.to_owned(), column.to_owned())).copied();
            let more = allowed.map_or(0.0, |allowed| pair / allowed - 1.0);
            println!("{policy:10} {column:28} {pair:6.0} instructions a pair ({:+.1} %)", more * 100.0);
            is_within &= !is_comparable || allowed.is_some() && more <= TOLERANCE;
        }
    }
    for (size, bytes) in COLD {
        let arguments = ["cold".to_owned(), bytes.to_string()];
        let cold =
            per_pair_of(&program, &arguments, COLD_REQUESTS).ok_or("valgrind could not count the instructions")?;
        let allowed = table.counts.get(&(size.to_owned(), RELEASED.to_owned())).copied();
        let more = allowed.map_or(0.0, |allowed| cold / allowed - 1.0);
        println!("{size:10} {RELEASED:28} {cold:6.0} instructions ({:+.1} %)", more * 100.0);
        is_within &= !is_comparable || allowed.is_some() && more <= TOLERANCE;
    }
    for config in cycles::CONFIGS {
        let arguments = ["cycles", config].map(str::to_owned);
        let cycle = per_pair_of(&program, &arguments, PAIRS).ok_or("valgrind could not count the instructions")?;
        let calls = (cycles::make(config, 2 * PAIRS)? - cycles::make(config, PAIRS)?) as f64 / PAIRS as f64;
        for (column, counted) in [(INSTRUCTIONS, cycle), (CALLS, calls)] {
            let allowed = table.counts.get(&(config.to_owned(), column.to_owned())).copied();
            let more = allowed.map_or(0.0, |allowed| counted / allowed - 1.0);
            println!("{config:28} {column:22} {counted:8.2} a cycle ({:+.1} %)", more * 100.0);
            is_within &= !is_comparable || allowed.is_some() && more <= TOLERANCE;
        }
    }
    Ok(is_within & check_interfaces(&program, &table, is_comparable)?)
}

/// Counts the pairs through both interfaces. Returns whether each count is within the committed
/// count, and each difference within the committed difference.
fn check_interfaces(program: &Path, table: &Table, is_comparable: bool) -> Result<bool, Box<dyn Error>> {
    let library = built_library()?;
    // The allocator for PyTorch reads settings of the environment, unless this variable is set. Its
    // recorder would count, too, with a varying number of instructions for the rate of the clock.
    let (settings, recorder) = (("CACHALOT_CONF", OsStr::new("")), ("CACHALOT_RECORDER", OsStr::new("0")));
    let variables = [(LIBRARY_VARIABLE, library.as_os_str()), settings, recorder];
    let mut is_within = true;
    for row in interfaces::ROWS {
        let count = |interface: &str| {
            let arguments = ["interface", interface, row.pair].map(str::to_owned);
            let count = per_pair_under(&variables, program, &arguments, PAIRS);
            count.ok_or("valgrind could not count the instructions")
        };
        let (rust, c) = (count(row.interfaces[0])?, count(row.interfaces[1])?);
        for (column, counted) in [(RUST, rust), (C, c), (DIFFERENCE, c - rust)] {
            let allowed = table.counts.get(&(row.name.to_owned(), column.to_owned())).copied();
            // The share of the pair: a difference is a small part of it.
            let more = allowed.map_or(0.0, |allowed| (counted - allowed) / c);
            println!("{:45} {column:14} {counted:8.2} instructions ({:+.1} %)", row.name, more * 100.0);
            is_within &= !is_comparable || allowed.is_some() && more <= TOLERANCE;
        }
    }
    Ok(is_within)
}

/// Counts every program of growing numbers of objects. Returns whether an object costs about as
/// much among many as among few.
fn check_growth() -> Result<bool, Box<dyn Error>> {
    if !available() {
        println!("skipped: instructions of growing programs, since valgrind is not installed");
        return Ok(true);
    }
    let own = &std::env::current_exe()?;
    let count = |program: usize| {
        let arguments = ["growth".to_owned(), program.to_string()];
        Some((per_pair_of(own, &arguments, FEW)?, per_pair_of(own, &arguments, MANY)?))
    };
    // All at once: a count is the same beside others.
    let counted: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PROGRAMS.len()).map(|program| scope.spawn(move || count(program))).collect();
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let mut is_within = true;
    for (program, counted) in PROGRAMS.iter().zip(counted) {
        let (few, many) = counted.ok_or("valgrind could not count the instructions")?;
        let (name, growth) = (format!("{}, {}", program.objects, program.config_or_default()), many / few);
        println!("{name:60} {few:8.0} instructions among {FEW}, {many:8.0} among {MANY} ({growth:.2})");
        is_within &= growth <= GROWTH;
    }
    Ok(is_within)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    match Arguments::parse().job {
        Some(Job::Pairs { policy, pairs, cached, recorded }) => make_pairs(&policy, cached, recorded, pairs)?,
        Some(Job::Cycles { config, cycles }) => println!("{} calls", cycles::make(&config, cycles)?),
        Some(Job::Cold { bytes, requests }) => cycles::request_cold(bytes, requests)?,
        Some(Job::Interface { interface, pair, pairs }) => interfaces::make(interface, pair, pairs)?,
        Some(Job::Growth { program, count }) => {
            PROGRAMS.get(program).ok_or("there is no such program")?.run(count, || Duration::ZERO)?;
        }
        None => {
            let (pairs, growth) = (check()?, check_growth()?);
            if !pairs {
                eprintln!("a pair or a cycle takes over 1 % more than tests/results/instructions.md says");
            }
            if !growth {
                eprintln!(
                    "an object costs more among many objects than among few: see tests/instructions/src/growth.rs"
                );
            }
            return Ok(if pairs && growth { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_tables_have_every_count() {
        let table = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../results/instructions")).unwrap();
        let of_policies = POLICIES.iter().flat_map(|row| COLUMNS.map(|(column, _)| (*row, column)));
        let of_cycles = cycles::CONFIGS.iter().flat_map(|row| [(*row, INSTRUCTIONS), (*row, CALLS)]);
        let of_cold = COLD.iter().map(|(row, _)| (*row, RELEASED));
        let of_interfaces =
            interfaces::ROWS.iter().flat_map(|row| [RUST, C, DIFFERENCE].map(|column| (row.name, column)));
        for (row, column) in of_policies.chain(of_cycles).chain(of_cold).chain(of_interfaces) {
            assert!(table.counts.contains_key(&(row.to_owned(), column.to_owned())), "{row}: {column}");
        }
        assert!(table.compiler.starts_with("rustc 1."), "{}", table.compiler);
    }
}
