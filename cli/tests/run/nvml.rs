//! NVML inside of a program under a limit: with `--nvml` it says the limit.

use super::groups::Place;
use super::{clean, compile, output_of, run};
use crate::common::{finish, folder};
use cachalot_emulated_driver::install::install_nvml;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The NVML of a test, beside the driver.
fn nvml(place: &Place) -> PathBuf {
    install_nvml(&place.folder.join("driver")).expect("the emulated NVML is built")
}

/// Returns the command with options, for programs of the test.
fn limited(place: &Place, options: &[&str]) -> Command {
    let mut command = run(&place.folder, &place.folder.join("driver/libcuda.so.1"));
    command.args(options).arg("--").env("CACHALOT_RUN_FOLDER", place.shared());
    command.env("CACHALOT_EMU_PROCESSES", place.folder.join("processes"));
    command
}

const LIMIT: [&str; 3] = ["--nvml", "--limit", "100MiB"];

/// What the program prints under [`LIMIT`].
const WITHIN: &str = "100 0 100 | 100 0 100 | 1024\n100 60 40 | 100 60 40 | 1024";

#[test]
fn nvml_says_the_limit_by_each_way_to_open_it() {
    let place = Place::new(folder("nvml_opened"));
    let nvml = nvml(&place);
    let program = compile("told.c", &place.folder, &[]);
    let versioned = nvml.with_file_name("libnvidia-ml.so.580.159.04");
    std::os::unix::fs::symlink(&nvml, &versioned).expect("a link");
    for name in [Path::new("libnvidia-ml.so.1"), Path::new("libnvidia-ml.so"), &nvml, &versioned] {
        assert_eq!(output_of(limited(&place, &LIMIT).arg(&program).arg(name)), WITHIN, "{}", name.display());
    }
    // Each of the two ways into a program is enough.
    for variable in ["LD_LIBRARY_PATH", "LD_PRELOAD"] {
        let script = format!("unset {variable}; exec \"$0\" libnvidia-ml.so.1");
        let mut command = limited(&place, &LIMIT);
        assert_eq!(output_of(command.args(["sh", "-c", &script]).arg(&program)), WITHIN, "without {variable}");
    }
    let missing = finish(limited(&place, &LIMIT).arg(&program).arg(place.folder.join("none/libnvidia-ml.so.1")));
    assert!(missing.status == 1 && missing.output.contains("cannot open"), "{}", missing.output);
}

#[test]
fn nvml_says_the_limit_to_a_program_that_links_it_and_to_python() {
    let place = Place::new(folder("nvml_linked"));
    let nvml = nvml(&place);
    let find = format!("-L{}", nvml.parent().expect("a folder").display());
    let linked = compile("told.c", &place.folder, &["-DLINKED", "-Wl,--no-as-needed", &find, "-lnvidia-ml"]);
    assert_eq!(output_of(limited(&place, &LIMIT).arg(&linked)), WITHIN);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/told.py");
    let python = |name: &Path| output_of(limited(&place, &LIMIT).arg("python3").arg(&script).arg(name));
    assert_eq!([python(Path::new("libnvidia-ml.so.1")), python(&nvml)], ["100 0 100", "100 0 100"]);
}

#[test]
fn nvml_says_what_a_group_holds_before_and_after_the_program_joins() {
    let place = Place::new(folder("nvml_group"));
    nvml(&place);
    let program = compile("told.c", &place.folder, &[]);
    let mut other = place.start(&["--group", "team", "--limit", "200MiB", "--low", "50MiB"]);
    assert_eq!(other.ask("a 30"), "0");
    let mut command = limited(&place, &["--nvml", "--group", "team"]);
    // 50 MiB are kept for the other.
    let expected = "200 50 150 | 200 50 150 | 1024\n200 110 90 | 200 110 90 | 1024";
    assert_eq!(output_of(command.arg(&program).arg("libnvidia-ml.so.1")), expected);
    other.end();
}

#[test]
fn without_the_option_or_a_limit_nvml_says_the_device() {
    let place = Place::new(folder("nvml_plain"));
    let nvml = nvml(&place);
    let program = compile("told.c", &place.folder, &[]);
    let find = format!("-L{}", nvml.parent().expect("a folder").display());
    let mut alone = Command::new(&program);
    clean(&mut alone).arg(&nvml).env("LD_LIBRARY_PATH", nvml.parent().expect("a folder"));
    let device = output_of(alone.env("CACHALOT_EMU_PROCESSES", place.folder.join("processes")));
    assert!(device.starts_with("1024 0 1024 |"), "{device}");
    for options in [&["--nvml"][..], &LIMIT[1..]] {
        let of = |program: &mut Command| output_of(program).lines().next().map(str::to_owned);
        let first = device.lines().next().map(str::to_owned);
        assert_eq!(of(limited(&place, options).arg(&program).arg(&nvml)), first, "{options:?}");
    }
    let linked = compile("told.c", &place.folder, &["-DLINKED", "-Wl,--no-as-needed", &find, "-lnvidia-ml"]);
    let mut command = limited(&place, &LIMIT[1..]);
    let told = output_of(command.arg(&linked).env("LD_LIBRARY_PATH", nvml.parent().expect("a folder")));
    assert!(told.starts_with("1024 0 1024 |"), "{told}");
}

#[test]
fn a_system_without_nvml_is_told() {
    let place = Place::new(folder("nvml_missing"));
    let refused = finish(limited(&place, &LIMIT).arg("true"));
    if Path::new("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").exists() {
        println!("not checked: the system has NVML");
        return;
    }
    assert_eq!(refused.status, 2);
    assert!(refused.errors.contains("--nvml: no libnvidia-ml.so.1 beside "), "{}", refused.errors);
}
