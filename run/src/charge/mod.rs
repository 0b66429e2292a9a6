//! The driver's memory calls, counted against the limit before they are made.
//!
//! A limit holds for each device. Bytes are reserved before the driver is called and given back
//! after the driver has freed them, so the sum never exceeds the limit, with any number of threads
//! and processes. Memory of the host is not counted. Memory from the driver is booked to the calling
//! object.

use crate::group::{Budget, Group, Refusal, SleepNews, Turn, Uuid};
use crate::ledger::file::write_at_exit;
use crate::ledger::{Kind, Ledger, LedgerOptions};
use crate::options::Options;
use crate::real::Real;
use crate::tell::tell;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuUuid};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The driver takes memory of more than [`LARGEST_CUT`] bytes from a device in such steps.
const STEP: u64 = 2 << 20;

/// Greatest number of bytes cut by the driver from a page shared by allocations.
const LARGEST_CUT: u64 = 1 << 20;

/// The attribute of the memory that a device holds for the memory nodes of graphs (`CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`).
const RESERVED_FOR_GRAPHS: u32 = 2;

/// The number of the booking for the memory nodes of all graphs. No address of the driver is this number.
const OF_ALL_GRAPHS: u64 = u64::MAX;

/// Returns the bytes taken from a device by an allocation of `bytes`: whole steps, unless the
/// driver cuts the allocation from a page.
pub fn taken_by(bytes: u64) -> u64 {
    if bytes <= LARGEST_CUT { bytes } else { bytes.checked_next_multiple_of(STEP).unwrap_or(u64::MAX) }
}

/// The limits of a process, separate for each device. All methods may be called from every thread.
#[derive(Debug)]
pub struct Charge {
    options: Options,
    /// Whether the books are published for further processes to read.
    publish: bool,
    devices: Mutex<Vec<(CuDevice, Arc<DeviceCharge>)>>,
    holdings: Arc<Holdings>,
}

/// The memory of a process on a device, and the limit.
#[derive(Debug)]
pub struct DeviceCharge {
    /// `None`: the group cannot be joined, and every reservation is refused.
    group: Option<Group>,
    /// The book. `None`: the system has no memory for a book.
    ledger: Option<Arc<Ledger>>,
    /// Bytes reserved and not given back.
    held: AtomicU64,
    /// Whether a refusal was told, or is no news: the process waits for its turn.
    told: AtomicBool,
    /// Whether a refused request waits for the process's turn in the group.
    yields: bool,
    /// Bytes reserved for calls with an unknown need for memory.
    measured: AtomicU64,
    /// Whether the driver's figures are noted with each booking.
    notes_figures: bool,
}

/// The driver's figures of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverFigures {
    /// Used by all processes.
    pub used: u64,
    /// Of the device.
    pub total: u64,
}

impl DriverFigures {
    /// Returns the figures of the current context's device.
    ///
    /// # Errors
    /// The driver's code without a context, and after a failure of the context.
    pub fn of_current(real: &Real) -> Result<Self, CuResult> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both variables outlive the call, which writes one integer to each.
        let code = unsafe { real.mem_get_info(&raw mut free, &raw mut total) };
        if code.is_success() { Ok(Self { used: (total - free) as u64, total: total as u64 }) } else { Err(code) }
    }
}

impl Charge {
    /// Returns the limits named by the options. Joins no group yet. `publish`: every process of the user
    /// may read the books.
    pub fn new(options: &Options, publish: bool) -> Self {
        Self { options: options.clone(), publish, devices: Mutex::default(), holdings: Arc::default() }
    }

    /// Returns the memory that the driver has given.
    pub fn holdings(&self) -> &Arc<Holdings> {
        &self.holdings
    }

    /// Returns the charges of all devices in use.
    pub fn all(&self) -> Vec<Arc<DeviceCharge>> {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().map(|(_, charge)| Arc::clone(charge)).collect()
    }

    /// Returns the charge of a device. The first call for a device asks the driver for the device's
    /// identity and joins the group.
    pub fn of_device(&self, real: &Real, device: CuDevice) -> Arc<DeviceCharge> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, charge)) = devices.iter().find(|(known, _)| *known == device) {
            return Arc::clone(charge);
        }
        let charge = Arc::new(DeviceCharge::new(&self.options, self.publish, uuid_of(real, device)));
        devices.push((device, Arc::clone(&charge)));
        charge
    }
}

