//! The flight recorder: what it keeps, and its files.

use crate::common::scratch;
use crate::common::subject::{MIB, Subject, last_error, ok, stream};
use cachalot::c::abi::{
    CACHALOT_ACTION_OOM, CACHALOT_WITHOUT_EVENTS, cachalot_action, cachalot_oom_report, cachalot_snapshot_options,
};
use cachalot::c::capi::{cachalot_on_out_of_memory, cachalot_recorder_start, cachalot_snapshot, cachalot_trace_start};
use cachalot::c::status::{
    CACHALOT_ERROR_INVALID_ARGUMENT, CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_OUT_OF_MEMORY, CACHALOT_OK,
};
use serde_json::Value;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

/// More than a simulated device has.
const TOO_MUCH: usize = 100 << 30;

/// An empty folder for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = scratch("recorder").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).expect("the test's folder can be written");
        Self(folder)
    }

    /// Returns the files, by name.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("a folder");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts the recorder with options.
fn start(subject: &Subject, options: &str) -> i32 {
    let options = CString::new(options).expect("no NUL");
    // SAFETY: the text outlives the call.
    unsafe { cachalot_recorder_start(subject.0, options.as_ptr()) }
}

/// Starts the recorder with a folder.
fn start_in(subject: &Subject, folder: &Path, more: &str) {
    ok(start(subject, &format!("folder:{},{more}", folder.display())));
}

fn run_out(subject: &Subject) -> String {
    let (status, _) = subject.try_malloc(0, TOO_MUCH, stream(1));
    assert_eq!(status, CACHALOT_ERROR_OUT_OF_MEMORY);
    last_error()
}

fn read(file: &Path) -> Value {
    let pickled = std::fs::read(file).expect("it was written");
    serde_pickle::from_slice(&pickled, serde_pickle::DeOptions::new()).expect("a pickle")
}

