//! Books of the test's process, with asking libraries.

use super::file::{self, Books};
use super::layout::OBJECTS;
use super::live::ENTRIES;
use super::view::{BookView, ObjectView};
use super::{Kind, Ledger, publish};
use crate::shared::uuid::Uuid;
use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const DEVICE: Uuid = Uuid([3; 16]);

/// A library with a function that calls a given function.
struct Library(libloading::Library);

type Call = extern "C" fn(*mut c_void);

impl Library {
    /// Compiles and loads a library of a name.
    fn new(dir: &Path, name: &str) -> Self {
        let (source, library) = (dir.join("ask.c"), dir.join(name));
        // A call at the end of the function would be a jump, which leaves no frame.
        fs::write(&source, "void ask(void (*f)(void *), void *p) { f(p); __asm__ volatile(\"\"); }\n").unwrap();
        let mut compiler = Command::new("cc");
        let status = compiler.args(["-O1", "-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        assert!(status.expect("a C compiler").success());
        // SAFETY: the library has no initialisers.
        Self(unsafe { libloading::Library::new(&library) }.unwrap())
    }

    /// Calls a function from a frame of the library.
    fn ask(&self, mut what: impl FnMut()) {
        extern "C" fn call<F: FnMut()>(what: *mut c_void) {
            // SAFETY: `ask` passes the closure, which nothing else uses meanwhile.
            (unsafe { &mut *what.cast::<F>() })();
        }
        fn caller<F: FnMut()>(_: &F) -> Call {
            call::<F>
        }
        let call = caller(&what);
        // SAFETY: the function has this signature.
        let ask = unsafe { self.0.get::<extern "C" fn(Call, *mut c_void)>(b"ask") }.unwrap();
        ask(call, (&raw mut what).cast());
    }
}

fn ledger() -> Ledger {
    Ledger::in_folder(None, DEVICE, false).unwrap()
}

fn object<'a>(view: &'a BookView, end: &str) -> &'a ObjectView {
    let found = view.objects.iter().find(|object| object.name.ends_with(end));
    found.unwrap_or_else(|| panic!("no {end} in {:?}", view.objects))
}

#[test]
fn memory_is_booked_to_the_library_that_asks_even_through_a_runtime() {
    let dir = TempDir::new().unwrap();
    let (one, runtime) = (Library::new(dir.path(), "libone.so"), Library::new(dir.path(), "libcudart-1a.so.12"));
    let ledger = ledger();
    one.ask(|| ledger.book(Kind::Plain, 100, 1));
    one.ask(|| runtime.ask(|| ledger.book(Kind::Segment, 7, 2)));
    let two = Library::new(dir.path(), "libtwo.so");
    two.ask(|| one.ask(|| ledger.book(Kind::Plain, 11, 3)));
    two.ask(|| ledger.book(Kind::Host, 1000, 4));
    runtime.ask(|| ledger.book(Kind::Plain, 5, 5));
    let view = ledger.view();
    let one = object(&view, "/libone.so");
    let kinds: Vec<_> = one.kinds.iter().map(|kind| (kind.kind, kind.bytes, kind.count)).collect();
    assert_eq!(kinds, [(Kind::Segment, 7, 1), (Kind::Plain, 111, 2)]);
    let two = object(&view, "/libtwo.so");
    assert_eq!((two.bytes, two.kinds[0].bytes), (0, 1000), "memory of the host is none of the device");
    // Nobody asked through the runtime but the program, which has this code linked statically.
    let program = std::env::current_exe().unwrap();
    assert_eq!(object(&view, program.to_str().unwrap()).bytes, 5);
    assert_eq!(view.booked, 123);
}

