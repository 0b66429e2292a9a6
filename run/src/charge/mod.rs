//! The driver's memory calls, counted against the limit before they are made.
//!
//! A limit holds for each device. Bytes are reserved before the driver is called and given back
//! after the driver has freed them, so the sum never exceeds the limit, with any number of threads
//! and processes. Memory of the host is not counted, except for what serves in the place of a
//! device's, which has a limit of its own. Memory from the driver is booked to the calling object.
//!
//! ```text
//! figures    what the driver, or the system, says of a device
//! holdings   memory by its kind and name, from the call that gives it to the call that frees it
//! host       memory of the host in the place of a device's
//! measured   memory of calls that do not say what they take
//! refusals   the refusals of a thread
//! within     what NVML is to say of a device
//! ```

mod figures;
mod holdings;
mod host;
mod measured;
mod refusals;
mod within;

pub use figures::{DriverFigures, current_device};
pub use holdings::{Holding, Holdings};

use crate::group::{Budget, Group, SleepNews, Turn, Uuid, YieldCause};
use crate::ledger::file::write_at_exit;
use crate::ledger::{Kind, Ledger, LedgerOptions};
use crate::options::{GroupOptions, Options};
use crate::real::Real;
use crate::shared::bytes::show;
use cachalot_core::config::Reserve;
use cachalot_cuda::driver::types::{CuDevice, CuUuid};
use cachalot_cuda::{BUS_ID_BYTES, CuResult, GroupMemory, log};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use figures::shares_host_memory;
use host::HostCharge;
use measured::Moves;
use refusals::{forget_refusal, has_refusal, last_refusal, note_refusal};
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The driver takes memory of more than [`LARGEST_CUT`] bytes from a device in such steps.
const STEP: u64 = 2 << 20;

/// Greatest number of bytes cut by the driver from a page shared by allocations.
const LARGEST_CUT: u64 = 1 << 20;

/// Returns the bytes taken from a device by an allocation of `bytes`: whole steps, unless the
/// driver cuts the allocation from a page.
pub fn taken_by(bytes: u64) -> u64 {
    if bytes <= LARGEST_CUT { bytes } else { bytes.checked_next_multiple_of(STEP).unwrap_or(u64::MAX) }
}

/// The limits of a process, separate for each device. All methods may be called from every thread.
#[derive(Debug)]
pub struct Charge {
    options: Options,
    /// How much memory of the host serves in the place of each device's.
    spill: Option<Reserve>,
    /// Whether the books are published for other processes to read.
    publish: bool,
    devices: Mutex<Vec<(CuDevice, Arc<DeviceCharge>)>>,
    holdings: Arc<Holdings>,
}

/// The memory of a process on a device, and the limit.
#[derive(Debug)]
pub struct DeviceCharge {
    /// The group, or the way to join it.
    joining: Joining,
    /// Empty while the group cannot be joined: every reservation is refused.
    group: OnceLock<Group>,
    /// The book. `None`: the system has no memory for a book.
    ledger: Option<Arc<Ledger>>,
    /// The device's place on the bus, by which the driver's management library knows it.
    bus_id: Option<CString>,
    /// The memory of the host in the place of the device's.
    host: HostCharge,
    /// Bytes held: reserved, or the driver's already, and not given back.
    held: AtomicU64,
    /// Those of the held bytes that the limit has no room for.
    excess: AtomicU64,
    /// Whether a refusal was told since the last success.
    told: AtomicBool,
    /// Bytes held for calls with an unknown need for memory.
    measured: AtomicU64,
    /// Calls that change what is held.
    moves: Moves,
    /// Whether the driver's figures are noted with each booking.
    notes_figures: bool,
    /// Bytes that the control groups of the process want back, as of the last look.
    wanted: AtomicU64,
    /// Those of the wanted bytes that were wanted at the look before, too: what was given since is
    /// not enough.
    pressed: AtomicU64,
}

/// The way to join a group, again if necessary.
#[derive(Debug)]
struct Joining {
    group: Option<GroupOptions>,
    limit: Option<u64>,
    uuid: Uuid,
    tries: Mutex<Tries>,
}

