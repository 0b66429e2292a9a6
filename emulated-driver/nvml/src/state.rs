//! The state of the library: how often it was initialised, the machine, and what the rules have
//! hit.

use crate::code::{Answer, Code};
use crate::description::{Description, Event, read};
use crate::machine::{Known, Machine, is_named};
use cachalot_emulated_machine::settings;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The setting that names the file of the description.
const FILE: &str = "NVML";
/// Most bytes of a file.
const MOST_BYTES: u64 = 16 << 20;

/// The state of the library.
pub(crate) struct State {
    /// Calls of `nvmlInit` without their `nvmlShutdown`.
    pub(crate) initialised: u32,
    /// What the library tells of. `None` before the first `nvmlInit`.
    live: Option<Live>,
}

/// What is known while the library is initialised.
pub(crate) struct Live {
    pub(crate) machine: Machine,
    pub(crate) since: Instant,
    /// Sets of events, by handle.
    pub(crate) sets: BTreeMap<usize, EventSet>,
    /// Calls that each rule has counted.
    hits: Vec<u64>,
    /// The file and what it was when it was read.
    file: Option<(PathBuf, Stamp)>,
    is_known: Known,
}

/// A set of events.
#[derive(Default)]
pub(crate) struct EventSet {
    /// Devices with the kinds of their events, as bits.
    pub(crate) registered: Vec<(usize, u64)>,
    /// Events that the set has given.
    pub(crate) given: Vec<Event>,
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, u64, i64, i64);

static STATE: Mutex<State> = Mutex::new(State { initialised: 0, live: None });

/// Returns the state. A call that panicked has left it whole, as every change is one step.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stamp {
    fn of(found: &Metadata) -> Self {
        Self(found.ino(), found.size(), found.mtime(), found.mtime_nsec())
    }
}

/// Reads the machine of a file.
fn load(path: &PathBuf, is_known: Known) -> Result<(Machine, Stamp), String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let file = File::open(path).map_err(|error| failed(&error))?;
    let found = file.metadata().map_err(|error| failed(&error))?;
    if !found.is_file() {
        return Err(failed(&"is no file"));
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|error| failed(&error))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(failed(&format!("has more than {MOST_BYTES} bytes")));
    }
    let machine =
        read(&text).and_then(|description| Machine::new(description, is_known)).map_err(|why| failed(&why))?;
    Ok((machine, Stamp::of(&found)))
}

impl Live {
    /// Reads the settings, and the file if one is named.
    ///
    /// # Errors
    /// A line that names the mistake.
    fn new(is_known: Known) -> Result<Self, String> {
        let (machine, file) = match settings::text(FILE).map(PathBuf::from) {
            Some(path) => {
                let (machine, stamp) = load(&path, is_known)?;
                (machine, Some((path, stamp)))
            }
            None => (Machine::new(Description::default(), is_known)?, None),
        };
        let hits = vec![0; machine.rules.len()];
        Ok(Self { machine, since: Instant::now(), sets: BTreeMap::new(), hits, file, is_known })
    }

    /// Reads the file again if it has changed. A file with a mistake changes nothing, and a line
    /// says why: it may be a file that is being written.
    fn refresh(&mut self) {
        let Some((path, stamp)) = &mut self.file else { return };
        let Ok(found) = path.metadata() else { return };
        if Stamp::of(&found) == *stamp {
            return;
        }
        match load(path, self.is_known) {
            Ok((machine, read)) => {
                self.hits = vec![0; machine.rules.len()];
                (self.machine, *stamp) = (machine, read);
            }
            Err(why) => {
                complain(&why);
                *stamp = Stamp::of(&found);
            }
        }
    }

    /// Returns the answer of the first rule that hits a call of a function for a device.
    fn check_rules(&mut self, function: &str, device: Option<usize>) -> Answer<()> {
        for (rule, hits) in self.machine.rules.iter().zip(&mut self.hits) {
            let is_meant = is_named(&rule.function, function) && (rule.device.is_none() || rule.device == device);
            if !is_meant {
                continue;
            }
            *hits += 1;
            let last = rule.count.map_or(u64::MAX, |count| rule.nth.saturating_add(count));
            if (rule.nth..last).contains(hits) {
                return Err(rule.code.0);
            }
        }
        Ok(())
    }
}

impl State {
    /// Initialises the library, or counts another user of it.
    ///
    /// # Errors
    /// `UNKNOWN` and a line on the standard error for a mistake in the file or the settings, and
    /// the code of a rule for `function`.
    pub(crate) fn initialise(&mut self, function: &str, is_known: Known) -> Answer<()> {
        let mut live = match self.live.take().filter(|_| self.initialised > 0) {
            Some(live) => live,
            None => Live::new(is_known).map_err(|why| {
                complain(&why);
                Code::UNKNOWN
            })?,
        };
        let checked = live.check_rules(function, None);
        self.live = Some(live);
        checked?;
        self.initialised += 1;
        Ok(())
    }

    /// Returns what is known.
    ///
    /// # Errors
    /// `UNINITIALIZED` before `nvmlInit`.
    pub(crate) fn look(&mut self) -> Answer<&mut Live> {
        let live = self.live.as_mut().filter(|_| self.initialised > 0).ok_or(Code::UNINITIALIZED)?;
        live.refresh();
        Ok(live)
    }

    /// Returns what is known, for a call of `function` for a device that no rule hits.
    ///
    /// # Errors
    /// `UNINITIALIZED` before `nvmlInit`, and the code of a rule.
    pub(crate) fn enter(&mut self, function: &str, device: Option<usize>) -> Answer<&mut Live> {
        let live = self.look()?;
        live.check_rules(function, device)?;
        Ok(live)
    }
}

/// Prints a line on the standard error.
fn complain(why: &str) {
    eprintln!("emulated NVML: {why}");
}
