//! Device memory: sizes, codes, reuse, poison, limits, and access.

use crate::common::{Emulated, PAGE, in_child, is_child, text};
use std::os::unix::process::ExitStatusExt;

#[test]
fn small_allocations_share_a_page_and_are_aligned() {
    let driver = Emulated::new();
    let before = driver.info().expect("info").0;
    let first = driver.alloc(1).expect("memory");
    let second = driver.alloc(513).expect("memory");
    assert_eq!((first % 512, second % 512, second - first), (0, 0, 512));
    assert_eq!(before - driver.info().expect("info").0, PAGE);
    assert_eq!((driver.cuMemFree_v2(first), driver.cuMemFree_v2(second)), (0, 0));
    assert_eq!(driver.info().expect("info").0, before);
}

#[test]
fn wrong_frees_are_refused_and_change_nothing() {
    let driver = Emulated::new();
    let address = driver.alloc(3 * PAGE).expect("memory");
    let local = 0_u64;
    let foreign = std::ptr::from_ref(&local) as u64;
    for wrong in [address + 512, address + 3 * PAGE as u64, address - 512, foreign, 1, u64::MAX] {
        assert_eq!(driver.cuMemFree_v2(wrong), 1, "{wrong:#x}");
    }
    assert_eq!(driver.cuMemFree_v2(0), 0);
    assert_eq!(driver.cuMemFree_v2(address), 0);
    assert_eq!(driver.cuMemFree_v2(address), 1);
    assert_eq!(driver.count("allocations"), 0);
}

#[test]
fn work_that_strays_breaks_its_context_if_faults_are_delivered() {
    let driver = Emulated::new();
    driver.control.set_delivers_faults(true);
    let [held, other] = [1, 1].map(|flags| driver.stream(flags).expect("a stream"));
    let (gone, kept) = (driver.alloc(2 * PAGE).expect("memory"), driver.alloc(PAGE).expect("memory"));
    driver.control.set_free_waits(false);
    driver.control.hold(held).expect("a stream");
    let inside = gone + PAGE as u64 + 9;
    assert_eq!(driver.cuMemsetD8Async(inside, 1, 100, held), 0);
    assert_eq!(driver.cuMemFree_v2(gone), 0);
    assert_eq!((driver.cuMemsetD8Async(kept, 1, 100, other), driver.cuStreamSynchronize(other)), (0, 0));
    assert_eq!(driver.control.fault_address(), 0);
    driver.control.release(held).expect("a stream");
    assert_eq!((driver.cuStreamSynchronize(held), driver.alloc(1)), (700, Err(700)));
    assert_eq!(driver.control.fault_address(), inside);
}

#[test]
fn absurd_sizes_are_refused() {
    let driver = Emulated::new();
    assert_eq!(driver.alloc(0), Err(1));
    for absurd in [usize::MAX, usize::MAX - 511, 1 << 63, 1 << 50, (1 << 30) + 1] {
        assert_eq!(driver.alloc(absurd), Err(2), "{absurd:#x}");
    }
    assert_eq!(driver.cuMemAlloc_v2(&mut 0, 1 << 30), 0);
}

#[test]
fn capacity_is_limited_and_others_count() {
    let driver = Emulated::new();
    let (free, total) = driver.info().expect("info");
    assert_eq!((free, total), (1 << 30, 1 << 30));
    driver.control.set_others_bytes(0, 1 << 29).expect("a device");
    assert_eq!(driver.alloc((1 << 29) + 1), Err(2));
    let half = driver.alloc(1 << 29).expect("memory");
    assert_eq!(driver.info(), Ok((0, 1 << 30)));
    assert_eq!(driver.alloc(1), Err(2));
    assert_eq!(driver.cuMemFree_v2(half), 0);
}

#[test]
fn addresses_come_back_at_once_unless_quarantined() {
    let driver = Emulated::new();
    let (first, second) = (driver.alloc(PAGE * 2).expect("memory"), driver.alloc(PAGE * 2).expect("memory"));
    assert_eq!((driver.cuMemFree_v2(second), driver.cuMemFree_v2(first)), (0, 0));
    assert_eq!(driver.alloc(PAGE * 2), Ok(first));
    driver.control.set_quarantine(true);
    assert_eq!(driver.cuMemFree_v2(first), 0);
    let later = driver.alloc(PAGE * 2).expect("memory");
    assert_ne!(later, first);
    assert_eq!(driver.cuMemFree_v2(later), 0);
    assert_ne!(driver.alloc(PAGE * 2), Ok(later));
}

