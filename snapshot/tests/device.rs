//! An allocator over two simulated devices.

use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, CallSite, Config, DeviceIndex, DeviceResult, Growable};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const FIRST: DeviceIndex = DeviceIndex(0);
pub(crate) const SECOND: DeviceIndex = DeviceIndex(1);

/// A simulated device with a UUID and call sites.
pub(crate) struct Device {
    simulated: SimulatedDevice,
    uuid: Option<[u8; 16]>,
}

impl Forwarder for Device {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.simulated)
    }
}

impl ForwardSegments for Device {
    fn uuid(&self) -> Option<[u8; 16]> {
        self.uuid
    }
}

impl ForwardStreamOrder for Device {}

impl ForwardHost for Device {
    fn call_site(&self, site: CallSite) -> u32 {
        if site == CallSite::Alloc { 1 } else { 2 }
    }
}

pub(crate) type TestAllocator = Allocator<Device, spin::mutex::SpinMutex<()>, Growable>;

/// Creates an allocator over two devices of 256 MiB. The first device has a UUID.
pub(crate) fn allocator(config: &str) -> TestAllocator {
    let uuids = [Some(std::array::from_fn(|at| 0x11 * at as u8)), None];
    let device = |number: u32, uuid| Device { simulated: SimulatedDevice::numbered(number, 256 * MIB), uuid };
    let devices = [device(0, uuids[0]), device(1, uuids[1])];
    Allocator::new(devices, &Config::parse(config).expect("a configuration")).expect("two devices")
}
