//! The driver of the process: the state behind one lock, and a condition for progress.
//!
//! One lock for everything is slow and right: every call is a single step for all other threads.
//! Work on streams runs outside the lock. A thread that waits for a stream, an event or a context
//! waits for `progress`.

use crate::backing::space::Space;
use crate::process::sync::{Condition, Mutex};
use crate::process::{thread, trap};
use crate::tables::array::Array;
use crate::tables::capture::{Capture, Executable, Graph};
use crate::tables::context::Context;
use crate::tables::device::Device;
use crate::tables::event::Event;
use crate::tables::faults::Plan;
use crate::tables::host::HostMemory;
use crate::tables::log::Log;
use crate::tables::memory::Memory;
use crate::tables::module::{Kernel, Library, Module};
use crate::tables::pool::Pools;
use crate::tables::shared::Shared;
use crate::tables::stream::Streams;
use crate::tables::virtual_memory::VirtualMemory;
use crate::values::answers::Answers;
use crate::values::config::Config;
use crate::values::functions::Function;
use crate::values::handles::Handles;
use crate::values::random::Random;
use cachalot_emulated_machine::processes::Holdings;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The driver.
pub(crate) struct Driver {
    /// The whole state.
    pub(crate) state: Mutex<State>,
    /// Notified at the end of a piece of work, at the opening of a gate, and at any other change
    /// that may end a wait.
    pub(crate) progress: Condition,
}

/// The whole state of the driver.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) answers: Answers,
    pub(crate) plan: Plan,
    pub(crate) log: Log,
    pub(crate) random: Random,
    /// Empty until `cuInit`, as is `devices`: a process may fork before.
    pub(crate) space: Option<Space>,
    pub(crate) devices: Vec<Device>,
    /// By handle.
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) memory: Memory,
    pub(crate) host_memory: HostMemory,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) pools: Pools,
    pub(crate) streams: Streams,
    pub(crate) events: Handles<Event>,
    /// Captures under way, by their id.
    pub(crate) captures: BTreeMap<u64, Capture>,
    /// Ids of captures given so far.
    pub(crate) captures_made: u64,
    pub(crate) graphs: Handles<Graph>,
    /// Instantiated graphs.
    pub(crate) executables: Handles<Executable>,
    pub(crate) modules: Handles<Module>,
    pub(crate) functions: Handles<Kernel>,
    pub(crate) libraries: Handles<Library>,
    pub(crate) arrays: Handles<Array>,
    /// Memory that other processes may open.
    pub(crate) shared: Shared,
    /// The file in which the process tells others what memory it holds.
    pub(crate) holdings: Option<Arc<Holdings>>,
    /// The device address of the last fault that was delivered, or 0.
    pub(crate) fault: u64,
    /// Numbers given to memory so far.
    pub(crate) ids: u64,
    /// Kind and handle of objects that no caller can release, because the fault plan let the
    /// creating call fail afterwards.
    pub(crate) abandoned: Vec<(&'static str, u64)>,
}

/// Returns the driver of the process, created on the first use.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| Driver { state: Mutex::new(State::new()), progress: Condition::new() })
}

/// Makes the file in `folder` by which other processes know what memory this one holds. Without the
/// file, a line says why, and the others do not see the process.
fn tell(folder: &str, devices: &mut [Device]) -> Option<Arc<Holdings>> {
    match Holdings::open(Path::new(folder), devices.len()) {
        Ok(holdings) => {
            let holdings = Arc::new(holdings);
            for (index, device) in devices.iter_mut().enumerate() {
                device.pages.tell(Arc::clone(&holdings), index);
            }
            Some(holdings)
        }
        Err(why) => {
            eprintln!("CACHALOT_EMU_PROCESSES: {folder}: {why}");
            None
        }
    }
}

/// Aborts, because a call was given something with which a real driver crashes.
pub(crate) fn refuse(what: &str) -> ! {
    let function = thread::calling().map_or("a control function", Function::name);
    eprintln!("emulated driver: {function} was given {what}");
    std::process::abort()
}

