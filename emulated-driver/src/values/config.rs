//! Settings from the environment. Every variable begins with `CACHALOT_EMU_`. The README lists all
//! variables.

use cachalot_emulated_machine::processes::FOLDER;
use cachalot_emulated_machine::settings::{self, DEVICES, DRIVER_VERSION, MEMORY, text};
use std::collections::BTreeMap;

/// Treatment of a forbidden call: after the driver's teardown at process exit, or in a forked
/// child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// The call answers a code, as a driver may.
    Polite,
    /// The process aborts, as with a driver without memory or threads.
    Crash,
}

/// The part of a new or freed range that is filled with poison bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Poison {
    /// Nothing.
    Off,
    /// The whole range up to 2 MiB, otherwise the first and the last 64 KiB.
    Edges,
    /// The whole range.
    Full,
}

/// The settings, read once when the library is first called.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(crate) struct Config {
    /// `CACHALOT_EMU_MEMORY`: bytes of each device.
    pub(crate) memory_bytes: u64,
    /// `CACHALOT_EMU_HOST_MEMORY`: bytes of the host that `cuMemCreate` can give to devices.
    pub(crate) host_bytes: u64,
    /// `CACHALOT_EMU_FILE_BYTES`: bytes of the host's memory with the contents of files, which the
    /// driver of a device without other memory counts as used, and gives to whoever wants them.
    pub(crate) file_bytes: u64,
    /// `CACHALOT_EMU_CONTEXT_BYTES` and `CACHALOT_EMU_MODULE_BYTES`: device memory of each context
    /// and each module, in no call of the program.
    pub(crate) context_bytes: u64,
    pub(crate) module_bytes: u64,
    /// `CACHALOT_EMU_DEVICES`.
    pub(crate) devices: usize,
    /// `CACHALOT_EMU_DRIVER_VERSION`: 1000 × major + 10 × minor.
    pub(crate) driver_version: i32,
    /// `CACHALOT_EMU_HIDE`: symbols hidden from `cuGetProcAddress_v2`.
    pub(crate) hidden: Vec<String>,
    /// `CACHALOT_EMU_PROCESSES`: the folder in which processes tell what memory they hold.
    pub(crate) processes: Option<String>,
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
    /// `CACHALOT_EMU_DELAY_US`: longest random delay before each piece of work, in microseconds.
    pub(crate) delay_us: u64,
    /// `CACHALOT_EMU_QUARANTINE`: freed addresses and handles are not used again.
    pub(crate) quarantine: bool,
    /// `CACHALOT_EMU_TEARDOWN`: `polite` or `crash`.
    pub(crate) teardown: Manner,
    /// `CACHALOT_EMU_FORK`: `polite` or `crash`, the treatment of a call in a forked child.
    pub(crate) fork: Manner,
    /// `CACHALOT_EMU_POISON`: `off`, `edges` or `full`.
    pub(crate) poison: Poison,
    /// `CACHALOT_EMU_FREE_WAITS`: `cuMemFree` and its like wait for the context's work, as in a
    /// real driver.
    pub(crate) free_waits: bool,
    /// `CACHALOT_EMU_ATTRIBUTES`: changed device attributes, JSON of number to value.
    pub(crate) attributes: BTreeMap<i32, i32>,
    /// `CACHALOT_EMU_ANSWERS`: changed entries of the table of answers, JSON of name to code.
    pub(crate) answers: BTreeMap<String, u32>,
    /// `CACHALOT_EMU_KERNELS`: `need`, or `skip`: a kernel without code for the host does nothing.
    pub(crate) skips_kernels: bool,
    /// `CACHALOT_EMU_STRICT`: a call with the handle of a destroyed stream or event aborts, as a
    /// real driver crashes.
    pub(crate) strict: bool,
    /// `CACHALOT_EMU_FAULTS`: `die`, or `deliver`: work that touches forbidden memory breaks its
    /// context.
    pub(crate) delivers_faults: bool,
    /// `CACHALOT_EMU_HOST_ACCESS`: the host may use device memory at the program's addresses.
    pub(crate) host_access: bool,
    /// `CACHALOT_EMU_ADDRESS_SPACE`: bytes of device addresses.
    pub(crate) address_space_bytes: u64,
}

/// Bytes of device addresses. Enough for reservations far larger than any device.
const ADDRESS_SPACE: u64 = 4 << 40;

impl Config {
    /// Reads the environment.
    ///
    /// # Panics
    /// On a malformed variable, so that no test passes with a misspelled setting.
    pub(crate) fn from_environment() -> Self {
        Self {
            memory_bytes: number("MEMORY", MEMORY),
            host_bytes: number("HOST_MEMORY", 4 << 30),
            file_bytes: number("FILE_BYTES", 0),
            context_bytes: number("CONTEXT_BYTES", 0),
            module_bytes: number("MODULE_BYTES", 0),
            devices: number("DEVICES", DEVICES) as usize,
            driver_version: number("DRIVER_VERSION", DRIVER_VERSION) as i32,
            hidden: text("HIDE").map(|list| split(&list)).unwrap_or_default(),
            processes: text(FOLDER),
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
            skips_kernels: match text("KERNELS").as_deref() {
                None | Some("need") => false,
                Some("skip") => true,
                Some(other) => panic!("CACHALOT_EMU_KERNELS is need or skip, not {other}"),
            },
            strict: number("STRICT", 1) != 0,
            delivers_faults: match text("FAULTS").as_deref() {
                None | Some("die") => false,
                Some("deliver") => true,
                Some(other) => panic!("CACHALOT_EMU_FAULTS is die or deliver, not {other}"),
            },
            host_access: number("HOST_ACCESS", 0) != 0,
            address_space_bytes: number("ADDRESS_SPACE", ADDRESS_SPACE),
        }
    }
}

/// Returns the variable as a manner of refusal.
fn manner(name: &str) -> Manner {
    match text(name).as_deref() {
        None | Some("polite") => Manner::Polite,
        Some("crash") => Manner::Crash,
        Some(other) => panic!("CACHALOT_EMU_{name} is polite or crash, not {other}"),
    }
}

/// Returns the variable as a number.
fn number(name: &str, default: u64) -> u64 {
    settings::number(name, default).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the variable as a JSON object of names and numbers.
fn map(name: &str) -> BTreeMap<String, i64> {
    settings::numbers(name).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the parts of a comma-separated list.
pub(crate) fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
