//! The memory of the process, parked and woken as a whole.

use crate::charge::DeviceCharge;
use crate::control::{ControlRefusal, RefusalKind, SleepState, Transfer};
use crate::group::SleepNews;
use crate::serve::frees::Relaxed;
use crate::serve::process::Process;
use crate::serve::served::{DEVICE, Served, code_of};
use crate::serve::sleeping::{SleepFigures, Sleeping};
use crate::serve::turns::InTurn;
use crate::shared::time::milliseconds;
use crate::sleep::{AwakeGuard, Body, PhaseGuard, other_threads};
use cachalot_core::{Contents, Error, ErrorKind, ParkMode, ParkOrder, ParkReport, ParkTarget};
use cachalot_cuda::driver::types::CuContext;
use cachalot_cuda::{CuResult, is_no_room, log, memory_of_system};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a wake pauses before the device is asked for memory again.
const PAUSE: Duration = Duration::from_millis(20);

/// How long memory of the host stays after a wake, for a park soon after.
const HOST_MEMORY_STAYS: Duration = Duration::from_secs(5);

/// How long memory of the host stays after a wake where members of a group are parked for each
/// other, and the host has plenty: there the next park is sure, and to pin the memory anew takes
/// longer than the park.
const HOST_MEMORY_STAYS_IN_TURNS: Duration = Duration::from_secs(60);

/// How long a process that is parked for its group holds new calls back, until the calls and the
/// work in progress end.
const YIELD_PATIENCE: Duration = Duration::from_secs(5);

/// A guard of a call that uses no memory.
pub(super) type ProcessPhase<'a> = PhaseGuard<'a, CuResult>;

/// Returns whether the memory is parked for as long as the guard lives.
pub(super) fn is_parked(phase: &ProcessPhase<'_>) -> bool {
    matches!(phase, PhaseGuard::Parked(_))
}

/// Returns whether memory of the host stays, `time` after a wake. `memory` tells all memory of the
/// host and the free part, in bytes.
fn host_memory_stays(time: Duration, yields: bool, memory: impl FnOnce() -> Option<(u64, u64)>) -> bool {
    // The park of another member must find memory, too.
    let has_plenty = || memory().is_some_and(|(all, free)| free > all / 2);
    time < HOST_MEMORY_STAYS || yields && time < HOST_MEMORY_STAYS_IN_TURNS && has_plenty()
}

impl Process {
    /// Starts a call that may use memory. Wakes the memory first. Costs a load where nothing
    /// sleeps.
    ///
    /// # Errors
    /// The code for the caller, where the memory cannot wake.
    #[inline]
    pub fn enter(&self) -> Result<AwakeGuard, CuResult> {
        match &self.sleeping {
            None => Ok(AwakeGuard::without_lock()),
            Some(sleeping) => sleeping.sleeper.enter(&self.memory()),
        }
    }

    /// Starts a call that may use memory, as [`enter`](Self::enter) does, unless the thread is
    /// inside a served call.
    ///
    /// # Errors
    /// As for [`enter`](Self::enter).
    #[inline]
    pub(super) fn enter_outside(&self) -> Result<AwakeGuard, CuResult> {
        match &self.sleeping {
            None => Ok(AwakeGuard::without_lock()),
            Some(sleeping) => sleeping.sleeper.enter_outside(&self.memory()),
        }
    }

    /// Returns a wait for memory of the group. `None`: the process is in no group whose members are
    /// parked for each other.
    pub(super) fn begin_turn(&self) -> Option<InTurn> {
        let sleeping = self.sleeping.as_ref()?;
        sleeping.options.yields.then(|| InTurn::new(sleeping.wake_patience()))
    }

    /// Waits until the members of the group leave room for `bytes` more on the device of `charge`.
    /// The thread uses no memory while it waits, and the process may be parked for another member,
    /// which started to wait earlier. Returns `None` when the patience is over: the refusal is told
    /// then.
    ///
    /// # Errors
    /// The code of memory that cannot wake after the wait.
    pub(super) fn wait_in_turn(
        &self,
        turn: &mut InTurn,
        inside: AwakeGuard,
        charge: &Arc<DeviceCharge>,
        bytes: u64,
    ) -> Result<Option<AwakeGuard>, CuResult> {
        drop(inside);
        if turn.wait(|| self.needs_for(charge, bytes)) {
            return self.enter().map(Some);
        }
        charge.tell_wait_in_vain(bytes);
        Ok(None)
    }

