//! The memory that the limit counts, compared with the driver's own figure.

use super::setup::{PAGE, Setup};
use super::sleep::{setup_with, used};
use super::sleep_maps::{create, map, map_anew, release, reserve, try_create, unmap};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuMemHandle, CuMemHandleType, CuMemPoolAttribute, CuMemoryPool, CuStream};
use cachalot_emulated_driver::api::PoolProperties;
use cachalot_run::Options;
use cachalot_run::control::Controlled as _;
use cachalot_run::ledger::Kind;
use cachalot_run::options::SleepOptions;
use core::ffi::{c_int, c_void};

/// The limit of each process, in pages.
const PAGES: usize = 24;

/// Attributes of a pool.
const RELEASE_THRESHOLD: CuMemPoolAttribute = CuMemPoolAttribute(4);
const RESERVED: CuMemPoolAttribute = CuMemPoolAttribute::RESERVED_MEM_CURRENT;
const HIGHEST_RESERVED: CuMemPoolAttribute = CuMemPoolAttribute::RESERVED_MEM_HIGH;
const USED: CuMemPoolAttribute = CuMemPoolAttribute::USED_MEM_CURRENT;
const HIGHEST_USED: CuMemPoolAttribute = CuMemPoolAttribute::USED_MEM_HIGH;

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
    let kind = CuMemHandleType::POSIX_FD;
    let to = (&raw mut descriptor).cast();
    // SAFETY: `descriptor` outlives the call, which writes one descriptor to it.
    assert_eq!(unsafe { setup.process.mem_export_to_shareable_handle(to, handle, kind, 0) }.0, 0);
    descriptor
}

