//! Snapshots to files through the C interface: two threads with a common path, and a full device.

use cachalot::abi::{CACHALOT_SIMULATED, cachalot_allocator, cachalot_options, cachalot_status};
use cachalot::capi::{cachalot_create, cachalot_destroy, cachalot_free, cachalot_malloc, cachalot_snapshot_to_file};
use cachalot::status::{CACHALOT_ERROR_IO, CACHALOT_OK};
use std::ffi::{CString, c_void};
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// An allocator on a simulated device, with some blocks in use.
struct Subject {
    handle: *mut cachalot_allocator,
    blocks: Vec<*mut c_void>,
}

// SAFETY: the functions of the interface may be called on any thread.
unsafe impl Sync for Subject {}

impl Subject {
    fn new(count: usize) -> Self {
        let options = cachalot_options { flags: CACHALOT_SIMULATED, ..cachalot_options::INIT };
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call.
        assert_eq!(unsafe { cachalot_create(&raw const options, &raw mut handle) }, CACHALOT_OK);
        let mut blocks = vec![null_mut(); count];
        for block in &mut blocks {
            // SAFETY: the variable outlives the call.
            assert_eq!(unsafe { cachalot_malloc(handle, 0, 1000, null_mut(), block) }, CACHALOT_OK);
        }
        Self { handle, blocks }
    }

    fn end(self) {
        for block in self.blocks {
            assert_eq!(cachalot_free(self.handle, block), CACHALOT_OK);
        }
        assert_eq!(cachalot_destroy(self.handle), CACHALOT_OK);
    }

    fn write(&self, path: &Path) -> cachalot_status {
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: the text outlives the call.
        unsafe { cachalot_snapshot_to_file(self.handle, path.as_ptr()) }
    }
}

/// Creates an empty folder of a test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("an old folder can be removed");
    }
    fs::create_dir_all(&folder).expect("the test's folder can be written");
    folder
}

#[test]
fn threads_that_write_one_path_succeed_and_a_reader_sees_whole_files_only() {
    const WRITES: usize = 20;
    let subject = Subject::new(2000);
    let folder = folder("snapshot_race");
    let path = folder.join("race.json");
    assert_eq!(subject.write(&path), CACHALOT_OK);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers =
            [(); 2].map(|()| scope.spawn(|| (0..WRITES).filter(|_| subject.write(&path) != CACHALOT_OK).count()));
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
    subject.end();
}

#[test]
fn a_full_device_is_an_error_and_stays() {
    let subject = Subject::new(1);
    let link = folder("snapshot_device").join("full.json");
    symlink("/dev/full", &link).expect("the test's folder can be written");
    assert_eq!(subject.write(&link), CACHALOT_ERROR_IO);
    assert!(link.is_symlink());
    assert!(fs::metadata("/dev/full").expect("it exists").file_type().is_char_device());
    subject.end();
}
