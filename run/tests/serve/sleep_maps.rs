//! Memory that the program creates and maps by itself, parked and woken.

use super::setup::{PAGE, Setup};
use super::sleep::{PATIENCE, Sleeps, check, failing, phase, setup_with, touch, used};
use cachalot_cuda::driver::types::{
    CuDevice, CuMemAccessDesc, CuMemAccessFlags, CuMemAllocationProp, CuMemHandle, CuMemHandleType, CuMemLocation,
    CuMemLocationType,
};
use cachalot_run::Options;
use cachalot_run::control::{Controlled, RefusalKind, RemainderKind, SleepState};
use cachalot_run::options::SleepOptions;
use core::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Codes of the driver.
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;

/// Returns options by which all memory of more than a page wakes in pieces.
pub(super) fn in_pages() -> SleepOptions {
    SleepOptions { piece: PAGE as u64, ..SleepOptions::default() }
}

pub(super) fn setup() -> Sleeps {
    let setup = setup_with(in_pages(), Options::default());
    // The driver maps for a context that is served from now on.
    let block = setup.take(512);
    assert_eq!(setup.give(block), 0);
    setup
}

/// Creates memory that can be exported, as most programs do.
pub(super) fn try_create(setup: &Setup, bytes: usize) -> Result<CuMemHandle, u32> {
    let (mut handle, properties) = (CuMemHandle::default(), CuMemAllocationProp::on_device(0, false, true));
    // SAFETY: both variables outlive the call.
    let code = unsafe { setup.process.mem_create(&raw mut handle, bytes, &raw const properties, 0) };
    if code.is_success() { Ok(handle) } else { Err(code.0) }
}

pub(super) fn create(setup: &Setup, bytes: usize) -> CuMemHandle {
    try_create(setup, bytes).expect("memory")
}

pub(super) fn release(setup: &Setup, handle: CuMemHandle) -> u32 {
    // SAFETY: takes no pointers.
    unsafe { setup.process.mem_release(handle) }.0
}

pub(super) fn map(setup: &Setup, address: u64, bytes: usize, handle: CuMemHandle) -> u32 {
    // SAFETY: takes no pointers of the host.
    unsafe { setup.process.mem_map(address, bytes, 0, handle, 0) }.0
}

pub(super) fn unmap(setup: &Setup, address: u64, bytes: usize) -> u32 {
    // SAFETY: takes no pointers of the host, and no work uses the range.
    unsafe { setup.process.mem_unmap(address, bytes) }.0
}

pub(super) fn open(setup: &Setup, address: u64, bytes: usize, flags: CuMemAccessFlags) {
    let location = CuMemLocation { kind: CuMemLocationType::DEVICE, id: 0 };
    let access = CuMemAccessDesc { location, flags };
    // SAFETY: `access` outlives the call.
    assert_eq!(unsafe { setup.process.mem_set_access(address, bytes, &raw const access, 1) }.0, 0);
}

pub(super) fn reserve(setup: &Setup, bytes: usize) -> u64 {
    let mut address = 0;
    assert_eq!(setup.cuMemAddressReserve(&mut address, bytes, 0, 0, 0), 0);
    address
}

/// Maps memory at new addresses, which the device may read and write.
pub(super) fn map_anew(setup: &Setup, handle: CuMemHandle, bytes: usize) -> u64 {
    let address = reserve(setup, bytes);
    assert_eq!(map(setup, address, bytes, handle), 0);
    open(setup, address, bytes, CuMemAccessFlags::READ_WRITE);
    address
}

/// The memory of a program.
struct Maps {
    /// Mapped at two addresses.
    twice: CuMemHandle,
    /// Not mapped, and filled.
    unmapped: CuMemHandle,
    /// What must hold its byte, by address.
    filled: Vec<(u64, usize, u8)>,
}

