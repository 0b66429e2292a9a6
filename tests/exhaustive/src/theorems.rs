//! The theorems: what holds after every call of every program, each sentence with the check that
//! executes it.

use crate::letter::Letter;
use crate::world::{DEVICE, Step, World, stream};
use cachalot_core::{BlockState, DeviceError, Error, ErrorKind, SnapshotSegment};
use cachalot_tests::claims;
use cachalot_tests::consistency;
use cachalot_tests::failures::INJECTED;
use std::fmt;

/// A theorem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theorem {
    /// See [`sentence`](Self::sentence), as for all.
    Order,
    /// About lost memory.
    Loss,
    /// About answers without memory.
    Memory,
    /// About parked memory.
    Parked,
    /// About the sum of the memory.
    Sum,
    /// About the errors of a call.
    Answers,
    /// About the naive model.
    Model,
}

impl Theorem {
    /// Every theorem.
    pub const ALL: [Self; 7] =
        [Self::Order, Self::Loss, Self::Memory, Self::Parked, Self::Sum, Self::Answers, Self::Model];

    /// Returns the theorem as a sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Order => "No block is given out while a recorded use of its memory can still run.",
            Self::Loss => {
                "Nothing is lost when any driver call fails: a failed call changes no block, and everything can be given back."
            }
            Self::Memory => "Out of memory is answered only if no step that the settings permit would have served.",
            Self::Parked => "What is parked comes back with its contents, at its address.",
            Self::Sum => "Held memory is live, cached and pending memory, always.",
            Self::Answers => "A call fails only with an error that its documentation names.",
            Self::Model => "The caching policy and expandable segments answer as the naive model does.",
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Loss => "loss",
            Self::Memory => "memory",
            Self::Parked => "parked",
            Self::Sum => "sum",
            Self::Answers => "answers",
            Self::Model => "model",
        }
    }

    /// Returns the violation of the theorem.
    #[must_use]
    pub const fn violated(self, what: String) -> Violation {
        Violation { theorem: self, what }
    }
}

/// A broken theorem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The theorem.
    pub theorem: Theorem,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.theorem.name(), self.what)
    }
}

/// Returns a violation if the condition is false.
macro_rules! ensure {
    ($theorem:ident, $condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Theorem::$theorem.violated(format!($($message)+)));
        }
    };
}

/// Checks the theorems after a call.
///
/// # Errors
/// The first broken theorem.
pub fn check_step(world: &mut World, step: &Step, snapshot: &[SnapshotSegment]) -> Result<(), Violation> {
    step.violation.clone().map_or(Ok(()), Err)?;
    check_answer(world, step)?;
    check_blocks(world, snapshot)?;
    check_sum(world, snapshot)?;
    world.agree(step, snapshot).map_err(|why| Theorem::Model.violated(why))
}

/// Checks the theorems about a state that no earlier program led to.
///
/// # Errors
/// The first broken theorem.
pub fn check_state(world: &World) -> Result<(), Violation> {
    // A range counts as an allocation and as a segment, and is in no snapshot.
    if world.range.is_some() {
        return Ok(());
    }
    consistency::check(&world.core, DEVICE, None).map_err(|why| Theorem::Sum.violated(why))
}

/// Checks that a call has failed for a documented reason.
fn check_answer(world: &World, step: &Step) -> Result<(), Violation> {
    let Err(error) = &step.answer else { return Ok(()) };
    let of_capture = |error: &DeviceError| error.kind == ErrorKind::NotPermittedInCapture;
    let permitted = match (error, step.letter) {
        (Error::OutOfMemory(_), Letter::Malloc(..) | Letter::Commit(..) | Letter::Wake(_))
        | (Error::ParkingRefused(_) | Error::NoHostMemory, Letter::Park(_)) => true,
        (Error::Parked, Letter::Malloc(_, on)) => world.parked[usize::from(on)],
        (Error::Device(error), _) if error.code == INJECTED => world.device().books().has_fired,
        (Error::Device(error), Letter::Park(_) | Letter::Wake(_) | Letter::Commit(..) | Letter::Decommit(..)) => {
            world.capture.is_some() && of_capture(error)
        }
        _ => false,
    };
    ensure!(Answers, permitted, "`{}` answers: {error}", step.letter);
    Ok(())
}

