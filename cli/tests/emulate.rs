//! Tests of `cachalot emulate` on a C program that is linked with the emulated libraries.

use crate::common::{Finished, finish, folder, write};
use cachalot_emulated_driver::install::{install, install_nvml, install_runtime};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the program, with more flags.
fn compile(place: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let libraries = place.join("libraries");
    install(&libraries, &[]).expect("the emulated driver is built");
    install_runtime(&libraries).expect("the emulated runtime is built");
    install_nvml(&libraries).expect("the emulated NVML is built");
    let program = place.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulate/linked.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).args(flags);
    command.arg("-L").arg(libraries).args(["-lcuda", "-lcudart", "-lnvidia-ml"]);
    assert!(command.status().expect("a C compiler").success(), "{command:?}");
    program
}

/// Returns `cachalot emulate` with options, without settings from outside.
fn emulate(place: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CACHALOT_EMU_") {
            command.env_remove(name);
        }
    }
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "CACHALOT_LIBCUDA", "CACHALOT_RUN", "CACHALOT_HOST_KERNELS"] {
        command.env_remove(name);
    }
    command.env("XDG_CACHE_HOME", place).env("CACHALOT_RECORDER", "files:0").arg("emulate").args(options).arg("--");
    // The folder for root comes before that of the user.
    command.env("CACHALOT_EMU_PROCESSES", place.join("processes"));
    command
}

/// Runs the program, and returns what it printed. Nothing is on the standard error.
#[track_caller]
fn printed(command: &mut Command, status: i32) -> String {
    let Finished { status: found, output, errors } = finish(command);
    assert_eq!((found, errors.as_str()), (status, ""), "{command:?}: {output}");
    output.trim_end().to_owned()
}

