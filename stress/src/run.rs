//! One run, from the driver's start to the last byte given back.

use crate::emulated;
use crate::options::{Faults, Identity, RunOptions};
use crate::report::Report;
use crate::shared::Shared;
use crate::stage::Device;
use crate::subject::{Core, Subject};
use crate::tap::Tap;
use crate::times::{Counts, Latency};
use crate::verdict::Kind;
use crate::worker::Worker;
use crate::worker::check_lost;
use cachalot_core::{Config, DeviceMemory, DevicePtr, Error, MIB};
use cachalot_cuda::{Driver, StreamIdentity, Streams};
use serde_json::Value;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The emulated devices' unit of memory.
const PAGE: u64 = 2 * MIB;

/// Functions that the allocator works without, and the run does not: it launches kernels and reads what they find, uses streams
/// of several devices on one another's memory, and captures graphs that the allocator is not told of.
const NEEDED: [&CStr; 14] = [
    c"cuLaunchKernel",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuStreamDestroy_v2",
    c"cuStreamWaitEvent",
    c"cuStreamGetCtx",
    c"cuStreamBeginCapture_v2",
    c"cuStreamEndCapture",
    c"cuStreamIsCapturing",
    c"cuThreadExchangeStreamCaptureMode",
    c"cuGraphInstantiateWithFlags",
    c"cuGraphLaunch",
    c"cuGraphExecDestroy",
    c"cuGraphDestroy",
];

/// Why a run did not begin.
pub(crate) type SetupError = Box<dyn std::error::Error>;

/// What was set up: everything but the threads.
struct Setup {
    driver: &'static Driver,
    shared: &'static Shared,
    workers: Vec<Worker>,
}