#[test]
fn new_memory_and_freed_memory_are_poisoned() {
    let driver = Emulated::new();
    let keeper = driver.alloc(512).expect("memory");
    let address = driver.alloc(1024).expect("memory");
    assert_eq!(driver.read(address, 1024), Ok(vec![0xa5; 1024]));
    assert_eq!(driver.write(address, &[7; 1024]), 0);
    assert_eq!(driver.cuMemFree_v2(address), 0);
    // `keeper` keeps the page mapped, so the freed part can be read.
    assert_eq!(driver.control.peek(address, 1024), Ok(vec![0xdd; 1024]));
    assert_eq!(driver.read(address, 1024), Err(1));
    assert_eq!(driver.alloc(1024), Ok(address));
    assert_eq!(driver.read(address, 1024), Ok(vec![0xa5; 1024]));
    assert_eq!(driver.cuMemFree_v2(keeper), 0);
}

#[test]
fn a_result_that_nobody_wants_may_be_null() {
    type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> u32;
    type Range = unsafe extern "C" fn(*mut u64, *mut usize, u64) -> u32;
    let driver = Emulated::new();
    let address = driver.alloc(5000).expect("memory");
    let library = driver.control.library();
    // SAFETY: the type comes from the driver's header.
    let info = unsafe { library.get::<Info>("cuMemGetInfo_v2") }.expect("a symbol");
    // SAFETY: as above.
    let range = unsafe { library.get::<Range>("cuMemGetAddressRange_v2") }.expect("a symbol");
    let (null, mut free, mut base) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: null stands for a result that is not wanted.
    assert_eq!((unsafe { info(null, null) }, unsafe { info(&raw mut free, null) }), (0, 0));
    assert_eq!(Ok(free), driver.info().map(|info| info.0));
    // SAFETY: as above.
    assert_eq!((unsafe { range(&raw mut base, null, address + 9) }, base), (0, address));
}

#[test]
fn ranges_are_described() {
    let driver = Emulated::new();
    let address = driver.alloc(5000).expect("memory");
    let (mut base, mut bytes) = (0, 0);
    assert_eq!(driver.cuMemGetAddressRange_v2(&mut base, &mut bytes, address + 4999), 0);
    assert_eq!((base, bytes), (address, 5000));
    assert_eq!(driver.cuMemGetAddressRange_v2(&mut base, &mut bytes, address + 5000), 500);
    assert_eq!(driver.cuMemGetAddressRange_v2(&mut base, &mut bytes, 4096), 500);
}

#[test]
fn fills_and_copies_move_bytes_and_check_their_ranges() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let (left, right) = (driver.alloc(4096).expect("memory"), driver.alloc(PAGE + 1).expect("memory"));
    assert_eq!(driver.cuMemsetD8Async(left, 0x5a, 4096, stream), 0);
    assert_eq!(driver.cuMemcpyDtoDAsync_v2(right, left, 4096, stream), 0);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(driver.read(right, 4097).map(|bytes| (bytes[4095], bytes[4096])), Ok((0x5a, 0xa5)));
    assert_eq!(driver.cuMemsetD8Async(left, 0, 4097, stream), 1);
    assert_eq!(driver.cuMemsetD8Async(right + PAGE as u64, 0, 2, stream), 1);
    assert_eq!(driver.cuMemsetD8Async(4096, 0, 1, stream), 1);
    assert_eq!(driver.cuMemsetD8Async(4096, 0, 0, stream), 0);
}

#[test]
fn host_memory_may_change_once_a_copy_was_queued() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let address = driver.alloc(4).expect("memory");
    driver.control.hold(stream).expect("a stream");
    let mut host = [1_u8; 4];
    assert_eq!(driver.cuMemcpyHtoDAsync_v2(address, host.as_ptr().cast(), 4, stream), 0);
    host.fill(2);
    driver.control.release(stream).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(driver.read(address, 4), Ok(vec![1; 4]));
    assert_eq!(host, [2; 4]);
}

#[test]
fn a_free_waits_for_the_work_unless_told_otherwise() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let address = driver.alloc(PAGE).expect("memory");
    driver.control.hold(stream).expect("a stream");
    assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, stream), 0);
    driver.control.set_free_waits(false);
    let other = driver.alloc(PAGE).expect("memory");
    assert_eq!(driver.cuMemFree_v2(other), 0);
    driver.control.set_free_waits(true);
    std::thread::scope(|scope| {
        let free = scope.spawn(|| {
            driver.enter(0).expect("a context");
            driver.cuMemFree_v2(address)
        });
        // The free removes the address from the table first, which shows the progress of the
        // free.
        while driver.count("allocations") > 0 {
            std::thread::yield_now();
        }
        assert!(!free.is_finished());
        assert_eq!(driver.control.pending(stream), 1);
        driver.control.release(stream).expect("a stream");
        assert_eq!(free.join().expect("joined"), 0);
    });
    assert_eq!(driver.cuStreamQuery(stream), 0);
}

