//! Tests of writes to files of every kind: complete, failed, and concurrent.

use cachalot_atomic_file::{write, write_new};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Creates an empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("an old folder can be removed");
    }
    fs::create_dir_all(&folder).expect("the test's folder can be written");
    folder
}

/// Returns the sorted names of a folder's files.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    write(path, |file| file.write_all(text.as_bytes()))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("the file exists").permissions().mode() & 0o7777
}

#[test]
fn a_new_file_has_ordinary_permissions_and_an_old_one_keeps_its_own() {
    let folder = folder("permissions");
    let [ordinary, new] = ["ordinary", "new"].map(|name| folder.join(name));
    File::create(&ordinary).expect("the folder can be written");
    put(&new, "1").expect("a new file");
    assert_eq!(mode(&new), mode(&ordinary));

    for kept in [0o600, 0o754] {
        fs::set_permissions(&new, Permissions::from_mode(kept)).expect("the file is the test's");
        put(&new, "22").expect("an old file");
        assert_eq!((mode(&new), fs::read(&new).expect("the file exists")), (kept, b"22".to_vec()));
    }
    // Root may write the file, other users may not.
    fs::set_permissions(&new, Permissions::from_mode(0o400)).expect("the file is the test's");
    let may_write = File::options().write(true).open(&new).is_ok();
    assert_eq!(put(&new, "333").is_ok(), may_write);
    assert_eq!(names(&folder), ["new", "ordinary"]);
}

#[test]
fn a_new_file_takes_the_place_of_nothing() {
    let folder = folder("new");
    let path = folder.join("a");
    let put_new = |text: &str| write_new(&path, |file| file.write_all(text.as_bytes())).map_err(|error| error.kind());
    assert_eq!(put_new("1"), Ok(()));
    assert_eq!(put_new("2"), Err(ErrorKind::AlreadyExists));
    assert_eq!(fs::read(&path).expect("the file exists"), b"1");
    fs::remove_file(&path).expect("the file exists");
    symlink("nowhere", &path).expect("the folder can be written");
    assert_eq!(put_new("3"), Err(ErrorKind::AlreadyExists));
    fs::remove_file(&path).expect("the link exists");
    // A file that appears while the content is written stays, and no part of the new one does.
    let late = write_new(&path, |file| {
        file.write_all(b"4")?;
        fs::write(&path, b"5")
    });
    assert_eq!(late.map_err(|error| error.kind()), Err(ErrorKind::AlreadyExists));
    assert_eq!((fs::read(&path).expect("the file exists"), names(&folder)), (b"5".to_vec(), vec!["a".to_owned()]));
    fs::remove_file(&path).expect("the file exists");
    assert!(write_new(&path, |_| Err(io::Error::other("full"))).is_err());
    assert!(names(&folder).is_empty());
}

#[test]
fn the_longest_name_and_a_name_without_a_folder_can_be_written() {
    let folder = folder("names");
    let longest = "n".repeat(255);
    put(&folder.join(&longest), "text").expect("a name of 255 bytes");
    assert_eq!(names(&folder), [longest]);

    let bare = PathBuf::from(format!("cachalot-atomic-file-{}", std::process::id()));
    put(&bare, "text").expect("a file of the current folder");
    assert_eq!(fs::read_to_string(&bare).expect("the file exists"), "text");
    fs::remove_file(&bare).expect("it was just read");
}

#[test]
fn symbolic_links_stay_and_their_targets_are_written() {
    let folder = folder("links");
    fs::create_dir(folder.join("inside")).expect("the folder can be written");
    put(&folder.join("inside/target"), "old").expect("a new file");
    for (link, to) in [("link", "inside/target"), ("inside/back", "../link"), ("dangling", "inside/made")] {
        symlink(to, folder.join(link)).expect("the folder can be written");
    }
    for (path, target) in [("link", "inside/target"), ("inside/back", "inside/target"), ("dangling", "inside/made")] {
        put(&folder.join(path), path).expect("a link to a file");
        assert!(folder.join(path).is_symlink(), "{path}");
        assert!(!folder.join(target).is_symlink(), "{target}");
        assert_eq!(fs::read_to_string(folder.join(target)).expect("the target exists"), path);
    }
    symlink("circle", folder.join("circle")).expect("the folder can be written");
    let error = put(&folder.join("circle"), "").expect_err("a link to itself");
    assert_eq!(error.to_string(), "more than 40 symbolic links lead on from it");
    assert_eq!(names(&folder.join("inside")), ["back", "made", "target"]);
    assert_eq!(names(&folder), ["circle", "dangling", "inside", "link"]);
}

