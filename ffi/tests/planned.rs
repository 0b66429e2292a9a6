//! The planned policy through the C interface, on simulated devices. `processes` tests the policy
//! on the emulated driver.

use cachalot::abi::*;
use cachalot::capi::*;
use cachalot::status::*;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// An allocator with the given settings, destroyed at the end.
struct Subject(*mut cachalot_allocator);

impl Drop for Subject {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(cachalot_destroy(self.0), CACHALOT_OK);
        }
    }
}

impl Subject {
    fn new(config: &CStr, device_count: u32) -> Self {
        let options = cachalot_options {
            flags: CACHALOT_SIMULATED,
            config: config.as_ptr(),
            device_count,
            ..cachalot_options::INIT
        };
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call, and so does what the options point to.
        assert_eq!(unsafe { cachalot_create(&raw const options, &raw mut handle) }, CACHALOT_OK);
        Self(handle)
    }

    fn malloc(&self, device: c_int, bytes: usize) -> *mut c_void {
        let mut block = null_mut();
        // SAFETY: the variable outlives the call.
        assert_eq!(unsafe { cachalot_malloc(self.0, device, bytes, null_mut(), &raw mut block) }, CACHALOT_OK);
        block
    }

    /// Requests two blocks, frees one, and requests a third. Returns all three addresses.
    fn iterate(&self, device: c_int) -> [*mut c_void; 3] {
        let first = self.malloc(device, 3 * MIB);
        let second = self.malloc(device, MIB);
        assert_eq!(cachalot_free(self.0, first), CACHALOT_OK);
        let third = self.malloc(device, 2 * MIB);
        assert_eq!(cachalot_free(self.0, second), CACHALOT_OK);
        assert_eq!(cachalot_free(self.0, third), CACHALOT_OK);
        [first, second, third]
    }

    fn announce(&self, device: c_int) {
        assert_eq!(cachalot_iteration(self.0, device), CACHALOT_OK);
    }

    fn planned(&self, device: c_int) -> cachalot_plan_report {
        // SAFETY: numbers only, so zeros are a value.
        let mut report: cachalot_plan_report = unsafe { std::mem::zeroed() };
        report.struct_size = size_of::<cachalot_plan_report>();
        // SAFETY: the variable outlives the call.
        assert_eq!(unsafe { cachalot_planned(self.0, device, &raw mut report) }, CACHALOT_OK);
        report
    }

    /// Iterates until a plan is in force.
    fn until_served(&self, device: c_int) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.planned(device).stage != CACHALOT_STAGE_SERVING {
            assert!(Instant::now() < end, "{:?}", self.planned(device));
            self.announce(device);
            self.iterate(device);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn an_iteration_is_planned_in_the_background_and_then_served() {
    let subject = Subject::new(c"policy:planned,fallback:bfc,plan_deadline_ms:50", 2);
    assert_eq!(subject.planned(1).stage, CACHALOT_STAGE_WAITING);
    subject.until_served(1);
    let before = subject.planned(1);
    assert_eq!((before.plans, before.peak_bytes, before.lower_bound_bytes), (1, 4 << 20, 4 << 20));
    assert_eq!(before.segment_bytes, 4 << 20);
    subject.announce(1);
    let blocks = subject.iterate(1);
    subject.announce(1);
    assert_eq!(subject.iterate(1), blocks);
    let after = subject.planned(1);
    assert_eq!(after.served, before.served + 6);
    assert_eq!((after.extra, after.missing, after.occupied, after.given_up), (0, 0, 0, 0));
    assert_eq!(cachalot_check(subject.0), CACHALOT_OK);
    // The other device is unaffected.
    assert_eq!(subject.planned(0).announced, 0);
}

#[test]
fn a_deviation_is_counted_and_served_all_the_same() {
    let subject = Subject::new(c"policy:planned", 0);
    subject.until_served(0);
    subject.announce(0);
    let first = subject.malloc(0, 3 * MIB);
    let odd = subject.malloc(0, 7 * MIB);
    assert_ne!(first, odd);
    assert_eq!(cachalot_free(subject.0, odd), CACHALOT_OK);
    assert_eq!(cachalot_free(subject.0, first), CACHALOT_OK);
    assert_eq!(cachalot_free(subject.0, first), CACHALOT_ERROR_INVALID_POINTER);
    assert_eq!(subject.planned(0).extra, 1);
}

#[test]
fn another_policy_ignores_announcements() {
    let subject = Subject::new(c"", 0);
    subject.announce(0);
    subject.iterate(0);
    subject.announce(0);
    let report = subject.planned(0);
    assert_eq!((report.stage, report.announced, report.served), (CACHALOT_STAGE_WAITING, 0, 0));
}

#[test]
fn what_is_wrong_is_said() {
    let subject = Subject::new(c"policy:planned", 0);
    assert_eq!(cachalot_iteration(subject.0, 1), CACHALOT_ERROR_UNKNOWN_DEVICE);
    // SAFETY: NULL is said to be fine.
    assert_eq!(unsafe { cachalot_planned(subject.0, 0, null_mut()) }, CACHALOT_ERROR_NULL);
    // SAFETY: numbers only, so zeros are a value.
    let mut report: cachalot_plan_report = unsafe { std::mem::zeroed() };
    // SAFETY: the variable outlives the call.
    assert_eq!(unsafe { cachalot_planned(subject.0, 0, &raw mut report) }, CACHALOT_ERROR_STRUCT_SIZE);
    for config in [c"policy:planned,fallback:direct", c"fallback:bfc", c"policy:caching,plan_deadline_ms:1"] {
        let options = cachalot_options { flags: CACHALOT_SIMULATED, config: config.as_ptr(), ..cachalot_options::INIT };
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call.
        let status = unsafe { cachalot_create(&raw const options, &raw mut handle) };
        assert_eq!(status, CACHALOT_ERROR_INVALID_CONFIG, "{config:?}");
    }
}

#[test]
fn an_allocator_that_plans_can_be_destroyed_at_any_time() {
    for announcements in 0..4 {
        let subject = Subject::new(c"policy:planned,plan_deadline_ms:60000", 0);
        for _ in 0..announcements {
            subject.announce(0);
            subject.iterate(0);
        }
    }
}
