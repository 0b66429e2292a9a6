//! Calls to the device. None is made once its context is lost, and no event is recorded while a
//! graph is captured.

use crate::arena::flags::{self, FlagWord, Flags};
use crate::device::{DeviceError, DeviceMemory, DeviceResult, ErrorKind, MemoryInfo};
use crate::heap::Heap;
use crate::stats::{MemoryCallCounters, MemoryCalls};
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Ordering, Taken, Turn, impl_empty};
use crate::tables::Storage;
use crate::units::{NO_STREAM, StreamId};
use spin::Once;

/// No context was lost. Error codes have 32 bits, so none is equal to this.
const HEALTHY: u64 = u64::MAX;

/// The device has not been asked yet.
const UNASKED: u32 = 0;
/// The device has virtual memory.
const FOUND: u32 = 1;
/// The device was asked, and had no virtual memory.
const MISSING: u32 = 2;

/// The device of an arena, whether its context is lost, and the present conditions.
pub(crate) struct Driver<D> {
    /// The conditions that keep requests off the fast path, and forbid or cause calls.
    pub flags: CachePadded<Flags>,
    /// Set at the start. No call reaches an arena before that.
    device: Once<D>,
    /// The code of the first error that lost the context, or [`HEALTHY`].
    lost: AtomicU64,
    /// The number of calls that are recording events now, each of which has found that no graph is
    /// being captured. It is on its own cache line, because each of them writes it twice, and every
    /// call reads the other fields.
    recording: CachePadded<AtomicU32>,
    /// Taken by the thread that polls the events of all streams for a request.
    asking: CachePadded<Turn>,
    /// The device's answer about virtual memory: [`UNASKED`], [`FOUND`] or [`MISSING`].
    virtual_memory: AtomicU32,
    /// The device's latest answer about memory: the bytes that were free or held by the arena, and
    /// the total bytes. 0 before the first answer.
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

/// The pause of a thread that waits for a step of another thread, in microseconds.
const GIVEN_WAY_US: u64 = 20;

/// The permission to record events, which lasts as long as this value lives; see
/// [`Driver::may_record`].
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

    /// Returns a driver of `device` with the flags of this one except `without`, and with its
    /// answer about virtual memory.
    pub(super) fn for_device<T>(&self, device: T, without: FlagWord) -> Driver<T> {
        let driver = Driver { flags: CachePadded(self.flags.copy(without)), ..Driver::default() };
        driver.start(device);
        driver.virtual_memory.store(self.virtual_memory.load(Ordering::Relaxed), Ordering::Relaxed);
        driver
    }

    /// Notes an answer of the device about memory. The arena holds `reserved` bytes of it.
    pub(crate) fn note_memory(&self, memory: MemoryInfo, reserved: u64) {
        self.room.store(memory.free.saturating_add(reserved), Ordering::Relaxed);
        self.total.store(memory.total, Ordering::Relaxed);
    }

    /// Returns the memory of the device according to its latest answer, if the arena now holds
    /// `reserved` bytes. Returns `None` before the first answer.
    pub(crate) fn known_memory(&self, reserved: u64) -> Option<MemoryInfo> {
        let total = self.total.load(Ordering::Relaxed);
        let free = self.room.load(Ordering::Relaxed).saturating_sub(reserved);
        (total > 0).then_some(MemoryInfo { free, total })
    }

    /// Returns the device. Calls that fail when the context is lost must use [`call`](Self::call)
    /// instead.
    #[inline]
    pub(crate) fn device(&self) -> &D {
        self.device.get().expect("the device is set when the arena starts")
    }

    /// Returns the error that lost the context, if there was one.
    pub(crate) fn health(&self) -> DeviceResult<()> {
        match self.lost.load(Ordering::Acquire) {
            HEALTHY => Ok(()),
            code => Err(DeviceError::new(ErrorKind::ContextLost, code as u32)),
        }
    }

    /// Returns the permission to record events, unless a graph is being captured. While the caller
    /// keeps it, no capture starts.
    pub(super) fn may_record(&self) -> Option<RecordPermission<'_>> {
        // Counted before the flag is read, because a capture that starts first sets its flag and
        // then waits for the count.
        self.recording.fetch_add(1, Ordering::SeqCst);
        let permission = RecordPermission(&self.recording);
        if self.flags.load_ordered() & flags::CAPTURE == 0 { Some(permission) } else { None }
    }

    /// Returns the task of polling the events of all streams for a request, or `None` while another
    /// thread has it. If 16 threads all polled 16 streams, each would wait for the questions of the
    /// others, and the answers would be the same.
    pub(super) fn begin_asking(&self) -> Option<Taken<'_>> {
        self.asking.try_take()
    }
}