    /// Parks the memory if another member of the group needs it now. Tells the members about the
    /// sleep of the process.
    pub fn yield_to_group(&self) {
        let Some(sleeping) = self.sleeping.as_ref().filter(|sleeping| sleeping.options.yields) else { return };
        let (phase, time) = sleeping.sleeper.phase();
        let news = SleepNews {
            awake: awake_for(phase, time),
            idle: sleeping.idle_time(),
            awake_at_least: Duration::from_millis(sleeping.options.awake_ms),
            pressed: 0,
        };
        // Every device has its group, and each has to learn the news.
        let is_due = self.charge.all().iter().filter(|charge| charge.yields(news)).count() > 0;
        if is_due && let Err(error) = self.park(YIELD_PATIENCE) {
            sleeping.figures().failure = Some(error.text);
        }
    }

    /// Gives memory of the host back that the last park took, a while after the wake: to give it
    /// back takes as long as to copy the contents, so no wake does, and a park soon after finds it.
    pub fn give_host_memory_back(&self) {
        let Some(sleeping) = &self.sleeping else { return };
        let (phase, time) = sleeping.sleeper.phase();
        if phase != SleepState::Awake {
            return;
        }
        let mut holders = self.contexts.all();
        holders.retain(|served| served.device().cuda().host_memory_for_contents().0 > 0);
        // The system is asked in each round of the maintenance thread, so only while there is
        // something to give.
        if holders.is_empty() || host_memory_stays(time, sleeping.options.yields, memory_of_system) {
            return;
        }
        for served in holders {
            // What the driver does not take back is lost, and nothing else is.
            let _ = served.device().cuda().retain_host_memory(0);
            let _ = served.device().cuda().retain_host_memory(u64::MAX);
        }
    }