#[test]
fn peers_see_each_others_memory_only_when_enabled() {
    let driver = Emulated::new();
    let own = driver.enter(0).expect("a context");
    let other = driver.enter(1).expect("a context");
    let address = driver.alloc(PAGE).expect("memory");
    assert_eq!(driver.cuCtxSetCurrent(own), 0);
    let mut can = 0;
    assert_eq!((driver.cuDeviceCanAccessPeer(&mut can, 0, 1), can), (0, 1));
    assert_eq!((driver.cuDeviceCanAccessPeer(&mut can, 0, 0), can), (0, 0));
    assert_eq!(driver.cuCtxDisablePeerAccess(other), 705);
    assert_eq!(driver.cuCtxEnablePeerAccess(other, 0), 0);
    assert_eq!(driver.cuCtxEnablePeerAccess(other, 0), 704);
    assert_eq!(driver.cuCtxEnablePeerAccess(own, 0), 217);
    // Device 0's view of device 1's memory is real now.
    let seen = driver.control.seen_by(0, address).cast::<u8>();
    // SAFETY: mapped for device 0 by the call above, and not written to elsewhere.
    let byte = unsafe { seen.read_volatile() };
    assert_eq!(byte, 0xa5);
    assert_eq!(driver.cuCtxDisablePeerAccess(other), 0);
}

/// Runs `touch` with a page of device memory in a child process and returns how the child ended.
fn ended_by(test: &str, touch: impl FnOnce(&Emulated, u64)) -> Option<i32> {
    if is_child(test) {
        let driver = Emulated::new();
        let address = driver.alloc(PAGE).expect("memory");
        touch(&driver, address);
        // Reached only if the touch did not kill the process.
        std::process::exit(0);
    }
    let output = in_child(test, &[]);
    output.status.signal().or_else(|| {
        println!("{}", text(&output));
        None
    })
}

#[test]
fn host_code_that_touches_device_memory_is_killed() {
    let signal = ended_by("host_code_that_touches_device_memory_is_killed", |_, address| {
        // SAFETY: none: the store is the mistake under test, in a separate process.
        unsafe { (address as *mut u8).write_volatile(1) };
    });
    assert_eq!(signal, Some(libc::SIGSEGV));
}

#[test]
fn work_that_touches_freed_memory_is_killed() {
    let signal = ended_by("work_that_touches_freed_memory_is_killed", |driver, address| {
        let stream = driver.stream(1).expect("a stream");
        driver.control.hold(stream).expect("a stream");
        driver.control.set_free_waits(false);
        assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, stream), 0);
        assert_eq!(driver.cuMemFree_v2(address), 0);
        driver.control.release(stream).expect("a stream");
        driver.cuStreamSynchronize(stream);
    });
    assert_eq!(signal, Some(libc::SIGSEGV));
}

#[test]
fn work_of_a_device_without_access_is_killed() {
    let signal = ended_by("work_of_a_device_without_access_is_killed", |driver, address| {
        let seen = driver.control.seen_by(1, address).cast::<u8>();
        // SAFETY: none: device 1 has no access, which is the mistake under test.
        unsafe { seen.write_volatile(1) };
    });
    assert_eq!(signal, Some(libc::SIGSEGV));
}

#[test]
fn the_same_touch_by_the_right_device_is_fine() {
    let driver = Emulated::new();
    let address = driver.alloc(PAGE).expect("memory");
    let seen = driver.control.seen_by(0, address).cast::<u8>();
    // SAFETY: device 0 owns the memory, and no other work uses the memory.
    unsafe { seen.write_volatile(1) };
    assert_eq!(driver.read(address, 1), Ok(vec![1]));
}

#[test]
fn the_host_may_use_device_memory_if_it_is_asked_for() {
    let test = "the_host_may_use_device_memory_if_it_is_asked_for";
    if is_child(test) {
        let driver = Emulated::new();
        for address in [driver.alloc(512).expect("memory"), driver.alloc(PAGE).expect("memory")] {
            // SAFETY: the setting maps the memory for the host, and no other work uses the
            // memory.
            unsafe { (address as *mut u8).write_volatile(3) };
            assert_eq!(driver.read(address, 1), Ok(vec![3]));
            assert_eq!(driver.write(address, &[4]), 0);
            // SAFETY: as above.
            assert_eq!(unsafe { (address as *const u8).read_volatile() }, 4);
        }
        let (mapped, handle) = (driver.reserve(PAGE).expect("addresses"), driver.create(PAGE).expect("memory"));
        assert_eq!((driver.cuMemMap(mapped, PAGE, 0, handle, 0), driver.allow(mapped, PAGE)), (0, 0));
        // SAFETY: as above.
        unsafe { (mapped as *mut u8).write_volatile(5) };
        assert_eq!(driver.read(mapped, 1), Ok(vec![5]));
        assert_eq!(driver.cuMemUnmap(mapped, PAGE), 0);
        println!("until it is unmapped");
        // SAFETY: none: the store is the mistake under test, in a separate process.
        unsafe { (mapped as *mut u8).write_volatile(1) };
        std::process::exit(0);
    }
    let output = in_child(test, &[("CACHALOT_EMU_HOST_ACCESS", "1")]);
    assert!(text(&output).contains("until it is unmapped"), "{}", text(&output));
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
}