impl<D: DeviceMemory> Driver<D> {
    /// Calls the device, unless the context is lost. Notes it if the call loses the context.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&D) -> DeviceResult<T>) -> DeviceResult<T> {
        self.health()?;
        self.note_loss(call(self.device()))
    }

    /// Makes a call that waits for work of the device. While frees are held off, the answer is that
    /// of a driver to such a call on a capturing stream, with which the callers already deal.
    pub(crate) fn wait<T>(&self, call: impl FnOnce(&D) -> DeviceResult<T>) -> DeviceResult<T> {
        if self.holds_frees() {
            return Err(DeviceError::new(ErrorKind::NotPermittedInCapture, 0));
        }
        self.call(call)
    }

    /// Waits for all work on a stream. If the device is too full for that, the wait may break
    /// captures, so no capture starts meanwhile, and there is no such wait during one.
    ///
    /// # Errors
    /// The errors of [`synchronize`](crate::device::StreamOrder::synchronize).
    pub(crate) fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        let waited = self.wait(|device| device.synchronize(stream));
        if waited.is_err_and(|error| error.kind == ErrorKind::OutOfMemory)
            && let Some(_permission) = self.may_record()
        {
            return self.wait(|device| device.synchronize_without_memory(stream)).or(waited);
        }
        waited
    }

    /// Returns whether the program holds frees off, so that no memory goes back to the device.
    pub(crate) fn holds_frees(&self) -> bool {
        self.flags.has(flags::HELD)
    }

    /// Notes it if a call to the device has lost the context, and returns the result of the call.
    pub(crate) fn note_loss<T>(&self, result: DeviceResult<T>) -> DeviceResult<T> {
        if let Err(error) = &result
            && error.kind == ErrorKind::ContextLost
        {
            // If several threads get errors, the first one counts. The code is stored before the
            // flag.
            let code = u64::from(error.code);
            let _first = self.lost.compare_exchange(HEALTHY, code, Ordering::AcqRel, Ordering::Relaxed);
            self.flags.set(flags::LOST, true);
        }
        result
    }

    /// Waits for the calls that record events. A graph is about to be captured, and
    /// [`flags::CAPTURE`] is set. An event that is recorded on a stream while the stream starts to
    /// capture would become part of the graph.
    pub(super) fn wait_for_recordings(&self) {
        while self.recording.load(Ordering::SeqCst) > 0 {
            self.give_way();
        }
    }

    /// Lets other threads run, between two looks at what they change. The caller holds no lock. If
    /// threads run one at a time, as under valgrind, a loop that only takes a lock again and again
    /// keeps this lock from a thread that sleeps for it.
    pub(super) fn give_way(&self) {
        if !self.device().pause(GIVEN_WAY_US) {
            core::hint::spin_loop();
        }
    }

    /// Returns the result of `call`, and how many ticks of the device's clock it took, or 0 without
    /// a clock.
    pub(super) fn timed<T>(&self, call: impl FnOnce() -> T) -> (T, u64) {
        let began = self.device().ticks();
        let result = call();
        (result, self.device().ticks().saturating_sub(began))
    }

    /// Converts a number of ticks to microseconds. Returns 0 without a clock.
    pub(crate) fn ticks_to_us(&self, ticks: u64) -> u64 {
        // The device converts only points in time, not differences.
        let now = self.device().ticks();
        self.device().time_us(now.saturating_add(ticks)).saturating_sub(self.device().time_us(now))
    }

    /// Returns the calls that `counters` have counted, with times in microseconds.
    pub(crate) fn in_us(&self, counters: &MemoryCallCounters) -> MemoryCalls {
        counters.calls(self.device().ticks(), |ticks| self.device().time_us(ticks))
    }

    /// Returns whether the device has virtual memory. May open the device.
    pub(crate) fn is_virtual(&self) -> bool {
        self.device().virtual_memory().is_some()
    }

    /// Returns whether the device has answered that it has virtual memory.
    pub(super) fn has_virtual_memory(&self) -> bool {
        self.virtual_memory.load(Ordering::Relaxed) == FOUND
    }

    /// Asks the device for virtual memory. Returns true for the first thread that learns that the
    /// device has it.
    ///
    /// Only this answer is kept. If the question opens the device, this may fail now and succeed
    /// later.
    pub(super) fn finds_virtual_memory(&self) -> bool {
        self.device().virtual_memory().is_some() && self.virtual_memory.swap(FOUND, Ordering::Relaxed) != FOUND
    }

    /// Notes that the device has no virtual memory. Returns true for the first thread that notes
    /// it.
    pub(super) fn misses_virtual_memory(&self) -> bool {
        let asked = self.virtual_memory.compare_exchange(UNASKED, MISSING, Ordering::Relaxed, Ordering::Relaxed);
        asked.is_ok()
    }

    /// Returns whether a call of the allocator may use the handle of `stream`. It may if the call
    /// names this stream, or if the host would have reported the stream's end
    /// ([`reports_end`](crate::device::StreamOrder::reports_end)). `named` is the stream that the
    /// call names, or [`NO_STREAM`].
    pub(super) fn may_use(&self, stream: StreamId, named: StreamId) -> bool {
        stream == named || self.device().reports_end(stream)
    }

    /// Returns the stream of a heap, if a call may use its handle according to
    /// [`may_use`](Self::may_use). Returns `None` if the stream has ended, or if the heap has none.
    pub(super) fn usable_stream<S: Storage>(&self, heap: &Heap<S>, named: StreamId) -> Option<StreamId> {
        let exists = heap.stream != NO_STREAM && !heap.ended && self.may_use(heap.stream, named);
        exists.then_some(heap.stream)
    }
}
