//! A process parked, woken and asked by clients of all sorts.

mod processes;
mod protocol;
mod sockets;

use super::client::{AskError, Sleeper, sleepers_in};
use super::{Action, ControlRefusal, Controlled, RefusalKind, Request, Server, SleepState, Status, Transfer};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);

/// A process with 5 bytes of memory.
#[derive(Default)]
struct Fake {
    /// Whether a park or a wake waits until the test goes on.
    held: AtomicBool,
    parked: AtomicBool,
    parks: AtomicU64,
    wakes: AtomicU64,
    working: AtomicBool,
    /// Whether the next park panics.
    panics: AtomicBool,
    /// Whether two tasks ran at the same time.
    overlapped: AtomicBool,
}

impl Fake {
    fn work(&self, parked: bool, count: &AtomicU64) -> Status {
        if self.working.swap(true, SeqCst) {
            self.overlapped.store(true, SeqCst);
        }
        while self.held.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        self.parked.store(parked, SeqCst);
        count.fetch_add(1, SeqCst);
        self.working.store(false, SeqCst);
        self.status()
    }
}

impl Controlled for Fake {
    fn park(&self, timeout: Duration) -> Result<Status, ControlRefusal> {
        assert!(!self.panics.swap(false, SeqCst), "a park panics on purpose");
        if timeout.is_zero() {
            return Err(ControlRefusal::new(RefusalKind::NeverIdle, "stream 7 has work"));
        }
        Ok(self.work(true, &self.parks))
    }

    fn wake(&self, _: Duration) -> Result<Status, ControlRefusal> {
        Ok(self.work(false, &self.wakes))
    }

    fn snapshot(&self, file: &Path) -> Result<Status, ControlRefusal> {
        Err(ControlRefusal::new(RefusalKind::NotRecorded, file.display().to_string()))
    }

    fn trim(&self, keep: u64) -> Result<Status, ControlRefusal> {
        Ok(Status { given_bytes: Some(100 - keep), ..self.status() })
    }

    fn status(&self) -> Status {
        let parked = self.parked.load(SeqCst);
        let state = match (self.working.load(SeqCst), parked) {
            (false, false) => SleepState::Awake,
            (true, false) => SleepState::Parking,
            (false, true) => SleepState::Parked,
            (true, true) => SleepState::Waking,
        };
        let (parks, wakes) = (self.parks.load(SeqCst), self.wakes.load(SeqCst));
        let last_park = (parks > 0).then_some(Transfer { ms: 1, bytes: 5 });
        // The server knows better.
        let name = "another".to_owned();
        Status { state, parked_bytes: 5 * u64::from(parked), parks, wakes, last_park, name, ..Status::default() }
    }
}

/// A process that answers in its own folder.
struct Setup {
    dir: TempDir,
    fake: &'static Fake,
    server: Server,
}

impl Setup {
    fn new() -> Self {
        Self::with_patience(super::server::PATIENCE)
    }

    fn with_patience(patience: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fake: &'static Fake = Box::leak(Box::default());
        let server = Server::start_with(dir.path(), Some("server"), fake, patience).unwrap();
        Self { dir, fake, server }
    }

    fn sleeper(&self) -> Sleeper {
        sleepers_in(self.dir.path()).unwrap().remove(0)
    }

    fn ask(&self, action: Action, ms: u64) -> Result<Status, AskError> {
        self.sleeper().ask(&Request::new(action, Duration::from_millis(ms)))
    }

    /// Returns the only file in the folder of sockets.
    fn file(&self) -> PathBuf {
        let entry = fs::read_dir(self.dir.path().join("control")).unwrap().next().unwrap();
        entry.unwrap().path()
    }

    /// Connects as a program without the client does.
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.file()).unwrap();
        stream.set_read_timeout(Some(5 * SECOND)).unwrap();
        stream
    }

    /// Sends bytes, and returns the answer up to the end of the stream.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        answer_on(&mut stream)
    }
}

