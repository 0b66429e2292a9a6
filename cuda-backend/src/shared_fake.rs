//! A fake driver for tests with threads, as a table of entry points. All threads share its state.
//! It knows which work of the device has finished, reuses the handles of destroyed streams and
//! events at once, and counts *violations*: uses of a handle without a living stream or event.
//! Calls can fail at random.

use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::table::Table;
use crate::driver::types::*;
use cachalot_core::DevicePtr;
use core::ffi::{c_int, c_void};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The context of the device.
const CONTEXT: CuContext = CuContext(0xc0);
/// The lowest handle of a stream, and of an event.
const STREAMS: usize = 0x1_0000;
const EVENTS: usize = 0x100_0000;

/// A stream, living or destroyed.
#[derive(Default, Debug)]
struct Stream {
    /// The number of pieces of work that were submitted, and of those that are complete.
    submitted: u64,
    complete: u64,
    /// For each piece of work that waits for another stream: the piece, the stream, and the piece
    /// of that stream for which it waits.
    waits: Vec<(u64, u64, u64)>,
}

/// A copy in progress. The bytes move when it ends.
#[derive(Clone, Copy, Debug)]
struct FakeCopy {
    stream: u64,
    number: u64,
    host: usize,
    at: u64,
    bytes: usize,
    to_host: bool,
}

/// The state of the driver.
#[derive(Default, Debug)]
pub(crate) struct State {
    /// All streams ever created, by id.
    streams: Vec<Stream>,
    /// The ids of living streams by handle.
    living: BTreeMap<usize, u64>,
    /// The handles for reuse.
    free_streams: Vec<usize>,
    /// The living events by handle: the stream, the piece of work and the copy of the last
    /// recording.
    events: BTreeMap<usize, Option<(u64, u64, u64)>>,
    free_events: Vec<usize>,
    /// The number of present allocations.
    allocations: u64,
    /// Registered host memory by address, with the length.
    pinned: BTreeMap<usize, usize>,
    /// The number of copies that have started, and the copies in progress.
    copies: u64,
    copying: Vec<FakeCopy>,
    /// Device memory with bytes, by address.
    memory: BTreeMap<u64, Vec<u8>>,
    /// Violations by the program, as texts.
    pub(crate) violations: Vec<String>,
    /// Whether no wait for a stream succeeds.
    is_stuck: bool,
    /// The share of failing calls in percent, and the random numbers.
    faults: u64,
    random: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    /// The calling thread's context.
    static CURRENT: Cell<CuContext> = const { Cell::new(CuContext::NULL) };
    /// The calling thread's capture mode.
    static MODE: Cell<CuCaptureMode> = const { Cell::new(CuCaptureMode::GLOBAL) };
}

/// The fake, for a single test at a time.
pub(crate) struct SharedFake {
    pub(crate) driver: &'static Driver,
    _turn: MutexGuard<'static, ()>,
}

/// Starts the fake without any stream.
pub(crate) fn start() -> SharedFake {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *lock() = Some(State { random: 0x9e37_79b9_7f4a_7c15, ..State::default() });
    // SAFETY: the functions in this file write only where the driver's would, and live as long as
    // the process.
    let driver = unsafe { Driver::from_table(&table()) }.expect("the fake starts");
    SharedFake { driver, _turn: turn }
}

/// Lets `percent` of the calls fail from now on, with codes that lose no context.
pub(crate) fn set_faults(percent: u64) {
    with(|state| state.faults = percent);
}

/// Lets every wait for a stream fail from now on, or no longer. The work of the stream goes on.
pub(crate) fn set_stuck(is_stuck: bool) {
    with(|state| state.is_stuck = is_stuck);
}

/// Runs `body` while every call that reads streams, events or copies waits. `body` makes no such
/// call.
pub(crate) fn held_up<T>(body: impl FnOnce() -> T) -> T {
    let _state = lock();
    body()
}

/// Creates a stream.
pub(crate) fn create() -> CuStream {
    with(State::create)
}

/// Destroys a stream. Its work continues.
pub(crate) fn destroy(stream: CuStream) {
    with(|state| state.destroy(stream));
}

