//! What the environment asks for. Every variable begins with `CACHALOT_EMU_`; the README lists them.

use std::collections::BTreeMap;

/// What happens to a call that must not be made: after the driver's teardown at process exit, or in a forked child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// It answers a code, as a driver may.
    Polite,
    /// The process aborts, as it may with a driver whose memory or threads are gone.
    Crash,
}

/// How much of a new or freed range is filled with the poison bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Poison {
    /// Nothing.
    Off,
    /// All of it up to 2 MiB, the first and the last 64 KiB of more.
    Edges,
    /// All of it.
    Full,
}

/// The settings, read once when the library is first called.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(crate) struct Config {
    /// `CACHALOT_EMU_MEMORY`: bytes of each device.
    pub(crate) memory_bytes: u64,
    /// `CACHALOT_EMU_DEVICES`.
    pub(crate) devices: usize,
    /// `CACHALOT_EMU_DRIVER_VERSION`: 1000 × major + 10 × minor.
    pub(crate) driver_version: i32,
    /// `CACHALOT_EMU_HIDE`: symbols that `cuGetProcAddress_v2` does not find.
    pub(crate) hidden: Vec<String>,
    /// `CACHALOT_EMU_PLAN`: the fault plan, JSON.
    pub(crate) plan: Option<String>,
    /// `CACHALOT_EMU_LOG`: a file to which every call is appended.
    pub(crate) log: Option<String>,
    /// `CACHALOT_EMU_LEAKS`: where the leak report goes at exit, `stderr` or a path.
    pub(crate) leaks: Option<String>,
    /// `CACHALOT_EMU_SEED`.
    pub(crate) seed: u64,
    /// `CACHALOT_EMU_STEP`: work runs only inside driver calls, in the order the seed says.
    pub(crate) step: bool,
    /// `CACHALOT_EMU_DELAY_US`: each piece of work waits up to so long before it runs.
    pub(crate) delay_us: u64,
    /// `CACHALOT_EMU_QUARANTINE`: freed addresses and handles are not used again.
    pub(crate) quarantine: bool,
    /// `CACHALOT_EMU_TEARDOWN`: `polite` or `crash`.
    pub(crate) teardown: Manner,
    /// `CACHALOT_EMU_FORK`: `polite` or `crash`: what a call in a forked child does.
    pub(crate) fork: Manner,
    /// `CACHALOT_EMU_POISON`: `off`, `edges` or `full`.
    pub(crate) poison: Poison,
    /// `CACHALOT_EMU_FREE_WAITS`: `cuMemFree` waits for the context's work, as the real one does.
    pub(crate) free_waits: bool,
    /// `CACHALOT_EMU_ATTRIBUTES`: device attributes that differ, JSON of number to value.
    pub(crate) attributes: BTreeMap<i32, i32>,
    /// `CACHALOT_EMU_ANSWERS`: answers of the oracle table that differ, JSON of name to code.
    pub(crate) answers: BTreeMap<String, u32>,
    /// `CACHALOT_EMU_STRICT`: a call with the handle of a destroyed stream or event aborts.
    pub(crate) strict: bool,
    /// `CACHALOT_EMU_HOST_ACCESS`: the host may use device memory at the program's addresses.
    pub(crate) host_access: bool,
    /// `CACHALOT_EMU_ADDRESS_SPACE`: bytes of device addresses.
    pub(crate) address_space_bytes: u64,
}

/// Valgrind keeps tables of the whole address space, so a large reservation costs it real memory and minutes.
const ADDRESS_SPACE_UNDER_VALGRIND: u64 = 64 << 30;
/// Enough for reservations far larger than any device.
const ADDRESS_SPACE: u64 = 4 << 40;

impl Config {
    /// Reads the environment.
    ///
    /// # Panics
    /// On a variable that cannot be understood: a test that misspells its settings must not pass.
    pub(crate) fn from_environment() -> Self {
        Self {
            memory_bytes: number("MEMORY", 1 << 30),
            devices: number("DEVICES", 2) as usize,
            driver_version: number("DRIVER_VERSION", 13_000) as i32,
            hidden: text("HIDE").map(|list| split(&list)).unwrap_or_default(),
            plan: text("PLAN"),
            log: text("LOG"),
            leaks: text("LEAKS"),
            seed: number("SEED", 0),
            step: number("STEP", 0) != 0,
            delay_us: number("DELAY_US", 0),
            quarantine: number("QUARANTINE", 0) != 0,
            teardown: manner("TEARDOWN"),
            fork: manner("FORK"),
            poison: match text("POISON").as_deref() {
                None | Some("edges") => Poison::Edges,
                Some("off") => Poison::Off,
                Some("full") => Poison::Full,
                Some(other) => panic!("CACHALOT_EMU_POISON is off, edges or full, not {other}"),
            },
            free_waits: number("FREE_WAITS", 1) != 0,
            attributes: map("ATTRIBUTES")
                .into_iter()
                .map(|(key, value)| (key.parse().expect("an attribute's number"), value as i32))
                .collect(),
            answers: map("ANSWERS").into_iter().map(|(key, value)| (key, value as u32)).collect(),
            strict: number("STRICT", 0) != 0,
            host_access: number("HOST_ACCESS", 0) != 0,
            address_space_bytes: number("ADDRESS_SPACE", default_address_space()),
        }
    }
}

/// The address space asked for when the environment names none.
fn default_address_space() -> u64 {
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    if preloaded.contains("vgpreload") { ADDRESS_SPACE_UNDER_VALGRIND } else { ADDRESS_SPACE }
}

/// The variable `CACHALOT_EMU_<name>`, if set and not empty.
fn text(name: &str) -> Option<String> {
    std::env::var(format!("CACHALOT_EMU_{name}")).ok().filter(|value| !value.is_empty())
}

/// The variable as a manner of refusal.
fn manner(name: &str) -> Manner {
    match text(name).as_deref() {
        None | Some("polite") => Manner::Polite,
        Some("crash") => Manner::Crash,
        Some(other) => panic!("CACHALOT_EMU_{name} is polite or crash, not {other}"),
    }
}

/// The variable as a number.
fn number(name: &str, default: u64) -> u64 {
    text(name).map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("CACHALOT_EMU_{name} is a number, not {value}"))
    })
}

/// The variable as a JSON object of names and numbers.
fn map(name: &str) -> BTreeMap<String, i64> {
    text(name).map_or_else(BTreeMap::new, |value| {
        serde_json::from_str(&value).unwrap_or_else(|why| panic!("CACHALOT_EMU_{name} is an object of numbers: {why}"))
    })
}

/// The parts of a comma-separated list.
pub(crate) fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
