//! What a run works with on one device: streams, kernels, events, and the driver calls that the allocator does not make.

use cachalot_core::{DeviceIndex, DeviceMemory, DevicePtr, DeviceResult, Event, StreamId};
use cachalot_cuda::driver::types::{CuCaptureMode, CuContext, CuEvent, CuGraph, CuGraphExec, CuStream, CuStreamFlags};
use cachalot_cuda::{CudaDevice, DeviceOptions, Driver, StreamIdentity, Streams};
use cachalot_kernels::{Findings, KernelError, Kernels, Region};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A stream that every thread may use. The stream behind it is another one after each round.
#[derive(Debug)]
pub(crate) struct Lane {
    handle: AtomicUsize,
    number: AtomicU64,
}

/// The stream of a lane at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// As the driver knows it.
    pub(crate) handle: CuStream,
    /// As the allocator knows it.
    pub(crate) id: StreamId,
}

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) index: DeviceIndex,
    pub(crate) cuda: &'static CudaDevice,
    pub(crate) kernels: Kernels<'static>,
    pub(crate) total_bytes: u64,
    /// The first is the legacy default stream.
    pub(crate) lanes: Vec<Lane>,
    /// Devices whose memory this one's kernels may use, itself among them.
    pub(crate) reaches: Vec<usize>,
    spare: Mutex<Vec<Event>>,
}

impl Lane {
    /// The stream. It changes only while all threads wait for one another.
    pub(crate) fn line(&self) -> Line {
        let handle = CuStream(self.handle.load(Ordering::Acquire));
        Line { handle, id: StreamId(self.number.load(Ordering::Acquire)) }
    }

    /// Puts another stream behind the lane.
    pub(crate) fn set(&self, line: Line) {
        self.handle.store(line.handle.0, Ordering::Release);
        self.number.store(line.id.0, Ordering::Release);
    }
}

impl Device {
    /// Opens a device, loads the kernels and makes the streams.
    ///
    /// # Errors
    /// The device's; [`KernelError::NoImage`] if the kernels were not compiled for this driver.
    pub(crate) fn open(
        driver: &'static Driver,
        index: u32,
        streams: u32,
        identity: StreamIdentity,
        numbers: &Arc<Streams>,
    ) -> Result<Self, KernelError> {
        let options = DeviceOptions { streams: Arc::clone(numbers), identity, ..DeviceOptions::default() };
        // The process ends with the run, and every thread refers to its devices.
        let cuda: &'static CudaDevice = Box::leak(Box::new(CudaDevice::open_with(driver, index, options)?));
        let total_bytes = cuda.memory_info()?.total;
        let kernels = Kernels::load(cuda)?;
        let mut device = Self {
            index: DeviceIndex(index),
            cuda,
            kernels,
            total_bytes,
            lanes: Vec::new(),
            reaches: vec![index as usize],
            spare: Mutex::default(),
        };
        for number in 0..streams {
            let line = if number == 0 { device.line(CuStream::NULL)? } else { device.make_line()? };
            let (handle, number) = (AtomicUsize::new(line.handle.0), AtomicU64::new(line.id.0));
            device.lanes.push(Lane { handle, number });
        }
        Ok(device)
    }

    /// A new stream, not ordered with the legacy one.
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

    /// Destroys a stream that nobody uses any longer and the allocator was told of.
    pub(crate) fn destroy_stream(&self, handle: CuStream) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; the stream was made by `make_line`, and its lane has another one.
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

    /// An event, to be given back by [`keep_event`](Self::keep_event).
    pub(crate) fn take_event(&self) -> DeviceResult<Event> {
        let spare = self.spare.lock().pop();
        spare.map_or_else(|| self.cuda.create_event(), Ok)
    }

    /// Keeps an event for the next one who needs one. Waits for it go on meaning what it stood for when they were made.
    pub(crate) fn keep_event(&self, event: Event) {
        self.spare.lock().push(event);
    }

