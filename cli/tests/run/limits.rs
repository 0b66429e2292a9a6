//! The view of a limited program: the free memory, and the lines about refusals.

use super::groups::Place;
use super::output_of;
use crate::common::{finish, folder, write};
use std::process::Command;

/// The lines about refusals.
fn refusals(errors: &str) -> Vec<&str> {
    errors.lines().filter(|line| line.contains("more do not fit")).collect()
}

#[test]
fn a_line_about_a_refusal_comes_with_a_refused_request_and_no_other() {
    let place = Place::new(folder("lines"));
    let mut one = place.start(&["--limit", "100MiB"]);
    // The cache goes back for the second request, which is served at the second try.
    assert_eq!([one.ask("a 60"), one.ask("f"), one.ask("a 90")], ["0", "0", "0"]);
    // Of refusals without a success between them one is told.
    assert_eq!([one.ask("a 50"), one.ask("a 40"), one.ask("a 4"), one.ask("a 30")], ["2", "2", "0", "2"]);
    let errors = one.end();
    let lines = refusals(&errors);
    assert!(lines.len() == 2 && lines[0].contains("50 MiB") && lines[1].contains("30 MiB"), "{errors}");
}

#[test]
fn a_refused_request_leaves_the_latest_events_in_a_new_file() {
    let place = Place::new(folder("events"));
    let files = place.folder.join("files");
    std::fs::create_dir(&files).expect("a new folder");
    let options = format!("events:3,folder:{},files:1", files.display());
    let mut one = place.start_with(&["--limit", "100MiB"], &[("CACHALOT_RECORDER", options.as_ref())]);
    assert_eq!(["a 10", "a 20", "a 200", "a 300"].map(|line| one.ask(line)), ["0", "0", "2", "2"]);
    let errors = one.end();
    let written: Vec<_> = std::fs::read_dir(&files).expect("a folder").flatten().map(|entry| entry.path()).collect();
    let [file] = &written[..] else { panic!("{written:?}\n{errors}") };
    let line = format!("ran out of memory: the latest events are in {} (", file.display());
    assert_eq!(errors.matches(&line).count(), 1, "{errors}");
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    let said = output_of(inspect.arg("inspect").arg(file));
    assert!(said.contains("200.00 MiB"), "{said}");
}

#[test]
fn a_running_program_writes_its_latest_events_on_request() {
    let place = Place::new(folder("on_request"));
    let snapshot = |process: &str, file: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        finish(command.args(["snapshot", process, "-o"]).arg(file).env("CACHALOT_RUN_FOLDER", place.shared()))
    };
    let file = place.folder.join("now.pickle");
    let mut one = place.start_with(&["--name", "one"], &[("CACHALOT_RECORDER", "events:100,files:0".as_ref())]);
    assert_eq!(["a 10", "a 20", "f", "a 7"].map(|line| one.ask(line)), ["0", "0", "0", "0"]);
    let told = snapshot("one", &file);
    assert!(told.status == 0 && told.output.contains("are in "), "{}{}", told.output, told.errors);
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    let said = output_of(inspect.arg("inspect").arg(&file));
    assert!(said.contains("17.00 MiB"), "{said}");
    let missing = snapshot("one", &place.folder.join("missing/now.pickle"));
    assert!(missing.status == 1 && missing.errors.contains("could not be written"), "{}", missing.errors);
    one.end();
    let gone = snapshot("4711", &file);
    assert!(gone.status == 2 && gone.errors.contains("no process `4711` under `cachalot run`"), "{}", gone.errors);
    // With the recorder off, only a process that can be parked answers.
    let mut off = place.start_with(&["--name", "off", "--parkable"], &[("CACHALOT_RECORDER", "0".as_ref())]);
    assert_eq!(off.ask("a 10"), "0");
    let refused = snapshot("off", &file);
    assert!(refused.status == 1 && refused.errors.contains("the flight recorder is off"), "{}", refused.errors);
    off.end();
}

