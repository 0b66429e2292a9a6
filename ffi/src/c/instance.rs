//! The allocator behind a handle: options, devices, creation and destruction.

use crate::c::abi::{
    CACHALOT_ASK_STREAM_ID, CACHALOT_ENVIRONMENT, CACHALOT_HOST, CACHALOT_NO_CACHING, CACHALOT_OPEN_LATER,
    CACHALOT_PEER_ACCESS, CACHALOT_SIMULATED, CACHALOT_STREAMS_REPORTED, cachalot_options, cachalot_stream,
};
use crate::c::announced::{Announced, orders_memory};
use crate::c::callbacks::Callbacks;
use crate::c::device::{Backing, Device, SharedAllocator};
use crate::c::idle::IdleWork;
use crate::c::known_streams::KnownStreams;
use crate::c::lazy_device::LazyDevice;
use crate::c::marshal::{self, Versioned};
use crate::c::notes;
use crate::c::recorder::Recorder;
use crate::c::stacks::Stacks;
use crate::c::status::{
    CACHALOT_ERROR_BUSY, CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_STILL_HELD, CACHALOT_ERROR_UNKNOWN_DEVICE, Host,
    Outcome, Status,
};
use crate::c::upkeep::Upkeep;
use crate::open::host_config;
use crate::planner::Planner;
use cachalot_core::simulated::{AddressSpace, SimulatedDevice};
use cachalot_core::{Allocator, Config, DeviceIndex, DevicePtr, DeviceResult, Error, StreamId};
use cachalot_cuda::driver::types::{CuContext, CuStream};
use cachalot_cuda::{CuResult, CudaDevice, DeviceOptions, Driver, HostDevice, StreamIdentity, Streams, log};
use cachalot_tuner::program::Simulates;
use core::ffi::c_int;
use std::sync::Arc;

/// Greatest number of devices of an allocator, from the core.
const MAX_DEVICES: u32 = 127;
/// Memory of a simulated device in bytes, if the options give no size.
const SIMULATED_BYTES: u64 = 16 << 30;
/// Addresses of all simulated devices of the process. No two simulated devices share an address.
static SIMULATED_ADDRESSES: AddressSpace = AddressSpace::new(1 << 44..1 << 58);
/// Environment variables with PyTorch's settings, the newer name first.
pub(crate) const ENVIRONMENT: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
/// All flags with a meaning.
const FLAGS: u32 = CACHALOT_SIMULATED
    | CACHALOT_NO_CACHING
    | CACHALOT_ASK_STREAM_ID
    | CACHALOT_PEER_ACCESS
    | CACHALOT_ENVIRONMENT
    | CACHALOT_OPEN_LATER
    | CACHALOT_HOST
    | CACHALOT_STREAMS_REPORTED;
/// Flags that concern memory of devices.
const NOT_OF_HOST: u32 = CACHALOT_SIMULATED | CACHALOT_PEER_ACCESS | CACHALOT_OPEN_LATER;

// SAFETY: `repr(C)`, starts with the size, and consists of numbers and pointers without padding.
unsafe impl Versioned for cachalot_options {
    // Version 0.1: all fields up to `simulated_bytes`.
    const FIRST_SIZE: usize = 56;
}

impl cachalot_options {
    /// Rust counterpart of `CACHALOT_OPTIONS_INIT`.
    pub const INIT: Self = Self {
        struct_size: size_of::<Self>(),
        flags: 0,
        device_count: 0,
        devices: core::ptr::null(),
        contexts: core::ptr::null(),
        config: core::ptr::null(),
        limit_bytes: 0,
        simulated_bytes: 0,
    };
}

/// An allocator with callbacks and settings.
pub(crate) struct Instance {
    /// Declared before the allocator that its thread uses: dropped first.
    pub(crate) upkeep: Upkeep,
    pub(crate) allocator: SharedAllocator,
    /// The numbers of streams that take no call, the same for all devices.
    known_streams: KnownStreams,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) planner: Planner,
    pub(crate) idle: Arc<IdleWork>,
}

