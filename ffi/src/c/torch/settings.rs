//! Finds the configuration of the plug-in's allocator: from the program, else from cachalot's own
//! variable, else from the device-memory settings in `PyTorch`'s variables.

use crate::c::instance::ENVIRONMENT;
use crate::c::status::{CACHALOT_ERROR_INVALID_CONFIG, Outcome, Status};
use cachalot_core::config::ConfigError;
use std::ffi::{CString, OsString};

/// Name of cachalot's own variable. If set, all other variables are ignored.
const OWN: &str = "CACHALOT_CONF";

/// Prefixes of `PyTorch` keys that do not concern device memory.
const FOREIGN: [&str; 2] = ["backend", "pinned_"];

/// Checks a configuration text. `source` names the origin in error messages.
pub(super) fn checked(source: &str, text: &str) -> Outcome<CString> {
    crate::parse(text)
        .map_err(|error| Status::new(CACHALOT_ERROR_INVALID_CONFIG, format_args!("{source}: {error}")))?;
    CString::new(text).map_err(|_| Status::argument(format_args!("{source} contains a NUL")))
}

/// Reads and checks the configuration in the environment.
pub(super) fn of_environment() -> Outcome<CString> {
    if let Some(set) = std::env::var_os(OWN) {
        return checked(OWN, &text(OWN, set)?);
    }
    match ENVIRONMENT.iter().find_map(|name| Some((*name, std::env::var_os(name)?))) {
        Some((name, set)) => checked(name, &of_device_memory(&text(name, set)?)),
        None => Ok(CString::default()),
    }
}

fn text(source: &str, set: OsString) -> Outcome<String> {
    set.into_string().map_err(|_| Status::new(CACHALOT_ERROR_INVALID_CONFIG, format_args!("{source} is not UTF-8")))
}

/// Selects the entries that concern device memory. `PyTorch` reads the variable as well, and
/// reports errors in the other entries.
fn of_device_memory(text: &str) -> String {
    let entries = entries(text).filter(|entry| {
        let key = entry.split(':').next().unwrap_or_default().trim();
        let unknown = || matches!(crate::parse(entry), Err(ConfigError::UnknownKey { .. }));
        !FOREIGN.iter().any(|foreign| key.starts_with(foreign)) && !unknown()
    });
    entries.collect::<Vec<_>>().join(",")
}

/// Splits a text into entries at the commas outside of brackets.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_of_device_memory_is_left_out() {
        let kept = of_device_memory;
        assert_eq!(kept(""), "");
        assert_eq!(kept("backend:cudaMallocAsync"), "");
        assert_eq!(kept("pinned_use_cuda_host_register:True,max_split_size_mb:64"), "max_split_size_mb:64");
        assert_eq!(kept("a_key_of_2030:7, expandable_segments:True ,pinned_x:[1:2,3:4]"), " expandable_segments:True ");
        let lists = "roundup_power2_divisions:[256:1,512:2,>:4],garbage_collection_threshold:0.8";
        assert_eq!(kept(lists), lists);
    }

    /// A known key with a wrong value is kept, and so is an unreadable entry: both must be
    /// reported.
    #[test]
    fn mistakes_are_kept_to_be_told() {
        for wrong in ["max_split_size_mb:1", "expandable_segments:maybe", "max_split_size_mb", "max_split_size_mb:64,,"]
        {
            assert!(crate::parse(&of_device_memory(wrong)).is_err(), "{wrong}");
        }
    }
}