#[test]
fn a_limited_program_is_told_its_limit_as_the_size_of_the_device() {
    let place = Place::new(folder("size"));
    let sizes = |options: &[&str]| {
        let mut one = place.start(options);
        let sizes = [one.ask("t"), one.ask("m").split(' ').next_back().map(str::to_owned).expect("two numbers")];
        one.end();
        sizes
    };
    assert_eq!(sizes(&["--limit", "100MiB"]), ["100", "100"]);
    assert_eq!(sizes(&["--group", "one", "--limit", "200MiB"]), ["200", "200"]);
    assert_eq!(sizes(&["--limit", "100MiB", "--observe"]), ["100", "100"]);
    let [size, total] = sizes(&[]);
    assert_eq!(size, total);
    assert_eq!(sizes(&["--limit", "1TiB"]), [size, total]);
}

#[test]
fn a_context_counts_from_its_creation_by_the_management_library() {
    let place = Place::new(folder("context"));
    // As in a container: no process of the list is this one, or one with its number is another. The
    // figure grows by 200 MiB.
    let source = write(
        &place.folder,
        "management.c",
        "#include <unistd.h>\n\
         struct process { unsigned id; unsigned long long used; unsigned a, b; };\n\
         struct memory { unsigned long long total, available, used; };\n\
         int nvmlInit_v2(void) { return 0; }\n\
         int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { *device = (void *)id; return 0; }\n\
         int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *list) {\n\
           (void)device; (void)list; *count = 0; return 0; }\n\
         int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {\n\
           static unsigned long long used = 300; (void)device;\n\
           memory->used = used << 20; used = 500; return 0; }\n",
    );
    let library = place.folder.join("management");
    std::fs::create_dir(&library).expect("a new folder");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(library.join("libnvidia-ml.so.1"))
        .arg(source)
        .status()
        .expect("a C compiler");
    assert!(built.success());
    let mut one = place.start_with(
        &["--limit", "500MiB"],
        &[("LD_LIBRARY_PATH", library.as_os_str()), ("CACHALOT_EMU_CONTEXT_BYTES", "209715200".as_ref())],
    );
    assert_eq!([one.ask("m"), one.ask("a 310"), one.ask("a 290")], ["300 500", "2", "0"]);
    one.end();
}

#[test]
fn one_line_tells_that_contexts_are_not_counted_where_nothing_tells_their_size() {
    let place = Place::new(folder("uncounted"));
    let mut one = place.start(&["--limit", "500MiB"]);
    assert_eq!(one.ask("m"), "500 500");
    let errors = one.end();
    assert_eq!(
        errors.lines().filter(|line| line.contains("what a context takes is not counted")).count(),
        1,
        "{errors}"
    );
}

#[test]
fn a_parked_program_is_told_what_it_can_get_beside_its_parked_memory() {
    let place = Place::new(folder("asleep"));
    let mut one = place.start(&["--limit", "100MiB", "--park-idle", "100ms"]);
    assert_eq!([one.ask("a 80"), one.ask("m")], ["0", "20 100"]);
    place.wait_until_parked();
    assert_eq!([one.ask("m"), one.ask("a 90")], ["20 100", "2"]);
    one.end();
}

#[test]
fn nothing_is_free_while_a_group_cannot_be_joined_and_the_next_request_joins() {
    let place = Place::new(folder("closed"));
    let mut second = place.start_late(&["--group", "team", "--limit", "50MiB"]);
    let mut first = place.start(&["--group", "team", "--limit", "100MiB"]);
    assert_eq!(first.ask("m"), "100 100");
    second.go();
    assert_eq!([first.ask("a 10"), second.ask("m"), second.ask("a 10")], ["0", "0 50", "2"]);
    // The group ends with its last member, and the name is free for another limit.
    first.end();
    let joined = (0..100).any(|_| second.ask("a 10") == "0" || pause());
    assert!(joined, "the group is gone");
    second.end();
}

