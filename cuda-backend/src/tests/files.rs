//! Tests of contents in files, against a model, and with each step of a file failing once.

use super::*;
use crate::contents_file::FileStep;
use crate::driver::result::CuResult;
use crate::shared_fake::{self, SharedFake};
use cachalot_core::{Contents, ErrorKind, Saved};
use std::collections::BTreeMap;
use std::io;
use tempfile::TempDir;

/// The length of a page: two and a half chunks.
const PAGE: u64 = 320 << 10;

/// A device with contents that go to files, and their folder.
struct ToFiles {
    device: CudaDevice,
    folder: TempDir,
    _fake: SharedFake,
}

/// Returns a new folder, in memory if the system has one there.
pub(super) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

fn to_files() -> ToFiles {
    let fake = shared_fake::start();
    let folder = folder();
    let device = CudaDevice::open(fake.driver, 0).expect("opens");
    device.keep_contents_in(Some(folder.path().to_owned()));
    ToFiles { device, folder, _fake: fake }
}

impl ToFiles {
    /// Closes the device, and checks that nothing is left.
    fn close(self) {
        assert_eq!(self.device.close(), Ok(()));
        assert_eq!(self.folder.path().read_dir().expect("a folder").count(), 0);
        assert_eq!(shared_fake::left(), (Vec::new(), [0, 0, 0]));
    }
}

fn at(page: u64) -> DevicePtr {
    DevicePtr((1 << 40) + page * PAGE)
}

/// Returns bytes that differ for each seed.
fn bytes(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(PAGE as usize).collect()
}

/// Fills pages with their own bytes.
fn fill(pages: u64) {
    (0..pages).for_each(|page| shared_fake::put(at(page), bytes(page)));
}

/// Clears pages, as if their memory had gone back.
fn clear(pages: u64) {
    (0..pages).for_each(|page| shared_fake::put(at(page), vec![0xee; PAGE as usize]));
}

fn finish(device: &CudaDevice) -> DeviceResult<()> {
    device.mark().and_then(|mark| device.finish(mark))
}

/// Saves pages as the allocator does. Nothing is kept after a failure.
fn park(device: &CudaDevice, pages: u64) -> DeviceResult<Vec<Saved>> {
    device.prepare(pages * PAGE, PAGE)?;
    let mut saved = Vec::new();
    let result = (0..pages)
        .try_for_each(|page| device.save(at(page), PAGE).map(|name| saved.push(name)))
        .and_then(|()| finish(device));
    if let Err(error) = result {
        assert_eq!(finish(device), Ok(()), "no copy is in progress");
        saved.iter().for_each(|&name| device.forget(name));
        device.end_saves();
        return Err(error);
    }
    device.end_saves();
    Ok(saved)
}

/// Writes the pages back.
fn wake(device: &CudaDevice, saved: &[Saved]) -> DeviceResult<()> {
    let begun = (0..).zip(saved).try_for_each(|(page, &name)| device.restore(name, at(page), PAGE));
    begun.and_then(|()| finish(device))
}

