//! The allocator of a context.

use crate::charge::Charge;
use crate::options::Options;
use crate::real::Real;
use crate::record::Record;
use crate::serve::device::{AllocatorOwner, ServedDevice};
use crate::serve::frees::Frees;
use cachalot_core::config::ConfigError;
use cachalot_core::{Allocator, Config, DeviceIndex, DevicePtr, Error, EventTimes, ParkTarget};
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuStream, CuStreamFlags};
use cachalot_cuda::{CuResult, CudaDevice, DeviceOptions, HeapLock, StreamIdentity, Streams};
use cachalot_policies::Tables;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The settings unless the program's own settings say otherwise, besides the slack. Each block of
/// more than 1 MiB starts a segment of the block's size, also when the segment serves again: a
/// request may leave up to a quarter of its size, and no segment is cut. Only a request beyond the
/// memory of the device is cut from a free segment.
pub(super) const SETTINGS: &str = "exact_segments:True,compact:1,max_split_size_mb:20";

/// Settings in place of [`SETTINGS`] for memory that can be parked: blocks are on pages. Pages of
/// 20 MiB wake at the rate of the link (46 GiB/s of 49 on an H100), and pages of 2 MiB at 38 GiB/s.
pub(super) const PAGES: &str = "expandable_segments:True";

/// The only device of a context's allocator.
pub(super) const DEVICE: DeviceIndex = DeviceIndex(0);

/// A served context.
pub(super) struct Served {
    context: CuContext,
    device: CuDevice,
    allocator: Allocator<ServedDevice, HeapLock, Tables>,
    /// Whether memory in the order of streams was ever served.
    ordered: AtomicBool,
    /// A stream of the library's own, or 0 before the first block to clear.
    clearing: AtomicUsize,
    /// The greatest reserved and used bytes before the allocator's figures started anew for the
    /// other one.
    highest_before: Mutex<[u64; 2]>,
}

impl Served {
    /// Opens the allocator of a context, which is current. Calls the driver.
    ///
    /// # Errors
    /// The driver's code. The program's request is then passed on.
    pub(super) fn open(
        real: &'static Real,
        context: CuContext,
        settings: &Config,
        streams: &Arc<Streams>,
        charge: &Charge,
        frees: &Arc<Frees>,
        begin_record: impl FnOnce() -> Option<Arc<Record>>,
    ) -> Result<Arc<Self>, CuResult> {
        let driver = real.driver().map_err(|_| CuResult::NOT_INITIALIZED)?;
        let mut device = CuDevice::default();
        // SAFETY: `device` outlives the call, which writes one integer to it.
        let asked = unsafe { real.ctx_get_device(&raw mut device) };
        if !asked.is_success() {
            return Err(asked);
        }
        let options = DeviceOptions {
            context: Some(context),
            identity: StreamIdentity::Reported,
            streams: Arc::clone(streams),
            stream_ordered: false,
            ..DeviceOptions::default()
        };
        // A handle of the driver is the ordinal of its device.
        let cuda =
            CudaDevice::open_with(driver, device.0.cast_unsigned(), options).map_err(|error| CuResult(error.code))?;
        // Last, since a request whose context cannot be served is no part of a record.
        let record = begin_record();
        let records = record.is_some();
        let holdings = Arc::clone(charge.holdings());
        let served = ServedDevice::new(cuda, real, charge.of_device(real, device), holdings, Arc::clone(frees), record);
        let allocator = Allocator::new([served], settings).map_err(code_of)?;
        let served = Arc::new(Self {
            context,
            device,
            allocator,
            ordered: AtomicBool::new(false),
            clearing: AtomicUsize::new(0),
            highest_before: Mutex::default(),
        });
        let owner: Arc<dyn AllocatorOwner> = Arc::<Self>::clone(&served);
        served.device().set_owner(Arc::downgrade(&owner));
        served.allocator.trace(DEVICE).map(|trace| trace.report(records)).map_err(code_of)?;
        Ok(served)
    }

    /// Returns the context.
    pub(super) fn context(&self) -> CuContext {
        self.context
    }

    /// Returns the driver's number of the context's device.
    pub(super) fn ordinal(&self) -> CuDevice {
        self.device
    }

