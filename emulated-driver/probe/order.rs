//! Streams and events: order, identity, and calls that wait for work.

use crate::sheet::{PAGE, Sheet, code, yes};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Duration of a busy stream's work. Far longer than any call that does not wait.
const BUSY: Duration = Duration::from_millis(500);

unsafe extern "C" fn be_busy(argument: *mut c_void) {
    // SAFETY: the questions pass a flag that lives until the stream is synchronized.
    let done = unsafe { &*argument.cast::<AtomicBool>() };
    std::thread::sleep(BUSY);
    done.store(true, Ordering::SeqCst);
}

/// Runs `action` while a stream is busy. Returns whether the action ended before the work, and the
/// action's result.
fn meanwhile<T>(sheet: &Sheet, stream: u64, action: impl FnOnce() -> T) -> (bool, T) {
    let done = AtomicBool::new(false);
    let argument = std::ptr::from_ref(&done).cast_mut().cast();
    assert_eq!(sheet.cuLaunchHostFunc(stream, be_busy, argument), 0, "cuLaunchHostFunc");
    let answer = action();
    let before = !done.load(Ordering::SeqCst);
    // The handle of the stream may be destroyed already, so wait for the flag.
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    (before, answer)
}

/// Asks about events without work, reused handles and the default streams.
pub(crate) fn questions(sheet: &Sheet) {
    sheet.begin();
    let (event, stream) = (sheet.event().expect("an event"), sheet.stream(1).expect("a stream"));
    sheet.line("cuEventQuery of an unrecorded event", sheet.cuEventQuery(event));
    sheet.line("cuEventSynchronize of an unrecorded event", sheet.cuEventSynchronize(event));
    sheet.line("cuStreamWaitEvent for an unrecorded event", sheet.cuStreamWaitEvent(stream, event, 0));
    sheet.line("cuEventCreate with flags 8", sheet.cuEventCreate(&mut 0, 8));
    sheet.line("cuEventCreate with flags 4", sheet.cuEventCreate(&mut 0, 4));
    sheet.line("cuEventCreate with flags 6", sheet.cuEventCreate(&mut 0, 6));
    sheet.line("cuStreamCreate with flags 2", sheet.cuStreamCreate(&mut 0, 2));
    sheet.line("cuStreamWaitEvent with flags 2", sheet.cuStreamWaitEvent(stream, event, 2));
    let (_, busy) = meanwhile(sheet, stream, || {
        let recorded = sheet.cuEventRecord(event, stream);
        let (query, stream_query) = (sheet.cuEventQuery(event), sheet.cuStreamQuery(stream));
        (recorded, query, stream_query, sheet.cuEventSynchronize(event), sheet.cuEventQuery(event))
    });
    sheet.line(
        "cuEventRecord, cuEventQuery, cuStreamQuery, cuEventSynchronize, cuEventQuery while busy",
        format!("{busy:?}"),
    );
    identity(sheet);
    defaults(sheet);
}

/// Reused handles and identities.
fn identity(sheet: &Sheet) {
    let first = sheet.stream(1).expect("a stream");
    let first_id = sheet.stream_id(first);
    sheet.cuStreamDestroy_v2(first);
    let second = sheet.stream(1).expect("a stream");
    sheet.line("a destroyed stream's handle comes again", yes(first == second));
    sheet.line("with another identity", yes(first_id != sheet.stream_id(second)));
    let event = sheet.event().expect("an event");
    sheet.cuEventDestroy_v2(event);
    sheet.line("a destroyed event's handle comes again", yes(sheet.event() == Ok(event)));
    sheet.line("the legacy stream's two handles have one identity", yes(sheet.stream_id(0) == sheet.stream_id(1)));
    sheet.line("the per-thread stream has another", yes(sheet.stream_id(0) != sheet.stream_id(2)));
    let own = sheet.stream_id(2);
    let other = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            sheet.enter(0).expect("a context");
            sheet.stream_id(2)
        });
        other.join().expect("joined")
    });
    sheet.line("the per-thread streams of two threads differ", yes(own != other));
    sheet.line("cuStreamDestroy_v2 of the legacy stream", sheet.cuStreamDestroy_v2(0));
}

