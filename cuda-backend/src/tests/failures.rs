//! Tests of contexts and capture modes on every path, sticky errors, forked children, old drivers,
//! and closing.

use super::*;
use crate::driver::LoadError;
use crate::driver::result::CuResult;
use crate::driver::table::Table;
use crate::driver::types::{CuCaptureMode, CuContext};
use crate::fake::{CONTEXT, FOREIGN_CONTEXT, Plan, When};
use cachalot_core::{DeviceError, ErrorKind};

/// Returns states of the calling thread in a host: its contexts, the topmost one last, and its
/// capture mode.
fn callers() -> Vec<(Vec<CuContext>, CuCaptureMode)> {
    let stacks =
        [vec![], vec![FOREIGN_CONTEXT], vec![CONTEXT], vec![CONTEXT, FOREIGN_CONTEXT], vec![CuContext(CONTEXT.0 + 1)]];
    let modes = [CuCaptureMode::GLOBAL, CuCaptureMode::THREAD_LOCAL, CuCaptureMode::RELAXED];
    stacks.iter().flat_map(|stack| modes.map(|mode| (stack.clone(), mode))).collect()
}

/// Runs an operation with the thread in the caller's state, and checks afterwards that the state is
/// restored. Returns the result and the number of driver calls.
fn run(
    (name, operation): &Operation,
    (stack, mode): &(Vec<CuContext>, CuCaptureMode),
    plan: Option<Plan>,
) -> (DeviceResult<()>, Vec<&'static str>) {
    let device = device();
    let prepared = Prepared::new(&device);
    fake::with(|fake| {
        (fake.contexts, fake.mode, fake.plan) = (stack.clone(), *mode, plan);
        fake.log.clear();
    });
    let result = operation(&device, &prepared);
    fake::with(|fake| {
        assert_eq!(fake.contexts, *stack, "contexts after {name} with {plan:?}");
        assert_eq!(fake.mode, *mode, "capture mode after {name} with {plan:?}");
        (result, core::mem::take(&mut fake.log))
    })
}