/// Creates and maps memory in the ways of programs, and fills each with its own byte.
fn maps(setup: &Setup) -> Maps {
    let stream = setup.stream();
    let fill = |address, bytes, value| {
        setup.fill(address, value, bytes, stream);
        (address, bytes, value)
    };
    let twice = create(setup, 3 * PAGE);
    let mut filled = vec![fill(map_anew(setup, twice, 3 * PAGE), 3 * PAGE, 1)];
    filled.push((map_anew(setup, twice, 3 * PAGE), 3 * PAGE, 1));
    let released = create(setup, PAGE);
    filled.push(fill(map_anew(setup, released, PAGE), PAGE, 2));
    assert_eq!(release(setup, released), 0);
    let unmapped = create(setup, 2 * PAGE);
    let address = map_anew(setup, unmapped, 2 * PAGE);
    fill(address, 2 * PAGE, 3);
    // The device may read no longer, and the memory stays.
    let closed = create(setup, PAGE);
    let closed_at = map_anew(setup, closed, PAGE);
    filled.push(fill(closed_at, PAGE, 4));
    assert_eq!(setup.cuCtxSynchronize(), 0);
    open(setup, closed_at, PAGE, CuMemAccessFlags::READ);
    assert_eq!(unmap(setup, address, 2 * PAGE), 0);
    Maps { twice, unmapped, filled }
}

/// Checks every byte of a program's memory.
fn check_maps(setup: &Setup, maps: &Maps) {
    check(setup, &maps.filled);
    let address = map_anew(setup, maps.unmapped, 2 * PAGE);
    check(setup, &[(address, 2 * PAGE, 3)]);
    assert_eq!(unmap(setup, address, 2 * PAGE), 0);
}

/// Bytes of [`maps`].
const BYTES: usize = 7 * PAGE;

#[test]
fn mapped_memory_leaves_the_device_and_wakes_where_it_was() {
    let setup = setup();
    setup.process.park(PATIENCE).unwrap();
    let before = used(&setup);
    touch(&setup).unwrap();
    let maps = maps(&setup);
    for round in 1..=3 {
        setup.process.park(PATIENCE).unwrap();
        assert_eq!((phase(&setup), used(&setup)), (SleepState::Parked, before));
        assert!(setup.control.peek(maps.filled[0].0, 1).is_err(), "no memory there");
        let status = setup.process.status();
        assert!(status.parked_bytes >= BYTES as u64 && status.device_bytes == 0, "{status:?}");
        touch(&setup).unwrap();
        check_maps(&setup, &maps);
        let (_, _, figures) = setup.process.sleep().unwrap();
        assert_eq!((figures.wakes, figures.failure), (round + 1, None));
        assert_eq!(figures.last_park.bytes, figures.last_wake.bytes);
    }
    // Both addresses are those of the same memory.
    setup.fill(maps.filled[0].0, 9, PAGE, setup.stream());
    assert_eq!(setup.cuCtxSynchronize(), 0);
    check(&setup, &[(maps.filled[1].0, PAGE, 9)]);
}

#[test]
fn parked_maps_are_counted_once_and_given_back_to_the_limit() {
    let limit = 20 * PAGE;
    let options = Options { limit: Some(limit as u64), ..Options::default() };
    let setup = setup_with(in_pages(), options);
    let free = || {
        let mut free = 0;
        // SAFETY: `free` outlives the call, and null is left out.
        assert_eq!(unsafe { setup.process.mem_get_info(&raw mut free, std::ptr::null_mut()) }.0, 0);
        free
    };
    let block = setup.take(512);
    let before = free();
    let handle = create(&setup, 8 * PAGE);
    let address = map_anew(&setup, handle, 8 * PAGE);
    assert_eq!(free(), before - 8 * PAGE);
    setup.process.park(PATIENCE).unwrap();
    assert_eq!(free(), before - 8 * PAGE, "what is parked wakes first");
    touch(&setup).unwrap();
    assert_eq!(free(), before - 8 * PAGE);
    assert_eq!(try_create(&setup, 13 * PAGE), Err(OUT_OF_MEMORY));
    // Released and still mapped: the driver has not got the memory back.
    assert_eq!(release(&setup, handle), 0);
    assert_eq!(free(), before - 8 * PAGE);
    assert_eq!(unmap(&setup, address, 8 * PAGE), 0);
    assert_eq!((free(), setup.give(block)), (before, 0));
}

