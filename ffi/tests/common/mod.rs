//! Shared by the tests: the built library, C and C++ programs over the library, and drivers for the
//! programs.

pub(crate) mod install;
pub(crate) mod subject;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// Compiler flags of every C and C++ program.
pub(crate) const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// System libraries needed by a program that links `libcachalot.a`. The consumer files have an
/// equal list, and a test compares both with the compiler's list.
pub(crate) const SYSTEM_LIBRARIES: [&str; 7] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository").to_path_buf()
}

/// Returns the text of `cachalot.h`, and of the headers that it includes.
pub(crate) fn c_headers() -> String {
    let include = root().join("include");
    let mut paths = sources("include/cachalot", "h");
    paths.insert(0, include.join("cachalot.h"));
    paths.iter().map(|path| std::fs::read_to_string(path).expect("a header is text")).collect()
}

/// Returns a separate folder of a test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the test's folder can be written");
    folder
}

/// Returns the folder of `libcachalot.a` and `libcachalot.so` in the test's build.
pub(crate) fn library_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a test has a path");
    let folder = program.parent().expect("it is in a folder").to_path_buf();
    assert!(folder.join("libcachalot.so").is_file() && folder.join("libcachalot.a").is_file(), "{}", folder.display());
    folder
}

/// Returns a folder with the shared library under the loader's name.
pub(crate) fn library_path() -> PathBuf {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    let link_both = || {
        let folder = scratch("library");
        let library = std::fs::canonicalize(library_folder().join("libcachalot.so")).expect("it exists");
        for name in ["libcachalot.so".to_owned(), soname()] {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&library, &link).expect("the test's folder can be written");
        }
        folder
    };
    LINKED.get_or_init(link_both).clone()
}

/// Returns the SONAME for the package's version.
pub(crate) fn soname() -> String {
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    if major == "0" { format!("libcachalot.so.0.{minor}") } else { format!("libcachalot.so.{major}") }
}

/// Prints in one line, once, which test is skipped. Writes to the stream directly, so that a
/// passing test also shows the line.
pub(crate) fn skip(what: &str, why: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("skipped: {what} ({why})");
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// The longest that a command may run. The longest of them, a build of the library by cmake, takes
/// two minutes on a slow machine.
const LONGEST: Duration = Duration::from_secs(600);

/// Runs a command. `None` if the program is missing.
///
/// A command that does not end within [`LONGEST`] is ended with its children by `SIGABRT`, of which
/// valgrind prints the stack, so that a hang is a failed test that names the program.
pub(crate) fn output(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        child => child.expect("the command starts"),
    };
    let group = format!("-{}", child.id());
    let (ended, end) = mpsc::channel::<()>();
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            if end.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-ABRT", "--", &group]).status();
            }
        });
        let output = child.wait_with_output();
        drop(ended);
        output
    });
    Some(output.expect("the command runs"))
}

/// Returns the output of a command.
pub(crate) fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command, expects success, and returns the standard output. `None` if the program is
/// missing.
pub(crate) fn succeed(command: &mut Command) -> Option<String> {
    let output = output(command)?;
    assert!(output.status.success(), "{command:?}\n{}\n{}", output.status, printed(&output));
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The way of linking a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    Shared,
    Static,
}

/// Returns a compiler with the header's folder and the flags of the standard, for the language of
/// the file extension.
pub(crate) fn compiler(source: &Path) -> Command {
    let is_c = source.extension() == Some(OsStr::new("c"));
    let mut command = Command::new(if is_c { "cc" } else { "c++" });
    command.arg(if is_c { "-std=c11" } else { "-std=c++17" }).arg("-g").args(WARNINGS);
    command.arg("-I").arg(root().join("include"));
    command
}

/// Builds a program over the library, once. Prints a line and returns `None` without a compiler.
pub(crate) fn build(source: &Path, link: Link, flags: &[&OsStr]) -> Option<PathBuf> {
    static BUILT: Mutex<BTreeMap<PathBuf, Arc<OnceLock<bool>>>> = Mutex::new(BTreeMap::new());
    let name = format!("{}-{link:?}", source.file_stem().expect("a name").display());
    let folder = source.parent().and_then(Path::file_name).expect("a source is in a folder");
    let program = scratch("programs").join(folder).join(name);
    // Only the tests of this program wait for its build.
    let built = BUILT.lock().unwrap_or_else(PoisonError::into_inner).entry(program.clone()).or_default().clone();
    built.get_or_init(|| compile(source, link, flags, &program)).then_some(program)
}

