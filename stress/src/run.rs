//! One run, from the start of the driver to the release of the last byte.

use crate::emulated;
use crate::instrumented::Instrumented;
use crate::options::{Faults, Identity, RunOptions};
use crate::report::Report;
use crate::setup::SetupError;
use crate::shared::Shared;
use crate::stage::Device;
use crate::subject::{Core, Subject};
use crate::tenant::Tenancy;
use crate::times::{Counts, Latency};
use crate::verdict::Kind;
use crate::worker::Worker;
use crate::worker::check_lost;
use cachalot_core::{Config, DevicePtr, Error, MIB, Segments, StreamOrder};
use cachalot_cuda::{Driver, Streams};
use serde_json::Value;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Granularity of the emulated devices' memory, in bytes.
const PAGE: u64 = 2 * MIB;

/// Driver functions that the run needs, though the allocator works without them. The run launches
/// kernels and reads their findings, uses blocks across devices, and captures graphs unknown to the
/// allocator.
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

/// A prepared run, without threads.
struct Setup {
    driver: &'static Driver,
    shared: &'static Shared,
    workers: Vec<Worker>,
}

/// Executes a run.
///
/// # Errors
/// The reason why the run did not start.
pub(crate) fn run(options: &RunOptions) -> Result<Report, SetupError> {
    emulated::connect();
    // Bytes left behind by a failed setup; the allocator does not account for them.
    let mut taken = 0;
    let setup = match set_up(options) {
        Ok(setup) => setup,
        Err(error) if options.faults.is_some() => {
            // Without the fault the setup must succeed.
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
        for _ in 0..options.device_waits {
            scope.spawn(|| wait_for_devices(shared));
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let (mut latency, mut counts) = (Latency::default(), Counts::default());
    for worker in &workers {
        latency.merge(&worker.latency);
        counts.merge(&worker.counts);
    }
    if options.faults.is_some() {
        // Failed pops may have left contexts on the stack of the main thread.
        Device::unwind(driver);
    }
    if shared.lost.lock().is_some() && !shared.verdict.is_bad() {
        check_lost(shared);
    } else if !shared.verdict.is_bad() {
        close(shared, taken);
    }
    Ok(Report::new(shared, driver, seconds, &latency, counts))
}

/// Opens the devices, creates the allocator, and prepares the workers.
fn set_up(options: &RunOptions) -> Result<Setup, SetupError> {
    let driver = Driver::load()?;
    if let Some(missing) = driver.missing().find(|entry| NEEDED.contains(&entry.symbol)) {
        return Err(format!("the driver has no {}, which the run needs", missing.symbol.to_string_lossy()).into());
    }
    let config = cachalot_policies::parse(&options.config).map_err(|error| error.to_string())?;
    // One table for all devices: a stream of one device may use blocks of another device.
    let numbers = Arc::new(Streams::new());
    let open = |index| Device::open(driver, index, (options, &config), &numbers);
    let mut devices = (0..options.devices).map(open).collect::<Result<Vec<_>, _>>()?;
    connect_peers(&mut devices)?;
    let devices: &'static [Device] = devices.leak();
    let instrumented = devices.iter().map(|device| Instrumented::new(device.cuda, options.mutant));
    let subject = Subject::new(Core::new(instrumented, &config)?, options.mutant);
    for stage in devices {
        subject.settings(stage.index)?.set_limit(stage.limit);
    }
    // Leaked on purpose: the process ends with the run.
    let tenancies = tenancies(options, &subject, &config, devices)?;
    let shared: &'static Shared =
        Box::leak(Box::new(Shared::new(options.clone(), config, subject, devices, tenancies)));
    for tenancy in &shared.tenancies {
        let memory = tenancy.tenant.lock().parts.iter().map(|part| part.memory).collect::<Vec<_>>();
        shared.own.lock().extend(memory.iter().map(|own| (tenancy.device, own.address().0, own.bytes())));
    }
    let workers = (0..options.threads).map(|number| Worker::new(shared, number)).collect::<Result<_, _>>()?;
    Ok(Setup { driver, shared, workers })
}

/// Waits for all work of the devices until the run ends. The order of the workers' streams must
/// hold beside these waits, too.
fn wait_for_devices(shared: &Shared) {
    while !shared.is_ending() && !shared.is_stopped() {
        for stage in shared.devices {
            let _no_capture = shared.device_waits.write();
            match stage.cuda.synchronize_all() {
                Ok(()) => _ = shared.device_waits_made.fetch_add(1, Ordering::AcqRel),
                Err(error) => shared.device_failed("synchronize_all", error),
            }
        }
    }
}

/// Creates the tenants of all devices.
fn tenancies(
    options: &RunOptions,
    subject: &Subject,
    config: &Config,
    devices: &'static [Device],
) -> Result<Vec<Tenancy>, SetupError> {
    let needs_pages = options.tenants > 0 || options.ranges > 0;
    if needs_pages && devices.iter().any(|stage| stage.cuda.virtual_memory().is_none()) {
        return Err("a device has no virtual memory, which tenants and ranges need".into());
    }
    let of = |stage| Tenancy::all(subject, config, stage, options.tenants, options.batch);
    Ok(devices.iter().map(of).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Enables access of every device to the memory of every reachable device.
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

/// Releases all memory, and checks that the allocator and the driver hold none.
fn close(shared: &Shared, taken: u64) {
    let (subject, verdict) = (&shared.subject, &shared.verdict);
    for stage in shared.devices {
        // Complete all work first: pending blocks become free, and empty segments can be released.
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

/// Checks that the allocator's reserved bytes are all counted as leaked, and that no byte leaks in
/// a run without faults.
fn check_bytes(shared: &Shared) -> Result<(), Error> {
    for stage in shared.devices {
        let reserved = shared.subject.stats(stage.index)?.totals().reserved_bytes().current;
        let leaked = shared.subject.stats(stage.index)?.leaked_bytes();
        if reserved != 0 || leaked != 0 && shared.options.faults.is_none() {
            let text = format!("{reserved} bytes are reserved and {leaked} leaked on {:?}", stage.index);
            shared.verdict.report(Kind::Leak, text);
        }
    }
    Ok(())
}

/// Bytes that a device keeps for waits: from its opening on if the driver is asked for the ids of
/// streams, else from the first end of a stream that could not be recorded. Each byte is its own
/// allocation.
const KEPT_BYTES: u64 = 16;

/// Checks the driver's memory. The driver may hold the bytes that the allocator counts as leaked,
/// those that open devices keep, and the bytes of calls that failed after their effect.
fn check_driver(shared: &Shared, taken: u64, report: &Value) {
    // A library in front of the driver keeps memory for later requests, and has its own tests.
    if std::env::var_os("CACHALOT_RUN").is_some() {
        return;
    }
    let used = used_bytes(report);
    let mut allowed = taken;
    for stage in shared.devices {
        allowed += shared.subject.stats(stage.index).map_or(0, |stats| stats.leaked_bytes());
        if shared.options.identity == Identity::Asked || shared.options.faults.is_some() {
            allowed += KEPT_BYTES;
        }
        if shared.options.faults == Some(Faults::After) {
            allowed += shared.subject.device(stage.index).map_or(0, Instrumented::refused_bytes);
        }
    }
    // Small allocations share pages, and a lost allocation keeps a whole page.
    let shared_pages = report["allocations"].as_u64().unwrap_or(0) * PAGE;
    if used > allowed + shared_pages || report["allocated_bytes"].as_u64().unwrap_or(0) > allowed {
        shared
            .verdict
            .report(Kind::Leak, format!("the driver holds {used} bytes, {allowed} are accounted for: {report}"));
    }
    // Each lost range of addresses needs a failed call.
    let reservations = report["reservations"].as_u64().unwrap_or(0);
    if reservations > emulated::faults() {
        shared.verdict.report(Kind::Leak, format!("reservations are left: {report}"));
    }
}

/// Returns the bytes in use on all devices, from the driver's report.
fn used_bytes(report: &Value) -> u64 {
    report["used_bytes"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum()
}