/// Reads the answer on a connection. The server may have closed the connection with bytes unread.
fn answer_on(stream: &mut UnixStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Waits until something holds.
#[track_caller]
fn wait_for(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < 10 * SECOND, "it never holds");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the refusal of an answer.
#[track_caller]
fn refusal(answer: Result<Status, AskError>) -> ControlRefusal {
    match answer {
        Err(AskError::Refused(refusal)) => refusal,
        other => panic!("no refusal: {other:?}"),
    }
}

#[test]
fn a_process_is_parked_asked_and_woken() {
    let setup = Setup::new();
    let parked = setup.ask(Action::Park, 60_000).unwrap();
    assert_eq!((parked.state, parked.parked_bytes, parked.parks), (SleepState::Parked, 5, 1));
    assert_eq!((parked.pid, parked.name.as_str()), (std::process::id(), "server"));
    assert!(!parked.program.is_empty());
    assert_eq!(setup.sleeper().status().unwrap(), parked);
    let woken = setup.ask(Action::Wake, 60_000).unwrap();
    assert_eq!((woken.state, woken.parked_bytes, woken.wakes), (SleepState::Awake, 0, 1));
}

#[test]
fn a_refusal_keeps_its_kind_and_its_text() {
    let setup = Setup::new();
    let refused = refusal(setup.ask(Action::Park, 0));
    assert_eq!((refused.kind, refused.text.as_str()), (RefusalKind::NeverIdle, "stream 7 has work"));
}

#[test]
fn a_process_without_a_name_has_its_programs() {
    let dir = tempfile::tempdir().unwrap();
    let fake: &'static Fake = Box::leak(Box::default());
    let _server = Server::start_in(dir.path(), None, fake).unwrap();
    let status = sleepers_in(dir.path()).unwrap()[0].status().unwrap();
    assert_eq!(status.name, status.program);
}

#[test]
fn a_panic_is_a_refusal_and_the_next_request_is_served() {
    let setup = Setup::new();
    setup.fake.panics.store(true, SeqCst);
    let refused = refusal(setup.ask(Action::Park, 60_000));
    assert_eq!(refused.kind, RefusalKind::Internal);
    assert!(refused.text.contains("(server)"), "{refused}");
    assert_eq!(setup.ask(Action::Park, 60_000).unwrap().parks, 1);
}

#[test]
fn a_state_is_told_during_a_long_park_and_short_requests_are_busy() {
    let setup = Setup::new();
    setup.fake.held.store(true, SeqCst);
    thread::scope(|scope| {
        let long = scope.spawn(|| setup.ask(Action::Park, 60_000));
        wait_for(|| setup.fake.working.load(SeqCst));
        let mut short = setup.connect();
        short.write_all(b"{\"request\":\"wake\",\"timeout_ms\":200}\n").unwrap();
        // The server takes connections in their order, so the wake waits from here on.
        assert_eq!(setup.sleeper().status().unwrap().state, SleepState::Parking);
        thread::sleep(Duration::from_millis(250));
        setup.fake.held.store(false, SeqCst);
        let answer = answer_on(&mut short);
        assert!(answer.contains("\"kind\":\"busy\"") && answer.contains("200 ms"), "{answer}");
        assert_eq!(long.join().unwrap().unwrap().state, SleepState::Parked);
    });
    assert_eq!(setup.fake.wakes.load(SeqCst), 0);
}

#[test]
fn a_client_that_gave_up_has_no_effect() {
    let setup = Setup::new();
    setup.fake.held.store(true, SeqCst);
    thread::scope(|scope| {
        let long = scope.spawn(|| setup.ask(Action::Park, 60_000));
        wait_for(|| setup.fake.working.load(SeqCst));
        setup.connect().write_all(b"{\"request\":\"wake\"}\n").unwrap();
        assert_eq!(setup.sleeper().status().unwrap().state, SleepState::Parking);
        setup.fake.held.store(false, SeqCst);
        long.join().unwrap().unwrap();
    });
    assert_eq!(setup.ask(Action::Park, 60_000).unwrap().wakes, 0);
}

#[test]
fn hanging_clients_hold_no_one_up() {
    let setup = Setup::with_patience(600 * SECOND);
    let hanging: Vec<_> = (0..40).map(|_| setup.connect()).collect();
    assert_eq!(setup.sleeper().status().unwrap().state, SleepState::Awake);
    assert_eq!(setup.ask(Action::Park, 60_000).unwrap().state, SleepState::Parked);
    drop(hanging);
}

#[test]
fn more_hanging_clients_than_the_server_takes_are_sent_away() {
    let setup = Setup::with_patience(SECOND / 5);
    let mut hanging: Vec<_> = (0..100).map(|_| setup.connect()).collect();
    hanging[0].write_all(b"{\"request\":").unwrap();
    wait_for(|| setup.sleeper().status().is_ok());
    let answer = answer_on(&mut hanging[0]);
    assert!(answer.contains("bad_request") && answer.contains("no whole line"), "{answer}");
}

#[test]
fn many_clients_at_once_are_all_answered() {
    let setup = Setup::new();
    thread::scope(|scope| {
        for client in 0..24 {
            let setup = &setup;
            scope.spawn(move || {
                for round in 0..8 {
                    let action = [Action::Park, Action::Wake, Action::Status][(client + round) % 3];
                    let status = setup.ask(action, 60_000).unwrap();
                    assert_eq!(status.pid, std::process::id());
                }
            });
        }
    });
    let fake = setup.fake;
    assert_eq!((fake.parks.load(SeqCst), fake.wakes.load(SeqCst)), (64, 64));
    assert!(!fake.overlapped.load(SeqCst));
}

#[test]
fn the_end_of_a_stream_ends_a_request() {
    let setup = Setup::new();
    let mut stream = setup.connect();
    stream.write_all(b"{\"request\":\"status\"}").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = answer_on(&mut stream);
    assert!(answer.starts_with("{\"schema\":1,\"ok\":{\"pid\":") && answer.ends_with("}}\n"), "{answer}");
    // A wait for a turn is no reason to pass over a stream that ended in this way.
    let mut stream = setup.connect();
    stream.write_all(b"{\"request\":\"park\"}").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(answer_on(&mut stream).contains("\"parked\""));
}

#[test]
fn mistaken_requests_are_refused_by_name() {
    let setup = Setup::new();
    let long = [b' '; super::protocol::MOST_REQUEST + 100];
    for (sent, named) in [
        (&b"{\"request\":\"park\",\"wait\":1}\n"[..], "`wait`"),
        (b"{\"request\":\"sleep\"}\n", "`sleep`"),
        (b"{\"request\":\"park\",\"timeout_ms\":-1}\n", "`-1`"),
        (b"{\"request\":\"park\",\"timeout_ms\":86400001}\n", "86400001"),
        (b"{\"request\":\"park\",\"schema\":2}\n", "schema 2"),
        (b"{\"schema\":1}\n", "`request`"),
        (b"park\n", "no request"),
        (b"\n", "no request"),
        (b"\xff\xfe\n", "no request"),
        (&long, "at most 4096 bytes"),
    ] {
        let answer = setup.send(sent);
        assert!(answer.contains("\"kind\":\"bad_request\"") && answer.ends_with("\"}}\n"), "{answer}");
        assert!(answer.contains(named) && answer.contains("(server)"), "{named}: {answer}");
    }
    assert_eq!((setup.fake.parks.load(SeqCst), setup.ask(Action::Park, 60_000).unwrap().parks), (0, 1));
}

/// The threads of the library, by the names that the system cuts off after 15 characters.
#[test]
fn no_signal_of_the_program_reaches_the_answering_threads() {
    let setup = Setup::new();
    setup.ask(Action::Park, 60_000).unwrap();
    let mut names = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread of another test may end meanwhile.
        let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
        let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
        if !["cachalot-contro", "cachalot-park"].contains(&name.trim_end()) {
            continue;
        }
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        for signal in [libc::SIGTERM, libc::SIGPIPE, libc::SIGCHLD, libc::SIGALRM, libc::SIGUSR1] {
            assert_ne!(blocked & (1 << (signal - 1)), 0, "{name}: signal {signal}");
        }
        names.push(name.trim_end().to_owned());
    }
    assert!(
        ["cachalot-contro", "cachalot-park"].iter().all(|name| names.iter().any(|found| found == name)),
        "{names:?}"
    );
}

#[test]
fn the_socket_is_private_and_goes_with_the_server() {
    let setup = Setup::new();
    let file = setup.file();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    let second = Server::start_in(setup.dir.path(), None, setup.fake).unwrap_err();
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(setup.sleeper().status().unwrap().name, "server", "a refused second server harms no first");
    let sleeper = setup.sleeper();
    drop(setup.server);
    assert!(!file.exists());
    let silent = sleeper.status().unwrap_err().to_string();
    assert!(silent.ends_with("has ended"), "{silent}");
    let _again = Server::start_in(setup.dir.path(), None, setup.fake).unwrap();
}
