//! A world: the core on its device, the state shared by all threads, and the checks at rest.

use crate::block::Block;
use crate::device::{Device, Mistake};
use crate::latch::Latch;
use crate::program::Program;
use crate::turns::{self, Body};
use cachalot_core::{
    Allocator, Config, DeviceIndex, Error, ErrorKind, Growable, ParkTarget, PoolId, PoolOptions, Route, RoutePurpose,
    StreamId, Tag,
};
use cachalot_tests::claims::Claims;
use cachalot_tests::consistency;
use cachalot_tests::failures::INJECTED;
use fastrand::Rng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU64;
use std::rc::Rc;

/// The core under test.
pub type Core = Allocator<Device, Latch, Growable>;

/// The only device.
pub const DEVICE: DeviceIndex = DeviceIndex(0);

/// Bytes of the device: some hundred pages, so that worlds run short of memory.
const CAPACITY: u64 = 640 << 20;

/// Streams that all threads use. Each thread has two more of its own: a stream for parked memory,
/// and a passing stream, which ends now and then.
const SHARED_STREAMS: u64 = 4;

/// Number of the first passing stream. Each has a number of its own.
const PASSING: u64 = 1000;

/// Steps of a thread between two checks at rest.
const ROUND: u32 = 200;

/// The rules of a world, beside the seed.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The configuration of the core.
    pub config: String,
    /// Number of threads.
    pub threads: u32,
    /// Rounds of steps of all threads, with a check at rest after each.
    pub rounds: u32,
    /// Whether calls to the device fail now and then.
    pub faults: bool,
    /// A planted mistake of the device.
    pub mistake: Option<Mistake>,
}

/// The end of a world without a finding.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// Requests and frees.
    pub operations: u64,
    /// Comparisons of a block's memory and contents.
    pub checks: u64,
    /// Calls with a planned failure.
    pub faults: u64,
    /// A number over all turns and answers.
    pub digest: u64,
}

/// A finding, with the rules and the seed for a repetition.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The sentence.
    pub what: String,
    /// The seed.
    pub seed: u64,
    /// The rules.
    pub rules: Rules,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { config, threads, rounds, faults, .. } = &self.rules;
        let faults = if *faults { " --faults" } else { "" };
        write!(
            f,
            "{}\nrepeat: cachalot-worlds --worlds 1 --seed {} --threads {threads} --rounds {rounds}{faults} --config '{config}'",
            self.what, self.seed
        )
    }
}

/// The state shared by all threads of a world. Nothing is borrowed across a call of the core,
/// during which all threads run.
pub(crate) struct Shared {
    pub core: Core,
    pub claims: RefCell<Claims>,
    /// Blocks on their way from thread to thread.
    pub exchange: RefCell<Vec<Block>>,
    /// The passing streams that have ended since the last rest. A call in the middle of its work
    /// may still name them.
    ended: RefCell<Vec<StreamId>>,
    /// For each thread, how many passing streams have ended.
    ends: RefCell<Vec<u64>>,
    /// Whether a thread captures a graph.
    pub captures: Cell<bool>,
    /// The pools of guests to which a route leads at the moment.
    pub visited: RefCell<BTreeSet<PoolId>>,
    pub finding: RefCell<Option<String>>,
    pub rules: Rules,
    pub config: Config,
    pub numbers: Cell<u64>,
    pub operations: Cell<u64>,
    pub checks: Cell<u64>,
    pub faults: Cell<u64>,
    digest: Cell<u64>,
}

impl Shared {
    pub(crate) fn device(&self) -> &Device {
        self.core.device(DEVICE).expect("there is one device")
    }

    /// Returns a stream for all threads.
    pub(crate) fn any_stream(rng: &mut Rng) -> StreamId {
        StreamId(rng.u64(1..=SHARED_STREAMS))
    }

    /// Returns the stream of a thread whose memory is parked.
    pub(crate) fn sleeper(thread: u32) -> StreamId {
        StreamId(SHARED_STREAMS + 1 + u64::from(thread))
    }

    /// Returns whether a thread parks the memory of a stream.
    pub(crate) fn is_sleeper(&self, stream: StreamId) -> bool {
        (0..self.rules.threads).any(|thread| Self::sleeper(thread) == stream)
    }

    /// Returns the present passing stream of a thread.
    pub(crate) fn passing(&self, thread: u32) -> StreamId {
        StreamId(PASSING + u64::from(thread) + u64::from(self.rules.threads) * self.ends.borrow()[thread as usize])
    }

    /// Replaces the passing stream of a thread, which has ended.
    pub(crate) fn pass_on(&self, thread: u32) {
        self.ended.borrow_mut().push(self.passing(thread));
        self.ends.borrow_mut()[thread as usize] += 1;
    }

