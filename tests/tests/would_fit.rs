//! The results of requests are as foretold by `would_fit`, under every policy. A forecast changes
//! nothing.

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{Allocator, Bound, DeviceIndex, Error, Fit, Forecasts, Growable, Lock, Segments, StreamId};
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use cachalot_tests::policies::policies;
use cachalot_tests::program::{Op, stream};
use cachalot_tests::strategies::{bytes, proptest_config, with_pools, with_settings};
use cachalot_tests::twins::Twins;
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

/// Capacity of the device: small, so that programs run out of memory.
const CAPACITY: u64 = 256 << 20;

/// Configurations beside [`policies`].
const MORE: [&str; 4] = [
    "policy:size_class,chunk_mb:2",
    "policy:slab,largest_object_kb:64",
    "policy:planned",
    "policy:planned,fallback:buddy",
];

/// A step of a program: an operation, or a question followed by the requests.
#[derive(Clone, Debug)]
enum Step {
    Do(Op),
    Ask(Vec<u64>, u8),
}

fn step(op: impl Strategy<Value = Op>) -> impl Strategy<Value = Step> {
    let ask = (prop::collection::vec(bytes(), 0..8), 0..cachalot_tests::program::STREAMS);
    prop_oneof![6 => op.prop_map(Step::Do), 1 => ask.prop_map(|(sizes, stream)| Step::Ask(sizes, stream))]
}

/// The state of a device that a question must not change.
fn state<R: Lock>(real: &Allocator<SimulatedDevice, R, Growable>, device: DeviceIndex) -> impl PartialEq + use<R> {
    let calls = Call::ALL
        .into_iter()
        .filter(|c| *c != Call::IsCapturing)
        .map(|call| real.device(device).expect("a device").calls(call))
        .collect::<Vec<_>>();
    (real.snapshot(), real.stats(device).expect("a device").totals(), calls)
}

fn forecast(twins: &Twins) -> Forecasts<'_, SimulatedDevice, spin::mutex::SpinMutex<()>, Growable> {
    twins.real().forecast(twins.device()).expect("a device")
}

/// Asks, makes the requests, and compares.
fn ask(twins: &mut Twins, sizes: &[u64], number: u8, exact: bool) -> Result<(), String> {
    // Events that are complete are not pending any more.
    twins.act(&Op::ProcessEvents)?;
    let device = twins.device();
    let memory = twins.real().device(device).expect("a device").memory_info();
    if let Ok(memory) = memory {
        forecast(twins).note_memory(memory);
    }
    let before = state(twins.real(), device);
    let answer = if exact {
        let onto = twins.real().device(device).expect("a device").duplicate();
        forecast(twins).would_fit_on(onto, sizes, stream(number))
    } else {
        forecast(twins).would_fit(sizes, stream(number))
    };
    if before != state(twins.real(), device) {
        return Err("the question has changed the allocator, or called the device".to_owned());
    }
    let reserved = |twins: &Twins| {
        let held = forecast(twins).would_fit(&[], stream(number)).map(|fit| fit.reserved_bytes);
        held.map_err(|error| error.to_string())
    };
    let mut held = if answer.is_ok() { reserved(twins)? } else { 0 };
    for (served, &bytes) in sizes.iter().enumerate() {
        let error = twins.act(&Op::Malloc { bytes, stream: number })?;
        match (&answer, error) {
            (Ok(fit), None) if fit.served > served => held = reserved(twins)?,
            (Ok(Fit { served: told, bound: Some(Bound::Fraction), .. }), Some(Error::Rejected(_)))
                if *told == served =>
            {
                break;
            }
            (Ok(Fit { served: told, bound: Some(bound), .. }), Some(Error::OutOfMemory(_)))
                if *told == served && *bound != Bound::Fraction =>
            {
                break;
            }
            (Err(_), None) => {}
            (Err(told), Some(error)) if *told == error => return Ok(()),
            (answer, error) => return Err(format!("told {answer:?}, request {served} of {bytes} bytes: {error:?}")),
        }
    }
    match answer {
        Ok(fit) if fit.reserved_bytes == held => Ok(()),
        answer => Err(format!("told {answer:?}, {held} bytes are reserved")),
    }
}

fn come_true(policy: &str, program: &[Step], exact: bool) -> Result<(), String> {
    let config = cachalot_policies::parse(policy).map_err(|error| error.to_string())?;
    let mut twins: Twins = Twins::alone_with(CAPACITY, &config);
    for (number, step) in program.iter().enumerate() {
        let outcome = match step {
            Step::Do(op) => twins.act(op).map(|_| ()),
            Step::Ask(sizes, stream) => ask(&mut twins, sizes, *stream, exact),
        };
        outcome.map_err(|why| format!("`{policy}`, step {number}, {step:?}: {why}"))?;
    }
    Ok(())
}

