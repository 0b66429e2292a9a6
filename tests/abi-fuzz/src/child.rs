//! Runs a case in the present process.

use crate::abi::{self, Allocator};
use crate::audit;
use crate::case::Case;
use crate::driver::{Driver, insist};
use crate::finding::{self, Origin};
use crate::hooks;
use crate::permitted::Situation;
use crate::places::Stream;
use crate::watch;
use crate::worker::Worker;
use crate::world::{Machine, World};
use cachalot::c::abi::{
    CACHALOT_ASK_STREAM_ID, CACHALOT_HOST, CACHALOT_NO_CACHING, CACHALOT_PEER_ACCESS, cachalot_options,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The variable with the path of the driver.
pub(crate) const LIBRARY: &str = "CACHALOT_LIBCUDA";

/// Streams of each device at the beginning.
const STREAMS: usize = 3;

/// Time without progress after which the watch reports a finding.
const PATIENCE: Duration = Duration::from_secs(60);

/// Loads the driver, and retains the context of each device.
fn machine(case: &Case) -> Result<Machine, String> {
    let path = std::env::var(LIBRARY).map_err(|error| format!("{LIBRARY}: {error}"))?;
    let driver = Driver::load(&path)?;
    insist("cuInit", || driver.init(0));
    let mut contexts = Vec::new();
    for ordinal in 0..case.devices as i32 {
        let (mut device, mut context) = (0, 0);
        insist("cuDeviceGet", || driver.device_get(&mut device, ordinal));
        insist("cuDevicePrimaryCtxRetain", || driver.retain(&mut context, device));
        contexts.push(context);
    }
    insist("cuCtxSetCurrent", || driver.set_current(contexts[0]));
    // Any device address tells where the view of each device lies.
    let mut probe = 0;
    insist("cuMemAddressReserve", || driver.address_reserve(&mut probe, 2 << 20, 0, 0, 0));
    let shift = |device: i32| (driver.control.seen_by(device, probe).addr() as u64).wrapping_sub(probe);
    let shifts = (0..case.devices as i32).map(shift).collect();
    insist("cuMemAddressFree", || driver.address_free(probe, 2 << 20));
    Ok(Machine { driver, contexts, shifts })
}

/// Makes the allocator of a case.
fn allocator(case: &Case) -> Allocator {
    let config = CString::new(case.config.as_str()).unwrap_or_default();
    let flag = |on: bool, flag: u32| if on { flag } else { 0 };
    let flags = flag(case.ask, CACHALOT_ASK_STREAM_ID)
        | flag(case.no_caching, CACHALOT_NO_CACHING)
        | flag(case.host, CACHALOT_HOST)
        | flag(case.devices > 1 && case.seed.is_multiple_of(2), CACHALOT_PEER_ACCESS);
    let options =
        cachalot_options { flags, device_count: case.devices, config: config.as_ptr(), ..cachalot_options::INIT };
    match Allocator::create(&options) {
        Ok(allocator) => allocator,
        Err(reply) => {
            reply.judge(Situation::NONE);
            finding::report("program", "cachalot_create made no allocator");
        }
    }
}

/// Runs a case, and prints a summary as a line of JSON. A finding ends the process.
///
/// # Errors
/// A description of why the case cannot begin.
pub(crate) fn run(case: Case, trace: bool) -> Result<(), String> {
    finding::set_origin(Origin { thread: 98, op: 0 });
    let machine = machine(&case)?;
    finding::catch_faults();
    let allocator = allocator(&case);
    // Callbacks use the world until the process ends.
    let world: &'static World = Box::leak(Box::new(World::new(case, machine, allocator, trace)));
    hooks::set(world);
    for device in 0..world.contexts.len() {
        insist("cuCtxSetCurrent", || world.driver.set_current(world.contexts[device]));
        for number in 0..STREAMS {
            let stream = Stream::make(&world.driver, device, u32::from(number > 0));
            world.streams.write().push(stream);
        }
    }
    describe(world);
    watch::start(world.case.threads, PATIENCE);
    let mut workers: Vec<Worker> = (0..world.case.threads).map(|id| Worker::new(world, id)).collect();
    for phase in 0..world.case.phases {
        run_phase(world, &mut workers, phase);
        audit::audit(world, &workers);
    }
    audit::end(world, &mut workers);
    println!("SUMMARY {}", summary(world, &workers));
    Ok(())
}

/// Checks the library's answers about the library and the devices, and gives devices access to each
/// other.
fn describe(world: &World) {
    let (number, text) = abi::version();
    let parts: Vec<u32> = text.split('.').filter_map(|part| part.parse().ok()).collect();
    let composed = parts.iter().fold(0, |sum, part| sum * 1000 + part);
    let mut count = -1;
    world.allocator.device_count(&mut count).judge(Situation::NONE);
    let (name, meaning, code) = (abi::status_name(0), abi::status_text(0), abi::last_driver_code());
    if composed != number || count as usize != world.contexts.len() || name != "CACHALOT_OK" || meaning.is_empty() {
        finding::report("text", &format!("version {number} {text}, {count} devices, {name} {meaning} {code}"));
    }
    if count > 1 {
        world.allocator.enable_peer_access(0, 1).judge(Situation::ORDINARY);
    }
}

/// Runs the operations of a phase, under the faults of the phase.
fn run_phase(world: &'static World, workers: &mut [Worker], phase: u64) {
    let plan = world.case.plan(phase);
    if !plan.is_empty() && world.driver.control.plan(&plan).is_err() {
        finding::report("program", &format!("the driver refuses the plan {plan}"));
    }
    if world.trace {
        println!("phase {phase} {plan}");
    }
    let ops = world.case.ops / world.case.phases / u64::from(world.case.threads);
    let work = |worker: &mut Worker| {
        worker.begin();
        worker.run(ops);
        worker.pause();
    };
    if let [worker] = workers {
        work(worker);
    } else {
        std::thread::scope(|scope| {
            for worker in workers {
                scope.spawn(|| work(worker));
            }
        });
    }
    world.driver.control.clear_plan();
}

/// Returns the counts of a case.
fn summary(world: &World, workers: &[Worker]) -> Value {
    let tally = &world.tally;
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let calls: BTreeMap<&str, u64> = abi::counts().collect();
    json!({
        "operations": workers.iter().map(Worker::done).sum::<u64>(),
        "mallocs": count(&tally.mallocs),
        "refused": count(&tally.refused),
        "contents checked": count(&tally.checked),
        "parks": count(&tally.parks),
        "wakes": count(&tally.wakes),
        "graphs": count(&tally.graphs),
        "replays": count(&tally.replays),
        "ranges": count(&tally.ranges),
        "pins": count(&tally.pins),
        "moved": count(&tally.moved),
        "MiB on the host": count(&tally.spilled) >> 20,
        "cases on the host": u64::from(count(&tally.spilled) > 0),
        "streams": count(&tally.streams),
        "forecasts": count(&tally.forecasts),
        "would_fit": count(&tally.fits),
        "mistakes": count(&tally.mistakes),
        "faults": if world.case.faults { world.driver.control.faults() } else { 0 },
        "calls": calls,
    })
}
