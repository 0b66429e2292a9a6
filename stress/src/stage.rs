//! One device of a run: streams, kernels, events, and driver calls that the allocator does not
//! make.

use crate::options::{Identity, RunOptions};
use cachalot_core::{Config, DeviceIndex, DevicePtr, DeviceResult, Event, MIB, Segments, StreamId, StreamOrder};
use cachalot_cuda::driver::types::{CuCaptureMode, CuContext, CuGraph, CuGraphExec, CuStream, CuStreamFlags};
use cachalot_cuda::{CudaDevice, DeviceOptions, Driver, StreamIdentity, Streams};
use cachalot_kernels::{Evidence, Findings, KernelError, Kernels, Region};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Fraction of its part of a shared device that a run allocates. The context, streams and graphs
/// take of the rest.
const ALLOCATED: (u64, u64) = (7, 8);

/// The result of a launch that checks many blocks, as the kernel leaves it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Checks {
    pub(crate) findings: Findings,
    pub(crate) evidence: Evidence,
}

impl Default for Checks {
    fn default() -> Self {
        Self { findings: Findings::NONE, evidence: Evidence::default() }
    }
}

/// A stream that every thread may use. Each round may replace the stream behind one lane.
#[derive(Debug)]
pub(crate) struct Lane {
    handle: AtomicUsize,
    number: AtomicU64,
}

/// A stream: handle and number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// The driver's handle.
    pub(crate) handle: CuStream,
    /// The allocator's number.
    pub(crate) id: StreamId,
}

/// A device of the run.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) index: DeviceIndex,
    pub(crate) cuda: &'static CudaDevice,
    pub(crate) kernels: Kernels<'static>,
    /// The memory of the run, with that of the host which `spill` allows.
    pub(crate) total_bytes: u64,
    /// The limit of the allocator while no disturbance sets another: the part of the device that is
    /// the run's, if it is not all.
    pub(crate) limit: Option<u64>,
    /// Whether blocks may lie on the host, which no park moves.
    pub(crate) spills: bool,
    /// The streams shared by all threads; the first is the legacy default stream.
    pub(crate) lanes: Vec<Lane>,
    /// Indices of the devices whose memory the kernels of this device may use.
    pub(crate) reaches: Vec<usize>,
    spare: Mutex<Vec<Event>>,
}

impl Lane {
    /// Returns the lane's present stream, which changes only while all threads wait at a barrier.
    pub(crate) fn line(&self) -> Line {
        let handle = CuStream(self.handle.load(Ordering::Acquire));
        Line { handle, id: StreamId(self.number.load(Ordering::Acquire)) }
    }

    /// Replaces the lane's stream.
    pub(crate) fn set(&self, line: Line) {
        self.handle.store(line.handle.0, Ordering::Release);
        self.number.store(line.id.0, Ordering::Release);
    }
}

impl Device {
    /// Opens a device, loads the kernels and creates the streams.
    ///
    /// # Errors
    /// The device's; [`KernelError::NoImage`] if the kernels were not compiled for this driver.
    pub(crate) fn open(
        driver: &'static Driver,
        index: u32,
        (run, config): (&RunOptions, &Config),
        numbers: &Arc<Streams>,
    ) -> Result<Self, KernelError> {
        let identity = match run.identity {
            Identity::Reported => StreamIdentity::Reported,
            Identity::Asked => StreamIdentity::Asked,
        };
        let options = DeviceOptions { streams: Arc::clone(numbers), identity, ..DeviceOptions::default() };
        // Leaked on purpose: every thread refers to the devices, and the process ends with the run.
        let cuda: &'static CudaDevice = Box::leak(Box::new(CudaDevice::open_with(driver, index, options)?));
        let whole = cuda.memory_info()?.total;
        let part = (run.sharers > 1).then(|| whole / u64::from(run.sharers) / ALLOCATED.1 * ALLOCATED.0);
        let limit = part.into_iter().chain(run.limit_mib.map(|mib| mib * MIB)).min();
        let of_host = config.spill().map_or(0, |spill| spill.bytes(whole));
        let kernels = Kernels::load(cuda)?;
        let mut device = Self {
            index: DeviceIndex(index),
            cuda,
            kernels,
            total_bytes: limit.unwrap_or(whole) + of_host,
            limit,
            spills: of_host > 0,
            lanes: Vec::new(),
            reaches: vec![index as usize],
            spare: Mutex::default(),
        };
        for number in 0..run.streams {
            let line = if number == 0 { device.line(CuStream::NULL)? } else { device.make_line()? };
            let (handle, number) = (AtomicUsize::new(line.handle.0), AtomicU64::new(line.id.0));
            device.lanes.push(Lane { handle, number });
        }
        Ok(device)
    }

