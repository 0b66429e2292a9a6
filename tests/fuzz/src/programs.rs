//! Any program on the core and on a naive model of it: both do the same, and in the end everything is given back.

use cachalot_tests::arbitrary::Program;
use cachalot_tests::twins::Twins;

/// Small, so that programs run out of it.
const CAPACITY: u64 = 256 << 20;

/// After so many operations segments and statistics are compared too, which takes longer than an
/// operation and its answer.
const OPERATIONS_PER_CHECK: usize = 16;

/// Runs the program that is made of these bytes.
///
/// # Panics
/// If the core and the model differ.
pub fn run(bytes: &[u8]) {
    let Some(program) = Program::from_bytes(bytes) else { return };
    let mut twins = Twins::<spin::mutex::SpinMutex<()>>::new(CAPACITY, program.config);
    for (number, op) in program.ops.iter().enumerate() {
        let is_last = number % OPERATIONS_PER_CHECK == OPERATIONS_PER_CHECK - 1;
        let done = twins.act(op).and_then(|_| if is_last { twins.check() } else { Ok(()) });
        done.unwrap_or_else(|why| panic!("operation {number}, {op:?}: {why}"));
    }
    twins.finish().unwrap_or_else(|why| panic!("{why}"));
}