    /// Returns all streams so far.
    fn streams(&self) -> impl Iterator<Item = StreamId> {
        let threads = u64::from(self.rules.threads);
        let most = self.ends.borrow().iter().max().map_or(0, |ends| ends + 1);
        (1..=SHARED_STREAMS + threads).chain(PASSING..PASSING + threads * most).map(StreamId)
    }

    /// Reports a finding, the first of the world.
    pub(crate) fn find(&self, what: impl Into<String>) {
        self.finding.borrow_mut().get_or_insert(what.into());
    }

    pub(crate) fn has_finding(&self) -> bool {
        self.finding.borrow().is_some()
    }

    /// Adds a number to the digest.
    pub(crate) fn digest(&self, number: u64) {
        self.digest.set((self.digest.get() ^ number).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29));
    }

    /// Judges an error of the core: a lack of memory and an injected failure are permitted.
    pub(crate) fn refused(&self, what: &str, error: &Error) {
        self.digest(0xe);
        let permitted = match error {
            Error::OutOfMemory(_) | Error::Rejected(_) | Error::Parked | Error::NoHostMemory => true,
            // A capture may have ended since the call.
            Error::Device(error) if error.kind == ErrorKind::NotPermittedInCapture => true,
            Error::Device(error) => self.rules.faults && error.code == INJECTED || error.kind == ErrorKind::OutOfMemory,
            _ => false,
        };
        if !permitted {
            self.find(format!("{what}: {error}"));
        }
    }
}

/// Runs the world of a seed.
///
/// # Errors
/// The first finding.
///
/// # Panics
/// If the configuration is invalid.
pub fn run(seed: u64, rules: &Rules) -> Result<Outcome, Box<Finding>> {
    let finding = |what: String| Box::new(Finding { what, seed, rules: rules.clone() });
    let config = Config::parse(&rules.config).expect("a valid configuration");
    let core = Core::new([Device::new(CAPACITY, rules.mistake)], &config).expect("one device fits");
    let shared = Rc::new(Shared {
        core,
        claims: RefCell::default(),
        exchange: RefCell::default(),
        ended: RefCell::default(),
        ends: RefCell::new(vec![0; rules.threads as usize]),
        captures: Cell::default(),
        visited: RefCell::default(),
        finding: RefCell::default(),
        rules: rules.clone(),
        config,
        numbers: Cell::default(),
        operations: Cell::default(),
        checks: Cell::default(),
        faults: Cell::default(),
        digest: Cell::default(),
    });
    let mut rng = Rng::with_seed(seed);
    // Some worlds change the thread at nearly each chance, some rarely: both meet states that the
    // other does not.
    let period = 1 << rng.u32(0..7);
    let has_tags = rng.bool();
    let targets: Vec<_> = (0..rules.threads).map(|thread| target(&shared.core, thread, has_tags)).collect();
    let guests = targets.iter().filter_map(|&(target, _)| guests(&shared.core, target)).collect();
    let guests: Rc<Vec<(Tag, PoolId)>> = Rc::new(guests);
    let programs = (0..).zip(&targets);
    let programs = programs.map(|(number, &(target, _))| Program::new(number, target, Rc::clone(&guests), rng.u64(..)));
    let programs: Vec<_> = programs.map(|program| Rc::new(RefCell::new(program))).collect();
    for _ in 0..rules.rounds {
        step(&shared, &programs, rng.u64(..), period, |program, shared| {
            for _ in 0..ROUND {
                if shared.has_finding() {
                    return;
                }
                program.step(shared);
            }
        });
        if let Some(what) = shared.finding.take() {
            return Err(finding(what));
        }
        at_rest(&shared, &programs).map_err(finding)?;
    }
    step(&shared, &programs, rng.u64(..), period, Program::end_capture);
    step(&shared, &programs, rng.u64(..), period, Program::end);
    if let Some(what) = shared.finding.take() {
        return Err(finding(what));
    }
    let pools = shared.core.pools(DEVICE).expect("there is one device");
    for pool in targets.into_iter().filter_map(|(_, pool)| pool) {
        let ended = pools.end_route(pool, RoutePurpose::Requests);
        let ended = ended.and_then(|_| pools.release(pool)).and_then(|()| pools.release(pool));
        ended.map_err(|error| finding(format!("the end of a tagged pool: {error}")))?;
    }
    for &(_, pool) in guests.iter() {
        let ended = pools.release(pool);
        ended.map_err(|error| finding(format!("the end of a pool of guests: {error}")))?;
    }
    ended(&shared).map_err(finding)?;
    Ok(Outcome {
        operations: shared.operations.get(),
        checks: shared.checks.get(),
        faults: shared.faults.get(),
        digest: shared.digest.get(),
    })
}

