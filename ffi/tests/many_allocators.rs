//! The greatest number of allocators, and many devices. A separate process, because slots and
//! simulated addresses are shared by the whole process.

use cachalot::c::abi::{CACHALOT_SIMULATED, cachalot_allocator, cachalot_options};
use cachalot::c::capi::{cachalot_create, cachalot_destroy, cachalot_free, cachalot_get_device_count, cachalot_malloc};
use cachalot::c::status::{
    CACHALOT_ERROR_INVALID_HANDLE, CACHALOT_ERROR_STILL_HELD, CACHALOT_ERROR_TABLE_FULL, CACHALOT_OK,
};
use core::ffi::c_void;
use std::collections::BTreeSet;
use std::ptr::null_mut;
use std::sync::Mutex;

/// Greatest number of allocators, from the header.
const MOST: usize = 1024;

/// Locked by a test that creates allocators, because the number is limited.
static PLACES: Mutex<()> = Mutex::new(());

/// Creates an allocator with one device.
fn create() -> Result<*mut cachalot_allocator, i32> {
    create_over(1)
}

/// Creates an allocator with `device_count` devices.
fn create_over(device_count: u32) -> Result<*mut cachalot_allocator, i32> {
    let options = cachalot_options { flags: CACHALOT_SIMULATED, device_count, ..cachalot_options::INIT };
    let mut allocator = null_mut();
    // SAFETY: both variables outlive the call.
    match unsafe { cachalot_create(&raw const options, &raw mut allocator) } {
        CACHALOT_OK => Ok(allocator),
        status => {
            assert!(allocator.is_null(), "nothing is written on failure");
            Err(status)
        }
    }
}

/// Returns whether a handle belongs to a live allocator.
fn is_live(allocator: *const cachalot_allocator) -> bool {
    let mut count = 0;
    // SAFETY: the variable outlives the call.
    let status = unsafe { cachalot_get_device_count(allocator, &raw mut count) };
    assert!(status == CACHALOT_OK || status == CACHALOT_ERROR_INVALID_HANDLE, "{status}");
    status == CACHALOT_OK
}

#[test]
fn places_are_used_again_and_handles_are_not() {
    let _alone = PLACES.lock();
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let all: Vec<_> = (0..MOST).map(|_| create().expect("there is a place")).collect();
        assert_eq!(create(), Err(CACHALOT_ERROR_TABLE_FULL));
        assert!(all.iter().all(|&allocator| seen.insert(allocator) && is_live(allocator)));
        assert_eq!(cachalot_destroy(all[500]), CACHALOT_OK);
        let next = create().expect("one place is free");
        assert!(seen.insert(next) && is_live(next) && !is_live(all[500]));
        assert_eq!(create(), Err(CACHALOT_ERROR_TABLE_FULL));
        for allocator in all.into_iter().filter(|&allocator| is_live(allocator)).chain([next]) {
            assert_eq!(cachalot_destroy(allocator), CACHALOT_OK);
            assert_eq!(cachalot_destroy(allocator), CACHALOT_ERROR_INVALID_HANDLE);
        }
    }
    assert!(!seen.into_iter().any(|allocator| is_live(allocator)));
}

/// Requests a block of 1000 bytes on a device.
fn block(allocator: *const cachalot_allocator, device: i32) -> *mut c_void {
    let mut block = null_mut();
    // SAFETY: the variable outlives the call.
    assert_eq!(unsafe { cachalot_malloc(allocator, device, 1000, null_mut(), &raw mut block) }, CACHALOT_OK);
    block
}

/// Creates more simulated devices than ranges of addresses in an earlier version. Later allocators
/// come after the end of earlier allocators.
#[test]
fn no_two_simulated_devices_have_an_address_in_common() {
    const DEVICES: u32 = 127;
    let _alone = PLACES.lock();
    let mut held = BTreeSet::new();
    let mut all = Vec::new();
    for number in 0..100 {
        let allocator = create_over(DEVICES).expect("there is a place");
        let blocks: Vec<_> = (0..DEVICES as i32).map(|device| block(allocator, device)).collect();
        assert!(blocks.iter().all(|&block| held.insert(block)), "allocator {number} has another's address");
        all.push((allocator, blocks));
        if number % 3 == 2 {
            let (allocator, blocks) = all.swap_remove(number / 3);
            for block in blocks {
                held.remove(&block);
                assert_eq!(cachalot_free(allocator, block), CACHALOT_OK);
            }
            assert_eq!(cachalot_destroy(allocator), CACHALOT_OK);
        }
    }
    // Live blocks of the program keep their addresses.
    for (allocator, _) in all {
        assert_eq!(cachalot_destroy(allocator), CACHALOT_ERROR_STILL_HELD);
    }
    let allocator = create().expect("there is a place");
    assert!(held.insert(block(allocator, 0)));
    assert_eq!(cachalot_destroy(allocator), CACHALOT_ERROR_STILL_HELD);
}
