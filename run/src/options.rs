//! The options that `cachalot run` passes to the program's process, in one environment variable.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The environment variable that carries the options, as JSON.
pub const VARIABLE: &str = "CACHALOT_RUN";

/// The end of the name of a private folder, with which the library is loaded into programs with a
/// limit. Launchers of clusters pass some variables on and drop others: the library then finds no
/// options, and knows by its folder that there were some.
pub const LIMITED: &str = "-limited";

/// Whether the library was loaded from a folder of [`LIMITED`].
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// Notes the folder from which the library was loaded, with a slash at the end.
pub fn note_folder(folder: &[u8]) {
    if folder.strip_suffix(b"/").unwrap_or(folder).ends_with(LIMITED.as_bytes()) {
        IS_LIMITED.store(true, Ordering::Relaxed);
    }
}

/// Options of a process that `cachalot run` started.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of the command")]
pub struct Options {
    /// Serve nothing: count and record only.
    pub observe: bool,
    /// Settings of the allocator, in the syntax of its configuration. Empty: the default settings.
    pub settings: String,
    /// `cuMemFree` waits for the device, as the driver's does.
    pub sync_free: bool,
    /// Memory that is given out again is cleared first.
    pub zero: bool,
    /// Greatest number of bytes that the process, or its group, may hold. `None`: no limit.
    pub limit: Option<u64>,
    /// The group of processes that shares the limit.
    pub group: Option<GroupOptions>,
    /// The file to record the program's requests in.
    pub record: Option<PathBuf>,
    /// Find the caller of each served request too, and not only of each call of the driver.
    pub ledger: bool,
    /// The file to write the ledger to at the end. `%p` in the name is the process id.
    pub ledger_file: Option<PathBuf>,
    /// Keep the call stack of each booking in the ledger.
    pub ledger_stacks: bool,
    /// Children of the process run without the library in front of the driver.
    pub no_follow: bool,
    /// The name of the process for `cachalot park`, `wake` and `status`. `None`: the program's
    /// name.
    pub name: Option<String>,
    /// The memory of the process can be parked. `None`: the memory stays on the device.
    pub sleep: Option<SleepOptions>,
    /// Freed bytes of a context that may wait before a request asks the driver which frees are
    /// complete.
    pub slack: u64,
}

/// The options for the sleep of a process's memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SleepOptions {
    /// Milliseconds without a call after which the memory is parked. `None`: only when told to.
    pub idle_ms: Option<u64>,
    /// Milliseconds for which a call waits for memory of the device to wake, before the call fails.
    pub wake_timeout_ms: u64,
    /// Blocks of requests up to 1 MiB stay on the device while their pages take no more bytes.
    pub keep_awake: u64,
    /// Members of the group that do not have memory have this process parked, and this process
    /// waits for memory in their turn.
    pub yields: bool,
    /// Milliseconds for which the memory stays awake at least before the group may have it parked.
    pub awake_ms: u64,
    /// The folder of files for parked contents. `None`: contents go to memory of the host.
    pub folder: Option<PathBuf>,
    /// Bytes of the pieces in which memory wakes that the program maps by itself: a multiple of 2
    /// MiB, or 0 for the whole memory.
    pub piece: u64,
}

/// The bytes of a piece unless the options say otherwise. The driver clears memory that another
/// process has just given back: 16 GiB in one piece took 42 ms before the first byte moved. In
/// pieces of 512 MiB the copies start immediately and continue during the clearing; smaller ones
/// gain no more, and cost more calls of the driver (an H200, tests/results/sleep.md).
const PIECE: u64 = 512 << 20;

impl Default for SleepOptions {
    fn default() -> Self {
        Self {
            idle_ms: None,
            wake_timeout_ms: 60_000,
            keep_awake: 0,
            yields: false,
            awake_ms: 1_000,
            folder: None,
            piece: PIECE,
        }
    }
}

/// The place of a process in a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupOptions {
    /// The name of the group.
    pub name: String,
    /// Bytes that this process may always hold, whatever others ask for.
    #[serde(default)]
    pub low: u64,
    /// Greatest number of bytes that this process may hold. `None`: the limit of the group.
    #[serde(default)]
    pub max: Option<u64>,
    /// The share of this process relative to the weights of the others. 100 by default.
    #[serde(default = "default_weight")]
    pub weight: u32,
}

