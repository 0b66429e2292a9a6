//! Calls with handles of objects that are gone, and at the exit of the process. Real drivers crash
//! in some of them, so each question has its own process.

use crate::Question;
use crate::calls::do_nothing;
use crate::lives::End;
use crate::sheet::{Gate, PAGE, Sheet, code, host, image};
use cachalot_emulated_driver::api::PoolProperties;
use std::io::Write;
use std::sync::OnceLock;

/// The objects for a call: those that may be gone, and those that stay.
struct Objects {
    stream: u64,
    event: u64,
    module: u64,
    executable: u64,
    pool: u64,
    /// Memory of the pool.
    pooled: u64,
    /// These stay.
    memory: u64,
    alive: u64,
    marker: u64,
}

/// A call with objects.
type Call = (&'static str, fn(&Sheet, &Objects) -> u32);

impl Objects {
    /// Makes all objects in the current context, except those that stay.
    fn new(sheet: &Sheet) -> Self {
        let (stream, event) = (sheet.stream(1).expect("a stream"), sheet.event().expect("an event"));
        let (mut module, mut executable, mut pool, mut pooled) = (0, 0, 0, 0);
        let text = image(sheet);
        assert_eq!(sheet.cuModuleLoadData(&mut module, text.as_ptr().cast()), 0, "cuModuleLoadData");
        assert_eq!(sheet.cuMemPoolCreate(&mut pool, &PoolProperties::of_device(0)), 0, "cuMemPoolCreate");
        assert_eq!(sheet.cuMemAllocFromPoolAsync(&mut pooled, PAGE, pool, stream), 0, "cuMemAllocFromPoolAsync");
        sheet.cuStreamBeginCapture_v2(stream, 2);
        sheet.cuLaunchHostFunc(stream, do_nothing, std::ptr::null_mut());
        let graph = sheet.end_capture(stream).expect("a graph");
        assert_eq!(sheet.cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0, "cuGraphInstantiate");
        assert_eq!((sheet.cuEventRecord(event, stream), sheet.cuCtxSynchronize()), (0, 0));
        Self { stream, event, module, executable, pool, pooled, memory: 0, alive: 0, marker: 0 }
    }

    /// Makes those that stay in the current context.
    fn stay(&mut self, sheet: &Sheet) {
        self.alive = sheet.stream(1).expect("a stream");
        self.marker = sheet.event().expect("an event");
        self.memory = sheet.alloc(PAGE).expect("memory");
    }
}

/// Calls with a stream.
const OF_STREAMS: &[Call] = &[
    ("cuStreamQuery", |sheet, of| sheet.cuStreamQuery(of.stream)),
    ("cuStreamSynchronize", |sheet, of| sheet.cuStreamSynchronize(of.stream)),
    ("cuStreamGetId", |sheet, of| code(sheet.stream_id(of.stream))),
    ("cuStreamGetCtx", |sheet, of| sheet.cuStreamGetCtx(of.stream, &mut 0)),
    ("cuStreamIsCapturing", |sheet, of| code(sheet.capturing(of.stream))),
    ("cuEventRecord", |sheet, of| sheet.cuEventRecord(of.marker, of.stream)),
    ("cuStreamWaitEvent", |sheet, of| sheet.cuStreamWaitEvent(of.stream, of.marker, 0)),
    ("cuMemsetD8Async", |sheet, of| sheet.cuMemsetD8Async(of.memory, 1, 64, of.stream)),
    ("cuLaunchHostFunc", |sheet, of| sheet.cuLaunchHostFunc(of.stream, do_nothing, std::ptr::null_mut())),
    ("cuStreamDestroy_v2", |sheet, of| sheet.cuStreamDestroy_v2(of.stream)),
];

/// Other calls with a destroyed stream.
const MORE_OF_STREAMS: &[Call] = &[
    ("cuStreamGetFlags", |sheet, of| sheet.cuStreamGetFlags(of.stream, &mut 0)),
    ("cuStreamGetPriority", |sheet, of| sheet.cuStreamGetPriority(of.stream, &mut 0)),
    ("cuStreamGetCaptureInfo_v2", |sheet, of| {
        let null = std::ptr::null_mut();
        sheet.cuStreamGetCaptureInfo_v2(of.stream, &mut 0, &mut 0, null, std::ptr::null_mut(), std::ptr::null_mut())
    }),
    ("cuStreamBeginCapture_v2", |sheet, of| sheet.cuStreamBeginCapture_v2(of.stream, 2)),
    ("cuStreamEndCapture", |sheet, of| code(sheet.end_capture(of.stream))),
    ("cuMemcpyDtoDAsync_v2", |sheet, of| sheet.cuMemcpyDtoDAsync_v2(of.memory, of.memory + 512, 64, of.stream)),
    ("cuMemAllocAsync", |sheet, of| code(sheet.alloc_async(PAGE, of.stream))),
    ("cuMemFreeAsync", |sheet, of| sheet.cuMemFreeAsync(of.pooled, of.stream)),
    ("cuGraphLaunch", |sheet, of| sheet.cuGraphLaunch(of.executable, of.stream)),
];

/// Calls with an event.
const OF_EVENTS: &[Call] = &[
    ("cuEventQuery", |sheet, of| sheet.cuEventQuery(of.event)),
    ("cuEventSynchronize", |sheet, of| sheet.cuEventSynchronize(of.event)),
    ("cuEventRecord", |sheet, of| sheet.cuEventRecord(of.event, of.alive)),
    ("cuStreamWaitEvent", |sheet, of| sheet.cuStreamWaitEvent(of.alive, of.event, 0)),
    ("cuEventDestroy_v2", |sheet, of| sheet.cuEventDestroy_v2(of.event)),
];

/// Other calls with a destroyed event.
const MORE_OF_EVENTS: &[Call] = &[
    ("cuEventElapsedTime", |sheet, of| sheet.cuEventElapsedTime(&mut 0.0, of.event, of.marker)),
    ("cuCtxRecordEvent", |sheet, of| sheet.cuCtxRecordEvent(current(sheet), of.event)),
    ("cuCtxWaitEvent", |sheet, of| sheet.cuCtxWaitEvent(current(sheet), of.event)),
];

/// Calls with modules, graphs and pools.
const OF_OTHERS: &[Call] = &[
    ("cuModuleUnload", |sheet, of| sheet.cuModuleUnload(of.module)),
    ("cuGraphLaunch", |sheet, of| sheet.cuGraphLaunch(of.executable, of.alive)),
    ("cuGraphExecDestroy", |sheet, of| sheet.cuGraphExecDestroy(of.executable)),
    ("cuMemPoolTrimTo", |sheet, of| sheet.cuMemPoolTrimTo(of.pool, 0)),
    ("cuMemPoolGetAttribute", |sheet, of| code(sheet.pool_attribute(of.pool, 7))),
    ("cuMemAllocFromPoolAsync", |sheet, of| sheet.cuMemAllocFromPoolAsync(&mut 0, PAGE, of.pool, of.alive)),
    ("cuMemPoolDestroy", |sheet, of| sheet.cuMemPoolDestroy(of.pool)),
];

/// Returns the current context.
fn current(sheet: &Sheet) -> u64 {
    let mut context = 0;
    sheet.cuCtxGetCurrent(&mut context);
    context
}

/// Questions about handles that were destroyed in a living context.
pub(crate) fn destroyed() -> Vec<Question> {
    let mut questions = Vec::new();
    let mut add = |name: String, gone: fn(&Sheet, &Objects), call: fn(&Sheet, &Objects) -> u32| {
        questions.push(Question::new(name, move |sheet| {
            sheet.begin();
            let mut objects = Objects::new(sheet);
            objects.stay(sheet);
            gone(sheet, &objects);
            call(sheet, &objects).to_string()
        }));
    };
    for &(name, call) in OF_STREAMS.iter().chain(MORE_OF_STREAMS) {
        let gone: fn(&Sheet, &Objects) = |sheet, of| {
            assert_eq!(sheet.cuStreamDestroy_v2(of.stream), 0, "cuStreamDestroy");
        };
        add(format!("{name}, the stream is destroyed"), gone, call);
    }
    for &(name, call) in OF_STREAMS {
        let gone: fn(&Sheet, &Objects) = |sheet, of| {
            let gate = Gate::close(sheet, of.stream);
            assert_eq!(sheet.cuStreamDestroy_v2(of.stream), 0, "cuStreamDestroy");
            // Its work goes on while the question is asked.
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(300));
                gate.open();
            });
        };
        add(format!("{name}, the stream is destroyed and busy"), gone, call);
    }
    for &(name, call) in OF_EVENTS.iter().chain(MORE_OF_EVENTS) {
        let gone: fn(&Sheet, &Objects) = |sheet, of| {
            assert_eq!(sheet.cuEventDestroy_v2(of.event), 0, "cuEventDestroy");
        };
        add(format!("{name}, the event is destroyed"), gone, call);
    }
    for &(name, call) in OF_EVENTS {
        let gone: fn(&Sheet, &Objects) = |sheet, of| {
            assert_eq!(sheet.cuStreamDestroy_v2(of.stream), 0, "cuStreamDestroy");
        };
        add(format!("{name}, the stream of the record is destroyed"), gone, call);
    }
    for &(name, call) in OF_OTHERS {
        let gone: fn(&Sheet, &Objects) = |sheet, of| {
            sheet.cuModuleUnload(of.module);
            sheet.cuGraphExecDestroy(of.executable);
            sheet.cuMemFreeAsync(of.pooled, of.alive);
            sheet.cuStreamSynchronize(of.alive);
            sheet.cuMemPoolDestroy(of.pool);
        };
        add(format!("{name}, the object is destroyed"), gone, call);
    }
    questions
}

