//! The plug-in for `PyTorch`, called by C++ programs on the emulated driver in the manner of
//! `PyTorch`.
//!
//! The shim is built in both ways: for any program, and with `PyTorch`'s headers, replaced here by
//! `tests/c_abi/torch/c10`.

use crate::common::{
    self, Link, WARNINGS, build, emulated, library_path, printed, root, scratch, skip, succeed, without_errors,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the folder of the programs.
fn sources() -> PathBuf {
    root().join("tests/c_abi/torch")
}

/// Builds the shim without and with `PyTorch`. Prints a line and returns `None` without a compiler.
fn shims() -> Option<&'static [PathBuf; 2]> {
    static BUILT: OnceLock<Option<[PathBuf; 2]>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = scratch("torch");
        let shim = |name: &str, flags: &[&OsStr]| {
            let library = folder.join(name);
            let mut command = Command::new("c++");
            command.args(["-std=c++17", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs"]).args(WARNINGS);
            command.args(flags).arg("-I").arg(root().join("include")).arg(root().join("ffi/torch/shim.cpp"));
            command.arg("-L").arg(library_path()).arg("-lcachalot").arg("-o").arg(&library);
            command.arg(format!("-Wl,-rpath,{}", library_path().display()));
            succeed(&mut command).map(|_| library)
        };
        let stand_in = sources();
        let with_torch = ["-DCACHALOT_WITH_TORCH", "-I"].map(OsStr::new).into_iter().chain([stand_in.as_os_str()]);
        Some([shim("libcachalot_torch.so", &[])?, shim("libcachalot_torch_c10.so", &with_torch.collect::<Vec<_>>())?])
    });
    if built.is_none() {
        skip("the plug-in for PyTorch", "no C++ compiler");
    }
    built.as_ref()
}

/// Prepares a program on the emulated driver, without settings in the environment.
fn program(name: &str, shim: &Path) -> Option<Command> {
    let include = sources();
    let flags = [OsStr::new("-I"), include.as_os_str()];
    let built = build(&sources().join(name).with_extension("cpp"), Link::Shared, &flags)?;
    let mut command = emulated(&built);
    for variable in ["CACHALOT_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
        command.env_remove(variable);
    }
    command.arg(shim);
    Some(command)
}

#[test]
fn requests_are_served_on_every_device_and_thread() {
    let Some([shim, _]) = shims() else { return };
    let Some(mut command) = program("requests", shim) else { return };
    let output = common::output(&mut command).expect("it was just built");
    assert!(output.status.success(), "{}", printed(&output));
    // Two frees of unknown pointers give one line.
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("cachalot: a block cannot be freed: invalid device pointer"), "{said}");
    for (variable, value) in [("CACHALOT_EMU_SEED", "3"), ("CACHALOT_EMU_DELAY_US", "100")] {
        succeed(command.env(variable, value));
    }
}

#[test]
fn out_of_memory_arrives_as_an_exception_with_the_report() {
    let Some(shims) = shims() else { return };
    for (shim, kind) in shims.iter().zip(["plain", "torch"]) {
        let Some(mut command) = program("running_out", shim) else { return };
        succeed(command.arg(kind).env("CACHALOT_EMU_MEMORY", (1_u64 << 30).to_string()));
    }
}