/// The weight of a process that names none.
const fn default_weight() -> u32 {
    100
}

/// Returns the name that `cachalot run --name` has given the process.
pub fn name_of_process() -> Option<String> {
    match KEPT.get() {
        Some(options) => options.name.clone(),
        None => Options::of_environment().ok()??.name,
    }
}

/// The options of this process as [`keep_for_process`] found them.
static KEPT: OnceLock<Options> = OnceLock::new();

/// Reads the options of this process and keeps them, so that the variable may leave the
/// environment. `None` if the variable is absent, or holds no options.
pub fn keep_for_process() -> Option<&'static Options> {
    if KEPT.get().is_none() {
        let _ = KEPT.set(Options::of_environment().ok()??);
    }
    KEPT.get()
}

impl Options {
    /// Returns whether somebody wants full books: the memory taken by the driver on its own, too.
    pub fn wants_full_books(&self) -> bool {
        self.ledger || self.ledger_stacks || self.ledger_file.is_some()
    }

    /// Reads the options of this process from its environment, or returns the options that
    /// [`keep_for_process`] kept. `None`: the process was not started by `cachalot run`.
    ///
    /// # Errors
    /// The text of the mistake, if the variable holds no options.
    pub fn of_environment() -> Result<Option<Self>, String> {
        if let Some(kept) = KEPT.get() {
            return Ok(Some(kept.clone()));
        }
        match std::env::var(VARIABLE) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| format!("{VARIABLE}: {error}")),
            Err(std::env::VarError::NotPresent) if IS_LIMITED.load(Ordering::Relaxed) => Err(format!(
                "{VARIABLE} is missing, and the program was started with a limit: a launcher must pass it on"
            )),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(format!("{VARIABLE}: {error}")),
        }
    }

    /// Returns the options of a process whose variable holds none: a variable that was cut off, or
    /// is of another version. What was meant to hold a limit serves nothing and holds nothing.
    /// `None`: the text has neither a limit nor a group.
    pub fn closed(text: &str) -> Option<Self> {
        let found = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
        let limits = |found: serde_json::Map<_, _>| {
            ["limit", "group"].iter().any(|key| found.get(*key).is_some_and(|value| !value.is_null()))
        };
        // A text that nobody can read may have had a limit.
        found.map_or(true, limits).then(|| Self { limit: Some(0), ..Self::default() })
    }

    /// Returns whether the options hold a limit.
    pub fn has_limit(&self) -> bool {
        self.limit.is_some() || self.group.is_some()
    }

    /// Returns the value of [`VARIABLE`] for a process with these options.
    ///
    /// # Panics
    /// Never: the options consist of texts and numbers.
    pub fn to_variable(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers")
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupOptions, Options};

    #[test]
    fn options_that_cannot_be_read_hold_nothing_unless_they_had_no_limit() {
        let is_closed = |text: &str| Options::closed(text).is_some_and(|options| options.limit == Some(0));
        let limited = Options { limit: Some(1 << 30), ..Options::default() }.to_variable();
        for text in
            [&limited[..limited.len() / 2], "", "null", "[]", r#"{"limit":5,"new":1}"#, r#"{"group":{"new":1}}"#]
        {
            assert!(is_closed(text), "{text}");
        }
        let without = Options::default().to_variable().replace("\"observe\"", "\"new\"");
        for text in [without.as_str(), "{}", r#"{"new":1}"#] {
            assert!(!is_closed(text), "{text}");
        }
    }

    #[test]
    fn options_survive_the_environment() {
        let group = GroupOptions { name: "a".into(), low: 1 << 30, max: None, weight: 50 };
        let options = Options { zero: true, limit: Some(12 << 30), group: Some(group), ..Options::default() };
        assert_eq!(serde_json::from_str::<Options>(&options.to_variable()).unwrap(), options);
        assert!(serde_json::from_str::<Options>(r#"{"unknown":1}"#).is_err());
    }
}