/// Returns the memory parked by a thread: of the thread's own stream, or of a pool with a tag, with
/// a route for all requests on the stream.
fn target(core: &Core, thread: u32, has_tag: bool) -> (ParkTarget, Option<PoolId>) {
    let stream = Shared::sleeper(thread);
    if !has_tag {
        return (ParkTarget::Stream(stream), None);
    }
    let tag = Tag(NonZeroU64::MIN.saturating_add(thread.into()));
    let pool = core.pools(DEVICE).expect("room for a pool").create(PoolOptions::default()).expect("room for a pool");
    let parking = core.parking(DEVICE).expect("there is one device");
    parking.tag_pool(pool, Some(tag)).expect("an empty pool takes a tag");
    core.pools(DEVICE)
        .expect("room for a route")
        .begin_route(pool, Route::Stream(stream), RoutePurpose::Requests)
        .expect("room for a route");
    (ParkTarget::Tag(tag), Some(pool))
}

/// Returns another pool with the tag of a target.
fn guests(core: &Core, target: ParkTarget) -> Option<(Tag, PoolId)> {
    let ParkTarget::Tag(tag) = target else { return None };
    let pool = core.pools(DEVICE).expect("room for a pool").create(PoolOptions::default()).expect("room for a pool");
    let parking = core.parking(DEVICE).expect("there is one device");
    parking.tag_pool(pool, Some(tag)).expect("an empty pool takes a tag");
    Some((tag, pool))
}

/// Lets all threads do `what` in turn, beside the device.
fn step(
    shared: &Rc<Shared>,
    programs: &[Rc<RefCell<Program>>],
    seed: u64,
    period: u32,
    what: impl Fn(&mut Program, &Shared) + Clone + 'static,
) {
    let threads = programs.iter().map(|program| -> Body {
        let (shared, program, what) = (Rc::clone(shared), Rc::clone(program), what.clone());
        Box::new(move || what(&mut program.borrow_mut(), &shared))
    });
    let device: Body = Box::new({
        let (shared, mut rng) = (Rc::clone(shared), Rng::with_seed(!seed));
        move || {
            while !turns::is_ending() {
                let stream = rng.choice(shared.streams().collect::<Vec<_>>());
                stream.into_iter().for_each(|stream| shared.device().inner.complete_one(stream));
                turns::pass();
            }
        }
    });
    match turns::run(seed, period, threads.collect(), vec![device]) {
        Ok(turns) => shared.digest(turns),
        Err(halt) => shared.find(halt.to_string()),
    }
}

/// Checks the world while no thread runs.
fn at_rest(shared: &Shared, programs: &[Rc<RefCell<Program>>]) -> Result<(), String> {
    let (core, claims, device) = (&shared.core, shared.claims.borrow(), &shared.device().inner);
    // A call with one of the streams is a finding from now on.
    shared.ended.take().into_iter().for_each(|stream| device.let_go(stream));
    core.check_invariants().map_err(|violated| format!("invariant: {violated}"))?;
    let programs: Vec<_> = programs.iter().map(|program| program.borrow()).collect();
    let held: u64 = core.snapshot().iter().map(|segment| segment.total_size - segment.parked).sum();
    let committed: u64 = programs.iter().map(|program| program.committed()).sum();
    let pages = core.pages(DEVICE).map(|pages| pages.stats()).map_err(|error| error.to_string())?;
    let (spare, leaked) = (
        pages.spare + pages.spare_of_host,
        core.stats(DEVICE).map(|stats| stats.leaked_bytes()).map_err(|error| error.to_string())?,
    );
    let used = device.used() + device.used_of_host();
    if used != held + committed + spare + leaked {
        return Err(format!(
            "{used} bytes are in use: {held} of segments, {committed} of ranges, {spare} spare, {leaked} leaked"
        ));
    }
    let exchange = shared.exchange.borrow();
    for block in programs.iter().flat_map(|program| program.awake_blocks()).chain(exchange.iter()) {
        block.check(&claims, device)?;
        shared.checks.set(shared.checks.get() + 1);
    }
    Ok(())
}

/// Gives everything back, and checks for leftovers.
fn ended(shared: &Shared) -> Result<(), String> {
    let (core, device) = (&shared.core, shared.device());
    device.inner.clear_failures();
    shared.streams().for_each(|stream| device.inner.complete(stream));
    let given = core
        .process_events(DEVICE)
        .and_then(|()| core.empty_cache(DEVICE))
        .and_then(|()| core.pages(DEVICE)?.maintain(u64::MAX))
        .and_then(|_| core.empty_cache(DEVICE));
    given.map_err(|error| format!("the end: {error}"))?;
    consistency::check(core, DEVICE, None)?;
    let leaked = core.stats(DEVICE).map(|stats| stats.leaked_bytes()).map_err(|error| error.to_string())?;
    let used = device.inner.used() + device.inner.used_of_host();
    if used != leaked || leaked > 0 && !shared.rules.faults {
        return Err(format!(
            "{used} bytes stay with the device and the host at the end, of which {leaked} are counted as leaked"
        ));
    }
    Ok(())
}