    /// Marks the present end of a stream with an event, without a look at what the stream is.
    pub(crate) fn record(&self, event: Event, handle: CuStream) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; both handles are live.
            unsafe { driver.event_record(CuEvent(event.0 as usize), handle) }
        })
    }

    /// Lets a stream of this device wait for an event, of this device or another.
    pub(crate) fn wait_for(&self, handle: CuStream, event: Event) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; both handles are live.
            unsafe { driver.stream_wait_event(handle, CuEvent(event.0 as usize), 0) }
        })
    }

    /// Copies findings to the host. `line` is a stream of the caller's own, on which nothing else is queued.
    pub(crate) fn read(&self, line: CuStream, from: Region, count: usize) -> DeviceResult<Vec<Findings>> {
        assert!(count * size_of::<Findings>() <= from.bytes() as usize);
        let mut found = vec![Findings::NONE; count];
        let bytes = count * size_of::<Findings>();
        let copied = self.cuda.with_context(|driver| {
            // SAFETY: the buffer is as long as the copy and outlives it: it is freed only after the stream was waited for.
            unsafe { driver.memcpy_dtoh_async(found.as_mut_ptr().cast(), from.address().0, bytes, line) }
        });
        if let Err(error) = copied.and(self.synchronize(line)) {
            // The copy may still be under way; the buffer is left to it.
            found.leak();
            return Err(error);
        }
        Ok(found)
    }

    /// Begins a capture.
    pub(crate) fn begin_capture(&self, handle: CuStream, mode: CuCaptureMode) -> DeviceResult<()> {
        self.cuda.with_context(|driver| {
            // SAFETY: takes no host pointers; the stream is the caller's own.
            unsafe { driver.stream_begin_capture(handle, mode) }
        })
    }

    /// Ends a capture.
    pub(crate) fn end_capture(&self, handle: CuStream) -> DeviceResult<CuGraph> {
        let mut graph = CuGraph::NULL;
        self.cuda.with_context(|driver| {
            // SAFETY: `graph` outlives the call, which writes one handle to it.
            unsafe { driver.stream_end_capture(handle, &raw mut graph) }
        })?;
        Ok(graph)
    }

    /// Makes a graph ready to run.
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
            // SAFETY: takes no host pointers; both handles are live, and what the graph's nodes use is kept until it is
            // destroyed.
            unsafe { driver.graph_launch(graph, handle) }
        })
    }

    /// Destroys a graph and what was made ready of it. Nothing of it runs any longer.
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

    /// Makes the device's context the calling thread's, or none.
    pub(crate) fn make_current(driver: &Driver, context: CuContext) {
        // A thread may have any context or none; should this fail it keeps the one it has.
        // SAFETY: takes no host pointers; the context is kept alive by its device.
        let _current = unsafe { driver.ctx_set_current(context) };
    }

    /// Takes the contexts off the calling thread's stack that stayed there because taking them off had failed.
    pub(crate) fn unwind(driver: &Driver) {
        let mut popped = CuContext::NULL;
        // SAFETY: `popped` outlives the call, which writes one handle to it. An empty stack ends it.
        while unsafe { driver.ctx_pop_current(&raw mut popped) }.is_success() {}
    }

    /// Obtains memory of the run's own, past the allocator.
    pub(crate) fn own_memory(&self, bytes: u64) -> DeviceResult<Region> {
        let base = self.cuda.obtain(bytes.next_multiple_of(512))?;
        // SAFETY: the memory is the run's own.
        Ok(unsafe { Region::new(base, bytes) })
    }
}

/// A part of a region.
pub(crate) fn part(of: Region, offset: u64, bytes: u64) -> Region {
    assert!(offset.checked_add(bytes).is_some_and(|end| end <= of.bytes()));
    // SAFETY: inside a region whose maker vouches for all of it.
    unsafe { Region::new(of.address().offset(offset), bytes) }
}

/// A block as memory for kernels.
///
/// # Safety
/// As for [`Region::new`]: the allocator handed the block out, so that kernels may write it.
pub(crate) unsafe fn block_region(ptr: DevicePtr, bytes: u64) -> Region {
    // SAFETY: the caller's promise.
    unsafe { Region::new(ptr, bytes) }
}