#[test]
fn a_caller_is_found_beyond_hundreds_of_frames() {
    fn deep(frames: u32, what: &mut dyn FnMut()) {
        if frames == 0 {
            what();
        } else {
            deep(frames - 1, what);
        }
        // A call at the end of the function could be a jump, which leaves no frame.
        std::hint::black_box(frames);
    }
    let dir = TempDir::new().unwrap();
    let library = Library::new(dir.path(), "libfar.so");
    for stacks in [false, true] {
        let ledger = Ledger::in_folder(None, DEVICE, stacks).unwrap();
        library.ask(|| deep(300, &mut || ledger.book(Kind::Plain, 10, 1)));
        assert_eq!(object(&ledger.view(), "/libfar.so").bytes, 10);
        assert!(!stacks || ledger.view().stacks[0].frames[0].starts_with("ask+"));
        // A search that was given up names no object.
        library.ask(|| deep(1100, &mut || ledger.book(Kind::Plain, 7, 2)));
        assert_eq!(object(&ledger.view(), "(unknown)").bytes, 7);
    }
}

#[test]
fn what_is_freed_leaves_the_book_and_the_peak_stays() {
    let ledger = ledger();
    ledger.book(Kind::Plain, 100, 1);
    ledger.book(Kind::Plain, 50, 2);
    assert_eq!(ledger.unbook(Kind::Plain, 1), Some(100));
    assert_eq!(ledger.unbook(Kind::Plain, 1), None);
    assert_eq!(ledger.unbook(Kind::Pages, 2), None);
    // The same number again, after a free that nobody saw.
    ledger.book(Kind::Plain, 60, 2);
    let view = ledger.view();
    let kind = view.objects[0].kinds[0];
    assert_eq!((kind.bytes, kind.count, kind.peak), (60, 1, 150));
    ledger.missed();
    assert_eq!((view.unknown_frees, ledger.view().unknown_frees), (0, 1));
}

#[test]
fn what_an_object_took_is_given_back_by_another() {
    let dir = TempDir::new().unwrap();
    let library = Library::new(dir.path(), "liblazy.so");
    let other = Library::new(dir.path(), "libother.so");
    let ledger = ledger();
    library.ask(|| ledger.grow(Kind::Module, 400));
    assert_eq!(object(&ledger.view(), "liblazy.so").bytes, 400);
    // Another library unloads the module.
    other.ask(|| assert_eq!(ledger.shrink(Kind::Module, 350), 350));
    assert_eq!(object(&ledger.view(), "liblazy.so").bytes, 50);
    // More than the book has cannot be taken out.
    other.ask(|| assert_eq!(ledger.shrink(Kind::Module, 1000), 50));
    assert_eq!((object(&ledger.view(), "liblazy.so").bytes, ledger.view().booked), (0, 0));
}

#[test]
fn the_drivers_figure_leaves_the_unexplained() {
    let ledger = ledger();
    ledger.book(Kind::Plain, 100, 1);
    ledger.book(Kind::Served, 60, 1);
    assert_eq!(ledger.view().unexplained, None);
    ledger.driver(170, 1000);
    assert_eq!(ledger.view().unexplained, Some(70));
    ledger.driver(90, 1000);
    assert_eq!(ledger.view().unexplained, Some(-10));
    // The figure stays that of its moment.
    ledger.unbook(Kind::Plain, 1);
    assert_eq!((ledger.view().booked, ledger.view().unexplained), (0, Some(-10)));
}

#[test]
fn full_tables_say_what_they_dropped() {
    let ledger = ledger();
    for number in 0..ENTRIES as u64 {
        let entry = super::Booking { bytes: 1, object: 0, stack: 0 };
        ledger.live.insert(Kind::Plain, number, entry).unwrap();
    }
    ledger.book(Kind::Plain, 9, u64::MAX);
    let view = ledger.view();
    assert_eq!((view.dropped, view.dropped_bytes, view.booked), (1, 9, 0));
    // Objects beyond the table.
    let object = |number: usize| super::Object { name: format!("/lib{number}.so"), base: 0, is_transparent: false };
    let rows: Vec<_> = (0..=OBJECTS).map(|number| ledger.row(&object(number).into())).collect();
    // Row 0 is of unknown callers, and row 1 of this program.
    assert_eq!(rows[..3], [2, 3, 4]);
    assert_eq!(rows[OBJECTS - 4..], [254, 255, 255, 255, 255]);
    assert_eq!(ledger.view().unnamed, 4);
    assert_eq!(ledger.row(&object(0).into()), 2);
}