/// Imports memory from a descriptor.
fn import(setup: &Setup, descriptor: c_int) -> CuMemHandle {
    let (mut handle, kind) = (CuMemHandle::default(), CuMemHandleType::POSIX_FD);
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

/// Makes a pool of device 0, which keeps what is freed.
fn keeping_pool(setup: &Setup) -> u64 {
    let mut pool = 0;
    assert_eq!(setup.cuMemPoolCreate(&mut pool, &PoolProperties::of_device(0)), 0);
    assert_eq!(set_attribute(setup, pool, RELEASE_THRESHOLD, u64::MAX), 0);
    pool
}

/// Requests memory of a pool on the default stream.
fn take_of(setup: &Setup, pool: u64, bytes: usize) -> Result<u64, u32> {
    let (mut address, pool) = (0, CuMemoryPool(pool as usize));
    // SAFETY: `address` outlives the call, and the pool lives.
    let code = unsafe { setup.process.mem_alloc_from_pool_async(&raw mut address, bytes, pool, CuStream(0)) };
    if code.is_success() { Ok(address) } else { Err(code.0) }
}

/// Returns an attribute of a pool, as the program is told.
fn attribute(setup: &Setup, pool: u64, attribute: CuMemPoolAttribute) -> usize {
    let mut value = 0_u64;
    // SAFETY: `value` outlives the call, and the pool lives.
    let code = unsafe {
        setup.process.mem_pool_get_attribute(CuMemoryPool(pool as usize), attribute, (&raw mut value).cast())
    };
    assert_eq!(code.0, 0);
    value as usize
}

fn set_attribute(setup: &Setup, pool: u64, attribute: CuMemPoolAttribute, mut value: u64) -> u32 {
    let pool = CuMemoryPool(pool as usize);
    // SAFETY: `value` outlives the call, and the pool lives.
    unsafe { setup.process.mem_pool_set_attribute(pool, attribute, (&raw mut value).cast()) }.0
}

fn trim(setup: &Setup, pool: u64, keep: usize) {
    // SAFETY: the pool lives.
    assert_eq!(unsafe { setup.process.mem_pool_trim_to(CuMemoryPool(pool as usize), keep) }.0, 0);
}

fn destroy(setup: &Setup, pool: u64) {
    // SAFETY: the pool lives.
    assert_eq!(unsafe { setup.process.mem_pool_destroy(CuMemoryPool(pool as usize)) }.0, 0);
}

#[test]
fn what_a_pool_keeps_counts_until_the_pool_gives_it_back() {
    in_both(|setup| {
        let pool = keeping_pool(setup);
        let address = take_of(setup, pool, 10 * PAGE).expect("room");
        assert_eq!(held(setup), (10 * PAGE, 10 * PAGE));
        assert_eq!((setup.give_on(address, 0), setup.cuCtxSynchronize()), (0, 0));
        assert_eq!(held(setup), (10 * PAGE, 10 * PAGE), "the pool keeps it");
        // The pool serves again from what it keeps, and keeps nothing that another request needs.
        let again = take_of(setup, pool, 10 * PAGE).expect("room");
        assert_eq!(held(setup), (10 * PAGE, 10 * PAGE));
        assert_eq!((setup.give_on(again, 0), setup.cuCtxSynchronize()), (0, 0));
        let rest = create(setup, 20 * PAGE);
        assert_eq!(held(setup), (20 * PAGE, 20 * PAGE), "the pool has given back what it kept");
        assert_eq!((take_of(setup, pool, 5 * PAGE), release(setup, rest)), (Err(2), 0));
        for _ in 0..2 {
            let address = take_of(setup, pool, 4 * PAGE).expect("room");
            assert_eq!((setup.give_on(address, 0), setup.cuCtxSynchronize()), (0, 0));
        }
        trim(setup, pool, 0);
        assert_eq!(held(setup), (0, 0));
        let address = take_of(setup, pool, 4 * PAGE).expect("room");
        destroy(setup, pool);
        assert_eq!(held(setup), (4 * PAGE, 4 * PAGE), "memory in use outlives its pool");
        assert_eq!((setup.give_on(address, 0), setup.cuCtxSynchronize(), held(setup)), (0, 0, (0, 0)));
    });
}

#[test]
fn a_trim_of_another_process_gives_back_what_is_cached_and_nothing_else() {
    in_both(|setup| {
        let pool = keeping_pool(setup);
        let address = take_of(setup, pool, 3 * PAGE).expect("room");
        assert_eq!((setup.give_on(address, 0), setup.cuCtxSynchronize()), (0, 0));
        let [kept, freed] = [10, 10].map(|pages| setup.take(pages * PAGE));
        assert_eq!((setup.give(freed), used(setup)), (0, 23 * PAGE));
        let trim = |pages: usize| setup.process.trim((pages * PAGE) as u64).expect("nothing is in the way").given_bytes;
        assert_eq!((trim(20), used(setup)), (Some(3 * PAGE as u64), 20 * PAGE), "what the pool keeps");
        assert_eq!((trim(12), used(setup)), (Some(10 * PAGE as u64), 10 * PAGE));
        assert_eq!((trim(0), used(setup), setup.give(kept)), (Some(0), 10 * PAGE, 0));
        assert_eq!((trim(0), used(setup)), (Some(10 * PAGE as u64), 0));
    });
}

#[test]
fn a_served_default_pool_tells_its_figures_and_gives_its_memory_back() {
    let setup = Setup::new();
    let (stream, mut pool) = (setup.stream(), 0);
    assert_eq!(setup.cuDeviceGetDefaultMemPool(&mut pool, 0), 0);
    let figures = || [RESERVED, HIGHEST_RESERVED, USED, HIGHEST_USED].map(|which| attribute(&setup, pool, which));
    assert_eq!(figures(), [0; 4]);
    let blocks = [20, 10].map(|pages| setup.take_on(pages * PAGE, stream));
    assert_eq!(figures(), [30 * PAGE; 4]);
    assert_eq!(setup.give_on(blocks[0], stream), 0);
    assert_eq!(figures(), [30, 30, 10, 30].map(|pages| pages * PAGE));
    // A greatest figure starts anew alone.
    assert_eq!([set_attribute(&setup, pool, HIGHEST_USED, 1), set_attribute(&setup, pool, RESERVED, 0)], [1, 1]);
    assert_eq!(set_attribute(&setup, pool, HIGHEST_USED, 0), 0);
    assert_eq!(figures(), [30, 30, 10, 10].map(|pages| pages * PAGE));
    assert_eq!(setup.cuCtxSynchronize(), 0);
    trim(&setup, pool, 15 * PAGE);
    assert_eq!((figures(), used(&setup)), ([10, 30, 10, 10].map(|pages| pages * PAGE), 10 * PAGE));
    assert_eq!(set_attribute(&setup, pool, HIGHEST_RESERVED, 0), 0);
    assert_eq!(figures(), [10 * PAGE; 4]);
    assert_eq!((setup.give_on(blocks[1], stream), setup.cuCtxSynchronize()), (0, 0));
    trim(&setup, pool, 0);
    assert_eq!((attribute(&setup, pool, RESERVED), used(&setup)), (0, 0));
}

/// A way to take memory, and to give it back.
type Way = fn(&Setup) -> Box<dyn FnOnce(&Setup)>;

/// Every way to take memory of a device, by the names of the table in docs/groups.md, but for those
/// with their own test, and whether the limit counts it.
const WAYS: &[(&str, bool, Way)] = &[
    ("`cuMemAlloc`", true, |setup| {
        let address = setup.take(4 * PAGE);
        Box::new(move |setup| assert_eq!(setup.give(address), 0))
    }),
    ("`cuMemAllocAsync`", true, |setup| {
        let address = setup.take_on(4 * PAGE, setup.stream());
        Box::new(move |setup| assert_eq!(setup.give(address), 0))
    }),
    ("`cuMemAllocPitch`", true, |setup| {
        let (mut address, mut pitch) = (0, 0);
        // SAFETY: both variables outlive the call.
        let code = unsafe { setup.process.mem_alloc_pitch(&raw mut address, &raw mut pitch, PAGE, 4, 4) };
        assert_eq!(code.0, 0);
        Box::new(move |setup| assert_eq!(setup.give(address), 0))
    }),
    ("`cuMemCreate`", true, |setup| {
        let handle = create(setup, 4 * PAGE);
        let address = map_anew(setup, handle, 4 * PAGE);
        assert_eq!(release(setup, handle), 0);
        Box::new(move |setup| assert_eq!(unmap(setup, address, 4 * PAGE), 0))
    }),
    ("`cuMemAllocFromPoolAsync`", true, |setup| {
        let pool = keeping_pool(setup);
        let address = take_of(setup, pool, 4 * PAGE).expect("room");
        assert_eq!((setup.give_on(address, 0), setup.cuCtxSynchronize()), (0, 0));
        Box::new(move |setup| destroy(setup, pool))
    }),
    ("a shared default pool", true, |setup| {
        assert_eq!(setup.open_default_pool(0, 1), 0);
        let address = setup.take_on(4 * PAGE, 0);
        Box::new(move |setup| assert_eq!((setup.give_on(address, 0), setup.cuCtxSynchronize()), (0, 0)))
    }),
    ("arrays, modules, libraries, kernels", true, |setup| {
        for kind in [Kind::Array, Kind::Module, Kind::Graph] {
            measure(setup, kind, false, used(setup) + 2 * PAGE);
        }
        Box::new(|setup| {
            for kind in [Kind::Graph, Kind::Module, Kind::Array] {
                measure(setup, kind, true, used(setup) - 2 * PAGE);
            }
        })
    }),
    ("`cuMemAllocManaged`", false, |setup| {
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        assert_eq!(unsafe { setup.process.mem_alloc_managed(&raw mut address, 100 * PAGE, 1) }.0, 0);
        Box::new(move |setup| assert_eq!(setup.give(address), 0))
    }),
];

/// Makes a call after which the device's own figure is `to`.
fn measure(setup: &Setup, kind: Kind, gives: bool, to: usize) {
    let call = || {
        // What the driver takes for code is out of every program's sight, as what other processes
        // take.
        setup.control.set_others_bytes(0, to as u64).expect("a device");
        CuResult::SUCCESS
    };
    assert_eq!(setup.process.measured(kind, gives, call, || false).0, 0);
}

#[test]
fn limit_ledger_and_free_memory_agree_with_the_driver_for_every_way_to_take_memory() {
    for (name, is_counted, way) in WAYS {
        in_both(|setup| {
            let agree = |when: &str| {
                // The question about free memory comes first: what a pool gives back at a wait is
                // seen at the next look.
                let (free, total) = setup.front_figures();
                let (counts, driver) = (setup.process.counts(), used(setup) as u64);
                let expected = if *is_counted { driver } else { 0 };
                assert_eq!((counts.charged_bytes, counts.booked_bytes), (expected, expected), "{name}, {when}");
                let unused = counts.held_bytes - counts.used_bytes;
                assert_eq!((total - free) as u64, expected - unused, "{name}, {when}: free memory");
            };
            agree("before");
            let end = way(setup);
            agree("taken");
            end(setup);
            agree("given back");
        });
    }
}

#[test]
fn the_page_about_groups_has_a_row_for_every_way_to_take_memory() {
    let page = include_str!("../../../docs/groups.md");
    for (name, ..) in WAYS {
        assert!(page.lines().any(|line| line.starts_with("| ") && line.contains(name)), "{name}");
    }
}
