//! Fault injection: each device call fails at each occurrence in a program with all operations. No
//! panic, no change by a failed operation, no uncounted loss, and normal service afterwards.

use cachalot_core::ErrorKind;
use cachalot_core::simulated::Call;
use cachalot_tests::policies::policies;
use cachalot_tests::program::{CONFIGS, Op};
use cachalot_tests::sweep::{CAPACITY, Sweep, capture, common, releases};
use cachalot_tests::twins::Twins;

/// Numbers of the configurations between which the program changes, for [`Op::Configure`].
const PLAIN: u8 = 0;
const SPLIT_32: u8 = 2;
const EXPANDABLE: u8 = 11;

fn program() -> Vec<Op> {
    let configure = |config| vec![Op::Configure { config }];
    [
        common(),
        capture(),
        configure(SPLIT_32),
        releases(),
        configure(EXPANDABLE),
        common(),
        capture(),
        releases(),
        configure(PLAIN),
        common(),
    ]
    .concat()
}

fn sweep() -> Sweep {
    Sweep::new(CONFIGS[usize::from(PLAIN)], program())
}

#[test]
fn the_program_makes_every_call() {
    for (call, made) in sweep().occurrences() {
        // Events are kept and used again, and no memory moves between streams. The sweep of the
        // stitched policy exports pages, that of `capture_reuse` marks graphs, idle streams are
        // told on demand, and the core's own tests park memory and spill.
        let elsewhere = [
            Call::DestroyEvent,
            Call::OrderBehind,
            Call::Export,
            Call::MarkCapture,
            Call::IsBehind,
            Call::IsIdle,
            Call::CreateAtHost,
        ];
        let parking = [
            Call::SynchronizeAll,
            Call::Prepare,
            Call::Save,
            Call::Restore,
            Call::Zero,
            Call::Copy,
            Call::Mark,
            Call::Finish,
        ];
        assert_eq!(made.is_empty(), elsewhere.contains(&call) || parking.contains(&call), "{call:?}");
    }
}

#[test]
fn the_program_agrees_with_the_model() {
    let mut twins = Twins::<spin::mutex::SpinMutex<()>>::new(CAPACITY, PLAIN);
    twins.run(&program()).unwrap();
    twins.finish().unwrap();
}

#[test]
fn any_call_once_out_of_memory() {
    sweep().fail_everywhere(ErrorKind::OutOfMemory, false);
}

#[test]
fn any_call_out_of_memory_from_then_on() {
    sweep().fail_everywhere(ErrorKind::OutOfMemory, true);
}

#[test]
fn any_call_once_for_whatever_reason() {
    sweep().fail_everywhere(ErrorKind::Other, false);
}

#[test]
fn any_call_for_whatever_reason_from_then_on() {
    sweep().fail_everywhere(ErrorKind::Other, true);
}

/// After the call that lost the context, the allocator never calls the device, and errors carry the
/// code of the lost call.
#[test]
fn a_lost_context() {
    sweep().lose_the_context_everywhere();
}

/// Fault injection under every policy, with a shorter program.
fn under_every_policy(check: impl Fn(&Sweep)) {
    for policy in policies() {
        check(&Sweep::new(policy, [common(), capture(), releases()].concat()));
    }
}

#[test]
fn any_call_once_out_of_memory_under_every_policy() {
    under_every_policy(|sweep| sweep.fail_everywhere(ErrorKind::OutOfMemory, false));
}

#[test]
fn any_call_for_whatever_reason_from_then_on_under_every_policy() {
    under_every_policy(|sweep| sweep.fail_everywhere(ErrorKind::Other, true));
}

#[test]
fn a_lost_context_under_every_policy() {
    under_every_policy(Sweep::lose_the_context_everywhere);
}
