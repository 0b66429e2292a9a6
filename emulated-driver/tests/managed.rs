//! Memory in rows, and memory that the host and the devices share.

use crate::common::{Emulated, PAGE};
use cachalot_emulated_driver::api::Given;

/// Allocates rows of memory. Returns the address and the pitch.
fn rows(driver: &Emulated, width: usize, height: usize, element: u32) -> Given<(u64, usize)> {
    let (mut address, mut pitch) = (0, 0);
    match driver.cuMemAllocPitch_v2(&mut address, &mut pitch, width, height, element) {
        0 => Ok((address, pitch)),
        code => Err(code),
    }
}

/// Allocates managed memory.
fn managed(driver: &Emulated, bytes: usize, flags: u32) -> Given<u64> {
    let mut address = 0;
    match driver.cuMemAllocManaged(&mut address, bytes, flags) {
        0 => Ok(address),
        code => Err(code),
    }
}

#[test]
fn a_pitch_is_whole_steps_of_512_bytes() {
    let driver = Emulated::new();
    assert_eq!([4, 8, 16].map(|element| rows(&driver, 100, 10, element).map(|rows| rows.1)), [Ok(512); 3]);
    assert_eq!([0, 1, 2, 3, 32].map(|element| rows(&driver, 100, 10, element)), [Err(1); 5]);
    let (address, pitch) = rows(&driver, 1025, 7, 4).expect("memory");
    assert_eq!(pitch, 1536);
    let mut bytes = 0;
    assert_eq!((driver.cuMemGetAddressRange_v2(&mut 0, &mut bytes, address), bytes), (0, 7 * 1536));
    assert_eq!((rows(&driver, 0, 10, 4), rows(&driver, 10, 0, 4)), (Err(1), Err(1)));
    assert_eq!((rows(&driver, 1 << 40, 1 << 40, 4), rows(&driver, 1 << 31, 1, 4)), (Err(1), Err(2)));
    assert_eq!((driver.cuMemFree_v2(address), driver.cuMemFree_v2(address)), (0, 1));
}

#[test]
fn the_host_and_every_device_use_managed_memory_by_one_address() {
    let driver = Emulated::new();
    let free = driver.info().expect("info").0;
    let stream = driver.stream(1).expect("a stream");
    for (bytes, flags) in [(1000, 1), (PAGE + 8, 2)] {
        let address = managed(&driver, bytes, flags).expect("memory");
        let seen = address as *mut u8;
        // SAFETY: managed memory is the host's, too, and no work uses the memory.
        unsafe { seen.write_volatile(3) };
        assert_eq!(driver.read(address, 1), Ok(vec![3]));
        assert_eq!(driver.cuMemsetD8Async(address, 9, bytes, stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        // SAFETY: as above, inside the allocation.
        assert_eq!(unsafe { seen.wrapping_add(bytes - 1).read_volatile() }, 9);
        let other = driver.control.seen_by(1, address).cast::<u8>();
        // SAFETY: every device has access to managed memory.
        assert_eq!(unsafe { other.read_volatile() }, 9);
        let mut length = 0;
        assert_eq!((driver.cuMemGetAddressRange_v2(&mut 0, &mut length, address + 7), length), (0, bytes));
        assert_eq!((driver.cuMemFree_v2(address), driver.cuMemFree_v2(address)), (0, 1));
        assert_eq!(driver.info().expect("info").0, free);
    }
}

#[test]
fn wrong_requests_for_managed_memory_are_refused() {
    let driver = Emulated::new();
    assert_eq!([0, 3, 4].map(|flags| managed(&driver, 1000, flags)), [Err(1); 3]);
    assert_eq!((managed(&driver, 0, 1), managed(&driver, 1 << 60, 1)), (Err(1), Err(2)));
    assert_eq!(driver.cuCtxSetCurrent(0), 0);
    assert_eq!((managed(&driver, 8, 1), rows(&driver, 8, 8, 4)), (Err(201), Err(201)));
    assert_eq!(driver.cuMemAllocHost_v2(&mut std::ptr::null_mut(), 8), 201);
}

#[test]
fn pinned_memory_of_no_bytes_is_null() {
    let driver = Emulated::new();
    let mut memory = std::ptr::dangling_mut();
    assert_eq!((driver.cuMemAllocHost_v2(&mut memory, 0), memory.is_null()), (0, true));
}
