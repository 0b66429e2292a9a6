//! Tests of the simulated device's own rules.

use super::{Outstanding, SimulatedDevice};
use crate::device::{Segments, VirtualMemory};
use crate::units::DevicePtr;

const GRANULE: u64 = 2 << 20;

/// A handle has any number of mappings, each with independent access. The memory is released once the handle is
/// destroyed and no mapping is left.
#[test]
fn a_handle_can_be_mapped_at_several_addresses() {
    let device = SimulatedDevice::new(GRANULE);
    let base = device.reserve(8 * GRANULE).unwrap();
    let [home, alias, third] = [0, 2, 5].map(|granule| DevicePtr(base.0 + granule * GRANULE));
    let handle = device.create(GRANULE).unwrap();
    for at in [home, alias, third] {
        device.map(at, GRANULE, handle).unwrap();
    }
    let accessible = || [home, alias, third].map(|at| device.is_accessible(at, GRANULE));
    device.set_access(alias, GRANULE).unwrap();
    assert_eq!(accessible(), [false, true, false]);
    device.set_access(home, GRANULE).unwrap();
    assert_eq!(accessible(), [true, true, false]);

    device.unmap(alias, GRANULE).unwrap();
    assert_eq!(accessible(), [true, false, false], "the other mappings stay");
    device.map(alias, GRANULE, handle).unwrap();
    assert!(!device.is_accessible(alias, GRANULE), "a new mapping has no access yet");

    device.destroy(handle).unwrap();
    device.map(DevicePtr(base.0 + 7 * GRANULE), GRANULE, handle).unwrap_err();
    device.destroy(handle).unwrap_err();
    for at in [alias, home] {
        device.unmap(at, GRANULE).unwrap();
        assert_eq!(device.used(), GRANULE, "a mapping is left");
        device.obtain(GRANULE).unwrap_err();
    }
    device.unmap(third, GRANULE).unwrap();
    assert_eq!((device.used(), device.peak_used()), (0, GRANULE));
    device.unreserve(base, 8 * GRANULE).unwrap();
    assert_eq!(device.outstanding(), Outstanding::default());
    device.obtain(GRANULE).unwrap();
}

#[test]
fn the_peak_of_the_use_restarts_at_the_present_use() {
    let device = SimulatedDevice::new(8 * GRANULE);
    let segment = device.obtain(3 * GRANULE).unwrap();
    let handle = device.create(GRANULE).unwrap();
    device.destroy(handle).unwrap();
    device.obtain(64 * GRANULE).unwrap_err();
    assert_eq!((device.used(), device.peak_used()), (3 * GRANULE, 4 * GRANULE));
    device.reset_peak_used();
    assert_eq!(device.peak_used(), 3 * GRANULE);
    device.release(segment, 3 * GRANULE).unwrap();
    device.reset_peak_used();
    assert_eq!(device.peak_used(), 0);
}
