//! `cachalot park`, `wake`, `status` and `top` over a process that stands in for a program with
//! memory.

use crate::common::{Finished, finish, folder};
use crate::schemas::validator;
use cachalot_run::control::{
    ControlRefusal, Controlled, RefusalKind, Remainder, RemainderKind, Server, SleepState, Status, Transfer,
};
use cachalot_run::group::Uuid;
use cachalot_run::ledger::{Kind, Ledger};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const FOLDER: &str = "CACHALOT_RUN_FOLDER";

/// The name of the process under test.
const NAME: &str = "CACHALOT_TEST_NAME";

const GIB: u64 = 1 << 30;

/// A program with 12 GiB of memory, which is parked at once.
struct Program {
    parks: AtomicU64,
    wakes: AtomicU64,
}

impl Controlled for Program {
    fn park(&self, timeout: Duration) -> Result<Status, ControlRefusal> {
        if timeout < Duration::from_millis(50) {
            return Err(ControlRefusal::new(RefusalKind::NeverIdle, "a kernel still runs after the time"));
        }
        self.parks.fetch_add(u64::from(self.parks.load(SeqCst) == self.wakes.load(SeqCst)), SeqCst);
        Ok(self.status())
    }

    fn wake(&self, _: Duration) -> Result<Status, ControlRefusal> {
        self.wakes.store(self.parks.load(SeqCst), SeqCst);
        Ok(self.status())
    }

    fn snapshot(&self, file: &Path) -> Result<Status, ControlRefusal> {
        fs::write(file, "")
            .map(|()| self.status())
            .map_err(|error| ControlRefusal::new(RefusalKind::NotWritten, error.to_string()))
    }

    fn trim(&self, keep: u64) -> Result<Status, ControlRefusal> {
        Ok(Status { given_bytes: Some(12 * GIB - keep), device_bytes: keep, ..self.status() })
    }

    fn status(&self) -> Status {
        let (parks, wakes) = (self.parks.load(SeqCst), self.wakes.load(SeqCst));
        let is_parked = parks > wakes;
        let done = |count: u64| (count > 0).then_some(Transfer { ms: 412, bytes: 12 * GIB });
        Status {
            state: if is_parked { SleepState::Parked } else { SleepState::Awake },
            group: Some("team".to_owned()),
            idle_ms: Some(300_000),
            parked_bytes: if is_parked { 12 * GIB } else { 0 },
            device_bytes: if is_parked { 0 } else { 12 * GIB },
            remaining: vec![Remainder { what: RemainderKind::Context, bytes: 518 << 20 }],
            devices: vec![Uuid([9; 16]).to_string()],
            last_park: done(parks),
            last_wake: done(wakes),
            parks,
            wakes,
            ..Status::default()
        }
    }
}

/// The process under test: answers until the standard input ends.
#[test]
#[ignore = "runs in a process of other tests"]
fn program() {
    let Ok(name) = std::env::var(NAME) else { return };
    let program: &'static Program = Box::leak(Box::new(Program { parks: AtomicU64::new(0), wakes: AtomicU64::new(0) }));
    let _server = Server::start(Some(&name), program).expect("a server");
    let shared = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let ledger = Ledger::in_folder(Some(&shared), Uuid([9; 16]), false).expect("a book");
    ledger.book(Kind::Segment, 12 * GIB, 1);
    println!("ready");
    std::io::stdin().lines().for_each(drop);
}

struct Started(Child);

