//! Sets of events: those of the description, each given once to a set.

use crate::code::{Answer, Code};
use crate::description::Event;
use crate::entry::{of_device, on_state, system};
use crate::handle::Handle;
use crate::pointers::Out;
use crate::state::{EventSet, Live};
use crate::structs::{Event1, Event2};
use std::thread;
use std::time::{Duration, Instant};

/// The functions that do not begin as the others.
pub(crate) const BY_HAND: &[&str] =
    &["nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlEventSetWait", "nvmlEventSetWait_v2"];

/// Kinds of events that every device has: errors of the memory, and critical errors.
const SUPPORTED: u64 = 1 | 2 | 8;
/// How often a wait looks for an event.
const PAUSE: Duration = Duration::from_millis(5);

of_device! {
    nvmlDeviceGetSupportedEventTypes(kinds: Out<u64>) |its| its.whole().and_then(|_| kinds.write(SUPPORTED));
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(set: Out<usize>) -> u32 {
    system("nvmlEventSetCreate", |live| {
        let handle = live.sets.last_key_value().map_or(1, |(last, _)| last + 1);
        set.write(handle)?;
        live.sets.insert(handle, EventSet::default());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: usize) -> u32 {
    system("nvmlEventSetFree", |live| live.sets.remove(&set).map(drop).ok_or(Code::INVALID_ARGUMENT))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(device: Handle, kinds: u64, set: usize) -> u32 {
    on_state(|state| {
        let live = state.enter("nvmlDeviceRegisterEvents", device.parts().map(|parts| parts.0))?;
        let index = live.machine.device(device)?.0.index;
        let set = live.sets.get_mut(&set).ok_or(Code::INVALID_ARGUMENT)?;
        if kinds & !SUPPORTED != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        set.registered.push((index, kinds));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait(set: usize, event: Out<Event1>, timeout_ms: u32) -> u32 {
    wait("nvmlEventSetWait", set, timeout_ms, |found| event.write(found))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(set: usize, event: Out<Event2>, timeout_ms: u32) -> u32 {
    wait("nvmlEventSetWait_v2", set, timeout_ms, |found| {
        event.write(Event2 { event: found, gpu_instance: u32::MAX, compute_instance: u32::MAX })
    })
}

/// Waits for an event. The state is not locked between two looks, so other threads go on, and the
/// file is read again when it changes.
fn wait(function: &str, set: usize, timeout_ms: u32, give: impl Fn(Event1) -> Answer<()>) -> u32 {
    let end = Instant::now() + Duration::from_millis(timeout_ms.into());
    let entered = system(function, |_| Ok(()));
    if entered != 0 {
        return entered;
    }
    loop {
        let code = on_state(|state| {
            let live = state.look()?;
            let next = next(live, set)?.ok_or(Code::TIMEOUT)?;
            give(Event1 { device: Handle::new(next.device, None), kind: next.kind.0, data: next.data })?;
            live.sets.entry(set).or_default().given.push(next);
            Ok(())
        });
        let left = end.saturating_duration_since(Instant::now());
        if code != Code::TIMEOUT.0 || left.is_zero() {
            return code;
        }
        thread::sleep(left.min(PAUSE));
    }
}

/// Returns the next event for a set: the first that is due, registered, and was not given as often
/// as it is in the description.
fn next(live: &Live, set: usize) -> Answer<Option<Event>> {
    let set = live.sets.get(&set).ok_or(Code::INVALID_ARGUMENT)?;
    let passed_ms = live.since.elapsed().as_millis() as u64;
    let mut given = set.given.clone();
    let is_new = |event: &&Event| match given.iter().position(|other| other == *event) {
        Some(place) => {
            given.swap_remove(place);
            false
        }
        None => true,
    };
    let wanted = |event: &&Event| {
        let kind = event.kind.0;
        event.after_ms <= passed_ms
            && set.registered.iter().any(|&(device, kinds)| device == event.device && kinds & kind != 0)
    };
    Ok(live.machine.events.iter().filter(wanted).find(is_new).cloned())
}