/// Queues a piece of work. Returns the stream's id and the number of the piece.
pub(crate) fn submit(stream: CuStream) -> (u64, u64) {
    with(|state| {
        let id = state.living[&stream.0];
        let submitted = &mut state.streams[id as usize].submitted;
        *submitted += 1;
        (id, *submitted)
    })
}

/// Returns whether a piece of work is complete.
pub(crate) fn is_complete((id, piece): (u64, u64)) -> bool {
    with(|state| state.streams[id as usize].complete >= piece)
}

/// Gives device memory at an address its bytes.
pub(crate) fn put(at: DevicePtr, bytes: Vec<u8>) {
    with(|state| state.memory.insert(at.0, bytes));
}

/// Returns the bytes that [`put`] has given to device memory.
pub(crate) fn bytes_at(at: DevicePtr) -> Vec<u8> {
    with(|state| state.memory[&at.0].clone())
}

/// Returns whether no violation happened.
pub(crate) fn is_clean() -> bool {
    with(|state| state.violations.is_empty())
}

/// Returns the violations, and the numbers of events, registrations and allocations.
pub(crate) fn left() -> (Vec<String>, [usize; 3]) {
    with(|state| {
        let counts = [state.events.len(), state.pinned.len(), state.allocations as usize];
        (state.violations.clone(), counts)
    })
}

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(body: impl FnOnce(&mut State) -> T) -> T {
    body(lock().as_mut().expect("the fake was started"))
}

impl State {
    fn create(&mut self) -> CuStream {
        let id = self.streams.len() as u64;
        self.streams.push(Stream::default());
        let handle = self.free_streams.pop().unwrap_or(STREAMS + 16 * self.streams.len());
        self.living.insert(handle, id);
        CuStream(handle)
    }

    fn destroy(&mut self, stream: CuStream) {
        match self.living.remove(&stream.0) {
            Some(_) => self.free_streams.push(stream.0),
            None => self.violations.push(format!("{stream:?} was destroyed twice")),
        }
    }

    /// Returns a random number below `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Completes the work of a stream up to a piece, and all work for which the completed pieces
    /// wait.
    fn complete(&mut self, id: u64, piece: u64) {
        let mut open = vec![(id, piece)];
        while let Some((id, piece)) = open.pop() {
            let stream = &mut self.streams[id as usize];
            if stream.complete < piece {
                stream.complete = piece;
                let later = stream.waits.partition_point(|wait| wait.0 <= piece);
                open.extend(stream.waits.drain(..later).map(|wait| (wait.1, wait.2)));
            }
        }
    }

    fn complete_all(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.complete = stream.submitted);
        self.end_copies(|_| true);
    }

    /// Ends the copies for which `is_due` returns true: their bytes move.
    fn end_copies(&mut self, is_due: impl Fn(&FakeCopy) -> bool) {
        let (due, rest) = self.copying.iter().partition(|copy| is_due(copy));
        let due: Vec<FakeCopy> = due;
        self.copying = rest;
        for copy in due {
            let Some((base, memory)) = self.memory.range_mut(..=copy.at).next_back() else { continue };
            let from = (copy.at - base) as usize;
            let Some(memory) = memory.get_mut(from..from + copy.bytes) else { continue };
            // SAFETY: the memory is registered, and so mapped, and the code under test leaves it
            // alone during the copy.
            let host = unsafe { core::slice::from_raw_parts_mut(copy.host as *mut u8, copy.bytes) };
            if copy.to_host { host.copy_from_slice(memory) } else { memory.copy_from_slice(host) }
        }
    }
}

/// Decides at random whether a call fails. Returns `Some(true)` for a failure after the effect of
/// the call.
fn failure() -> Option<bool> {
    with(|state| (state.faults > 0 && state.random(100) < state.faults).then(|| state.random(2) == 1))
}

/// Performs a call with a random failure.
fn call(body: impl FnOnce() -> CuResult) -> CuResult {
    let code = if with(|state| state.random(2) == 1) { CuResult::OUT_OF_MEMORY } else { CuResult::UNKNOWN };
    match failure() {
        None => body(),
        Some(true) => {
            let _ = body();
            code
        }
        Some(false) => code,
    }
}