/// A call with a context.
type OfContext = (&'static str, fn(&Sheet, u64) -> u32);

/// Questions about handles of contexts that have ended.
pub(crate) fn ended() -> Vec<Question> {
    let mut questions = Vec::new();
    let ends = [("destroyed", End::Destroy), ("reset", End::Reset), ("released", End::Release)];
    for (how, end) in ends {
        for &(name, call) in OF_STREAMS.iter().chain(OF_EVENTS).chain(OF_OTHERS) {
            let of = match name {
                name if OF_EVENTS.iter().any(|(other, asked)| *other == name && std::ptr::fn_addr_eq(*asked, call)) => {
                    "event"
                }
                name if OF_OTHERS.iter().any(|(other, _)| *other == name) => "object",
                _ => "stream",
            };
            questions.push(Question::new(format!("{name}, the context of the {of} is {how}"), move |sheet| {
                let survivor = end.survivor(sheet);
                let context = end.begin(sheet);
                let mut objects = Objects::new(sheet);
                end.end(sheet, context, survivor);
                objects.stay(sheet);
                call(sheet, &objects).to_string()
            }));
        }
        let calls: [OfContext; 4] = [
            ("cuCtxSetCurrent", |sheet, context| sheet.cuCtxSetCurrent(context)),
            ("cuCtxPushCurrent_v2", |sheet, context| sheet.cuCtxPushCurrent_v2(context)),
            ("cuCtxDestroy_v2", |sheet, context| sheet.cuCtxDestroy_v2(context)),
            ("cuCtxRecordEvent", |sheet, context| {
                let event = sheet.event().expect("an event");
                sheet.cuCtxRecordEvent(context, event)
            }),
        ];
        for (name, call) in calls {
            questions.push(Question::new(format!("{name}, the context is {how}"), move |sheet| {
                let survivor = end.survivor(sheet);
                let context = end.begin(sheet);
                end.end(sheet, context, survivor);
                call(sheet, context).to_string()
            }));
        }
    }
    questions
}

/// The objects for the exit handler.
struct Last {
    sheet: Sheet,
    call: &'static Late,
    objects: Objects,
    base: u64,
    handle: u64,
    pinned: u64,
    thread: bool,
}

/// A call at the exit.
type Late = (&'static str, fn(&Sheet, &Last) -> u32);

/// The question of the process.
static LAST: OnceLock<Last> = OnceLock::new();

/// Calls at the exit.
const LATE: &[Late] = &[
    ("cuEventRecord", |sheet, last| sheet.cuEventRecord(last.objects.event, last.objects.stream)),
    ("cuEventQuery", |sheet, last| sheet.cuEventQuery(last.objects.event)),
    ("cuEventSynchronize", |sheet, last| sheet.cuEventSynchronize(last.objects.event)),
    ("cuEventCreate", |sheet, _| code(sheet.event())),
    ("cuEventDestroy_v2", |sheet, last| sheet.cuEventDestroy_v2(last.objects.event)),
    ("cuStreamQuery", |sheet, last| sheet.cuStreamQuery(last.objects.stream)),
    ("cuStreamSynchronize", |sheet, last| sheet.cuStreamSynchronize(last.objects.stream)),
    ("cuStreamGetId", |sheet, last| code(sheet.stream_id(last.objects.stream))),
    ("cuStreamIsCapturing", |sheet, last| code(sheet.capturing(last.objects.stream))),
    ("cuStreamWaitEvent", |sheet, last| sheet.cuStreamWaitEvent(last.objects.alive, last.objects.event, 0)),
    ("cuStreamDestroy_v2", |sheet, last| sheet.cuStreamDestroy_v2(last.objects.stream)),
    ("cuMemUnmap", |sheet, last| sheet.cuMemUnmap(last.base, PAGE)),
    ("cuMemRelease", |sheet, last| sheet.cuMemRelease(last.handle)),
    ("cuMemFreeAsync", |sheet, last| sheet.cuMemFreeAsync(last.objects.pooled, last.objects.stream)),
    ("cuMemFreeHost", |sheet, last| sheet.cuMemFreeHost(host(last.pinned))),
    ("cuMemsetD8Async", |sheet, last| sheet.cuMemsetD8Async(last.objects.memory, 1, 64, last.objects.stream)),
    ("cuMemGetInfo_v2", |sheet, _| code(sheet.info())),
    ("cuCtxGetCurrent", |sheet, _| sheet.cuCtxGetCurrent(&mut 0)),
    ("cuCtxRecordEvent", |sheet, last| sheet.cuCtxRecordEvent(current(sheet), last.objects.event)),
    ("cuDevicePrimaryCtxRelease_v2", |sheet, _| sheet.cuDevicePrimaryCtxRelease_v2(0)),
];

/// Asks the question, after the driver's own exit handler.
extern "C" fn ask_at_exit() {
    if let Some(last) = LAST.get() {
        let name = format!("{}{}", last.call.0, if last.thread { " by another thread" } else { "" });
        let answer = if last.thread {
            std::thread::scope(|scope| scope.spawn(|| last.call.1(&last.sheet, last)).join()).unwrap_or(u32::MAX)
        } else {
            last.call.1(&last.sheet, last)
        };
        last.sheet.line(&name, answer);
        let _written = std::io::stdout().flush();
        // SAFETY: the answer is written.
        unsafe { libc::_exit(0) };
    }
}

/// Questions after the driver's own exit handler.
pub(crate) fn at_exit() -> Vec<Question> {
    let mut questions = Vec::new();
    for call in LATE {
        for thread in [false, true] {
            if thread && !["cuEventQuery", "cuEventRecord", "cuMemUnmap"].contains(&call.0) {
                continue;
            }
            let name = format!("{}{}", call.0, if thread { " by another thread" } else { "" });
            questions.push(Question::new(name, move |sheet| {
                // SAFETY: the handler takes nothing and lives as long as the process.
                assert_eq!(unsafe { libc::atexit(ask_at_exit) }, 0, "atexit");
                sheet.begin();
                let mut objects = Objects::new(sheet);
                objects.stay(sheet);
                let own = Sheet::new(&sheet.library, &sheet.group).expect("loaded already");
                let (base, handle) = (sheet.reserve(PAGE).expect("addresses"), sheet.create(PAGE).expect("memory"));
                assert_eq!(sheet.cuMemMap(base, PAGE, 0, handle, 0), 0, "cuMemMap");
                let mut pinned = std::ptr::null_mut();
                assert_eq!(sheet.cuMemAllocHost_v2(&mut pinned, PAGE), 0, "cuMemAllocHost");
                let last = Last { sheet: own, call, objects, base, handle, pinned: pinned as u64, thread };
                assert!(LAST.set(last).is_ok(), "one question");
                String::new()
            }));
        }
    }
    questions
}
