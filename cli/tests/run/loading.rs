//! The ways in which programs load the driver: each leads to the library in front, and unreplaced
//! functions are still the driver's.

use super::{clean, compile, driver, output_of, run};
use crate::common::{finish, folder};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The letters of a caught program: a replaced function, another function and the resolver, and the
/// resolver's answers for the first two.
const CAUGHT: &str = "SRS SR";

/// The letters of a program without us.
const PLAIN: &str = "RRR RR";

/// Compares a program under `cachalot run` with the program alone, which finds the driver by the
/// library path.
#[track_caller]
fn caught(name: &str, make: impl FnOnce(&Path, &Path) -> (PathBuf, Vec<String>)) {
    let place = folder(name);
    let driver = driver(&place, &[]);
    let (program, arguments) = make(&place, &driver);
    let mut plain = Command::new(&program);
    clean(&mut plain).args(&arguments).env("LD_LIBRARY_PATH", driver.parent().expect("a folder"));
    assert_eq!(output_of(&mut plain), PLAIN, "{name}, alone");
    assert_eq!(output_of(run(&place, &driver).arg("--").arg(&program).args(&arguments)), CAUGHT, "{name}");
}

/// Returns a maker of the program `ways.c` with arguments.
fn ways(arguments: &'static [&'static str]) -> impl FnOnce(&Path, &Path) -> (PathBuf, Vec<String>) {
    move |place, _| (compile("ways.c", place, &[]), arguments.iter().map(ToString::to_string).collect())
}

#[test]
fn the_driver_opened_by_its_name_is_ours() {
    caught("name", ways(&["open", "libcuda.so.1"]));
}

#[test]
fn the_driver_opened_without_a_version_is_ours() {
    caught("unversioned", ways(&["open", "libcuda.so"]));
}

#[test]
fn the_driver_opened_with_deepbind_is_ours() {
    caught("deepbind", ways(&["deepbind"]));
}

#[test]
fn the_driver_opened_in_a_new_namespace_is_ours() {
    caught("namespace", ways(&["namespace"]));
}

#[test]
fn the_driver_opened_by_an_absolute_path_is_ours() {
    caught("absolute", |place, driver| {
        (compile("ways.c", place, &[]), vec!["open".to_owned(), driver.display().to_string()])
    });
    caught("absolute_unversioned", |place, driver| {
        (
            compile("ways.c", place, &[]),
            vec!["open".to_owned(), driver.with_file_name("libcuda.so").display().to_string()],
        )
    });
}

#[test]
fn the_driver_opened_by_the_path_of_its_own_version_is_ours() {
    caught("version", |place, driver| {
        let versioned = driver.with_file_name("libcuda.so.580.159.04");
        std::fs::rename(driver, &versioned).expect("the driver moves");
        std::os::unix::fs::symlink("libcuda.so.580.159.04", driver).expect("a link");
        (compile("ways.c", place, &[]), vec!["open".to_owned(), versioned.display().to_string()])
    });
}

#[test]
fn another_driver_opened_by_a_path_with_its_version_is_ours() {
    caught("other_version", |place, driver| {
        let other = place.join("other");
        std::fs::create_dir(&other).expect("a new folder");
        let other = other.join("libcuda.so.555.42");
        std::fs::copy(driver, &other).expect("another driver");
        (compile("ways.c", place, &[]), vec!["open".to_owned(), other.display().to_string()])
    });
}

#[test]
fn the_driver_of_a_program_that_is_started_by_the_loader_is_ours() {
    let place = folder("loader");
    let (driver, program) = (driver(&place, &[]), compile("ways.c", &place, &[]));
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    let mut command = run(&place, &driver);
    command.arg("--").arg(loader).args(["--library-path", "/lib"]).arg(program).arg("open");
    assert_eq!(output_of(&mut command), CAUGHT);
}

#[test]
fn the_driver_in_the_program_before_any_load_is_ours() {
    let place = folder("default");
    let driver = driver(&place, &[]);
    let program = compile("ways.c", &place, &[]);
    let mut plain = Command::new(&program);
    // Alone the program has no driver at all, since nothing was loaded.
    assert_eq!(output_of(clean(&mut plain).arg("default")), "--- !!");
    assert_eq!(output_of(run(&place, &driver).arg("--").arg(program).arg("default")), CAUGHT);
}

