//! The way into the library: the lock, the conditions of every call, and a wall against panics.

use crate::code::{Answer, Code};
use crate::handle::Handle;
use crate::machine::{Device, Machine, MigDevice};
use crate::state::{Live, State, lock};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The subject of a call: a device, or an instance of MIG of it.
pub(crate) struct Subject<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) device: &'a Device,
    /// The place of the instance.
    pub(crate) place: Option<usize>,
}

impl<'a> Subject<'a> {
    /// Returns the instance of MIG, if the handle is that of one.
    pub(crate) fn instance(&self) -> Option<&'a MigDevice> {
        self.place.map(|place| &self.device.instances[place])
    }

    /// Returns the device, and refuses an instance: what the whole device has only.
    pub(crate) fn whole(&self) -> Answer<&'a Device> {
        if self.place.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(self.device) }
    }
}

/// Runs a call on the state, and returns its code. A panic ends here: what it would unwind through
/// is code of another language.
pub(crate) fn on_state(call: impl FnOnce(&mut State) -> Answer<()>) -> u32 {
    let answer = catch_unwind(AssertUnwindSafe(|| call(&mut lock())));
    answer.unwrap_or(Err(Code::UNKNOWN)).map_or_else(|code| code.0, |()| 0)
}

/// Runs a call of `function` that is for no device.
pub(crate) fn system(function: &str, call: impl FnOnce(&mut Live) -> Answer<()>) -> u32 {
    on_state(|state| call(state.enter(function, None)?))
}

/// Runs a call of `function` for a device or an instance of MIG.
pub(crate) fn device(function: &str, handle: Handle, call: impl FnOnce(Subject<'_>) -> Answer<()>) -> u32 {
    on_state(|state| {
        let live = state.enter(function, handle.parts().map(|parts| parts.0))?;
        let (device, place) = live.machine.device(handle)?;
        call(Subject { machine: &live.machine, device, place })
    })
}

/// Declares exported functions for the machine, and the list of their names.
macro_rules! of_system {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) |$live:pat_param| $body:expr;)*) => {
        /// The names of the functions above.
        pub(crate) const OF_SYSTEM: &[&str] = &[$(stringify!($name)),*];
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::entry::system(stringify!($name), |$live| $body)
            }
        )*
    };
}

/// Declares exported functions for a device, and the list of their names.
macro_rules! of_device {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) |$its:pat_param| $body:expr;)*) => {
        /// The names of the functions above.
        pub(crate) const OF_DEVICE: &[&str] = &[$(stringify!($name)),*];
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(device: $crate::handle::Handle, $($argument: $type),*) -> u32 {
                $crate::entry::device(stringify!($name), device, |$its| $body)
            }
        )*
    };
}

pub(crate) use {of_device, of_system};