/// Asks for the streams ordered with the legacy stream.
fn defaults(sheet: &Sheet) {
    let event = sheet.event().expect("an event");
    for (name, flags) in [("blocking", 0), ("not blocking", 1)] {
        let stream = sheet.stream(flags).expect("a stream");
        // Returns early only if the event does not come after the stream's work.
        let (free, answer) = meanwhile(sheet, stream, || {
            let recorded = sheet.cuEventRecord(event, 0);
            (recorded, sheet.cuEventSynchronize(event))
        });
        sheet.line(
            &format!("an event on the legacy stream waits for a {name} stream"),
            format!("{} {answer:?}", yes(!free)),
        );
        let (free, answer) = meanwhile(sheet, 0, || sheet.cuStreamSynchronize(stream));
        sheet.line(&format!("a {name} idle stream waits for the legacy stream"), format!("{} {answer}", yes(!free)));
        let (free, answer) = meanwhile(sheet, 0, || {
            let recorded = sheet.cuEventRecord(event, stream);
            (recorded, sheet.cuEventSynchronize(event))
        });
        sheet.line(
            &format!("an event on a {name} stream waits for the legacy stream"),
            format!("{} {answer:?}", yes(!free)),
        );
    }
    let (free, answer) = meanwhile(sheet, 2, || {
        let recorded = sheet.cuEventRecord(event, 0);
        (recorded, sheet.cuEventSynchronize(event))
    });
    sheet.line("an event on the legacy stream waits for the per-thread stream", format!("{} {answer:?}", yes(!free)));
}

/// Asks which calls wait for an unrelated busy stream.
pub(crate) fn waits(sheet: &Sheet) {
    sheet.begin();
    let stream = sheet.stream(1).expect("a stream");
    let ask = |name: &str, action: &dyn Fn() -> u32| {
        let (free, answer) = meanwhile(sheet, stream, action);
        sheet.line(name, format!("{} {answer}", yes(!free)));
    };
    ask("cuMemAlloc_v2 of 1 byte", &|| code(sheet.alloc(1)));
    ask("cuMemAlloc_v2 of 32 MiB", &|| code(sheet.alloc(32 << 20)));
    let (small, large) = (sheet.alloc(1).expect("memory"), sheet.alloc(32 << 20).expect("memory"));
    ask("cuMemFree_v2 of 1 byte", &|| sheet.cuMemFree_v2(small));
    ask("cuMemFree_v2 of 32 MiB", &|| sheet.cuMemFree_v2(large));
    ask("cuMemGetInfo_v2", &|| code(sheet.info()));
    let base = sheet.reserve(PAGE).expect("addresses");
    ask("cuMemAddressReserve", &|| code(sheet.reserve(PAGE)));
    ask("cuMemCreate", &|| code(sheet.create(PAGE)));
    let handle = sheet.create(PAGE).expect("memory");
    ask("cuMemMap", &|| sheet.cuMemMap(base, PAGE, 0, handle, 0));
    ask("cuMemSetAccess", &|| sheet.allow(base, PAGE));
    ask("cuMemUnmap", &|| sheet.cuMemUnmap(base, PAGE));
    ask("cuMemRelease", &|| sheet.cuMemRelease(handle));
    ask("cuMemAddressFree", &|| sheet.cuMemAddressFree(base, PAGE));
    let event = sheet.event().expect("an event");
    sheet.cuEventRecord(event, stream);
    ask("cuEventDestroy_v2", &|| sheet.cuEventDestroy_v2(event));
    ask("cuStreamCreate", &|| code(sheet.stream(1)));
    ask("cuStreamDestroy_v2 of the busy stream", &|| sheet.cuStreamDestroy_v2(stream));
}