#[test]
fn the_callers_context_and_capture_mode_survive_success() {
    for operation in OPERATIONS {
        for caller in callers() {
            let (result, log) = run(operation, &caller, None);
            assert_eq!(result, Ok(()), "{}", operation.0);
            let pushes = log.iter().filter(|name| **name == "cuCtxPushCurrent_v2").count();
            if caller.0.last() == Some(&CONTEXT) && !["record foreign", "allow_access_from"].contains(&operation.0) {
                assert_eq!(pushes, 0, "{} pushes a context that is current already", operation.0);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "each operation fails hundreds of times, which takes hours there")]
fn the_callers_context_and_capture_mode_survive_the_failure_of_any_call() {
    let codes = [CuResult::OUT_OF_MEMORY, CuResult::ILLEGAL_ADDRESS, CuResult::INVALID_VALUE, CuResult(4711)];
    for operation in OPERATIONS {
        for caller in callers() {
            let calls = run(operation, &caller, None).1;
            for (skip, function) in calls.iter().enumerate() {
                for code in codes {
                    for when in [When::Before, When::After] {
                        // If the call that restores the state has failed without an effect, the
                        // state cannot be restored.
                        let restores = ["cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"];
                        if when == When::Before && restores.contains(function) {
                            continue;
                        }
                        let _ =
                            run(operation, &caller, Some(Plan { function: None, skip, code, when, permanent: false }));
                    }
                }
            }
        }
    }
}

#[test]
fn a_mode_that_cannot_be_changed_stops_the_call_and_the_context_is_restored() {
    for operation in OPERATIONS {
        let plan = Plan {
            function: Some("cuThreadExchangeStreamCaptureMode"),
            skip: 0,
            code: CuResult::INVALID_VALUE,
            when: When::Before,
            permanent: true,
        };
        let caller = (vec![FOREIGN_CONTEXT], CuCaptureMode::GLOBAL);
        let (result, _) = run(operation, &caller, Some(plan));
        assert_eq!(result, Err(CuResult::INVALID_VALUE.error()), "{}", operation.0);
    }
}

#[test]
fn after_a_sticky_error_no_call_is_made_and_the_first_code_is_repeated() {
    for code in [700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 214, 220, 226, 810, 911].map(CuResult) {
        for function in ["cuMemAlloc_v2", "cuMemFree_v2", "cuEventQuery", "cuCtxGetCurrent", "cuStreamSynchronize"] {
            let device = device();
            let prepared = Prepared::new(&device);
            fake::with(|fake| {
                let (skip, when) = (0, When::After);
                fake.plan = Some(Plan { function: Some(function), skip, code, when, permanent: false });
            });
            for (name, operation) in OPERATIONS {
                let _ = operation(&device, &prepared);
                if device.health().is_err() {
                    break;
                }
                assert_ne!(*name, "synchronize", "{function} was never called");
            }
            let lost = Err(DeviceError::new(ErrorKind::ContextLost, code.0));
            assert_eq!(device.health(), lost);
            for (name, operation) in OPERATIONS {
                let mut result = Ok(());
                let made = calls(|| result = operation(&device, &prepared));
                assert_eq!((result, made), (lost, vec![]), "{name} after {code} of {function}");
            }
        }
    }
}

#[test]
fn a_later_sticky_code_does_not_replace_the_first() {
    let device = device();
    let answer = |code: CuResult| device.with_context(move |_| code);
    assert_eq!(answer(CuResult::ILLEGAL_ADDRESS), Err(CuResult::ILLEGAL_ADDRESS.error()));
    assert_eq!(answer(CuResult::LAUNCH_FAILED), Err(CuResult::ILLEGAL_ADDRESS.error()));
    assert_eq!(device.health(), Err(CuResult::ILLEGAL_ADDRESS.error()));
}

#[test]
fn an_error_that_is_not_sticky_leaves_the_device_healthy() {
    let device = device();
    for code in [1, 2, 201, 400, 600, 701, 801, 900, 907, 999, 4711].map(CuResult) {
        assert_eq!(device.with_context(|_| code), Err(code.error()));
        assert_eq!(device.health(), Ok(()), "after {code}");
    }
}

#[test]
fn a_context_destroyed_by_the_program_is_lost() {
    let device = device();
    let (code, when) = (CuResult::INVALID_CONTEXT, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuCtxPushCurrent_v2"), skip: 0, code, when, permanent: true });
    });
    let lost = DeviceError::new(ErrorKind::ContextLost, 201);
    assert_eq!(device.obtain(512), Err(lost));
    assert_eq!(calls(|| assert_eq!(device.memory_info(), Err(lost))), Vec::<&str>::new());
}

#[test]
fn a_driver_that_shuts_down_is_not_called_again_even_to_restore() {
    let device = device();
    let (code, when) = (CuResult::DEINITIALIZED, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuMemAlloc_v2"), skip: 0, code, when, permanent: true });
    });
    let made = calls(|| {
        assert_eq!(device.obtain(512), Err(DeviceError::new(ErrorKind::Deinitialized, 4)));
        assert_eq!(device.memory_info(), Err(DeviceError::new(ErrorKind::Deinitialized, 4)));
    });
    assert_eq!(made.last(), Some(&"cuMemAlloc_v2"));
}

#[test]
fn dropping_a_device_calls_nothing() {
    let device = device();
    let _ = Prepared::new(&device);
    assert_eq!(calls(|| drop(device)), Vec::<&str>::new());
}

#[test]
fn closing_releases_the_context_and_the_streams_once() {
    let device = device();
    let prepared = Prepared::new(&device);
    device.record(prepared.event, id(FOREIGN_STREAM)).expect("over the bridge");
    assert_eq!(fake::with(|fake| fake.retained), [1, 1]);
    let events = fake::with(|fake| fake.events.len());
    assert_eq!(fake::with(|fake| fake.streams.len()), 1);
    assert_eq!(device.close(), Ok(()));
    assert!(fake::with(|fake| fake.streams.is_empty()));
    // The allocator destroys the two events of `prepared`; closing destroys the event after the
    // retired stream, and the one that is left from a wait for a stream.
    assert_eq!(fake::with(|fake| fake.events.len()), events - 2);
    assert_eq!(fake::with(|fake| (fake.retained, fake.contexts.len())), ([0, 1], 0));
    let closed = DeviceError::new(ErrorKind::Deinitialized, 4);
    assert_eq!(calls(|| assert_eq!(device.close(), Ok(()))), Vec::<&str>::new());
    assert_eq!(calls(|| assert_eq!(device.obtain(512), Err(closed))), Vec::<&str>::new());
}

