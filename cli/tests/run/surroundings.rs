//! Programs in odd surroundings: closed pipes, limits of files, missing threads and folders, small
//! stacks, other auditors of memory. The library says a line or nothing, and the program goes on.

use super::{clean, compile, driver, output_of, run};
use crate::common::{folder, write};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A place for a test: a driver, the program `hold.c`, and a folder of shared files.
struct Place {
    folder: PathBuf,
    driver: PathBuf,
    program: PathBuf,
}

impl Place {
    #[track_caller]
    fn new(folder: PathBuf) -> Self {
        fs::create_dir(folder.join("shared")).expect("a new folder");
        fs::set_permissions(folder.join("shared"), fs::Permissions::from_mode(0o700)).expect("the test's own");
        Self { driver: driver(&folder, &[]), program: compile("hold.c", &folder, &["-pthread"]), folder }
    }

    /// Returns `cachalot run` with options, without the program.
    fn run(&self, options: &[&str]) -> Command {
        let mut command = run(&self.folder, &self.driver);
        command.env("CACHALOT_RUN_FOLDER", self.shared()).args(options).arg("--");
        command
    }

    fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }
}

/// Runs a command with lines for its standard input.
fn with_lines(command: &mut Command, lines: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command runs");
    let (mut stdin, lines) = (child.stdin.take().expect("a pipe"), lines.to_owned());
    // Beside the reading of the answers, which may fill a pipe. A program that has ended reads
    // nothing.
    let writer = std::thread::spawn(move || drop(stdin.write_all(lines.as_bytes())));
    let output = child.wait_with_output().expect("an end");
    writer.join().expect("no panic");
    output
}

/// Returns the output of a program that ended by itself, and without a fault.
#[track_caller]
fn answers(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_line_for_a_reader_who_has_gone_ends_no_program() {
    let place = Place::new(folder("gone"));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = place.run(&["--limit", "10MiB"]);
    let output = with_lines(command.arg(&place.program).stderr(writer), "a 20\na 4\nq\n");
    assert_eq!(answers(&output), "2 0");
}

#[test]
fn files_beyond_the_limit_of_the_process_end_no_program() {
    let place = Place::new(folder("file_limit"));
    let record = place.folder.join("record.csv").display().to_string();
    let book = place.folder.join("book.json").display().to_string();
    let mut command = place.run(&["--ledger-file", &book, "--ledger-stacks", "--record", &record]);
    // The book is published when the context starts, before the limit. The record becomes too long.
    command.arg(&place.program).stderr(Stdio::piped()).env("CACHALOT_EMU_POISON", "off");
    let output = with_lines(&mut command, &format!("l 20\n{}", "a 1\nf\n".repeat(4000)));
    assert_eq!(answers(&output), "0 ".repeat(8001).trim_end());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the record ends here: File too large"), "{errors}");
}

#[test]
fn a_process_without_its_first_thread_has_a_group_a_book_and_a_socket() {
    let place = Place::new(folder("first_thread"));
    let mut command = place.run(&["--group", "one", "--limit", "100MiB", "--parkable"]);
    let output = with_lines(command.arg(&place.program).arg("thread").stderr(Stdio::piped()), "a 20\na 90\nm\nq\n");
    assert_eq!(answers(&output), "0 2 80 100");
    let errors = String::from_utf8_lossy(&output.stderr);
    // The other line says that no NVML reports the context.
    assert_eq!(errors.lines().filter(|line| !line.contains("what a context takes")).count(), 1, "{errors}");
    assert!(errors.contains("more do not fit: group `one` holds"), "{errors}");
}

#[test]
fn threads_with_small_stacks_start_and_no_tunable_of_the_loader_changes() {
    let place = Place::new(folder("stacks"));
    let program = compile("stacks.c", &place.folder, &["-pthread"]);
    assert_eq!(output_of(place.run(&[]).arg(&program)), "0 0 0 0");
    assert_eq!(output_of(place.run(&[]).args(["sh", "-c", "\"$0\""]).arg(&program)), "0 0 0 0");
    let script = "echo \"[$GLIBC_TUNABLES$LD_AUDIT]\"";
    let own = |value: &str| output_of(place.run(&[]).args(["sh", "-c", script]).env("GLIBC_TUNABLES", value));
    assert_eq!(own(""), "[]");
    assert_eq!(own("glibc.malloc.check=0"), "[glibc.malloc.check=0]");
}

#[test]
fn a_child_with_many_thread_local_variables_starts_and_is_served() {
    let place = Place::new(folder("thread_locals"));
    let flags = ["-shared", "-fPIC", "-Wl,-soname,liblocals.so"];
    let library = compile("locals.c", &place.folder, &flags);
    fs::rename(library, place.folder.join("liblocals.so")).expect("a name");
    let (find, search) = (format!("-L{}", place.folder.display()), format!("-Wl,-rpath,{}", place.folder.display()));
    let program = compile("hold.c", &place.folder, &["-pthread", "-Wl,--no-as-needed", &find, &search, "-llocals"]);
    for shells in [&[][..], &["sh", "-c", "\"$0\""], &["sh", "-c", "sh -c '\"$0\"' \"$0\""]] {
        let mut command = place.run(&["--limit", "10MiB"]);
        command.args(shells).arg(&program).stderr(Stdio::piped());
        assert_eq!(answers(&with_lines(&mut command, "a 20\na 4\nq\n")), "2 0", "{shells:?}");
    }
}

#[test]
fn a_compiler_of_rust_runs_as_a_child() {
    let place = Place::new(folder("rustc"));
    let compiler = option_env!("RUSTC").unwrap_or("rustc");
    let mut command = place.run(&[]);
    command.args(["sh", "-c", "\"$0\" --version"]).arg(compiler);
    assert!(output_of(&mut command).starts_with("rustc "));
}

#[test]
fn a_program_for_musl_runs_as_a_child() {
    let place = Place::new(folder("musl"));
    let source =
        write(&place.folder, "alive.c", "#include <stdio.h>\nint main(void) { return puts(\"alive\") < 0; }\n");
    let program = place.folder.join("alive");
    let made = Command::new("musl-gcc").arg("-o").arg(&program).arg(source).output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("not checked: there is no musl-gcc");
        return;
    }
    let mut command = place.run(&["--limit", "10MiB"]);
    command.args(["sh", "-c", "\"$0\""]).arg(program).stderr(Stdio::piped());
    let output = command.output().expect("the command runs");
    assert_eq!((answers(&output).as_str(), String::from_utf8_lossy(&output.stderr).as_ref()), ("alive", ""));
}

