//! Stream capture: the effect of each call on a capture in each mode.

use crate::calls::{CALLS, Things, do_nothing};
use crate::sheet::{Sheet, code, in_a_moment};

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

/// Starts a capture on the first stream and acts. Returns the answer, the status of the capture
/// afterwards, and the code of the end.
fn during(sheet: &Sheet, things: &Things, mode: i32, act: impl FnOnce() -> u32) -> String {
    assert_eq!(sheet.cuStreamBeginCapture_v2(things.stream, mode), 0, "cuStreamBeginCapture");
    let answer = act();
    let status =
        sheet.capturing(things.stream).map_or_else(|code| format!("error {code}"), |status| status.to_string());
    let end = sheet.end_capture(things.stream);
    if let Ok(graph) = end {
        sheet.cuGraphDestroy(graph);
    }
    format!("{answer} status {status} end {}", code(end))
}

/// Makes every call on the capturing thread.
fn calls(sheet: &Sheet, mode: i32) {
    let context = sheet.begin();
    sheet.cuDevicePrimaryCtxRetain(&mut 0, 0);
    for (name, call) in CALLS {
        let things = Things::new(sheet, context, false);
        sheet.line(name, during(sheet, &things, mode, || call(sheet, &things)));
        things.close(sheet);
    }
}

/// Makes every call in a capture of the global mode.
pub(crate) fn calls_global(sheet: &Sheet) {
    calls(sheet, GLOBAL);
}

/// Makes every call in a capture of the thread-local mode.
pub(crate) fn calls_thread_local(sheet: &Sheet) {
    calls(sheet, THREAD_LOCAL);
}

/// Makes every call in a capture of the relaxed mode.
pub(crate) fn calls_relaxed(sheet: &Sheet) {
    calls(sheet, RELAXED);
}

/// Makes every call on another thread during a capture. The thread's own mode is the given one.
fn calls_of_another(sheet: &Sheet, mode: i32, own: i32) {
    let context = sheet.begin();
    sheet.cuDevicePrimaryCtxRetain(&mut 0, 0);
    for (name, call) in CALLS {
        let things = Things::new(sheet, context, false);
        let act = || {
            elsewhere(|| {
                sheet.cuCtxSetCurrent(context);
                sheet.cuThreadExchangeStreamCaptureMode(&mut { own });
                call(sheet, &things)
            })
        };
        sheet.line(name, during(sheet, &things, mode, act));
        things.close(sheet);
    }
}

/// Acts on another thread.
fn elsewhere<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(act).join().expect("joined"))
}

/// Makes every call on another thread in the default mode of the thread, during a capture of the
/// global mode.
pub(crate) fn calls_of_another_thread(sheet: &Sheet) {
    calls_of_another(sheet, GLOBAL, GLOBAL);
}

/// The same during a capture of the thread-local mode.
pub(crate) fn calls_of_another_thread_local(sheet: &Sheet) {
    calls_of_another(sheet, THREAD_LOCAL, GLOBAL);
}

/// The same during a capture of the relaxed mode.
pub(crate) fn calls_of_another_relaxed(sheet: &Sheet) {
    calls_of_another(sheet, RELAXED, GLOBAL);
}

/// The same during a capture of the global mode, on a thread that has the relaxed mode.
pub(crate) fn calls_of_an_exchanged_thread(sheet: &Sheet) {
    calls_of_another(sheet, GLOBAL, RELAXED);
}

/// Makes calls about a whole context while a stream of another context captures, while a blocking
/// stream captures, and with two captures.
pub(crate) fn contexts(sheet: &Sheet) {
    let own = sheet.begin();
    sheet.cuDevicePrimaryCtxRetain(&mut 0, 0);
    let mut other = 0;
    assert_eq!(sheet.cuCtxCreate_v2(&mut other, 0, 0), 0, "cuCtxCreate");
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        for (name, call) in CALLS.iter().filter(|(name, _)| WHOLE.contains(name)) {
            sheet.cuCtxSetCurrent(own);
            let things = Things::new(sheet, own, false);
            sheet.cuCtxSetCurrent(other);
            let captured = Things::new(sheet, other, false);
            let answer = during(sheet, &captured, mode, || {
                sheet.cuCtxSetCurrent(own);
                call(sheet, &things)
            });
            sheet.line(&format!("{name} while another context captures in mode {mode}"), answer);
            sheet.cuCtxSetCurrent(other);
            captured.close(sheet);
            sheet.cuCtxSetCurrent(own);
            things.close(sheet);
            let things = Things::new(sheet, own, true);
            let answer = during(sheet, &things, mode, || call(sheet, &things));
            sheet.line(&format!("{name} while a blocking stream captures in mode {mode}"), answer);
            things.close(sheet);
        }
        for blocking in [false, true] {
            let things = Things::new(sheet, own, blocking);
            let answer = during(sheet, &things, mode, || sheet.cuEventRecord(things.event, 0));
            let kind = if blocking { "a blocking" } else { "another" };
            sheet.line(&format!("cuEventRecord on stream 0 while {kind} stream captures in mode {mode}"), answer);
            let answer = during(sheet, &things, mode, || in_a_moment(|| sheet.cuStreamQuery(0)));
            sheet.line(&format!("cuStreamQuery of stream 0 while {kind} stream captures in mode {mode}"), answer);
            let answer = during(sheet, &things, mode, || sheet.cuStreamWaitEvent(0, things.event, 0));
            sheet.line(&format!("cuStreamWaitEvent on stream 0 while {kind} stream captures in mode {mode}"), answer);
            things.close(sheet);
        }
    }
}