    /// Starts a call that frees memory, or uses none. Wakes nothing, and no park or wake starts
    /// before the call ends.
    pub(super) fn hold_phase(&self) -> ProcessPhase<'_> {
        self.sleeping
            .as_ref()
            .map_or_else(|| PhaseGuard::Awake(AwakeGuard::without_lock()), |sleeping| sleeping.sleeper.hold_phase())
    }

    /// Makes a call that may destroy a context, while no thread parks or wakes. Memory that the
    /// program maps by itself outlives contexts, so contents that only the context can copy back
    /// wake first. Without a wake the call is not made, and the code of the wake is the answer.
    pub(super) fn between_parks(&self, context: CuContext, call: impl FnOnce() -> CuResult) -> CuResult {
        let Some(sleeping) = &self.sleeping else { return call() };
        let mut call = Some(call);
        loop {
            let ended = sleeping.sleeper.hold(|| {
                let is_needed = self.program.has_contents_in(|served| served.context() == context);
                call.take_if(|_| !is_needed).map(|call| call())
            });
            if let Some(code) = ended {
                return code;
            }
            if let Err(code) = self.enter() {
                return code;
            }
        }
    }

    /// Parks the memory if the process has been idle for as long as the options say. Does nothing
    /// else.
    pub fn park_if_idle(&self) {
        let Some(sleeping) = &self.sleeping else { return };
        // Also without a limit, so that the idle time is known to whoever asks.
        let idle = sleeping.idle_time();
        let Some(limit) = sleeping.idle_limit() else { return };
        if sleeping.sleeper.phase().0 != SleepState::Awake || idle < limit {
            return;
        }
        let look = other_threads();
        if let Err(error) = sleeping.sleeper.park_idle(&self.memory(), look) {
            // A failure is reported once, and tried again after another idle time.
            let is_lasting = matches!(
                error.kind,
                RefusalKind::Unsupported | RefusalKind::NoHostMemory | RefusalKind::NoFileSpace | RefusalKind::Driver
            );
            if is_lasting && sleeping.figures().failure.replace(error.text.clone()).as_ref() != Some(&error.text) {
                log::warning(format_args!("the memory is not parked: {error}"));
            }
            sleeping.postpone();
        }
    }

    /// Parks the memory of a process in use: holds new calls back, and waits up to `patience` for
    /// calls and work in progress.
    ///
    /// # Errors
    /// The reason. The memory is awake then.
    pub fn park(&self, patience: Duration) -> Result<(), ControlRefusal> {
        let Some(sleeping) = &self.sleeping else {
            return Err(ControlRefusal::new(
                RefusalKind::Unsupported,
                "the program was started without --park-idle and --parkable",
            ));
        };
        sleeping.sleeper.park(&self.memory(), patience)
    }

    /// Wakes the memory. Waits for memory of the device up to `patience`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn wake_within(&self, patience: Duration) -> Result<(), CuResult> {
        let Some(sleeping) = &self.sleeping else { return Ok(()) };
        sleeping.sleeper.wake(&Memory { process: self, patience: Some(patience) })
    }

    /// Returns since when no call has used memory. `None`: the memory stays on the device.
    pub(super) fn idle_time(&self) -> Option<Duration> {
        self.sleeping.as_ref().map(Sleeping::idle_time)
    }

    /// Returns the bytes of small blocks that may stay on the device.
    fn keep_awake(&self) -> u64 {
        self.sleeping.as_ref().map_or(0, |sleeping| sleeping.options.keep_awake)
    }

    /// Returns the memory, which waits for the device as long as the options say.
    #[inline]
    fn memory(&self) -> Memory<'_> {
        Memory { process: self, patience: None }
    }

    /// Returns the state, for how long the memory has been awake or parked, and the figures.
    /// `None`: the memory stays on the device.
    pub fn sleep(&self) -> Option<(SleepState, Duration, SleepFigures)> {
        let sleeping = self.sleeping.as_ref()?;
        let (phase, time) = sleeping.sleeper.phase();
        Some((phase, time, sleeping.figures().clone()))
    }

    /// Returns the parked bytes by device.
    pub(super) fn parked_needs(&self) -> Vec<(Arc<DeviceCharge>, u64)> {
        let mut needs = Vec::new();
        for served in self.contexts.all() {
            let bytes = report(&served).map_or(0, |report| report.parked);
            add_need(&mut needs, served.device().charge(), bytes);
        }
        for (device, bytes) in self.program.parked() {
            add_need(&mut needs, &self.charge.of_device(self.real, device), bytes);
        }
        needs
    }

    /// Returns the bytes by device that a request needs: the parked bytes wake first. With the
    /// request's bytes alone two members that hold memory and want more would wake in turn, and
    /// none would get the rest.
    fn needs_for(&self, charge: &Arc<DeviceCharge>, bytes: u64) -> Vec<(Arc<DeviceCharge>, u64)> {
        let mut needs = self.parked_needs();
        add_need(&mut needs, charge, bytes);
        needs
    }

    /// Returns the sums of the memory that can be parked: served, and mapped by the program.
    pub fn parkable(&self) -> ParkReport {
        let (mut sum, program) = (self.served_parkable(), self.program_sums());
        sum.mapped += program.awake;
        sum.parked += program.parked;
        sum.kept += program.parked;
        sum
    }

    /// Returns the sums of the served memory that can be parked, over the contexts.
    pub(super) fn served_parkable(&self) -> ParkReport {
        self.contexts.all().iter().filter_map(|served| report(served)).fold(ParkReport::default(), |mut sum, report| {
            sum.mapped += report.mapped;
            sum.parked += report.parked;
            sum.kept += report.kept;
            sum.pinned += report.pinned;
            sum.ordinary += report.ordinary;
            sum
        })
    }
}

/// The served memory of a process.
struct Memory<'a> {
    process: &'a Process,
    /// How long a wake waits for memory of the device. `None`: as long as the options say, which no
    /// call that finds the memory awake has to read.
    patience: Option<Duration>,
}

impl Body for Memory<'_> {
    type Error = CuResult;

    fn is_idle(&self) -> bool {
        let frees = &self.process.frees;
        let number = frees.number();
        frees.settle(self.process.real) >= number
    }

    fn park(&self) -> Result<(), ControlRefusal> {
        let process = self.process;
        if process.frees.is_capturing() {
            return Err(ControlRefusal::new(RefusalKind::Capturing, "a stream captures a graph"));
        }
        let begin = Instant::now();
        if let Err(refusal) = park_all(process) {
            if wake_all(process).is_ok() {
                return Err(refusal);
            }
            // What is parked, the next call wakes: until then the process counts as parked.
            if let Some(sleeping) = &process.sleeping {
                sleeping.figures().failure = Some(refusal.text);
            }
            return Ok(());
        }
        let moved = Transfer { ms: milliseconds(begin.elapsed()), bytes: process.parkable().kept };
        if let Some(sleeping) = &process.sleeping {
            let mut figures = sleeping.figures();
            figures.parks += 1;
            (figures.last_park, figures.failure) = (moved, None);
        }
        Ok(())
    }

    fn wake(&self) -> Result<(), CuResult> {
        // The caller is a function of the driver's.
        catch_unwind(AssertUnwindSafe(|| self.wake_in_time())).unwrap_or(Err(CuResult::UNKNOWN))
    }
}