/// Runs as asked.
///
/// # Errors
/// Why the run did not begin.
pub(crate) fn run(options: &RunOptions) -> Result<Report, SetupError> {
    emulated::connect();
    // What a failed beginning leaves behind is not the allocator's.
    let mut taken = 0;
    let setup = match set_up(options) {
        Ok(setup) => setup,
        Err(error) if options.faults.is_some() => {
            // Then it has to work without the fault.
            eprintln!("not set up: {error}");
            emulated::clear_plan();
            taken = emulated::report().map_or(0, |report| used_bytes(&report));
            set_up(&RunOptions { faults: None, ..options.clone() })?
        }
        Err(error) => return Err(error),
    };
    let Setup { driver, shared, mut workers } = setup;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for worker in &mut workers {
            scope.spawn(|| worker.run());
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let (mut latency, mut counts) = (Latency::default(), Counts::default());
    for worker in &workers {
        latency.merge(&worker.latency);
        counts.merge(&worker.counts);
    }
    if options.faults.is_some() {
        Device::unwind(driver);
    }
    if shared.lost.lock().is_some() && !shared.verdict.is_bad() {
        check_lost(shared);
    } else if !shared.verdict.is_bad() {
        close(shared, taken);
    }
    Ok(Report::new(shared, driver, seconds, &latency, counts))
}

/// Opens the devices, makes the allocator, and what each thread works with.
fn set_up(options: &RunOptions) -> Result<Setup, SetupError> {
    let driver = Driver::load()?;
    if let Some(missing) = driver.missing().find(|entry| NEEDED.contains(&entry.symbol)) {
        return Err(format!("the driver has no {}, which the run needs", missing.symbol.to_string_lossy()).into());
    }
    let config = Config::parse(&options.config).map_err(|error| error.to_string())?;
    // One table for all: a stream of one device may use another's blocks.
    let numbers = Arc::new(Streams::new());
    let identity = match options.identity {
        Identity::Reported => StreamIdentity::Reported,
        Identity::Asked => StreamIdentity::Asked,
    };
    let open = |index| Device::open(driver, index, options.streams, identity, &numbers);
    let mut devices = (0..options.devices).map(open).collect::<Result<Vec<_>, _>>()?;
    connect_peers(&mut devices)?;
    let devices: &'static [Device] = devices.leak();
    let taps = devices.iter().map(|device| Tap::new(device.cuda, options.mutant));
    let subject = Subject::new(Core::new(taps, &config)?, options.mutant);
    // The process ends with the run.
    let shared: &'static Shared = Box::leak(Box::new(Shared::new(options.clone(), config, subject, devices)));
    let workers = (0..options.threads).map(|number| Worker::new(shared, number)).collect::<Result<_, _>>()?;
    Ok(Setup { driver, shared, workers })
}

/// Lets every device use the memory of every other that it can reach.
fn connect_peers(devices: &mut [Device]) -> Result<(), SetupError> {
    for user in 0..devices.len() {
        for owner in 0..devices.len() {
            let reached = owner != user && devices[owner].cuda.can_be_reached_from(devices[user].cuda)?;
            if reached {
                devices[owner].cuda.allow_access_from(devices[user].cuda)?;
                devices[user].reaches.push(owner);
            }
        }
    }
    Ok(())
}

/// Everything goes back, and nothing is left in the allocator or the driver.
fn close(shared: &Shared, taken: u64) {
    let (subject, verdict) = (&shared.subject, &shared.verdict);
    for stage in shared.devices {
        for lane in &stage.lanes {
            if let Err(error) = stage.synchronize(lane.line().handle) {
                shared.device_failed("synchronize", error);
            }
        }
        if let Err(error) = subject.empty_cache(stage.index) {
            shared.refused("empty_cache", &error);
        }
    }
    let live = shared.live.load(Ordering::Acquire);
    let segments = subject.snapshot();
    if live != 0 || !segments.is_empty() {
        let text = format!("{live} blocks are held, {} segments are left: {segments:?}", segments.len());
        verdict.report(Kind::Leak, text);
    }
    if let Err(broken) = subject.check_invariants() {
        verdict.report(Kind::Invariant, broken.to_owned());
    }
    if let Err(error) = check_bytes(shared) {
        shared.refused("leaked_bytes", &error);
    }
    for (device, base, bytes) in std::mem::take(&mut *shared.own.lock()) {
        if let Err(error) = shared.devices[device].cuda.release(DevicePtr(base), bytes.next_multiple_of(512)) {
            shared.device_failed("release", error);
        }
    }
    if let Some(report) = emulated::report() {
        check_driver(shared, taken, &report);
    }
}

/// The allocator counts as held exactly what it counts as leaked, and leaks nothing unless calls failed.
fn check_bytes(shared: &Shared) -> Result<(), Error> {
    for stage in shared.devices {
        let reserved = shared.subject.stats(stage.index)?.reserved_bytes().current;
        let leaked = shared.subject.leaked_bytes(stage.index)?;
        if reserved != 0 || leaked != 0 && shared.options.faults.is_none() {
            let text = format!("{reserved} bytes are reserved and {leaked} leaked on {:?}", stage.index);
            shared.verdict.report(Kind::Leak, text);
        }
    }
    Ok(())
}

/// The driver holds no more memory than the allocator counts as leaked, and than calls took that failed after they acted.
fn check_driver(shared: &Shared, taken: u64, report: &Value) {
    let used = used_bytes(report);
    let mut allowed = taken;
    for stage in shared.devices {
        allowed += shared.subject.leaked_bytes(stage.index).unwrap_or(0);
        if shared.options.faults == Some(Faults::After) {
            allowed += shared.subject.device(stage.index).map_or(0, Tap::refused_bytes);
        }
    }
    // Small allocations share pages, and one that was lost keeps the whole page.
    let shared_pages = report["allocations"].as_u64().unwrap_or(0) * PAGE;
    if used > allowed + shared_pages || report["allocated_bytes"].as_u64().unwrap_or(0) > allowed {
        shared
            .verdict
            .report(Kind::Leak, format!("the driver holds {used} bytes, {allowed} are accounted for: {report}"));
    }
    // Addresses without memory are lost one at a time, by calls that failed.
    let reservations = report["reservations"].as_u64().unwrap_or(0);
    if reservations > emulated::faults() {
        shared.verdict.report(Kind::Leak, format!("reservations are left: {report}"));
    }
}

/// What the driver's report says is in use on all devices.
fn used_bytes(report: &Value) -> u64 {
    report["used_bytes"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum()
}