/// The options after parsing.
struct ParsedOptions {
    flags: u32,
    /// Ordinal and context of each device. If empty, every device of the driver or one simulated
    /// device.
    devices: Vec<(c_int, Option<CuContext>)>,
    config: Config,
    limit: Option<u64>,
    simulated_bytes: u64,
}

/// Returns a number of things in words, such as `1 block`.
fn counted(count: i64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl Instance {
    /// Opens the devices and creates an allocator over them.
    ///
    /// # Safety
    /// Each pointer among the options is NULL or valid as the header requires.
    pub(crate) unsafe fn open(options: &cachalot_options, host: Host) -> Outcome<Box<Self>> {
        // SAFETY: guaranteed by the caller.
        let mut parsed = unsafe { ParsedOptions::read(options) }?;
        let announced = parsed.announced().map(Arc::new);
        let callbacks = Arc::new(Callbacks::new(host));
        let (stacks, recorder) = (Arc::new(Stacks::default()), Arc::new(Recorder::default()));
        let streams = Arc::new(Streams::new());
        let devices = if parsed.has(CACHALOT_SIMULATED) { parsed.simulate() } else { parsed.cuda(host, &streams)? };
        let devices = (0..).zip(devices).map(|(number, (ordinal, backing))| Device {
            backing,
            number,
            ordinal,
            callbacks: Arc::clone(&callbacks),
            stacks: Arc::clone(&stacks),
            recorder: Arc::clone(&recorder),
            announced: announced.clone(),
        });
        let allocator = Allocator::new(devices, &parsed.config)?;
        let instance = Box::new(Self {
            upkeep: Upkeep::default(),
            allocator,
            known_streams: parsed.known_streams(streams),
            callbacks,
            stacks,
            recorder,
            planner: Planner::default(),
            idle: Arc::default(),
        });
        for device in instance.devices() {
            if parsed.limit.is_some() {
                instance.allocator.settings(device)?.set_limit(parsed.limit);
            }
            if announced.is_some() {
                instance.allocator.trace(device)?.watch_frees(true);
                instance.allocator.trace(device)?.report(true);
            }
            instance.allocator.settings(device)?.set_caching(!parsed.has(CACHALOT_NO_CACHING));
        }
        parsed.tell_notes();
        log::info(format_args!(
            "allocator created: cachalot {}, {}, settings `{}`",
            env!("CARGO_PKG_VERSION"),
            counted(instance.allocator.device_count().into(), "device"),
            words(&parsed.config)
        ));
        Ok(instance)
    }

    /// Returns the numbers of the devices.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceIndex> + use<> {
        (0..self.allocator.device_count()).map(DeviceIndex)
    }

    /// Returns the device with a number from C.
    #[inline(always)]
    pub(crate) fn device(&self, number: c_int) -> Outcome<(DeviceIndex, &Device)> {
        // The cast turns a negative number into a number above every device's.
        let index = DeviceIndex(number as u32);
        match self.allocator.device(index) {
            Some(device) => Ok((index, device)),
            None => Err(unknown_device(number)),
        }
    }

    /// Allocates a block of at least `bytes` bytes on the device with a number from C, usable at
    /// once on `stream`. Opens the device first if necessary. `E` is the failure in the words for
    /// the program.
    pub(crate) fn malloc<E: From<Error> + From<Status>>(
        &self,
        device: c_int,
        bytes: usize,
        stream: cachalot_stream,
    ) -> Result<DevicePtr, E> {
        let (index, device) = self.device(device)?;
        let stream = device.stream_of_request(CuStream(stream.addr()))?;
        Ok(self.allocator.malloc_anew(index, bytes as u64, stream)?)
    }

    /// Allocates a block as [`malloc`](Self::malloc) does, or returns `None` and has changed
    /// nothing.
    #[inline(always)]
    pub(crate) fn malloc_straight(&self, device: c_int, bytes: usize, stream: cachalot_stream) -> Option<DevicePtr> {
        let stream = self.known_streams.number(CuStream(stream.addr()))?;
        // The cast turns a negative number into a number above every device's.
        self.allocator.malloc_straight(DeviceIndex(device as u32), bytes as u64, stream)
    }

    /// Frees a block as [`free`](Self::free) does, or returns false and has changed nothing.
    #[inline(always)]
    pub(crate) fn free_straight(&self, block: DevicePtr, bytes: Option<u64>) -> bool {
        self.allocator.free_straight(block, bytes)
    }

    /// Frees a block, after a check of the requested size if `bytes` is given.
    pub(crate) fn free(&self, block: DevicePtr, bytes: Option<u64>) -> Outcome {
        Ok(self.allocator.free_anew(block, bytes)?)
    }

    /// Returns the number of a stream that uses a block of another stream, on any device.
    #[inline(always)]
    pub(crate) fn stream_in_use(&self, stream: cachalot_stream) -> Outcome<StreamId> {
        // The devices of an allocator share one table of streams. Any open device can ask the
        // driver.
        let (_, mut device) = self.device(0)?;
        if !device.is_open() {
            let mut devices = self.devices().filter_map(|index| self.allocator.device(index));
            device = devices.find(|device| device.is_open()).unwrap_or(device);
        }
        device.stream_in_use(CuStream(stream.addr()))
    }

    /// Applies settings to every device. Nothing changes if the driver cannot tell a device's
    /// memory.
    pub(crate) fn configure(&self, text: &str) -> Outcome {
        let Some(first) = self.devices().next() else { return Ok(()) };
        // Not the settings that `tune:auto` has found: they end with a change by the program.
        let mut config = self.allocator.tuning(first)?.own_config();
        let fraction = config.per_process_memory_fraction();
        config.update(text)?;
        if config.per_process_memory_fraction().to_bits() != fraction.to_bits() {
            self.set_fractions(config.per_process_memory_fraction())?;
        }
        self.allocator.configure(&config);
        Ok(())
    }

    /// Limits every device to a fraction of the device's memory. On failure restores every limit.
    fn set_fractions(&self, fraction: f64) -> Outcome {
        let limits: Vec<_> = self
            .devices()
            .map(|device| (device, self.allocator.settings(device).map(|settings| settings.limit())))
            .collect();
        for device in self.devices() {
            if let Err(error) = self.allocator.settings(device)?.set_memory_fraction(fraction) {
                for (device, limit) in limits {
                    self.allocator.settings(device)?.set_limit(limit?);
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Checks that no callback of the allocator is running.
    pub(crate) fn check_idle(&self) -> Outcome {
        if self.callbacks.are_running() {
            return Err(Status::new(CACHALOT_ERROR_BUSY, "a callback of this allocator is running"));
        }
        Ok(())
    }

    /// Releases all memory without a user, then closes the devices. After a failure the work
    /// continues, and the first failure is returned.
    pub(crate) fn close(&self) -> Outcome {
        let mut outcome = Ok(());
        for device in self.devices() {
            if let Some(cuda) = self.allocator.device(device).and_then(Device::cuda) {
                // A context that is gone is found before its memory counts as held.
                let _noted = self.allocator.note_result(device, cuda.look());
            }
            let given_up = self.allocator.plans(device).and_then(|plans| plans.give_up());
            let emptied = self.allocator.empty_cache(device);
            outcome = outcome.and_then(|()| Ok(given_up.and(emptied)?));
        }
        for index in self.devices() {
            let closed = self.close_device(index);
            outcome = outcome.and(closed);
        }
        outcome
    }

    /// Closes a device, unless memory of the device is still in use.
    fn close_device(&self, index: DeviceIndex) -> Outcome {
        let stats = self.allocator.stats(index)?.totals();
        let (blocks, held) = (stats.allocations().current, stats.reserved_bytes().current);
        let leaked = self.allocator.stats(index)?.leaked_bytes();
        let Some(device) = self.allocator.device(index) else { return Ok(()) };
        if let Some(cuda) = device.cuda().filter(|cuda| cuda.is_gone()) {
            // What is held has gone with the context, live blocks included.
            return Ok(cuda.close().map_err(cachalot_core::Error::from)?);
        }
        // A range without memory holds addresses, and counts as a block.
        if blocks > 0 || held > 0 || leaked > 0 {
            // A live block needs the context, or the addresses of a simulated device, so both
            // stay.
            if let Some(simulated) = device.simulated() {
                simulated.keep_addresses();
            }
            let allocated = stats.allocated_bytes().current;
            // Where the cache could be emptied, only these keep memory without a block.
            let why = match (blocks == 0 && held > 0, self.allocator.pools(index)?.are_capturing()) {
                (true, true) => ": a capture was started and not ended",
                (true, false) => ": a private pool has users, or pages are pinned",
                (false, _) => "",
            };
            let doubt = match leaked {
                0 => String::new(),
                _ => format!("; {leaked} bytes are in doubt, because the driver failed to release them"),
            };
            let text = format!(
                "device {}: {} of {allocated} bytes {} still held, {held} bytes of segments were not given back{why}{doubt}",
                index.0,
                counted(blocks, "block"),
                if blocks == 1 { "is" } else { "are" }
            );
            return Err(Status::new(CACHALOT_ERROR_STILL_HELD, text));
        }
        // The context may live on.
        self.allocator.pages(index)?.end_quarantine();
        let destroyed = self.allocator.destroy_idle_events(index);
        let closed = device.cuda().map_or(Ok(()), CudaDevice::close);
        Ok(destroyed.and(closed.map_err(cachalot_core::Error::from))?)
    }
}

/// Refuses a device number that the allocator does not have.
#[cold]
pub(crate) fn unknown_device(number: c_int) -> Status {
    Status::new(CACHALOT_ERROR_UNKNOWN_DEVICE, format_args!("the allocator has no device {number}"))
}

impl ParsedOptions {
    /// Parses the options.
    ///
    /// # Safety
    /// Each pointer among the options is NULL or valid as the header requires.
    unsafe fn read(options: &cachalot_options) -> Outcome<Self> {
        let cachalot_options { flags, device_count, devices, contexts, limit_bytes, .. } = *options;
        if flags & !FLAGS != 0 {
            return Err(Status::argument(format_args!("options: the flags {:#x} have no meaning", flags & !FLAGS)));
        }
        if device_count > MAX_DEVICES {
            return Err(Status::argument(format_args!(
                "options: {device_count} devices, and {MAX_DEVICES} are the most"
            )));
        }
        if device_count == 0 && !(devices.is_null() && contexts.is_null()) {
            return Err(Status::argument(format_args!("options: devices are named, and device_count is 0")));
        }
        let count = device_count as usize;
        // SAFETY: guaranteed by the caller.
        let (ordinals, contexts) =
            (unsafe { marshal::array(devices, count) }, unsafe { marshal::array(contexts, count) });
        if flags & CACHALOT_PEER_ACCESS != 0 && flags & CACHALOT_OPEN_LATER != 0 {
            return Err(Status::argument(format_args!("options: peers are devices that are open")));
        }
        if flags & CACHALOT_HOST != 0 && flags & NOT_OF_HOST != 0 {
            return Err(Status::argument(format_args!(
                "options: host memory belongs to open devices of the driver, and every device may use it"
            )));
        }
        if flags & CACHALOT_STREAMS_REPORTED != 0 && flags & CACHALOT_ASK_STREAM_ID != 0 {
            return Err(Status::argument(format_args!(
                "options: if the ends of streams are reported, their ids need not be asked for"
            )));
        }
        let devices = (0..count).map(|index| {
            let context = contexts.get(index).map(|context| CuContext(context.addr()));
            let ordinal = ordinals.get(index).copied().unwrap_or(index as c_int);
            (ordinal, context.filter(|context| !context.is_null()))
        });
        Ok(Self {
            flags,
            devices: devices.collect(),
            // SAFETY: guaranteed by the caller.
            config: unsafe { config(options) }?,
            limit: (limit_bytes != 0).then_some(limit_bytes),
            simulated_bytes: if options.simulated_bytes == 0 { SIMULATED_BYTES } else { options.simulated_bytes },
        })
    }

    /// Returns what a memory checker is told, if one listens. It knows device memory alone.
    fn announced(&mut self) -> Option<Announced> {
        if self.has(CACHALOT_SIMULATED) || self.has(CACHALOT_HOST) { None } else { Announced::begin(&mut self.config) }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Warns of settings without effect.
    fn tell_notes(&self) {
        let mut config = self.config.clone();
        // The host has no virtual memory, so its segments never expand.
        config.set_expandable_segments(config.expandable_segments() && !self.has(CACHALOT_HOST));
        notes::tell(&config, self.limit.is_some());
    }

    /// Returns how the numbers of streams are known. `streams` is the table of the driver's
    /// streams.
    fn known_streams(&self, streams: Arc<Streams>) -> KnownStreams {
        if self.has(CACHALOT_SIMULATED) {
            KnownStreams::Simulated
        } else if self.has(CACHALOT_HOST) {
            KnownStreams::OfHost
        } else if self.has(CACHALOT_ASK_STREAM_ID) {
            KnownStreams::None
        } else {
            KnownStreams::InTable(streams)
        }
    }

    /// Creates simulated devices.
    fn simulate(&self) -> Vec<(c_int, Backing)> {
        let one = [(0, None)];
        let devices = if self.devices.is_empty() { &one[..] } else { &self.devices };
        let simulate = |&(ordinal, _): &(c_int, _)| {
            let device = SimulatedDevice::within(&SIMULATED_ADDRESSES, self.simulated_bytes);
            (ordinal, Backing::Simulated(device))
        };
        devices.iter().map(simulate).collect()
    }

    /// Opens the driver's devices, or prepares each for opening on first use.
    fn cuda(&self, host: Host, streams: &Arc<Streams>) -> Outcome<Vec<(c_int, Backing)>> {
        let driver = Driver::load().map_err(|error| Status::no_driver(&error, host))?;
        let count = driver.device_count().map_err(CuResult::error)?;
        let mut wanted = self.devices.clone();
        if wanted.is_empty() {
            wanted.extend((0..count.min(MAX_DEVICES)).map(|ordinal| (ordinal as c_int, None)));
        }
        let identity = if self.has(CACHALOT_STREAMS_REPORTED) {
            StreamIdentity::Reported
        } else if self.has(CACHALOT_ASK_STREAM_ID) {
            StreamIdentity::Asked
        } else {
            // A program that forgets a report must not crash.
            StreamIdentity::Unreported
        };
        let stream_ordered = orders_memory(&self.config);
        let options = |context| DeviceOptions {
            context,
            identity,
            streams: Arc::clone(streams),
            stream_ordered,
            ..DeviceOptions::default()
        };
        let wanted = wanted.into_iter().map(|(ordinal, context)| (ordinal, options(context)));
        if self.has(CACHALOT_HOST) {
            let open = |number, options| HostDevice::open_with(driver, number, options);
            let opened = open_all(wanted, open, HostDevice::close)?;
            return Ok(opened.into_iter().map(|(ordinal, host)| (ordinal, Backing::Host(host))).collect());
        }
        if !self.has(CACHALOT_OPEN_LATER) {
            return self.open(driver, wanted);
        }
        let later = wanted.map(|(ordinal, options)| match u32::try_from(ordinal) {
            Ok(number) if number < count => Ok((ordinal, Backing::Lazy(LazyDevice::new(driver, number, options)))),
            _ => Err(no_such(ordinal, CuResult::INVALID_DEVICE)),
        });
        later.collect()
    }

    /// Opens devices, with access to each other's memory if asked for. After a failure closes the
    /// devices already open.
    fn open(
        &self,
        driver: &'static Driver,
        wanted: impl Iterator<Item = (c_int, DeviceOptions)>,
    ) -> Outcome<Vec<(c_int, Backing)>> {
        let open = |number, options| CudaDevice::open_with(driver, number, options);
        let devices = open_all(wanted, open, CudaDevice::close)?;
        if self.has(CACHALOT_PEER_ACCESS) {
            connect(&devices).inspect_err(|_| close_all(&devices, CudaDevice::close))?;
        }
        Ok(devices.into_iter().map(|(ordinal, device)| (ordinal, Backing::Cuda(device))).collect())
    }
}

/// Refuses an ordinal that the driver does not have.
#[cold]
fn no_such(ordinal: c_int, code: CuResult) -> Status {
    Status::with_driver_code(CACHALOT_ERROR_UNKNOWN_DEVICE, code.0, format_args!("the driver has no device {ordinal}"))
}

/// Opens devices of one kind. After a failure closes the devices already open.
fn open_all<D>(
    wanted: impl Iterator<Item = (c_int, DeviceOptions)>,
    open: impl Fn(u32, DeviceOptions) -> DeviceResult<D>,
    close: impl Fn(&D) -> DeviceResult<()>,
) -> Outcome<Vec<(c_int, D)>> {
    let mut devices = Vec::new();
    for (ordinal, options) in wanted {
        match open_one(ordinal, options, &open) {
            Ok(device) => devices.push((ordinal, device)),
            Err(status) => {
                close_all(&devices, close);
                return Err(status);
            }
        }
    }
    Ok(devices)
}

/// Closes devices after a failure, which is the one to report.
fn close_all<D>(devices: &[(c_int, D)], close: impl Fn(&D) -> DeviceResult<()>) {
    for (_, device) in devices {
        let _ = close(device);
    }
}

/// Opens a device of the driver.
fn open_one<D>(
    ordinal: c_int,
    options: DeviceOptions,
    open: impl Fn(u32, DeviceOptions) -> DeviceResult<D>,
) -> Outcome<D> {
    let number = u32::try_from(ordinal).map_err(|_| no_such(ordinal, CuResult::INVALID_DEVICE))?;
    open(number, options).map_err(|error| {
        if error.code == CuResult::INVALID_DEVICE.0 { no_such(ordinal, CuResult::INVALID_DEVICE) } else { error.into() }
    })
}

/// Opens the memory of every device to every peer with access.
fn connect(devices: &[(c_int, CudaDevice)]) -> Outcome {
    for (at, (_, device)) in devices.iter().enumerate() {
        for (other, (_, peer)) in devices.iter().enumerate() {
            if at != other && device.can_be_reached_from(peer)? {
                device.allow_access_from(peer)?;
            }
        }
    }
    Ok(())
}

/// Returns settings as people read them: without any, the policy alone.
pub(crate) fn words(config: &Config) -> String {
    let text = config.to_string();
    if text.is_empty() { format!("policy:{}", config.policy_name()) } else { text }
}

/// Reads the settings of the environment, if asked for, followed by the program's. A later setting
/// wins.
///
/// # Safety
/// The configuration is NULL or NUL-terminated.
unsafe fn config(options: &cachalot_options) -> Outcome<Config> {
    let mut text = String::new();
    if options.flags & CACHALOT_ENVIRONMENT != 0
        && let Some(set) = ENVIRONMENT.iter().find_map(std::env::var_os)
    {
        let set = set
            .to_str()
            .ok_or_else(|| Status::new(CACHALOT_ERROR_INVALID_CONFIG, "the environment's settings are not UTF-8"))?;
        text.push_str(set);
    }
    if !options.config.is_null() {
        // SAFETY: not NULL, the rest is guaranteed by the caller.
        let own = unsafe { marshal::text(options.config, "options.config", CACHALOT_ERROR_INVALID_CONFIG) }?;
        if !(text.is_empty() || own.is_empty()) {
            text.push(',');
        }
        text.push_str(own);
    }
    if options.flags & CACHALOT_HOST != 0 {
        return Ok(host_config(&text)?);
    }
    Ok(crate::parse(&text)?)
}