/// Failed tries to join.
#[derive(Default, Debug)]
struct Tries {
    /// The next try is not made before.
    next: Option<Instant>,
    /// The failure told last.
    told: String,
}

impl Charge {
    /// Returns the limits named by the options, and by the setting `spill`. Joins no group yet.
    /// `publish`: every process of the user may read the books.
    pub fn new(options: &Options, spill: Option<Reserve>, publish: bool) -> Self {
        Self { options: options.clone(), spill, publish, devices: Mutex::default(), holdings: Arc::default() }
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
        let (uuid, bus_id) = (uuid_of(real, device), bus_id_of(real, device));
        let mut most_of_host = self.spill.map_or(0, |spill| spill.bytes(total_of(real, device)));
        if most_of_host > 0 && shares_host_memory(real, device) {
            most_of_host = 0;
            let device = device.0;
            log::warning(format_args!("spill has no effect on device {device}: it and the host have one memory"));
        }
        let charge = Arc::new(DeviceCharge::new(&self.options, most_of_host, self.publish, uuid, bus_id));
        devices.push((device, Arc::clone(&charge)));
        charge
    }
}

impl DeviceCharge {
    /// Returns the charge of a device, and joins the group. `most_of_host`: the memory of the host
    /// that may serve. `bus_id`: the device's place on the bus, if known.
    fn new(options: &Options, most_of_host: u64, publish: bool, uuid: Uuid, bus_id: Option<CString>) -> Self {
        let books = LedgerOptions { publish, stacks: options.ledger_stacks };
        let ledger =
            Ledger::new(uuid, books).map_err(|error| log::warning(format_args!("no book is kept: {error}"))).ok();
        let ledger = ledger.map(Arc::new);
        if let (Some(ledger), Some(path)) = (&ledger, &options.ledger_file) {
            write_at_exit(ledger, path);
        }
        if let Some(fault) = ledger.as_deref().and_then(Ledger::fault) {
            log::warning(format_args!("{fault}"));
        }
        let joining = Joining { group: options.group.clone(), limit: options.limit, uuid, tries: Mutex::default() };
        let notes_figures = ledger.is_some() && options.wants_full_books();
        let charge = Self {
            joining,
            group: OnceLock::new(),
            ledger,
            bus_id,
            host: HostCharge::new(most_of_host),
            held: AtomicU64::new(0),
            excess: AtomicU64::new(0),
            told: AtomicBool::new(false),
            measured: AtomicU64::new(0),
            moves: Moves::default(),
            notes_figures,
            wanted: AtomicU64::new(0),
            pressed: AtomicU64::new(0),
        };
        charge.join();
        charge
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

    /// Returns whether memory of the host may serve in the place of the device's.
    pub fn has_host(&self) -> bool {
        self.host.has_any()
    }

    /// Notes the driver's figures outside the book, if full books are wanted.
    pub fn note(&self, figures: impl FnOnce() -> Option<DriverFigures>) {
        if self.notes_figures
            && let Some((ledger, figures)) = self.ledger.as_deref().zip(figures())
        {
            ledger.driver(figures.used, figures.total);
        }
    }

    /// Publishes the book again, if its file was removed.
    pub fn stay_published(&self) {
        if let Some(ledger) = &self.ledger {
            ledger.stay_published();
        }
    }

    /// Returns the book.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_deref()
    }

    /// Reserves bytes, before the driver's call for the bytes.
    ///
    /// # Errors
    /// [`CuResult::OUT_OF_MEMORY`] if the limit does not allow the bytes.
    /// [`tell_refusal`](Self::tell_refusal) reports it, once the program's own request has failed
    /// for it: the allocator repeats a reservation several times, with less in its cache.
    pub fn reserve(&self, bytes: u64) -> Result<(), CuResult> {
        self.stay_published();
        let Some(group) = self.group() else { return Err(CuResult::OUT_OF_MEMORY) };
        self.charge_excess(group);
        let mut answer = group.reserve(bytes);
        if answer.is_err() && self.measure_again() {
            answer = group.reserve(bytes);
        }
        match answer {
            Ok(()) => {
                self.held.fetch_add(bytes, Ordering::Relaxed);
                self.told.store(false, Ordering::Relaxed);
                forget_refusal();
                Ok(())
            }
            Err(refusal) => {
                note_refusal(self, refusal);
                Err(CuResult::OUT_OF_MEMORY)
            }
        }
    }

