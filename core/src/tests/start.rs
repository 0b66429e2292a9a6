//! Allocators in statics, started in place.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Failure, SimulatedDevice};
use crate::device::{Call, DeviceError, ErrorKind};
use crate::error::Error;
use crate::tables::{Fixed, Growable};
use crate::units::{DeviceIndex, DevicePtr, StreamId};

type Over<S> = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, S>;
/// The sizes of the other tests of full tables: the compiler writes out the allocator for each.
type Tables = Over<Fixed<2, 4, 8, 64>>;

const DEVICES: [DeviceIndex; 3] = [DeviceIndex(0), DeviceIndex(1), DeviceIndex(2)];
const STREAM: StreamId = StreamId(1);

fn device(number: u32) -> SimulatedDevice {
    SimulatedDevice::numbered(number, 64 << 20)
}

/// Checks that every call is answered as without a device.
fn has_no_device(allocator: &Tables) {
    for device in DEVICES {
        let unknown = Error::UnknownDevice(device);
        assert_eq!(allocator.malloc(device, 512, STREAM), Err(unknown));
        assert_eq!(allocator.block(device, 512, STREAM).err(), Some(unknown));
        assert_eq!(allocator.empty_cache(device), Err(unknown));
        assert_eq!(allocator.stats(device).map(|stats| stats.totals()).err(), Some(unknown));
        assert!(allocator.pages(device).is_err() && allocator.device(device).is_none());
    }
    let nowhere = DevicePtr(1 << 40);
    assert_eq!(allocator.free(nowhere), Err(Error::foreign(nowhere)));
    assert_eq!((allocator.free(DevicePtr::NULL), allocator.device_count()), (Ok(()), 0));
    allocator.configure(&Config::new());
    allocator.check_invariants().unwrap();
}

#[test]
fn an_empty_allocator_has_no_device_until_it_starts() {
    static ALLOCATOR: Tables = Allocator::empty();
    has_no_device(&ALLOCATOR);
    let config = Config::parse("max_split_size_mb:32").unwrap();
    ALLOCATOR.start([device(0), device(1)], &config).unwrap();
    let made = Over::<Growable>::new([device(0), device(1)], &config).unwrap();
    for number in DEVICES {
        for bytes in [512, 3 << 20, 80 << 20] {
            assert_eq!(ALLOCATOR.malloc(number, bytes, STREAM), made.malloc(number, bytes, STREAM), "{bytes} bytes");
        }
        assert_eq!(ALLOCATOR.stats(number).map(|stats| stats.totals()), made.stats(number).map(|stats| stats.totals()));
    }
    ALLOCATOR.check_invariants().unwrap();
}

#[test]
fn a_second_start_changes_nothing() {
    static ALLOCATOR: Tables = Allocator::empty();
    let allocator = &ALLOCATOR;
    allocator.start([device(0)], &Config::new()).unwrap();
    let block = allocator.malloc(DEVICES[0], 512, STREAM).unwrap();
    let config = Config::parse("per_process_memory_fraction:0.1").unwrap();
    assert_eq!(allocator.start([device(0), device(1)], &config), Err(Error::AlreadyStarted));
    assert_eq!(allocator.device_count(), 1);
    assert!(allocator.malloc(DEVICES[0], 32 << 20, STREAM).is_ok(), "there is no limit");
    allocator.free(block).unwrap();
    let made = Tables::new([device(0)], &Config::new()).unwrap();
    assert_eq!(made.start([device(0)], &Config::new()), Err(Error::AlreadyStarted));
}

#[test]
fn a_failed_start_may_be_made_again() {
    static ALLOCATOR: Tables = Allocator::empty();
    let allocator = &ALLOCATOR;
    let all = [0, 1, 2].map(device);
    assert_eq!(allocator.start(all, &Config::new()), Err(Error::TableFull("devices")));
    let config = Config::parse("per_process_memory_fraction:0.5").unwrap();
    let (first, failing) = (device(0), device(1));
    let error = DeviceError::new(ErrorKind::Other, 1);
    failing.fail(Failure { call: Call::MemoryInfo, nth: 1, persistent: false, error });
    assert_eq!(allocator.start([first, failing], &config), Err(Error::Device(error)));
    has_no_device(allocator);
    allocator.start([device(0)], &config).unwrap();
    assert!(matches!(allocator.malloc(DEVICES[0], 33 << 20, STREAM), Err(Error::OutOfMemory(_))), "half is 32 MiB");
    assert!(allocator.malloc(DEVICES[0], 30 << 20, STREAM).is_ok());
}

#[test]
fn of_two_threads_one_starts_the_allocator() {
    for _ in 0..100 {
        let allocator = Tables::empty();
        let started = std::thread::scope(|scope| {
            let start = || {
                let started = allocator.start([device(0)], &Config::new());
                assert!(allocator.malloc(DEVICES[0], 512, STREAM).is_ok(), "the allocator is there after either");
                started.is_ok()
            };
            let threads = [scope.spawn(start), scope.spawn(start)];
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(started.iter().filter(|&&started| started).count(), 1);
    }
}

#[test]
fn more_devices_than_an_address_can_name_are_refused() {
    let start = |count| Over::<Growable>::new((0..count).map(device), &Config::new()).map(drop);
    assert_eq!(start(127), Ok(()));
    assert_eq!(start(128), Err(Error::TableFull("devices")));
}
