//! A description of the machine in a JSON file: what differs from the emulated driver's devices.

use crate::values::{Answered, BusId, EventKind, Name, Percent, Size, Version, Within};
use serde::Deserialize;

/// A whole file.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Description {
    /// The driver's version, such as `580.95.05`.
    pub(crate) driver_version: Option<Name>,
    /// The newest version of CUDA that the driver supports.
    pub(crate) cuda_version: Option<Version>,
    /// How many devices there are. Those after the last described one are like it.
    pub(crate) count: Option<Within<0, 64>>,
    pub(crate) devices: Vec<Board>,
    /// Errors on demand.
    pub(crate) errors: Vec<Rule>,
    pub(crate) events: Vec<Event>,
}

/// A device. What is left out is as in the emulated driver.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Board {
    pub(crate) name: Option<Name>,
    pub(crate) uuid: Option<Name>,
    pub(crate) serial: Option<Name>,
    pub(crate) bus_id: Option<BusId>,
    pub(crate) memory: Option<Size>,
    /// Memory that no process can have.
    pub(crate) reserved: Option<Size>,
    /// Memory in use by no listed process.
    pub(crate) used: Option<Size>,
    pub(crate) compute_capability: Option<Version>,
    pub(crate) utilization: Utilization,
    /// Degrees Celsius.
    pub(crate) temperature: Option<Within<-100, 300>>,
    /// The speed of the fan. Without it, the device has none.
    pub(crate) fan: Option<Percent>,
    pub(crate) power_watts: Option<Within<0, 100_000>>,
    pub(crate) power_limit_watts: Option<Within<0, 100_000>>,
    /// Energy since the driver was loaded.
    pub(crate) energy_joules: Option<Within<0, 1_000_000_000_000>>,
    pub(crate) clocks: Clocks,
    pub(crate) max_clocks: Clocks,
    pub(crate) performance_state: Option<Within<0, 15>>,
    pub(crate) ecc: Option<bool>,
    /// Uncorrected errors of the memory.
    pub(crate) ecc_errors: Option<Within<0, 1_000_000_000>>,
    pub(crate) persistence: bool,
    pub(crate) compute_mode: Option<Within<0, 3>>,
    pub(crate) processes: Vec<Listed>,
    pub(crate) mig: Vec<Slice>,
}

/// Parts of the time in which something worked.
#[derive(Deserialize, Clone, Copy, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Utilization {
    pub(crate) gpu: Percent,
    pub(crate) memory: Percent,
    pub(crate) encoder: Percent,
    pub(crate) decoder: Percent,
}

/// Clocks in MHz, in the order of `nvmlClockType_t`.
#[derive(Deserialize, Clone, Copy, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Clocks {
    pub(crate) graphics: Option<Within<0, 100_000>>,
    pub(crate) sm: Option<Within<0, 100_000>>,
    pub(crate) memory: Option<Within<0, 100_000>>,
    pub(crate) video: Option<Within<0, 100_000>>,
}

/// A kind of processes.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Listed by `nvmlDeviceGetComputeRunningProcesses`.
    #[default]
    Compute,
    /// Listed by `nvmlDeviceGetGraphicsRunningProcesses`.
    Graphics,
    /// Listed by `nvmlDeviceGetMPSComputeRunningProcesses`.
    Mps,
}

/// A process of the description.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    pub(crate) pid: u32,
    /// The name for `nvmlSystemGetProcessName`. Without it, that of the system's process.
    #[serde(default)]
    pub(crate) name: Option<Name>,
    #[serde(default = "nothing")]
    pub(crate) memory: Size,
    #[serde(default)]
    pub(crate) kind: Kind,
    /// The instance of MIG in which the process runs, by its place in `mig`.
    #[serde(default)]
    pub(crate) mig: Option<usize>,
    #[serde(default)]
    pub(crate) utilization: Utilization,
}

/// No memory.
fn nothing() -> Size {
    Size(0)
}

/// An instance of MIG.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Slice {
    /// The profile, such as `1g.10gb`.
    pub(crate) profile: Name,
    pub(crate) memory: Size,
    #[serde(default)]
    pub(crate) uuid: Option<Name>,
    /// The number of the GPU instance. Without it, one more than the place in the list.
    #[serde(default)]
    pub(crate) gpu_instance: Option<u32>,
    #[serde(default)]
    pub(crate) compute_instance: u32,
}

/// An error on demand.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The function, with or without the version at its end, or `*` for every function.
    pub(crate) function: String,
    /// The device. Without it, every call counts.
    #[serde(default)]
    pub(crate) device: Option<usize>,
    pub(crate) code: Answered,
    /// The first call that fails.
    #[serde(default = "first")]
    pub(crate) nth: u64,
    /// How many calls fail. Without it, all from the first on.
    #[serde(default)]
    pub(crate) count: Option<u64>,
}

/// The number of the first call.
fn first() -> u64 {
    1
}

/// An event that sets of events get.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) kind: EventKind,
    #[serde(default)]
    pub(crate) data: u64,
    /// Milliseconds after `nvmlInit`.
    #[serde(default)]
    pub(crate) after_ms: u64,
}

/// Reads a description.
///
/// # Errors
/// A line that names the place in the file, the mistake, and what is accepted.
pub(crate) fn read(text: &[u8]) -> Result<Description, String> {
    // serde would take a list as the fields in their order.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err("the description is a JSON object".to_owned());
    }
    let mut source = serde_json::Deserializer::from_slice(text);
    let description = serde_path_to_error::deserialize(&mut source).map_err(|error| {
        let place = error.path().to_string();
        let place = if place == "." { String::new() } else { format!("{place}: ") };
        format!("{place}{}", error.inner())
    })?;
    source.end().map_err(|error| error.to_string())?;
    Ok(description)
}

#[cfg(test)]
mod tests {
    use super::read;

    /// Returns the message for a malformed file.
    fn refused(text: &str) -> String {
        read(text.as_bytes()).expect_err(text)
    }

    #[test]
    fn a_mistake_is_named_with_its_place_and_what_is_accepted() {
        let place = |text: &str, wanted: &[&str]| {
            let said = refused(text);
            wanted.iter().for_each(|part| assert!(said.contains(part), "{text}: {said}"));
        };
        place(r#"{"devices":[{},{"memory":"80GX"}]}"#, &["devices[1].memory: ", "80GX", "bytes, or a text such as"]);
        place(r#"{"devices":[{"memory":-1}]}"#, &["devices[0].memory: ", "-1", "1024TiB"]);
        place(r#"{"devices":[{"utilization":{"gpu":101}}]}"#, &["devices[0].utilization.gpu: ", "from 0 to 100"]);
        place(r#"{"devices":[{"temperatur":4}]}"#, &["devices[0].temperatur: ", "unknown field", "`temperature`"]);
        place(r#"{"devices":[{"temperature":4000}]}"#, &["devices[0].temperature: ", "-100 to 300"]);
        place(r#"{"errors":[{"function":"*","code":"LOST"}]}"#, &["errors[0].code: ", "GPU_IS_LOST"]);
        place(r#"{"errors":[{"code":15}]}"#, &["errors[0]: ", "missing field `function`"]);
        place(r#"{"count":65}"#, &["count: ", "0 to 64"]);
        place("{", &["line 1"]);
        place("{} {}", &["trailing characters"]);
        place("[]", &["a JSON object"]);
    }
}