    /// Charges bytes that the driver has already. What is beyond the limit is charged when there is
    /// room.
    fn force(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        self.excess.fetch_add(bytes, Ordering::Relaxed);
        if let Some(group) = self.group() {
            self.charge_excess(group);
        }
    }

    /// Charges what is held beyond the limit, as far as there is room.
    fn charge_excess(&self, group: &Group) {
        let excess = self.excess.load(Ordering::Relaxed);
        if excess == 0 {
            return;
        }
        // A refusal would be told to the members of a group, who would give memory back.
        let fits = group.budget().map_or(excess, |budget| excess.min(budget.available));
        if fits == 0 || group.reserve(fits).is_err() {
            return;
        }
        let rest = self.take_excess(fits);
        group.give_back(fits - rest);
    }

    /// Takes up to `bytes` off what is held beyond the limit, and returns how many.
    fn take_excess(&self, bytes: u64) -> u64 {
        let less = |excess: u64| Some(excess.saturating_sub(bytes));
        self.excess.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0).min(bytes)
    }

    /// Reports the calling thread's last refusal by the limit, if the thread's request fails for
    /// it. Of the refusals between two successes only the first is told: a program may probe for
    /// the limit.
    pub fn tell_refusal(&self) {
        if let Some(refusal) = last_refusal(self)
            && !self.told.swap(true, Ordering::Relaxed)
        {
            log::refusal(refusal);
        }
    }

    /// Reports a request for bytes that has waited for its turn without success.
    pub fn tell_wait_in_vain(&self, bytes: u64) {
        if has_refusal(self) {
            self.tell_refusal();
        } else if !self.told.swap(true, Ordering::Relaxed) {
            log::warning(format_args!(
                "{} more do not fit: the other members of the group keep the memory",
                show(bytes)
            ));
        }
    }

    /// Gives bytes back, after the driver has freed the bytes or failed to take the bytes.
    pub fn give_back(&self, bytes: u64) {
        // What was never charged goes first.
        let rest = bytes - self.take_excess(bytes);
        if let Some(group) = self.group.get() {
            group.give_back(rest);
        }
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes reserved and not given back.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the bytes owed by the process to refused members of the group.
    pub fn owed(&self) -> u64 {
        self.group.get().map_or(0, Group::owed)
    }

    /// Returns what the control groups of the process leave it of the device. Calls no driver.
    pub fn groups(&self) -> GroupMemory {
        let place = self.bus_id.as_deref().and_then(|place| place.to_str().ok());
        // Who counts all has the management library loaded.
        place.map_or(GroupMemory::UNBOUNDED, |place| GroupMemory::of(place, self.counts_all()))
    }

    /// Looks at the control groups of the process, and returns the bytes that they want back.
    pub fn look_at_groups(&self) -> u64 {
        let wanted = self.groups().owed;
        let before = self.wanted.swap(wanted, Ordering::Relaxed);
        self.pressed.store(wanted.min(before), Ordering::Relaxed);
        wanted
    }

    /// Tells the group about the sleep of the process, and returns whether the process has to be
    /// parked now, for a member that waits or for the control groups of the process.
    pub fn yields(&self, news: SleepNews) -> bool {
        let news = SleepNews { pressed: self.pressed.load(Ordering::Relaxed), ..news };
        match self.group.get().and_then(|group| group.yields(news)) {
            None => false,
            Some(YieldCause::Member) => true,
            Some(YieldCause::ControlGroup) => {
                // The member that was due before this one may just have given enough.
                let wanted = self.groups().owed;
                if wanted > 0 {
                    log::info(format_args!("parked, idle for longest: its control group wants {} back", show(wanted)));
                }
                wanted > 0
            }
        }
    }

    /// See [`Group::turn`].
    pub fn turn(&self, bytes: u64) -> Turn {
        self.group().map_or(Turn::Hopeless, |group| group.turn(bytes))
    }

    /// See [`Group::end_wait`].
    pub fn end_wait(&self) {
        if let Some(group) = self.group.get() {
            group.end_wait();
        }
    }

    /// Returns the figures of the limit. `None` without a limit. Nothing is within reach while the
    /// group cannot be joined.
    pub fn budget(&self) -> Option<Budget> {
        let closed = || {
            let limit = self.joining.limit.unwrap_or(u64::MAX);
            Some(Budget { limit, held_by_all: 0, held_by_this: 0, available: 0 })
        };
        self.group().map_or_else(closed, Group::budget)
    }

    /// Returns whether somebody wants to know what the driver's own memory takes: a limit, a group
    /// or full books.
    pub fn counts_all(&self) -> bool {
        self.joining.limit.is_some() || self.joining.group.is_some() || self.notes_figures
    }

    /// Returns the place in the limit. Joins the group if that failed before: what was in the way
    /// may be gone. `None`: it still is.
    fn group(&self) -> Option<&Group> {
        self.group.get().or_else(|| self.join())
    }

    /// Joins the group. Another try waits for as long as the last one took: a lock may be held for
    /// seconds.
    #[cold]
    fn join(&self) -> Option<&Group> {
        let Some(name) = &self.joining.group else {
            return Some(self.group.get_or_init(|| Group::alone(self.joining.limit)));
        };
        let mut tries = self.joining.tries.try_lock().ok()?;
        let begin = Instant::now();
        if self.group.get().is_none() && tries.next.is_none_or(|next| next <= begin) {
            match Group::join(name, self.joining.limit, self.joining.uuid) {
                Ok(group) => drop(self.group.set(group)),
                Err(error) => {
                    let text = error.to_string();
                    if tries.told != text {
                        log::warning(format_args!("{text}; every request for memory of the device is refused"));
                        tries.told = text;
                    }
                    let end = Instant::now();
                    tries.next = Some(end + (end - begin));
                }
            }
        }
        self.group.get()
    }
}