#[test]
fn the_driver_that_a_program_links_is_ours() {
    caught("linked", |place, driver| {
        let folder = format!("-L{}", driver.parent().expect("a folder").display());
        let program = compile("ways.c", place, &["-Wl,--no-as-needed", &folder, "-lcuda"]);
        (program, vec!["default".to_owned()])
    });
}

#[test]
fn the_driver_in_a_folder_of_the_program_file_is_ours() {
    // An old tag, which the loader follows before the library path.
    caught("rpath", |place, driver| {
        let folder = driver.parent().expect("a folder").display();
        let (find, search) = (format!("-L{folder}"), format!("-Wl,--disable-new-dtags,-rpath,{folder}"));
        let program = compile("ways.c", place, &["-Wl,--no-as-needed", &find, &search, "-lcuda"]);
        (program, vec!["default".to_owned()])
    });
}

#[test]
fn the_driver_opened_by_ctypes_is_ours() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/ways.py").display().to_string();
    caught("ctypes", |_, _| ("python3".into(), vec![script.clone(), "libcuda.so.1".to_owned()]));
    caught("ctypes_absolute", |_, driver| ("python3".into(), vec![script.clone(), driver.display().to_string()]));
}

#[test]
fn a_library_that_answers_for_the_loader_counts_what_is_served() {
    let place = folder("other_interposer");
    let driver = driver(&place, &[]);
    let program = compile("hold.c", &place, &["-pthread"]);
    let other = compile("interposer.c", &place, &["-shared", "-fPIC"]);
    let mut command = run(&place, &driver);
    command.args(["--limit", "10MiB", "--", "sh", "-c", "echo 'a 20\na 4\nt\nq' | \"$0\""]).arg(program);
    let finished = finish(command.env("LD_PRELOAD", other));
    assert_eq!((finished.status, finished.output.as_str()), (0, "2\n0\n10\n"), "{}", finished.errors);
    assert!(finished.errors.contains("counted 24 MiB"), "{}", finished.errors);
}

#[test]
fn folders_of_the_library_that_opens_another_one_are_searched() {
    let place = folder("runpath");
    let driver = driver(&place, &[]);
    let parts = place.join("parts");
    std::fs::create_dir(&parts).expect("a new folder");
    let found = compile("opens.c", &place, &["-shared", "-fPIC"]);
    std::fs::rename(found, parts.join("libfound.so")).expect("a name");
    // A program with the folder in its file, and a library with it, which a program without it
    // loads.
    let search = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/parts";
    let program = compile("opens.c", &place, &[search]);
    assert_eq!(output_of(run(&place, &driver).arg("--").arg(&program).arg("libfound.so")), "found");
    std::fs::rename(program, place.join("libopens.so")).expect("a name");
    let library = compile("opens.c", &place, &["-shared", "-fPIC", search]);
    std::fs::rename(library, place.join("libopens.so")).expect("a name");
    let program = compile("opens.c", &place, &[]);
    let mut command = run(&place, &driver);
    command.arg("--").arg(program).arg("libfound.so").arg(place.join("libopens.so"));
    assert_eq!(output_of(&mut command), "found");
}

#[test]
fn a_path_without_a_driver_fails_as_it_does_alone() {
    let place = folder("nowhere");
    let driver = driver(&place, &[]);
    let program = compile("ways.c", &place, &[]);
    let path = place.join("none/libcuda.so.1").display().to_string();
    let alone = finish(clean(Command::new(&program).arg("open")).arg(&path));
    let served = finish(run(&place, &driver).arg("--").arg(&program).arg("open").arg(&path));
    assert_eq!((served.status, served.output), (1, alone.output.clone()));
    assert!(alone.output.contains("cannot open shared object file"), "{}", alone.output);
}

#[test]
fn each_of_two_ways_alone_is_enough_for_a_program_by_name() {
    let place = folder("alone");
    let driver = driver(&place, &[]);
    let program = compile("ways.c", &place, &[]);
    for variable in ["LD_LIBRARY_PATH", "LD_PRELOAD"] {
        let script = format!("unset {variable}; exec \"$0\" open libcuda.so.1");
        let mut command = run(&place, &driver);
        command.args(["--", "sh", "-c", &script]).arg(&program);
        assert_eq!(output_of(&mut command), CAUGHT, "without {variable}");
    }
}