#[test]
fn the_end_of_parked_memory_wakes_nothing() {
    let setup = setup();
    setup.process.park(PATIENCE).unwrap();
    let before = used(&setup);
    touch(&setup).unwrap();
    let maps = maps(&setup);
    setup.process.park(PATIENCE).unwrap();
    assert_eq!(release(&setup, maps.unmapped), 0);
    assert_eq!(release(&setup, maps.unmapped), INVALID_VALUE);
    for &(address, bytes, _) in &maps.filled {
        assert_eq!(unmap(&setup, address, bytes), 0);
        // SAFETY: nothing is mapped there.
        assert_eq!(unsafe { setup.process.mem_address_free(address, bytes) }.0, 0);
    }
    assert_eq!(release(&setup, maps.twice), 0);
    assert_eq!((phase(&setup), used(&setup)), (SleepState::Parked, before));
    // What is left is the memory that the device may not write.
    assert_eq!(setup.process.parkable().kept, PAGE as u64);
    touch(&setup).unwrap();
    setup.process.park(PATIENCE).unwrap();
    touch(&setup).unwrap();
}

#[test]
fn memory_unmapped_while_parked_wakes_for_the_handle_whatever_call_fails() {
    let setup = setup();
    setup.process.park(PATIENCE).unwrap();
    let parked = used(&setup);
    touch(&setup).unwrap();
    for nth in 1.. {
        let handle = create(&setup, PAGE);
        let (address, byte) = (map_anew(&setup, handle, PAGE), u8::try_from(nth).expect("few calls"));
        setup.fill(address, byte, PAGE, 0);
        assert_eq!(setup.cuCtxSynchronize(), 0);
        setup.process.park(PATIENCE).unwrap();
        assert_eq!((used(&setup), unmap(&setup, address, PAGE)), (parked, 0), "call {nth}");
        let hit = failing(&setup, "*", nth, || _ = touch(&setup));
        touch(&setup).unwrap_or_else(|code| panic!("call {nth}: {code}"));
        assert_eq!(map(&setup, address, PAGE, handle), 0);
        open(&setup, address, PAGE, CuMemAccessFlags::READ_WRITE);
        check(&setup, &[(address, PAGE, byte)]);
        assert_eq!((unmap(&setup, address, PAGE), release(&setup, handle)), (0, 0));
        if !hit {
            assert!(nth > 10, "a wake makes calls");
            break;
        }
    }
}

#[test]
fn a_part_of_parked_memory_is_unmapped_by_the_driver_after_a_wake() {
    let setup = setup();
    let maps = maps(&setup);
    let (address, bytes, _) = maps.filled[0];
    setup.process.park(PATIENCE).unwrap();
    assert_eq!(unmap(&setup, address, PAGE), INVALID_VALUE);
    assert_eq!(phase(&setup), SleepState::Awake);
    setup.process.park(PATIENCE).unwrap();
    // SAFETY: the driver refuses.
    assert_ne!(unsafe { setup.process.mem_address_free(address, bytes) }.0, 0);
    check_maps(&setup, &maps);
}

#[test]
fn a_handle_answers_as_the_drivers_while_parked_and_awake() {
    let setup = setup();
    let maps = maps(&setup);
    setup.process.park(PATIENCE).unwrap();
    let mut properties = CuMemAllocationProp::on_device(7, true, false);
    // SAFETY: `properties` outlives the call.
    let code = unsafe { setup.process.mem_get_allocation_properties_from_handle(&raw mut properties, maps.twice) };
    assert_eq!((code.0, properties.location.id, phase(&setup)), (0, 0, SleepState::Parked));
    let mut again = CuMemHandle::default();
    let address = (maps.filled[2].0 + 5) as *mut core::ffi::c_void;
    // SAFETY: `again` outlives the call.
    let code = unsafe { setup.process.mem_retain_allocation_handle(&raw mut again, address) };
    assert_eq!((code.0, phase(&setup)), (0, SleepState::Awake));
    // The handle of memory that was released and is mapped.
    let second = map_anew(&setup, again, PAGE);
    check(&setup, &[(second, PAGE, 2)]);
    assert_eq!((release(&setup, again), release(&setup, again)), (0, INVALID_VALUE));
    setup.process.park(PATIENCE).unwrap();
    touch(&setup).unwrap();
    check(&setup, &[(second, PAGE, 2)]);
    check_maps(&setup, &maps);
}

