//! The estimated time of driver calls, which a simulated device adds up.
//!
//! The time of a call is the time that the calling thread spends in it. Waiting for the work of the
//! device is not included: `cuMemFree`, `cuEventSynchronize` and `cuStreamSynchronize` may take as
//! long as the kernels that are running, and a simulated device has no kernels. All times are
//! integers, so the same program takes the same time on every machine.

use super::{Call, SimulatedDevice};
use alloc::borrow::Cow;
use alloc::vec::Vec;

/// The cost of a call for a given number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostPoint {
    /// The size in bytes.
    pub bytes: u64,
    /// The time in nanoseconds.
    pub ns: u64,
}

/// Returns the point for a cost that was measured at `mib` MiB.
const fn at(mib: u64, ns: u64) -> CostPoint {
    CostPoint { bytes: mib << 20, ns }
}

/// The estimated time of every call, by size.
///
/// Each call has points, sorted by size. Between two points, the time is interpolated linearly.
/// Below the first point, it is the time of the first point. Beyond the last point, it continues
/// the last line if that line rises. A call that has no points takes no time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DriverCosts([Cow<'static, [CostPoint]>; Call::ALL.len()]);

impl DriverCosts {
    /// Returns the costs on an NVIDIA H200, driver 580.159 (CUDA 13.0): medians of a single host
    /// thread on an otherwise idle machine.
    ///
    /// | call | time in µs |
    /// |---|---|
    /// | `cuMemAlloc` | 31, 32, 49, 113 at 2, 20, 200, 2000 MiB |
    /// | `cuMemFree` | 24, 32, 98, 673 at the same sizes |
    /// | `cuMemCreate` | 9; of the host 527 and 270,000 at 2 MiB and 1 GiB |
    /// | `cuMemMap` | 0.6 |
    /// | `cuMemSetAccess` | 23.5 + 4.5 · (size − 2 MiB) / 198 MiB, for each mapping in the range |
    /// | `cuMemUnmap` | 15 for each mapping |
    /// | `cuMemRelease` | 12 + 62 · size / 200 MiB |
    /// | `cuMemAddressReserve` | 4.5 |
    /// | `cuMemGetInfo` | 3.2 |
    /// | `cuEventCreate`, `cuEventRecord`, `cuEventQuery` | 0.15 |
    /// | `cuEventDestroy` | 1.2 |
    /// | `cuStreamIsCapturing` | 0.03 |
    ///
    /// `cuMemAddressFree`, `cuStreamWaitEvent` and `cuMemExportToShareableHandle` were not
    /// measured, and take no time here.
    pub fn h200() -> Self {
        Self(Call::ALL.map(|call| Cow::Borrowed(h200(call))))
    }

    /// Returns costs under which no call takes time.
    pub fn free() -> Self {
        Self::default()
    }

    /// Sets the points of `call`. Returns false, and changes nothing, if they are not sorted by
    /// size.
    pub fn set(&mut self, call: Call, points: impl IntoIterator<Item = CostPoint>) -> bool {
        let points: Vec<CostPoint> = points.into_iter().collect();
        let ascends = points.is_sorted_by(|one, next| one.bytes < next.bytes);
        if ascends {
            self.0[call as usize] = Cow::Owned(points);
        }
        ascends
    }

    /// Returns the points of `call`.
    pub fn points(&self, call: Call) -> &[CostPoint] {
        &self.0[call as usize]
    }

    /// Returns the time of `call` for `bytes` bytes, in nanoseconds.
    pub fn ns(&self, call: Call, bytes: u64) -> u64 {
        let points = self.points(call);
        let above = points.partition_point(|point| point.bytes < bytes);
        match (points, above) {
            ([], _) => 0,
            ([only], _) => only.ns,
            ([first, ..], 0) => first.ns,
            ([.., before, last], above) if above == points.len() => on_line(*before, *last, bytes).max(last.ns),
            _ => on_line(points[above - 1], points[above], bytes),
        }
    }
}

