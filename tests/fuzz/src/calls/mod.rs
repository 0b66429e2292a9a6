//! Any sequence of calls of the C interface, on simulated devices.
//!
//! ```text
//! argument      arguments that are mostly sensible ─┐
//! callbacks     functions that the library calls    │
//! allocators    creation, settings, description    ─┼─▶ World: the handle, blocks and pools so far
//! memory        blocks, the cache, limits           │
//! pools         pools, routes, captures, streams    │
//! observation   statistics, traces, snapshots      ─┘
//! ```

mod allocators;
mod argument;
mod callbacks;
mod memory;
mod observation;
mod pools;
mod world;

use arbitrary::{Arbitrary, Unstructured};
use world::World;

/// The most calls that are made.
const MOST_CALLS: usize = 1000;

/// The options of an allocator, and what is done with it.
#[derive(Arbitrary, Debug)]
struct Scenario {
    options: allocators::Options,
    calls: Vec<Call>,
}

/// A call of a function, with its arguments.
#[derive(Arbitrary, Debug)]
enum Call {
    Allocator(allocators::Call),
    // Blocks are what the others work on.
    Memory(memory::Call),
    MoreMemory(memory::Call),
    YetMoreMemory(memory::Call),
    Pool(pools::Call),
    Observation(observation::Call),
}

/// Makes the calls of these bytes.
///
/// # Panics
/// If a call ends in a panic of the library, hands out memory that is in use, takes what the program
/// does not hold, or leaves something that cannot be given back.
pub fn run(bytes: &[u8]) {
    let Ok(scenario) = Scenario::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let mut world = World::default();
    world.create(&scenario.options);
    for call in scenario.calls.iter().take(MOST_CALLS) {
        let status = match call {
            Call::Allocator(call) => world.call_allocator(call),
            Call::Memory(call) | Call::MoreMemory(call) | Call::YetMoreMemory(call) => world.call_memory(call),
            Call::Pool(call) => world.call_pool(call),
            Call::Observation(call) => world.call_observation(call),
        };
        world::check(status, call);
    }
    world.end();
}
