//! The fault plan, the call log, the leak report.

use crate::common::{Emulated, PAGE, in_child, is_child, text};
use serde_json::Value;

#[test]
fn the_nth_call_fails_before_it_acts() {
    let driver = Emulated::new();
    driver.control.plan(r#"[{"fn": "cuMemAlloc_v2", "nth": 2, "code": 2}]"#).expect("a plan");
    let results: Vec<u32> = (0..4).map(|_| driver.alloc(PAGE).err().unwrap_or(0)).collect();
    assert_eq!(results, [0, 2, 0, 0]);
    assert_eq!((driver.count("allocations"), driver.control.faults()), (3, 1));
}

#[test]
fn a_call_that_fails_after_it_acted_hands_nothing_out() {
    let driver = Emulated::new();
    let address = driver.alloc(PAGE).expect("memory");
    driver.control.plan(r#"[{"fn": "*", "code": 700, "when": "after", "count": 2}]"#).expect("a plan");
    let mut untouched = 7;
    assert_eq!((driver.cuMemAlloc_v2(&mut untouched, PAGE), untouched), (700, 7));
    assert_eq!(driver.cuMemFree_v2(address), 700);
    // Both acted: the old memory is freed, and the new memory exists without a known address.
    assert_eq!((driver.cuMemFree_v2(address), driver.count("allocations")), (1, 1));
    let report = driver.control.report();
    assert_eq!(report["abandoned"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["abandoned"][0]["kind"], "allocation");
}

#[test]
fn a_persistent_fault_lasts_until_the_plan_is_cleared() {
    let driver = Emulated::new();
    driver.control.plan(r#"{"fn": "cuEventCreate", "nth": 3, "persistent": true, "code": 999}"#).expect("a plan");
    let results: Vec<u32> = (0..6).map(|_| driver.event().err().unwrap_or(0)).collect();
    assert_eq!(results, [0, 0, 999, 999, 999, 999]);
    driver.control.clear_plan();
    assert!(driver.event().is_ok());
    assert!(driver.control.plan(r#"[{"fn": "cuEventCreat", "code": 1}]"#).is_err());
    assert!(driver.control.plan("[").is_err());
}

#[test]
fn every_function_can_be_failed() {
    let driver = Emulated::new();
    for name in cachalot_emulated_driver::install::symbols() {
        driver.control.clear_plan();
        let rule = format!(r#"{{"fn": "{name}", "code": 4242}}"#);
        driver.control.plan(&rule).expect("a plan");
        let (calls, faults) = (driver.control.calls(name), driver.control.faults());
        assert_eq!(call(&driver, name), 4242, "{name}");
        assert_eq!((driver.control.calls(name), driver.control.faults()), (calls + 1, faults + 1));
    }
}

/// Calls a function by name with zeros. A fault before the call acts keeps the function from
/// reading the arguments.
fn call(driver: &Emulated, name: &str) -> u32 {
    type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;
    // SAFETY: the symbol is a function of at most eleven arguments.
    let function: libloading::Symbol<'_, Any> = unsafe { driver.control.library().get(name) }.expect("exported");
    // SAFETY: the function takes at most eleven arguments and is stopped before the first use.
    unsafe { function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) }
}

#[test]
fn a_slow_call_does_not_stop_the_others() {
    let driver = Emulated::new();
    driver.control.plan(r#"{"fn": "cuMemAlloc_v2", "delay_us": 2000000, "when": "before"}"#).expect("a plan");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            driver.enter(0).expect("a context");
            driver.alloc(PAGE).map(drop)
        });
        while driver.control.calls("cuMemAlloc_v2") == 0 {
            std::thread::yield_now();
        }
        assert!(driver.alloc(PAGE).is_ok());
        assert!(!slow.is_finished(), "the second call overtook the first");
        assert_eq!(slow.join().expect("joined"), Ok(()));
    });
}

#[test]
fn an_address_can_be_had_again_before_its_free_returns() {
    let driver = Emulated::new();
    let address = driver.alloc(3 * PAGE).expect("memory");
    driver.control.plan(r#"{"fn": "cuMemFree_v2", "delay_us": 2000000, "when": "after"}"#).expect("a plan");
    std::thread::scope(|scope| {
        let free = scope.spawn(|| {
            driver.enter(0).expect("a context");
            driver.cuMemFree_v2(address)
        });
        while driver.count("allocations") > 0 {
            std::thread::yield_now();
        }
        assert_eq!(driver.alloc(3 * PAGE), Ok(address));
        assert!(!free.is_finished());
        assert_eq!(free.join().expect("joined"), 0);
    });
    assert_eq!(driver.cuMemFree_v2(address), 0);
}

#[test]
fn reuse_without_waiting_is_seen() {
    // The mistake of a broken allocator: gives a block to another stream while the first
    // stream's work is still queued.
    let driver = Emulated::new();
    let (first, second) = (driver.stream(1).expect("a stream"), driver.stream(1).expect("a stream"));
    let block = driver.alloc(PAGE).expect("memory");
    driver.control.hold(first).expect("a stream");
    assert_eq!(driver.cuMemsetD8Async(block, 0x11, PAGE, first), 0);
    assert_eq!(driver.cuMemsetD8Async(block, 0x22, PAGE, second), 0);
    assert_eq!((driver.cuStreamSynchronize(second), driver.read(block, 1)), (0, Ok(vec![0x22])));
    driver.control.release(first).expect("a stream");
    assert_eq!((driver.cuStreamSynchronize(first), driver.read(block, 1)), (0, Ok(vec![0x11])));
}

#[test]
fn the_log_tells_what_was_called_by_whom_and_answered() {
    let driver = Emulated::new();
    driver.control.clear_log();
    let address = driver.alloc(PAGE).expect("memory");
    assert_eq!((driver.cuMemFree_v2(address), driver.cuMemFree_v2(address)), (0, 1));
    let wanted = [("cuMemAlloc_v2", 0), ("cuMemFree_v2", 0), ("cuMemFree_v2", 1)];
    assert_eq!(driver.log(), wanted.map(|(name, code)| (name.to_owned(), code)));
    let entries = driver.control.log();
    assert_eq!((&entries[0]["out"], &entries[1]["args"]), (&Value::from(address), &Value::from(vec![address])));
    assert_eq!(entries[0]["args"][1], PAGE);
    let context = driver.enter(0).expect("a context");
    assert_eq!(entries[0]["context"], context);
    let thread = std::thread::scope(|scope| {
        scope.spawn(|| driver.alloc(1)).join().expect("joined").expect_err("no context");
        driver.control.log().pop().expect("a call")["thread"].clone()
    });
    assert_ne!(entries[0]["thread"], thread);
    assert_eq!(driver.control.calls("cuMemFree_v2"), 2);
    let before = driver.control.all_calls();
    assert!(driver.event().is_ok());
    assert_eq!(driver.control.all_calls(), before + 1);
}

#[test]
fn the_report_counts_what_is_alive() {
    let driver = Emulated::new();
    let (stream, event) = (driver.stream(1).expect("a stream"), driver.event().expect("an event"));
    let (address, base) = (driver.alloc(PAGE).expect("memory"), driver.reserve(PAGE).expect("addresses"));
    let handle = driver.create(PAGE).expect("memory");
    assert_eq!(driver.cuMemMap(base, PAGE, 0, handle, 0), 0);
    let names = ["allocations", "reservations", "mappings", "physical", "handles", "streams", "events"];
    assert_eq!(names.map(|name| driver.count(name)), [1; 7]);
    assert_eq!(driver.control.report()["used_bytes"], serde_json::json!([2 * PAGE, 0]));
    assert_eq!((driver.cuMemUnmap(base, PAGE), driver.cuMemRelease(handle)), (0, 0));
    assert_eq!((driver.cuMemAddressFree(base, PAGE), driver.cuMemFree_v2(address)), (0, 0));
    assert_eq!((driver.cuEventDestroy_v2(event), driver.cuStreamDestroy_v2(stream)), (0, 0));
    assert_eq!(names.map(|name| driver.count(name)), [0; 7]);
    assert_eq!(driver.control.report()["used_bytes"], serde_json::json!([0, 0]));
}

#[test]
fn the_environment_sets_plan_log_and_report() {
    let test = "the_environment_sets_plan_log_and_report";
    if is_child(test) {
        let driver = Emulated::without(&[]);
        assert_eq!((driver.cuInit(0), driver.cuInit(0)), (100, 0));
        driver.enter(2).expect("a third device");
        assert_eq!(driver.info(), Ok((64 << 20, 64 << 20)));
        assert_eq!(driver.alloc(PAGE).map(drop), Ok(()));
        assert_eq!((driver.cuMemFree_v2(0), driver.cuDriverGetVersion(&mut 0)), (55, 0));
        return;
    }
    let folder = std::env::temp_dir().join(format!("cachalot-emu-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (log, leaks) = (folder.join("log"), folder.join("leaks"));
    let output = in_child(
        test,
        &[
            ("CACHALOT_EMU_PLAN", r#"[{"fn": "cuInit", "code": 100}]"#),
            ("CACHALOT_EMU_DEVICES", "3"),
            ("CACHALOT_EMU_MEMORY", "67108864"),
            ("CACHALOT_EMU_ANSWERS", r#"{"free_null": 55}"#),
            ("CACHALOT_EMU_LOG", log.to_str().expect("a path")),
            ("CACHALOT_EMU_LEAKS", leaks.to_str().expect("a path")),
        ],
    );
    assert!(output.status.success(), "{}", text(&output));
    let log = std::fs::read_to_string(log).expect("a log");
    let calls: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&calls[0]["fn"], &calls[0]["result"]), (&Value::from("cuInit"), &Value::from(100)));
    assert_eq!(calls.last().map(|call| &call["fn"]), Some(&Value::from("cuDriverGetVersion")));
    let leaks: Value = serde_json::from_str(&std::fs::read_to_string(leaks).expect("a report")).expect("JSON");
    assert_eq!((&leaks["allocations"], &leaks["context_retains"]), (&Value::from(1), &Value::from(1)));
    std::fs::remove_dir_all(folder).expect("removed");
}
