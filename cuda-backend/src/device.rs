//! A CUDA device as the core's device: memory, events, and the clock.

use crate::clock;
use crate::context::Context;
use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::{CuContext, CuDevice, CuDeviceAttribute, CuEvent, CuEventFlags, CuStream};
use crate::peers::Peers;
use crate::streams::{StreamIdentity, Streams};
use crate::virtual_support::Virtual;
use cachalot_core::{
    DeviceError, DeviceMemory, DevicePtr, DeviceResult, ErrorKind, Event, MemoryInfo, StreamId, UNIT, VirtualMemory,
};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a device is opened.
#[derive(Clone, Default, Debug)]
pub struct DeviceOptions {
    /// The context to work in. `None`: the device's primary context, which the CUDA runtime uses too.
    /// The caller keeps it alive until the device is closed.
    pub context: Option<CuContext>,
    /// When the driver is asked for a stream's own number.
    pub identity: StreamIdentity,
    /// The table of streams. Devices that serve one allocator share one; by default a device has its own.
    pub streams: Arc<Streams>,
}

/// One CUDA device, in one context.
///
/// All methods may be called from any thread, several at once, with any context current or none: the caller's is
/// restored before they return, on error too. Driver calls are made with the thread's capture mode relaxed, so that
/// they are permitted while streams capture, and the mode is restored likewise.
///
/// After the first sticky error no more driver calls are made: every method repeats that error. In a forked child every
/// method answers [`ErrorKind::Forked`]. Dropping the value calls nothing; [`close`](Self::close) gives the context back.
#[derive(Debug)]
pub struct CudaDevice {
    /// The context, and whether it still works.
    pub(crate) context: Context,
    /// The device.
    pub(crate) device: CuDevice,
    /// Whether the primary context is held and has not been given back.
    retained: AtomicBool,
    /// The streams that this device and its allocator's others have seen.
    pub(crate) streams: Arc<Streams>,
    /// When the driver is asked for a stream's own number.
    pub(crate) identity: StreamIdentity,
    /// Events that were recorded behind streams since retired and are done, for the next one.
    pub(crate) spare_events: Mutex<Vec<CuEvent>>,
    /// Virtual memory, if the device has it.
    virtual_memory: Option<Virtual>,
    /// Who else may use this device's memory.
    pub(crate) peers: Peers,
    /// The stream on which other devices' streams are waited for; 0 until it is needed.
    pub(crate) bridge: AtomicUsize,
}

impl CudaDevice {
    /// Opens the device with this ordinal in its primary context, with the default options.
    ///
    /// # Errors
    /// As for [`open_with`](Self::open_with).
    pub fn open(driver: &'static Driver, ordinal: u32) -> DeviceResult<Self> {
        Self::open_with(driver, ordinal, DeviceOptions::default())
    }

    /// Opens the device with this ordinal. Calls the driver; may take as long as making the context does (0.1 s and more).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such device (101) or the given context is not one of it;
    /// [`ErrorKind::Forked`]; the driver's.
    pub fn open_with(driver: &'static Driver, ordinal: u32, options: DeviceOptions) -> DeviceResult<Self> {
        if crate::fork::in_child() {
            return Err(DeviceError::new(ErrorKind::Forked, CuResult::NOT_INITIALIZED.0));
        }
        let ordinal = c_int::try_from(ordinal).map_err(|_| CuResult::INVALID_DEVICE.error())?;
        let mut device = CuDevice::default();
        // SAFETY: `device` outlives the call, which writes one integer to it.
        checked(unsafe { driver.device_get(&raw mut device, ordinal) })?;
        let (handle, retained) = match options.context {
            Some(context) => (context, false),
            None => (retain(driver, device)?, true),
        };
        let context = Context::new(driver, handle);
        match Self::prepare(&context, device) {
            Ok(virtual_memory) => Ok(Self {
                context,
                device,
                retained: AtomicBool::new(retained),
                streams: options.streams,
                identity: options.identity,
                spare_events: Mutex::default(),
                virtual_memory,
                peers: Peers::default(),
                bridge: AtomicUsize::new(0),
            }),
            Err(error) => {
                if retained && error.kind != ErrorKind::Deinitialized {
                    // SAFETY: takes no pointers; gives back what was retained above. The first error stands.
                    let _ = unsafe { driver.device_primary_ctx_release(device) };
                }
                Err(error)
            }
        }
    }

