//! Effects on the whole process: exported symbols, older drivers, forks, the end.

use crate::common::{Emulated, in_child, is_child, text};
use cachalot_emulated_driver::api::MISSING;
use cachalot_emulated_driver::client::Client;
use cachalot_emulated_driver::install::{built_library, install, newer_than, symbols};
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Returns whether a symbol is no driver function: control, the marker, or a function for host
/// kernels.
fn is_control(name: &str) -> bool {
    name.starts_with("emu_") || name.starts_with("cachalot_emulated_")
}

#[test]
fn nothing_is_exported_but_the_known_symbols() {
    let library = built_library().expect("built");
    let output = Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library).output();
    let output = output.expect("nm, which every C compiler brings");
    assert!(output.status.success());
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let exported: BTreeSet<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    let exported: BTreeSet<&str> = exported.into_iter().filter(|name| !is_control(name)).collect();
    assert_eq!(exported, symbols().into_iter().collect());
}

#[test]
fn a_hidden_symbol_is_not_found_by_any_means() {
    let driver = Emulated::without(&["cuStreamGetId"]);
    assert_eq!(driver.cuInit(0), 0);
    driver.enter(0).expect("a context");
    assert!(!driver.has("cuStreamGetId") && driver.has("cuStreamGetCtx"));
    assert_eq!(driver.stream_id(0), Err(MISSING));
    let find = |name: &std::ffi::CStr, version| {
        let (mut address, mut status) = (std::ptr::null_mut(), -1);
        let code = driver.cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &raw mut status);
        (code, status, address.is_null())
    };
    assert_eq!(find(c"cuStreamGetId", 12_000), (0, 1, true));
    assert_eq!(find(c"cuMemAlloc", 12_000), (0, 0, false));
    assert_eq!(find(c"cuStreamGetCtx", 9_000), (0, 2, true));
    assert_eq!(find(c"cuMemAllocAsync", 12_000), (0, 0, false));
    assert_eq!(find(c"cuTexObjectCreate", 12_000), (0, 1, true));
    assert_eq!(find(c"cuMemAlloc", 99_000), (1, -1, true));
}

#[test]
fn an_older_driver_lacks_the_newer_symbols_only() {
    let missing = newer_than(11_040);
    let driver = Emulated::without(&missing);
    for name in symbols() {
        assert_eq!(driver.has(name), !missing.contains(&name), "{name}");
    }
}

#[test]
fn installing_checks_the_names_and_writes_both_files() {
    let folder = std::env::temp_dir().join(format!("cachalot-emu-install-{}", std::process::id()));
    assert!(install(&folder, &["cuNothing"]).is_err());
    let path = install(&folder, &[]).expect("installed");
    assert_eq!(path, folder.join("libcuda.so.1"));
    assert_eq!(install(&folder, &[]).expect("installed again"), path);
    assert_eq!(std::fs::canonicalize(folder.join("libcuda.so")).ok(), std::fs::canonicalize(path).ok());
    std::fs::remove_dir_all(folder).expect("removed");
    assert!(Client::load("libc.so.6").is_err());
}

#[test]
fn names_and_texts_of_codes() {
    let driver = Emulated::without(&[]);
    let name = |code| {
        let mut name = std::ptr::null();
        let answer = driver.cuGetErrorName(code, &mut name);
        // SAFETY: a C string of the library when not null.
        (answer, (!name.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()))
    };
    assert_eq!(name(2), (0, Some("CUDA_ERROR_OUT_OF_MEMORY".to_owned())));
    assert_eq!(name(12_345), (1, None));
    let mut text = std::ptr::null();
    assert_eq!((driver.cuGetErrorString(700, &mut text), text.is_null()), (0, false));
}

#[test]
fn devices_are_described() {
    let driver = Emulated::new();
    let attribute = |number| {
        let mut value = -1;
        (driver.cuDeviceGetAttribute(&mut value, number, 1), value)
    };
    assert_eq!((attribute(102), attribute(115), attribute(75), attribute(33)), ((0, 1), (0, 1), (0, 9), (0, 2)));
    assert_eq!((attribute(0), attribute(9999)), ((1, -1), (1, -1)));
    let mut buffer = [1_i8; 32];
    assert_eq!(driver.cuDeviceGetPCIBusId(buffer.as_mut_ptr(), 32, 1), 0);
    let bus: Vec<u8> = buffer.iter().take_while(|&&byte| byte != 0).map(|byte| byte.cast_unsigned()).collect();
    assert_eq!(bus, b"0000:02:00.0");
    assert_eq!((driver.cuDeviceGetName(buffer.as_mut_ptr(), 4, 0), buffer[3]), (0, 0));
    let (mut left, mut right) = ([0; 16], [0; 16]);
    assert_eq!((driver.cuDeviceGetUuid_v2(&mut left, 0), driver.cuDeviceGetUuid_v2(&mut right, 1)), (0, 0));
    assert_ne!(left, right);
    let mut pool = 0;
    assert_eq!(driver.cuDeviceGetDefaultMemPool(&mut pool, 0), 0);
    assert_eq!(driver.pool_attribute(pool, 7), Ok(0));
    assert_eq!(driver.pool_attribute(pool + 1, 7), Err(1));
    assert_eq!(driver.pool_attribute(1, 7), Err(1));
}

