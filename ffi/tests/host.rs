//! Pinned memory of the host, on the emulated driver: lives of processes from C and C++, and
//! failures at every call of the driver.

use crate::common::{Link, build, emulated, emulated_driver, root, scratch, succeed, without_errors, without_leaks};
use cachalot::cuda::{Driver, HOST_SETTINGS};
use cachalot::prelude::*;
use cachalot::{ErrorKind, Segments, StreamOrder};
use cachalot::{HOST_STREAM, HeapLock, HostDevice};
use cachalot_core::Growable;
use cachalot_emulated_driver::client::Client;
use cachalot_emulated_driver::install::install;
use std::path::Path;
use std::sync::{Arc, Mutex};

const DEVICE: DeviceIndex = DeviceIndex(0);
const MIB: u64 = 1 << 20;

/// Builds a program that calls the emulated driver itself.
fn program(name: &str) -> Option<std::path::PathBuf> {
    let driver = emulated_driver().parent().expect("a folder").as_os_str();
    let source = root().join("tests/c_abi").join(name);
    build(&source, Link::Shared, &["-L".as_ref(), driver, "-lcuda".as_ref(), "-lpthread".as_ref()])
}

#[test]
fn copies_keep_blocks_until_they_are_done() {
    let Some(program) = program("process/host.c") else { return };
    for config in ["", "parity:False,exact_segments:False,compact:0.5", "policy:bfc", "policy:stitched"] {
        let mut command = emulated(&program);
        let said = without_leaks(command.arg(config).env("CACHALOT_EMU_DELAY_US", "200"), "host");
        assert_eq!(said.as_deref(), Some("host: well\n"), "{config}");
    }
    without_errors(emulated(&program).arg(""));
}

#[test]
fn cpp_programs_own_host_memory() {
    let Some(program) = program("cpp/host_memory.cpp") else { return };
    assert_eq!(without_leaks(&mut emulated(&program), "host_memory").as_deref(), Some("host_memory: well\n"));
    without_errors(&emulated(&program));
}

/// What the allocator of PyTorch's pinned memory remembers of captured graphs needs no PyTorch.
#[test]
fn blocks_of_captured_graphs_are_kept() {
    let Some(program) = program("torch/captured.cpp") else { return };
    assert_eq!(succeed(&mut emulated(&program)).as_deref(), Some("captured: well\n"));
    without_errors(&emulated(&program));
}

/// Runs in a child process, where the emulated driver is the driver of the process.
#[test]
fn a_rust_program_opens_host_memory_in_one_call() {
    const CHILD: &str = "CACHALOT_TEST_OPENS_HOST";
    if std::env::var_os(CHILD).is_none() {
        let mut command = emulated(&std::env::current_exe().expect("a test has a path"));
        command.args(["--exact", "host::a_rust_program_opens_host_memory_in_one_call"]).env(CHILD, "1");
        let said = succeed(&mut command).expect("the program is this one");
        // A name that fits no test would be a child that succeeds.
        assert!(said.contains("running 1 test\n"), "{said}");
        return;
    }
    let wrong = cachalot::open_host(&[0], "exact_segments:maybe").map(drop);
    assert!(matches!(wrong, Err(cachalot::OpenError::Config(_))), "{wrong:?}");
    let absent = cachalot::open_host(&[0, 9], "").map(drop);
    assert!(matches!(absent, Err(cachalot::OpenError::Device { ordinal: 9, .. })), "{absent:?}");
    let host: HostAllocator = cachalot::open_host(&[0, 1], "compact:0.5").expect("the emulated driver");
    assert_eq!(host.settings(DEVICE).expect("one").config().to_string(), "compact:0.5,exact_segments:True");
    let streams = [0, 1].map(|number| host.device(DeviceIndex(number)).expect("open").cuda().streams());
    assert!(Arc::ptr_eq(streams[0], streams[1]), "a stream has one number on all devices");
    let buffer = host.buffer::<u32>(DeviceIndex(1), 1000, HOST_STREAM).expect("memory");
    // SAFETY: the buffer has 1000 elements of memory of the host, and nothing else uses them.
    let numbers = unsafe { std::slice::from_raw_parts_mut(buffer.ptr().0 as *mut u32, 1000) };
    numbers.fill(7);
    assert_eq!(numbers.iter().sum::<u32>(), 7000);
}