fn check(pages: u64) {
    (0..pages).for_each(|page| assert!(shared_fake::bytes_at(at(page)) == bytes(page), "page {page}"));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn contents_come_back_from_a_file_and_nothing_is_pinned_meanwhile() {
    let files = to_files();
    let device = &files.device;
    for pages in [1, 7] {
        fill(pages);
        let saved = park(device, pages).expect("parked");
        clear(pages);
        assert_eq!(device.host_memory_for_contents(), (0, 0));
        assert_eq!(shared_fake::left().1, [0, 0, 0], "no memory is pinned");
        for _ in 0..2 {
            wake(device, &saved).expect("awake");
            check(pages);
            clear(pages);
        }
        assert_eq!(shared_fake::left().1, [0, 0, 0], "no memory is pinned");
        saved.into_iter().for_each(|name| device.forget(name));
    }
    files.close();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_file_takes_its_room_and_gives_it_back_with_the_last_contents() {
    let files = to_files();
    let open = || {
        std::fs::read_dir("/proc/self/fd").expect("open files").flatten().filter_map(|entry| {
            let to = std::fs::read_link(entry.path()).ok()?;
            to.starts_with(files.folder.path()).then_some(())
        })
    };
    fill(3);
    let saved = park(&files.device, 3).expect("parked");
    assert_eq!(open().count(), 1);
    saved.iter().take(2).for_each(|&name| files.device.forget(name));
    assert_eq!(open().count(), 1);
    files.device.forget(saved[2]);
    assert_eq!(open().count(), 0);
    files.close();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn each_step_of_a_file_fails_once_and_no_contents_are_lost() {
    use FileStep::{Create, Read, Reserve, Write};
    let files = to_files();
    let device = &files.device;
    let (full, broken) = (io::ErrorKind::StorageFull, io::ErrorKind::Other);
    let (of_full, of_broken) = (CuResult::OUT_OF_MEMORY.error(), CuResult::OPERATING_SYSTEM.error());
    for (step, kind, expected) in [
        (Create, broken, of_broken),
        (Reserve, full, of_full),
        (Write, full, of_full),
        (Write, broken, of_broken),
        (Read, broken, of_broken),
    ] {
        for skip in 0.. {
            fill(5);
            let plan = || device.store.with_folder(|folder| folder.faults.fail(step, skip, kind));
            if step != Read {
                plan();
            }
            let parked = park(device, 5);
            check(5);
            if let Err(error) = parked {
                assert_eq!(error, expected, "{step:?} {skip}");
                let text = device.take_contents_error().expect("told").to_string();
                assert!(text.contains(&files.folder.path().display().to_string()), "{text}");
                continue;
            }
            let saved = parked.expect("parked");
            clear(5);
            if step == Read {
                plan();
            }
            let woken = wake(device, &saved);
            let is_left = device.store.with_folder(|folder| folder.faults.end());
            assert_eq!(woken, if step == Read && !is_left { Err(expected) } else { Ok(()) }, "{step:?} {skip}");
            // The contents are kept, and the failure is reported once.
            wake(device, &saved).expect("awake");
            check(5);
            saved.into_iter().for_each(|name| device.forget(name));
            if is_left {
                assert!(skip > 0, "{step:?} never happened");
                break;
            }
        }
    }
    files.close();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_failure_is_told_to_every_mark_behind_it_until_it_was_told() {
    let files = to_files();
    let device = &files.device;
    fill(1);
    let saved = park(device, 1).expect("parked");
    device.store.with_folder(|folder| folder.faults.fail(FileStep::Read, 0, io::ErrorKind::Other));
    device.restore(saved[0], at(0), PAGE).expect("begun");
    let first = device.mark().expect("marked");
    let second = device.mark().expect("marked");
    // Another thread that waits for the end of all copies gets the failure, and waits again.
    assert!(device.finish(second).is_err());
    assert_eq!(finish(device), Ok(()), "a mark behind the news");
    assert!(device.finish(first).is_err(), "the waker hears of it, too");
    assert!(device.finish(first).is_err(), "each time");
    wake(device, &saved).expect("awake");
    device.forget(saved[0]);
    files.close();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_folder_that_is_not_there_is_named_and_nothing_is_prepared() {
    let files = to_files();
    let missing = files.folder.path().join("missing");
    files.device.keep_contents_in(Some(missing.clone()));
    assert_eq!(files.device.prepare(PAGE, PAGE), Err(CuResult::OPERATING_SYSTEM.error()));
    let told = files.device.take_contents_error().expect("told");
    assert_eq!(told.kind(), io::ErrorKind::NotFound);
    assert!(told.to_string().contains(&missing.display().to_string()), "{told}");
    assert!(files.device.take_contents_error().is_none(), "once");
    assert_eq!(files.device.save(at(0), PAGE).map_err(|error| error.kind), Err(ErrorKind::OutOfMemory));
    files.device.keep_contents_in(None);
    fill(1);
    let saved = park(&files.device, 1).expect("in memory");
    assert_eq!(files.device.host_memory_for_contents(), (PAGE, 0));
    saved.into_iter().for_each(|name| files.device.forget(name));
    files.close();
}

/// Contents in the model.
struct Known {
    name: Saved,
    bytes: Vec<u8>,
}

/// Parks and wakes random pages against a model, with random failures of the files. Returns the
/// number of failures.
fn run_model(seed: u64) -> u32 {
    let files = to_files();
    let device = &files.device;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut kept: BTreeMap<u64, Known> = BTreeMap::new();
    let mut failures = 0;
    for round in 0..60 {
        if random.u8(..3) == 0 {
            let step = [FileStep::Reserve, FileStep::Write, FileStep::Read][random.usize(..3)];
            device.store.with_folder(|folder| folder.faults.fail(step, random.u32(..6), io::ErrorKind::Other));
        }
        // A page is saved, restored or given up at random.
        match random.u8(..4) {
            0 | 1 => {
                let pages: Vec<u64> = (0..12).filter(|page| !kept.contains_key(page) && random.bool()).collect();
                if pages.is_empty() {
                    continue;
                }
                let contents: Vec<_> = pages.iter().map(|page| bytes(seed ^ page << 32 ^ round)).collect();
                if device.prepare(pages.len() as u64 * PAGE, PAGE).is_err() {
                    failures += 1;
                    continue;
                }
                let mut names = Vec::new();
                for (&page, contents) in pages.iter().zip(&contents) {
                    shared_fake::put(at(page), contents.clone());
                    names.push(device.save(at(page), PAGE).expect("room"));
                }
                let saved = finish(device);
                if saved.is_err() {
                    assert_eq!(finish(device), Ok(()), "seed {seed}, round {round}");
                }
                for ((page, bytes), name) in pages.into_iter().zip(contents).zip(names) {
                    if saved.is_ok() {
                        kept.insert(page, Known { name, bytes });
                        shared_fake::put(at(page), vec![0xee; PAGE as usize]);
                    } else {
                        device.forget(name);
                    }
                }
                failures += u32::from(saved.is_err());
                device.end_saves();
            }
            2 => {
                let pages: Vec<u64> = kept.keys().copied().filter(|_| random.bool()).collect();
                for page in &pages {
                    device.restore(kept[page].name, at(*page), PAGE).expect("begun");
                }
                match finish(device) {
                    Ok(()) => {
                        for page in pages {
                            let is_right = shared_fake::bytes_at(at(page)) == kept[&page].bytes;
                            assert!(is_right, "seed {seed}, round {round}, page {page}");
                        }
                    }
                    Err(_) => failures += 1,
                }
            }
            _ => {
                let pages: Vec<u64> = kept.keys().copied().filter(|_| random.u8(..3) == 0).collect();
                for page in pages {
                    device.forget(kept.remove(&page).expect("kept").name);
                }
            }
        }
    }
    device.store.with_folder(|folder| folder.faults.end());
    for (page, Known { name, bytes }) in kept {
        device.restore(name, at(page), PAGE).expect("begun");
        // The wait may report an earlier failure, which is not one of this page.
        finish(device).or_else(|_| finish(device)).expect("copied");
        assert!(shared_fake::bytes_at(at(page)) == bytes, "seed {seed}, page {page} at the end");
        device.forget(name);
    }
    files.close();
    failures
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn random_parks_and_wakes_with_failures_agree_with_a_model() {
    let failures: u32 = (0..12).map(run_model).sum();
    assert!(failures > 10, "{failures} failures");
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_close_waits_for_the_copies_of_a_park_under_way_and_gives_all_memory_back() {
    let files = to_files();
    fill(3);
    files.device.prepare(3 * PAGE, PAGE).expect("prepared");
    (0..3).for_each(|page| _ = files.device.save(at(page), PAGE).expect("room"));
    files.close();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_device_that_is_not_closed_leaves_no_thread_behind() {
    let files = to_files();
    fill(1);
    files.device.prepare(PAGE, PAGE).expect("prepared");
    let saved = files.device.save(at(0), PAGE).expect("room");
    let jobs = std::sync::Arc::clone(&files.device.store.copies.files.jobs);
    assert!(std::sync::Arc::strong_count(&jobs) > 2, "the device's, this one, and those of the threads");
    drop(files.device);
    assert_eq!(std::sync::Arc::strong_count(&jobs), 1);
    assert!(jobs.is_idle(), "no copy is in progress or waits, also of {saved:?}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_chunk_with_a_copy_that_may_be_in_progress_is_never_used_again() {
    let files = to_files();
    let device = &files.device;
    fill(1);
    let failed = Err(CuResult::UNKNOWN.error());
    device.prepare(PAGE, PAGE).expect("prepared");
    shared_fake::set_stuck(true);
    let saved = device.save(at(0), PAGE / 2).expect("room");
    let mark = device.mark().expect("marked");
    assert_eq!(device.finish(mark), failed);
    shared_fake::set_stuck(false);
    device.forget(saved);
    // The threads of the park refuse later jobs, and their memory remains pinned forever.
    let saved = device.save(at(0), PAGE / 2).expect("room");
    assert_eq!(finish(device), failed);
    device.forget(saved);
    device.end_saves();
    let [_, pinned, _] = shared_fake::left().1;
    assert!(pinned > 0);
    // The next park has others.
    let saved = park(device, 1).expect("parked");
    clear(1);
    wake(device, &saved).expect("awake");
    check(1);
    assert_eq!(shared_fake::left().1[1], pinned);
    saved.into_iter().for_each(|name| device.forget(name));
    assert_eq!(files.device.close(), Ok(()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn contents_that_go_by_one_write_come_back_by_one_read_each_to_its_place() {
    const SMALL: u64 = 4096;
    const MANY: u64 = 40;
    let files = to_files();
    let device = &files.device;
    let at = |number: u64| DevicePtr((1 << 40) + number * SMALL);
    let small = |number| -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(number);
        std::iter::repeat_with(|| random.u8(..)).take(SMALL as usize).collect()
    };
    fill(1);
    let first = park(device, 1).expect("the stream of the copies is made");
    (0..MANY).for_each(|number| shared_fake::put(at(number), small(number)));
    device.prepare(MANY * SMALL, SMALL).expect("prepared");
    // The threads are blocked with their first jobs, and then find the others in a row.
    let saved: Vec<Saved> =
        shared_fake::held_up(|| (0..MANY).map(|number| device.save(at(number), SMALL).expect("room")).collect());
    finish(device).expect("copied");
    device.end_saves();
    (0..MANY).for_each(|number| shared_fake::put(at(number), vec![0xee; SMALL as usize]));
    saved.iter().zip(0..).for_each(|(&name, number)| device.restore(name, at(number), SMALL).expect("begun"));
    finish(device).expect("copied");
    for number in 0..MANY {
        assert!(shared_fake::bytes_at(at(number)) == small(number), "{number}");
    }
    saved.into_iter().chain(first).for_each(|name| device.forget(name));
    files.close();
}

/// Contents of two and a half pieces in memory. Each piece is pinned by its own call.
#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn long_contents_come_back_from_memory_whole_and_in_parts() {
    const LONG: u64 = 10 << 20;
    let files = to_files();
    let device = &files.device;
    device.keep_contents_in(None);
    let mut random = fastrand::Rng::with_seed(1);
    let bytes: Vec<Vec<u8>> = [LONG, LONG + 8192].map(|length| vec![0; length as usize]).into();
    let bytes: Vec<Vec<u8>> = bytes
        .into_iter()
        .map(|mut bytes| {
            random.fill(&mut bytes);
            bytes
        })
        .collect();
    let at = [DevicePtr(1 << 40), DevicePtr(1 << 41)];
    device.prepare(2 * LONG + 8192, LONG + 8192).expect("prepared");
    let saved: Vec<Saved> = at
        .iter()
        .zip(&bytes)
        .map(|(&at, bytes)| {
            shared_fake::put(at, bytes.clone());
            device.save(at, bytes.len() as u64).expect("room")
        })
        .collect();
    finish(device).expect("copied");
    device.end_saves();
    assert_eq!(device.host_memory_for_contents(), (2 * LONG + 8192, 0));
    assert_eq!(shared_fake::left().1[1], 6, "pieces of 4 MiB");
    for (number, (&at, bytes)) in at.iter().zip(&bytes).enumerate() {
        shared_fake::put(at, vec![0xee; bytes.len()]);
        device.restore(saved[number], at, bytes.len() as u64).expect("begun");
        finish(device).expect("copied");
        assert!(shared_fake::bytes_at(at) == *bytes, "{number}");
        // A part from the middle of one piece to the middle of the second one after it.
        let (from, length) = (3 << 20, 6 << 20);
        shared_fake::put(at, vec![0xee; bytes.len()]);
        device.restore_part(saved[number], from, at.offset(4096), length).expect("begun");
        finish(device).expect("copied");
        let mut expected = vec![0xee; bytes.len()];
        expected[4096..4096 + length as usize].copy_from_slice(&bytes[from as usize..(from + length) as usize]);
        assert!(shared_fake::bytes_at(at) == expected, "{number}");
    }
    saved.into_iter().for_each(|name| device.forget(name));
    assert_eq!(device.host_memory_for_contents(), (0, 0));
    files.close();
}