#[test]
fn exported_memory_stays_on_the_device_and_is_named() {
    let setup = setup();
    let maps = maps(&setup);
    let mut descriptor = -1;
    // SAFETY: `descriptor` outlives the call, which writes a descriptor.
    let code = unsafe {
        let to = (&raw mut descriptor).cast();
        setup.process.mem_export_to_shareable_handle(to, maps.twice, CuMemHandleType::POSIX_FD, 0)
    };
    assert!(code.is_success() && descriptor >= 0);
    let named = |what| {
        let status = setup.process.status();
        status.remaining.iter().find(|rest| rest.what == what).map(|rest| rest.bytes)
    };
    for _ in 0..2 {
        assert_eq!(named(RemainderKind::Exported), Some(3 * PAGE as u64));
        assert_eq!(named(RemainderKind::Virtual), None, "{:?}", setup.process.status());
        setup.process.park(PATIENCE).unwrap();
        check(&setup, &maps.filled[..2]);
        assert!(setup.control.peek(maps.filled[2].0, 1).is_err(), "no memory there");
        assert_eq!(named(RemainderKind::Exported), Some(3 * PAGE as u64));
        assert_eq!(named(RemainderKind::Virtual), None, "{:?}", setup.process.status());
        touch(&setup).unwrap();
        check_maps(&setup, &maps);
    }
    // SAFETY: the descriptor is the test's own.
    assert_eq!(unsafe { libc::close(descriptor) }, 0);
}

#[test]
fn without_parking_the_program_has_the_drivers_own_handles() {
    let setup = Setup::new();
    let handle = create(&setup, PAGE);
    let address = reserve(&setup, PAGE);
    // The driver knows the handle without the process in front.
    assert_eq!(setup.cuMemMap(address, PAGE, 0, handle.0, 0), 0);
    assert_eq!((setup.cuMemUnmap(address, PAGE), release(&setup, handle)), (0, 0));
}

#[test]
fn memory_of_a_context_about_to_go_wakes_first() {
    let setup = setup();
    let maps = maps(&setup);
    setup.process.park(PATIENCE).unwrap();
    // SAFETY: no thread uses the context.
    let code = unsafe { setup.process.device_primary_ctx_reset(CuDevice(0)) };
    assert_eq!((code.0, phase(&setup)), (0, SleepState::Awake));
    // Mappings outlive contexts.
    setup.retain(0);
    check(&setup, &maps.filled);
    let block = setup.take(PAGE);
    setup.process.park(PATIENCE).unwrap();
    touch(&setup).unwrap();
    check_maps(&setup, &maps);
    assert_eq!(setup.give(block), 0);
}

#[test]
fn a_full_device_delays_the_wake_of_maps_and_then_fails_the_call() {
    let setup = setup_with(SleepOptions { wake_timeout_ms: 50, ..in_pages() }, Options::default());
    let maps = maps(&setup);
    setup.process.park(PATIENCE).unwrap();
    let (mut free, mut total) = (0, 0);
    assert_eq!(setup.cuMemGetInfo_v2(&mut free, &mut total), 0);
    // Room for a part.
    setup.control.set_others_bytes(0, (free - 4 * PAGE) as u64).expect("a device");
    assert_eq!(touch(&setup), Err(OUT_OF_MEMORY));
    assert_eq!(try_create(&setup, PAGE), Err(OUT_OF_MEMORY));
    assert_eq!(phase(&setup), SleepState::Parked);
    let (mut left, mut total) = (0, 0);
    assert_eq!(setup.cuMemGetInfo_v2(&mut left, &mut total), 0);
    assert_eq!(left, 4 * PAGE, "a wake that fails keeps nothing");
    setup.control.set_others_bytes(0, 0).expect("a device");
    touch(&setup).unwrap();
    check_maps(&setup, &maps);
}