impl Memory<'_> {
    /// Wakes the memory, and waits for the device to have room as long as the options say.
    fn wake_in_time(&self) -> Result<(), CuResult> {
        let Some(sleeping) = &self.process.sleeping else { return Ok(()) };
        let (begin, bytes) = (Instant::now(), self.process.parkable().kept);
        let patience = self.patience.unwrap_or_else(|| sleeping.wake_patience());
        let end = begin + patience;
        let mut turn = sleeping.options.yields.then(|| InTurn::new(patience));
        let (code, text) = loop {
            // A member of the group that has waited for longer wakes first, even if the memory
            // would suffice for this one.
            if let Some(turn) = &mut turn
                && !turn.wait(|| self.process.parked_needs())
            {
                break (CuResult::OUT_OF_MEMORY, "the other members of the group keep the memory".to_owned());
            }
            let error = match wake_all(self.process) {
                Ok(()) => {
                    sleeping.postpone();
                    let mut figures = sleeping.figures();
                    figures.wakes += 1;
                    (figures.last_wake, figures.failure) =
                        (Transfer { ms: milliseconds(begin.elapsed()), bytes }, None);
                    return Ok(());
                }
                Err(error) => error,
            };
            if !lacks_memory(&error) || Instant::now() >= end {
                let text = file_error(self.process).map_or_else(|| error.to_string(), |file| file.to_string());
                break (code_of(error), text);
            }
            std::thread::sleep(PAUSE);
        };
        log::warning(format_args!("the memory does not wake: {text}"));
        sleeping.figures().failure = Some(text);
        Err(code)
    }
}

/// Returns for how long memory has been on the device, as the group counts it, in a phase with a
/// time since the last change. `None`: the memory is on the host.
fn awake_for(phase: SleepState, time: Duration) -> Option<Duration> {
    match phase {
        SleepState::Awake | SleepState::Parking => Some(time),
        // The memory can leave again as soon as it is awake. A member that waits for it would give
        // up if the memory counted as stuck: a wake that took longer than the hope of a wait failed
        // requests of others.
        SleepState::Waking => Some(Duration::ZERO),
        SleepState::Parked => None,
    }
}

/// Adds `bytes` to what is needed on the device of `charge`.
fn add_need(needs: &mut Vec<(Arc<DeviceCharge>, u64)>, charge: &Arc<DeviceCharge>, bytes: u64) {
    match needs.iter_mut().find(|(known, _)| Arc::ptr_eq(known, charge)) {
        Some((_, sum)) => *sum += bytes,
        None => needs.push((Arc::clone(charge), bytes)),
    }
}

/// Parks the memory of all contexts, and the memory that the program maps by itself.
///
/// # Errors
/// The first reason. A part of the memory may be parked then.
fn park_all(process: &Process) -> Result<(), ControlRefusal> {
    if process.contexts.all().iter().any(|served| !served.device().cuda().lie_elsewhere()) {
        let reason = "the device and the host have one memory: `--park-to FOLDER` parks to files".to_owned();
        return Err(ControlRefusal::new(RefusalKind::Unsupported, reason));
    }
    for served in process.contexts.all() {
        // The work before every free is complete: freed blocks need no contents.
        served.device().advance(process.frees.reached());
        park(&served, process.keep_awake()).map_err(|error| refusal(&served, &error))?;
    }
    process.park_program().map_err(|error| refusal_of_file(&error.served).unwrap_or_else(|| error.refusal()))
}

/// Parks the memory of a context. Small blocks stay if their pages take up to `keep_awake` bytes.
fn park(served: &Served, keep_awake: u64) -> Result<(), Error> {
    let parking = served.allocator().parking(DEVICE)?;
    let mapped = |target| parking.report(target).map(|report| report.mapped);
    let small = mapped(ParkTarget::Streams)?.saturating_sub(mapped(ParkTarget::LargeOfStreams)?);
    let target = if small <= keep_awake { ParkTarget::LargeOfStreams } else { ParkTarget::Streams };
    parking.park(target, ParkMode::Keep, ParkOrder::Device)
}