    /// Returns the allocator.
    pub(super) fn allocator(&self) -> &Allocator<ServedDevice, HeapLock, Tables> {
        &self.allocator
    }

    /// Returns the device of the allocator.
    ///
    /// # Panics
    /// Never: the allocator has a device.
    pub(super) fn device(&self) -> &ServedDevice {
        self.allocator.device(DEVICE).expect("the allocator's only device")
    }

    /// Returns whether memory in the order of streams was ever served.
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::Relaxed)
    }

    /// Notes served memory in the order of streams.
    pub(super) fn set_ordered(&self) {
        if !self.is_ordered() {
            self.ordered.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the bytes held from the driver, or parked, and unused by the program.
    pub(super) fn unused(&self) -> u64 {
        let report = self.allocator.parking(DEVICE).and_then(|parking| parking.report(ParkTarget::Streams));
        let parked = report.map_or(0, |report| report.parked);
        self.allocator.stats(DEVICE).map(|stats| stats.totals()).map_or(0, |stats| {
            let unused = stats.reserved_bytes().current - stats.allocated_bytes().current;
            u64::try_from(unused.saturating_add_unsigned(parked)).unwrap_or(0)
        })
    }

    /// Returns the greatest reserved and used bytes, from the `peaks` of the allocator.
    pub(super) fn highest(&self, peaks: [u64; 2]) -> [u64; 2] {
        let before = *self.highest_before.lock().unwrap_or_else(PoisonError::into_inner);
        [before[0].max(peaks[0]), before[1].max(peaks[1])]
    }

    /// Starts the greatest reserved bytes, or the greatest used bytes, from the bytes of now. The
    /// allocator starts both anew at once, and the other one is kept beside.
    ///
    /// # Errors
    /// The allocator's. Nothing has changed then.
    pub(super) fn begin_highest_anew(&self, is_used: bool) -> Result<(), Error> {
        let stats = self.allocator.stats(DEVICE)?.totals();
        let peaks = [stats.reserved_bytes(), stats.allocated_bytes()].map(|bytes| bytes.peak.cast_unsigned());
        let mut before = self.highest_before.lock().unwrap_or_else(PoisonError::into_inner);
        self.allocator.stats(DEVICE)?.reset_peaks();
        *before = [before[0].max(peaks[0]), before[1].max(peaks[1])];
        before[usize::from(is_used)] = 0;
        Ok(())
    }

    /// Keeps the latest events from now on.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(super) fn keep_events(&self, events: usize) -> Result<(), Error> {
        self.allocator.trace(DEVICE)?.record_with(events, EventTimes::Numbered)
    }

    /// Waits for all work of the context as the driver's `cuMemFree` does, by a free of a byte.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let waited = self.device().cuda().with_context(|driver| {
            let mut byte = 0;
            // SAFETY: `byte` outlives the call, which writes one address to it.
            let taken = unsafe { driver.mem_alloc(&raw mut byte, 1) };
            if !taken.is_success() {
                return taken;
            }
            // SAFETY: the byte is new, and no other code has its address.
            unsafe { driver.mem_free(byte) }
        });
        waited.map_err(Error::Device)
    }

    /// Clears a block, on a stream of the library's own. The contents are zero when the call
    /// returns.
    ///
    /// # Errors
    /// The driver's code.
    pub(super) fn clear(&self, at: DevicePtr, bytes: u64) -> Result<(), CuResult> {
        let cuda = self.device().cuda();
        let stream = self.clearing_stream()?;
        // SAFETY: the block is new, and no other code has its address.
        unsafe { cuda.fill(at, 0, bytes, stream) }.map_err(|error| CuResult(error.code))?;
        cuda.with_context(|driver| {
            // SAFETY: the stream is the library's own, and is never destroyed.
            unsafe { driver.stream_synchronize(stream) }
        })
        .map_err(|error| CuResult(error.code))
    }

    /// Returns the stream for blocks to clear. The stream waits for no stream, and no stream waits
    /// for the stream.
    fn clearing_stream(&self) -> Result<CuStream, CuResult> {
        let known = self.clearing.load(Ordering::Acquire);
        if known != 0 {
            return Ok(CuStream(known));
        }
        let mut stream = CuStream::NULL;
        self.device()
            .cuda()
            .with_context(|driver| {
                // SAFETY: `stream` outlives the call, which writes one handle to it.
                unsafe { driver.stream_create(&raw mut stream, CuStreamFlags::NON_BLOCKING) }
            })
            .map_err(|error| CuResult(error.code))?;
        match self.clearing.compare_exchange(0, stream.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(stream),
            Err(faster) => {
                let _ = self.device().cuda().with_context(|driver| {
                    // SAFETY: the stream was created above, and no other code has its handle.
                    unsafe { driver.stream_destroy(stream) }
                });
                Ok(CuStream(faster))
            }
        }
    }
}

