//! Any program at all: the core and the model do the same, and in the end everything goes back.
//! `cargo fuzz run programs`

#![no_main]

use cachalot_tests::arbitrary::Program;
use cachalot_tests::twins::Twins;

/// Small, so that programs run out of it.
const CAPACITY: u64 = 256 << 20;

/// Answers are compared after every operation. What lasts, segments and statistics, takes longer to compare than a fuzzer has: it
/// is seen after one in so many.
const LOOKS: usize = 16;

fn run(program: &Program) -> Result<(), String> {
    let mut twins = Twins::<spin::mutex::SpinMutex<()>>::new(CAPACITY, program.config);
    for (number, op) in program.ops.iter().enumerate() {
        let done = twins.act(op).and_then(|_| if number % LOOKS == LOOKS - 1 { twins.check() } else { Ok(()) });
        done.map_err(|why| format!("operation {number}, {op:?}: {why}"))?;
    }
    twins.finish()
}

libfuzzer_sys::fuzz_target!(|program: Program| {
    if let Err(why) = run(&program) {
        panic!("{why}");
    }
});
