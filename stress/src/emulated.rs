//! Controls of the emulated driver, if the run uses the emulated driver.

use cachalot_cuda::driver::LIBRARY_VARIABLE;
use cachalot_emulated_driver::client::Client;
use cachalot_emulated_driver::install::symbols;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The controls of the process's driver.
static CLIENT: OnceLock<Client> = OnceLock::new();

/// Connects to the controls, if the driver named by the environment is the emulated driver. Must be
/// called before all other functions of this module.
pub(crate) fn connect() {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE)
        && let Ok(client) = Client::load(path)
    {
        // Set once: every later call would connect to the same driver.
        CLIENT.get_or_init(|| client);
    }
}

/// Ends every planned fault.
pub(crate) fn clear_plan() {
    if let Some(client) = CLIENT.get() {
        client.clear_plan();
    }
}

/// Returns the number of calls hit by the fault plan.
pub(crate) fn faults() -> u64 {
    CLIENT.get().map_or(0, Client::faults)
}

/// Returns the number of driver calls.
pub(crate) fn all_calls() -> u64 {
    CLIENT.get().map_or(0, Client::all_calls)
}

/// Returns the number of calls per driver function, for functions that were called.
pub(crate) fn calls() -> BTreeMap<&'static str, u64> {
    let Some(client) = CLIENT.get() else { return BTreeMap::new() };
    symbols().into_iter().map(|name| (name, client.calls(name))).filter(|&(_, count)| count > 0).collect()
}

/// Returns the driver's report of live objects.
pub(crate) fn report() -> Option<Value> {
    CLIENT.get().map(Client::report)
}
