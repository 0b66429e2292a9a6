//! The state of a process, and which way a call goes.

use crate::charge::{Charge, current_device};
use crate::ledger::Kind;
use crate::options::{Options, VARIABLE};
use crate::real::{self, Real};
use crate::record::Record;
use crate::serve::contexts::Contexts;
use crate::serve::followed::Followed;
use crate::serve::frees::{Frees, in_context};
use crate::serve::notes::Notes;
use crate::serve::observed::Observed;
use crate::serve::peers::Peers;
use crate::serve::pool_memory::PoolMemory;
use crate::serve::pools::Pools;
use crate::serve::program_memory::ProgramMemory;
use crate::serve::published::Handles;
use crate::serve::recorder::Recorder;
use crate::serve::served::{self, Served};
use crate::serve::signs;
use crate::serve::sleeping::Sleeping;
use crate::sleep::AwakeGuard;
use cachalot_core::config::ConfigError;
use cachalot_core::{Allocation, Config, DevicePtr, Error, PointerFault};
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuDevicePtr, CuStream};
use cachalot_cuda::{CuResult, Streams, fork, log};
use cachalot_gate::AsymmetricRwLock;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The state of a process whose calls of the driver come here first.
pub struct Process {
    pub(super) real: &'static Real,
    pub(super) options: Options,
    settings: Config,
    streams: Arc<Streams>,
    pub(super) contexts: Contexts,
    /// Held while the allocator of a context is opened: a second one of the context would start a
    /// second record.
    opening: Mutex<()>,
    /// Held while the program retains, releases or resets a primary context: whether a release was
    /// the last is asked of the driver afterwards.
    pub(super) primaries: Mutex<()>,
    pub(super) frees: Arc<Frees>,
    pub(super) charge: Charge,
    pub(super) notes: Notes,
    observed: Observed,
    pub(super) pools: Pools,
    /// The memory of pools that are not served.
    pub(super) pool_memory: PoolMemory,
    pub(super) handles: Handles,
    /// Capturing streams, with their contexts.
    pub(super) capturing: Mutex<Vec<(CuStream, CuContext)>>,
    pub(super) peers: Peers,
    /// Contexts with uses beyond the first, one entry for each use.
    pub(super) attached: Mutex<Vec<CuContext>>,
    /// Memory that the program maps by itself, and a park moves.
    pub(super) program: ProgramMemory,
    /// Memory that the program maps by itself, and no park moves.
    pub(super) followed: Followed,
    /// `None`: the memory stays on the device.
    pub(super) sleeping: Option<Sleeping>,
    /// Whether the process is the one of [`process`], and may have its own threads.
    pub(super) is_whole: bool,
    pub(super) counters: Counters,
    pub(super) recorder: Recorder,
}

/// The numbers of calls, by the way they went.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) passed: AtomicU64,
    pub(super) missed: AtomicU64,
}

/// The numbers of calls for memory that a process has made, by the way they went.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Requests and frees answered by the driver.
    pub passed: u64,
    /// Allocations of the driver that came by a way that the library does not see, as far as the
    /// program has freed them.
    pub missed: u64,
    /// Bytes held from the driver for served memory.
    pub held_bytes: u64,
    /// Bytes of served memory in the program's use.
    pub used_bytes: u64,
    /// Bytes that the limits count, of all devices.
    pub charged_bytes: u64,
    /// Bytes of devices in the books.
    pub booked_bytes: u64,
}

/// The memory at an address.
pub(super) enum MemoryAt {
    /// A block of the program.
    Block(Arc<Served>, Allocation),
    /// A part of a segment that is in no block of the program.
    Free,
    /// The driver's own memory, or none.
    Foreign,
}

impl Process {
    /// Returns the state of a process over a driver, for tests. No other process can read the
    /// books. Calls no driver.
    ///
    /// # Errors
    /// The mistake in the settings.
    pub fn new(real: &'static Real, options: Options) -> Result<Self, ConfigError> {
        Self::with_books(real, options, false)
    }

    /// Returns the state of a process over a driver. `publish`: every process of the user can read
    /// the books.
    fn with_books(real: &'static Real, options: Options, publish: bool) -> Result<Self, ConfigError> {
        if options.wants_full_books() {
            signs::tell_first_launches();
        }
        // The states of tests are many in one process.
        let lock = || if publish { signs::sleeps() } else { Box::leak(Box::new(AsymmetricRwLock::new())) };
        let settings = served::settings(&options)?;
        let spill = settings.spill();
        Ok(Self {
            real,
            settings,
            streams: Arc::new(Streams::new()),
            contexts: Contexts::new(),
            opening: Mutex::default(),
            primaries: Mutex::default(),
            frees: Arc::new(Frees::new(options.slack)),
            charge: Charge::new(&options, spill, publish),
            notes: Notes::default(),
            observed: Observed::default(),
            pools: Pools::default(),
            pool_memory: PoolMemory::default(),
            handles: Handles::default(),
            capturing: Mutex::default(),
            peers: Peers::default(),
            attached: Mutex::default(),
            program: ProgramMemory::default(),
            followed: Followed::default(),
            sleeping: options.sleep.clone().map(|sleep| Sleeping::new(sleep, lock())),
            is_whole: publish,
            counters: Counters::default(),
            recorder: Recorder::new(publish && !options.observe),
            options,
        })
    }