#[test]
fn the_recorder_is_on_from_the_start_unless_the_environment_says_otherwise() {
    let Some([shim, _]) = shims() else { return };
    let folder = scratch("torch").join("recorder");
    let run = |options: &str| {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).expect("the test's folder can be written");
        let mut command = program("recorder", shim)?;
        command.env("CACHALOT_EMU_MEMORY", (1_u64 << 30).to_string());
        command.env("CACHALOT_RECORDER", format!("folder:{}{options}", folder.display())).env("TMPDIR", &folder);
        let output = common::output(&mut command).expect("it was just built");
        assert!(output.status.success(), "{}", printed(&output));
        let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        Some((std::fs::read_dir(&folder).expect("a folder").count(), texts))
    };
    // Two of the requests find no memory. That of a forked child has no recorder.
    for (options, files) in [("", 2), (",files:1", 1), (",events:0", 0), (",stacks:False", 2)] {
        let Some((written, [told, said])) = run(options) else { return };
        assert_eq!(written, files, "{options}: {told}{said}");
        assert_eq!(told.matches("The latest events are in ").count(), files, "{options}: {told}");
        assert_eq!(said.matches("ran out of memory: the latest events are in ").count(), files, "{options}: {said}");
        assert_eq!(said.lines().count(), files, "{options}: {said}");
    }
    let Some((0, [told, said])) = run("/missing") else { panic!("there is no such folder") };
    assert!(!told.contains("latest events") && said.matches("could not be written").count() == 2, "{told}{said}");
    // A mistake does not keep the program from its allocator, nor do stacks without Python.
    for (options, mistake) in [(",size:3", "no option of the recorder"), (",stacks:True", "no Python of version 3.9")] {
        let Some((_, [_, said])) = run(options) else { return };
        assert!(said.contains(mistake), "{said}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn graphs_and_pools_are_those_that_the_filters_name() {
    let Some([shim, _]) = shims() else { return };
    let Some(mut command) = program("pools", shim) else { return };
    succeed(&mut command);
    for (variable, value) in [("CACHALOT_EMU_SEED", "5"), ("CACHALOT_EMU_DELAY_US", "300")] {
        succeed(command.env(variable, value));
    }
}

#[test]
fn events_segments_and_earlier_states_are_as_they_happened() {
    let Some([shim, _]) = shims() else { return };
    let Some(mut command) = program("inspection", shim) else { return };
    succeed(&mut command);
    without_errors(&command);
}

#[test]
fn a_forked_child_and_the_end_of_the_process_do_no_harm() {
    let Some([shim, _]) = shims() else { return };
    let Some(mut command) = program("lifetime", shim) else { return };
    for teardown in ["polite", "crash"] {
        succeed(command.env("CACHALOT_EMU_TEARDOWN", teardown).env("CACHALOT_EMU_FORK", "crash"));
    }
    let output = common::output(command.arg("--late").env("CACHALOT_EMU_TEARDOWN", "polite")).expect("it ran before");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", printed(&output));
}

#[test]
fn a_block_of_pages_is_used_by_two_processes() {
    let Some([shim, _]) = shims() else { return };
    for config in ["expandable_segments:True", "policy:stitched"] {
        let Some(mut command) = program("sharing", shim) else { return };
        let output = common::output(command.arg(config)).expect("it was just built");
        assert!(output.status.success(), "{config}: {}", printed(&output));
        let said = String::from_utf8_lossy(&output.stdout);
        match said.trim().strip_prefix("skipped: ") {
            Some(why) => skip("pages shared between processes", why),
            None => assert_eq!(said, "shared\n"),
        }
    }
}

#[test]
fn no_program_touches_memory_that_it_should_not() {
    let Some([shim, with_torch]) = shims() else { return };
    for (name, shim, argument) in [
        ("requests", shim, ""),
        ("running_out", with_torch, "torch"),
        ("pools", shim, ""),
        ("lifetime", shim, "--late"),
    ] {
        let Some(mut command) = program(name, shim) else { return };
        command.env("CACHALOT_EMU_MEMORY", (1_u64 << 30).to_string());
        without_errors(if argument.is_empty() { &command } else { command.arg(argument) });
    }
}

#[test]
fn an_allocator_of_ones_own_is_thirty_lines() {
    let library = scratch("torch").join("torch_minimal.so");
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-fPIC", "-shared"]).args(WARNINGS).arg("-I").arg(root().join("include"));
    command.arg(root().join("examples/torch/torch_minimal.cpp")).arg("-o").arg(&library);
    command.arg("-L").arg(library_path()).arg("-lcachalot").arg(format!("-Wl,-rpath,{}", library_path().display()));
    if succeed(&mut command).is_none() {
        return skip("an allocator for PyTorch of one's own", "no C++ compiler");
    }
    let Some(mut command) = program("minimal", &library) else { return };
    succeed(&mut command);
    without_errors(&command);
}

/// Runs the program with environment variables and the program's own settings. Returns the printed
/// lines and the standard error.
fn settings(variables: &[(&str, &str)], own: &[&str]) -> Option<(Vec<String>, String)> {
    let [shim, _] = shims()?;
    let mut command = program("settings", shim)?;
    let output = common::output(command.envs(variables.iter().copied()).args(own))?;
    assert!(output.status.success(), "{}", printed(&output));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&output.stdout).lines().map(str::to_owned).collect(), text(&output.stderr)))
}

