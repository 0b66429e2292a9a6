//! Memory that the program creates and maps by itself, on the host where the device has no more.

use super::setup::{PAGE, Setup};
use super::sleep::{PATIENCE, check, failing, phase, setup_with, touch, used};
use super::sleep_maps::{create, in_pages, map_anew, release, try_create, unmap};
use cachalot_cuda::driver::types::{CuMemAllocationProp, CuMemHandle, CuMemHandleType, CuMemLocationType};
use cachalot_run::Options;
use cachalot_run::control::{Controlled, SleepState};

/// Codes of the driver.
const OUT_OF_MEMORY: u32 = 2;

/// The limit, and the memory of the host, in pages: 24 MiB.
const LIMIT: usize = 8;
const SPILL: usize = 12;
const SETTINGS: &str = "expandable_segments:True,spill:0.0234375G";

fn options() -> Options {
    Options { limit: Some((LIMIT * PAGE) as u64), settings: SETTINGS.into(), ..Options::default() }
}

/// Runs a check in a process whose memory stays on the device, and in one that can be parked.
fn in_both(check: impl Fn(&Setup)) {
    check(&Setup::with(&[], options()));
    check(&setup_with(in_pages(), options()));
}

/// Memory that is mapped and filled: the handle, the address, the bytes and the byte.
type Mapped = (CuMemHandle, u64, usize, u8);

/// Maps and fills memory of some pages.
fn take(setup: &Setup, pages: usize, byte: u8) -> Mapped {
    let handle = create(setup, pages * PAGE);
    let address = map_anew(setup, handle, pages * PAGE);
    setup.fill(address, byte, pages * PAGE, 0);
    assert_eq!(setup.cuCtxSynchronize(), 0);
    (handle, address, pages * PAGE, byte)
}

/// Checks the bytes of memory, and ends it.
fn give(setup: &Setup, (handle, address, bytes, byte): Mapped) {
    check(setup, &[(address, bytes, byte)]);
    assert_eq!((unmap(setup, address, bytes), release(setup, handle)), (0, 0));
    // SAFETY: nothing is mapped there any longer.
    assert_eq!(unsafe { setup.process.mem_address_free(address, bytes) }.0, 0);
}

/// Returns the bytes that the limit counts and the driver's figure.
fn on_device(setup: &Setup) -> (u64, usize) {
    (setup.process.counts().charged_bytes, used(setup))
}

#[test]
fn what_is_beyond_the_limit_lies_on_the_host_up_to_the_size_of_spill() {
    in_both(|setup| {
        let first = take(setup, LIMIT, 1);
        let full = on_device(setup);
        let more = [take(setup, 5, 2), take(setup, SPILL - 5, 3)];
        assert_eq!(on_device(setup), full);
        assert_eq!((try_create(setup, PAGE), on_device(setup)), (Err(OUT_OF_MEMORY), full));
        let [second, third] = more;
        give(setup, second);
        assert_eq!(try_create(setup, 6 * PAGE), Err(OUT_OF_MEMORY));
        let again = take(setup, 5, 4);
        give(setup, first);
        assert_eq!(setup.process.counts().charged_bytes, full.0 - (LIMIT * PAGE) as u64);
        // The device's memory comes first.
        let on_it = take(setup, 4, 5);
        assert_eq!(setup.process.counts().charged_bytes, full.0 - (4 * PAGE) as u64);
        [third, again, on_it].into_iter().for_each(|memory| give(setup, memory));
    });
}

#[test]
fn memory_lives_on_the_host_until_its_last_unmap_although_its_handle_was_released() {
    in_both(|setup| {
        let _full = create(setup, LIMIT * PAGE);
        let (handle, address, bytes, byte) = take(setup, SPILL, 7);
        assert_eq!(release(setup, handle), 0);
        assert_eq!(try_create(setup, PAGE), Err(OUT_OF_MEMORY));
        check(setup, &[(address, bytes, byte)]);
        assert_eq!(unmap(setup, address, bytes), 0);
        give(setup, take(setup, SPILL, 8));
    });
}

/// Blocks of the allocator and memory of the program are of one size of `spill`, and what the
/// allocator keeps for later is given back for the program.
#[test]
fn the_allocator_and_the_program_share_the_memory_of_the_host() {
    in_both(|setup| {
        let full = create(setup, LIMIT * PAGE);
        let block = setup.take(10 * PAGE);
        setup.fill(block, 6, 10 * PAGE, 0);
        assert_eq!(try_create(setup, 3 * PAGE), Err(OUT_OF_MEMORY));
        let memory = take(setup, 2, 7);
        assert_eq!(setup.try_take(PAGE), Err(OUT_OF_MEMORY));
        check(setup, &[(block, 10 * PAGE, 6)]);
        assert_eq!(setup.give(block), 0);
        let more = take(setup, 10, 8);
        assert_eq!(setup.try_take(10 * PAGE), Err(OUT_OF_MEMORY));
        give(setup, more);
        let block = setup.take(10 * PAGE);
        give(setup, memory);
        assert_eq!((setup.give(block), release(setup, full)), (0, 0));
    });
}