/// Lets another thread run, now and then.
fn switch() {
    if with(|state| state.random(8) == 0) {
        std::thread::yield_now();
    }
}

/// Performs a call with the handle of a stream. Another thread may run between the start and the
/// end of the call.
fn on_stream(name: &str, stream: CuStream, body: impl FnOnce(&mut State, u64) -> CuResult) -> CuResult {
    let id = |state: &mut State| state.living.get(&stream.0).copied();
    let Some(before) = with(id) else {
        with(|state| state.violations.push(format!("{name} of a destroyed stream")));
        return CuResult::INVALID_HANDLE;
    };
    switch();
    with(|state| {
        if id(state) != Some(before) {
            state.violations.push(format!("{name} of a stream that was destroyed during the call"));
        }
        body(state, before)
    })
}

/// Performs a call with the handle of an event, as [`on_stream`] does.
fn on_event(name: &str, event: CuEvent, body: impl FnOnce(&mut State, &str) -> CuResult) -> CuResult {
    with(|state| {
        if !state.events.contains_key(&event.0) {
            state.violations.push(format!("{name} of a destroyed event"));
            return CuResult::INVALID_HANDLE;
        }
        body(state, name)
    })
}

/// Writes an answer through a pointer of the caller.
fn answer<T>(to: *mut T, value: T) -> CuResult {
    // SAFETY: the code under test passes pointers to live variables of the right type.
    unsafe { to.write(value) };
    CuResult::SUCCESS
}

