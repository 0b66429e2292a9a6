//! Mistakes of programs, failed contexts and failing calls.

use super::setup::{PAGE, Setup};
use cachalot_cuda::CuResult;
use cachalot_emulated_driver::api::ArrayShape;
use cachalot_run::Options;
use cachalot_run::ledger::Kind;
use std::cell::Cell;

/// An illegal address.
const ILLEGAL_ADDRESS: u32 = 700;

#[test]
fn mistaken_frees_answer_as_the_driver_does() {
    let setup = Setup::new();
    let small = [setup.take(512), setup.take(512)];
    let large = setup.take(PAGE);
    assert_eq!((setup.give(0), setup.give(4096)), (0, 1));
    for block in [small[1], large] {
        assert_eq!((setup.give(block + 256), setup.give(block + 1)), (1, 1));
        assert_eq!((setup.give(block), setup.give(block)), (0, 1), "a double free");
    }
    assert_eq!((setup.try_take(0), setup.give(small[0])), (Err(1), 0));
    // SAFETY: null is checked.
    assert_eq!(unsafe { setup.process.mem_alloc(std::ptr::null_mut(), 512) }.0, 1);
    assert_eq!(setup.try_take(usize::MAX), Err(2));
}

#[test]
fn a_failed_context_answers_its_code_at_every_call() {
    let setup = Setup::new();
    let (block, kept) = (setup.take(512), setup.take(512));
    setup.control.break_context(0, ILLEGAL_ADDRESS).expect("the current context");
    assert_eq!(setup.try_take(512), Err(ILLEGAL_ADDRESS));
    assert_eq!((setup.give(block), setup.give(kept)), (ILLEGAL_ADDRESS, ILLEGAL_ADDRESS));
    let mut free = 0;
    // SAFETY: `free` outlives the call, and null is left out.
    assert_eq!(unsafe { setup.process.mem_get_info(&raw mut free, std::ptr::null_mut()) }.0, ILLEGAL_ADDRESS);
}

