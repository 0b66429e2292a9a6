//! What stands behind a handle: an allocator over its devices, how it is made and how it ends.

use crate::abi::{
    CACHALOT_ASK_STREAM_ID, CACHALOT_ENVIRONMENT, CACHALOT_NO_CACHING, CACHALOT_OPEN_LATER, CACHALOT_PEER_ACCESS,
    CACHALOT_SIMULATED, cachalot_options, cachalot_stream,
};
use crate::callbacks::Callbacks;
use crate::device::{Backing, Device};
use crate::lazy_device::LazyDevice;
use crate::lock::HeapLock;
use crate::marshal::{self, Versioned};
use crate::planner::Planner;
use crate::stacks::Stacks;
use crate::status::{
    CACHALOT_ERROR_BUSY, CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_STILL_HELD, CACHALOT_ERROR_UNKNOWN_DEVICE, Host,
    Outcome, Status,
};
use crate::upkeep::Upkeep;
use cachalot_core::simulated::{AddressSpace, SimulatedDevice};
use cachalot_core::{Allocator, Config, DeviceIndex, Growable, StreamId};
use cachalot_cuda::driver::types::{CuContext, CuStream};
use cachalot_cuda::{CuResult, CudaDevice, DeviceOptions, Driver, StreamIdentity, Streams};
use core::ffi::c_int;
use std::sync::Arc;

/// The most devices an allocator can have, as the core has it.
const MAX_DEVICES: u32 = 127;
/// Memory of a simulated device if the options name none, in bytes.
const SIMULATED_BYTES: u64 = 16 << 30;
/// The addresses of all simulated devices of the process: no allocator takes another's block for its own.
static SIMULATED_ADDRESSES: AddressSpace = AddressSpace::new(1 << 44..1 << 58);
/// Where PyTorch's settings are read, the newer name first.
pub(crate) const ENVIRONMENT: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
/// Every flag that has a meaning.
const FLAGS: u32 = CACHALOT_SIMULATED
    | CACHALOT_NO_CACHING
    | CACHALOT_ASK_STREAM_ID
    | CACHALOT_PEER_ACCESS
    | CACHALOT_ENVIRONMENT
    | CACHALOT_OPEN_LATER;

// SAFETY: `repr(C)` with its size first, and numbers and pointers without padding.
unsafe impl Versioned for cachalot_options {
    // Version 0.1: everything up to `simulated_bytes`.
    const FIRST_SIZE: usize = 56;
}

impl cachalot_options {
    /// What `CACHALOT_OPTIONS_INIT` says.
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

/// An allocator and what belongs to it.
pub(crate) struct Instance {
    /// Declared before the allocator that its thread uses: dropped first.
    pub(crate) upkeep: Upkeep,
    pub(crate) allocator: Allocator<Device, HeapLock, Growable>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) planner: Planner,
}

/// The options, understood.
struct ParsedOptions {
    flags: u32,
    /// Ordinal and context of each device. Empty: every device of the driver, or one simulated.
    devices: Vec<(c_int, Option<CuContext>)>,
    config: Config,
    limit: Option<u64>,
    simulated_bytes: u64,
}

impl Instance {
    /// Opens the devices and makes an allocator over them.
    ///
    /// # Safety
    /// The pointers among the options are NULL or what the header says they are.
    pub(crate) unsafe fn open(options: &cachalot_options, host: Host) -> Outcome<Box<Self>> {
        // SAFETY: the caller's promise.
        let parsed = unsafe { ParsedOptions::read(options) }?;
        let callbacks = Arc::new(Callbacks::new(host));
        let stacks = Arc::new(Stacks::default());
        let devices = if parsed.has(CACHALOT_SIMULATED) { parsed.simulate() } else { parsed.cuda(host)? };
        let devices = (0..).zip(devices).map(|(number, (ordinal, backing))| Device {
            backing,
            number,
            ordinal,
            callbacks: Arc::clone(&callbacks),
            stacks: Arc::clone(&stacks),
        });
        let allocator = Allocator::new(devices, &parsed.config)?;
        let instance =
            Box::new(Self { upkeep: Upkeep::default(), allocator, callbacks, stacks, planner: Planner::default() });
        for device in instance.devices() {
            if parsed.limit.is_some() {
                instance.allocator.set_limit(device, parsed.limit)?;
            }
            instance.allocator.set_caching(device, !parsed.has(CACHALOT_NO_CACHING))?;
        }
        Ok(instance)
    }

