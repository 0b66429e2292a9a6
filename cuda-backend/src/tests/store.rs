//! Tests of the contents of parked memory: who uses a region, and when it is given back.

use super::*;
use crate::driver::result::CuResult;
use crate::fake::{Plan, When};
use cachalot_core::{Contents, ErrorKind, Saved};

/// The length of a page of contents.
const PAGE: u64 = 2 << 20;

/// Memory of the device that is saved.
const AT: DevicePtr = DevicePtr(1 << 40);

/// Prepares a region of one page, and saves one page to it. Waits for the copy.
fn parked(device: &CudaDevice) -> Saved {
    device.prepare(PAGE, PAGE).expect("prepared");
    let saved = device.save(AT, PAGE).expect("saved");
    let mark = device.mark().expect("marked");
    device.finish(mark).expect("copied");
    device.end_saves();
    saved
}

/// Makes the next call of `function` fail with `code`.
fn fail(function: &'static str, code: CuResult) {
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some(function), skip: 0, code, when: When::Before, permanent: false });
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_region_under_way_is_given_back_by_no_other_call() {
    let device = device();
    let earlier = parked(&device);
    device.prepare(2 * PAGE, PAGE).expect("prepared");
    // Other threads may do this at any time.
    device.forget(earlier);
    assert_eq!(device.retain_host_memory(0), Ok(()));
    assert_eq!(device.host_memory_for_contents(), (2 * PAGE, 0));
    let saved = [(); 2].map(|()| device.save(AT, PAGE).expect("the region is still there"));
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (2 * PAGE, 0));
    saved.into_iter().for_each(|saved| device.forget(saved));
    assert_eq!(device.host_memory_for_contents(), (0, 0));
    assert!(fake::with(|fake| fake.pinned.is_empty() && !fake.torn));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_save_goes_to_the_region_under_way_and_to_no_other() {
    let device = device();
    device.prepare(2 * PAGE, PAGE).expect("prepared");
    let first = device.save(AT, PAGE).expect("saved");
    device.end_saves();
    // The region has room, but no park has prepared it.
    let refused = device.save(AT, PAGE).map_err(|error| error.kind);
    assert_eq!(refused, Err(ErrorKind::OutOfMemory));
    device.prepare(PAGE, PAGE).expect("prepared");
    let second = device.save(AT, PAGE).expect("saved");
    assert_eq!(device.save(AT, PAGE).map_err(|error| error.kind), Err(ErrorKind::OutOfMemory));
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (3 * PAGE, 0));
    for saved in [first, second] {
        assert_eq!(device.restore(saved, AT, PAGE), Ok(()));
        device.forget(saved);
    }
    assert_eq!(device.host_memory_for_contents(), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn contents_come_back_in_parts_and_not_beyond_their_end() {
    let device = device();
    device.prepare(3 * PAGE, PAGE).expect("prepared");
    let saved = [(); 2].map(|()| device.save(AT, PAGE).expect("saved"));
    device.end_saves();
    let refused = Err(CuResult::INVALID_VALUE.error());
    for (from, bytes, expected) in [
        (0, PAGE, Ok(())),
        (0, 4096, Ok(())),
        (PAGE - 4096, 4096, Ok(())),
        (PAGE - 4096, 8192, refused),
        (PAGE, 4096, refused),
        (u64::MAX, 2, refused),
    ] {
        assert_eq!(device.restore_part(saved[0], from, AT, bytes), expected, "{from} {bytes}");
    }
    assert_eq!(device.restore(saved[0], AT, 2 * PAGE), refused);
    saved.into_iter().for_each(|saved| device.forget(saved));
    assert_eq!(device.restore_part(saved[0], 0, AT, PAGE), refused);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_prepared_region_that_keeps_nothing_goes_back_at_the_end_of_its_park() {
    let device = device();
    device.prepare(PAGE, PAGE).expect("prepared");
    fail("cuMemcpyDtoHAsync_v2", CuResult::UNKNOWN);
    assert_eq!(device.save(AT, PAGE), Err(CuResult::UNKNOWN.error()));
    assert_eq!(device.host_memory_for_contents(), (PAGE, 0));
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (0, 0));
    assert_eq!(device.retain_host_memory(PAGE), Ok(()));
    device.prepare(PAGE, PAGE).expect("prepared");
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (PAGE, PAGE), "kept for the next park");
    assert_eq!(device.close(), Ok(()));
    assert!(fake::with(|fake| fake.pinned.is_empty()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_region_without_memory_is_not_kept_for_the_next_park() {
    let device = device();
    assert_eq!(device.retain_host_memory(PAGE), Ok(()));
    device.prepare(PAGE, PAGE).expect("prepared");
    device.store.lose_memory();
    assert_eq!(device.save(AT, PAGE).map_err(|error| error.kind), Err(ErrorKind::OutOfMemory));
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (0, 0));
    let saved = parked(&device);
    device.forget(saved);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_region_goes_back_behind_its_copies_though_no_mark_tells_of_their_end() {
    let device = device();
    device.prepare(PAGE, PAGE).expect("prepared");
    let saved = device.save(AT, PAGE).expect("saved");
    fail("cuEventSynchronize", CuResult::OUT_OF_MEMORY);
    assert!(device.mark().and_then(|mark| device.finish(mark)).is_err());
    device.forget(saved);
    device.end_saves();
    assert!(fake::with(|fake| fake.pinned.is_empty() && !fake.torn));
    assert_eq!(device.host_memory_for_contents(), (0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_region_goes_back_without_a_wait_behind_a_mark_that_was_waited_for() {
    let device = device();
    let waits = |body: &dyn Fn()| calls(body).into_iter().filter(|name| *name == "cuStreamSynchronize").count();
    for _ in 0..2 {
        let saved = parked(&device);
        assert_eq!(waits(&|| device.forget(saved)), 0);
    }
    // The copies of the second park have no mark, and one wait covers both.
    device.prepare(PAGE, PAGE).expect("prepared");
    let first = device.save(AT, PAGE).expect("saved");
    device.prepare(PAGE, PAGE).expect("prepared");
    let second = device.save(AT, PAGE).expect("saved");
    device.end_saves();
    assert_eq!(waits(&|| [first, second].into_iter().for_each(|saved| device.forget(saved))), 1);
    assert!(fake::with(|fake| fake.pinned.is_empty() && !fake.torn));
    assert_eq!(device.close(), Ok(()));
    assert!(fake::with(|fake| fake.streams.is_empty()), "the stream of the copies");
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn copies_are_waited_for_where_no_event_can_be_made() {
    for failing in ["cuEventCreate", "cuEventRecord"] {
        let device = device();
        device.prepare(PAGE, PAGE).expect("prepared");
        let saved = device.save(AT, PAGE).expect("saved");
        fail(failing, CuResult::OUT_OF_MEMORY);
        let made = calls(|| {
            let mark = device.mark().expect("waited for");
            assert_eq!(device.finish(mark), Ok(()), "{failing}");
        });
        assert!(made.contains(&"cuStreamSynchronize"), "{failing}: {made:?}");
        device.forget(saved);
        device.end_saves();
        assert!(fake::with(|fake| fake.pinned.is_empty() && !fake.torn), "{failing}");
        assert_eq!(device.host_memory_for_contents(), (0, 0), "{failing}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_region_whose_copies_may_be_in_progress_is_given_back_later() {
    let device = device();
    device.prepare(PAGE, PAGE).expect("prepared");
    let saved = device.save(AT, PAGE).expect("saved");
    fail("cuStreamSynchronize", CuResult::UNKNOWN);
    device.forget(saved);
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (PAGE, PAGE));
    assert!(fake::with(|fake| fake.pinned.len() == 1));
    assert_eq!(device.retain_host_memory(0), Ok(()));
    assert_eq!(device.host_memory_for_contents(), (0, 0));
    assert!(fake::with(|fake| fake.pinned.is_empty() && !fake.torn));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn no_event_of_a_mark_is_left_behind() {
    let device = device();
    let saved = parked(&device);
    let marks = [(); 3].map(|()| device.mark().expect("marked"));
    let events = fake::with(|fake| fake.events.len());
    device.finish(marks[1]).expect("copied");
    device.finish(marks[0]).expect("waited for before");
    assert_eq!(fake::with(|fake| fake.events.len()), events - 2);
    fail("cuEventSynchronize", CuResult::UNKNOWN);
    assert_eq!(device.finish(marks[2]), Err(CuResult::UNKNOWN.error()));
    assert_eq!(fake::with(|fake| fake.events.len()), events - 2, "a failed wait can be repeated");
    device.finish(marks[2]).expect("copied");
    assert_eq!(fake::with(|fake| fake.events.len()), events - 3);
    device.forget(saved);
    let _ = device.mark().expect("marked");
    assert_eq!(device.close(), Ok(()));
    assert_eq!(fake::with(|fake| fake.events.len()), 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn memory_that_may_be_registered_stays_mapped_and_is_used_for_no_other_park() {
    let device = device();
    assert_eq!(device.retain_host_memory(PAGE), Ok(()));
    device.prepare(PAGE, PAGE).expect("prepared");
    let plan = |function, when, permanent| {
        let code = CuResult::UNKNOWN;
        fake::with(|fake| fake.plan = Some(Plan { function, skip: 0, code, when, permanent }));
    };
    // The memory is registered although the call has failed, so the registration is ended.
    plan(Some("cuMemHostRegister_v2"), When::After, false);
    assert_eq!(device.save(AT, PAGE), Err(CuResult::UNKNOWN.error()));
    assert!(fake::with(|fake| fake.pinned.is_empty()));
    let saved = device.save(AT, PAGE).expect("saved");
    device.forget(saved);
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (PAGE, PAGE));
    assert_eq!(device.retain_host_memory(0), Ok(()));
    // The driver does not end the registration either.
    let mut table = fake::table();
    table.mem_host_unregister = None;
    let driver = fake::load(&table).expect("loads");
    let device = CudaDevice::open(driver, 0).expect("opens");
    assert_eq!(device.retain_host_memory(PAGE), Ok(()));
    device.prepare(PAGE, PAGE).expect("prepared");
    plan(Some("cuMemHostRegister_v2"), When::After, false);
    assert_eq!(device.save(AT, PAGE), Err(CuResult::UNKNOWN.error()));
    let at = fake::with(|fake| fake.pinned.keys().copied().next()).expect("registered");
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (0, 0), "lost");
    let saved = parked(&device);
    assert!(
        fake::with(|fake| fake.pinned.len() == 2 && fake.pinned.contains_key(&at)),
        "its address is not used again"
    );
    device.forget(saved);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_short_region_with_contents_stays_beside_a_park_of_longer_ones() {
    let device = device();
    assert_eq!(device.retain_host_memory(u64::MAX), Ok(()));
    let short = parked(&device);
    device.prepare(4 * PAGE, 4 * PAGE).expect("prepared");
    let long = device.save(AT, 4 * PAGE).expect("room was prepared");
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (5 * PAGE, 0));
    assert_eq!((device.restore(short, AT, PAGE), device.restore(long, AT, 4 * PAGE)), (Ok(()), Ok(())));
    device.forget(long);
    // The long region is idle. It is too long for a page, and long enough for the next park of its
    // kind.
    device.prepare(PAGE, PAGE).expect("prepared");
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (6 * PAGE, 5 * PAGE));
    device.forget(short);
    assert_eq!(device.close(), Ok(()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_region_that_goes_back_is_unmapped() {
    let device = device();
    // Other tests may map memory at the same place right after.
    let is_unmapped = |_| {
        let saved = parked(&device);
        let at = fake::with(|fake| fake.pinned.keys().copied().next()).expect("registered") as u64;
        assert!(super::host::is_mapped(at));
        device.forget(saved);
        !super::host::is_mapped(at)
    };
    assert!((0..20).any(is_unmapped));
}

/// Prepares for contents of `pages` pages, saves them one by one, and forgets them.
fn park_of(device: &CudaDevice, pages: u64) {
    device.prepare(pages * PAGE, PAGE).expect("prepared");
    let saved: Vec<Saved> = (0..pages).map(|_| device.save(AT, PAGE).expect("room was prepared")).collect();
    device.end_saves();
    for saved in saved {
        assert_eq!(device.restore(saved, AT, PAGE), Ok(()));
        device.forget(saved);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn parks_that_grow_do_not_pile_up_memory_of_the_host() {
    let device = device();
    assert_eq!(device.retain_host_memory(u64::MAX), Ok(()));
    for pages in 4..20 {
        park_of(&device, pages);
        let (all, idle) = device.host_memory_for_contents();
        assert_eq!(all, idle);
        // Each growth adds a region, which may end in a place too short for a page.
        assert!(all <= 2 * pages * PAGE, "{pages} pages: {all} bytes");
    }
    // A park of one part needs a region that is as long, and the regions that are too short for the
    // part are given back.
    for pages in [32, 40, 48] {
        device.prepare(pages * PAGE, pages * PAGE).expect("prepared");
        let saved = device.save(AT, pages * PAGE).expect("room was prepared");
        device.end_saves();
        device.forget(saved);
        assert_eq!(device.host_memory_for_contents(), (pages * PAGE, pages * PAGE));
    }
    // The longest region has room for all.
    park_of(&device, 48);
    assert_eq!(device.host_memory_for_contents(), (48 * PAGE, 48 * PAGE));
    assert_eq!(device.retain_host_memory(0), Ok(()));
    assert!(fake::with(|fake| fake.pinned.is_empty() && !fake.torn));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn few_contents_leave_the_long_region_to_many() {
    let device = device();
    assert_eq!(device.retain_host_memory(u64::MAX), Ok(()));
    for few in [2, 2, 3, 5, 4] {
        device.prepare(few * PAGE, PAGE).expect("prepared");
        let mut saved: Vec<Saved> = (0..few).map(|_| device.save(AT, PAGE).expect("room was prepared")).collect();
        device.end_saves();
        device.prepare(40 * PAGE, 40 * PAGE).expect("prepared");
        saved.push(device.save(AT, 40 * PAGE).expect("room was prepared"));
        device.end_saves();
        saved.into_iter().for_each(|saved| device.forget(saved));
        let (all, idle) = device.host_memory_for_contents();
        assert!(all == idle && all < 50 * PAGE, "{few} pages and 40: {all} bytes");
    }
    assert_eq!(device.retain_host_memory(0), Ok(()));
    assert!(fake::with(|fake| fake.pinned.is_empty() && !fake.torn));
}