#[test]
fn work_that_fails_is_told_by_the_next_call() {
    let setup = Setup::new();
    let (block, stream) = (setup.take(512), setup.stream());
    setup.control.fail_later(stream, ILLEGAL_ADDRESS).expect("a stream");
    assert_eq!(setup.cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
    assert_eq!((setup.try_take(512), setup.give(block)), (Err(ILLEGAL_ADDRESS), ILLEGAL_ADDRESS));
}

#[test]
fn a_request_without_a_context_is_the_drivers() {
    let setup = Setup::new();
    assert_eq!(setup.cuCtxSetCurrent(0), 0);
    assert_eq!(setup.try_take(512), Err(201));
    assert_eq!(setup.process.counts().passed, 1);
}

#[test]
fn memory_of_before_is_freed_by_the_driver() {
    let setup = Setup::new();
    let foreign = setup.alloc(PAGE).expect("memory");
    let served = setup.take(PAGE);
    assert_eq!((setup.give(foreign), setup.give(foreign), setup.give(served)), (0, 1, 0));
}

#[test]
fn a_limit_holds_for_served_and_passed_memory() {
    let limit = 16 * PAGE as u64;
    let setup = Setup::with(&[], Options { limit: Some(limit), ..Options::default() });
    let (mut free, mut total) = (0, 0);
    let info = |free: &mut usize, total: &mut usize| {
        // SAFETY: both variables outlive the call.
        assert_eq!(unsafe { setup.process.mem_get_info(free, total) }.0, 0);
    };
    info(&mut free, &mut total);
    assert_eq!((free as u64, total as u64), (limit, limit));
    let blocks: Vec<u64> = (0..8).map(|_| setup.take(2 * PAGE)).collect();
    info(&mut free, &mut total);
    assert_eq!((free, setup.try_take(PAGE)), (0, Err(2)));
    blocks.iter().for_each(|&block| assert_eq!(setup.give(block), 0));
    assert_eq!(setup.cuCtxSynchronize(), 0);
    let block = setup.take(2 * PAGE);
    info(&mut free, &mut total);
    assert_eq!(free as u64, limit - 2 * PAGE as u64, "what is held for later counts as free");
    assert_eq!(setup.give(block), 0);
    assert!(setup.try_take(16 * PAGE).is_ok(), "held memory goes back for a large request");
}

#[test]
fn each_failing_call_of_the_driver_leaves_the_process_whole() {
    const CALLS: [&str; 9] = [
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuCtxRecordEvent",
        "cuEventCreate",
        "cuEventQuery",
        "cuCtxPushCurrent_v2",
        "cuCtxGetCurrent",
        "cuThreadExchangeStreamCaptureMode",
        "cuMemsetD8Async",
    ];
    for call in CALLS {
        for zero in [false, true] {
            let setup = Setup::with(&[], Options { zero, ..Options::default() });
            let stream = setup.stream();
            let plan = format!(r#"{{"fn": "{call}", "percent": 30, "code": 999, "persistent": true}}"#);
            setup.control.plan(&plan).expect("a plan");
            let mut held = Vec::new();
            for round in 0..200_usize {
                if let Ok(block) = setup.try_take(if round % 2 == 0 { 512 * (round + 1) } else { PAGE + round * 512 }) {
                    assert!(!held.contains(&block), "{call}: one address twice");
                    held.push(block);
                }
                if round % 3 == 0 && !held.is_empty() {
                    let block = held.remove(round % held.len());
                    let mut code = setup.give(block);
                    while code == 999 {
                        code = setup.give(block);
                    }
                    assert_eq!(code, 0, "{call}");
                }
            }
            setup.control.clear_plan();
            for &block in &held {
                setup.fill(block, 1, 512, stream);
                assert_eq!(setup.give(block), 0, "{call}");
            }
            assert_eq!(setup.cuCtxSynchronize(), 0);
            let counts = setup.process.counts();
            assert_eq!(counts.used_bytes, 0, "{call}");
            assert!(setup.try_take(PAGE).is_ok());
        }
    }
}

/// Is refused memory, in a process whose messages have nowhere to go.
#[test]
#[ignore = "runs in a process of another test"]
fn refused() {
    let setup = Setup::with(&[], Options { limit: Some(PAGE as u64), ..Options::default() });
    assert_eq!((setup.try_take(2 * PAGE), setup.try_take(512).is_ok()), (Err(2), true));
}

#[test]
fn a_refusal_that_cannot_be_told_is_the_same_refusal() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device");
    let mut command = std::process::Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--exact", "serve::failures::refused", "--ignored", "--nocapture"]);
    let output = command.stderr(full).output().expect("the test runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_limit_is_exact_after_refusals_and_failed_calls_on_many_threads() {
    let limit = 16 * PAGE as u64;
    for (call, observe) in [("cuMemAlloc_v2", false), ("cuMemAlloc_v2", true), ("cuMemFree_v2", true)] {
        let setup = Setup::with(&[], Options { limit: Some(limit), observe, ..Options::default() });
        let plan = format!(r#"{{"fn": "{call}", "percent": 30, "code": 2, "persistent": true}}"#);
        setup.control.plan(&plan).expect("a plan");
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let setup = &setup;
                scope.spawn(move || {
                    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
                    let mut random = fastrand::Rng::with_seed(seed);
                    for _ in 0..100 {
                        let held: Vec<u64> =
                            (0..3).filter_map(|_| setup.try_take(random.usize(1..3 * PAGE)).ok()).collect();
                        held.iter().for_each(|&block| while setup.give(block) == 2 {});
                    }
                });
            }
        });
        setup.control.clear_plan();
        assert_eq!(setup.cuCtxSynchronize(), 0);
        assert_eq!(setup.process.counts().used_bytes, 0, "{call}");
        assert!(setup.try_take(limit as usize).is_ok(), "{call}, observe {observe}");
    }
}

#[test]
fn an_array_beyond_the_limit_is_destroyed_and_refused() {
    let setup = Setup::with(&[], Options { limit: Some(4 * PAGE as u64), ..Options::default() });
    let _open = setup.take(512);
    let free = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(setup.cuMemGetInfo_v2(&mut free, &mut total), 0);
        free
    };
    let create = |height: usize| {
        let shape = ArrayShape { width: 1 << 20, height, format: 1, channels: 1 };
        let array = Cell::new(0);
        let call = || {
            let mut made = 0;
            let code = setup.cuArrayCreate_v2(&mut made, &shape);
            array.set(made);
            CuResult(code)
        };
        let code = setup.process.measured(Kind::Array, false, call, || setup.cuArrayDestroy(array.get()) == 0);
        (code.0, array.get())
    };
    let before = free();
    // A page of the limit serves the small block.
    assert_eq!((create(8).0, free()), (2, before), "8 MiB of 6");
    let (code, array) = create(4);
    assert_eq!((code, before - free()), (0, 2 * PAGE));
    assert_eq!(create(4).0, 2);
    let destroy = || CuResult(setup.cuArrayDestroy(array));
    assert_eq!(setup.process.measured(Kind::Array, true, destroy, || false).0, 0);
    assert_eq!((create(4).0, create(1).0), (0, 0));
}
