//! Memory that the program maps by itself, after a wake in pieces.

use super::setup::{PAGE, Setup};
use super::sleep::{Filled, PATIENCE, Sleeps, check, failing, setup_with, touch, used};
use super::sleep_maps::{create, in_pages, map, map_anew, open, release, reserve, setup, unmap};
use cachalot_cuda::driver::types::{
    CuDevicePtr, CuMemAccessDesc, CuMemAccessFlags, CuMemAllocationProp, CuMemHandle, CuMemHandleType, CuMemLocation,
    CuMemLocationType, CuPointerAttribute,
};
use cachalot_run::Options;
use cachalot_run::options::SleepOptions;
use core::ffi::c_void;

/// Codes of the driver.
const INVALID_VALUE: u32 = 1;
const REQUIRES_NEWER_DRIVER: u32 = 36;
const NOT_READY: u32 = 600;
const NOT_SUPPORTED: u32 = 801;
const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
const UNKNOWN: u32 = 999;

/// Memory of five pages at two addresses.
struct Twice {
    handle: CuMemHandle,
    at: [CuDevicePtr; 2],
    /// Each page has its own byte.
    filled: Vec<Filled>,
}

const BYTES: usize = 5 * PAGE;

/// Returns the pages of [`BYTES`] from an address on, with the byte of each.
fn pages(address: CuDevicePtr) -> impl Iterator<Item = Filled> {
    (0..5).map(move |page: u8| (address + u64::from(page) * PAGE as u64, PAGE, 10 + page))
}

/// Creates, maps and fills memory of five pages.
fn twice(setup: &Setup) -> Twice {
    let handle = create(setup, BYTES);
    let at = [(); 2].map(|()| map_anew(setup, handle, BYTES));
    pages(at[0]).for_each(|(address, bytes, byte)| setup.fill(address, byte, bytes, 0));
    assert_eq!(setup.cuCtxSynchronize(), 0);
    Twice { handle, at, filled: at.into_iter().flat_map(pages).collect() }
}

/// Parks and wakes.
fn sleep(setup: &Setup) {
    setup.process.park(PATIENCE).unwrap();
    touch(setup).unwrap();
}

/// Returns the bytes of the driver's own mapping at an address: of a piece, or of all memory.
fn driver_maps(setup: &Setup, address: CuDevicePtr) -> usize {
    let (mut base, mut bytes) = (0, 0);
    assert_eq!(setup.cuMemGetAddressRange_v2(&mut base, &mut bytes, address), 0);
    bytes
}

/// Exports memory, and closes the descriptor.
fn export(setup: &Setup, handle: CuMemHandle) -> u32 {
    let mut descriptor = -1;
    // SAFETY: `descriptor` outlives the call, which writes a descriptor.
    let code = unsafe {
        setup.process.mem_export_to_shareable_handle(
            (&raw mut descriptor).cast::<c_void>(),
            handle,
            CuMemHandleType::POSIX_FD,
            0,
        )
    };
    if code.is_success() {
        // SAFETY: the descriptor is the test's own.
        assert_eq!(unsafe { libc::close(descriptor) }, 0);
    }
    code.0
}

#[test]
fn a_wake_creates_pieces_of_the_size_in_the_options_and_the_rest() {
    for (piece, expected) in [(2 * PAGE, [2, 2, 1]), (4 * PAGE, [4, 4, 1]), (5 * PAGE, [5; 3]), (0, [5; 3])] {
        let setup = setup_with(SleepOptions { piece: piece as u64, ..SleepOptions::default() }, Options::default());
        let memory = twice(&setup);
        assert_eq!(driver_maps(&setup, memory.at[0]), BYTES);
        for _ in 0..2 {
            sleep(&setup);
            check(&setup, &memory.filled);
            for at in memory.at {
                let found = [0, 2, 4].map(|page| driver_maps(&setup, at + page * PAGE as u64) / PAGE);
                assert_eq!(found, expected, "{piece}");
            }
        }
    }
    assert_eq!(SleepOptions::default().piece % (2 << 20), 0, "a page of the driver");
}

#[test]
fn pieces_come_back_from_a_file_each_to_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = SleepOptions { folder: Some(folder.path().to_owned()), piece: 2 * PAGE as u64, ..in_pages() };
    let setup = setup_with(options, Options::default());
    let block = setup.take(512);
    let memory = twice(&setup);
    for _ in 0..2 {
        sleep(&setup);
        check(&setup, &memory.filled);
    }
    assert_eq!((driver_maps(&setup, memory.at[1]), setup.give(block)), (2 * PAGE, 0));
}

