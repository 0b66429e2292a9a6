//! What an operation costs that a plan serves, beside one that the caching policy serves from its cache: the same program, which
//! repeats itself. The least of many runs, so that little else on the machine shows. For instructions run it under `valgrind
//! --tool=callgrind` with one policy and two numbers of runs: the difference is the runs'.

use cachalot::{
    Allocator, Config, DeviceIndex, DevicePtr, Error, Growable, HeapLock, Planner, SimulatedDevice, StreamId,
};
use clap::Parser;
use std::time::Instant;

type Subject = Allocator<SimulatedDevice, HeapLock, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Requests of one iteration.
const REQUESTS: usize = 1000;
/// How many blocks are held at a time.
const HELD: usize = 8;

/// Nanoseconds of an operation that a plan serves, and of one that the cache serves.
#[derive(Parser)]
struct Cli {
    /// How many iterations are timed
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

/// Sizes of up to 32 KiB, each block freed eight requests later.
fn iterate(allocator: &Subject, held: &mut Vec<DevicePtr>) -> Result<(), Error> {
    held.clear();
    for number in 0..REQUESTS {
        held.push(malloc(allocator, 512 * (1 + (number as u64 * 7) % 64))?);
        if number >= HELD {
            free(allocator, held[number - HELD])?;
        }
    }
    held[REQUESTS - HELD..].iter().try_for_each(|&block| free(allocator, block))
}

/// The least time of an operation in nanoseconds, and how many requests a plan has served.
fn measure(config: &str, runs: usize) -> Result<(f64, u64), Box<dyn std::error::Error>> {
    let allocator = Subject::new([SimulatedDevice::new(1 << 40)], &Config::parse(config)?)?;
    let planner = Planner::default();
    let mut held = Vec::with_capacity(REQUESTS);
    for _ in 0..4 {
        planner.iteration(&allocator, DEVICE)?;
        iterate(&allocator, &mut held)?;
        planner.wait();
    }
    let mut least = f64::INFINITY;
    for _ in 0..runs {
        planner.iteration(&allocator, DEVICE)?;
        let start = Instant::now();
        iterate(&allocator, &mut held)?;
        least = least.min(start.elapsed().as_nanos() as f64 / (2 * REQUESTS) as f64);
    }
    Ok((least, allocator.planned_report(DEVICE)?.served))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Cli { runs, config } = Cli::parse();
    for config in &config {
        let (ns, served) = measure(config, runs)?;
        println!("`{config}`: {ns:.1} ns an operation, {served} requests served from a plan");
    }
    Ok(())
}
