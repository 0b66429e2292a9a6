//! Elastic ranges whose rest lies on the host.

use super::*;
use crate::allocator::Range;

/// The length of a page of ranges.
const STEP: u64 = 2 * MIB;

#[test]
fn a_commit_beyond_the_device_maps_pages_of_the_host() {
    for config in ["expandable_segments:True,spill:0.5", "spill:0.5"] {
        let allocator = allocator(config);
        let steps = CAPACITY / STEP;
        let range = Range::reserve(&allocator, DEVICE, 3 * steps * STEP).unwrap();
        range.commit(0, CAPACITY, STREAM).unwrap();
        assert_eq!(of_host(&allocator), (0, 0), "{config}");
        range.commit(CAPACITY, CAPACITY / 2, STREAM).unwrap();
        assert_eq!(of_host(&allocator), (CAPACITY / 2, 0), "{config}");
        let base = range.base();
        let is_on_host = |offset: u64| device(&allocator).is_on_host(DevicePtr(base.0 + offset));
        assert_eq!((is_on_host(CAPACITY - STEP), is_on_host(CAPACITY)), (false, true), "{config}");
        let Err(Error::OutOfMemory(report)) = range.commit(2 * CAPACITY, STEP, STREAM) else { panic!("{config}") };
        assert_eq!((report.spilled, report.host_lack), (CAPACITY / 2, HostLack::Limit), "{config}");
        // What the range gives up serves the next commit, and goes back in the end.
        range.decommit(CAPACITY, CAPACITY / 2, STREAM).unwrap();
        allocator.check_invariants().unwrap();
        range.commit(2 * CAPACITY, CAPACITY / 5, STREAM).unwrap();
        allocator.check_invariants().unwrap();
        range.decommit(0, 3 * CAPACITY, STREAM).unwrap();
        range.release().unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!((of_host(&allocator), device(&allocator).used()), ((0, 0), 0), "{config}");
    }
}

#[test]
fn a_commit_without_the_key_asks_the_host_for_nothing() {
    let allocator = allocator("expandable_segments:True");
    let range = Range::reserve(&allocator, DEVICE, 2 * CAPACITY).unwrap();
    range.commit(0, CAPACITY, STREAM).unwrap();
    assert!(matches!(range.commit(CAPACITY, STEP, STREAM), Err(Error::OutOfMemory(_))));
    assert_eq!(device(&allocator).calls(Call::CreateAtHost), 0);
}