#[test]
fn what_cannot_be_created_again_and_what_the_host_does_not_have_is_refused() {
    in_both(|setup| {
        let full = create(setup, LIMIT * PAGE);
        let (mut handle, mut sparse) = (CuMemHandle::default(), CuMemAllocationProp::on_device(0, false, false));
        // For sparse arrays.
        sparse.flags.usage = 1;
        // SAFETY: both variables outlive the call.
        let code = unsafe { setup.process.mem_create(&raw mut handle, PAGE, &raw const sparse, 0) };
        assert_eq!(code.0, OUT_OF_MEMORY);
        let plan = r#"{"fn": "cuMemCreate", "nth": 1, "persistent": true, "code": 2}"#;
        setup.control.plan(plan).expect("a plan");
        assert_eq!(try_create(setup, SPILL * PAGE), Err(OUT_OF_MEMORY));
        setup.control.clear_plan();
        give(setup, take(setup, SPILL, 9));
        assert_eq!(release(setup, full), 0);
    });
}

#[test]
fn a_handle_answers_as_for_memory_of_the_device_and_is_not_exported() {
    in_both(|setup| {
        let _full = create(setup, LIMIT * PAGE);
        let memory = take(setup, 2, 3);
        let mut properties = CuMemAllocationProp::on_device(7, true, false);
        // SAFETY: `properties` outlives the call.
        let code = unsafe { setup.process.mem_get_allocation_properties_from_handle(&raw mut properties, memory.0) };
        let place = (properties.location.kind, properties.location.id);
        assert_eq!((code.0, place), (0, (CuMemLocationType::DEVICE, 0)));
        let mut descriptor = -1;
        // SAFETY: `descriptor` outlives the call.
        let code = unsafe {
            let to = (&raw mut descriptor).cast();
            setup.process.mem_export_to_shareable_handle(to, memory.0, CuMemHandleType::POSIX_FD, 0)
        };
        assert!(!code.is_success() && descriptor == -1);
        let mut again = CuMemHandle::default();
        // SAFETY: `again` outlives the call.
        let code = unsafe { setup.process.mem_retain_allocation_handle(&raw mut again, memory.1 as *mut _) };
        assert_eq!(code.0, 0);
        let second = map_anew(setup, again, 2 * PAGE);
        check(setup, &[(second, 2 * PAGE, 3)]);
        assert_eq!((unmap(setup, second, 2 * PAGE), release(setup, again)), (0, 0));
        give(setup, memory);
    });
}

#[test]
fn memory_on_the_host_stays_there_while_the_rest_is_parked() {
    let setup = setup_with(in_pages(), options());
    let first = take(&setup, LIMIT, 1);
    let second = take(&setup, SPILL, 2);
    let full = on_device(&setup);
    for _ in 0..2 {
        setup.process.park(PATIENCE).unwrap();
        let status = setup.process.status();
        assert_eq!((status.device_bytes, status.parked_bytes), (0, (LIMIT * PAGE) as u64), "{status:?}");
        assert!(setup.control.peek(first.1, 1).is_err(), "no memory there");
        check(&setup, &[(second.1, second.2, second.3)]);
        touch(&setup).unwrap();
        assert_eq!((phase(&setup), on_device(&setup)), (SleepState::Awake, full));
        check(&setup, &[(first.1, first.2, first.3), (second.1, second.2, second.3)]);
    }
    setup.process.park(PATIENCE).unwrap();
    // The end of what is on the host wakes nothing.
    assert_eq!((unmap(&setup, second.1, second.2), release(&setup, second.0)), (0, 0));
    assert_eq!(phase(&setup), SleepState::Parked);
    touch(&setup).unwrap();
    give(&setup, first);
    give(&setup, take(&setup, LIMIT, 4));
}

#[test]
fn each_call_fails_once_and_nothing_is_held_or_lost() {
    in_both(|setup| {
        let full = take(setup, LIMIT, 1);
        give(setup, take(setup, SPILL, 2));
        let before = on_device(setup);
        for nth in 1.. {
            let mut made = Err(OUT_OF_MEMORY);
            let hit = failing(setup, "*", nth, || made = try_create(setup, 3 * PAGE));
            let mut ends = false;
            if let Ok(handle) = made {
                let address = map_anew(setup, handle, 3 * PAGE);
                ends = failing(setup, "*", nth, || {
                    let _ = unmap(setup, address, 3 * PAGE);
                    let _ = release(setup, handle);
                });
                // What failed is repeated.
                let _ = unmap(setup, address, 3 * PAGE);
                let _ = release(setup, handle);
            }
            assert_eq!(on_device(setup), before, "call {nth}");
            give(setup, take(setup, SPILL, u8::try_from(nth).expect("few calls")));
            if !hit && !ends {
                assert!(nth > 2, "calls are made");
                break;
            }
        }
        give(setup, full);
    });
}