impl Started {
    fn new(shared: &Path, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the tests"));
        command.args(["--exact", "sleep::program", "--ignored", "--nocapture"]);
        command.env(FOLDER, shared).env(NAME, name).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the tests run");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let ready = lines.map_while(Result::ok).find(|line| line.contains("ready"));
        assert!(ready.is_some(), "the program has ended");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates a folder that only the user may look into.
#[track_caller]
fn shared(place: &Path) -> PathBuf {
    let folder = place.join("shared");
    fs::create_dir(&folder).expect("a new folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("the test's own");
    folder
}

fn cachalot(shared: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    // Without the system's programs, and so without nvidia-smi.
    finish(command.args(arguments).env(FOLDER, shared).env("PATH", "").env("COLUMNS", "100"))
}

/// Returns the output as words with a space between them.
fn words(finished: &Finished) -> String {
    finished.output.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the object of `--json`, which fits the schema.
#[track_caller]
fn object(finished: &Finished) -> serde_json::Value {
    let mut lines = finished.json();
    assert_eq!(lines.len(), 1, "{}", finished.errors);
    let faults: Vec<_> = validator("sleep").iter_errors(&lines[0]).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(lines[0]["schema"], 1);
    lines.remove(0)
}

#[test]
fn a_process_is_parked_and_woken_by_its_name() {
    let shared = shared(&folder("named"));
    let started = Started::new(&shared, "server");
    let parked = cachalot(&shared, &["park", "server"]);
    assert_eq!((parked.status, parked.errors.as_str()), (0, ""));
    let head = format!("server ({}, ", started.pid());
    let text = words(&parked);
    assert!(text.starts_with(&head) && text.contains(") is parked, and idle for 5.0 min."), "{text}");
    assert!(text.contains("12.00 GiB are parked, and 0 B of served memory are on the device"), "{text}");
    assert!(text.ends_with("A park leaves on the device 518.00 MiB context."), "{text}");
    let again = object(&cachalot(&shared, &["park", &started.pid().to_string(), "--json"]));
    assert_eq!((&again["processes"][0]["parks"], &again["failures"]), (&1.into(), &serde_json::json!([])));
    let told = words(&cachalot(&shared, &["status"]));
    assert!(told.contains("parked 5.0 min 12.00 GiB 0 B 518.00 MiB"), "{told}");
    let woken = object(&cachalot(&shared, &["wake", "server", "--timeout=5s", "--json"]));
    let woken = &woken["processes"][0];
    assert_eq!((&woken["state"], &woken["wakes"]), (&"awake".into(), &1.into()));
    assert_eq!(woken["last_wake"], serde_json::json!({"ms": 412, "bytes": 12 * GIB}));
}

#[test]
fn a_process_or_a_group_gives_memory_back_on_request() {
    let shared = shared(&folder("trimmed"));
    let (one, _two) = (Started::new(&shared, "one"), Started::new(&shared, "two"));
    let trimmed = cachalot(&shared, &["trim", "one", "--keep", "2GiB"]);
    assert_eq!((trimmed.status, trimmed.errors.as_str()), (0, ""));
    let text = words(&trimmed);
    let said = ") gave 10.00 GiB back to the driver, and holds 2.00 GiB of served memory.";
    assert!(text.starts_with(&format!("one ({}, ", one.pid())) && text.ends_with(said), "{text}");
    let all = object(&cachalot(&shared, &["trim", "--all", "team", "--json"]));
    let given: Vec<_> = all["processes"].as_array().expect("a list").iter().map(|told| &told["given_bytes"]).collect();
    assert_eq!(given, [12 * GIB; 2]);
    assert_eq!(cachalot(&shared, &["trim", "nobody"]).status, 2);
}

#[test]
fn a_refusal_is_1_with_its_reason_and_kind() {
    let shared = shared(&folder("refused"));
    let started = Started::new(&shared, "server");
    let refused = cachalot(&shared, &["park", "server", "--timeout", "10ms"]);
    assert_eq!((refused.status, refused.output.as_str()), (1, ""));
    assert_eq!(refused.errors, "a kernel still runs after the time\n");
    let refused = cachalot(&shared, &["park", "server", "--timeout", "10ms", "--json"]);
    assert_eq!(refused.status, 1);
    let failure = &object(&refused)["failures"][0];
    assert_eq!((&failure["pid"], &failure["kind"]), (&started.pid().into(), &"never_idle".into()));
}

#[test]
fn a_process_that_is_missing_or_shares_its_name_is_2() {
    let shared = shared(&folder("missing"));
    for arguments in [&["park", "server"][..], &["wake", "4711"], &["status", "server"]] {
        let missing = cachalot(&shared, arguments);
        assert_eq!((missing.status, missing.output.as_str()), (2, ""), "{arguments:?}");
        assert!(missing.errors.contains(&format!("`{}`", arguments[1])), "{}", missing.errors);
        assert_eq!(missing.errors.lines().count(), 1, "{}", missing.errors);
    }
    let (one, two) = (Started::new(&shared, "twin"), Started::new(&shared, "twin"));
    let several = cachalot(&shared, &["park", "twin"]);
    assert_eq!((several.status, several.output.as_str()), (2, ""));
    for started in [&one, &two] {
        assert!(several.errors.contains(&format!("twin ({})", started.pid())), "{}", several.errors);
    }
    for arguments in
        [&["park"][..], &["park", "a", "--timeout=soon"], &["wake", "a", "b"], &["park", "a", "--wide", "--json"]]
    {
        assert_eq!(cachalot(&shared, arguments).status, 2, "{arguments:?}");
    }
}

#[test]
fn all_processes_of_a_name_or_of_a_group_are_parked_and_woken_by_one_call() {
    let shared = shared(&folder("together"));
    let started: Vec<_> = ["one", "one", "two"].iter().map(|name| Started::new(&shared, name)).collect();
    let states = || -> Vec<String> {
        let told = object(&cachalot(&shared, &["status", "--json"]));
        let of = |pid: u32| told["processes"].as_array().and_then(|all| all.iter().find(|one| one["pid"] == pid));
        started
            .iter()
            .map(|one| of(one.pid()).expect("it is there")["state"].as_str().unwrap_or("").to_owned())
            .collect()
    };
    let calls = [
        (["park", "one"], ["parked", "parked", "awake"]),
        (["park", "team"], ["parked"; 3]),
        (["wake", "two"], ["parked", "parked", "awake"]),
        (["wake", "team"], ["awake"; 3]),
    ];
    for ([action, name], expected) in calls {
        let done = cachalot(&shared, &[action, "--all", name, "--json"]);
        assert_eq!(done.status, 0, "{}", done.errors);
        assert_eq!(states(), expected, "{action} {name}");
    }
    assert_eq!(cachalot(&shared, &["park", "--all", "nobody"]).status, 2);
    let refused = cachalot(&shared, &["park", "--all", "team", "--timeout", "10ms"]);
    assert_eq!((refused.status, refused.errors.lines().count()), (1, 3), "each says why");
}

#[test]
fn all_processes_are_a_table_and_none_is_a_sentence() {
    let shared = shared(&folder("table"));
    let none = cachalot(&shared, &["status"]);
    assert_eq!((none.status, none.output.as_str()), (0, "No process of this user can be parked.\n"));
    assert_eq!(object(&cachalot(&shared, &["status", "--json"]))["processes"], serde_json::json!([]));
    let (one, two) = (Started::new(&shared, "one"), Started::new(&shared, "two"));
    assert_eq!(cachalot(&shared, &["park", "two"]).status, 0);
    let table = cachalot(&shared, &["status"]);
    let text = words(&table);
    assert!(text.contains(&format!("one ({}", one.pid())) && text.contains(&format!("two ({}", two.pid())), "{text}");
    assert!(text.contains("awake 5.0 min 0 B 12.00 GiB") && text.contains("parked 5.0 min 12.00 GiB 0 B"), "{text}");
    let widest = table.output.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{}", table.output);
    let wide = words(&cachalot(&shared, &["status", "--wide"]));
    assert!(wide.contains("team") && wide.contains("12.00 GiB in 412.0 ms"), "{wide}");
    let all = object(&cachalot(&shared, &["status", "--json"]));
    assert_eq!(all["processes"].as_array().map(Vec::len), Some(2));
    let alone = words(&cachalot(&shared, &["status", "one"]));
    assert!(alone.contains("is awake for 0 µs, and idle for 5.0 min"), "{alone}");
}

#[test]
fn a_stopped_process_is_a_failure_of_its_own() {
    let shared = shared(&folder("stopped"));
    let (stopped, running) = (Started::new(&shared, "stopped"), Started::new(&shared, "running"));
    let child = Pid::from_child(&stopped.0);
    kill_process(child, Signal::STOP).expect("the process runs");
    // A signal arrives after the call that sends it.
    let (_, status) = waitpid(Some(child), WaitOptions::UNTRACED).expect("it is a child").expect("the call waits");
    assert!(status.stopped(), "{status:?}");
    let all = cachalot(&shared, &["status", "--json"]);
    let object = object(&all);
    assert_eq!((all.status, &object["processes"][0]["pid"]), (0, &running.pid().into()));
    assert_eq!(object["failures"][0]["kind"], serde_json::Value::Null);
    assert!(all.errors.contains("is the process stopped?"), "{}", all.errors);
    assert_eq!(cachalot(&shared, &["status", &stopped.pid().to_string()]).status, 1);
}

#[test]
fn top_shows_the_states_of_processes_that_answer() {
    let shared = shared(&folder("top"));
    let started = Started::new(&shared, "server");
    let text = words(&cachalot(&shared, &["top", "--once"]));
    assert!(text.contains(&format!("({}), awake 12.00 GiB", started.pid())), "{text}");
    assert_eq!(cachalot(&shared, &["park", "server"]).status, 0);
    let text = words(&cachalot(&shared, &["top", "--once"]));
    assert!(text.contains(&format!("({}), parked 12.00 GiB 12.00 GiB", started.pid())), "{text}");
    let lines = cachalot(&shared, &["top", "--json"]).json();
    let faults: Vec<_> = validator("top").iter_errors(&lines[0]).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let sleep = &lines[0]["devices"][0]["processes"][0]["sleep"];
    assert_eq!(sleep, &serde_json::json!({"state": "parked", "parked_bytes": 12 * GIB, "idle_ms": 300_000}));
}

#[test]
fn the_schema_and_the_page_have_all_kinds() {
    let read =
        |name: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)).expect(name);
    let schema: serde_json::Value = serde_json::from_str(&read("sleep.schema.json")).expect("JSON");
    let mut kinds: Vec<_> = RefusalKind::ALL.into_iter().map(|kind| serde_json::json!(kind)).collect();
    let page = read("sleep.md");
    for kind in kinds.iter().filter_map(serde_json::Value::as_str).filter(|&kind| kind != "other") {
        assert!(page.contains(&format!("\n| `{kind}` |")), "{kind}");
    }
    kinds.push(serde_json::Value::Null);
    let failures = &schema["properties"]["failures"]["items"]["properties"];
    assert_eq!(failures["kind"]["enum"], serde_json::json!(kinds));
    let remaining = &schema["$defs"]["status"]["properties"]["remaining"]["items"]["properties"];
    assert_eq!(remaining["what"]["enum"], serde_json::json!(RemainderKind::ALL));
}

#[test]
fn names_of_run_are_checked() {
    for (name, reason) in
        [("", "1 to 64"), (&"a".repeat(65), "1 to 64"), ("4711", "id of a process"), ("a\u{1b}[2J", "control")]
    {
        let refused = crate::common::cachalot(["run", "--name", name, "--", "true"]);
        assert_eq!(refused.status, 2);
        assert!(refused.errors.contains(reason), "{}", refused.errors);
    }
}