#[test]
fn closing_after_a_sticky_error_calls_nothing_and_fails() {
    let device = device();
    let _ = device.with_context(|_| CuResult::ILLEGAL_ADDRESS);
    let made = calls(|| assert_eq!(device.close(), Err(CuResult::ILLEGAL_ADDRESS.error())));
    assert_eq!(made, Vec::<&str>::new());
    assert_eq!(device.health(), Err(CuResult::ILLEGAL_ADDRESS.error()));
}

#[test]
fn an_adopted_context_is_checked_and_not_released() {
    let driver = fake::driver();
    let adopt = |context| {
        let options = DeviceOptions { context: Some(context), ..DeviceOptions::default() };
        CudaDevice::open_with(driver, 0, options)
    };
    let device = adopt(CONTEXT).expect("the device's own");
    assert_eq!(device.close(), Ok(()));
    assert_eq!(fake::with(|fake| fake.retained), [0, 0]);
    assert_eq!(adopt(CuContext(CONTEXT.0 + 1)).map(drop), Err(CuResult::INVALID_CONTEXT.error()));
    assert_eq!(fake::with(|fake| fake.retained), [0, 0]);
}

#[test]
fn a_driver_that_shuts_down_meanwhile_is_not_called_to_release() {
    let driver = fake::driver();
    let (function, code, when) = (Some("cuCtxGetDevice"), CuResult::DEINITIALIZED, When::Before);
    fake::with(|fake| fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false }));
    let made = calls(|| assert_eq!(CudaDevice::open(driver, 0).map(drop), Err(code.error())));
    assert_eq!(made.last(), Some(&"cuCtxGetDevice"));
}