/// Returns the time for `bytes` on the line through two points, at least 0. The difference to the
/// time of `from` is rounded down to whole nanoseconds.
fn on_line(from: CostPoint, to: CostPoint, bytes: u64) -> u64 {
    let part = |ns: u64| {
        // The product of 16 TiB and a millisecond does not fit in 64 bits.
        let part = u128::from(ns) * u128::from(bytes - from.bytes) / u128::from(to.bytes - from.bytes);
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    if to.ns >= from.ns {
        from.ns.saturating_add(part(to.ns - from.ns))
    } else {
        from.ns.saturating_sub(part(from.ns - to.ns))
    }
}

/// Returns the points of a call on an H200.
const fn h200(call: Call) -> &'static [CostPoint] {
    match call {
        Call::Obtain => const { &[at(2, 31_000), at(20, 32_000), at(200, 49_000), at(2000, 113_000)] },
        Call::Release => const { &[at(2, 24_000), at(20, 32_000), at(200, 98_000), at(2000, 673_000)] },
        Call::Create => const { &[at(0, 9_000)] },
        Call::CreateAtHost => const { &[at(2, 527_000), at(1024, 270_000_000)] },
        Call::Map => const { &[at(0, 600)] },
        Call::SetAccess => const { &[at(2, 23_500), at(200, 28_000)] },
        Call::Unmap => const { &[at(0, 15_000)] },
        Call::Destroy => const { &[at(0, 12_000), at(200, 74_000)] },
        Call::Reserve => const { &[at(0, 4_500)] },
        Call::MemoryInfo => const { &[at(0, 3_200)] },
        Call::CreateEvent | Call::Record | Call::IsComplete | Call::IsIdle => const { &[at(0, 150)] },
        Call::DestroyEvent => const { &[at(0, 1_200)] },
        Call::IsCapturing => const { &[at(0, 30)] },
        // Waiting and copying is the device's time, not the time of the call. The rest was not
        // measured.
        _ => &[],
    }
}

/// How much time the calls have taken so far.
#[derive(Clone, Default, Debug)]
pub(super) struct Meter {
    costs: DriverCosts,
    /// Nanoseconds, by call.
    ns: [u64; Call::ALL.len()],
    /// Nanoseconds of all calls together.
    total_ns: u64,
}

impl Meter {
    /// Creates a meter that uses these costs.
    pub(super) fn new(costs: DriverCosts) -> Self {
        Self { costs, ..Self::default() }
    }

    /// Adds a call for pieces of the given sizes in bytes. Each piece costs as much as it would
    /// alone.
    pub(super) fn charge(&mut self, call: Call, pieces: impl IntoIterator<Item = u64>) {
        let ns = pieces.into_iter().fold(0, |ns: u64, bytes| ns.saturating_add(self.costs.ns(call, bytes)));
        let sum = &mut self.ns[call as usize];
        *sum = sum.saturating_add(ns);
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    /// Returns the time of all calls together.
    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns
    }
}

impl SimulatedDevice {
    /// Sets what the calls cost, instead of [`DriverCosts::h200`].
    #[must_use]
    pub fn with_costs(self, costs: DriverCosts) -> Self {
        self.0.lock().meter.costs = costs;
        self
    }

    /// Returns the estimated time of all calls so far, in nanoseconds, including failed calls. The
    /// difference before and after a request is how long the driver stalled it.
    pub fn driver_ns(&self) -> u64 {
        self.0.lock().meter.total_ns()
    }