/// Wakes the memory of a context.
fn wake(served: &Served) -> Result<(), Error> {
    served.allocator().parking(DEVICE)?.wake(ParkTarget::Streams)
}

/// Wakes the memory of all contexts and the memory that the program maps by itself: maps all, and
/// then waits for the copies.
///
/// # Errors
/// The first error. All memory is parked then.
fn wake_all(process: &Process) -> Result<(), Error> {
    let _relaxed = Relaxed::enter(process.real);
    let contexts = process.contexts.all();
    let start = |served: &Arc<Served>| served.allocator().parking(DEVICE)?.wake_start(ParkTarget::Streams);
    let woken = contexts
        .iter()
        .try_for_each(start)
        .and_then(|()| process.start_to_wake().map_err(Error::Device))
        .and_then(|()| contexts.iter().try_for_each(|served| wake(served)))
        .and_then(|()| process.finish_to_wake().map_err(Error::Device));
    if woken.is_ok() {
        process.end_to_wake();
    } else {
        process.park_again();
        // A context awake would keep its memory from the others. What stays awake is awake at the
        // next try.
        for served in &contexts {
            let _ = wake(served).and_then(|()| park(served, process.keep_awake()));
        }
    }
    woken
}

/// Returns where the memory of a context is.
fn report(served: &Served) -> Option<ParkReport> {
    served.allocator().parking(DEVICE).ok()?.report(ParkTarget::Streams).ok()
}

/// Returns whether a wake may succeed later. The host may not have the memory for the copies from
/// files, too.
fn lacks_memory(error: &Error) -> bool {
    match error {
        Error::OutOfMemory(_) => true,
        Error::Device(error) => error.kind == ErrorKind::OutOfMemory,
        _ => false,
    }
}

/// Returns the last error of a file of parked memory, once.
fn file_error(process: &Process) -> Option<io::Error> {
    process.contexts.all().iter().find_map(|served| served.device().cuda().take_contents_error())
}

/// Returns the refusal for an error of a park, with the reason of a file if a file has failed.
fn refusal(served: &Served, error: &Error) -> ControlRefusal {
    refusal_of_file(served).unwrap_or_else(|| ControlRefusal::new(reason_of(error), error.to_string()))
}

/// Returns the refusal for a file that has failed since the last look.
fn refusal_of_file(served: &Served) -> Option<ControlRefusal> {
    let file = served.device().cuda().take_contents_error()?;
    let kind = if is_no_room(&file) { RefusalKind::NoFileSpace } else { RefusalKind::Unsupported };
    Some(ControlRefusal::new(kind, file.to_string()))
}

/// Returns the kind of the reason behind an error of a park.
fn reason_of(error: &Error) -> RefusalKind {
    match error {
        Error::NoHostMemory => RefusalKind::NoHostMemory,
        Error::ParkingRefused(_) => RefusalKind::Unsupported,
        Error::Device(error) if error.kind == ErrorKind::NotPermittedInCapture => RefusalKind::Capturing,
        _ => RefusalKind::Driver,
    }
}

#[cfg(test)]
mod tests {
    use super::{awake_for, host_memory_stays};
    use crate::control::SleepState;
    use std::time::Duration;

    #[test]
    fn memory_on_its_way_counts_as_memory_that_can_leave() {
        let time = Duration::from_secs(7);
        let told = [SleepState::Awake, SleepState::Parking, SleepState::Waking, SleepState::Parked];
        let told = told.map(|phase| awake_for(phase, time));
        assert_eq!(told, [Some(time), Some(time), Some(Duration::ZERO), None]);
    }

    #[test]
    fn memory_of_the_host_stays_longer_where_the_next_park_is_sure_and_others_find_some() {
        let (soon, later, late) = (Duration::from_secs(4), Duration::from_secs(59), Duration::from_secs(60));
        let (plenty, little) = (|| Some((100, 51)), || Some((100, 50)));
        let stays = [soon, later, late].map(|time| host_memory_stays(time, true, plenty));
        assert_eq!(stays, [true, true, false]);
        assert!(!host_memory_stays(later, false, plenty), "nobody parks it for others");
        assert!(!host_memory_stays(later, true, little), "others may need it");
        assert!(!host_memory_stays(later, true, || None), "nobody knows what others find");
    }
}