    /// Virtual memory, if the device has it.
    pub(crate) fn virtual_part(&self) -> Option<&Virtual> {
        self.virtual_memory.as_ref()
    }

    /// Checks that the context is one of the device, and asks after its virtual memory.
    fn prepare(context: &Context, device: CuDevice) -> DeviceResult<Option<Virtual>> {
        let _scope = context.enter()?;
        let driver = context.driver();
        if driver.ctx_get_device.is_some() {
            let mut of_context = CuDevice::default();
            // SAFETY: `of_context` outlives the call, which writes one integer to it.
            context.check(unsafe { driver.ctx_get_device(&raw mut of_context) })?;
            if of_context != device {
                return Err(CuResult::INVALID_CONTEXT.error());
            }
        }
        Virtual::of(context, device)
    }

    /// Gives the primary context back, if this device took it. Afterwards every method answers
    /// [`ErrorKind::Deinitialized`] without a driver call. Memory that was obtained and not released lives on
    /// as long as others hold the context. No other thread may be inside a call of this device.
    ///
    /// For when the allocator is destroyed while the program goes on; nothing needs to be called at process exit.
    ///
    /// # Errors
    /// The driver's, and those of [`health`](Self::health); the device is closed all the same. The second call: none.
    pub fn close(&self) -> DeviceResult<()> {
        let healthy = self.context.health();
        let retained = self.retained.swap(false, Ordering::AcqRel);
        let mut result = Ok(());
        if healthy.is_ok() {
            result = self.drop_streams();
            if retained {
                // SAFETY: takes no pointers; gives back, once, what `open_with` retained.
                let released = unsafe { self.driver().device_primary_ctx_release(self.device) };
                result = result.and(self.context.check(released));
            }
        } else if retained {
            result = healthy;
        }
        self.context.close();
        result
    }

    /// Whether the device can still be used. Calls no driver, takes no lock.
    ///
    /// # Errors
    /// The first sticky error that a call of this device answered, with the driver's own code;
    /// [`ErrorKind::Forked`] in a forked child.
    pub fn health(&self) -> DeviceResult<()> {
        self.context.health()
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.context.driver()
    }

    /// The context that every call runs in.
    pub fn cu_context(&self) -> CuContext {
        self.context.handle()
    }

    /// The device, as the driver counts them.
    pub fn cu_device(&self) -> CuDevice {
        self.device
    }

    /// The table of streams, to open another device of the same allocator with.
    pub fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    /// Makes driver calls in this device's context, with the same rules as every method: refused after a sticky error
    /// and in a forked child, the caller's context and capture mode restored. A sticky answer is remembered.
    ///
    /// # Errors
    /// What `call` answers, and those of [`health`](Self::health).
    pub fn with_context(&self, call: impl FnOnce(&Driver) -> CuResult) -> DeviceResult<()> {
        self.context.call(call)
    }

    /// A number that describes the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn attribute(&self, attribute: CuDeviceAttribute) -> DeviceResult<i32> {
        let mut value: c_int = 0;
        self.context.call(|driver| {
            // SAFETY: `value` outlives the call, which writes one integer to it.
            unsafe { driver.device_get_attribute(&raw mut value, attribute, self.device) }
        })?;
        Ok(value)
    }

    /// Fills `bytes` bytes at `address` with `value`, in the order of `stream`. Does not wait.
    ///
    /// During a capture this becomes a node of the graph.
    ///
    /// # Errors
    /// The driver's; what the range then holds is not known. [`ErrorKind::Unsupported`] without the entry point.
    ///
    /// # Safety
    /// The range is memory of the device that may be written until the stream has come so far.
    pub unsafe fn fill(&self, address: DevicePtr, value: u8, bytes: u64, stream: CuStream) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the caller vouches for the range.
            unsafe { driver.memset_d8_async(address.0, value, bytes as usize, stream) }
        })
    }

    /// The base and size of what the driver allocated around `address`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] or the driver's code if it allocated nothing there.
    pub fn address_range(&self, address: DevicePtr) -> DeviceResult<(DevicePtr, u64)> {
        let (mut base, mut bytes) = (0, 0);
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which writes one integer to each.
            unsafe { driver.mem_get_address_range(&raw mut base, &raw mut bytes, address.0) }
        })?;
        Ok((DevicePtr(base), bytes as u64))
    }
}