/// Runs in a child process, where the emulated driver is the driver of the process.
#[test]
fn blocks_of_the_host_are_cleared_filled_and_checked_as_the_settings_say() {
    const CHILD: &str = "CACHALOT_TEST_FILLS_HOST";
    if std::env::var_os(CHILD).is_none() {
        let mut command = emulated(&std::env::current_exe().expect("a test has a path"));
        let name = "host::blocks_of_the_host_are_cleared_filled_and_checked_as_the_settings_say";
        command.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let said = succeed(&mut command).expect("the program is this one");
        assert!(said.contains("running 1 test\n"), "{said}");
        return;
    }
    for policy in ["", "policy:bfc,"] {
        for (config, when_new, when_free) in
            [("zero:on_alloc", Some(0), None), ("zero:on_free", None, Some(0)), ("pattern:90", Some(90), Some(90))]
        {
            for bytes in [1000, 1_200_000] {
                let host = cachalot::open_host(&[0], &[policy, config].concat()).expect("the emulated driver");
                let malloc = || host.malloc(DEVICE, bytes, HOST_STREAM).expect("memory");
                let all = |block: DevicePtr, value: u8| {
                    // SAFETY: memory of the host with so many bytes, which nothing else uses.
                    let found = unsafe { std::slice::from_raw_parts(block.0 as *const u8, bytes as usize) };
                    found.iter().all(|&byte| byte == value)
                };
                let (kept, block) = (malloc(), malloc());
                assert!(when_new.is_none_or(|value| all(block, value)), "{policy}{config}: {bytes}");
                // SAFETY: as above.
                unsafe { (block.0 as *mut u8).write_bytes(7, bytes as usize) };
                host.free(block).expect("a block");
                (0..3).for_each(|_| host.process_events(DEVICE).expect("it works"));
                let next = malloc();
                assert_eq!(next, block, "{policy}{config}: {bytes}");
                assert!(all(next, when_new.or(when_free).expect("one")), "{policy}{config}: {bytes}");
                [kept, next].into_iter().for_each(|block| host.free(block).expect("a block"));
            }
        }
        let host = cachalot::open_host(&[0], &[policy, "canary:True"].concat()).expect("the emulated driver");
        let block = host.malloc(DEVICE, 1000, HOST_STREAM).expect("memory");
        // SAFETY: the block has 512 bytes more than were asked for.
        let found = unsafe { *((block.0 + 1000) as *const u8) };
        assert_eq!(found, 0xCB, "{policy}");
        host.free(block).expect("a block");
    }
}

/// The tests below count the mappings of the process, and run in turn.
static MAPPINGS: Mutex<()> = Mutex::new(());

/// Returns the bytes of mappings that no forked child has, which are those of host memory.
fn mapped_bytes() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let mut bytes = 0;
    let mut size = 0;
    for line in maps.lines() {
        if let Some(text) = line.strip_prefix("Size:") {
            size = text.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|flag| flag == "dc")
        {
            bytes += size;
        }
    }
    bytes
}

/// A driver of its own, and its control.
fn driver(name: &str) -> (&'static Driver, Client) {
    let folder = scratch("host").join(format!("{name}-{}", std::process::id()));
    let path = install(&folder, &[]).expect("the emulated driver is built");
    let control = Client::load(&path).expect("emulated");
    control.set_address_space(16 << 30).expect("before cuInit");
    let driver = Driver::load_from(&path).expect("it starts");
    std::fs::remove_dir_all(folder).expect("removed");
    (driver, control)
}

type Host = Allocator<HostDevice, HeapLock, Growable>;

/// The state after a program: the allocator's figures, and the driver's.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    leaked: u64,
    reserved: u64,
    pinned: u64,
}

/// Runs a program that ignores every failure, and closes the allocator. Returns what is left.
fn run(driver: &'static Driver, control: &Client) -> Option<Left> {
    let device = HostDevice::open(driver, 0).ok()?;
    let config = Config::parse(HOST_SETTINGS).expect("they are valid");
    let host = Host::new([device], &config).expect("one device");
    let mut held: Vec<DevicePtr> = Vec::new();
    for step in 0..12_u64 {
        if let Ok(block) = host.malloc(DEVICE, 100_000 + step * MIB / 2, HOST_STREAM) {
            // The legacy stream, which is idle.
            let _ = host.record_stream(block, StreamId::DEFAULT);
            held.push(block);
        }
        if step % 3 == 2 {
            held.retain(|&block| host.free(block).is_err());
            let _ = host.process_events(DEVICE);
        }
    }
    // What failed once may be tried again.
    control.clear_plan();
    for block in held {
        assert_eq!(host.free(block), Ok(()));
    }
    assert_eq!(host.empty_cache(DEVICE), Ok(()));
    assert_eq!(host.check_invariants(), Ok(()));
    let stats = host.stats(DEVICE).expect("one device").totals();
    assert_eq!((stats.allocations().current, stats.active_bytes().current), (0, 0));
    let left = Left {
        leaked: host.stats(DEVICE).expect("one device").leaked_bytes(),
        reserved: stats.reserved_bytes().current as u64,
        pinned: control.report()["pinned_bytes"].as_u64().expect("a count"),
    };
    let _ = host.device(DEVICE).expect("one device").close();
    Some(left)
}