    /// Returns the part of [`driver_ns`](Self::driver_ns) that `call` took.
    pub fn driver_ns_of(&self, call: Call) -> u64 {
        self.0.lock().meter.ns[call as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::simulated::Failure;
    use crate::device::{DeviceError, ErrorKind, PhysicalHandle, Segments, StreamOrder, VirtualMemory};
    use crate::units::{DevicePtr, StreamId};
    use alloc::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    /// Returns the time of each call that took any.
    fn spent(device: &SimulatedDevice) -> BTreeMap<Call, u64> {
        let times = Call::ALL.into_iter().map(|call| (call, device.driver_ns_of(call)));
        times.filter(|&(_, ns)| ns > 0).collect()
    }

    #[test]
    fn measured_sizes_cost_what_was_measured() {
        let costs = DriverCosts::h200();
        for (call, mib, ns) in [
            (Call::Obtain, 2, 31_000),
            (Call::Obtain, 20, 32_000),
            (Call::Obtain, 200, 49_000),
            (Call::Obtain, 2000, 113_000),
            (Call::Release, 2, 24_000),
            (Call::Release, 20, 32_000),
            (Call::Release, 200, 98_000),
            (Call::Release, 2000, 673_000),
            (Call::Create, 64, 9_000),
            (Call::Map, 64, 600),
            (Call::SetAccess, 2, 23_500),
            (Call::SetAccess, 200, 28_000),
            (Call::Unmap, 64, 15_000),
            (Call::Destroy, 2, 12_620),
            (Call::Destroy, 200, 74_000),
            (Call::Reserve, 1 << 20, 4_500),
            (Call::MemoryInfo, 0, 3_200),
            (Call::CreateEvent, 0, 150),
            (Call::Record, 0, 150),
            (Call::IsComplete, 0, 150),
            (Call::DestroyEvent, 0, 1_200),
            (Call::IsCapturing, 0, 30),
            (Call::Wait, 0, 0),
            (Call::Synchronize, 0, 0),
            (Call::Unreserve, 1 << 20, 0),
        ] {
            assert_eq!(costs.ns(call, mib * MIB), ns, "{call:?} {mib} MiB");
        }
    }

    #[test]
    fn times_between_and_beyond_the_points_lie_on_lines() {
        let costs = DriverCosts::h200();
        assert_eq!(costs.ns(Call::Obtain, 512), 31_000, "below the first point");
        assert_eq!(costs.ns(Call::Obtain, 11 * MIB), 31_500);
        assert_eq!(costs.ns(Call::Release, 1100 * MIB), 385_500);
        assert_eq!(costs.ns(Call::Release, 3800 * MIB), 1_248_000, "the last line goes on");
        assert_eq!(costs.ns(Call::SetAccess, 101 * MIB), 25_750);
        // 12 + 62 · 20 / 200.
        assert_eq!(costs.ns(Call::Destroy, 20 * MIB), 18_200);
        // One byte above 2 MiB is less than a nanosecond.
        assert_eq!(costs.ns(Call::Obtain, 2 * MIB + 1), 31_000);
        assert_eq!(costs.ns(Call::Release, u64::MAX), 5_619_726_097_555_888);
    }

    #[test]
    fn a_falling_line_ends_at_the_last_point_and_never_below_zero() {
        let mut costs = DriverCosts::free();
        assert_eq!(costs.ns(Call::Map, 64 * MIB), 0);
        assert!(costs.set(Call::Map, [at(2, 600), at(20, 1_100), at(200, 500)]));
        assert_eq!(costs.ns(Call::Map, 110 * MIB), 800);
        assert_eq!(costs.ns(Call::Map, 4000 * MIB), 500);
        let before = costs.clone();
        assert!(!costs.set(Call::Map, [at(2, 1), at(2, 2)]), "two costs of one size");
        assert!(!costs.set(Call::Map, [at(4, 1), at(2, 2)]), "sizes that descend");
        assert_eq!(costs, before);
        assert!(costs.set(Call::Map, []));
        assert_eq!(costs, DriverCosts::free());
    }

    #[test]
    fn a_device_adds_up_its_calls_by_kind() {
        let device = SimulatedDevice::new(1 << 40);
        assert_eq!(device.driver_ns(), 0);
        let segment = device.obtain(20 * MIB).unwrap();
        let stall = device.driver_ns();
        assert_eq!(stall, 32_000);
        device.release(segment, 20 * MIB).unwrap();
        device.memory_info().unwrap();
        let event = device.create_event().unwrap();
        device.record(event, StreamId::DEFAULT).unwrap();
        device.is_complete(event).unwrap();
        device.wait(event).unwrap();
        device.synchronize(StreamId::DEFAULT).unwrap();
        device.is_capturing(StreamId::DEFAULT).unwrap();
        device.destroy_event(event).unwrap();
        let expected = [
            (Call::Obtain, 32_000),
            (Call::Release, 32_000),
            (Call::MemoryInfo, 3_200),
            (Call::CreateEvent, 150),
            (Call::DestroyEvent, 1_200),
            (Call::Record, 150),
            (Call::IsComplete, 150),
            (Call::IsCapturing, 30),
        ];
        assert_eq!(spent(&device), expected.into());
        assert_eq!(device.driver_ns(), expected.iter().map(|(_, ns)| ns).sum::<u64>());
    }

    /// Maps `handles` of 2 MiB side by side from `base` on.
    fn map_all(device: &SimulatedDevice, base: DevicePtr, handles: &[PhysicalHandle]) {
        for (at, &handle) in (base.0..).step_by(2 << 20).zip(handles) {
            device.map(DevicePtr(at), 2 * MIB, handle).unwrap();
        }
    }

    #[test]
    fn access_costs_for_each_mapping_in_the_range() {
        let device = SimulatedDevice::new(1 << 40);
        let base = device.reserve(1 << 30).unwrap();
        let handles: Vec<_> = (0..60).map(|_| device.create(2 * MIB).unwrap()).collect();
        map_all(&device, base, &handles);
        device.set_access(base, 60 * 2 * MIB).unwrap();
        // The measured cost of one call over 60 handles: 1,410 µs.
        assert_eq!(device.driver_ns_of(Call::SetAccess), 60 * 23_500);
        assert_eq!(device.driver_ns_of(Call::Create), 60 * 9_000);
        assert_eq!(device.driver_ns_of(Call::Map), 60 * 600);
        // One large handle instead of 60 small ones costs little more than a single small one.
        let large = device.create(200 * MIB).unwrap();
        let at = DevicePtr(base.0 + 512 * MIB);
        device.map(at, 200 * MIB, large).unwrap();
        device.set_access(at, 200 * MIB).unwrap();
        assert_eq!(device.driver_ns_of(Call::SetAccess), 60 * 23_500 + 28_000);
    }

    #[test]
    fn a_destroyed_handle_is_paid_at_once_and_its_memory_stays_while_mapped() {
        let device = SimulatedDevice::new(1 << 40);
        let base = device.reserve(1 << 30).unwrap();
        let handle = device.create(20 * MIB).unwrap();
        device.map(base, 20 * MIB, handle).unwrap();
        device.destroy(handle).unwrap();
        assert_eq!((device.driver_ns_of(Call::Destroy), device.used()), (18_200, 20 * MIB));
        device.unmap(base, 20 * MIB).unwrap();
        assert_eq!((device.driver_ns_of(Call::Destroy), device.driver_ns_of(Call::Unmap)), (18_200, 15_000));
        assert_eq!(device.used(), 0);
    }

    #[test]
    fn failed_calls_cost_what_they_cost_otherwise() {
        let device = SimulatedDevice::new(4 * MIB);
        assert_eq!(device.obtain(20 * MIB).unwrap_err().kind, ErrorKind::OutOfMemory);
        assert_eq!(device.driver_ns_of(Call::Obtain), 32_000);
        let error = DeviceError::new(ErrorKind::Other, 719);
        device.fail(Failure { call: Call::Create, nth: 1, persistent: false, error });
        device.create(2 * MIB).unwrap_err();
        assert_eq!(device.driver_ns_of(Call::Create), 9_000);
    }

    #[test]
    fn a_device_can_have_other_costs() {
        let mut costs = DriverCosts::free();
        assert!(costs.set(Call::Obtain, [CostPoint { bytes: 0, ns: 7 }]));
        let device = SimulatedDevice::new(1 << 30).with_costs(costs);
        let segment = device.obtain(MIB).unwrap();
        device.release(segment, MIB).unwrap();
        assert_eq!(spent(&device), [(Call::Obtain, 7)].into());
    }
}