/// The primary context of a device, counted once more.
fn retain(driver: &Driver, device: CuDevice) -> DeviceResult<CuContext> {
    let mut context = CuContext::NULL;
    // SAFETY: `context` outlives the call, which writes one handle to it.
    checked(unsafe { driver.device_primary_ctx_retain(&raw mut context, device) })?;
    Ok(context)
}

/// A code that belongs to no context yet.
fn checked(code: CuResult) -> DeviceResult<()> {
    if code.is_success() { Ok(()) } else { Err(code.error()) }
}

impl DeviceMemory for CudaDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut address = 0;
        self.context.call(|driver| {
            // SAFETY: `address` outlives the call, which writes one address to it.
            unsafe { driver.mem_alloc(&raw mut address, bytes as usize) }
        })?;
        if address == 0 || !address.is_multiple_of(UNIT) {
            // cuda.h promises less than a multiple of 512 though every driver gives it; refuse rather than hand out.
            let _ = self.context.call(|driver| {
                // SAFETY: takes no host pointers; the memory was just obtained, and nobody has seen its address.
                unsafe { driver.mem_free(address) }
            });
            return Err(CuResult::UNKNOWN.error());
        }
        Ok(DevicePtr(address))
    }

    fn release(&self, base: DevicePtr, _bytes: u64) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator gives back only what `obtain` gave it, once.
            unsafe { driver.mem_free(base.0) }
        })
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which writes one integer to each.
            unsafe { driver.mem_get_info(&raw mut free, &raw mut total) }
        })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn create_event(&self) -> DeviceResult<Event> {
        let mut event = CuEvent::NULL;
        self.context.call(|driver| {
            // SAFETY: `event` outlives the call, which writes one handle to it.
            unsafe { driver.event_create(&raw mut event, CuEventFlags::DISABLE_TIMING) }
        })?;
        Ok(Event(event.0 as u64))
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; events are made here and destroyed once.
            unsafe { driver.event_destroy(CuEvent(event.0 as usize)) }
        })
    }

    /// Marks the present end of `stream` with `event`.
    ///
    /// A stream of another device is waited for on a stream of this one, so that the event tells of it. Another thread's
    /// own default stream is told of by the legacy default stream, which comes after it. Of a retired stream nothing is
    /// left to record: this waits on the host until it is done. A stream that captures is refused
    /// ([`ErrorKind::NotPermittedInCapture`]), because to ask after the event would spoil the capture.
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.record_number(CuEvent(event.0 as usize), stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        let _scope = self.context.enter()?;
        // SAFETY: takes no host pointers; events are made here and not queried once destroyed.
        match unsafe { self.driver().event_query(CuEvent(event.0 as usize)) } {
            CuResult::NOT_READY => Ok(false),
            code => self.context.check(code).map(|()| true),
        }
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; events are made here and not waited for once destroyed.
            unsafe { driver.event_synchronize(CuEvent(event.0 as usize)) }
        })
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.synchronize_number(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.is_number_capturing(stream)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.virtual_memory.is_some().then_some(self as &dyn VirtualMemory)
    }

    /// What the driver's management library says of this process; slow, for reports. `None` where it does not know the
    /// process, as in a container with process ids of its own.
    fn process_use(&self) -> Option<u64> {
        self.memory_users().ok()?.own()
    }

    /// Threads are counted from 1 in the order in which they first asked.
    fn thread_id(&self) -> u64 {
        crate::streams::this_thread()
    }

    fn pause(&self, us: u64) -> bool {
        std::thread::sleep(Duration::from_micros(us));
        true
    }

    fn ticks(&self) -> u64 {
        clock::ticks()
    }

    fn time_us(&self, ticks: u64) -> u64 {
        clock::time_us(ticks)
    }
}