/// Calls about a whole context or device.
const WHOLE: &[&str] = &[
    "cuCtxRecordEvent",
    "cuCtxWaitEvent",
    "cuCtxSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemUnmap",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemcpyHtoD_v2",
    "cuMemPoolTrimTo",
];

/// A question about a relaxed capture: the name, whether the capturing stream is a blocking stream,
/// and the action during the capture.
type Question = (&'static str, bool, fn(&Sheet, &Things) -> String);

/// Ends, events, forks, the legacy stream.
const QUESTIONS: &[Question] = &[
    ("begin again", false, |sheet, things| sheet.cuStreamBeginCapture_v2(things.stream, RELAXED).to_string()),
    ("cuStreamSynchronize of the capturing stream", false, |sheet, things| {
        sheet.cuStreamSynchronize(things.stream).to_string()
    }),
    ("cuStreamQuery of the capturing stream", false, |sheet, things| sheet.cuStreamQuery(things.stream).to_string()),
    ("end by another thread", false, |sheet, things| by_another_thread(sheet, things).to_string()),
    ("query of a captured event", false, |sheet, things| {
        let recorded = sheet.cuEventRecord(things.event, things.stream);
        format!("{recorded} {} {}", sheet.cuEventQuery(things.event), sheet.cuEventSynchronize(things.event))
    }),
    ("wait for an event from outside", false, |sheet, things| {
        sheet.cuStreamWaitEvent(things.stream, things.event, 0).to_string()
    }),
    ("wait for an unrecorded event", false, |sheet, things| {
        let event = sheet.event().expect("an event");
        sheet.cuStreamWaitEvent(things.stream, event, 0).to_string()
    }),
    ("fork and join", false, |sheet, things| fork(sheet, things, true, true)),
    ("fork with work and no join", false, |sheet, things| fork(sheet, things, true, false)),
    ("fork without work and no join", false, |sheet, things| fork(sheet, things, false, false)),
    ("end on a forked stream", false, |sheet, things| {
        let forked = fork(sheet, things, true, false);
        format!("{forked} then {}", code(sheet.end_capture(things.other)))
    }),
    ("merge of two captures", false, merge),
    ("legacy wait for a captured event", false, |sheet, things| {
        sheet.cuEventRecord(things.event, things.stream);
        sheet.cuStreamWaitEvent(0, things.event, 0).to_string()
    }),
    ("work on the legacy stream", false, |sheet, _| {
        sheet.cuLaunchHostFunc(0, do_nothing, std::ptr::null_mut()).to_string()
    }),
    ("work on the legacy stream, blocking capture", true, |sheet, _| {
        sheet.cuLaunchHostFunc(0, do_nothing, std::ptr::null_mut()).to_string()
    }),
    ("event on the legacy stream, blocking capture", true, |sheet, things| {
        sheet.cuEventRecord(things.event, 0).to_string()
    }),
    ("status of the legacy stream, blocking capture", true, |sheet, _| {
        sheet.capturing(0).map_or_else(|code| code.to_string(), |status| format!("0 status {status}"))
    }),
    ("cuStreamSynchronize of the legacy stream, blocking capture", true, |sheet, _| {
        sheet.cuStreamSynchronize(0).to_string()
    }),
    ("work on another blocking stream, blocking capture", true, |sheet, _| {
        let stream = sheet.stream(0).expect("a stream");
        sheet.cuLaunchHostFunc(stream, do_nothing, std::ptr::null_mut()).to_string()
    }),
    ("allocation and work after a broken capture", false, |sheet, things| {
        let broken = sheet.cuStreamSynchronize(things.stream);
        let alloc = code(sheet.alloc(1));
        format!("{broken} {alloc} {}", sheet.cuLaunchHostFunc(things.stream, do_nothing, std::ptr::null_mut()))
    }),
];

/// Asks all questions about captures except for the single calls.
pub(crate) fn questions(sheet: &Sheet) {
    let context = sheet.begin();
    sheet.line("cuStreamBeginCapture_v2 on the legacy stream", sheet.cuStreamBeginCapture_v2(0, RELAXED));
    let things = Things::new(sheet, context, false);
    sheet.line("cuStreamBeginCapture_v2 with mode 3", sheet.cuStreamBeginCapture_v2(things.stream, 3));
    sheet.line("cuStreamEndCapture without a capture", code(sheet.end_capture(things.stream)));
    things.close(sheet);
    for (name, blocking, act) in QUESTIONS {
        let things = Things::new(sheet, context, *blocking);
        let mut text = String::new();
        let after = during(sheet, &things, RELAXED, || {
            text = act(sheet, &things);
            0
        });
        sheet.line(name, format!("{text}{}", after.trim_start_matches('0')));
        things.close(sheet);
    }
    unsafe_after_break(sheet, context);
    captured_event_after_the_end(sheet, context);
    graph(sheet, context);
}

/// Calls `cuStreamEndCapture` on another thread than the capturing thread.
fn by_another_thread(sheet: &Sheet, things: &Things) -> u32 {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            sheet.cuCtxSetCurrent(things.context);
            code(sheet.end_capture(things.stream))
        });
        other.join().expect("joined")
    })
}

