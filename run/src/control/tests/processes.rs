//! Processes that fork, are killed, are stopped, and bear the signals of broken pipes.

use super::{Fake, SECOND, Setup, wait_for};
use crate::control::client::{FindError, find_in, sleepers_in, statuses};
use crate::control::{Action, Request, Server};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The folder of the process under test.
const FOLDER: &str = "CACHALOT_TEST_CONTROL";

/// The name of the process under test.
const NAME: &str = "CACHALOT_TEST_NAME";

/// The process under test: answers until the standard input ends. A line `fork` makes a child that
/// outlives the process, and prints the child's id.
#[test]
#[ignore = "runs in a process of other tests"]
fn subject() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    // As in a program in C.
    // SAFETY: no handler is left out that anyone needs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let fake: &'static Fake = Box::leak(Box::default());
    let name = std::env::var(NAME).unwrap();
    let server = Server::start_in(Path::new(&folder), Some(&name), fake).unwrap();
    println!("ready");
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "fork");
        // SAFETY: the child calls the system only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child's wait after a minute at the latest.
            unsafe { libc::sleep(60) };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        println!("child {child}");
    }
    // The exit of a process runs no destructor of a value that lives as long as the process.
    std::mem::forget(server);
    std::process::exit(0);
}

struct Subject {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Subject {
    fn start(folder: &Path, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "control::tests::processes::subject";
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(FOLDER, folder).env(NAME, name).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut subject = Self { child, output };
        subject.wait_for_line("ready");
        subject
    }

    /// Returns the first line that has `part`.
    fn wait_for_line(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
            if line.contains(part) {
                return line;
            }
        }
    }

    fn pid(&self) -> libc::pid_t {
        self.child.id().cast_signed()
    }

    /// Has the process exit.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: libc::pid_t, signal: libc::c_int) {
    // SAFETY: the process is a child of the test, and was not waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn names_that_clash_are_listed_and_the_ids_still_tell_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Subject::start(dir.path(), "twin"), Subject::start(dir.path(), "twin"));
    let other = Subject::start(dir.path(), "other");
    let clash = find_in(dir.path(), "twin").unwrap_err();
    assert!(matches!(clash, FindError::Several { .. }));
    for pid in [one.pid(), two.pid()] {
        assert!(clash.to_string().contains(&format!("twin ({pid})")), "{clash}");
        assert_eq!(find_in(dir.path(), &pid.to_string()).unwrap().pid().cast_signed(), pid);
    }
    assert!(!clash.to_string().contains("other"), "{clash}");
    assert_eq!(find_in(dir.path(), "other").unwrap().pid().cast_signed(), other.pid());
    // The three are one program.
    let program = std::env::current_exe().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    assert!(matches!(find_in(dir.path(), &program), Err(FindError::Several { .. })));
    one.end();
    assert_eq!(find_in(dir.path(), "twin").unwrap().pid().cast_signed(), two.pid());
    two.end();
    other.end();
    assert_eq!(std::fs::read_dir(dir.path().join("control")).unwrap().count(), 0, "an exit removes the file");
}

#[test]
fn a_forked_child_answers_neither_for_its_living_nor_for_its_dead_parent() {
    let dir = tempfile::tempdir().unwrap();
    let mut subject = Subject::start(dir.path(), "parent");
    writeln!(subject.child.stdin.as_mut().unwrap(), "fork").unwrap();
    let child: libc::pid_t = subject.wait_for_line("child").trim().rsplit(' ').next().unwrap().parse().unwrap();
    let sleeper = find_in(dir.path(), "parent").unwrap();
    assert_eq!(sleeper.status().unwrap().pid.cast_signed(), subject.pid());
    signal(subject.pid(), libc::SIGSTOP);
    thread::scope(|scope| {
        let asked = scope.spawn(|| sleeper.ask(&Request::new(Action::Park, 10 * SECOND)));
        thread::sleep(Duration::from_millis(300));
        signal(subject.pid(), libc::SIGKILL);
        // The connection stays open in no process, but the socket stays open in the child.
        let begun = Instant::now();
        let silent = asked.join().unwrap().unwrap_err().to_string();
        assert!(silent.contains("has ended") && begun.elapsed() < 5 * SECOND, "{silent}");
    });
    wait_for(|| sleepers_in(dir.path()).unwrap().is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("control")).unwrap().count(), 0);
    signal(child, libc::SIGKILL);
}

#[test]
fn a_child_that_drops_the_server_leaves_the_parents_alone() {
    let setup = Setup::new();
    // SAFETY: the child drops the server, which does nothing in a child, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        drop(setup.server);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(setup.file().exists());
    assert_eq!(setup.sleeper().status().unwrap().name, "server");
}

#[test]
fn a_stopped_process_is_told_and_holds_up_no_list() {
    let dir = tempfile::tempdir().unwrap();
    let (stopped, running) = (Subject::start(dir.path(), "stopped"), Subject::start(dir.path(), "running"));
    signal(stopped.pid(), libc::SIGSTOP);
    let mut status = 0;
    // A signal arrives after the call that sends it. SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(stopped.pid(), &raw mut status, libc::WUNTRACED) }, stopped.pid());
    assert!(libc::WIFSTOPPED(status), "{status}");
    let sleepers = sleepers_in(dir.path()).unwrap();
    let begun = Instant::now();
    let told = statuses(&sleepers);
    assert!(begun.elapsed() < 4 * SECOND, "{:?}", begun.elapsed());
    for (sleeper, told) in sleepers.iter().zip(told) {
        match told {
            Ok(status) => assert_eq!((status.pid.cast_signed(), status.name.as_str()), (running.pid(), "running")),
            Err(error) => {
                assert_eq!(sleeper.pid().cast_signed(), stopped.pid());
                assert!(error.to_string().contains("is the process stopped?"), "{error}");
            }
        }
    }
    signal(stopped.pid(), libc::SIGCONT);
    assert_eq!(find_in(dir.path(), "stopped").unwrap().status().unwrap().name, "stopped");
}

#[test]
fn clients_that_go_at_once_break_no_pipe_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let subject = Subject::start(dir.path(), "sturdy");
    let file = std::fs::read_dir(dir.path().join("control")).unwrap().next().unwrap().unwrap().path();
    for round in 0..60 {
        let mut stream = std::os::unix::net::UnixStream::connect(&file).unwrap();
        let request = ["{\"request\":\"status\"}\n", "{\"request\":\"park\"}\n", "\n"][round % 3];
        stream.write_all(request.as_bytes()).unwrap();
    }
    let status = find_in(dir.path(), "sturdy").unwrap().status().unwrap();
    assert_eq!(status.pid.cast_signed(), subject.pid());
    subject.end();
}
