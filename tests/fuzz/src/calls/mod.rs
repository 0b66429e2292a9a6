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

/// Declares calls, each in a line: the arguments, drawn in their order, and how the call is made.
macro_rules! calls {
    (|$world:ident| $($name:ident($($argument:ident: $type:ty),*) => $make:expr,)*) => {
        /// A call.
        #[derive(arbitrary::Arbitrary, Debug)]
        pub(super) enum Call {
            $($name($($type),*),)*
        }

        impl Call {
            /// Makes the call.
            pub(super) fn make(&self, $world: &mut super::world::World) -> cachalot_status {
                match self {
                    $(Self::$name($($argument),*) => $make,)*
                }
            }
        }
    };
}

mod allocators;
mod argument;
mod callbacks;
mod memory;
mod observation;
mod pools;
mod world;

use arbitrary::{Arbitrary, Unstructured};
use world::World;

/// Greatest number of calls in a run.
const MOST_CALLS: usize = 1000;

/// The options of an allocator, and calls of the allocator.
#[derive(Arbitrary, Debug)]
struct Scenario {
    options: allocators::Options,
    calls: Vec<Call>,
}

/// A call of a function, with its arguments.
#[derive(Arbitrary, Debug)]
enum Call {
    Allocator(allocators::Call),
    // Most calls are about blocks, because all other calls work on blocks.
    Memory(memory::Call),
    MoreMemory(memory::Call),
    YetMoreMemory(memory::Call),
    Pool(pools::Call),
    Observation(observation::Call),
}

/// Makes the calls encoded in the bytes.
///
/// # Panics
/// If a call panics inside the library, returns memory in use, frees memory that the program does
/// not hold, or leaves memory or pools that cannot be released.
pub fn run(bytes: &[u8]) {
    let Ok(scenario) = Scenario::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let mut world = World::default();
    world.create(&scenario.options);
    for call in scenario.calls.iter().take(MOST_CALLS) {
        let status = match call {
            Call::Allocator(call) => call.make(&mut world),
            Call::Memory(call) | Call::MoreMemory(call) | Call::YetMoreMemory(call) => call.make(&mut world),
            Call::Pool(call) => call.make(&mut world),
            Call::Observation(call) => call.make(&mut world),
        };
        world::check(status, call);
    }
    world.end();
}
