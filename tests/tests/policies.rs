//! Generated programs under every policy, with the external invariants checked after every
//! operation. `faults.rs` has failing device calls, and `threads.rs` has threads, over the same
//! list of policies.

use cachalot_tests::policies::policies;
use cachalot_tests::program::Op;
use cachalot_tests::strategies::{plain, proptest_config, with_pools};
use cachalot_tests::twins::Twins;
use proptest::prelude::*;

/// Capacity of the device: small, so that programs run out of memory.
const CAPACITY: u64 = 256 << 20;

fn hold_under_every_policy(program: &[Op]) -> Result<(), TestCaseError> {
    for policy in policies() {
        hold(policy, program).map_err(|why| TestCaseError::fail(format!("`{policy}`: {why}")))?;
    }
    Ok(())
}

/// Checks that blocks tile the segments, statistics add up, blocks belong to the program, forecasts
/// come true, limits hold, and all memory is released at the end.
fn hold(policy: &str, program: &[Op]) -> Result<(), String> {
    let config = cachalot_policies::parse(policy).map_err(|error| error.to_string())?;
    let mut twins = Twins::<spin::mutex::SpinMutex<()>>::alone_with(CAPACITY, &config).with_forecasts();
    for (number, op) in program.iter().enumerate() {
        let before = reserved(&twins);
        let held = twins.step(op).and_then(|()| {
            twins.check_held()?;
            check_limit(&twins, before)
        });
        held.map_err(|why| format!("operation {number}, {op:?}: {why}"))?;
    }
    twins.finish()
}

fn reserved(twins: &Twins) -> u64 {
    twins.real().device(twins.device()).expect("it has the device").used()
}

/// Checks that no memory is allocated beyond the limit, except for the rest of an expandable
/// segment's last granule.
fn check_limit(twins: &Twins, before: u64) -> Result<(), String> {
    let (limit, config) = (
        twins.real().settings(twins.device()).map(|settings| settings.limit()),
        twins.real().settings(twins.device()).map(|settings| settings.config()),
    );
    let (limit, config) = (limit.map_err(|error| error.to_string())?, config.map_err(|error| error.to_string())?);
    let now = reserved(twins);
    match limit {
        Some(limit) if now > before.max(limit) && !config.expandable_segments() => {
            Err(format!("{now} bytes are held, more than {before} before; the limit is {limit}"))
        }
        _ => Ok(()),
    }
}

proptest! {
    #![proptest_config(proptest_config("regressions/policies.txt", 10))]

    #[test]
    fn requests_and_frees(program in prop::collection::vec(plain(), 1..120)) {
        hold_under_every_policy(&program)?;
    }

    #[test]
    fn pools_captures_and_changing_settings(program in prop::collection::vec(with_pools(), 1..160)) {
        hold_under_every_policy(&program)?;
    }
}