#[test]
fn stacks_are_kept_on_demand() {
    let dir = TempDir::new().unwrap();
    let library = Library::new(dir.path(), "libdeep.so");
    let ledger = Ledger::in_folder(None, DEVICE, true).unwrap();
    for id in 0..3 {
        library.ask(|| ledger.book(Kind::Plain, 10, id));
    }
    let view = ledger.view();
    let stack = &view.stacks[0];
    assert_eq!((view.stacks.len(), stack.bytes, stack.count), (1, 30, 3));
    assert!(stack.frames[0].starts_with("ask+0x") && stack.frames[0].ends_with("(libdeep.so)"), "{:?}", stack.frames);
    assert!(stack.frames.len() > 3, "{:?}", stack.frames);
    ledger.unbook(Kind::Plain, 1);
    assert_eq!(ledger.view().stacks[0].bytes, 20);
}

#[test]
fn a_published_book_is_read_by_others_and_removed_at_its_end() {
    let dir = TempDir::new().unwrap();
    let ledger = Ledger::in_folder(Some(dir.path()), DEVICE, false).unwrap();
    assert_eq!(ledger.fault(), None);
    ledger.book(Kind::Plain, 100, 1);
    ledger.driver(130, 1000);
    let books = publish::in_folder(dir.path()).unwrap();
    assert_eq!(books, [ledger.view()]);
    assert_eq!((books[0].pid, &*books[0].device), (std::process::id(), &*DEVICE.to_string()));
    assert!(!books[0].program.is_empty());
    let mode = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    ledger.finish();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    ledger.book(Kind::Plain, 1, 2);
    assert_eq!(ledger.view().booked, 101);
}