extern "C" fn init(_flags: u32) -> CuResult {
    CuResult::SUCCESS
}
extern "C" fn version(version: *mut c_int) -> CuResult {
    answer(version, 13_000)
}
extern "C" fn device_get(device: *mut CuDevice, ordinal: c_int) -> CuResult {
    answer(device, CuDevice(ordinal))
}
extern "C" fn count(count: *mut c_int) -> CuResult {
    answer(count, 1)
}
extern "C" fn attribute(value: *mut c_int, _attribute: CuDeviceAttribute, _device: CuDevice) -> CuResult {
    answer(value, 0)
}
extern "C" fn retain(context: *mut CuContext, _device: CuDevice) -> CuResult {
    answer(context, CONTEXT)
}
extern "C" fn release(_device: CuDevice) -> CuResult {
    CuResult::SUCCESS
}
extern "C" fn get_current(context: *mut CuContext) -> CuResult {
    answer(context, CURRENT.get())
}
extern "C" fn push(context: CuContext) -> CuResult {
    CURRENT.set(context);
    CuResult::SUCCESS
}
extern "C" fn pop(context: *mut CuContext) -> CuResult {
    answer(context, CURRENT.replace(CuContext::NULL))
}
extern "C" fn exchange(mode: *mut CuCaptureMode) -> CuResult {
    // SAFETY: as for `answer`.
    let new = unsafe { mode.read() };
    answer(mode, MODE.replace(new))
}
extern "C" fn alloc(address: *mut u64, _bytes: usize) -> CuResult {
    call(|| {
        with(|state| {
            state.allocations += 1;
            answer(address, 1 << 40)
        })
    })
}
extern "C" fn free(_address: u64) -> CuResult {
    call(|| {
        with(|state| {
            state.allocations -= 1;
            state.complete_all();
            CuResult::SUCCESS
        })
    })
}
extern "C" fn get_info(free: *mut usize, total: *mut usize) -> CuResult {
    let _ = answer(free, 1 << 30);
    answer(total, 1 << 30)
}
extern "C" fn event_create(event: *mut CuEvent, _flags: CuEventFlags) -> CuResult {
    // A failed call leaves no event, because no program could destroy it.
    if failure().is_some() {
        return CuResult::OUT_OF_MEMORY;
    }
    with(|state| {
        let handle = state.free_events.pop().unwrap_or(EVENTS + 16 * state.events.len());
        state.events.insert(handle, None);
        answer(event, CuEvent(handle))
    })
}
extern "C" fn event_record(event: CuEvent, stream: CuStream) -> CuResult {
    call(|| {
        on_stream("cuEventRecord", stream, |state, id| {
            let (submitted, copies) = (state.streams[id as usize].submitted, state.copies);
            match state.events.get_mut(&event.0) {
                Some(recorded) => *recorded = Some((id, submitted, copies)),
                None => state.violations.push("cuEventRecord of a destroyed event".to_owned()),
            }
            CuResult::SUCCESS
        })
    })
}
extern "C" fn event_query(event: CuEvent) -> CuResult {
    call(|| {
        on_event("cuEventQuery", event, |state, _| {
            let Some((id, piece, _)) = state.events[&event.0] else { return CuResult::SUCCESS };
            if state.random(2) == 1 {
                state.complete(id, piece);
            }
            if state.streams[id as usize].complete >= piece { CuResult::SUCCESS } else { CuResult::NOT_READY }
        })
    })
}
extern "C" fn event_synchronize(event: CuEvent) -> CuResult {
    call(|| {
        let recorded = Cell::new(None);
        let code = on_event("cuEventSynchronize", event, |state, _| {
            recorded.set(state.events[&event.0]);
            CuResult::SUCCESS
        });
        switch();
        if !code.is_success() {
            return code;
        }
        on_event("cuEventSynchronize at its end", event, |state, _| {
            if let Some((id, piece, copies)) = recorded.get() {
                state.complete(id, piece);
                state.end_copies(|copy| copy.stream == id && copy.number <= copies);
            }
            CuResult::SUCCESS
        })
    })
}
extern "C" fn event_destroy(event: CuEvent) -> CuResult {
    call(|| {
        on_event("cuEventDestroy", event, |state, _| {
            state.events.remove(&event.0);
            state.free_events.push(event.0);
            CuResult::SUCCESS
        })
    })
}
extern "C" fn synchronize(stream: CuStream) -> CuResult {
    call(|| {
        on_stream("cuStreamSynchronize", stream, |state, id| {
            if state.is_stuck {
                return CuResult::UNKNOWN;
            }
            let submitted = state.streams[id as usize].submitted;
            state.complete(id, submitted);
            state.end_copies(|copy| copy.stream == id);
            CuResult::SUCCESS
        })
    })
}
extern "C" fn query(stream: CuStream) -> CuResult {
    call(|| {
        on_stream("cuStreamQuery", stream, |state, id| {
            let stream = &state.streams[id as usize];
            if stream.complete >= stream.submitted { CuResult::SUCCESS } else { CuResult::NOT_READY }
        })
    })
}
extern "C" fn is_capturing(stream: CuStream, status: *mut CuCaptureStatus) -> CuResult {
    call(|| on_stream("cuStreamIsCapturing", stream, |_, _| answer(status, CuCaptureStatus::NONE)))
}
extern "C" fn capture_info(
    stream: CuStream,
    status: *mut CuCaptureStatus,
    _id: *mut u64,
    _graph: *mut CuGraph,
    _dependencies: *mut *const CuGraphNode,
    _count: *mut usize,
) -> CuResult {
    call(|| on_stream("cuStreamGetCaptureInfo", stream, |_, _| answer(status, CuCaptureStatus::NONE)))
}
extern "C" fn get_id(stream: CuStream, id: *mut u64) -> CuResult {
    call(|| on_stream("cuStreamGetId", stream, |_, its| answer(id, its)))
}
extern "C" fn get_ctx(stream: CuStream, context: *mut CuContext) -> CuResult {
    call(|| on_stream("cuStreamGetCtx", stream, |_, _| answer(context, CONTEXT)))
}
extern "C" fn wait_event(stream: CuStream, event: CuEvent, _flags: u32) -> CuResult {
    call(|| {
        on_stream("cuStreamWaitEvent", stream, |state, id| {
            match state.events.get(&event.0).copied() {
                Some(Some((other, piece, _))) => {
                    let stream = &mut state.streams[id as usize];
                    stream.submitted += 1;
                    let own = stream.submitted;
                    stream.waits.push((own, other, piece));
                }
                Some(None) => {}
                None => state.violations.push("cuStreamWaitEvent for a destroyed event".to_owned()),
            }
            CuResult::SUCCESS
        })
    })
}
extern "C" fn stream_create(stream: *mut CuStream, _flags: CuStreamFlags) -> CuResult {
    if failure().is_some() {
        return CuResult::OUT_OF_MEMORY;
    }
    answer(stream, with(State::create))
}
extern "C" fn stream_destroy(stream: CuStream) -> CuResult {
    with(|state| state.destroy(stream));
    CuResult::SUCCESS
}
extern "C" fn host_register(address: *mut c_void, bytes: usize, _flags: CuMemHostRegisterFlags) -> CuResult {
    call(|| {
        with(|state| {
            if state.pinned.insert(address.addr(), bytes).is_none() {
                return CuResult::SUCCESS;
            }
            state.violations.push("memory was registered twice".to_owned());
            CuResult::HOST_MEMORY_ALREADY_REGISTERED
        })
    })
}
extern "C" fn host_unregister(address: *mut c_void) -> CuResult {
    call(|| {
        with(|state| match state.pinned.remove(&address.addr()) {
            Some(bytes) => {
                let range = address.addr()..address.addr() + bytes;
                let before = state.copying.len();
                state.copying.retain(|copy| !range.contains(&copy.host));
                if state.copying.len() < before {
                    state.violations.push("memory was unregistered under a copy".to_owned());
                }
                CuResult::SUCCESS
            }
            None => CuResult::HOST_MEMORY_NOT_REGISTERED,
        })
    })
}
/// Starts a copy from or to registered memory.
fn copy(host: usize, at: u64, bytes: usize, stream: CuStream, to_host: bool) -> CuResult {
    call(|| {
        on_stream("a copy", stream, |state, id| {
            state.copies += 1;
            let number = state.copies;
            match state.pinned.range(..=host).next_back() {
                Some((begin, length)) if host + bytes <= begin + length => {
                    state.copying.push(FakeCopy { stream: id, number, host, at, bytes, to_host });
                }
                _ => state.violations.push("a copy used memory that is not registered".to_owned()),
            }
            CuResult::SUCCESS
        })
    })
}
extern "C" fn copy_to_host(to: *mut c_void, from: u64, bytes: usize, stream: CuStream) -> CuResult {
    copy(to.addr(), from, bytes, stream, true)
}
extern "C" fn copy_from_host(to: u64, from: *const c_void, bytes: usize, stream: CuStream) -> CuResult {
    copy(from.addr(), to, bytes, stream, false)
}