#[test]
fn a_java_program_with_children_goes_on() {
    let place = Place::new(folder("java"));
    if !Command::new("javac").arg("-version").output().is_ok_and(|answer| answer.status.success()) {
        println!("not checked: there is no javac");
        return;
    }
    let text = "public class Child { public static void main(String[] none) throws Exception {\n\
                System.out.println(new ProcessBuilder(\"/bin/true\").start().waitFor()); } }\n";
    let source = write(&place.folder, "Child.java", text);
    assert!(Command::new("javac").arg(source).status().expect("a compiler").success());
    let mut command = place.run(&[]);
    // A child that nobody waits for would be waited for without an end.
    command.args(["timeout", "60", "java", "-Xmx64m", "-cp"]).arg(&place.folder).arg("Child");
    assert_eq!(output_of(&mut command), "0");
}

#[test]
fn a_driver_that_loads_the_driver_gets_the_driver() {
    let mut place = Place::new(folder("loader"));
    let real = place.folder.join("real");
    fs::create_dir(&real).expect("a new folder");
    let real = real.join("libcuda.so.1.1");
    fs::rename(&place.driver, &real).expect("the driver moves");
    for (name, linked) in [("libcuda.so.1", None), ("libcuda.so.1.1", Some("libcuda.so.1"))] {
        let layout = place.folder.join(format!("layout-{name}"));
        fs::create_dir(&layout).expect("a new folder");
        let path = format!("-DDRIVER=\"{}\"", real.display());
        let built = compile("loader.c", &layout, &["-shared", "-fPIC", &path, "-Wl,-soname,libcuda.so.1"]);
        fs::rename(built, layout.join(name)).expect("a name");
        if let Some(link) = linked {
            std::os::unix::fs::symlink(name, layout.join(link)).expect("a link");
        }
        let mut plain = Command::new(&place.program);
        let plain = with_lines(clean(&mut plain).env("LD_LIBRARY_PATH", &layout).stderr(Stdio::piped()), "a 5\nq\n");
        place.driver = layout.join("libcuda.so.1");
        let served = with_lines(place.run(&[]).arg(&place.program).stderr(Stdio::piped()), "a 5\nq\n");
        assert_eq!((answers(&plain), answers(&served)), ("0".to_owned(), "0".to_owned()), "{name}");
    }
}

/// Returns the program with a sanitizer, or `None` where the system cannot make or run it.
fn sanitized(place: &Place, sanitizer: &str) -> Option<PathBuf> {
    let program = place.folder.join(sanitizer);
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/hold.c");
    let mut command = Command::new("cc");
    command.arg(format!("-fsanitize={sanitizer}")).arg("-o").arg(&program).arg(source).args(["-ldl", "-pthread"]);
    let is_made = command.output().is_ok_and(|made| made.status.success());
    let plain = clean(&mut Command::new(&program)).env("LD_LIBRARY_PATH", place.driver.parent()?).output();
    (is_made && plain.is_ok_and(|plain| plain.status.success())).then_some(program)
}

#[test]
fn programs_with_sanitizers_start_and_are_served_as_children_too() {
    let place = Place::new(folder("sanitizers"));
    for sanitizer in ["address", "thread", "undefined"] {
        let Some(program) = sanitized(&place, sanitizer) else {
            println!("not checked: no program with -fsanitize={sanitizer} runs here");
            continue;
        };
        for shell in [&[][..], &["sh", "-c", "\"$0\""]] {
            let mut command = place.run(&["--limit", "10MiB"]);
            command.args(shell).arg(&program).env("ASAN_OPTIONS", "detect_leaks=0").stderr(Stdio::piped());
            assert_eq!(answers(&with_lines(&mut command, "a 20\na 4\nq\n")), "2 0", "{sanitizer}");
        }
    }
}