/// Forks, runs `child` in the child and returns the exit status of the child.
fn fork(child: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the child only makes the driver calls under test, and ends without cleaning up.
    let process = unsafe { libc::fork() };
    assert!(process >= 0);
    if process == 0 {
        let code = child();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert!(libc::WIFEXITED(status), "ended by {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

#[test]
fn a_forked_child_is_refused_and_the_parent_goes_on() {
    let test = "a_forked_child_is_refused_and_the_parent_goes_on";
    // Runs in a separate process, because a fork copies one thread only.
    if !is_child(test) {
        let output = in_child(test, &[]);
        assert!(output.status.success(), "{}", text(&output));
        return;
    }
    let driver = Emulated::new();
    let address = driver.alloc(4096).expect("memory");
    let mut name = std::ptr::null();
    let calls = fork(|| {
        let codes = [driver.alloc(1).err(), Some(driver.cuMemFree_v2(address)), Some(driver.cuInit(0))];
        let named = driver.cuGetErrorName(3, &mut name) == 0;
        i32::from(codes.iter().all(|&code| code == Some(3)) && named)
    });
    assert_eq!(calls, 1);
    assert_eq!(driver.cuMemFree_v2(address), 0);
    // A fork before the start is no fork of the driver.
    let other = Emulated::without(&[]);
    assert_eq!(fork(|| i32::from(other.cuInit(0) == 0 && other.enter(0).is_ok() && other.alloc(1).is_ok())), 1);
    assert_eq!(other.cuInit(0), 0);
}

#[test]
fn a_call_in_a_forked_child_crashes_when_wanted() {
    let test = "a_call_in_a_forked_child_crashes_when_wanted";
    if is_child(test) {
        let driver = Emulated::new();
        // SAFETY: the child makes the one driver call under test.
        if unsafe { libc::fork() } == 0 {
            driver.cuMemFree_v2(0);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::wait(&raw mut status) };
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT);
        return;
    }
    let output = in_child(test, &[("CACHALOT_EMU_FORK", "crash")]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_child_forked_in_the_middle_of_a_call_is_not_stuck() {
    let test = "a_child_forked_in_the_middle_of_a_call_is_not_stuck";
    if !is_child(test) {
        let output = in_child(test, &[]);
        assert!(output.status.success(), "{}", text(&output));
        return;
    }
    let driver = Emulated::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            driver.enter(0).expect("a context");
            // Holds the driver's lock most of the time.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let address = driver.alloc(4 << 20).expect("memory");
                assert_eq!(driver.cuMemFree_v2(address), 0);
            }
        });
        for _ in 0..50 {
            assert_eq!(fork(|| driver.alloc(1).err().unwrap_or(0) as c_int), 3);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// The driver for the exit handler.
static AT_EXIT: std::sync::OnceLock<Emulated> = std::sync::OnceLock::new();

extern "C" fn call_at_exit() {
    if let Some(driver) = AT_EXIT.get() {
        let code = driver.alloc(1).err().unwrap_or(0);
        eprintln!("at exit {code}");
    }
}

/// Calls the driver from an exit handler before or after the driver's own handler.
fn exit_with_handler(before_driver: bool) -> ! {
    // Handlers run in the reverse order of their registration. The driver registers a handler in
    // cuInit.
    let register = || {
        // SAFETY: the handler takes nothing and lives as long as the process.
        assert_eq!(unsafe { libc::atexit(call_at_exit) }, 0);
    };
    if !before_driver {
        register();
    }
    let driver = AT_EXIT.get_or_init(Emulated::new);
    assert!(driver.alloc(1).is_ok());
    if before_driver {
        register();
    }
    std::process::exit(0)
}

#[test]
fn calls_after_the_teardown_are_answered_politely() {
    let test = "calls_after_the_teardown_are_answered_politely";
    if is_child(test) {
        exit_with_handler(false);
    }
    let output = in_child(test, &[]);
    assert_eq!((output.status.code(), text(&output).contains("at exit 4")), (Some(0), true), "{}", text(&output));
}

#[test]
fn calls_after_the_teardown_crash_when_wanted() {
    let test = "calls_after_the_teardown_crash_when_wanted";
    if is_child(test) {
        exit_with_handler(false);
    }
    let output = in_child(test, &[("CACHALOT_EMU_TEARDOWN", "crash")]);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{}", text(&output));
}

#[test]
fn calls_before_the_teardown_work_even_at_exit() {
    let test = "calls_before_the_teardown_work_even_at_exit";
    if is_child(test) {
        exit_with_handler(true);
    }
    let output = in_child(test, &[("CACHALOT_EMU_TEARDOWN", "crash")]);
    assert_eq!((output.status.code(), text(&output).contains("at exit 0")), (Some(0), true), "{}", text(&output));
}

#[test]
fn the_teardown_can_be_had_at_any_time() {
    let driver = Emulated::new();
    let address = driver.alloc(1).expect("memory");
    driver.control.tear_down(false);
    assert_eq!((driver.cuMemFree_v2(address), driver.cuInit(0), driver.cuCtxGetCurrent(&mut 0)), (4, 4, 4));
}

#[test]
fn a_misspelt_setting_is_not_passed_over() {
    let test = "a_misspelt_setting_is_not_passed_over";
    if is_child(test) {
        Emulated::new();
        std::process::exit(0);
    }
    for (name, value) in [("CACHALOT_EMU_MEMORY", "1G"), ("CACHALOT_EMU_TEARDOWN", "loud"), ("CACHALOT_EMU_PLAN", "{")]
    {
        assert_eq!(in_child(test, &[(name, value)]).status.signal(), Some(libc::SIGABRT), "{name}");
    }
}