#[test]
fn programs_with_limits_of_their_own_measure_only_themselves_while_they_start() {
    // Of a device with 1024 MiB, or of a group.
    let cases = [
        [&["--limit", "500MiB"][..], &["--limit", "400MiB"]],
        [
            &["--group", "gpu", "--limit", "900MiB", "--low", "500MiB", "--max", "500MiB"],
            &["--group", "gpu", "--low", "400MiB", "--max", "400MiB"],
        ],
    ];
    for [first, second] in cases {
        let place = Place::new(folder("measure"));
        let mut one = place.start(first);
        assert_eq!(one.ask("m"), "500 500", "alone");
        let mut two = place.start(second);
        // Both load their weights, and the first one measures before and after.
        assert_eq!([two.ask("m"), two.ask("a 300"), one.ask("m")], ["400 400", "0", "500 500"]);
        assert_eq!([one.ask("a 200"), two.ask("m")], ["0", "100 400"]);
        // The other one gives memory back meanwhile.
        assert_eq!([two.ask("f"), one.ask("m"), one.ask("a 290")], ["0", "300 500", "0"]);
        assert_eq!([one.ask("m"), two.ask("m")], ["10 500", "400 400"]);
        one.end();
        two.end();
    }
}

/// Lets some time go by, in which a try to join is not repeated.
fn pause() -> bool {
    std::thread::sleep(std::time::Duration::from_millis(10));
    false
}

#[test]
fn a_limited_program_whose_options_were_cut_off_is_refused_every_request() {
    let place = Place::new(folder("cut"));
    let script = "CACHALOT_RUN=\"${CACHALOT_RUN%???????????????}\" exec \"$0\"";
    let mut one = place.start_in(&["--limit", "100MiB"], &["sh", "-c", script]);
    assert_eq!([one.ask("m"), one.ask("a 10")], ["0 0", "2"]);
    let errors = one.end();
    assert!(errors.contains("and every request for memory of a device is refused"), "{errors}");
    let script = "CACHALOT_RUN='{\"settings\":\"policy:none\",\"limit\":104857600}' exec \"$0\"";
    let mut two = place.start_in(&["--limit", "100MiB"], &["sh", "-c", script]);
    assert_eq!([two.ask("a 80"), two.ask("a 80")], ["0", "2"]);
    let errors = two.end();
    assert!(errors.contains("nothing is served") && refusals(&errors).len() == 1, "{errors}");
}

#[test]
fn a_limited_program_without_its_options_is_refused_and_others_are_not() {
    let place = Place::new(folder("missing"));
    let without = ["env", "-u", "CACHALOT_RUN", "-u", "LD_PRELOAD"];
    let mut one = place.start_in(&["--limit", "100MiB"], &without);
    assert_eq!(one.ask("a 10"), "2");
    let errors = one.end();
    assert!(errors.contains("CACHALOT_RUN is missing"), "{errors}");
    let mut two = place.start_in(&[], &without);
    assert_eq!(two.ask("a 10"), "0");
    assert_eq!(two.end(), "");
}

#[test]
fn a_program_of_root_that_goes_on_as_another_user_is_limited() {
    let place = Place::new(folder("another_user"));
    let able =
        |mut command: Command| command.args(AS_NOBODY).arg("true").output().is_ok_and(|done| done.status.success());
    let is_found = Command::new("setpriv").args(AS_NOBODY).arg("ls").arg(&place.folder).output();
    if !able(Command::new("setpriv")) || !is_found.is_ok_and(|done| done.status.success()) {
        println!("not checked: no other user, or its way to the test's folder is closed");
        return;
    }
    let shared = place.folder.join("shared");
    std::os::unix::fs::chown(&shared, Some(NOBODY), None).expect("root gives files away");
    let program: Vec<&str> = ["setpriv"].into_iter().chain(AS_NOBODY).collect();
    let mut one = place.start_in(&["--limit", "100MiB"], &program);
    assert_eq!([one.ask("a 60"), one.ask("a 60")], ["0", "2"]);
    assert!(!one.end().contains("ld.so"));
}

/// A user without rights, on every system.
const NOBODY: u32 = 65534;
const AS_NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