/// Lets the other stream join the capture, optionally queue work, and optionally join back.
fn fork(sheet: &Sheet, things: &Things, work: bool, join: bool) -> String {
    let mut codes =
        vec![sheet.cuEventRecord(things.event, things.stream), sheet.cuStreamWaitEvent(things.other, things.event, 0)];
    if work {
        codes.push(sheet.cuLaunchHostFunc(things.other, do_nothing, std::ptr::null_mut()));
    }
    if join {
        codes.push(sheet.cuEventRecord(things.event, things.other));
        codes.push(sheet.cuStreamWaitEvent(things.stream, things.event, 0));
    }
    format!("{codes:?}")
}

/// Makes a capture wait for another capture.
fn merge(sheet: &Sheet, things: &Things) -> String {
    let begun = sheet.cuStreamBeginCapture_v2(things.other, RELAXED);
    let recorded = sheet.cuEventRecord(things.event, things.other);
    let waited = sheet.cuStreamWaitEvent(things.stream, things.event, 0);
    format!("{begun} {recorded} {waited} other end {}", code(sheet.end_capture(things.other)))
}

/// Makes a forbidden call twice. The second call finds a broken capture.
fn unsafe_after_break(sheet: &Sheet, context: u64) {
    let things = Things::new(sheet, context, false);
    let mut codes = Vec::new();
    let after = during(sheet, &things, GLOBAL, || {
        codes = vec![code(sheet.alloc(1)), code(sheet.alloc(1))];
        0
    });
    sheet.line("two allocations in a global capture", format!("{codes:?}{}", after.trim_start_matches('0')));
    things.close(sheet);
}

/// Queries an event recorded in a capture after the end of the capture.
fn captured_event_after_the_end(sheet: &Sheet, context: u64) {
    let things = Things::new(sheet, context, false);
    during(sheet, &things, RELAXED, || sheet.cuEventRecord(things.event, things.stream));
    let (query, wait) = (sheet.cuEventQuery(things.event), sheet.cuStreamWaitEvent(things.other, things.event, 0));
    let (again, queried) = (sheet.cuEventRecord(things.event, things.other), sheet.cuEventSynchronize(things.event));
    sheet.line("a captured event after the end", format!("{query} {wait} recorded again {again} {queried}"));
    things.close(sheet);
}

/// Graphs and their executables.
fn graph(sheet: &Sheet, context: u64) {
    let things = Things::new(sheet, context, false);
    assert_eq!(sheet.cuStreamBeginCapture_v2(things.stream, RELAXED), 0, "cuStreamBeginCapture");
    sheet.cuLaunchHostFunc(things.stream, do_nothing, std::ptr::null_mut());
    let graph = sheet.end_capture(things.stream).expect("a graph");
    let mut executable = 0;
    sheet.line("cuGraphInstantiateWithFlags", sheet.cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    sheet.line("cuGraphDestroy before the executable's end", sheet.cuGraphDestroy(graph));
    sheet.line("cuGraphLaunch", sheet.cuGraphLaunch(executable, things.stream));
    sheet.line("cuGraphExecDestroy at once", sheet.cuGraphExecDestroy(executable));
    sheet.line("cuStreamSynchronize after a launch", sheet.cuStreamSynchronize(things.stream));
    things.close(sheet);
}