impl DeviceCharge {
    /// Returns the charge of a device.
    fn new(options: &Options, publish: bool, uuid: Uuid) -> Self {
        let group = match &options.group {
            None => Some(Group::alone(options.limit)),
            Some(group) => match Group::join(group, options.limit, uuid) {
                Ok(group) => Some(group),
                Err(error) => {
                    tell(format_args!("{error}; every request for memory of the device is refused"));
                    None
                }
            },
        };
        let books = LedgerOptions { publish, stacks: options.ledger_stacks };
        let ledger = Ledger::new(uuid, books).map_err(|error| tell(format_args!("no book is kept: {error}"))).ok();
        let ledger = ledger.map(Arc::new);
        if let (Some(ledger), Some(path)) = (&ledger, &options.ledger_file) {
            write_at_exit(ledger, path);
        }
        if let Some(fault) = ledger.as_deref().and_then(Ledger::fault) {
            tell(format_args!("{fault}"));
        }
        let (held, measured) = (AtomicU64::new(0), AtomicU64::new(0));
        let yields = options.sleep.as_ref().is_some_and(|sleep| sleep.yields);
        let notes_figures = ledger.is_some() && options.wants_full_books();
        Self { group, ledger, held, told: AtomicBool::new(yields), yields, measured, notes_figures }
    }

    /// Books memory given by the driver, under an address or a handle.
    pub fn book(&self, kind: Kind, bytes: u64, id: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.book(kind, bytes, id);
        }
    }

    /// Takes memory freed by the driver out of the book.
    pub fn unbook(&self, kind: Kind, id: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.unbook(kind, id);
        }
    }

    /// Makes a call with an unknown need for memory, and books the difference of the driver's figure:
    /// `figures` returns the driver's figures. Counts taken memory against the limit. Beyond the limit,
    /// `undo` gives the memory back and returns true, or the memory stays the driver's own and is not counted.
    ///
    /// Returns the code of the call, or [`CuResult::OUT_OF_MEMORY`] for an undone call.
    pub fn measured(
        &self,
        kind: Kind,
        figures: impl Fn() -> Option<DriverFigures>,
        call: impl FnOnce() -> CuResult,
        undo: impl FnOnce() -> bool,
    ) -> CuResult {
        let Some((ledger, DriverFigures { used: before, .. })) = self.ledger.as_deref().zip(figures()) else {
            return call();
        };
        let noted = ledger.before(before);
        let mut code = call();
        let Some(mut after) = figures() else { return code };
        if let Some(taken) = after.used.checked_sub(before) {
            match self.reserve(taken) {
                Ok(()) => drop(self.measured.fetch_add(taken, Ordering::Relaxed)),
                Err(refusal) if code.is_success() && undo() => {
                    code = refusal;
                    after = figures().unwrap_or(after);
                }
                Err(_) => {}
            }
        } else {
            let less = before - after.used;
            let fall = |measured: u64| Some(measured.saturating_sub(less));
            let measured = self.measured.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fall).unwrap_or(0);
            self.give_back(measured.min(less));
        }
        ledger.around(kind, noted, after.used);
        ledger.driver(after.used, after.total);
        code
    }

    /// Notes the driver's figures beside the book, where somebody wants full books.
    pub fn note(&self, figures: impl FnOnce() -> Option<DriverFigures>) {
        if self.notes_figures
            && let Some((ledger, figures)) = self.ledger.as_deref().zip(figures())
        {
            ledger.driver(figures.used, figures.total);
        }
    }

    /// Books what the device holds for the memory nodes of all graphs, where the options ask for full books. The memory changes at any
    /// launch of a graph, and the booking replaces the one before.
    pub fn book_graph_memory(&self, real: &Real, device: CuDevice) {
        if !self.notes_figures {
            return;
        }
        let mut bytes = 0_u64;
        let value = (&raw mut bytes).cast();
        // SAFETY: the attribute's value is a `cuuint64_t`, and `bytes` outlives the call.
        let code = unsafe { real.device_get_graph_mem_attribute(device, RESERVED_FOR_GRAPHS, value) };
        if !code.is_success() {
            return;
        }
        if bytes == 0 { self.unbook(Kind::Graph, OF_ALL_GRAPHS) } else { self.book(Kind::Graph, bytes, OF_ALL_GRAPHS) }
    }

    /// Returns the book.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_deref()
    }

    /// Reserves bytes, before the driver's call for the bytes.
    ///
    /// # Errors
    /// [`CuResult::OUT_OF_MEMORY`] if the limit does not allow the bytes. The first refusal since the
    /// last success is told on the standard error, with the names of the holders.
    pub fn reserve(&self, bytes: u64) -> Result<(), CuResult> {
        let answer = self.group.as_ref().map(|group| group.reserve(bytes));
        match answer {
            Some(Ok(())) => {
                self.held.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            }
            Some(Err(refusal)) => Err(self.refused(&refusal)),
            None => Err(CuResult::OUT_OF_MEMORY),
        }
    }

    /// Tells of a request for bytes that fails: a process that has waited for its turn in vain.
    pub fn tell_refusal(&self, bytes: u64) {
        if self.yields {
            self.told.store(false, Ordering::Relaxed);
            if self.reserve(bytes).is_ok() {
                self.give_back(bytes);
            }
            self.told.store(true, Ordering::Relaxed);
        }
    }

    /// Gives bytes back, after the driver has freed the bytes or failed to take the bytes.
    pub fn give_back(&self, bytes: u64) {
        if let Some(group) = &self.group {
            group.give_back(bytes);
        }
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes reserved and not given back.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the bytes owed by the process to refused members of the group.
    pub fn owed(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::owed)
    }

    /// See [`Group::yields`].
    pub fn yields(&self, news: SleepNews) -> bool {
        self.group.as_ref().is_some_and(|group| group.yields(news))
    }

    /// See [`Group::turn`].
    pub fn turn(&self, bytes: u64) -> Turn {
        self.group.as_ref().map_or(Turn::Hopeless, |group| group.turn(bytes))
    }

    /// See [`Group::end_wait`].
    pub fn end_wait(&self) {
        if let Some(group) = &self.group {
            group.end_wait();
        }
    }

    /// Returns the figures of the limit. `None` without a limit.
    pub fn budget(&self) -> Option<Budget> {
        self.group.as_ref().and_then(Group::budget)
    }

    /// Reports a request refused by the limit.
    fn refused(&self, refusal: &Refusal) -> CuResult {
        // The allocator repeats a reservation several times, and a program may probe for the limit.
        if !self.told.swap(true, Ordering::Relaxed) {
            tell(format_args!("{refusal}"));
        }
        CuResult::OUT_OF_MEMORY
    }
}

