//! Calls to the device: none once its context is lost, and no event is recorded while a graph is
//! captured.

use crate::arena::flags::{self, FlagWord, Flags};
use crate::device::{DeviceError, DeviceMemory, DeviceResult, ErrorKind, MemoryInfo};
use crate::heap::Heap;
use crate::stats::{MemoryCallCounters, MemoryCalls};
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Ordering, Taken, Turn, impl_empty};
use crate::tables::Storage;
use crate::units::{NO_STREAM, StreamId};
use spin::Once;

/// No context was lost. Codes of errors have 32 bits.
const HEALTHY: u64 = u64::MAX;

/// The device was not asked yet.
const UNASKED: u32 = 0;
/// The device has virtual memory.
const FOUND: u32 = 1;
/// The device was asked, and had no virtual memory.
const MISSING: u32 = 2;

/// The device of an arena, whether its context is lost, and the conditions of the moment.
pub(crate) struct Driver<D> {
    /// Conditions that keep requests off the fast path, and forbid or cause calls.
    pub flags: CachePadded<Flags>,
    /// Set by the start. No call reaches an arena before.
    device: Once<D>,
    /// The code of the first error that lost the context, or [`HEALTHY`].
    lost: AtomicU64,
    /// How many calls record events at this moment: each found that no graph is being captured. On
    /// its own cache line, because each of them writes it twice, and every call reads the other
    /// fields.
    recording: CachePadded<AtomicU32>,
    /// Taken by the thread that polls the events of all streams for a request.
    asking: CachePadded<Turn>,
    /// The device's answer about virtual memory: [`UNASKED`], [`FOUND`] or [`MISSING`].
    virtual_memory: AtomicU32,
    /// The device's latest answer about the memory: the bytes that were free or held by the arena,
    /// and all bytes. 0 before the first answer.
    room: AtomicU64,
    total: AtomicU64,
}

impl_empty! {
    [D] Driver<D> {
        flags,
        device: Once::new(),
        lost: AtomicU64::new(HEALTHY),
        recording,
        asking,
        virtual_memory,
        room,
        total,
    }
}

/// Pause of a thread waiting for a step of another thread, in microseconds.
const GIVEN_WAY_US: u64 = 20;

/// Permission to record events, as long as it lives; see [`Driver::may_record`].
pub(crate) struct RecordPermission<'a>(&'a AtomicU32);

impl Drop for RecordPermission<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<D> Driver<D> {
    /// Sets the device, once.
    pub(super) fn start(&self, device: D) {
        self.device.call_once(|| device);
    }

    /// Returns the driver of `device`, with the flags of this one, less `without`, and its answer
    /// about virtual memory.
    pub(super) fn for_device<T>(&self, device: T, without: FlagWord) -> Driver<T> {
        let driver = Driver { flags: CachePadded(self.flags.copy(without)), ..Driver::default() };
        driver.start(device);
        driver.virtual_memory.store(self.virtual_memory.load(Ordering::Relaxed), Ordering::Relaxed);
        driver
    }

    /// Notes an answer of the device about the memory, of which the arena holds `reserved` bytes.
    pub(crate) fn note_memory(&self, memory: MemoryInfo, reserved: u64) {
        self.room.store(memory.free.saturating_add(reserved), Ordering::Relaxed);
        self.total.store(memory.total, Ordering::Relaxed);
    }

    /// Returns the memory of the device after its latest answer, if the arena holds `reserved`
    /// bytes now. `None` before the first answer.
    pub(crate) fn known_memory(&self, reserved: u64) -> Option<MemoryInfo> {
        let total = self.total.load(Ordering::Relaxed);
        let free = self.room.load(Ordering::Relaxed).saturating_sub(reserved);
        (total > 0).then_some(MemoryInfo { free, total })
    }

    /// The device. Calls that fail when the context is lost are made through [`call`](Self::call)
    /// instead.
    #[inline]
    pub(crate) fn device(&self) -> &D {
        self.device.get().expect("the device is set when the arena starts")
    }

    /// The error that lost the context, if any did.
    pub(crate) fn health(&self) -> DeviceResult<()> {
        match self.lost.load(Ordering::Acquire) {
            HEALTHY => Ok(()),
            code => Err(DeviceError::new(ErrorKind::ContextLost, code as u32)),
        }
    }