    /// Returns the real driver.
    pub fn real(&self) -> &'static Real {
        self.real
    }

    /// Returns how many calls went which way, and the bytes of served memory. Calls no driver.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (passed, missed) = (read(&self.counters.passed), read(&self.counters.missed));
        let charges = self.charge.all();
        let charged_bytes = charges.iter().map(|charge| charge.held()).sum();
        let booked_bytes = charges.iter().filter_map(|charge| charge.ledger()).map(|ledger| ledger.view().booked).sum();
        let counts = Counts { passed, missed, charged_bytes, booked_bytes, ..Counts::default() };
        self.contexts.all().iter().fold(counts, |mut counts, served| {
            if let Ok(stats) = served.allocator().stats(served::DEVICE).map(|stats| stats.totals()) {
                counts.held_bytes += stats.reserved_bytes().current.cast_unsigned();
                counts.used_bytes += stats.allocated_bytes().current.cast_unsigned();
            }
            counts
        })
    }

    /// Asks the driver for the first answer of a request or a free: 0, the
    /// code of a failed context, or the refusal of a capture, which the question breaks as the
    /// request would. (`cuMemFree(0)`: 24 ns on driver 580.)
    #[inline]
    pub(super) fn admit(&self) -> CuResult {
        // SAFETY: the null address is freed without an effect.
        unsafe { self.real.mem_free(0) }
    }

    /// Makes a call that may use memory. Memory that sleeps wakes first, and stays awake until the
    /// call returns. Answers the code of memory that cannot wake, and makes no call then.
    pub(super) fn awake(&self, call: impl FnOnce() -> CuResult) -> CuResult {
        match self.enter() {
            Ok(_inside) => call(),
            Err(code) => code,
        }
    }

    /// Calls `act` with the allocator of the thread's context. `None` without a context, and where
    /// the context cannot be served: the call is then passed on.
    #[inline]
    pub(super) fn with_current<T>(&self, act: impl FnOnce(&Arc<Served>) -> T) -> Option<T> {
        let context = self.current()?;
        match self.contexts.with(context, act) {
            Ok(answer) => Some(answer),
            Err(act) => self.open(context).map(|served| act(&served)),
        }
    }

    /// Returns the thread's context. `None` without a context.
    #[inline]
    pub(super) fn current(&self) -> Option<CuContext> {
        let mut context = CuContext::NULL;
        // SAFETY: `context` outlives the call, which writes one handle to it.
        let code = unsafe { self.real.ctx_get_current(&raw mut context) };
        (code.is_success() && !context.is_null()).then_some(context)
    }

    /// Returns the device of the thread's context. `None` without a context.
    pub(super) fn current_device(&self) -> Option<CuDevice> {
        current_device(self.real)
    }

    /// Opens the allocator of the thread's context. `None` if the context cannot be served, or the
    /// process only observes.
    #[cold]
    fn open(&self, context: CuContext) -> Option<Arc<Served>> {
        let root = self.contexts.root(context);
        if root != context {
            let mut opened = None;
            let _ = in_context(self.real, root, || {
                opened = self.open(root);
                CuResult::SUCCESS
            });
            return opened;
        }
        self.frees.add_context(context);
        if self.options.observe {
            return None;
        }
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(served) = self.contexts.of(context) {
            return Some(served);
        }
        let begin = || self.begin_record();
        let opened =
            Served::open(self.real, context, &self.settings, &self.streams, &self.charge, &self.frees, begin).ok()?;
        self.recorder.keep_events_of(&opened);
        if let Some(sleeping) = &self.options.sleep {
            let cuda = opened.device().cuda();
            // No wake gives memory of the host back: see `give_host_memory_back`.
            let _ = cuda.retain_host_memory(u64::MAX);
            cuda.keep_contents_in(sleeping.folder.clone());
        }
        self.contexts.add(Arc::clone(&opened));
        drop(opening);
        self.start_maintenance();
        let charge = opened.device().charge();
        // A context that no call has shown.
        if charge.counts_all()
            && !self.charge.holdings().has(Kind::Context, context.0 as u64)
            && let Some(bytes) = charge.uncounted_of_this_process()
        {
            self.charge_context(Arc::clone(charge), context, bytes);
        }
        self.open_peers(&opened);
        Some(opened)
    }

    /// Starts the record of a context. `None`: nothing is recorded.
    fn begin_record(&self) -> Option<Arc<Record>> {
        let path = self.options.record.as_ref()?;
        Record::begin_or_tell(path, &self.settings.to_string(), self.options.limit)
    }

    /// Returns the memory at an address.
    pub(super) fn memory_at(&self, address: CuDevicePtr) -> MemoryAt {
        let mut free = false;
        for served in self.contexts.all() {
            match served.allocator().base_of(DevicePtr(address)) {
                Ok(block) => return MemoryAt::Block(served, block),
                Err(error) => free |= !is_foreign(&error),
            }
        }
        if free { MemoryAt::Free } else { MemoryAt::Foreign }
    }

    /// Notes memory given by the driver, for the record of an observing process.
    pub(super) fn observe_taken(&self, address: CuDevicePtr, bytes: u64, stream: Option<CuStream>) {
        if let Some(path) = self.options.record.as_ref().filter(|_| self.options.observe) {
            self.observed.taken(path, address, bytes, stream);
        }
    }

    /// Notes memory of the driver before the free.
    pub(super) fn observe_given(&self, address: CuDevicePtr) {
        self.observed.given(address);
    }

    /// Gives cached memory back that the process owes to refused members of the group.
    pub(super) fn pay(&self) {
        self.contexts.all().iter().for_each(|served| served.device().pay());
    }

    /// Looks at the control groups of the process, and gives cached memory back as they want it.
    pub(super) fn give_to_groups(&self) {
        for charge in self.charge.all() {
            let mut wanted = charge.look_at_groups();
            for served in self.contexts.all() {
                if wanted > 0 && Arc::ptr_eq(served.device().charge(), &charge) {
                    let before = charge.held();
                    served.device().give(wanted);
                    wanted = wanted.saturating_sub(before.saturating_sub(charge.held()));
                }
            }
        }
    }

    /// Counts a passed call.
    pub(super) fn pass(&self) {
        self.counters.passed.fetch_add(1, Ordering::Relaxed);
    }

    /// Locks the capturing streams.
    pub(super) fn capturing(&self) -> std::sync::MutexGuard<'_, Vec<(CuStream, CuContext)>> {
        self.capturing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    /// Writes the records. A thread keeps the allocator of its last context, and with it the
    /// record.
    fn drop(&mut self) {
        self.contexts.all().iter().for_each(|served| served.device().write_record());
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("options", &self.options)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// Returns whether an allocator refuses an address outside of all segments.
#[inline]
pub(super) fn is_foreign(error: &Error) -> bool {
    matches!(error, Error::InvalidPointer { fault: PointerFault::Foreign, .. })
}

/// Returns the state of the calling process. `None`: `cachalot run` did not start the process, the
/// options are mistaken, nothing stands in front of a driver, or the process is a forked child of a
/// process with a state. Every call is then passed on.
///
/// The first call reads the environment and looks the driver's functions up. No call calls the
/// driver.
#[inline]
pub fn process() -> Option<&'static Process> {
    static PROCESS: OnceLock<Option<Process>> = OnceLock::new();
    if fork::in_child() {
        return None;
    }
    if let Some(process) = PROCESS.get() {
        return process.as_ref();
    }
    // Before the cell's lock: the loader runs constructors under its own lock, and the constructor
    // of a library may make the program's first call.
    real::real()?;
    PROCESS.get_or_init(start).as_ref()
}