    /// Creates a stream that is not ordered with the legacy stream.
    pub(crate) fn make_line(&self) -> DeviceResult<Line> {
        let mut handle = CuStream::NULL;
        self.cuda.with_context(|driver| {
            // SAFETY: `handle` outlives the call, which writes one handle to it.
            unsafe { driver.stream_create(&raw mut handle, CuStreamFlags::NON_BLOCKING) }
        })?;
        self.line(handle)
    }

    fn line(&self, handle: CuStream) -> DeviceResult<Line> {
        Ok(Line { handle, id: self.cuda.stream_id(handle)? })
    }

    /// Destroys a stream that is no longer in use. The allocator knows of the coming destruction.
    pub(crate) fn destroy_stream(&self, handle: CuStream) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; `make_line` created the stream, and no lane refers to
            // the stream.
            unsafe { driver.stream_destroy(handle) }
        })
    }

    /// Waits for a stream.
    pub(crate) fn synchronize(&self, handle: CuStream) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; the stream is live.
            unsafe { driver.stream_synchronize(handle) }
        })
    }

    /// Takes a spare event, or creates an event. The caller returns the event with
    /// [`return_event`](Self::return_event).
    pub(crate) fn take_event(&self) -> DeviceResult<Event> {
        let spare = self.spare.lock().pop();
        spare.map_or_else(|| self.cuda.create_event(), Ok)
    }

    /// Creates an event after which streams are ordered. The driver may lose a stream's wait for an
    /// event of [`take_event`](Self::take_event) while another thread launches a graph. An order
    /// event cannot be captured.
    pub(crate) fn make_order_event(&self) -> DeviceResult<Event> {
        self.cuda.create_order_event()
    }

    /// Returns an event to the spare events. Waits queued earlier keep referring to the earlier
    /// recording.
    pub(crate) fn return_event(&self, event: Event) {
        self.spare.lock().push(event);
    }

    /// Records an event at the present end of a stream, without checks of the stream.
    pub(crate) fn record(&self, event: Event, handle: CuStream) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; both handles are live.
            unsafe { driver.event_record(CudaDevice::cu_event(event), handle) }
        })
    }

    /// Makes a stream of the device wait for an event of any device.
    pub(crate) fn wait_for(&self, handle: CuStream, event: Event) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; both handles are live.
            unsafe { driver.stream_wait_event(handle, CudaDevice::cu_event(event), 0) }
        })
    }

    /// Copies the results of checks of many blocks to the host. `line` is the caller's own stream,
    /// with no other work queued.
    pub(crate) fn read_results(&self, line: CuStream, from: Region, count: usize) -> DeviceResult<Vec<Checks>> {
        self.copy_to_host(line, from, vec![Checks::default(); count])
    }

    /// Copies findings to the host. `line` is the caller's own stream, with no other work queued.
    pub(crate) fn read(&self, line: CuStream, from: Region, count: usize) -> DeviceResult<Vec<Findings>> {
        self.copy_to_host(line, from, vec![Findings::NONE; count])
    }

    /// Copies bytes to the host. `line` is the caller's own stream, with no other work queued.
    pub(crate) fn read_bytes(&self, line: CuStream, from: Region) -> DeviceResult<Vec<u8>> {
        self.copy_to_host(line, from, vec![u8::MAX; from.bytes() as usize])
    }

    /// Copies the start of a region over `found`. Any bytes are a value of `T`.
    fn copy_to_host<T: Copy>(&self, line: CuStream, from: Region, mut found: Vec<T>) -> DeviceResult<Vec<T>> {
        let bytes = size_of_val(found.as_slice());
        assert!(bytes <= from.bytes() as usize);
        let copied = self.cuda.with_context(|driver| {
            // SAFETY: the buffer is as long as the copy and outlives the copy: freed only after the
            // wait for the stream.
            unsafe { driver.memcpy_dtoh_async(found.as_mut_ptr().cast(), from.address().0, bytes, line) }
        });
        if let Err(error) = copied.and(self.synchronize(line)) {
            // The copy may still run, so the buffer is leaked.
            found.leak();
            return Err(error);
        }
        Ok(found)
    }

    /// Starts a capture.
    pub(crate) fn begin_capture(&self, handle: CuStream, mode: CuCaptureMode) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; the stream belongs to the caller.
            unsafe { driver.stream_begin_capture(handle, mode) }
        })
    }

    /// Ends a capture, and returns the graph.
    pub(crate) fn end_capture(&self, handle: CuStream) -> DeviceResult<CuGraph> {
        let mut graph = CuGraph::NULL;
        self.cuda.with_context(|driver| {
            // SAFETY: `graph` outlives the call, which writes one handle to it.
            unsafe { driver.stream_end_capture(handle, &raw mut graph) }
        })?;
        Ok(graph)
    }

    /// Instantiates a graph.
    pub(crate) fn instantiate(&self, graph: CuGraph) -> DeviceResult<CuGraphExec> {
        let mut ready = CuGraphExec::NULL;
        self.cuda.with_context(|driver| {
            // SAFETY: `ready` outlives the call, which writes one handle to it; the graph is live.
            unsafe { driver.graph_instantiate(&raw mut ready, graph, 0) }
        })?;
        Ok(ready)
    }

    /// Runs a graph in a stream's order.
    pub(crate) fn replay(&self, graph: CuGraphExec, handle: CuStream) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; both handles are live, and all memory used by the
            // graph's nodes stays allocated until the graph is destroyed.
            unsafe { driver.graph_launch(graph, handle) }
        })
    }

    /// Destroys a graph and the graph's instance. All runs of the graph are complete.
    pub(crate) fn destroy_graph(&self, graph: CuGraph, ready: CuGraphExec) -> DeviceResult<()> {
        let unready = self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; the handle is live and its runs were waited for.
            if ready.is_null() { cachalot_cuda::CuResult::SUCCESS } else { unsafe { driver.graph_exec_destroy(ready) } }
        });
        let destroyed = self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; the handle is live.
            unsafe { driver.graph_destroy(graph) }
        });
        unready.and(destroyed)
    }

    /// Makes a context the calling thread's current context; the null context makes none current.
    pub(crate) fn make_current(driver: &Driver, context: CuContext) {
        // Ignore a failure: the thread keeps its present context, and any context is permitted.
        // SAFETY: takes no host pointers; the context is kept alive by its device.
        let _current = unsafe { driver.ctx_set_current(context) };
    }

    /// Pops all contexts from the calling thread's stack, left there by failed calls.
    pub(crate) fn unwind(driver: &Driver) {
        let mut popped = CuContext::NULL;
        // SAFETY: `popped` outlives the call, which writes one handle to it. The loop ends at an
        // empty stack.
        while unsafe { driver.ctx_pop_current(&raw mut popped) }.is_success() {}
    }

    /// Allocates device memory for the run's own use, without the allocator.
    pub(crate) fn own_memory(&self, bytes: u64) -> DeviceResult<Region> {
        let base = self.cuda.obtain(bytes.next_multiple_of(512))?;
        // SAFETY: the memory belongs to the run alone.
        Ok(unsafe { Region::new(base, bytes) })
    }
}

/// Returns a part of a region.
pub(crate) fn part(of: Region, offset: u64, bytes: u64) -> Region {
    assert!(offset.checked_add(bytes).is_some_and(|end| end <= of.bytes()));
    // SAFETY: the part is inside a region, and the caller of `Region::new` vouches for the whole
    // region.
    unsafe { Region::new(of.address().offset(offset), bytes) }
}

/// Describes a block as memory for kernels.
///
/// # Safety
/// As for [`Region::new`]: the allocator has served the block, so kernels may write to the memory.
pub(crate) unsafe fn block_region(ptr: DevicePtr, bytes: u64) -> Region {
    // SAFETY: the caller vouches for the block.
    unsafe { Region::new(ptr, bytes) }
}
