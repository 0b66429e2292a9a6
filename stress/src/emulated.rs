//! The emulated driver's controls, where that is the driver.

use cachalot_cuda::driver::LIBRARY_VARIABLE;
use cachalot_emulated_driver::client::Client;
use cachalot_emulated_driver::install::symbols;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The controls of the process's driver.
static CLIENT: OnceLock<Client> = OnceLock::new();

/// Finds the controls, if the driver that the environment names has them. To be called before the rest of this module.
pub(crate) fn connect() {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE)
        && let Ok(client) = Client::load(path)
    {
        // Set once: later calls find the same driver.
        CLIENT.get_or_init(|| client);
    }
}

/// Ends every planned fault.
pub(crate) fn clear_plan() {
    if let Some(client) = CLIENT.get() {
        client.clear_plan();
    }
}

/// How many calls the fault plan has hit.
pub(crate) fn faults() -> u64 {
    CLIENT.get().map_or(0, Client::faults)
}

/// How many driver calls there were.
pub(crate) fn all_calls() -> u64 {
    CLIENT.get().map_or(0, Client::all_calls)
}

/// How often each driver function was called, of those that were.
pub(crate) fn calls() -> BTreeMap<&'static str, u64> {
    let Some(client) = CLIENT.get() else { return BTreeMap::new() };
    symbols().into_iter().map(|name| (name, client.calls(name))).filter(|&(_, count)| count > 0).collect()
}

/// What is alive in the driver.
pub(crate) fn report() -> Option<Value> {
    CLIENT.get().map(Client::report)
}