#[test]
fn each_call_of_a_park_of_maps_fails_once_and_nothing_is_lost() {
    let setup = setup();
    setup.process.park(PATIENCE).unwrap();
    let parked = used(&setup);
    touch(&setup).unwrap();
    let maps = maps(&setup);
    for nth in 1.. {
        let hit = failing(&setup, "*", nth, || _ = setup.process.park(PATIENCE));
        touch(&setup).unwrap_or_else(|code| panic!("call {nth}: {code}"));
        check(&setup, &maps.filled);
        setup.process.park(PATIENCE).unwrap_or_else(|error| panic!("call {nth}: {error}"));
        assert_eq!(used(&setup), parked, "call {nth}");
        touch(&setup).unwrap();
        check_maps(&setup, &maps);
        if !hit {
            assert!(nth > 20, "a park makes calls");
            break;
        }
    }
}

#[test]
fn each_call_of_a_wake_of_maps_fails_once_and_nothing_is_lost() {
    let setup = setup();
    setup.process.park(PATIENCE).unwrap();
    let parked = used(&setup);
    touch(&setup).unwrap();
    let maps = maps(&setup);
    for nth in 1.. {
        setup.process.park(PATIENCE).unwrap_or_else(|error| panic!("call {nth}: {error}"));
        assert_eq!(used(&setup), parked, "call {nth}");
        let hit = failing(&setup, "*", nth, || _ = touch(&setup));
        touch(&setup).unwrap_or_else(|code| panic!("call {nth}: {code}"));
        check_maps(&setup, &maps);
        if !hit {
            assert!(nth > 20, "a wake makes calls");
            break;
        }
    }
}

#[test]
fn maps_parked_to_a_file_wake_where_they_were() {
    let folder = tempfile::tempdir().expect("a folder");
    let sleep = SleepOptions { folder: Some(folder.path().to_owned()), ..in_pages() };
    let setup = setup_with(sleep, Options::default());
    let maps = maps(&setup);
    for _ in 0..2 {
        setup.process.park(PATIENCE).unwrap();
        touch(&setup).unwrap();
        check_maps(&setup, &maps);
    }
    let path = folder.path().to_owned();
    folder.close().expect("removed");
    let refusal = setup.process.park(PATIENCE).unwrap_err();
    assert_eq!((refusal.kind, phase(&setup)), (RefusalKind::Unsupported, SleepState::Awake), "{refusal}");
    assert!(refusal.text.contains(&path.display().to_string()), "{refusal}");
    check_maps(&setup, &maps);
}

#[test]
fn threads_that_map_while_another_parks_find_their_bytes() {
    let setup = setup();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=3_u8)
            .map(|value| {
                let setup = &setup;
                scope.spawn(move || {
                    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
                    let stream = setup.stream();
                    for round in 0..40_u8 {
                        let byte = value.wrapping_mul(60).wrapping_add(round);
                        let handle = create(setup, 2 * PAGE);
                        let address = map_anew(setup, handle, 2 * PAGE);
                        let inside = setup.process.enter().expect("awake");
                        setup.fill(address, byte, 2 * PAGE, stream);
                        drop(inside);
                        assert_eq!(setup.cuStreamSynchronize(stream), 0);
                        if round % 2 == 0 {
                            assert_eq!(release(setup, handle), 0);
                        }
                        std::thread::sleep(Duration::from_millis(u64::from(round % 3)));
                        let inside = setup.process.enter().expect("awake");
                        check(setup, &[(address, 2 * PAGE, byte)]);
                        drop(inside);
                        assert_eq!(unmap(setup, address, 2 * PAGE), 0);
                        if round % 2 == 1 {
                            assert_eq!(release(setup, handle), 0);
                        }
                        // SAFETY: nothing is mapped there any longer.
                        assert_eq!(unsafe { setup.process.mem_address_free(address, 2 * PAGE) }.0, 0);
                    }
                })
            })
            .collect();
        let parker = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(setup.process.park(PATIENCE));
                std::thread::yield_now();
            }
        });
        let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        parker.join().unwrap();
        ended.into_iter().for_each(|thread| thread.unwrap());
    });
    assert!(setup.process.sleep().unwrap().2.wakes > 3, "{:?}", setup.process.sleep());
    let sums = setup.process.parkable();
    assert_eq!((sums.mapped, sums.parked), (0, 0), "{sums:?}");
}