#[test]
fn opening_fails_without_leaving_anything_behind() {
    let driver = fake::driver();
    assert_eq!(CudaDevice::open(driver, 2).map(drop), Err(CuResult::INVALID_DEVICE.error()));
    assert_eq!(CudaDevice::open(driver, u32::MAX).map(drop), Err(CuResult::INVALID_DEVICE.error()));
    let made = calls(|| drop(CudaDevice::open(driver, 0)));
    for (skip, function) in made.iter().enumerate() {
        let driver = fake::driver();
        fake::with(|fake| {
            let (code, when) = (CuResult::ILLEGAL_ADDRESS, When::Before);
            fake.log.clear();
            fake.plan = Some(Plan { function: None, skip, code, when, permanent: false });
        });
        let restores = ["cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"];
        if CudaDevice::open(driver, 0).is_err() {
            assert_eq!(fake::with(|fake| fake.retained), [0, 0], "after {function} failed");
        } else {
            assert!(restores.contains(function), "{function} failed and the device opened");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot fork")]
fn a_forked_child_calls_nothing_and_takes_no_lock() {
    let device = device();
    let prepared = Prepared::new(&device);
    // Locked across the fork, as another thread might do. Taking the lock in the child would block
    // forever.
    let _spare = device.spare_events.lock();
    fake::with(|fake| fake.log.clear());
    // SAFETY: the child runs the operations, which return before taking a lock or calling the
    // driver, and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let forked = Err(DeviceError::new(ErrorKind::Forked, CuResult::NOT_INITIALIZED.0));
        let all = OPERATIONS.iter().all(|(_, operation)| operation(&device, &prepared) == forked);
        let refused = device.health() == forked && CudaDevice::open(device.driver(), 0).map(drop) == forked;
        let silent = fake::with(|fake| fake.log.is_empty());
        // SAFETY: ends the child at once, without touching the parent's state.
        unsafe { libc::_exit(i32::from(!(all && refused && silent))) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 0));
    assert_eq!(device.health(), Ok(()), "the parent goes on");
}

/// Returns the table of the fake without an entry.
macro_rules! without {
    ($($name:ident)*) => {
        [$((stringify!($name), {
            let mut table = fake::table();
            table.$name = None;
            table
        }),)*]
    };
}

#[test]
fn a_missing_optional_entry_degrades_and_never_panics() {
    let tables = without! {
        device_can_access_peer ctx_enable_peer_access device_get_default_mem_pool mem_pool_get_attribute
        ctx_get_device ctx_synchronize mem_get_address_range memset_d8_async mem_get_allocation_granularity
        mem_address_reserve mem_address_free mem_create mem_release mem_map mem_unmap mem_set_access mem_export
        stream_is_capturing stream_get_capture_info thread_exchange_stream_capture_mode stream_get_id stream_get_ctx
        stream_wait_event stream_create stream_destroy
    };
    let of_virtual_memory = [
        "mem_get_allocation_granularity",
        "mem_address_reserve",
        "mem_address_free",
        "mem_create",
        "mem_release",
        "mem_map",
        "mem_unmap",
        "mem_set_access",
    ];
    let complete = fake::load(&fake::table()).expect("the fake starts");
    for (name, table) in tables {
        let results = [complete, fake::load(&table).expect(name)].map(|driver| {
            let _ = fake::driver();
            let device = CudaDevice::open(driver, 0).expect(name);
            let prepared = Prepared::new(&device);
            let results: Vec<_> = OPERATIONS.iter().map(|(_, run)| run(&device, &prepared)).collect();
            assert_eq!(device.health(), Ok(()));
            (device.virtual_memory().is_some(), results)
        });
        let [(_, with), (has_virtual_memory, without)] = results;
        assert_eq!(has_virtual_memory, !of_virtual_memory.contains(&name), "{name}");
        for (index, (operation, _)) in OPERATIONS.iter().enumerate() {
            let unsupported = without[index].is_err_and(|error| error.kind == ErrorKind::Unsupported);
            // Without the context query of streams, another device's stream counts as an invalid
            // handle.
            let unknown = *operation == "record foreign" && without[index] == Err(CuResult::INVALID_HANDLE.error());
            assert!(
                without[index] == with[index] || unsupported || unknown,
                "{operation} without {name}: {:?}",
                without[index]
            );
        }
    }
}

#[test]
fn a_missing_required_entry_is_named() {
    let tables = without! {
        init driver_get_version device_get device_get_count device_get_attribute device_primary_ctx_retain
        device_primary_ctx_release ctx_get_current ctx_push_current ctx_pop_current mem_alloc mem_free mem_get_info
        event_create event_record event_query event_synchronize event_destroy stream_synchronize
    };
    assert_eq!(tables.len(), Table::ENTRY_POINTS.iter().filter(|entry| entry.required).count());
    for (name, table) in tables {
        let Err(LoadError::MissingSymbol(symbol)) = fake::load(&table).map(drop) else {
            panic!("loaded without {name}");
        };
        let flat = |text: &str| text.to_lowercase().replace(['_'], "");
        assert!(flat(&symbol.to_string_lossy()).starts_with(&flat(&format!("cu{name}"))), "{name}: {symbol:?}");
    }
}

#[test]
fn an_old_or_absent_driver_is_refused_with_its_reason() {
    let _ = fake::driver();
    fake::with(|fake| fake.version = 11_030);
    let old = fake::load(&fake::table()).map(drop);
    assert_eq!(old, Err(LoadError::TooOld { version: 11_030 }));
    assert_eq!(old.expect_err("too old").to_string(), "the CUDA driver is too old: it speaks 11.3, and 11.4 is needed");
    fake::with(|fake| fake.version = 11_040);
    assert!(fake::load(&fake::table()).is_ok(), "the oldest");
    for code in [CuResult::NO_DEVICE, CuResult::STUB_LIBRARY, CuResult::NOT_INITIALIZED] {
        fake::with(|fake| {
            let (function, when) = (Some("cuInit"), When::Before);
            fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false });
        });
        assert_eq!(fake::load(&fake::table()).map(drop), Err(LoadError::Start(code)));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot load libraries")]
fn a_library_that_does_not_exist_is_named() {
    let path = std::path::Path::new("/nonexistent/libcuda.so.1");
    let error = crate::Driver::load_from(path).expect_err("there is no such file");
    let LoadError::NotLoaded { path: named, reason, by_variable } = error else { panic!("{error}") };
    assert_eq!((&*named, by_variable), (path, false));
    // The loader's reason starts with the path, which the message has already.
    assert!(reason.contains("No such file") && !reason.contains("libcuda"), "{reason}");
}