/// Checks that the blocks of the program are exactly the live blocks of the core, and that no two
/// share memory.
fn check_blocks(world: &World, snapshot: &[SnapshotSegment]) -> Result<(), Violation> {
    let blocks = snapshot.iter().flat_map(|segment| &segment.blocks);
    let mut held = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
    for live in &world.live {
        let found = held.next().map(|block| (block.address, block.requested_size));
        ensure!(Loss, found == Some((live.ptr, live.bytes)), "the core has {found:?} for {live:?}");
    }
    let more = held.next();
    ensure!(Loss, more.is_none(), "the core has {more:?}, and the program does not");
    let leaked = world.core.stats(DEVICE).map_or(u64::MAX, |stats| stats.leaked_bytes());
    ensure!(Loss, leaked == 0 || world.device().books().is_in_doubt, "{leaked} bytes are lost");
    let mut pieces = Vec::new();
    for live in world.live.iter().filter(|live| !world.parked[usize::from(live.stream)]) {
        let of = world.device().pieces(live.ptr, live.bytes);
        ensure!(Loss, of.is_some(), "{live:?} cannot be accessed");
        pieces.extend(of.into_iter().flatten());
    }
    let shared = claims::shared(pieces);
    ensure!(Order, shared.is_none(), "two live blocks share memory: {shared:?}");
    Ok(())
}

/// Checks that the bytes held from the device are those of the segments and the spare pages, and
/// that live, cached and pending bytes are their sum.
fn check_sum(world: &World, snapshot: &[SnapshotSegment]) -> Result<(), Violation> {
    let invariants = world.core.check_invariants();
    ensure!(Sum, invariants.is_ok(), "{invariants:?}");
    let pages = world.core.pages(DEVICE).map(|pages| pages.stats()).unwrap_or_default();
    let leaked = world.core.stats(DEVICE).map(|stats| stats.leaked_bytes()).unwrap_or_default();
    let [mut live, mut cached, mut pending, mut parked, mut total] = [0; 5];
    for segment in snapshot {
        (parked, total) = (parked + segment.parked, total + segment.total_size);
        for block in &segment.blocks {
            *match block.state {
                BlockState::ActiveAllocated => &mut live,
                BlockState::ActivePendingFree => &mut pending,
                BlockState::Inactive => &mut cached,
            } += block.size;
        }
    }
    let ranges = world.committed.iter().flatten().count() as u64 * (2 << 20);
    let in_blocks = live + cached + pending;
    // A snapshot lists the committed parts of a range as segments with a live block each, or not at
    // all.
    ensure!(Sum, total == in_blocks, "{total} bytes of segments, {live} live, {cached} cached, {pending} pending");
    let (used, spare) = (world.device().inner.used(), pages.spare);
    let held = total - parked + spare + leaked;
    let fits = used == held || used == held + ranges;
    ensure!(Sum, fits, "{used} bytes are held: {total} in segments, {parked} parked, {spare} spare, {leaked} leaked");
    Ok(())
}

/// Checks on a copy of the state behind a call out of memory: after a wait for all work and the
/// release of the cache, the same request must still fail. A program can do all of that by itself,
/// so a step of the request has to have done it.
///
/// While a graph is captured the rule has an exception, as in `PyTorch`: nothing is waited for or
/// released then.
///
/// # Errors
/// The request was refused too early.
pub fn check_refusal(copy: &mut World, letter: Letter) -> Result<(), Violation> {
    let Letter::Malloc(size, on) = letter else { return Ok(()) };
    if copy.capture.is_some() {
        return Ok(());
    }
    copy.device().clear_failures();
    for number in 0..2 {
        copy.device().complete(stream(number));
    }
    let bytes = copy.setting.sizes[usize::from(size)];
    let first = copy.core.malloc(DEVICE, bytes, stream(on));
    ensure!(Memory, first.is_err(), "{bytes} bytes are refused, and served once the work is done");
    let emptied = copy.core.process_events(DEVICE).and_then(|()| copy.core.empty_cache(DEVICE));
    let second = emptied.and_then(|()| copy.core.malloc(DEVICE, bytes, stream(on)));
    ensure!(Memory, second.is_err(), "{bytes} bytes are refused, and served once the cache is empty");
    Ok(())
}

/// Gives everything back, and checks that the device has all of its memory again.
///
/// # Errors
/// Memory is left, or cannot be given back.
pub fn check_end(mut world: World) -> Result<(), Violation> {
    let given = world.give_back();
    ensure!(Loss, given.is_ok(), "not everything can be given back: {given:?}");
    let (left, used) = (world.device().inner.outstanding(), world.device().inner.used());
    let leaked = world.core.stats(DEVICE).map(|stats| stats.leaked_bytes()).unwrap_or_default();
    let in_doubt = world.device().books().is_in_doubt;
    ensure!(Loss, used == leaked, "{used} bytes are in use at the end, {leaked} count as leaked");
    let is_clean = (left.segments, left.reservations, left.mappings, left.handles) == (0, 0, 0, 0);
    ensure!(Loss, is_clean || in_doubt, "at the end there is {left:?}");
    let kept = world.device().inner.kept();
    ensure!(Loss, kept == 0, "the host keeps {kept} bytes at the end");
    Ok(())
}