/// Compiles a program. Prints a line and returns false without a compiler.
fn compile(source: &Path, link: Link, flags: &[&OsStr], program: &Path) -> bool {
    let mut command = compiler(source);
    command.arg(source);
    match link {
        Link::Shared => {
            let library = library_path();
            command.arg("-L").arg(&library).arg("-lcachalot").arg(format!("-Wl,-rpath,{}", library.display()));
            command.args(["-ldl", "-lpthread", "-lm"]);
        }
        Link::Static => {
            command.arg(library_folder().join("libcachalot.a")).args(SYSTEM_LIBRARIES);
        }
    }
    std::fs::create_dir_all(program.parent().expect("a folder")).expect("the test's folder can be written");
    // Under another name first, because another process may be running the old program.
    let unfinished = program.with_extension(std::process::id().to_string());
    command.args(flags).arg("-o").arg(&unfinished);
    if succeed(&mut command).is_none() {
        skip(&source.display().to_string(), "no compiler");
        return false;
    }
    std::fs::rename(&unfinished, program).expect("the test's folder can be written");
    true
}

/// Returns the programs in a folder of the repository.
pub(crate) fn sources(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = root().join(folder);
    let entries = std::fs::read_dir(&folder).expect("the folder exists").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries.filter(|path| path.extension() == Some(OsStr::new(ending))).collect();
    found.sort();
    assert!(!found.is_empty(), "{}", folder.display());
    found
}

/// Returns the emulated driver, installed as `libcuda.so.1`.
pub(crate) fn emulated_driver() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // Each test program installs a separate driver, because several may run at a time, and
        // removes drivers of earlier programs.
        let drivers = scratch("drivers");
        for left in std::fs::read_dir(&drivers).expect("it was just made").flatten() {
            if !Path::new("/proc").join(left.file_name()).exists() {
                let _ = std::fs::remove_dir_all(left.path());
            }
        }
        let folder = drivers.join(std::process::id().to_string());
        cachalot_emulated_driver::install::install(&folder, &[]).expect("the emulated driver is built")
    })
}

/// Prepares a command on simulated devices.
pub(crate) fn simulated(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--simulated").env("CACHALOT_LIBCUDA", "/nonexistent");
    command
}

/// Prepares a command on the emulated driver, which reports leaks at the end.
pub(crate) fn emulated(program: &Path) -> Command {
    let mut command = Command::new(program);
    let driver = emulated_driver();
    command.env("CACHALOT_LIBCUDA", driver).env("LD_LIBRARY_PATH", driver.parent().expect("a folder"));
    // Requests that fail on purpose leave no files.
    command.env("CACHALOT_RECORDER", "files:0");
    command
}

/// Prepares a command under valgrind, which finds uses of freed memory, and leaks. `None` without
/// valgrind.
fn checked(command: &Command) -> Option<Command> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    if !*FOUND.get_or_init(|| output(Command::new("valgrind").arg("--version")).is_some()) {
        return None;
    }
    let mut checked = Command::new("valgrind");
    // Fair scheduling: otherwise a thread that waits for another thread may keep the other thread
    // from running.
    checked.args(["--quiet", "--leak-check=full", "--error-exitcode=99", "--num-callers=30", "--fair-sched=yes"]);
    checked.arg(format!("--suppressions={}", root().join("tests/c_abi/valgrind.supp").display()));
    checked.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => checked.env(name, value),
            None => checked.env_remove(name),
        };
    }
    Some(checked)
}

/// Runs a command under valgrind and expects no errors. Prints a line without valgrind.
pub(crate) fn without_errors(command: &Command) {
    match checked(command) {
        Some(mut checked) => drop(succeed(&mut checked)),
        None => skip("programs under valgrind", "no valgrind"),
    }
}

/// Runs a command with a leak report of the emulated driver, and expects no live objects at the
/// end.
pub(crate) fn without_leaks(command: &mut Command, name: &str) -> Option<String> {
    let file = scratch("leaks").join(format!("{name}-{}.json", std::process::id()));
    let said = succeed(command.env("CACHALOT_EMU_LEAKS", &file))?;
    let report = std::fs::read_to_string(&file).expect("the driver wrote its report");
    std::fs::remove_file(&file).expect("it was just read");
    let left: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
    for (what, count) in left.as_object().expect("an object of counts") {
        let nothing = match count {
            serde_json::Value::Array(counts) => counts.iter().all(|count| count == 0),
            count => count == 0,
        };
        assert!(nothing, "{name}: {what} are left: {report}");
    }
    Some(said)
}
