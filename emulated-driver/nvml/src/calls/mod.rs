//! The functions of NVML, by what they tell of.

mod device;
mod events;
mod fields;
mod limits;
mod measured;
mod memory;
mod mig;
mod processes;
mod system;
mod unsupported;

use crate::machine::is_named;

/// Returns whether a rule for `wanted` means a function that there is.
fn is_known(wanted: &str) -> bool {
    let all: [&[&str]; 12] = [
        system::OF_SYSTEM,
        system::BY_HAND,
        device::OF_DEVICE,
        measured::OF_DEVICE,
        memory::OF_DEVICE,
        limits::OF_DEVICE,
        mig::OF_DEVICE,
        processes::OF_DEVICE,
        fields::OF_DEVICE,
        events::OF_DEVICE,
        events::BY_HAND,
        unsupported::OF_DEVICE,
    ];
    all.into_iter().flatten().any(|name| is_named(wanted, name))
}