#[test]
fn memory_in_pieces_is_mapped_named_unmapped_and_released_as_whole_memory_is() {
    let setup = setup();
    // Served memory without a block does not come back.
    sleep(&setup);
    let before = used(&setup);
    let memory = twice(&setup);
    sleep(&setup);
    let third = map_anew(&setup, memory.handle, BYTES);
    check(&setup, &pages(third).collect::<Vec<_>>());
    let (mut again, mut properties) = (CuMemHandle::default(), CuMemAllocationProp::on_device(7, true, false));
    // SAFETY: `again` outlives the call.
    let code = unsafe {
        let inside = (memory.at[1] + 4 * PAGE as u64) as *mut c_void;
        setup.process.mem_retain_allocation_handle(&raw mut again, inside)
    };
    assert_eq!((code.0, again), (0, memory.handle));
    // SAFETY: `properties` outlives the call.
    let code = unsafe { setup.process.mem_get_allocation_properties_from_handle(&raw mut properties, again) };
    assert_eq!((code.0, properties.location.id), (0, 0));
    assert_eq!((release(&setup, again), unmap(&setup, third, BYTES)), (0, 0));
    // Two mappings next to each other go by one call.
    let (pair, other) = (reserve(&setup, 2 * BYTES), create(&setup, BYTES));
    assert_eq!((map(&setup, pair, BYTES, memory.handle), map(&setup, pair + BYTES as u64, BYTES, other)), (0, 0));
    open(&setup, pair, 2 * BYTES, CuMemAccessFlags::READ_WRITE);
    check(&setup, &pages(pair).collect::<Vec<_>>());
    sleep(&setup);
    check(&setup, &pages(pair).chain(memory.filled.iter().copied()).collect::<Vec<_>>());
    assert_eq!((unmap(&setup, pair, 2 * BYTES), release(&setup, other)), (0, 0));
    assert_eq!(memory.at.map(|at| unmap(&setup, at, BYTES)), [0; 2]);
    assert_eq!((release(&setup, memory.handle), used(&setup)), (0, before));
    let sums = setup.process.parkable();
    assert_eq!((sums.mapped, sums.parked), (0, 0), "{sums:?}");
}

#[test]
fn an_export_makes_memory_whole_for_good() {
    let setup = setup();
    let memory = twice(&setup);
    sleep(&setup);
    assert_eq!(driver_maps(&setup, memory.at[0]), PAGE);
    assert_eq!(export(&setup, memory.handle), 0);
    assert_eq!(driver_maps(&setup, memory.at[0]), BYTES);
    check(&setup, &memory.filled);
    assert_eq!(setup.process.sleep().unwrap().2.wakes, 2);
    // Exported memory stays on the device.
    setup.process.park(PATIENCE).unwrap();
    check(&setup, &memory.filled);
    touch(&setup).unwrap();
}

/// Exports memory as a kind of handle that no driver knows.
fn export_as_nothing(setup: &Setup, memory: &Twice) -> u32 {
    let mut out = 0_u64;
    // SAFETY: `out` outlives the call.
    unsafe {
        setup.process.mem_export_to_shareable_handle((&raw mut out).cast(), memory.handle, CuMemHandleType(64), 0).0
    }
}

fn bind(setup: &Setup, memory: &Twice) -> u32 {
    // SAFETY: takes no pointers of the host.
    unsafe { setup.process.multicast_bind_mem(CuMemHandle(1), 0, memory.handle, 0, BYTES, 0).0 }
}

fn bind_address(setup: &Setup, memory: &Twice) -> u32 {
    // SAFETY: takes no pointers of the host.
    unsafe { setup.process.multicast_bind_addr(CuMemHandle(1), 0, memory.at[0], BYTES, 0).0 }
}

fn handle_of_range(setup: &Setup, memory: &Twice) -> u32 {
    let (mut out, inside) = (0_u64, memory.at[1] + PAGE as u64);
    // SAFETY: `out` outlives the call.
    unsafe { setup.process.mem_get_handle_for_address_range((&raw mut out).cast(), inside, PAGE, 1, 0).0 }
}

fn unmap_part(setup: &Setup, memory: &Twice) -> u32 {
    unmap(setup, memory.at[0] + PAGE as u64, 2 * PAGE)
}

