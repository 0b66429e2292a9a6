//! Memory of calls that do not say how much they take: code, graphs, arrays, contexts.
//!
//! The driver's figure around such a call has the memory of every process in it. So the bytes that
//! this process and its group have reserved or given back meanwhile are taken out, a call that
//! takes memory never lowers the sum and a call that gives memory back never raises it. What
//! another process has taken in the same moment is still in the difference. Therefore the sum is no
//! more than an upper bound: it is lowered whenever the driver's figures show that the process
//! cannot hold as much. The driver's management library says what the process itself holds, where
//! it knows the process.

use super::{DeviceCharge, DriverFigures};
use crate::ledger::Kind;
use cachalot_cuda::{CuResult, memory_of_this_process, used_memory};
use core::sync::atomic::{AtomicU64, Ordering};

/// How often the driver's figure is asked again because a call has changed what is held meanwhile.
const TRIES: usize = 64;

/// A move more, in the upper half of [`Moves`].
const MOVE: u64 = 1 << 32;

/// Counts the calls that change what is held: all calls in the upper half, those in progress in the
/// lower half.
#[derive(Default, Debug)]
pub(super) struct Moves(AtomicU64);

/// A call in progress.
pub(super) struct Moving<'a>(&'a Moves);

impl Moves {
    /// Starts a call.
    pub(super) fn begin(&self) -> Moving<'_> {
        self.0.fetch_add(MOVE + 1, Ordering::SeqCst);
        Moving(self)
    }

    /// Returns a number that changes with each call. `None` while a call is in progress.
    fn still(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst)).filter(|moves| moves % MOVE == 0)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The driver's figures, and what was held then.
#[derive(Clone, Copy, Debug)]
struct Sample {
    figures: DriverFigures,
    /// Bytes of this process and of the other members of its group.
    held: u64,
    /// Whether no call has changed what is held meanwhile.
    is_settled: bool,
}

impl DeviceCharge {
    /// Makes a call with an unknown need for memory, and charges and books what the call has taken
    /// or given back (`gives`). `figures` returns the driver's figures. Beyond the limit, `undo`
    /// gives the memory back and returns true, or the memory stays, and no other memory fits until
    /// as much was given back.
    ///
    /// Returns the code of the call, or [`CuResult::OUT_OF_MEMORY`] for an undone call.
    pub fn measured(
        &self,
        kind: Kind,
        gives: bool,
        figures: impl Fn() -> Option<DriverFigures>,
        call: impl FnOnce() -> CuResult,
        undo: impl FnOnce() -> bool,
    ) -> CuResult {
        let Some(before) = self.sample(&figures) else { return call() };
        let mut code = call();
        let Some(mut after) = self.sample(&figures) else { return code };
        let grown = i128::from(after.figures.used) - i128::from(before.figures.used);
        let known = i128::from(after.held) - i128::from(before.held);
        let bytes = u64::try_from((grown - known).unsigned_abs()).unwrap_or(u64::MAX);
        if gives && grown < known {
            self.lower(Some(kind), bytes);
        } else if !gives && grown > known {
            let taken = bytes.min(self.unmeasured_of_this_process());
            if self.reserve(taken).is_ok() {
                self.raise(kind, taken);
            } else if code.is_success() && undo() {
                self.tell_refusal();
                code = CuResult::OUT_OF_MEMORY;
                after = self.sample(&figures).unwrap_or(after);
            } else {
                self.force(taken);
                self.raise(kind, taken);
            }
        }
        if after.is_settled {
            self.bound(after.figures.used);
        }
        if let Some(ledger) = self.ledger() {
            ledger.driver(after.figures.used, after.figures.total);
        }
        code
    }

    /// Lowers what was measured if the driver's figure shows that the process cannot hold as much:
    /// `used` by all processes.
    pub fn bound(&self, used: u64) {
        let measured = self.measured.load(Ordering::Relaxed);
        let exact = self.held().saturating_sub(measured);
        let excess = measured.saturating_sub(used.saturating_sub(exact));
        if excess > 0 && self.moves.still().is_some() {
            self.lower(None, excess);
        }
    }