/// Memory that the driver has given to the process, by kind and by address or handle. Charged and booked until the
/// driver has it back.
#[derive(Default, Debug)]
pub struct Holdings(Mutex<HashMap<(Kind, u64), Holding>>);

/// Memory of a device, as a call of the driver gives it.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The device's charge.
    pub charge: Arc<DeviceCharge>,
    /// The kind in the book.
    pub kind: Kind,
    /// The bytes taken from the device.
    pub bytes: u64,
    /// The context that the memory goes with, null for memory of a device.
    pub context: CuContext,
}

impl Holdings {
    /// Makes a call of the driver for memory, and charges the bytes under the name that `name` finds in the answer: an
    /// address or a handle.
    ///
    /// # Errors
    /// That of the call, or what `refused` makes of a refusal by the limit, and the call is not made.
    pub fn take<T, E>(
        &self,
        memory: Holding,
        call: impl FnOnce() -> Result<T, E>,
        name: impl FnOnce(&T) -> u64,
        refused: impl FnOnce(CuResult) -> E,
    ) -> Result<T, E> {
        let Holding { ref charge, kind, bytes, .. } = memory;
        charge.reserve(bytes).map_err(refused)?;
        let taken = call().inspect_err(|_| charge.give_back(bytes))?;
        let name = name(&taken);
        if name == 0 {
            charge.give_back(bytes);
            return Ok(taken);
        }
        charge.book(kind, bytes, name);
        if let Some(before) = self.lock().insert((kind, name), memory) {
            // The memory with this name went with its context, which nobody told.
            before.charge.give_back(before.bytes);
        }
        Ok(taken)
    }