#[test]
fn two_books_of_one_process_have_two_files() {
    let dir = TempDir::new().unwrap();
    let books = [0, 1].map(|_| Ledger::in_folder(Some(dir.path()), DEVICE, false).unwrap());
    assert_eq!(publish::in_folder(dir.path()).unwrap().len(), 2);
    drop(books);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_book_that_cannot_be_published_is_kept_in_private() {
    let dir = TempDir::new().unwrap();
    let ledger = Ledger::in_folder(Some(&dir.path().join("missing")), DEVICE, false).unwrap();
    assert!(ledger.fault().unwrap().contains("cannot be published"));
    ledger.book(Kind::Plain, 100, 1);
    assert_eq!(ledger.view().booked, 100);
}

/// Copies the only book in a folder, with some words changed.
fn forge(from: &Path, to: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = fs::read_dir(from).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    let copy = to.join("book-copy");
    let _ = fs::remove_file(&copy);
    fs::write(&copy, bytes).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn books_of_the_dead_are_removed_and_foreign_files_left_out() {
    let (dir, copies) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ledger = Ledger::in_folder(Some(dir.path()), DEVICE, false).unwrap();
    ledger.book(Kind::Plain, 100, 1);
    let read = || publish::in_folder(copies.path()).unwrap();
    let count = || fs::read_dir(copies.path()).unwrap().count();
    forge(dir.path(), copies.path(), |_| {});
    assert_eq!(read(), [ledger.view()]);
    // A number of objects beyond the table, and a name without an end.
    let objects = std::mem::offset_of!(super::layout::Book, objects);
    forge(dir.path(), copies.path(), |bytes| bytes[objects..objects + 8].fill(0xff));
    assert_eq!(read()[0].booked, 100);
    forge(dir.path(), copies.path(), |bytes| bytes[std::mem::offset_of!(super::layout::Book, rows)..].fill(0xff));
    assert_eq!(read()[0].booked, u64::MAX);
    forge(dir.path(), copies.path(), |bytes| bytes.truncate(100));
    assert_eq!((read().len(), count()), (0, 1));
    forge(dir.path(), copies.path(), |bytes| bytes[0] ^= 1);
    assert_eq!((read().len(), count()), (0, 1));
    let start = std::mem::offset_of!(super::layout::Book, start);
    forge(dir.path(), copies.path(), |bytes| bytes[start] ^= 1);
    assert_eq!((read().len(), count()), (0, 0));
}

#[test]
fn a_book_of_a_container_that_has_ended_goes_with_the_next_book() {
    let dir = TempDir::new().unwrap();
    let namespace = std::mem::offset_of!(super::layout::Book, namespace);
    let other = |bytes: &mut Vec<u8>| bytes[namespace] ^= 1;
    let ledger = Ledger::in_folder(Some(dir.path()), DEVICE, false).unwrap();
    forge(dir.path(), dir.path(), other);
    let copy = dir.path().join("book-copy");
    // The container lives as long as somebody has the mark.
    let open = fs::OpenOptions::new().read(true).write(true).open(&copy).unwrap();
    crate::shared::marks::hold(&open, 0).unwrap();
    assert_eq!((publish::in_folder(dir.path()).unwrap().len(), copy.exists()), (1, true));
    drop(open);
    let _second = Ledger::in_folder(Some(dir.path()), DEVICE, false).unwrap();
    assert!(!copy.exists());
    drop(ledger);
}

#[test]
fn a_book_whose_file_was_removed_is_published_again_with_its_sums() {
    let dir = TempDir::new().unwrap();
    let ledger = Ledger::in_folder(Some(dir.path()), DEVICE, false).unwrap();
    ledger.book(Kind::Plain, 100, 1);
    ledger.stay_published();
    for path in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(path.unwrap().path()).unwrap();
    }
    ledger.book(Kind::Plain, 30, 2);
    ledger.stay_published();
    ledger.unbook(Kind::Plain, 1);
    let books = publish::in_folder(dir.path()).unwrap();
    assert_eq!((books.len(), books[0].booked, &books[0]), (1, 30, &ledger.view()));
    ledger.finish();
    ledger.stay_published();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_written_book_is_read_again() {
    let dir = TempDir::new().unwrap();
    let ledger = Ledger::in_folder(None, DEVICE, true).unwrap();
    ledger.book(Kind::Plain, 100, 1);
    let path = dir.path().join("ledger-%p.json");
    file::write(&path, vec![ledger.view()]).unwrap();
    let path: PathBuf = file::path_of_caller(&path);
    assert!(path.ends_with(format!("ledger-{}.json", std::process::id())));
    assert_eq!(file::read(&path).unwrap(), Books { schema: 1, books: vec![ledger.view()] });
    fs::write(&path, "{}").unwrap();
    assert!(file::read(&path).unwrap_err().to_string().contains("no ledger"));
    fs::write(&path, r#"{"schema":2,"books":[]}"#).unwrap();
    assert!(file::read(&path).unwrap_err().to_string().contains("version 2"));
}

#[test]
#[ignore = "measures: tests/groups.sh runs it"]
fn what_a_booking_costs() {
    let dir = TempDir::new().unwrap();
    let (one, runtime) = (Library::new(dir.path(), "libone.so"), Library::new(dir.path(), "libcudart.so.12"));
    for stacks in [false, true] {
        let ledger = Ledger::in_folder(Some(dir.path()), DEVICE, stacks).unwrap();
        let mut rounds = Vec::new();
        for _ in 0..21 {
            let mut taken = std::time::Duration::ZERO;
            for id in 0..200 {
                one.ask(|| {
                    runtime.ask(|| {
                        let begin = std::time::Instant::now();
                        ledger.book(Kind::Plain, 1 << 20, id);
                        ledger.unbook(Kind::Plain, id);
                        taken += begin.elapsed();
                    });
                });
            }
            rounds.push(taken.as_nanos() / 200);
        }
        rounds.sort_unstable();
        println!("book and unbook, stacks {stacks}: {} ns", rounds[10]);
        assert_eq!(object(&ledger.view(), "/libone.so").kinds[0].peak, 1 << 20);
    }
}