#[test]
fn a_service_without_a_home_has_a_private_folder() {
    let place = Place::new(folder("service"));
    for variable in ["RUNTIME_DIRECTORY", "CACHE_DIRECTORY"] {
        let own = place.folder.join(variable);
        fs::create_dir(&own).expect("a new folder");
        let mut command = place.run(&[]);
        let found = ["sh", "-c", "echo $LD_LIBRARY_PATH"];
        command.args(found).env_clear().env("PATH", "/usr/bin:/bin").env(variable, &own);
        assert!(output_of(&mut command).starts_with(&own.join("cachalot/cachalot-run-").display().to_string()));
    }
}

#[test]
fn commands_with_one_home_and_equal_numbers_leave_a_whole_folder() {
    let place = Place::new(folder("one_home"));
    let commands: Vec<_> = (0..8)
        .map(|_| place.run(&[]).args(["sh", "-c", "ls \"$LD_LIBRARY_PATH\" | wc -l"]).stdout(Stdio::piped()).spawn())
        .collect();
    for command in commands {
        let output = command.expect("the command runs").wait_with_output().expect("an end");
        assert_eq!((output.status.success(), output.stdout.as_slice()), (true, &b"6\n"[..]));
    }
    let folders = fs::read_dir(place.folder.join("cachalot")).expect("a folder").flatten();
    let names: Vec<_> = folders.map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let kept = place.folder.join("cachalot").join(&names[0]);
    fs::remove_file(kept.join("libcuda.so.1")).expect("a file");
    assert_eq!(output_of(place.run(&[]).args(["sh", "-c", "ls \"$LD_LIBRARY_PATH\" | wc -l"])), "6");
}

#[test]
fn the_library_can_be_switched_off() {
    let place = Place::new(folder("off"));
    let script = ["sh", "-c", "echo \"[$LD_PRELOAD$CACHALOT_RUN]\""];
    assert_eq!(output_of(place.run(&[]).args(script).env("CACHALOT_DISABLE", "1")), "[]");
    assert_ne!(output_of(place.run(&[]).args(script).env("CACHALOT_DISABLE", "")), "[]");
}

#[test]
fn a_program_that_begins_again_without_random_addresses_has_a_share_and_a_socket() {
    let place = Place::new(folder("again"));
    let plain =
        |mut command: Command| command.args(["-R", "true"]).output().is_ok_and(|output| output.status.success());
    if !plain(Command::new("setarch")) {
        println!("not checked: setarch -R does not run here");
        return;
    }
    let mut command = place.run(&["--group", "one", "--limit", "100MiB", "--parkable"]);
    command.args(["setarch", "-R"]).arg(&place.program).stderr(Stdio::piped());
    let output = with_lines(&mut command, "a 60\nx\na 90\nq\n");
    assert_eq!(answers(&output), "0 0");
    let errors = String::from_utf8_lossy(&output.stderr);
    // No NVML reports the context here.
    assert!(errors.lines().all(|line| line.contains("what a context takes is not counted")), "{errors}");
}

#[test]
fn the_log_of_linked_programs_is_the_log_of_this_library_too() {
    let place = Place::new(folder("log"));
    let file = place.folder.join("log");
    let log = format!("error:{}", file.display());
    let mut command = place.run(&["--limit", "10MiB", "--name", "alpha"]);
    command.arg(&place.program).env("CACHALOT_LOG", log).stderr(Stdio::piped());
    let output = with_lines(&mut command, "a 20\nq\n");
    assert_eq!((answers(&output).as_str(), String::from_utf8_lossy(&output.stderr).as_ref()), ("2", ""));
    let text = fs::read_to_string(file).expect("a log");
    assert!(text.contains(" error: 20 MiB more do not fit"), "{text}");
    let mut command = place.run(&[]);
    command.arg("true").env("CACHALOT_LOG", "loud").stderr(Stdio::piped());
    let errors = String::from_utf8_lossy(&command.output().expect("the command runs").stderr).into_owned();
    assert!(errors.starts_with("CACHALOT_LOG: loud is no level"), "{errors}");
    let mut command = place.run(&["--limit", "10MiB"]);
    command.arg(&place.program).env("CACHALOT_LOG", "off").stderr(Stdio::piped());
    assert_eq!(String::from_utf8_lossy(&with_lines(&mut command, "a 20\nq\n").stderr), "");
}

#[test]
fn a_member_has_its_name_in_refusals() {
    let place = Place::new(folder("named"));
    let mut command = place.run(&["--group", "team", "--limit", "100MiB", "--name", "alpha"]);
    command.arg(&place.program).stderr(Stdio::piped());
    let output = with_lines(&mut command, "a 60\na 60\nq\n");
    assert_eq!(answers(&output), "0 2");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains(" (alpha)"), "{errors}");
}