    /// Makes a call of the driver to free the memory named `name`, of any of `kinds`, and ends the charge of
    /// charged memory. Returns whether the memory was charged.
    ///
    /// # Errors
    /// That of the call. The driver may still hold the memory, which stays charged.
    pub fn give<E>(&self, kinds: &[Kind], name: u64, call: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
        // Taken out before the call: another thread may get the address at once.
        let taken = {
            let mut holdings = self.lock();
            kinds.iter().find_map(|&kind| holdings.remove(&(kind, name)))
        };
        let Some(memory) = taken else { return call().map(|()| false) };
        let Holding { ref charge, kind, bytes, .. } = memory;
        charge.unbook(kind, name);
        match call() {
            Ok(()) => charge.give_back(bytes),
            Err(error) => {
                charge.book(kind, bytes, name);
                self.lock().insert((kind, name), memory);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Gives back what is charged for memory that has gone with its context. Returns the addresses.
    /// Calls no driver.
    pub fn forget(&self, context: CuContext) -> Vec<u64> {
        let gone: Vec<_> = self.lock().extract_if(|_, memory| memory.context == context).collect();
        for ((kind, name), memory) in &gone {
            memory.charge.unbook(*kind, *name);
            memory.charge.give_back(memory.bytes);
        }
        gone.into_iter().map(|((_, name), _)| name).collect()
    }

    /// Locks the memory.
    fn lock(&self) -> MutexGuard<'_, HashMap<(Kind, u64), Holding>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a device's identity, all zero if the driver does not tell.
fn uuid_of(real: &Real, device: CuDevice) -> Uuid {
    let mut uuid = CuUuid::default();
    // SAFETY: `uuid` outlives the call, which writes 16 bytes to it.
    let _ = unsafe { real.device_get_uuid(&raw mut uuid, device) };
    Uuid(uuid.bytes.map(|byte| byte as u8))
}

#[cfg(test)]
mod tests {
    use super::{Charge, DeviceCharge, DriverFigures, Holding, Holdings, taken_by};
    use crate::group::Uuid;
    use crate::ledger::Kind;
    use crate::options::Options;
    use cachalot_cuda::CuResult;
    use cachalot_cuda::driver::types::CuContext;
    use std::sync::Arc;

    fn limited(limit: u64) -> Arc<DeviceCharge> {
        let options = Options { limit: Some(limit), ..Options::default() };
        Arc::new(DeviceCharge::new(&options, false, Uuid::default()))
    }

    /// Returns the bytes in the book of a charge.
    fn booked(charge: &DeviceCharge) -> u64 {
        charge.ledger().expect("a book").view().booked
    }

    #[test]
    fn a_failed_call_gives_back_what_was_reserved() {
        let charge = limited(100);
        let holdings = Holdings::default();
        let memory = || Holding { charge: Arc::clone(&charge), kind: Kind::Plain, bytes: 60, context: CuContext(7) };
        let take = |name: u64, answer: Result<(), CuResult>| holdings.take(memory(), || answer, |()| name, |code| code);
        let give = |name: u64, answer: Result<(), CuResult>| holdings.give(&[Kind::Pool, Kind::Plain], name, || answer);
        let refused = Err(CuResult::INVALID_VALUE);
        assert_eq!((take(1, refused), charge.held()), (refused, 0));
        assert_eq!((take(1, Ok(())), booked(&charge)), (Ok(()), 60));
        assert_eq!((take(2, Ok(())), charge.held()), (Err(CuResult::OUT_OF_MEMORY), 60));
        assert_eq!(give(1, Err(CuResult::NOT_PERMITTED)), Err(CuResult::NOT_PERMITTED));
        assert_eq!((charge.held(), booked(&charge)), (60, 60));
        for was_charged in [true, false] {
            assert_eq!((give(1, Ok(())), charge.held(), booked(&charge)), (Ok(was_charged), 0, 0));
        }
        assert_eq!((take(1, Ok(())), holdings.forget(CuContext(8)), charge.held()), (Ok(()), vec![], 60));
        assert_eq!((holdings.forget(CuContext(7)), charge.held(), booked(&charge)), (vec![1], 0, 0));
    }

    #[test]
    fn what_a_call_takes_is_found_by_the_drivers_figure() {
        let charge = limited(100);
        let used = std::cell::Cell::new(1000);
        let figures = || Some(DriverFigures { used: used.get(), total: 1 << 40 });
        let to = |after: u64| {
            let call = || {
                used.set(after);
                CuResult::SUCCESS
            };
            assert_eq!(charge.measured(Kind::Module, figures, call, || false), CuResult::SUCCESS);
            (charge.held(), booked(&charge))
        };
        assert_eq!([to(1060), to(1060), to(1500), to(1010), to(900)], [(60, 60), (60, 60), (60, 500), (0, 10), (0, 0)]);
        assert_eq!(charge.measured(Kind::Module, || None, || CuResult::NOT_FOUND, || true), CuResult::NOT_FOUND);
        // A call that takes 300 bytes of 100 is undone where that can be.
        let call = || {
            used.set(used.get() + 300);
            CuResult::SUCCESS
        };
        let undo = || {
            used.set(used.get() - 300);
            true
        };
        assert_eq!(charge.measured(Kind::Array, figures, call, undo), CuResult::OUT_OF_MEMORY);
        assert_eq!((used.get(), charge.held(), booked(&charge)), (900, 0, 0));
    }

    #[test]
    fn the_driver_takes_whole_steps_for_large_memory() {
        assert_eq!([taken_by(1), taken_by(1 << 20), taken_by((1 << 20) + 1)], [1, 1 << 20, 2 << 20]);
        assert_eq!(taken_by(u64::MAX), u64::MAX);
        assert!(Charge::new(&Options::default(), false).devices.lock().unwrap().is_empty());
    }
}