    /// Lowers what was measured, by figures that need no context. Returns whether there is room now
    /// that was not there before.
    pub(super) fn measure_again(&self) -> bool {
        let before = self.measured.load(Ordering::Relaxed);
        if before == 0 {
            return false;
        }
        if let Some(used) = self.bus_id.as_deref().and_then(used_memory) {
            self.bound(used);
        }
        if let Some(own) = self.known_of_this_process() {
            self.bound(own);
        }
        self.measured.load(Ordering::Relaxed) < before
    }

    /// Returns what a new context of the process takes, after `create`, which creates it. `figures`
    /// returns the driver's figures, if a context of the device is current. `None`: nothing tells.
    pub fn around_context<T>(
        &self,
        figures: impl Fn() -> Option<DriverFigures>,
        create: impl FnOnce() -> T,
    ) -> (T, Option<u64>) {
        let used = || self.bus_id.as_deref().and_then(used_memory);
        let before = (used(), figures(), self.held());
        let made = create();
        let meanwhile = self.held().saturating_sub(before.2);
        if let Some(own) = self.known_of_this_process() {
            return (made, Some(own.saturating_sub(self.held())));
        }
        let by_library = before.0.zip(used());
        let by_driver = || before.1.map(|figures| figures.used).zip(figures().map(|figures| figures.used));
        let around = by_library.or_else(by_driver);
        (made, around.map(|(before, after)| after.saturating_sub(before).saturating_sub(meanwhile)))
    }

    /// Returns what the process holds by the management library and nobody has counted yet. `None`:
    /// the library does not know the process, or is wrong.
    pub fn uncounted_of_this_process(&self) -> Option<u64> {
        self.known_of_this_process().map(|own| own.saturating_sub(self.held()))
    }

    /// Returns the most that a call can have taken: what the process holds by the management
    /// library, less what is known.
    fn unmeasured_of_this_process(&self) -> u64 {
        self.uncounted_of_this_process().unwrap_or(u64::MAX)
    }

    /// Returns what the process holds by the management library. `None`: the library does not know
    /// the process, or says less than is known for certain.
    fn known_of_this_process(&self) -> Option<u64> {
        let own = self.bus_id.as_deref().and_then(memory_of_this_process)?;
        let exact = self.held().saturating_sub(self.measured.load(Ordering::Relaxed));
        (own >= exact).then_some(own)
    }

    /// Notes charged bytes as measured, and books them.
    fn raise(&self, kind: Kind, bytes: u64) {
        self.measured.fetch_add(bytes, Ordering::Relaxed);
        if let Some(ledger) = self.ledger() {
            ledger.grow(kind, bytes);
        }
    }

    /// Gives measured bytes back, in the book of a kind or of any kind that is measured.
    fn lower(&self, kind: Option<Kind>, bytes: u64) {
        let fall = |measured: u64| Some(measured.saturating_sub(bytes));
        let measured = self.measured.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fall).unwrap_or(0);
        let bytes = measured.min(bytes);
        self.give_back(bytes);
        if let Some(ledger) = self.ledger() {
            let others = [Kind::Module, Kind::Graph, Kind::Array, Kind::Other];
            let kinds = kind.into_iter().chain(others.into_iter().filter(|other| Some(*other) != kind));
            kinds.fold(bytes, |rest, kind| rest - ledger.shrink(kind, rest));
        }
    }

    /// Returns the driver's figures and what is held, at a moment without a call in progress if
    /// there is one.
    fn sample(&self, figures: impl Fn() -> Option<DriverFigures>) -> Option<Sample> {
        let mut last = None;
        for _ in 0..TRIES {
            let moves = self.moves.still();
            let sample = Sample { figures: figures()?, held: self.held_by_group(), is_settled: false };
            if moves.is_some() && self.moves.still() == moves {
                return Some(Sample { is_settled: true, ..sample });
            }
            last = Some(sample);
            std::thread::yield_now();
        }
        last
    }

    /// Returns the bytes that this process holds, and the others of its group.
    fn held_by_group(&self) -> u64 {
        let others = self.group.get().and_then(crate::group::Group::budget);
        self.held() + others.map_or(0, |budget| budget.held_by_all.saturating_sub(budget.held_by_this))
    }
}
