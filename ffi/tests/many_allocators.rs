//! As many allocators as there can be. Alone in its process: the places are the whole process's.

use cachalot::abi::{CACHALOT_SIMULATED, cachalot_allocator, cachalot_options};
use cachalot::capi::{cachalot_create, cachalot_destroy, cachalot_device_count};
use cachalot::status::{CACHALOT_ERROR_INVALID_HANDLE, CACHALOT_ERROR_TABLE_FULL, CACHALOT_OK};
use std::collections::BTreeSet;
use std::ptr::null_mut;

/// How many there can be, as the header says.
const MOST: usize = 1024;

/// Makes one.
fn create() -> Result<*mut cachalot_allocator, i32> {
    let options = cachalot_options { flags: CACHALOT_SIMULATED, ..cachalot_options::INIT };
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

/// Whether a handle is that of a live allocator.
fn is_live(allocator: *const cachalot_allocator) -> bool {
    let mut count = 0;
    // SAFETY: the variable outlives the call.
    let status = unsafe { cachalot_device_count(allocator, &raw mut count) };
    assert!(status == CACHALOT_OK || status == CACHALOT_ERROR_INVALID_HANDLE, "{status}");
    status == CACHALOT_OK
}

#[test]
fn places_are_used_again_and_handles_are_not() {
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
