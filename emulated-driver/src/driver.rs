//! The one driver of the process: its state behind one lock, and the condition that tells of progress.
//!
//! One lock for everything is slow and right: what a call does is one step for every other thread. Work on streams
//! runs outside it. Threads that wait (for a stream, an event, a context) wait for `progress`.

use crate::answers::Answers;
use crate::capture::{Capture, Graph};
use crate::config::{Config, Manner};
use crate::context::Context;
use crate::device::Device;
use crate::event::Event;
use crate::faults::Plan;
use crate::functions::Function;
use crate::handles::Handles;
use crate::log::Log;
use crate::memory::Memory;
use crate::module::{self, Module};
use crate::pool::Pools;
use crate::random::Random;
use crate::report;
use crate::space::Space;
use crate::stream::Streams;
use crate::sync::{Condition, Mutex};
use crate::thread;
use crate::virtual_memory::VirtualMemory;
use crate::work::Work;
use crate::worker;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The driver.
pub(crate) struct Driver {
    /// Everything.
    pub(crate) state: Mutex<State>,
    /// Notified whenever a piece of work ended, a gate opened or a wait may be over for another reason.
    pub(crate) progress: Condition,
}

/// Everything the driver knows.
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
    pub(crate) executables: Handles<Arc<[Work]>>,
    pub(crate) modules: Handles<Module>,
    pub(crate) functions: Handles<module::Function>,
    /// What calls made that the fault plan then let fail, so that nobody can give it back: kind and handle.
    pub(crate) abandoned: Vec<(&'static str, u64)>,
}

/// The driver of this process, made when first asked for.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| Driver { state: Mutex::new(State::new()), progress: Condition::new() })
}

impl State {
    /// A driver before `cuInit`, as the environment wants it.
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
            abandoned: Vec::new(),
            config,
        };
        state.set_quarantine(state.config.quarantine);
        state
    }

    /// Makes the devices, once.
    pub(crate) fn initialise(&mut self) {
        if self.space.is_none() {
            let config = &self.config;
            self.devices = (0..config.devices).map(|_| Device::new(config)).collect();
            let mut space = Space::new(config.address_space_bytes, config.devices, config.host_access);
            space.set_quarantine(config.quarantine);
            self.space = Some(space);
            self.pools.initialise(self.devices.len());
        }
    }

    /// The device addresses.
    ///
    /// # Panics
    /// Before `cuInit`; no call that needs them gets so far.
    pub(crate) fn space(&mut self) -> &mut Space {
        self.space.as_mut().expect("only initialised drivers have addresses")
    }

    /// From now on: abort at a call with the handle of a destroyed stream or event, or answer a code.
    /// Such a handle is then never handed out again, because it could not be told from a living one.
    pub(crate) fn set_strict(&mut self, on: bool) {
        self.config.strict = on;
        self.streams.handles.set_quarantine(on || self.config.quarantine);
        self.events.set_quarantine(on || self.config.quarantine);
    }

    /// Aborts in strict mode if the handle of a `kind` is one of a destroyed object: a real driver may
    /// read the memory of what was there.
    pub(crate) fn refuse_retired<T>(&self, kind: &str, handles: &Handles<T>, handle: u64) {
        if self.config.strict && handles.is_retired(handle) {
            let function = thread::calling().map_or("a control function", Function::name);
            eprintln!("emulated driver: {function} was given the destroyed {kind} {handle:#x}");
            std::process::abort()
        }
    }

    /// From now on: never use a freed address or a destroyed handle again, or do.
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

/// What happens at process exit: the leak report, if asked for, and the end of the idle threads. Returns how the driver
/// is to be torn down.
pub(crate) fn at_exit() -> Manner {
    worker::end_all(driver());
    let state = driver().state.lock();
    if let Some(place) = &state.config.leaks {
        let text = report::to_json(&state).to_string();
        if place == "stderr" {
            eprintln!("{text}");
        } else if let Err(why) = cachalot_atomic_file::write(Path::new(place), |to| to.write_all(text.as_bytes())) {
            eprintln!("CACHALOT_EMU_LEAKS: {place}: {why}");
        }
    }
    state.config.teardown
}