const OWN: &str = "CACHALOT_CONF";
const NEW: &str = "PYTORCH_ALLOC_CONF";
const OLD: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Environment variables, the program's own settings, and the expected active settings.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);

#[test]
fn settings_come_from_the_first_place_that_has_any() {
    let split = |mib: u32| format!("max_split_size_mb:{mib}");
    let (a, b, c, d) = (split(32), split(48), split(64), split(80));
    let cases: &[Case<'_>] = &[
        (&[], &[], "policy:caching"),
        (&[(OLD, &a)], &[], &a),
        (&[(OLD, &a), (NEW, &b)], &[], &b),
        (&[(OLD, &a), (NEW, &b), (OWN, &c)], &[], &c),
        (&[(OLD, &a), (NEW, &b), (OWN, &c)], &[&d], &d),
        // Settings of several places are not combined: a single place counts.
        (&[(OLD, &a), (OWN, "expandable_segments:True")], &[], "expandable_segments:True"),
        (&[(OLD, &a), (OWN, "")], &[], "policy:caching"),
        (&[(OLD, &a)], &["policy:bfc"], "policy:bfc"),
        // Keys of PyTorch itself and newer keys are ignored in PyTorch's variables.
        (&[(OLD, "backend:cudaMallocAsync")], &[], "policy:caching"),
        (&[(NEW, "pinned_use_background_threads:True,of_2030:[1:2,3:4],max_split_size_mb:32")], &[], &a),
    ];
    for (variables, own, expected) in cases {
        let Some((printed, said)) = settings(variables, own) else { return };
        assert_eq!((printed, said), (vec![format!("active: {expected}")], String::new()), "{variables:?} {own:?}");
    }
    // A key without effect is no failure.
    let kept = "pinned_use_background_threads:True";
    let Some((printed, said)) = settings(&[(OWN, kept)], &[]) else { return };
    assert_eq!(printed, [format!("active: {kept}")]);
    let note = "pinned_use_background_threads has no effect: pinned memory has the settings of other memory";
    assert_eq!(said, format!("cachalot: {note}\n"));
}

#[test]
fn wrong_settings_are_told_and_nothing_works_with_them() {
    let wrong = [(OWN, "max_split_size_mb:1"), (OWN, "of_2030:7"), (OWN, "policy"), (OLD, "max_split_size_mb:1")];
    for (variable, value) in wrong {
        let Some((printed, said)) = settings(&[(variable, value)], &[]) else { return };
        // The init hook and both requests fail; one line says so, and another after the settings
        // were chosen anew.
        let [first, second, last] = &printed[..] else { panic!("{printed:?}") };
        let why = first.strip_prefix("failed: ").expect("the text of the exception");
        assert!(first == second && why.starts_with(&format!("{variable}: ")), "{printed:?}");
        assert_eq!(said, format!("cachalot: no allocator can be made: {why}\n").repeat(2));
        assert_eq!(last, "active: max_split_size_mb:40");
    }
    let Some((printed, said)) = settings(&[(OWN, "max_split_size_mb:32")], &["max_split_size_mb:1"]) else { return };
    assert!(printed[0].starts_with("refused: config: max_split_size_mb does not take `1`"), "{printed:?}");
    assert_eq!((&printed[1][..], &said[..]), ("active: max_split_size_mb:32", ""));
}