    /// Permission to record events, unless a graph is being captured. While it is kept no capture
    /// begins.
    pub(super) fn may_record(&self) -> Option<RecordPermission<'_>> {
        // Counted before the look: a capture that begins sets its flag first and then waits for the
        // count.
        self.recording.fetch_add(1, Ordering::SeqCst);
        let permission = RecordPermission(&self.recording);
        if self.flags.load_ordered() & flags::CAPTURE == 0 { Some(permission) } else { None }
    }

    /// The task of polling the events of all streams for a request. `None` while another thread has
    /// it: with 16 threads that all poll 16 streams, each waits for the questions of the rest, and
    /// the answers are the same.
    pub(super) fn begin_asking(&self) -> Option<Taken<'_>> {
        self.asking.try_take()
    }
}

impl<D: DeviceMemory> Driver<D> {
    /// Calls the device, unless the context is lost. Takes note if the call loses it.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&D) -> DeviceResult<T>) -> DeviceResult<T> {
        self.health()?;
        self.note_loss(call(self.device()))
    }

    /// Takes note if a call to the device has lost the context, and passes the result of the call
    /// on.
    pub(crate) fn note_loss<T>(&self, result: DeviceResult<T>) -> DeviceResult<T> {
        if let Err(error) = &result
            && error.kind == ErrorKind::ContextLost
        {
            // The first of several threads' errors counts. The code is there before the flag is.
            let code = u64::from(error.code);
            let _first = self.lost.compare_exchange(HEALTHY, code, Ordering::AcqRel, Ordering::Relaxed);
            self.flags.set(flags::LOST, true);
        }
        result
    }

    /// Waits for the calls that record events. A graph is about to be captured, and
    /// [`flags::CAPTURE`] is set. An event that is recorded on a stream while the stream begins to
    /// capture would become part of the graph.
    pub(super) fn wait_for_recordings(&self) {
        while self.recording.load(Ordering::SeqCst) > 0 {
            self.give_way();
        }
    }

    /// Lets other threads go on, between two looks at what they change. The caller holds no lock:
    /// where threads run in turn, as under valgrind, a loop that only takes a lock again and again
    /// keeps the lock from a thread that sleeps for it.
    pub(super) fn give_way(&self) {
        if !self.device().pause(GIVEN_WAY_US) {
            core::hint::spin_loop();
        }
    }

    /// Returns the result of `call`, and how many ticks of the device's clock the call took; 0
    /// without a clock.
    pub(super) fn timed<T>(&self, call: impl FnOnce() -> T) -> (T, u64) {
        let began = self.device().ticks();
        let result = call();
        (result, self.device().ticks().saturating_sub(began))
    }

    /// Converts a number of ticks to microseconds; 0 without a clock.
    pub(crate) fn ticks_to_us(&self, ticks: u64) -> u64 {
        // The device converts points in time only, not differences.
        let now = self.device().ticks();
        self.device().time_us(now.saturating_add(ticks)).saturating_sub(self.device().time_us(now))
    }

    /// Returns the calls that `counters` have counted, with times in microseconds.
    pub(crate) fn in_us(&self, counters: &MemoryCallCounters) -> MemoryCalls {
        counters.calls(self.device().ticks(), |ticks| self.device().time_us(ticks))
    }

    /// Returns whether the device has answered that it has virtual memory.
    pub(super) fn has_virtual_memory(&self) -> bool {
        self.virtual_memory.load(Ordering::Relaxed) == FOUND
    }

    /// Asks the device for virtual memory. Returns true for the first thread to learn that the
    /// device has it.
    ///
    /// Only this answer is kept: a device opened by the question may fail to open now, and
    /// succeed later.
    pub(super) fn finds_virtual_memory(&self) -> bool {
        self.device().virtual_memory().is_some() && self.virtual_memory.swap(FOUND, Ordering::Relaxed) != FOUND
    }

    /// Notes a device without virtual memory. Returns true for the first thread to note it.
    pub(super) fn misses_virtual_memory(&self) -> bool {
        let asked = self.virtual_memory.compare_exchange(UNASKED, MISSING, Ordering::Relaxed, Ordering::Relaxed);
        asked.is_ok()
    }

    /// Returns whether a call of the allocator may use the handle of `stream`: the call names that
    /// stream, or the host would have reported the stream's end
    /// ([`reports_end`](crate::device::StreamOrder::reports_end)). `named` is the stream that the
    /// call names, or [`NO_STREAM`].
    pub(super) fn may_use(&self, stream: StreamId, named: StreamId) -> bool {
        stream == named || self.device().reports_end(stream)
    }

    /// Returns the stream of a heap, if a call may use its handle, as [`may_use`](Self::may_use)
    /// says. `None` if the stream has ended, or if the heap has none.
    pub(super) fn usable_stream<S: Storage>(&self, heap: &Heap<S>, named: StreamId) -> Option<StreamId> {
        let exists = heap.stream != NO_STREAM && !heap.ended && self.may_use(heap.stream, named);
        exists.then_some(heap.stream)
    }
}