#[test]
fn a_fifo_is_written_and_stays() {
    let folder = folder("fifo");
    let path = folder.join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("the folder can be written");
    let reader = thread::spawn({
        let path = path.clone();
        move || fs::read_to_string(path)
    });
    put(&path, "through").expect("a FIFO with a reader");
    assert!(fs::symlink_metadata(&path).expect("it exists").file_type().is_fifo());
    assert_eq!(reader.join().expect("no panic").expect("it can be read"), "through");
    assert_eq!(names(&folder), ["fifo"]);
}

#[test]
fn a_device_is_written_and_stays() {
    let folder = folder("device");
    let link = folder.join("full");
    symlink("/dev/full", &link).expect("the folder can be written");
    for path in [&link, Path::new("/dev/full")] {
        assert_eq!(put(path, "text").expect_err("it is full").kind(), ErrorKind::StorageFull);
    }
    assert!(fs::metadata("/dev/full").expect("it exists").file_type().is_char_device());
    assert!(link.is_symlink());
    put(Path::new("/dev/null"), "text").expect("it takes everything");
    assert!(fs::metadata("/dev/null").expect("it exists").file_type().is_char_device());
}

#[test]
fn a_descriptor_of_a_regular_file_is_appended_to() {
    let folder = folder("descriptor");
    let path = folder.join("file");
    let mut file = File::create(&path).expect("the folder can be written");
    file.write_all(b"before, ").expect("a regular file");
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    for name in ["/dev/fd", "/proc/self/fd"] {
        put(&PathBuf::from(name).join(descriptor.to_string()), "after, ").expect("an open file");
    }
    assert_eq!(fs::read_to_string(&path).expect("it exists"), "before, after, after, ");
    // The open file received every write, so the file was not replaced.
    assert_eq!(file.metadata().expect("it is open").len(), 22);
    assert_eq!(names(&folder), ["file"]);
}

#[test]
fn a_failed_write_leaves_nothing_behind() {
    let folder = folder("failed");
    let path = folder.join("file");
    let fail = |path: &Path| {
        let error = write(path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::from(ErrorKind::StorageFull))
        });
        assert_eq!(error.expect_err("the content failed").kind(), ErrorKind::StorageFull);
    };
    fail(&path);
    assert!(names(&folder).is_empty());
    put(&path, "whole").expect("a new file");
    fail(&path);
    assert_eq!(fs::read_to_string(&path).expect("the old file stays"), "whole");

    assert_eq!(put(&folder, "").expect_err("a folder").kind(), ErrorKind::IsADirectory);
    assert_eq!(put(&folder.join("no/file"), "").expect_err("no folder").kind(), ErrorKind::NotFound);
    assert_eq!(put(Path::new(""), "").expect_err("no name").kind(), ErrorKind::NotFound);
    assert_eq!(names(&folder), ["file"]);
}

#[test]
fn other_files_beside_the_target_stay_as_they_are() {
    let folder = folder("beside");
    for name in ["file.part", "file.tmp", "file~"] {
        fs::write(folder.join(name), name).expect("the folder can be written");
    }
    symlink("elsewhere", folder.join("file.link.part")).expect("the folder can be written");
    for target in ["file", "file.link"] {
        put(&folder.join(target), "text").expect("a new file");
    }
    for name in ["file.part", "file.tmp", "file~"] {
        assert_eq!(fs::read_to_string(folder.join(name)).expect("it stays"), name);
    }
    assert_eq!(names(&folder), ["file", "file.link", "file.link.part", "file.part", "file.tmp", "file~"]);
}

#[test]
fn writers_at_the_same_time_succeed_and_a_reader_sees_whole_files_only() {
    const WRITES: usize = 100;
    let folder = folder("race");
    let path = folder.join("file");
    // The first line contains the number of lines that follow.
    let whole = |lines: usize| format!("{lines}\n{}", "line\n".repeat(lines));
    put(&path, &whole(0)).expect("a new file");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                let mut text = String::new();
                File::open(&path).expect("it is always there").read_to_string(&mut text).expect("text");
                let (lines, rest) = text.split_once('\n').expect("a first line");
                assert_eq!(rest.lines().count(), lines.parse::<usize>().expect("a number"));
                looks += 1;
            }
            looks
        });
        let writers = [1, 2].map(|writer| {
            let path = &path;
            scope.spawn(move || {
                for round in 0..WRITES {
                    let text = whole(writer * 10_000 + round);
                    let content =
                        |file: &mut File| text.as_bytes().chunks(4096).try_for_each(|part| file.write_all(part));
                    write(path, content).expect("a complete file");
                }
            })
        });
        let results = writers.map(thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.expect("every write succeeds"));
        assert!(reader.join().expect("the reader saw whole files") > 0);
    });
    assert_eq!(names(&folder), ["file"]);
}