    /// The numbers of the devices.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceIndex> + use<> {
        (0..self.allocator.device_count()).map(DeviceIndex)
    }

    /// The device with a number from C.
    #[inline(always)]
    pub(crate) fn device(&self, number: c_int) -> Outcome<(DeviceIndex, &Device)> {
        // A negative number becomes one that no device has.
        let index = DeviceIndex(number as u32);
        match self.allocator.device(index) {
            Some(device) => Ok((index, device)),
            None => Err(unknown_device(number)),
        }
    }

    /// The allocator's number of a stream that uses a block of another one, whichever device it is of.
    #[inline(always)]
    pub(crate) fn stream_in_use(&self, stream: cachalot_stream) -> Outcome<StreamId> {
        // The devices of an allocator share one table of streams, and any that is open can ask the driver.
        let (_, mut device) = self.device(0)?;
        if !device.is_open() {
            let mut devices = self.devices().filter_map(|index| self.allocator.device(index));
            device = devices.find(|device| device.is_open()).unwrap_or(device);
        }
        device.stream_in_use(CuStream(stream.addr()))
    }

    /// Puts settings in force on every device. If the driver does not tell how much a fraction is, nothing changes.
    pub(crate) fn configure(&self, text: &str) -> Outcome {
        let Some(first) = self.devices().next() else { return Ok(()) };
        let mut config = self.allocator.config(first)?;
        let fraction = config.per_process_memory_fraction();
        config.update(text)?;
        if config.per_process_memory_fraction().to_bits() != fraction.to_bits() {
            self.set_fractions(config.per_process_memory_fraction())?;
        }
        self.allocator.configure(&config);
        Ok(())
    }

    /// Sets every device's limit to this part of its memory, or none.
    fn set_fractions(&self, fraction: f64) -> Outcome {
        let limits: Vec<_> = self.devices().map(|device| (device, self.allocator.limit(device))).collect();
        for device in self.devices() {
            if let Err(error) = self.allocator.set_memory_fraction(device, fraction) {
                for (device, limit) in limits {
                    self.allocator.set_limit(device, limit?)?;
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Checks that the allocator may be destroyed now.
    pub(crate) fn check_idle(&self) -> Outcome {
        if self.callbacks.are_running() {
            return Err(Status::new(CACHALOT_ERROR_BUSY, "a callback of this allocator is running"));
        }
        Ok(())
    }

    /// Gives everything back that nobody can use any more. The first failure is reported; the rest is done all the same.
    pub(crate) fn close(&self) -> Outcome {
        let mut outcome = Ok(());
        for device in self.devices() {
            let given_up = self.allocator.give_plans_up(device);
            let emptied = self.allocator.empty_cache(device);
            outcome = outcome.and_then(|()| Ok(given_up.and(emptied)?));
        }
        for index in self.devices() {
            let closed = self.close_device(index);
            outcome = outcome.and(closed);
        }
        outcome
    }

    /// Gives a device's context back, unless memory of it is still held.
    fn close_device(&self, index: DeviceIndex) -> Outcome {
        let stats = self.allocator.stats(index)?;
        let (blocks, held) = (stats.allocations().current, stats.reserved_bytes().current);
        let leaked = self.allocator.leaked_bytes(index)?;
        let Some(device) = self.allocator.device(index) else { return Ok(()) };
        if held > 0 || leaked > 0 {
            // The context is kept: what still uses the memory goes on. So are a simulated device's addresses.
            if let Some(simulated) = device.simulated() {
                simulated.keep_addresses();
            }
            let allocated = stats.allocated_bytes().current;
            let text = format!(
                "device {}: {blocks} blocks of {allocated} bytes are still held, {held} bytes of segments were not given back",
                index.0
            );
            return Err(Status::new(CACHALOT_ERROR_STILL_HELD, text));
        }
        device.cuda().map_or(Ok(()), |device| Ok(device.close()?))
    }
}

/// The allocator has no such device.
#[cold]
pub(crate) fn unknown_device(number: c_int) -> Status {
    Status::new(CACHALOT_ERROR_UNKNOWN_DEVICE, format_args!("the allocator has no device {number}"))
}

impl ParsedOptions {
    /// Understands the options.
    ///
    /// # Safety
    /// The pointers among the options are NULL or what the header says they are.
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
        // SAFETY: the caller's promise.
        let (ordinals, contexts) =
            (unsafe { marshal::array(devices, count) }, unsafe { marshal::array(contexts, count) });
        if flags & CACHALOT_PEER_ACCESS != 0 && flags & CACHALOT_OPEN_LATER != 0 {
            return Err(Status::argument(format_args!("options: peers are devices that are open")));
        }
        let devices = (0..count).map(|index| {
            let context = contexts.get(index).map(|context| CuContext(context.addr()));
            let ordinal = ordinals.get(index).copied().unwrap_or(index as c_int);
            (ordinal, context.filter(|context| !context.is_null()))
        });
        Ok(Self {
            flags,
            devices: devices.collect(),
            // SAFETY: the caller's promise.
            config: unsafe { config(options) }?,
            limit: (limit_bytes != 0).then_some(limit_bytes),
            simulated_bytes: if options.simulated_bytes == 0 { SIMULATED_BYTES } else { options.simulated_bytes },
        })
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Simulated devices.
    fn simulate(&self) -> Vec<(c_int, Backing)> {
        let one = [(0, None)];
        let devices = if self.devices.is_empty() { &one[..] } else { &self.devices };
        let simulate = |&(ordinal, _): &(c_int, _)| {
            let device = SimulatedDevice::within(&SIMULATED_ADDRESSES, self.simulated_bytes);
            (ordinal, Backing::Simulated(device))
        };
        devices.iter().map(simulate).collect()
    }

    /// The driver's devices.
    fn cuda(&self, host: Host) -> Outcome<Vec<(c_int, Backing)>> {
        let driver = Driver::load().map_err(|error| Status::no_driver(&error, host))?;
        let count = driver.device_count().map_err(CuResult::error)?;
        let mut wanted = self.devices.clone();
        if wanted.is_empty() {
            wanted.extend((0..count.min(MAX_DEVICES)).map(|ordinal| (ordinal as c_int, None)));
        }
        let identity = if self.has(CACHALOT_ASK_STREAM_ID) { StreamIdentity::Asked } else { StreamIdentity::Reported };
        let streams = Arc::new(Streams::new());
        let options = |context| DeviceOptions { context, identity, streams: Arc::clone(&streams) };
        let wanted = wanted.into_iter().map(|(ordinal, context)| (ordinal, options(context)));
        if !self.has(CACHALOT_OPEN_LATER) {
            return self.open(driver, wanted);
        }
        let later = wanted.map(|(ordinal, options)| match u32::try_from(ordinal) {
            Ok(number) if number < count => Ok((ordinal, Backing::Lazy(LazyDevice::new(driver, number, options)))),
            _ => Err(no_such(ordinal, CuResult::INVALID_DEVICE)),
        });
        later.collect()
    }

    /// Opens devices. If one cannot be opened, those before it are closed again.
    fn open(
        &self,
        driver: &'static Driver,
        wanted: impl Iterator<Item = (c_int, DeviceOptions)>,
    ) -> Outcome<Vec<(c_int, Backing)>> {
        let mut devices: Vec<(c_int, CudaDevice)> = Vec::new();
        let mut opened = Ok(());
        for (ordinal, options) in wanted {
            match open_one(driver, ordinal, options) {
                Ok(device) => devices.push((ordinal, device)),
                Err(status) => opened = Err(status),
            }
            if opened.is_err() {
                break;
            }
        }
        if opened.is_ok() && self.has(CACHALOT_PEER_ACCESS) {
            opened = connect(&devices);
        }
        if let Err(status) = opened {
            for (_, device) in &devices {
                // The first failure is the one to tell.
                let _ = device.close();
            }
            return Err(status);
        }
        Ok(devices.into_iter().map(|(ordinal, device)| (ordinal, Backing::Cuda(device))).collect())
    }
}

/// The driver has no such device.
#[cold]
fn no_such(ordinal: c_int, code: CuResult) -> Status {
    Status::with_driver_code(CACHALOT_ERROR_UNKNOWN_DEVICE, code.0, format_args!("the driver has no device {ordinal}"))
}

/// Opens one of the driver's devices.
fn open_one(driver: &'static Driver, ordinal: c_int, options: DeviceOptions) -> Outcome<CudaDevice> {
    let number = u32::try_from(ordinal).map_err(|_| no_such(ordinal, CuResult::INVALID_DEVICE))?;
    CudaDevice::open_with(driver, number, options).map_err(|error| {
        if error.code == CuResult::INVALID_DEVICE.0 { no_such(ordinal, CuResult::INVALID_DEVICE) } else { error.into() }
    })
}

/// Opens every device's memory to every other that can reach it.
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

/// The settings: those of the environment if that is asked for, and the program's behind them, so that its own count.
///
/// # Safety
/// The text is NULL or ended by NUL.
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
        // SAFETY: not NULL, and the caller's promise.
        let own = unsafe { marshal::text(options.config, "options.config", CACHALOT_ERROR_INVALID_CONFIG) }?;
        if !(text.is_empty() || own.is_empty()) {
            text.push(',');
        }
        text.push_str(own);
    }
    Ok(Config::parse(&text)?)
}