fn open_part(setup: &Setup, memory: &Twice) -> u32 {
    let location = CuMemLocation { kind: CuMemLocationType::DEVICE, id: 0 };
    let access = CuMemAccessDesc { location, flags: CuMemAccessFlags::READ };
    // SAFETY: `access` outlives the call.
    unsafe { setup.process.mem_set_access(memory.at[0], PAGE, &raw const access, 1).0 }
}

fn map_part(setup: &Setup, memory: &Twice) -> u32 {
    let address = reserve(setup, BYTES);
    // SAFETY: takes no pointers of the host.
    unsafe { setup.process.mem_map(address, PAGE, PAGE, memory.handle, 0).0 }
}

#[test]
fn calls_for_one_handle_find_whole_memory_also_if_the_driver_refuses_them() {
    type Call = fn(&Setup, &Twice) -> u32;
    let calls: [(Call, u32); 7] = [
        (export_as_nothing, INVALID_VALUE),
        // The emulated driver has no multicast objects, and no handles of address ranges.
        (bind, REQUIRES_NEWER_DRIVER),
        (bind_address, REQUIRES_NEWER_DRIVER),
        (handle_of_range, REQUIRES_NEWER_DRIVER),
        (unmap_part, INVALID_VALUE),
        (open_part, INVALID_VALUE),
        (map_part, NOT_SUPPORTED),
    ];
    for (nth, (call, expected)) in calls.into_iter().enumerate() {
        let setup = setup();
        let memory = twice(&setup);
        sleep(&setup);
        assert_eq!(driver_maps(&setup, memory.at[0]), PAGE);
        assert_eq!(call(&setup, &memory), expected, "call {nth}");
        for _ in 0..2 {
            assert_eq!(memory.at.map(|at| driver_maps(&setup, at)), [BYTES; 2], "call {nth}");
            check(&setup, &memory.filled);
            sleep(&setup);
        }
        assert_eq!(call(&setup, &memory), expected, "call {nth}");
        // Asleep, the answer is the same.
        setup.process.park(PATIENCE).unwrap();
        assert_eq!(call(&setup, &memory), expected, "call {nth}");
        assert_eq!(driver_maps(&setup, memory.at[0]), BYTES, "call {nth}");
    }
}