/// Returns a device's identity, all zero if the driver does not say.
fn uuid_of(real: &Real, device: CuDevice) -> Uuid {
    let mut uuid = CuUuid::default();
    // SAFETY: `uuid` outlives the call, which writes 16 bytes to it.
    let _ = unsafe { real.device_get_uuid(&raw mut uuid, device) };
    Uuid(uuid.bytes.map(|byte| byte as u8))
}

/// Returns the bytes of a device, 0 if the driver does not say.
fn total_of(real: &Real, device: CuDevice) -> u64 {
    let mut bytes = 0;
    // SAFETY: `bytes` outlives the call, which writes one integer to it.
    let _ = unsafe { real.device_total_mem(&raw mut bytes, device) };
    bytes as u64
}

/// Returns a device's place on the bus, if the driver reports it.
fn bus_id_of(real: &Real, device: CuDevice) -> Option<CString> {
    let mut text: [c_char; BUS_ID_BYTES] = [0; BUS_ID_BYTES];
    // SAFETY: the buffer outlives the call, which writes at most `BUS_ID_BYTES` bytes, NUL
    // included.
    let code = unsafe { real.device_get_pci_bus_id(text.as_mut_ptr(), BUS_ID_BYTES as i32, device) };
    let bytes = text.map(|letter| letter as u8);
    let text = code.is_success().then(|| CStr::from_bytes_until_nul(&bytes).ok()).flatten()?;
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Charge, DeviceCharge, DriverFigures, Holding, Holdings, taken_by};
    use crate::group::Uuid;
    use crate::ledger::Kind;
    use crate::options::{GroupOptions, Options};
    use cachalot_cuda::CuResult;
    use cachalot_cuda::driver::types::CuContext;
    use std::cell::Cell;
    use std::sync::Arc;

    fn limited(limit: u64) -> Arc<DeviceCharge> {
        let options = Options { limit: Some(limit), ..Options::default() };
        Arc::new(DeviceCharge::new(&options, 50, false, Uuid::default(), None))
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
    fn memory_of_the_host_has_a_limit_of_its_own() {
        let charge = limited(100);
        let holdings = Holdings::default();
        let memory = |bytes| Holding { charge: Arc::clone(&charge), kind: Kind::Spilled, bytes, context: CuContext(7) };
        let take = |bytes, name| holdings.take(memory(bytes), || Ok(()), |()| name, |code| code);
        let failed = Err(CuResult::INVALID_VALUE);
        assert_eq!(holdings.take(memory(50), || failed, |()| 1, |code| code), failed);
        assert_eq!([take(30, 1), take(21, 2), take(20, 2)], [Ok(()), Err(CuResult::OUT_OF_MEMORY), Ok(())]);
        assert_eq!((charge.held(), booked(&charge), charge.reserve(100)), (0, 0, Ok(())));
        assert_eq!(holdings.give(&[Kind::Pages, Kind::Spilled], 1, || Ok::<_, CuResult>(())), Ok(true));
        assert_eq!([take(31, 3), take(30, 3)], [Err(CuResult::OUT_OF_MEMORY), Ok(())]);
        assert_eq!(charge.held(), 100);
        assert!(charge.has_host());
    }

    /// The driver's figure, changed by the processes of a test.
    struct Device(Cell<u64>);

    impl Device {
        fn change(&self, bytes: i64) {
            self.0.set(self.0.get().strict_add_signed(bytes));
        }

        /// Makes a call with an unknown need, in which `inside` happens. Returns what is held and
        /// booked after it.
        fn measured(&self, charge: &DeviceCharge, gives: bool, inside: impl FnOnce()) -> (u64, u64) {
            let figures = || Some(DriverFigures { used: self.0.get(), total: 1 << 40 });
            let call = || {
                inside();
                CuResult::SUCCESS
            };
            assert_eq!(charge.measured(Kind::Module, gives, figures, call, || false), CuResult::SUCCESS);
            (charge.held(), booked(charge))
        }
    }

    #[test]
    fn what_a_call_takes_is_found_by_the_drivers_figure() {
        let (charge, device) = (limited(100), Device(Cell::new(1000)));
        let to = |gives: bool, change: i64| device.measured(&charge, gives, || device.change(change));
        assert_eq!([to(false, 60), to(false, 0), to(true, -10)], [(60, 60), (60, 60), (50, 50)]);
        let figures = || None;
        let call = || CuResult::NOT_FOUND;
        assert_eq!(charge.measured(Kind::Module, false, figures, call, || true), CuResult::NOT_FOUND);
        assert_eq!(to(true, -70), (0, 0));
        // A call that takes 300 bytes of 100 is undone where that can be.
        let figures = || Some(DriverFigures { used: device.0.get(), total: 1 << 40 });
        let call = || {
            device.change(300);
            CuResult::SUCCESS
        };
        let undo = || {
            device.change(-300);
            true
        };
        assert_eq!(charge.measured(Kind::Array, false, figures, call, undo), CuResult::OUT_OF_MEMORY);
        assert_eq!((device.0.get(), charge.held(), booked(&charge)), (980, 0, 0));
    }

    #[test]
    fn what_is_beyond_the_limit_keeps_other_memory_out_until_it_has_gone() {
        let (charge, device) = (limited(100), Device(Cell::new(0)));
        assert_eq!(charge.reserve(30), Ok(()));
        device.change(30);
        assert_eq!(device.measured(&charge, false, || device.change(200)), (230, 200));
        let budget = |charge: &DeviceCharge| charge.budget().map(|budget| (budget.held_by_all, budget.available));
        assert_eq!((budget(&charge), charge.reserve(1)), (Some((100, 0)), Err(CuResult::OUT_OF_MEMORY)));
        charge.give_back(30);
        device.change(-30);
        assert_eq!((budget(&charge), charge.reserve(1)), (Some((100, 0)), Err(CuResult::OUT_OF_MEMORY)));
        assert_eq!(device.measured(&charge, true, || device.change(-150)), (50, 50));
        assert_eq!((budget(&charge), charge.reserve(50)), (Some((50, 50)), Ok(())));
    }

    #[test]
    fn what_others_take_and_give_meanwhile_is_neither_counted_for_good_nor_given_back() {
        let (charge, device) = (limited(500), Device(Cell::new(0)));
        // Another process takes 300 bytes during a load of 40. Once they have gone, the figure
        // shows that they were not ours.
        assert_eq!(device.measured(&charge, false, || device.change(340)), (340, 340));
        device.change(-300);
        charge.bound(device.0.get());
        assert_eq!((charge.held(), booked(&charge)), (40, 40));
        // Another process gives 200 back during a load, and another takes 100 during the end of a
        // module.
        device.change(200);
        assert_eq!(device.measured(&charge, false, || device.change(40 - 200)), (40, 40));
        assert_eq!(device.measured(&charge, true, || device.change(100 - 40)), (40, 40));
    }

    #[test]
    fn what_another_thread_takes_and_gives_meanwhile_counts_once() {
        let (charge, device) = (limited(500), Device(Cell::new(0)));
        let holdings = Holdings::default();
        let memory = || Holding { charge: Arc::clone(&charge), kind: Kind::Plain, bytes: 200, context: CuContext(7) };
        let load = || device.change(40);
        let take = || {
            load();
            let call = || -> Result<(), CuResult> {
                device.change(200);
                Ok(())
            };
            assert_eq!(holdings.take(memory(), call, |()| 1, |code| code), Ok(()));
        };
        let give = || {
            load();
            let call = || -> Result<(), CuResult> {
                device.change(-200);
                Ok(())
            };
            assert_eq!(holdings.give(&[Kind::Plain], 1, call), Ok(true));
        };
        assert_eq!(device.measured(&charge, false, take), (240, 240));
        assert_eq!(device.measured(&charge, false, give), (80, 80));
        // A load inside of a load is charged by the inner one.
        assert_eq!(
            device.measured(&charge, false, || {
                let _ = device.measured(&charge, false, load);
            }),
            (120, 120)
        );
    }

    #[test]
    fn a_figure_is_asked_again_if_a_call_of_another_thread_has_moved_memory() {
        let (charge, device, asked) = (limited(500), Device(Cell::new(0)), Cell::new(0));
        // At the second question, the call of another thread is in progress: reserved, and not
        // taken yet.
        let moving = Cell::new(None);
        let figures = || {
            asked.set(asked.get() + 1);
            match asked.get() {
                2 => {
                    moving.set(Some(charge.moves.begin()));
                    charge.reserve(200).expect("room");
                }
                3 => {
                    device.change(200);
                    drop(moving.take());
                }
                _ => {}
            }
            Some(DriverFigures { used: device.0.get(), total: 1 << 40 })
        };
        let call = || {
            device.change(40);
            CuResult::SUCCESS
        };
        assert_eq!(charge.measured(Kind::Module, false, figures, call, || false), CuResult::SUCCESS);
        assert_eq!((charge.held(), booked(&charge)), (240, 40));
    }

    #[test]
    fn a_group_is_joined_again_after_a_failure_and_nothing_fits_until_then() {
        let group = GroupOptions { name: "no name of a group".to_owned(), low: 0, max: None, weight: 100 };
        let options = Options { limit: Some(100), group: Some(group), ..Options::default() };
        let mut charge = DeviceCharge::new(&options, 0, false, Uuid::default(), None);
        let budget = |charge: &DeviceCharge| charge.budget().map(|budget| (budget.limit, budget.available));
        assert_eq!((budget(&charge), charge.reserve(1)), (Some((100, 0)), Err(CuResult::OUT_OF_MEMORY)));
        // What was in the way has gone.
        charge.joining.group = None;
        assert_eq!((budget(&charge), charge.reserve(1)), (Some((100, 100)), Ok(())));
    }

    #[test]
    fn the_driver_takes_whole_steps_for_large_memory() {
        assert_eq!([taken_by(1), taken_by(1 << 20), taken_by((1 << 20) + 1)], [1, 1 << 20, 2 << 20]);
        assert_eq!(taken_by(u64::MAX), u64::MAX);
        assert!(Charge::new(&Options::default(), None, false).devices.lock().unwrap().is_empty());
    }
}