impl AllocatorOwner for Served {
    fn reach(&self, count: u64) -> bool {
        self.allocator.set_safe_frontier(DEVICE, count).is_ok()
    }

    fn trim_by(&self, bytes: u64) {
        let held =
            self.allocator.stats(DEVICE).map(|stats| stats.totals()).map_or(0, |stats| stats.reserved_bytes().current);
        let keep = u64::try_from(held).unwrap_or(0).saturating_sub(bytes);
        // A failure leaves more cached than asked for: the next shortage tries again.
        let _ = self.allocator.trim(DEVICE, keep);
    }

    fn waiting(&self) -> u64 {
        self.allocator.stats(DEVICE).map(|stats| stats.totals()).map_or(0, |stats| {
            let waiting = stats.active_bytes().current - stats.allocated_bytes().current;
            u64::try_from(waiting).unwrap_or(0)
        })
    }
}

/// Parses the settings of a program, added to [`SETTINGS`] where [`SETTINGS`] have an effect.
/// Memory that sleeps is on pages. Memory within the slack is not released for a budget.
///
/// # Errors
/// The mistake in the settings.
pub(super) fn settings(options: &Options) -> Result<Config, ConfigError> {
    let text = &options.settings;
    let config = cachalot_policies::parse(text)?;
    if !config.policy().traits().follows_pytorch || config.expandable_segments() {
        return Ok(config);
    }
    // A later setting wins.
    let comma = if text.is_empty() { "" } else { "," };
    if options.sleep.is_some() {
        return cachalot_policies::parse(&format!("{PAGES}{comma}{text}"));
    }
    cachalot_policies::parse(&format!("{SETTINGS},compact_slack_mb:{}{comma}{text}", options.slack >> 20))
}

/// Returns the driver's code for a failure of the allocator.
pub(super) fn code_of(error: Error) -> CuResult {
    match error {
        Error::Device(error) if error.code != 0 => CuResult(error.code),
        Error::InvalidPointer { .. } | Error::InvalidStream => CuResult::INVALID_VALUE,
        Error::Device(_) => CuResult::UNKNOWN,
        _ => CuResult::OUT_OF_MEMORY,
    }
}

#[cfg(test)]
mod tests {
    use crate::options::{Options, SleepOptions};
    use cachalot_core::Config;

    /// Returns the active settings for a text.
    fn settings(text: &str, sleeps: bool) -> Result<Config, cachalot_core::config::ConfigError> {
        let sleep = sleeps.then(SleepOptions::default);
        super::settings(&Options { settings: text.to_owned(), sleep, slack: 64 << 20, ..Options::default() })
    }

    #[test]
    fn large_blocks_have_segments_of_their_own_unless_pages_are_asked_for() {
        let settings = |text| settings(text, false);
        assert!(settings("").unwrap().exact_segments());
        assert_eq!(settings("").unwrap().compact_slack(), 64 << 20);
        assert_eq!(settings("compact_slack_mb:7").unwrap().compact_slack(), 7 << 20);
        assert!(settings("roundup_power2_divisions:4").unwrap().exact_segments());
        assert!(!settings("exact_segments:False").unwrap().exact_segments());
        assert!(!settings("expandable_segments:True").unwrap().exact_segments());
        assert!(!settings("policy:stitched").unwrap().exact_segments());
        assert!(settings("unknown:1").is_err());
    }

    #[test]
    fn memory_that_sleeps_lies_on_pages() {
        assert_eq!(settings("", true).unwrap(), cachalot_policies::parse("expandable_segments:True").unwrap());
        assert!(settings("roundup_power2_divisions:4", true).unwrap().expandable_segments());
        assert_eq!(settings("policy:stitched", true).unwrap(), cachalot_policies::parse("policy:stitched").unwrap());
    }
}