/// Starts a call of the driver that may use memory of a device, by the calling process. Wakes the
/// memory first. Inside a served call nothing is started: the served call's own way keeps the
/// memory that it uses.
///
/// # Errors
/// The code for the caller, where the memory cannot wake.
pub fn enter() -> Result<AwakeGuard, CuResult> {
    match process() {
        Some(process) => process.enter_outside(),
        None => Ok(AwakeGuard::without_lock()),
    }
}

/// Makes the state of the calling process. What was meant to hold a limit holds it, also where the
/// rest cannot be used.
#[cold]
fn start() -> Option<Process> {
    let real = real::real()?;
    let options = match Options::of_environment() {
        Ok(found) => found?,
        Err(error) => {
            let closed = Options::closed(&std::env::var(VARIABLE).unwrap_or_default());
            let refused = if closed.is_some() { ", and every request for memory of a device is refused" } else { "" };
            log::warning(format_args!("{error}; nothing is served{refused}"));
            closed?
        }
    };
    match Process::with_books(real, options.clone(), true) {
        Ok(process) => Some(process),
        Err(error) => {
            log::warning(format_args!("{error}; nothing is served"));
            let observed = Options { settings: String::new(), observe: true, ..options };
            Process::with_books(real, observed, true).ok()
        }
    }
}