fn every_policy() -> impl Iterator<Item = &'static str> {
    policies().chain(MORE)
}

proptest! {
    #![proptest_config(proptest_config("regressions/would_fit.txt", 12))]

    /// With a duplicate of the device, events, addresses and captures are equal, and nothing is
    /// assumed.
    #[test]
    fn requests_come_out_as_told(program in prop::collection::vec(step(with_pools()), 1..150)) {
        for policy in every_policy() {
            come_true(policy, &program, true).map_err(TestCaseError::fail)?;
        }
    }

    /// Without a duplicate, work of other streams is unknown, so no block is used by two streams.
    #[test]
    fn requests_of_one_stream_come_out_as_told(program in prop::collection::vec(step(alone()), 1..150)) {
        for policy in every_policy() {
            come_true(policy, &program, false).map_err(TestCaseError::fail)?;
        }
    }
}

/// Operations without pending frees, and without unnoticed completions of work.
fn alone() -> impl Strategy<Value = Op> {
    let is_unknown = |op: &Op| matches!(op, Op::RecordStream { .. } | Op::Complete { .. } | Op::CompleteOne { .. });
    with_settings().prop_map(move |op| if is_unknown(&op) { Op::ProcessEvents } else { op })
}

#[test]
fn the_answer_names_the_bound() {
    let host = Host::new("", 1 << 30);
    let forecast = host.allocator.forecast(DEVICE).expect("a device");
    let ask = |sizes: &[u64]| forecast.would_fit(sizes, STREAM).expect("an answer");
    // The device was never asked for its memory.
    let fit = ask(&[4000 * MIB]);
    assert_eq!((fit.served, fit.new_bytes, fit.bound, fit.device_free), (1, 4000 * MIB, None, None));
    host.allocator.settings(DEVICE).expect("a fraction").set_memory_fraction(1.0).expect("a fraction");
    let fit = ask(&[600 * MIB, 600 * MIB]);
    assert_eq!((fit.served, fit.new_bytes, fit.bound), (1, 600 * MIB, Some(Bound::Device)));
    assert_eq!(fit.device_free, Some(1 << 30));
    host.allocator.settings(DEVICE).expect("a limit").set_limit(Some(500 * MIB));
    let fit = ask(&[100 * MIB, 600 * MIB]);
    assert_eq!((fit.served, fit.new_bytes, fit.bound), (1, 100 * MIB, Some(Bound::Limit)));
    let block = host.malloc(300 * MIB);
    assert_eq!(
        ask(&[]),
        Fit { served: 0, reserved_bytes: 300 * MIB, new_bytes: 0, bound: None, device_free: Some(724 * MIB) }
    );
    host.free(block);
    // The cached block serves the request, or goes to make room for a larger one.
    assert_eq!((ask(&[300 * MIB]).new_bytes, ask(&[400 * MIB]).new_bytes), (0, 100 * MIB));
    assert_eq!(forecast.would_fit(&[100], StreamId(u64::MAX)), Err(Error::InvalidStream));
    let unknown = host.allocator.forecast(DeviceIndex(7)).map(|_| ());
    assert_eq!(unknown, Err(Error::UnknownDevice(DeviceIndex(7))));
}

/// A thread records an event while another asks. In the copy the thread never finishes, and the
/// answer does not wait for it.
#[test]
fn a_thread_at_work_holds_no_answer_up() {
    type Tested = Allocator<Hooked, spin::mutex::SpinMutex<()>, Growable>;
    // A block that waits in no queue yet stays pending. An event that is recorded anew frees the
    // others.
    for (config, served) in [("", 0), ("parity:False", 1), ("policy:stitched,completed_pages_only:True", 1)] {
        let device = Hooked::new(SimulatedDevice::new(100 * MIB));
        let allocator =
            Arc::new(Tested::new([device], &cachalot_policies::parse(config).expect("valid")).expect("one device"));
        // The device tells its memory.
        allocator.settings(DEVICE).expect("a fraction").set_memory_fraction(1.0).expect("a fraction");
        let block = allocator.malloc(DEVICE, 60 * MIB, STREAM).expect("memory");
        allocator.record_stream(block, StreamId(9)).expect("a live block");
        let (asked, answer) = (Arc::clone(&allocator), Arc::new(OnceLock::new()));
        let told = Arc::clone(&answer);
        allocator.device(DEVICE).expect("one device").on_record(move || {
            let fit = asked.forecast(DEVICE).expect("a device").would_fit(&[80 * MIB], STREAM);
            told.set(fit.map(|fit| fit.served)).expect("an event is recorded once");
        });
        allocator.free(block).expect("a live block");
        allocator.process_events(DEVICE).expect("a device");
        assert_eq!(answer.get(), Some(&Ok(served)), "{config}");
        allocator.check_invariants().expect("nothing has changed");
    }
}
