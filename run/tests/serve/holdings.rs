//! What the limit counts, compared with the driver's own figure.

use super::setup::{PAGE, Setup};
use super::sleep::{setup_with, used};
use super::sleep_maps::{create, map, map_anew, release, reserve, try_create, unmap};
use cachalot_cuda::driver::types::{CuMemHandle, CuMemHandleType};
use cachalot_run::Options;
use cachalot_run::options::SleepOptions;
use core::ffi::{c_int, c_void};

/// The limit of each process, in pages.
const PAGES: usize = 24;

fn options() -> Options {
    Options { limit: Some((PAGES * PAGE) as u64), ..Options::default() }
}

/// Returns the bytes that count as held: by the limit, and by the driver.
fn held(setup: &Setup) -> (usize, usize) {
    let (free, total) = setup.front_figures();
    (total - free, used(setup))
}

/// Exports memory to a descriptor.
fn export(setup: &Setup, handle: CuMemHandle) -> c_int {
    let mut descriptor: c_int = -1;
    let kind = CuMemHandleType::POSIX_FD.0.cast_signed();
    let to = (&raw mut descriptor).cast();
    // SAFETY: `descriptor` outlives the call, which writes one descriptor to it.
    assert_eq!(unsafe { setup.process.mem_export_to_shareable_handle(to, handle, kind, 0) }.0, 0);
    descriptor
}

/// Imports memory from a descriptor.
fn import(setup: &Setup, descriptor: c_int) -> CuMemHandle {
    let (mut handle, kind) = (CuMemHandle::default(), CuMemHandleType::POSIX_FD.0.cast_signed());
    let from: *mut c_void = std::ptr::without_provenance_mut(descriptor as usize);
    // SAFETY: `handle` outlives the call, and a descriptor is passed as a number.
    assert_eq!(unsafe { setup.process.mem_import_from_shareable_handle(&raw mut handle, from, kind) }.0, 0);
    handle
}

/// Runs a check in a process whose memory stays on the device, and in one that can be parked.
fn in_both(check: impl Fn(&Setup)) {
    check(&Setup::with(&[], options()));
    check(&setup_with(SleepOptions::default(), options()));
}

#[test]
fn mapped_memory_counts_until_its_last_unmap_although_its_handle_was_released() {
    in_both(|setup| {
        let (bytes, base) = (2 * PAGE, reserve(setup, 100 * PAGE));
        let place = |at: usize| base + (at * bytes) as u64;
        for at in 0..PAGES / 2 {
            let handle = create(setup, bytes);
            assert_eq!((map(setup, place(at), bytes, handle), release(setup, handle)), (0, 0));
            assert_eq!(held(setup), ((at + 1) * bytes, (at + 1) * bytes));
        }
        assert_eq!(try_create(setup, bytes), Err(2), "beyond the limit");
        // A map that is refused ends nothing of another's, and an address gives a handle again.
        assert_eq!(unmap(setup, place(0), bytes), 0);
        let handle = create(setup, bytes);
        assert_ne!(map(setup, place(1), bytes, handle), 0);
        assert_eq!((release(setup, handle), held(setup)), (0, ((PAGES / 2 - 1) * bytes, (PAGES / 2 - 1) * bytes)));
        let mut again = CuMemHandle::default();
        let at = std::ptr::without_provenance_mut(place(2) as usize);
        // SAFETY: `again` outlives the call.
        let retained = unsafe { setup.process.mem_retain_allocation_handle(&raw mut again, at) }.is_success();
        assert_eq!(unmap(setup, place(1), (PAGES / 2 - 1) * bytes), 0);
        if retained {
            assert_eq!((held(setup), release(setup, again)), ((bytes, bytes), 0));
        }
        assert_eq!(held(setup), (0, 0));
    });
}

#[test]
fn exported_memory_counts_while_the_process_has_an_import_of_it() {
    in_both(|setup| {
        let handle = create(setup, 2 * PAGE);
        let descriptor = export(setup, handle);
        let imported = import(setup, descriptor);
        // SAFETY: the descriptor is the test's own.
        assert_eq!(unsafe { libc::close(descriptor) }, 0);
        let address = map_anew(setup, imported, 2 * PAGE);
        assert_eq!((release(setup, handle), held(setup)), (0, (2 * PAGE, 2 * PAGE)));
        assert_eq!((release(setup, imported), held(setup)), (0, (2 * PAGE, 2 * PAGE)));
        assert_eq!((unmap(setup, address, 2 * PAGE), held(setup)), (0, (0, 0)));
    });
}
