//! Tests that need the crate's private items: a panic at a named place, and the state afterwards.

use crate::c::abi::{CACHALOT_SIMULATED, cachalot_allocator, cachalot_options};
use crate::c::capi::{
    cachalot_check_invariants, cachalot_create, cachalot_destroy, cachalot_empty_cache, cachalot_free, cachalot_malloc,
};
use crate::c::device::SharedAllocator;
use crate::c::status::{CACHALOT_ERROR_INVALID_HANDLE, CACHALOT_ERROR_PANIC, CACHALOT_ERROR_POISONED, CACHALOT_OK};
use crate::c::{handle, last_error};
use crate::open::SimulatedAllocator;
use cachalot_core::simulated::DriverCosts;
use cachalot_core::{Config, DeviceIndex, StreamId};
use cachalot_tuner::judge::{Part, cost};
use cachalot_tuner::program::{Operation, Program};
use core::cell::Cell;
use core::ffi::c_void;
use core::ptr::null_mut;

thread_local! {
    /// Whether the calling thread's next segment allocation panics.
    static PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Panics if a test has asked for a panic.
pub(crate) fn panic_if_wanted() {
    assert!(!PANIC.replace(false), "the test's own fault");
}

/// Creates an allocator over a simulated device.
pub(crate) fn create() -> *mut cachalot_allocator {
    let options = cachalot_options { flags: CACHALOT_SIMULATED, ..cachalot_options::INIT };
    let mut allocator = null_mut();
    // SAFETY: both variables outlive the call.
    assert_eq!(unsafe { cachalot_create(&raw const options, &raw mut allocator) }, CACHALOT_OK);
    allocator
}

/// Requests `bytes` bytes. Returns the status and the written pointer.
fn malloc(allocator: *const cachalot_allocator, bytes: usize) -> (i32, *mut c_void) {
    let mut block = null_mut();
    // SAFETY: the variable outlives the call.
    let status = unsafe { cachalot_malloc(allocator, 0, bytes, null_mut(), &raw mut block) };
    (status, block)
}

/// Returns the calling thread's last error.
fn last() -> String {
    // SAFETY: the text belongs to this thread and is NUL-terminated. Only calls of this thread
    // write to the text, and none runs while it is copied.
    unsafe { core::ffi::CStr::from_ptr(last_error::text()) }.to_string_lossy().into_owned()
}

#[test]
fn a_panic_becomes_a_status_and_poisons_that_allocator_only() {
    let (broken, other) = (create(), create());
    let (status, held) = malloc(other, 100);
    assert_eq!(status, CACHALOT_OK);
    PANIC.set(true);
    assert_eq!(malloc(broken, 100), (CACHALOT_ERROR_PANIC, null_mut()));
    assert!(last().contains("the test's own fault"), "{}", last());
    assert_eq!(malloc(broken, 100), (CACHALOT_ERROR_POISONED, null_mut()));
    assert_eq!(cachalot_free(broken, held), CACHALOT_ERROR_POISONED);
    assert_eq!(cachalot_empty_cache(broken, 0), CACHALOT_ERROR_POISONED);
    // A handle is a number, which may go to another thread.
    let number = broken.addr();
    let elsewhere = std::thread::spawn(move || cachalot_check_invariants(core::ptr::without_provenance(number)));
    assert_eq!(elsewhere.join().expect("it does not hang"), CACHALOT_ERROR_POISONED);
    assert_eq!(cachalot_free(other, held), CACHALOT_OK);
    assert_eq!(cachalot_destroy(broken), CACHALOT_ERROR_POISONED);
    assert_eq!(cachalot_destroy(broken), CACHALOT_ERROR_INVALID_HANDLE);
    assert_eq!(cachalot_destroy(other), CACHALOT_OK);
}

#[test]
fn a_panic_leaves_no_lock_behind() {
    let allocator = create();
    let instance = handle::instance(allocator).expect("it is live");
    PANIC.set(true);
    assert_eq!(malloc(allocator, 100).0, CACHALOT_ERROR_PANIC);
    // Bypasses the panic boundary: a call of another thread, already past the handle check, goes
    // on.
    let block = instance.allocator.malloc(DeviceIndex(0), 100, StreamId::DEFAULT).expect("no lock is held");
    assert_eq!(instance.allocator.free(block), Ok(()));
    assert_eq!(cachalot_destroy(allocator), CACHALOT_ERROR_POISONED);
}

#[test]
fn a_text_that_is_too_long_is_cut_at_a_character() {
    let long = "é".repeat(5000);
    // The last byte is NUL, and half of a character may not fit before it.
    for (prefix, bytes) in [("x", 4095), ("xx", 4094)] {
        last_error::set(7, format_args!("{prefix}{long}"));
        let text = last();
        assert_eq!((text.len(), last_error::driver_code()), (bytes, 7));
        assert!(text.starts_with(prefix) && text.ends_with('é'));
    }
    last_error::set(0, format_args!("short"));
    assert_eq!((last().as_str(), last_error::driver_code()), ("short", 0));
}

/// Requests of growing sizes on two streams, each of which the other stream uses, too.
fn program() -> Program {
    let streams = [StreamId(1), StreamId(2)];
    let slot_operations = |slot: u32| {
        let stream = streams[slot as usize % 2];
        let bytes = u64::from(slot % 13 + 1) * 700_000;
        [
            Operation::Malloc { bytes, stream, slot },
            Operation::RecordStream { slot, stream: streams[(slot as usize + 1) % 2] },
            if slot % 5 == 4 { Operation::Complete { stream } } else { Operation::EmptyCache },
        ]
    };
    let mut operations: Vec<_> = (0..60).flat_map(slot_operations).collect();
    operations.extend((0..60).map(|slot| Operation::Free { slot: slot * 7 % 60 }));
    Program { operations, slots: 60, start: 0 }
}

#[test]
#[cfg_attr(miri, ignore = "ten replays take many minutes there")]
fn the_devices_of_a_c_program_judge_settings_as_simulated_ones_do() {
    let part = Part { program: program(), limit: Some(300 << 20), ..Part::default() };
    for config in ["", "expandable_segments:True", "max_split_size_mb:20", "policy:stitched", "policy:bfc"] {
        let config = Config::parse(config).expect("a configuration");
        let costs = DriverCosts::h200();
        let on_simulated = cost::<SimulatedAllocator>(&part, &config, &costs, &|| false);
        let on_shared = cost::<SharedAllocator>(&part, &config, &costs, &|| false);
        assert!(on_simulated.as_ref().is_ok_and(|cost| cost.driver_ns > 0), "{config}: {on_simulated:?}");
        assert_eq!(on_shared, on_simulated, "{config}");
    }
}
