//! Tables of fixed capacity: the programs of the other tests, and errors without changes when
//! entries run out.

use cachalot_core::{Error, Fixed, Storage};
use cachalot_tests::program::Op;
use cachalot_tests::seen::Seen;
use cachalot_tests::strategies::{program, proptest_config, with_pools};
use cachalot_tests::twins::Twins;
use proptest::prelude::*;
use std::thread;

const CAPACITY: u64 = 256 << 20;

/// An allocator with all tables inside, created on the stack.
const STACK_BYTES: usize = 256 << 20;

fn run<S: Storage>(number: u8, program: &[Op]) -> Result<u32, String> {
    let mut twins = Box::new(Twins::<spin::mutex::SpinMutex<()>, S>::limited(CAPACITY, number));
    let mut refused = 0;
    for (number, op) in program.iter().enumerate() {
        let at = |why| format!("operation {number}, {op:?}: {why}");
        let before = Seen::of(&twins);
        let error = twins.act(op).map_err(at)?;
        twins.check().map_err(at)?;
        if let Some(Error::TableFull(_)) = error {
            refused += 1;
            before.check_unchanged_by(op, &Seen::of(&twins)).map_err(at)?;
        }
    }
    twins.finish()?;
    Ok(refused)
}

fn run_with_stack<S: Storage>(number: u8, program: &[Op]) -> Result<u32, String> {
    thread::scope(|scope| {
        let spawned = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || run::<S>(number, program));
        spawned.map_err(|error| error.to_string())?.join().map_err(|_| "the program panicked".to_owned())?
    })
}

/// Few blocks, and four pairs of heaps.
type FewBlocks = Fixed<2, 8, 16, 64>;
/// Fewer blocks than pairs of heaps.
type ThreeBlocks = Fixed<2, 8, 3, 64>;
/// One pair of heaps, and fewer pages than blocks.
type OnePair = Fixed<2, 2, 32, 8>;
/// Not even a pair of heaps, and no block.
type Nothing = Fixed<2, 1, 0, 1>;
/// More of everything than a program needs.
type Ample = Fixed<2, 32, 256, 512>;

/// Runs a test for many capacities, including the smallest possible. Each type takes seconds to
/// compile.
macro_rules! fixed {
    ($($name:ident: $storage:ty, $cases:literal;)+) => {
        $(
            proptest! {
                #![proptest_config(proptest_config("regressions/fixed.txt", $cases))]
                #[test]
                fn $name((number, program) in program(with_pools(), 100)) {
                    run_with_stack::<$storage>(number, &program).map_err(TestCaseError::fail)?;
                }
            }
        )+
    };
}

fixed! {
    few_blocks: FewBlocks, 40;
    three_blocks: ThreeBlocks, 10;
    one_pair_of_heaps_and_few_pages: OnePair, 20;
    not_even_a_pair: Nothing, 10;
    room_for_everything: Ample, 5;
}

/// Allocates until a table is full, then frees all blocks.
fn fill<S: Storage>(requests: impl Iterator<Item = Op> + Send, full: &'static str) {
    thread::scope(|scope| {
        let filled = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || {
            let mut twins = Box::new(Twins::<spin::mutex::SpinMutex<()>, S>::alone(CAPACITY, 0));
            for op in requests {
                let before = Seen::of(&twins);
                let error = twins.act(&op).unwrap();
                twins.check().unwrap();
                if let Some(error) = error {
                    assert_eq!(error, Error::TableFull(full), "{op:?}");
                    before.check_unchanged_by(&op, &Seen::of(&twins)).unwrap();
                    twins.finish().unwrap();
                    return;
                }
            }
            panic!("the table of {full} never fills up");
        });
        filled.unwrap().join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn each_table_that_is_full_is_named() {
    let small = || std::iter::repeat(Op::Malloc { bytes: 1, stream: 0 });
    fill::<FewBlocks>(small(), "blocks");
    fill::<OnePair>(std::iter::repeat(Op::Malloc { bytes: 5 << 20, stream: 0 }), "pages");
    fill::<OnePair>((0..2).map(|stream| Op::Malloc { bytes: 1, stream }), "heaps");
    fill::<ThreeBlocks>((0..4).map(|stream| Op::Malloc { bytes: 1 << 20, stream }), "streams");
    let pools = std::iter::repeat(Op::CreatePool { use_on_oom: false, no_split: false });
    // As many pools as pairs of heaps, or as blocks.
    fill::<FewBlocks>(pools.clone(), "pools");
    fill::<ThreeBlocks>(pools.clone(), "pools");
    fill::<FewBlocks>(pools.take(1).chain(std::iter::repeat(Op::Route { pool: 1, stream: None })), "routes");
    let used = [Op::Malloc { bytes: 1, stream: 0 }, Op::RecordStream { block: 0, stream: 1 }, Op::Free { block: 0 }];
    fill::<FewBlocks>(used.into_iter().cycle(), "blocks");
    let used_by_three = [1, 2, 3].map(|stream| Op::RecordStream { block: 0, stream });
    let used = [&[Op::Malloc { bytes: 1, stream: 0 }], &used_by_three[..], &[Op::Free { block: 0 }]].concat();
    fill::<FewBlocks>(used.into_iter().cycle(), "events");
    let capture = [Op::CreatePool { use_on_oom: false, no_split: false }, Op::Capture { pool: 1, stream: 3 }];
    let freed =
        |stream| [Op::Malloc { bytes: 1, stream }, Op::RecordStream { block: 0, stream: 3 }, Op::Free { block: 0 }];
    fill::<FewBlocks>(capture.into_iter().chain((0..3).cycle().flat_map(freed)), "deferred frees");
    fill::<FewBlocks>(std::iter::once(Op::Trace { capacity: 17 }), "trace entries");
}

#[test]
fn more_devices_than_fit() {
    use cachalot_core::simulated::SimulatedDevice;
    use cachalot_core::{Allocator, Config};
    let devices = [0, 1, 2].map(|number| SimulatedDevice::numbered(number, CAPACITY));
    let made = Allocator::<_, spin::mutex::SpinMutex<()>, Nothing>::new(devices, &Config::new());
    assert_eq!(made.err(), Some(Error::TableFull("devices")));
}