#[test]
fn options_and_settings_make_the_devices_and_the_status_is_the_programs() {
    let place = folder("devices");
    let program = compile(&place, "linked", &[]);
    let device = |command: &mut Command| printed(command.arg(&program).arg("device"), 7);
    assert_eq!(device(&mut emulate(&place, &[])), "2 devices of 1024 MiB, 9.0");
    let options = ["--devices", "3", "--memory", "2GiB", "--capability", "8.6"];
    assert_eq!(device(&mut emulate(&place, &options)), "3 devices of 2048 MiB, 8.6");
    let mut set = emulate(&place, &["--memory", "512MiB", "--capability", "8.9"]);
    set.env("CACHALOT_EMU_DEVICES", "5").env("CACHALOT_EMU_ATTRIBUTES", r#"{"75":7}"#);
    // Names a driver for the library, not for the program.
    set.env("CACHALOT_LIBCUDA", "/nowhere/libcuda.so.1");
    assert_eq!(device(&mut set), "5 devices of 512 MiB, 8.9");
}

#[test]
fn the_runtime_and_nvml_are_those_of_the_emulated_devices() {
    let place = folder("libraries");
    let program = compile(&place, "linked", &[]);
    assert_eq!(printed(emulate(&place, &[]).arg(&program).arg("runtime"), 0), "0 0 32");
    let described = write(&place, "machine.json", r#"{"devices":[{"name":"A100"}]}"#);
    let options = ["--nvml", described.to_str().expect("UTF-8")];
    assert_eq!(printed(emulate(&place, &options).arg(&program).arg("nvml"), 0), "0 0 0 0 A100");
}

#[test]
fn nvml_lists_the_memory_of_another_process_while_it_lives() {
    let place = folder("processes");
    let program = compile(&place, "linked", &[]);
    let look = format!("{} nvml", program.display());
    let seen = printed(emulate(&place, &[]).arg(&program).args(["hold", &look]), 0);
    assert_eq!(seen, "0\n0 0 0 0 Emulated device 0 64 MiB");
    assert_eq!(printed(emulate(&place, &[]).arg(&program).arg("nvml"), 0), "0 0 0 0 Emulated device 0");
}

#[test]
fn a_kernel_fails_or_is_skipped_as_the_options_say() {
    let place = folder("kernels");
    let program = compile(&place, "linked", &[]);
    assert_eq!(printed(emulate(&place, &[]).arg(&program).arg("kernel"), 0), "200 -1 -1");
    assert_eq!(printed(emulate(&place, &["--skip-kernels"]).arg(&program).arg("kernel"), 0), "0 0 0");
}

#[test]
fn a_signal_that_ends_the_program_ends_the_command() {
    let place = folder("signal");
    let program = compile(&place, "linked", &[]);
    let ended = emulate(&place, &[]).arg(&program).arg("end").status().expect("the command");
    assert_eq!(ended.signal(), Some(15));
}

#[test]
fn a_program_runs_under_cachalot_run_on_emulated_devices() {
    let place = folder("run");
    let program = compile(&place, "linked", &[]);
    let record = place.join("trace.csv");
    let mut command = emulate(&place, &[]);
    command.arg(env!("CARGO_BIN_EXE_cachalot")).arg("run").arg("--record").arg(&record).arg("--").arg(&program);
    assert_eq!(printed(command.args(["hold", "true"]), 0), "0");
    let trace = std::fs::read_to_string(record).expect("a trace");
    assert!(trace.contains("67108864"), "{trace}");
}

#[test]
fn what_cannot_run_is_said_first_in_a_line_and_the_program_starts() {
    let place = folder("cannot");
    let says = |name: &str, flags: &[&str], options: &[&str]| {
        let program = compile(&place, name, flags);
        let finished = finish(emulate(&place, options).arg(&program).arg("runtime"));
        assert_eq!((finished.status, finished.output.as_str()), (0, "0 0 32\n"), "{}", finished.errors);
        assert!(finished.errors.lines().count() <= 1, "{}", finished.errors);
        finished.errors
    };
    let with_kernels = says("kernels", &["-DWITH_KERNELS"], &[]);
    assert!(with_kernels.contains("kernels: ") && with_kernels.contains("--skip-kernels"), "{with_kernels}");
    assert_eq!(says("skipped", &["-DWITH_KERNELS"], &["--skip-kernels"]), "");
    assert_eq!(says("plain", &[], &[]), "");
}

#[test]
fn what_cannot_be_started_has_the_status_of_the_shell_and_a_line() {
    let place = folder("refused");
    let text = write(&place, "text", "no program");
    std::fs::set_permissions(&text, Permissions::from_mode(0o644)).expect("a mode");
    let source = write(&place, "static.c", "int main(void) { return 0; }\n");
    let alone = place.join("static");
    assert!(Command::new("cc").args(["-static", "-o"]).args([&alone, &source]).status().expect("cc").success());
    let missing = place.join("missing.json");
    let missing = missing.to_str().expect("UTF-8");
    for (options, program, status, reason) in [
        (&[][..], Path::new("/nowhere/program"), 127, "no such program"),
        (&[], &text, 126, "not executable"),
        (&[], &alone, 2, "linked statically"),
        (&["--nvml", missing], Path::new("/bin/true"), 2, "--nvml: "),
        (&["--kernels", missing], Path::new("/bin/true"), 2, "--kernels: "),
    ] {
        let finished = finish(emulate(&place, options).arg(program));
        assert_eq!((finished.status, finished.output.as_str()), (status, ""), "{}", finished.errors);
        assert!(finished.errors.contains(reason) && finished.errors.lines().count() == 1, "{}", finished.errors);
    }
    for options in [["--capability", "nine"], ["--devices", "65"], ["--memory", "much"]] {
        let finished = finish(emulate(&place, &options).arg("true"));
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{options:?}");
    }
}

/// Returns the scripts of the first workflow of the page, in order.
fn scripts() -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/without_a_gpu.md"));
    let page = page.expect("the page");
    let (_, workflow) = page.split_once("```yaml\n").expect("a workflow");
    let (workflow, _) = workflow.split_once("```").expect("its end");
    let lines: Vec<&str> = workflow.lines().collect();
    let begins = lines.iter().enumerate().filter(|(_, line)| line.trim_start() == "run: |");
    let script = |(at, line): (usize, &&str)| {
        let indented = format!("{}  ", &line[..line.len() - line.trim_start().len()]);
        let its = lines[at + 1..].iter().map_while(|line| line.strip_prefix(&indented));
        its.collect::<Vec<_>>().join("\n")
    };
    begins.map(script).collect()
}

/// Runs a script as GitHub Actions does, and returns the status.
fn act(place: &Path, script: &str) -> i32 {
    let path = format!("{}:{}", place.join("bin").display(), std::env::var("PATH").expect("a path"));
    let mut command = Command::new("bash");
    command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]).current_dir(place.join("repository"));
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "CACHALOT_LIBCUDA"] {
        command.env_remove(name);
    }
    command.env("PATH", path).env("XDG_CACHE_HOME", place).env("GITHUB_BASE_REF", "main");
    let finished = finish(command.env("CACHALOT_RECORDER", "files:0"));
    println!("{}{}", finished.output, finished.errors);
    finished.status
}

/// The commands that a forge runs before the scripts: a repository with a program and a change.
const CHECKOUT: &str = r#"
commit() { git add . && git -c user.name=a -c user.email=a@example.com commit -qm "$1"; }
git init -q
printf 'program: source\n\tcp source program && chmod +x program\n' > Makefile
cat > source <<'EOF'
#!/usr/bin/env python3
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, block = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(block), 256 << 20) == 0
EOF
commit before
git update-ref refs/remotes/origin/main HEAD
sed -i "s/256/$MEBIBYTES/" source
commit after
"#;

#[test]
fn the_workflow_of_the_page_fails_a_change_that_needs_more_memory() {
    let scripts = scripts();
    let [record, compare] = scripts.as_slice() else { panic!("{scripts:?}") };
    for (mebibytes, status) in [("300", 0), ("400", 1)] {
        let place = folder(&format!("workflow_{mebibytes}"));
        for name in ["bin", "repository"] {
            std::fs::create_dir(place.join(name)).expect("a folder");
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cachalot"), place.join("bin/cachalot")).expect("a link");
        assert_eq!(act(&place, &CHECKOUT.replace("$MEBIBYTES", mebibytes)), 0);
        assert_eq!(act(&place, record), 0);
        assert_eq!(act(&place, compare), status, "{mebibytes}");
    }
}
