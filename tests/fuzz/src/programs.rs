//! Any program on the core and on a naive model. Both must agree, and at the end all memory must be
//! released.

use cachalot_tests::arbitrary::Program;
use cachalot_tests::twins::Twins;

/// Memory of the device in bytes. Small, so that programs exhaust the memory.
const CAPACITY: u64 = 256 << 20;

/// Number of operations between two comparisons of segments and statistics, which take longer than
/// an operation with an answer.
const OPERATIONS_PER_CHECK: usize = 16;

/// Runs the program encoded in the bytes.
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