impl State {
    /// Creates a driver before `cuInit`, with the settings of the environment.
    fn new() -> Self {
        let config = Config::from_environment();
        let mut plan = Plan::default();
        if let Some(rules) = &config.plan {
            plan.add(rules).unwrap_or_else(|why| panic!("CACHALOT_EMU_PLAN: {why}"));
        }
        let mut state = Self {
            answers: Answers::new(&config.answers),
            plan,
            log: Log::new(config.log.as_deref()),
            random: Random::new(config.seed),
            space: None,
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            memory: Memory::default(),
            host_memory: HostMemory::default(),
            virtual_memory: VirtualMemory::new(),
            pools: Pools::new(),
            streams: Streams::new(),
            events: Handles::new(2),
            captures: BTreeMap::new(),
            captures_made: 0,
            graphs: Handles::new(3),
            executables: Handles::new(4),
            modules: Handles::new(5),
            functions: Handles::new(6),
            libraries: Handles::new(9),
            arrays: Handles::new(10),
            shared: Shared::default(),
            holdings: None,
            fault: 0,
            ids: 0,
            abandoned: Vec::new(),
            config,
        };
        state.set_quarantine(state.config.quarantine);
        state
    }

    /// Returns a number for new memory.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Creates the devices, once.
    pub(crate) fn initialise(&mut self) {
        if self.space.is_none() {
            let config = &self.config;
            self.devices = (0..config.devices).map(|_| Device::new(config)).collect();
            if let Some(folder) = &config.processes {
                self.holdings = tell(folder, &mut self.devices);
            }
            let mut space = Space::new(config.address_space_bytes, config.devices, config.host_access);
            space.set_quarantine(config.quarantine);
            self.space = Some(space);
            self.set_delivers_faults(self.config.delivers_faults);
            self.pools.initialise(self.devices.len());
        }
    }

    /// Sets whether work that touches forbidden memory breaks its context, or kills the process.
    pub(crate) fn set_delivers_faults(&mut self, on: bool) {
        self.config.delivers_faults = on;
        match &self.space {
            Some(space) if on => {
                let seen = space.seen_by_devices();
                trap::watch(seen.start, seen.end);
            }
            _ => trap::watch_nothing(),
        }
    }

    /// Returns the device addresses.
    ///
    /// # Panics
    /// Before `cuInit`. No call that needs addresses gets so far.
    pub(crate) fn space(&mut self) -> &mut Space {
        self.space.as_mut().expect("only initialised drivers have addresses")
    }

    /// Sets strict mode: a call with the handle of a destroyed stream or event aborts instead of
    /// answering a code. In strict mode no handle is reused, because a reused handle looks alive.
    pub(crate) fn set_strict(&mut self, on: bool) {
        self.config.strict = on;
        self.streams.handles.set_quarantine(on || self.config.quarantine);
        self.events.set_quarantine(on || self.config.quarantine);
    }

    /// Aborts in strict mode on the handle of a destroyed object of the given kind. A real driver
    /// may read freed memory in such a call.
    pub(crate) fn refuse_retired<T>(&self, kind: &str, handles: &Handles<T>, handle: u64) {
        if self.config.strict && handles.is_retired(handle) {
            refuse(&format!("the destroyed {kind} {handle:#x}"));
        }
    }

    /// Sets quarantine: freed addresses and destroyed handles are never reused.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.config.quarantine = on;
        if let Some(space) = &mut self.space {
            space.set_quarantine(on);
        }
        self.memory.set_quarantine(on);
        self.virtual_memory.handles.set_quarantine(on);
        self.streams.handles.set_quarantine(on || self.config.strict);
        self.events.set_quarantine(on || self.config.strict);
        self.pools.handles.set_quarantine(on);
        self.graphs.set_quarantine(on);
        self.executables.set_quarantine(on);
    }
}
