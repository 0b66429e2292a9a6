//! Differential test: generated programs on core and model, with equal addresses, blocks and
//! statistics after every operation.

use cachalot_tests::program::{CONFIGS, FIRST_WITHOUT_PARITY, Op};
use cachalot_tests::strategies::{plain, program, proptest_config, with_pools, with_settings, within_captures};
use cachalot_tests::twins::Twins;
use proptest::prelude::*;

/// Capacity of the device: small, so that programs run out of memory.
const CAPACITY: u64 = 256 << 20;

fn agree(number: u8, program: &[Op]) -> Result<(), TestCaseError> {
    let mut twins = Twins::<spin::mutex::SpinMutex<()>>::new(CAPACITY, number);
    twins.run(program).and_then(|()| twins.finish()).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(proptest_config("regressions/agreement.txt", 60))]

    #[test]
    fn requests_and_frees((number, program) in program(plain(), 120)) {
        agree(number, &program)?;
    }

    #[test]
    fn changing_settings((number, program) in program(with_settings(), 120)) {
        agree(number, &program)?;
    }

    #[test]
    fn without_parity((number, program) in program(with_settings(), 160)) {
        agree(FIRST_WITHOUT_PARITY + number, &program)?;
    }

    #[test]
    fn streams_that_are_told_to_be_idle((number, program) in program(with_pools(), 160)) {
        let mut twins = Twins::<spin::mutex::SpinMutex<()>>::telling_idle_streams(CAPACITY, FIRST_WITHOUT_PARITY + number);
        twins.run(&program).and_then(|()| twins.finish()).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn pools_and_captures_without_parity((number, program) in program(with_pools(), 160)) {
        agree(FIRST_WITHOUT_PARITY + number, &program)?;
    }

    #[test]
    fn graphs_that_reuse_blocks((number, program) in program(within_captures(), 160)) {
        // Half of the programs with PyTorch's moments.
        agree(if number % 2 == 0 { CONFIGS.len() as u8 - 1 } else { FIRST_WITHOUT_PARITY + 3 }, &program)?;
    }

    #[test]
    fn pools_and_captures((number, program) in program(with_pools(), 160)) {
        agree(number, &program)?;
    }
}