/// Returns the table of the fake's functions.
fn table() -> Table {
    Table {
        init: Some(init),
        driver_get_version: Some(version),
        device_get: Some(device_get),
        device_get_count: Some(count),
        device_get_attribute: Some(attribute),
        device_primary_ctx_retain: Some(retain),
        device_primary_ctx_release: Some(release),
        ctx_get_current: Some(get_current),
        ctx_push_current: Some(push),
        ctx_pop_current: Some(pop),
        mem_alloc: Some(alloc),
        mem_free: Some(free),
        mem_get_info: Some(get_info),
        mem_host_register: Some(host_register),
        mem_host_unregister: Some(host_unregister),
        memcpy_dtoh_async: Some(copy_to_host),
        memcpy_htod_async: Some(copy_from_host),
        event_create: Some(event_create),
        event_record: Some(event_record),
        event_query: Some(event_query),
        event_synchronize: Some(event_synchronize),
        event_destroy: Some(event_destroy),
        stream_synchronize: Some(synchronize),
        stream_query: Some(query),
        stream_is_capturing: Some(is_capturing),
        stream_get_capture_info: Some(capture_info),
        thread_exchange_stream_capture_mode: Some(exchange),
        stream_get_id: Some(get_id),
        stream_get_ctx: Some(get_ctx),
        stream_wait_event: Some(wait_event),
        stream_create: Some(stream_create),
        stream_destroy: Some(stream_destroy),
        ..Table::default()
    }
}
