//! What the fuzzer has found, and the programs that reach all that it has ever reached (`fuzz/seeds`).

use cachalot_tests::arbitrary::Program;
use cachalot_tests::twins::Twins;
use std::path::Path;

/// As the fuzzer has it.
const CAPACITY: u64 = 256 << 20;

#[test]
fn every_seed_of_the_fuzzer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/programs");
    let mut longest = 0;
    for seed in std::fs::read_dir(folder).unwrap() {
        let path = seed.unwrap().path();
        let Some(program) = Program::from_bytes(&std::fs::read(&path).unwrap()) else { continue };
        let mut twins = Twins::<spin::mutex::SpinMutex<()>>::new(CAPACITY, program.config);
        let result = twins.run(&program.ops).and_then(|()| twins.finish());
        result.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        longest = longest.max(program.ops.len());
    }
    assert!(longest > 100, "the seeds are read as they were written");
}