#[test]
fn memory_stays_in_pieces_while_work_or_a_capture_lasts_and_the_call_fails() {
    let setup = setup_with(SleepOptions { wake_timeout_ms: 50, ..in_pages() }, Options::default());
    let block = setup.take(512);
    let memory = twice(&setup);
    sleep(&setup);
    let stream = setup.stream();
    setup.control.hold(stream).expect("a stream");
    setup.fill(memory.at[0], 10, PAGE, stream);
    assert_eq!(export(&setup, memory.handle), NOT_READY);
    setup.control.release(stream).expect("a stream");
    assert_eq!(setup.cuStreamSynchronize(stream), 0);
    assert_eq!(setup.begin(stream, 2), 0);
    assert_eq!(export(&setup, memory.handle), STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!((setup.end(stream), driver_maps(&setup, memory.at[0])), (0, PAGE));
    check(&setup, &memory.filled);
    assert_eq!((export(&setup, memory.handle), driver_maps(&setup, memory.at[0])), (0, BYTES));
    check(&setup, &memory.filled);
    assert_eq!(setup.give(block), 0);
}

#[test]
fn an_address_in_any_piece_has_the_range_and_the_numbers_of_the_mapping() {
    let setup = setup();
    let memory = twice(&setup);
    let attributes = |address: CuDevicePtr| {
        let asked = [
            CuPointerAttribute::MAPPING_SIZE,
            CuPointerAttribute::MAPPING_BASE_ADDR,
            CuPointerAttribute::BUFFER_ID,
            CuPointerAttribute::MEMORY_BLOCK_ID,
            CuPointerAttribute(3),
        ];
        let mut one_by_one = [0_u64; 5];
        for (value, attribute) in one_by_one.iter_mut().zip(asked) {
            // SAFETY: `value` has room for the attribute.
            let code =
                unsafe { setup.process.pointer_get_attribute(std::ptr::from_mut(value).cast(), attribute, address) };
            assert_eq!(code.0, 0, "{attribute:?}");
        }
        let (mut together, mut asked) = ([0_u64; 5], asked);
        let mut places = together.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        // SAFETY: both arrays have 5 entries, and each place has room for its attribute.
        let code = unsafe { setup.process.pointer_get_attributes(5, asked.as_mut_ptr(), places.as_mut_ptr(), address) };
        assert_eq!((code.0, together), (0, one_by_one));
        assert_eq!(one_by_one[4], address, "the driver's own answer");
        <[u64; 4]>::try_from(&one_by_one[..4]).expect("four")
    };
    let range = |address: CuDevicePtr| {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both variables outlive the call.
        let code = unsafe { setup.process.mem_get_address_range(&raw mut base, &raw mut bytes, address) };
        assert_eq!(code.0, 0);
        (base, bytes)
    };
    for _ in 0..2 {
        for at in memory.at {
            let first = attributes(at);
            assert_eq!(first[..2], [BYTES as u64, at]);
            for inside in [at + 5, at + 2 * PAGE as u64, at + BYTES as u64 - 1] {
                assert_eq!((attributes(inside), range(inside)), (first, (at, BYTES)));
            }
        }
        let [one, two] = memory.at.map(attributes);
        assert!(one[2] != two[2] && one[3] == two[3], "two mappings of the same memory");
        setup.process.park(PATIENCE).unwrap();
        assert_eq!(range(memory.at[1] + 3 * PAGE as u64), (memory.at[1], BYTES), "asleep");
        touch(&setup).unwrap();
    }
}

#[test]
fn a_call_that_fails_at_a_piece_leaves_the_memory_as_it_was() {
    let setup = setup();
    // Served memory without a block does not come back.
    sleep(&setup);
    let before = used(&setup);
    let memory = twice(&setup);
    sleep(&setup);
    let address = reserve(&setup, BYTES);
    for nth in 1..=5 {
        assert!(failing(&setup, "cuMemMap", nth, || assert_eq!(map(&setup, address, BYTES, memory.handle), UNKNOWN)));
        // Nothing is mapped there.
        assert_ne!(setup.cuMemGetAddressRange_v2(&mut 0, &mut 0, address), 0, "piece {nth}");
    }
    assert_eq!(map(&setup, address, BYTES, memory.handle), 0);
    open(&setup, address, BYTES, CuMemAccessFlags::READ_WRITE);
    check(&setup, &pages(address).collect::<Vec<_>>());
    assert_eq!([address, memory.at[0], memory.at[1]].map(|at| unmap(&setup, at, BYTES)), [0; 3]);
    // Pieces whose release has failed are released by the next call.
    for _ in 0..3 {
        assert!(failing(&setup, "cuMemRelease", 2, || assert_eq!(release(&setup, memory.handle), UNKNOWN)));
    }
    assert_eq!((release(&setup, memory.handle), used(&setup)), (0, before));
    assert_eq!(release(&setup, memory.handle), INVALID_VALUE);
}

#[test]
fn each_call_that_makes_memory_whole_fails_once_and_nothing_is_lost() {
    let setup = setup();
    // Served memory without a block does not come back.
    sleep(&setup);
    let before = used(&setup);
    for nth in 1.. {
        let memory = twice(&setup);
        sleep(&setup);
        let hit = failing(&setup, "*", nth, || _ = export(&setup, memory.handle));
        touch(&setup).unwrap_or_else(|code| panic!("call {nth}: {code}"));
        assert_eq!(export(&setup, memory.handle), 0, "call {nth}");
        check(&setup, &memory.filled);
        assert_eq!(memory.at.map(|at| unmap(&setup, at, BYTES)), [0; 2]);
        assert_eq!((release(&setup, memory.handle), used(&setup)), (0, before), "call {nth}");
        if !hit {
            assert!(nth > 40, "a park and a wake make calls");
            break;
        }
    }
}

#[test]
fn threads_that_export_while_others_map_find_their_bytes() {
    let setup: Sleeps = setup();
    let memories: Vec<Twice> = (0..3).map(|_| twice(&setup)).collect();
    sleep(&setup);
    std::thread::scope(|scope| {
        for memory in &memories {
            let setup = &setup;
            scope.spawn(move || {
                assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
                let further = create(setup, 2 * PAGE);
                let address = map_anew(setup, further, 2 * PAGE);
                assert_eq!(export(setup, memory.handle), 0);
                assert_eq!((unmap(setup, address, 2 * PAGE), release(setup, further)), (0, 0));
            });
        }
    });
    for memory in &memories {
        assert_eq!(driver_maps(&setup, memory.at[1]), BYTES);
        check(&setup, &memory.filled);
    }
}
