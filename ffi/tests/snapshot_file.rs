//! Snapshots to files through the C interface: two threads with a common path, and a full device.

use crate::common::install::empty;
use crate::common::subject::Subject;
use cachalot::c::status::{CACHALOT_ERROR_IO, CACHALOT_OK};
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn threads_that_write_one_path_succeed_and_a_reader_sees_whole_files_only() {
    const WRITES: usize = 20;
    let subject = Subject::plain();
    let blocks = [(); 2000].map(|()| subject.malloc(1000, null_mut()));
    let folder = empty("snapshot_race");
    let path = folder.join("race.json");
    assert_eq!(subject.write_snapshot(&path), CACHALOT_OK);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers = [(); 2]
            .map(|()| scope.spawn(|| (0..WRITES).filter(|_| subject.write_snapshot(&path) != CACHALOT_OK).count()));
        let reader = scope.spawn(|| {
            let mut incomplete = 0;
            while !done.load(Ordering::Relaxed) {
                let text = fs::read(&path).unwrap_or_default();
                incomplete += usize::from(!(text.starts_with(b"{") && text.ends_with(b"}")));
            }
            incomplete
        });
        let failed = writers.map(|writer| writer.join().expect("no panic"));
        done.store(true, Ordering::Relaxed);
        assert_eq!((failed, reader.join().expect("no panic")), ([0, 0], 0));
    });
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1);
    blocks.into_iter().for_each(|block| subject.free(block));
}

#[test]
fn a_full_device_is_an_error_and_stays() {
    let subject = Subject::plain();
    let block = subject.malloc(1000, null_mut());
    let link = empty("snapshot_device").join("full.json");
    symlink("/dev/full", &link).expect("the test's folder can be written");
    assert_eq!(subject.write_snapshot(&link), CACHALOT_ERROR_IO);
    assert!(link.is_symlink());
    assert!(fs::metadata("/dev/full").expect("it exists").file_type().is_char_device());
    subject.free(block);
}