/// Every call of the driver fails once, before and after it acts, in turn. Nothing is lost but what
/// a failing release leaves in doubt, and that stays mapped.
#[test]
fn a_failure_at_any_call_loses_nothing() {
    let _turn = MAPPINGS.lock();
    let (driver, control) = driver("faults");
    for (when, code) in [("before", 2), ("before", 999), ("after", 999), ("after", 2)] {
        let (mut nth, mut doubts) = (1, 0);
        loop {
            let before = mapped_bytes();
            let pinned = control.report()["pinned_bytes"].as_u64().expect("a count");
            let rule = format!(r#"[{{"fn":"*","nth":{nth},"code":{code},"when":"{when}"}}]"#);
            control.plan(&rule).expect("a rule");
            let fired = control.faults();
            let left = run(driver, &control);
            let hit = control.faults() > fired;
            control.clear_plan();
            let now = mapped_bytes() - before;
            if let Some(left) = &left {
                assert_eq!(left.reserved, 0, "{rule}");
                assert_eq!(left.leaked, now, "leaked memory stays mapped, and nothing else: {rule}");
                // A registration that acted and failed is undone; a release that acted and failed
                // is not known to have acted.
                assert!(left.pinned - pinned <= left.leaked, "{rule}: {left:?}");
                doubts += u64::from(left.leaked > 0);
            } else {
                assert_eq!(now, 0, "{rule}");
            }
            if !hit {
                break;
            }
            nth += 1;
        }
        assert!(nth > 100, "{nth} calls were made to fail");
        assert!(doubts > 0, "no release was among them");
    }
}

#[test]
fn a_failed_registration_is_undone() {
    let _turn = MAPPINGS.lock();
    let (driver, control) = driver("registration");
    let host = HostDevice::open(driver, 0).expect("a device");
    let before = mapped_bytes();
    for (code, kind) in [(2, ErrorKind::OutOfMemory), (801, ErrorKind::Unsupported), (712, ErrorKind::Other)] {
        for when in ["before", "after"] {
            let rule = format!(r#"[{{"fn":"cuMemHostRegister_v2","code":{code},"when":"{when}"}}]"#);
            control.plan(&rule).expect("a rule");
            assert_eq!(host.obtain(3 * MIB).map_err(|error| error.kind), Err(kind), "{rule}");
            control.clear_plan();
            assert_eq!((mapped_bytes(), control.report()["pinned"].as_u64()), (before, Some(0)), "{rule}");
        }
    }
    // In doubt whether the driver still has the memory, the address is never used again.
    let rules = r#"[{"fn":"cuMemHostRegister_v2","code":999,"when":"after"},{"fn":"cuMemHostUnregister","code":999}]"#;
    control.plan(rules).expect("rules");
    assert!(host.obtain(3 * MIB).is_err());
    assert_eq!(mapped_bytes() - before, 3 * MIB);
    control.clear_plan();
    assert_eq!(host.close(), Ok(()));
}

#[test]
fn a_lost_context_calls_no_driver_and_leaves_no_mapping_of_a_failed_request() {
    let _turn = MAPPINGS.lock();
    let (driver, control) = driver("lost");
    let host = HostDevice::open(driver, 0).expect("a device");
    let before = mapped_bytes();
    control.plan(r#"[{"fn":"cuMemHostRegister_v2","code":700}]"#).expect("a rule");
    assert_eq!(host.obtain(MIB).map_err(|error| error.kind), Err(ErrorKind::ContextLost));
    assert_eq!(mapped_bytes(), before);
    let calls = control.all_calls();
    assert_eq!(host.obtain(MIB).map_err(|error| error.kind), Err(ErrorKind::ContextLost));
    for stream in [HOST_STREAM, StreamId::DEFAULT] {
        assert!(host.synchronize(stream).is_err());
    }
    assert_eq!((control.all_calls(), mapped_bytes()), (calls, before));
}

#[test]
fn the_stream_of_the_host_has_no_work() {
    let _turn = MAPPINGS.lock();
    let (driver, control) = driver("stream");
    let host = HostDevice::open(driver, 0).expect("a device");
    let event = host.create_event().expect("an event");
    let calls = control.all_calls();
    assert_eq!(host.record(event, HOST_STREAM), Ok(()));
    assert_eq!((host.synchronize(HOST_STREAM), host.is_capturing(HOST_STREAM)), (Ok(()), Ok(false)));
    assert_eq!(host.is_idle(HOST_STREAM), Ok(Some(true)));
    assert_eq!(control.all_calls(), calls);
    assert_eq!(host.is_complete(event), Ok(true));
    assert!(host.virtual_memory().is_none());
    assert!(host.process_use().is_some_and(|bytes| bytes > 0));
    assert_eq!((host.destroy_event(event), host.close()), (Ok(()), Ok(())));
}

#[test]
fn a_driver_that_cannot_register_has_no_host_memory() {
    let folder = scratch("host").join(format!("hidden-{}", std::process::id()));
    let path = install(&folder, &["cuMemHostRegister_v2"]).expect("the emulated driver is built");
    let driver = Driver::load_from(Path::new(&path)).expect("it starts");
    std::fs::remove_dir_all(folder).expect("removed");
    assert_eq!(HostDevice::open(driver, 0).map(drop).map_err(|error| error.kind), Err(ErrorKind::Unsupported));
}
