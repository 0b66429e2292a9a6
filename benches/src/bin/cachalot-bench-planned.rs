//! Compares the cost of an operation served from a plan with the cost of an operation served from
//! the cache, on a repetitive program. Prints the minimum of many runs, to exclude other load on
//! the machine. For instructions, run the program under `valgrind --tool=callgrind` with one policy
//! and two numbers of runs: the difference belongs to the runs.

use cachalot::simulated::SimulatedDevice;
use cachalot::{Allocator, Config, DeviceIndex, DevicePtr, Error, Growable, HeapLock, Planner, StreamId};
use clap::Parser;
use std::time::Instant;

type Subject = Allocator<SimulatedDevice, HeapLock, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Requests per iteration.
const REQUESTS: usize = 1000;
/// Number of live blocks at a time.
const LIVE: usize = 8;

/// Measure the nanoseconds of an operation served from a plan and from the cache.
#[derive(Parser)]
struct Cli {
    /// Number of measured iterations
    #[arg(default_value_t = 2000)]
    runs: usize,
    /// The configurations
    #[arg(long, value_delimiter = ';', default_values = ["policy:planned", ""])]
    config: Vec<String>,
}

#[inline(never)]
fn malloc(allocator: &Subject, bytes: u64) -> Result<DevicePtr, Error> {
    allocator.malloc(DEVICE, bytes, StreamId::DEFAULT)
}

#[inline(never)]
fn free(allocator: &Subject, block: DevicePtr) -> Result<(), Error> {
    allocator.free(block)
}

/// Runs one iteration: sizes of up to 32 KiB, each block freed eight requests later.
fn iterate(allocator: &Subject, live: &mut Vec<DevicePtr>) -> Result<(), Error> {
    live.clear();
    for number in 0..REQUESTS {
        live.push(malloc(allocator, 512 * (1 + (number as u64 * 7) % 64))?);
        if number >= LIVE {
            free(allocator, live[number - LIVE])?;
        }
    }
    live[REQUESTS - LIVE..].iter().try_for_each(|&block| free(allocator, block))
}

/// Returns the minimum nanoseconds of an operation, and the number of requests served from a plan.
fn measure(config: &str, runs: usize) -> Result<(f64, u64), Box<dyn std::error::Error>> {
    let allocator = Subject::new([SimulatedDevice::new(1 << 40)], &Config::parse(config)?)?;
    let planner = Planner::default();
    let mut live = Vec::with_capacity(REQUESTS);
    for _ in 0..4 {
        planner.iteration(&allocator, DEVICE)?;
        iterate(&allocator, &mut live)?;
        planner.wait();
    }
    let mut least = f64::INFINITY;
    for _ in 0..runs {
        planner.iteration(&allocator, DEVICE)?;
        let start = Instant::now();
        iterate(&allocator, &mut live)?;
        least = least.min(start.elapsed().as_nanos() as f64 / (2 * REQUESTS) as f64);
    }
    Ok((least, allocator.plans(DEVICE).unwrap().report().served))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Cli { runs, config } = Cli::parse();
    for config in &config {
        let (ns, served) = measure(config, runs)?;
        println!("`{config}`: {ns:.1} ns an operation, {served} requests served from a plan");
    }
    Ok(())
}
