//! Settings from the environment. Every variable begins with `CACHALOT_EMU_`.

use std::collections::BTreeMap;

/// Bytes of each device without a setting.
pub const MEMORY: u64 = 1 << 30;
/// Number of devices without a setting.
pub const DEVICES: u64 = 2;
/// The driver's version without a setting: 1000 × major + 10 × minor.
pub const DRIVER_VERSION: u64 = 13_000;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`, the device attribute that `ATTRIBUTES` changes.
pub const CAPABILITY_MAJOR: i32 = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub const CAPABILITY_MINOR: i32 = 76;
/// The major number of the compute capability without a setting.
pub const MAJOR: i32 = 9;

/// Returns the variable `CACHALOT_EMU_<name>`, if set and not empty.
pub fn text(name: &str) -> Option<String> {
    std::env::var(format!("CACHALOT_EMU_{name}")).ok().filter(|value| !value.is_empty())
}

/// Returns the variable as a number.
///
/// # Errors
/// A line that names the variable and the mistake.
pub fn number(name: &str, default: u64) -> Result<u64, String> {
    text(name)
        .map_or(Ok(default), |value| value.parse().map_err(|_| format!("CACHALOT_EMU_{name} is a number, not {value}")))
}

/// Returns the variable as a JSON object of names and numbers.
///
/// # Errors
/// A line that names the variable and the mistake.
pub fn numbers(name: &str) -> Result<BTreeMap<String, i64>, String> {
    text(name).map_or(Ok(BTreeMap::new()), |value| {
        serde_json::from_str(&value).map_err(|why| format!("CACHALOT_EMU_{name} is an object of numbers: {why}"))
    })
}