fn actions(subject: &Subject) -> Vec<cachalot_action> {
    subject.trace(0).iter().map(|entry| entry.action).collect()
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot write the files")]
fn a_request_without_memory_writes_the_latest_events_to_a_new_file() {
    let folder = Folder::new("files");
    let subject = Subject::plain();
    start_in(&subject, &folder.0, "events:3,files:2");
    let kept = subject.malloc(1000, stream(1));
    subject.free(subject.malloc(1000, stream(1)));
    let text = run_out(&subject);
    let [file] = &folder.files()[..] else { panic!("{:?}", folder.files()) };
    assert!(text.ends_with(&format!(" The latest events are in {}.", file.display())), "{text}");
    let snapshot = read(file);
    let events = snapshot["device_traces"][0].as_array().expect("a list");
    let told: Vec<_> = events.iter().map(|event| event["action"].as_str().expect("a text")).collect();
    assert_eq!(told, ["free_requested", "free_completed", "oom"]);
    assert_eq!(snapshot["segments"][0]["total_size"], 2 * MIB);
    let settings = &snapshot["allocator_settings"];
    assert_eq!((&settings["trace_alloc_max_entries"], &settings["trace_alloc_overflowed"]), (&3.into(), &true.into()));
    // The second failure has a second file, and the third has none.
    assert!(run_out(&subject).contains("-2.pickle."));
    assert!(!run_out(&subject).contains("latest events"));
    assert_eq!(folder.files().len(), 2);
    subject.free(kept);
}

#[test]
fn without_a_recorder_nothing_is_kept_and_nothing_is_written() {
    let folder = Folder::new("off");
    let subject = Subject::plain();
    assert!(!run_out(&subject).contains("latest events"));
    assert!(actions(&subject).is_empty());
    start_in(&subject, &folder.0, "events:100");
    ok(start(&subject, "0"));
    assert!(!run_out(&subject).contains("latest events"));
    assert!(actions(&subject).is_empty() && folder.files().is_empty());
}

#[test]
fn a_file_that_cannot_be_written_changes_nothing_else() {
    let subject = Subject::plain();
    let text = run_out(&subject);
    for folder in ["/proc", "/nowhere/at/all"] {
        start_in(&subject, Path::new(folder), "");
        assert_eq!(run_out(&subject), text, "{folder}");
        assert_eq!(actions(&subject), [CACHALOT_ACTION_OOM]);
    }
}

#[test]
fn a_mistake_in_the_options_changes_nothing() {
    let subject = Subject::plain();
    ok(start(&subject, "5"));
    subject.free(subject.malloc(1000, stream(1)));
    let kept = actions(&subject);
    for wrong in ["-1", "events:x", "folder:", "size:3"] {
        assert_eq!(start(&subject, wrong), CACHALOT_ERROR_INVALID_CONFIG, "{wrong}");
        assert!(last_error().contains("no option of the recorder"), "{}", last_error());
    }
    assert_eq!(actions(&subject), kept);
    // SAFETY: NULL means the defaults.
    ok(unsafe { cachalot_recorder_start(subject.0, null()) });
    assert!(actions(&subject).is_empty());
    ok(start(&subject, "1"));
    subject.free(subject.malloc(1000, stream(1)));
    assert_eq!(actions(&subject).len(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot write the files")]
fn a_trace_takes_the_place_of_the_recorder_until_it_stops() {
    let folder = Folder::new("trace");
    let subject = Subject::plain();
    start_in(&subject, &folder.0, "events:100");
    let kept = subject.malloc(1000, stream(1));
    ok(cachalot_trace_start(subject.0, 0, 2));
    subject.free(subject.malloc(1000, stream(1)));
    assert_eq!(actions(&subject).len(), 2);
    assert!(run_out(&subject).contains("latest events"));
    assert_eq!(read(&folder.files()[0])["device_traces"][0].as_array().map(Vec::len), Some(2));
    ok(cachalot_trace_start(subject.0, 0, 0));
    assert!(actions(&subject).is_empty());
    subject.free(subject.malloc(1000, stream(1)));
    assert_eq!(actions(&subject).len(), 3);
    subject.free(kept);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot write the files")]
fn a_request_that_fails_in_the_callback_of_a_failure_has_a_file_too() {
    unsafe extern "C" fn run_out_again(subject: *mut c_void, _: *const cachalot_oom_report) {
        // SAFETY: the test's own allocator, which outlives the callback.
        let subject = unsafe { &*subject.cast::<Subject>() };
        let (status, _) = subject.try_malloc(0, TOO_MUCH, stream(2));
        assert_eq!(status, CACHALOT_ERROR_OUT_OF_MEMORY);
    }
    let folder = Folder::new("callback");
    let subject = Subject::plain();
    start_in(&subject, &folder.0, "");
    let it = (&raw const subject).cast_mut().cast();
    // SAFETY: the callback takes the allocator, which outlives it.
    ok(unsafe { cachalot_on_out_of_memory(subject.0, Some(run_out_again), it) });
    run_out(&subject);
    assert_eq!(folder.files().len(), 2);
    // SAFETY: no callback.
    ok(unsafe { cachalot_on_out_of_memory(subject.0, None, null_mut()) });
    assert!(run_out(&subject).contains("-3.pickle."));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot write the files")]
fn files_are_whole_while_other_threads_allocate_and_fail() {
    let folder = Folder::new("threads");
    let subject = Subject::plain();
    start_in(&subject, &folder.0, "events:1000,files:6");
    std::thread::scope(|scope| {
        for thread in 1..5 {
            let subject = &subject;
            scope.spawn(move || {
                for round in 0..2000 {
                    subject.free(subject.malloc(1000 + round, stream(thread)));
                    if round % 300 == 299 {
                        run_out(subject);
                    }
                }
            });
        }
    });
    let files = folder.files();
    assert!((1..=6).contains(&files.len()), "{files:?}");
    for file in files {
        let events = read(&file)["device_traces"][0].as_array().map_or(0, Vec::len);
        assert!((1..=1000).contains(&events), "{events}");
    }
}

#[test]
fn a_snapshot_without_events_has_everything_else() {
    unsafe extern "C" fn append(userdata: *mut c_void, text: *const c_char, bytes: usize) -> c_int {
        // SAFETY: the test's own vector, without another user during the call.
        let whole = unsafe { &mut *userdata.cast::<Vec<u8>>() };
        // SAFETY: the text has the passed length.
        whole.extend_from_slice(unsafe { std::slice::from_raw_parts(text.cast(), bytes) });
        0
    }
    let subject = Subject::plain();
    ok(start(&subject, "100"));
    let block = subject.malloc(1000, stream(1));
    let take = |flags| {
        let mut text = Vec::<u8>::new();
        let struct_size = size_of::<cachalot_snapshot_options>();
        let options = cachalot_snapshot_options { struct_size, path: null(), format: 0, flags };
        // SAFETY: the callback takes the vector, which outlives the call.
        let status = unsafe { cachalot_snapshot(subject.0, &raw const options, Some(append), (&raw mut text).cast()) };
        (status, serde_json::from_slice::<Value>(&text).unwrap_or_default())
    };
    let (whole, without) = (take(0), take(CACHALOT_WITHOUT_EVENTS));
    assert_eq!((whole.0, without.0, take(2).0), (CACHALOT_OK, CACHALOT_OK, CACHALOT_ERROR_INVALID_ARGUMENT));
    assert_eq!(whole.1["segments"], without.1["segments"]);
    assert_eq!(without.1["device_traces"], serde_json::json!([[]]));
    assert_eq!(whole.1["device_traces"][0].as_array().map(Vec::len), Some(2));
    subject.free(block);
}
