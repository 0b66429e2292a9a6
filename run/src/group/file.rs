//! The process in a group: its entry in the group's shared file.

use super::failure::{GroupError, Holder, Reason, Refusal};
use super::layout::{Limits, OWNERS, OwnerEntry, State, Terms};
use super::table::MappedTable;
use super::turns::{self, Contender, Turn};
use super::{Budget, SleepNews, Uuid, YieldCause, subtract};
use crate::options::{GroupOptions, name_of_process};
use crate::shared::folder;
use crate::shared::process::{self, Identity};
use crate::shared::time::milliseconds;
use cachalot_core::shares::{self, Figures, NONE};
use cachalot_cuda::log;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// The start of the name of every group's file.
pub(super) const PREFIX: &str = "group-";

/// How long figures for information may count a dead member: a look at a process takes some ten
/// microseconds, and a program may ask for the memory in a loop.
const STALE: Duration = Duration::from_millis(10);

/// Attempts to open a file while members remove the file.
const ATTEMPTS: u32 = 100;

/// How long an attempt waits for another process that is about to remove the file.
const PAUSE: Duration = Duration::from_millis(1);

/// The process in a group.
pub(super) struct Membership {
    options: GroupOptions,
    path: PathBuf,
    device: Uuid,
    /// Changes only when the file was removed.
    own: RwLock<OwnEntry>,
    /// The joined process. A forked child has another id.
    pid: u32,
    /// When figures for information last looked for the dead.
    looked: Mutex<Option<Instant>>,
}

/// An entry in a mapped file.
struct OwnEntry {
    file: MappedTable,
    /// The number of the process, and of its entry.
    me: usize,
}

/// Checks a group's name, which becomes a part of a file's name.
fn check_name(name: &str) -> Result<(), GroupError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphanumeric());
    if begins && name.len() <= 64 && name.bytes().all(is_plain) {
        Ok(())
    } else {
        Err(GroupError::Name(name.to_owned()))
    }
}

/// Checks the terms of a process by themselves, before the terms of the group's members count.
fn terms(options: &GroupOptions, limit: Option<u64>) -> Result<Terms, GroupError> {
    let &GroupOptions { low, max, weight, .. } = options;
    let fault = |text: &str| Err(GroupError::Terms(text.to_owned()));
    if weight == 0 {
        return fault("the weight of a process in a group is at least 1");
    }
    if max.is_some_and(|max| low > max) {
        return fault("a process's `low` is at most its `max`");
    }
    if limit.is_some_and(|limit| low > limit) {
        return fault("a process's `low` is at most the group's limit");
    }
    Ok(Terms { low, max: max.unwrap_or(NONE), weight: weight.into() })
}

/// Checks a name and terms without joining.
pub(super) fn check_options(options: &GroupOptions, limit: Option<u64>) -> Result<(), GroupError> {
    check_name(&options.name)?;
    terms(options, limit).map(drop)
}

/// Returns the path of the file of a group on a device.
pub(super) fn path_of(folder: &Path, name: &str, device: Uuid) -> Result<PathBuf, GroupError> {
    check_name(name)?;
    Ok(folder.join(format!("{PREFIX}{name}-{device}")))
}

impl Membership {
    /// Joins a group whose file is in a folder. See [`Group::join`](super::Group::join).
    pub(super) fn join(
        folder: &Path,
        options: &GroupOptions,
        limit: Option<u64>,
        device: Uuid,
    ) -> Result<Self, GroupError> {
        let path = path_of(folder, &options.name, device)?;
        let own = RwLock::new(OwnEntry::take(&path, options, Limits { now: limit, named: limit }, device)?);
        let (pid, options) = (std::process::id(), options.clone());
        Ok(Self { options, path, device, own, pid, looked: Mutex::default() })
    }

    fn own_entry(&self) -> RwLockReadGuard<'_, OwnEntry> {
        self.own.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the group anew, with the bytes that the process holds, if the file was removed:
    /// systemd removes the files of a user at the user's logout. The members that have not noticed
    /// yet do so at their next request, or within a second.
    fn stay_in_group(&self) -> Result<(), GroupError> {
        if !self.own_entry().file.is_removed() {
            return Ok(());
        }
        let mut entry = self.own.write().unwrap_or_else(PoisonError::into_inner);
        if !entry.file.is_removed() {
            return Ok(());
        }
        if let Some(folder) = self.path.parent().filter(|folder| !folder.exists()) {
            folder::private(folder.to_owned()).map_err(GroupError::Folder)?;
        }
        let new = OwnEntry::take(&self.path, &self.options, entry.state().limits(), self.device)?;
        new.mine().held.store(entry.mine().held.load(Ordering::Acquire), Ordering::Release);
        *entry = new;
        drop(entry);
        log::warning(format_args!(
            "the file {} of group `{}` was removed, and is made again (systemd removes the files of a user at logout: RemoveIPC=no, or \
             loginctl enable-linger)",
            self.path.display(),
            self.options.name
        ));
        Ok(())
    }

    /// Returns whether the calling process is a forked child of the joined process.
    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// See [`Group::reserve`](super::Group::reserve).
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), Refusal> {
        let group = || self.options.name.clone();
        let refuse = |reason| Refusal { bytes, available: 0, reason };
        if self.is_forked() {
            return Err(refuse(Reason::Forked { group: group(), parent: self.pid }));
        }
        self.stay_in_group().map_err(|fault| refuse(Reason::Gone { group: group(), fault: fault.to_string() }))?;
        let entry = self.own_entry();
        let state = entry.state();
        let held = entry.file.lock(entry.me);
        let held = held.map_err(|fault| refuse(Reason::Lock { group: group(), fault }))?;
        #[cfg(test)]
        super::faults::reach(super::faults::Point::Locked);
        let limit = state.limit().unwrap_or(u64::MAX);
        // The dead are looked for only where their shares matter.
        let fits = bytes <= entry.room(limit) || {
            entry.file.sweep(entry.me, &held);
            bytes <= entry.room(limit)
        };
        let mine = entry.mine();
        if !fits {
            mine.want.store(bytes, Ordering::Relaxed);
            return Err(entry.refusal(bytes, limit, &self.options.name));
        }
        mine.held.fetch_add(bytes, Ordering::AcqRel);
        #[cfg(test)]
        super::faults::reach(super::faults::Point::Counted);
        mine.want.store(0, Ordering::Relaxed);
        drop(held);
        Ok(())
    }

    /// See [`Group::give_back`](super::Group::give_back).
    pub(super) fn give_back(&self, bytes: u64) {
        if !self.is_forked() {
            // Without the lock: a sum that is read meanwhile is too great, and never too small.
            subtract(&self.own_entry().mine().held, bytes);
        }
    }

    /// See [`Group::budget`](super::Group::budget).
    pub(super) fn budget(&self) -> Option<Budget> {
        self.look_for_the_dead();
        let entry = self.own_entry();
        let limit = entry.state().limit()?;
        let (owners, me) = entry.owners();
        Some(Budget {
            limit: limit.min(owners[me].max),
            held_by_all: owners.iter().fold(0, |sum, owner| sum.saturating_add(owner.held)),
            held_by_this: owners[me].held,
            available: shares::room(limit, &owners, me),
        })
    }

    /// Frees the entries of dead members, now and then.
    fn look_for_the_dead(&self) {
        // In a forked child, and with the lock held for long, the dead stay counted until another
        // call.
        let Ok(mut looked) = self.looked.try_lock() else { return };
        if looked.is_some_and(|at| at.elapsed() < STALE) || self.is_forked() {
            return;
        }
        *looked = Some(Instant::now());
        drop(looked);
        // A failure is reported at the next request.
        let _ = self.stay_in_group();
        let entry = self.own_entry();
        if let Ok(held) = entry.file.lock(entry.me) {
            entry.file.sweep(entry.me, &held);
        }
    }

    /// See [`Group::owed`](super::Group::owed).
    pub(super) fn owed(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        // The maintenance thread asks once a second, also while the program makes no request.
        let _ = self.stay_in_group();
        let is_asked = {
            let entry = self.own_entry();
            let state = entry.state();
            let wants = |at: usize| at != entry.me && state.entries[at].want.load(Ordering::Relaxed) != 0;
            let held = |at: usize| state.entries[at].held.load(Ordering::Relaxed);
            let sum = state.owned().map(held).fold(0_u64, u64::saturating_add);
            // A limit that was lowered is below what is held.
            state.owned().any(wants) || state.limit().is_some_and(|limit| sum > limit)
        };
        // The usual case takes no lock.
        if !is_asked {
            return 0;
        }
        self.look_for_the_dead();
        let entry = self.own_entry();
        let Some(limit) = entry.state().limit() else { return 0 };
        let (owners, me) = entry.owners();
        shares::owed(limit, &owners, me)
    }
}

impl Membership {
    /// See [`Group::yields`](super::Group::yields).
    pub(super) fn yields(&self, news: SleepNews) -> Option<YieldCause> {
        let now = monotonic_ms();
        let before = |time: Duration| now.saturating_sub(milliseconds(time)).max(1);
        let entry = self.own_entry();
        let mine = entry.mine();
        mine.awake_at_least.store(milliseconds(news.awake_at_least), Ordering::Relaxed);
        let is_busy = milliseconds(news.idle) < turns::IDLE;
        mine.idle_since.store(if is_busy { 0 } else { before(news.idle) }, Ordering::Relaxed);
        mine.awake_since.store(news.awake.map_or(0, before), Ordering::Relaxed);
        mine.pressed.store(news.pressed, Ordering::Relaxed);
        let limit = entry.state().limit();
        // The usual case is that nobody waits, and nobody wants memory back.
        let is_waiting = |at: usize| entry.state().entries[at].waits_since.load(Ordering::Relaxed) != 0;
        let has_cause = news.pressed != 0 || limit.is_some() && entry.state().owned().any(is_waiting);
        if !has_cause || self.is_forked() {
            return None;
        }
        drop(entry);
        self.look_for_the_dead();
        let (members, me) = self.own_entry().contenders();
        if limit.is_some_and(|limit| turns::due(limit, &members, now) == Some(me)) {
            Some(YieldCause::Member)
        } else {
            (turns::due_outside(&members, now) == Some(me)).then_some(YieldCause::ControlGroup)
        }
    }

    /// See [`Group::turn`](super::Group::turn).
    pub(super) fn turn(&self, bytes: u64) -> Turn {
        let entry = self.own_entry();
        let Some(limit) = entry.state().limit().filter(|_| !self.is_forked()) else { return Turn::Served };
        let mine = entry.mine();
        mine.needs.store(mine.held.load(Ordering::Acquire).saturating_add(bytes), Ordering::Relaxed);
        if mine.waits_since.load(Ordering::Relaxed) == 0 {
            mine.waits_since.store(monotonic_ms().max(1), Ordering::Release);
        }
        drop(entry);
        self.look_for_the_dead();
        let (members, me) = self.own_entry().contenders();
        turns::turn(limit, &members, me)
    }

    /// See [`Group::end_wait`](super::Group::end_wait).
    pub(super) fn end_wait(&self) {
        if !self.is_forked() {
            self.own_entry().mine().waits_since.store(0, Ordering::Release);
        }
    }
}

impl OwnEntry {
    /// Takes an entry in the file of a group, and creates a missing file.
    fn take(path: &Path, options: &GroupOptions, limits: Limits, device: Uuid) -> Result<Self, GroupError> {
        let terms = terms(options, limits.now)?;
        let name = &options.name;
        let in_file = |error| GroupError::File(path.to_owned(), error);
        let caller = Identity::of_caller().map_err(in_file)?;
        for _ in 0..ATTEMPTS {
            let Some(file) = MappedTable::open(path, device, true).map_err(in_file)? else { continue };
            let Some(me) = file.number(caller).map_err(in_file)? else {
                if file.state.owned().count() == OWNERS {
                    return Err(GroupError::Full(name.clone()));
                }
                // Another process has marked all bytes, and is about to remove the file.
                std::thread::sleep(PAUSE);
                continue;
            };
            // A process that found no mark may have removed the file before the mark.
            if file.is_removed() {
                continue;
            }
            let held = file.lock_first(me).map_err(|fault| GroupError::Lock(name.clone(), fault))?;
            if file.state.gone.load(Ordering::Relaxed) != 0 {
                // The process that removes the file was killed before it did.
                file.unlink();
                continue;
            }
            file.sweep(me, &held);
            enter(&file, me, name, caller, terms, limits)?;
            drop(held);
            return Ok(Self { file, me });
        }
        Err(in_file(io::Error::other("other processes remove the file again and again")))
    }

    fn state(&self) -> &State {
        &self.file.state
    }

    /// Returns the process's entry.
    fn mine(&self) -> &OwnerEntry {
        &self.state().entries[self.me]
    }

    /// Returns the bytes within the process's reach.
    fn room(&self, limit: u64) -> u64 {
        let (owners, me) = self.owners();
        shares::room(limit, &owners, me)
    }

    /// Returns the figures of all owners, and the number of the process among them.
    fn owners(&self) -> (Vec<Figures>, usize) {
        let state = self.state();
        // The file is foreign data: this process's entry counts even if another has freed the
        // entry.
        let is_owned = |at: &usize| *at == self.me || state.entries[*at].owner().is_some();
        let owned: Vec<usize> = (0..state.used().max(self.me + 1)).filter(is_owned).collect();
        let me = owned.iter().position(|&at| at == self.me).unwrap_or_default();
        (owned.into_iter().map(|at| state.entries[at].figures()).collect(), me)
    }

    /// Describes who holds what.
    fn refusal(&self, bytes: u64, limit: u64, group: &str) -> Refusal {
        let state = self.state();
        let available = self.room(limit);
        let Figures { held, max, .. } = state.entries[self.me].figures();
        let group = group.to_owned();
        if held.saturating_add(bytes) > max {
            return Refusal { bytes, available, reason: Reason::Max { group, max, held } };
        }
        let mut holders: Vec<Holder> = state
            .owned()
            .filter_map(|at| {
                let entry = &state.entries[at];
                let Figures { held, low, .. } = entry.figures();
                Some(Holder { pid: entry.owner()?.pid, program: entry.program(), held, low })
            })
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.held));
        Refusal { bytes, available, reason: Reason::Limit { group, limit, holders } }
    }

    /// Returns the states of all owners' sleep, and the number of the process among them.
    fn contenders(&self) -> (Vec<Contender>, usize) {
        let state = self.state();
        // In the order of the table, so that all members come to the same answer.
        let owned: Vec<usize> = state.owned().collect();
        let me = owned.iter().position(|&at| at == self.me).unwrap_or_default();
        (owned.into_iter().map(|at| state.entries[at].contender()).collect(), me)
    }
}

/// Returns the milliseconds of the machine's clock that all processes share.
fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // A process that ends without this has its entry taken by the next process that needs its
        // share.
        let entry = self.own_entry();
        let state = entry.state();
        if let Ok(held) = entry.file.lock(entry.me) {
            entry.mine().clear();
            entry.file.sweep(entry.me, &held);
            if state.owned().next().is_none() {
                state.gone.store(1, Ordering::Relaxed);
                entry.file.unlink();
            }
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Gives the caller the entry of its number. The caller holds the lock.
fn enter(
    file: &MappedTable,
    me: usize,
    name: &str,
    caller: Identity,
    terms: Terms,
    limits: Limits,
) -> Result<(), GroupError> {
    let state = &file.state;
    for at in state.owned().filter(|&at| at != me) {
        if file.is_before(at, caller) {
            state.entries[at].clear();
        }
    }
    let owners: Vec<Figures> = state.owned().map(|at| state.entries[at].figures()).collect();
    let sum = |of: fn(&Figures) -> u64| owners.iter().map(of).fold(0_u64, u64::saturating_add);
    let found = if owners.is_empty() { Limits { now: None, named: None } } else { state.limits() };
    // A limit that was set while the group was in use stays, whatever its programs name.
    let is_set = found.now != found.named;
    if let Some(named) = limits.named {
        let holds = found.named;
        let is_other = holds.is_some_and(|holds| holds != named);
        if is_other || !is_set && holds.is_none() && sum(|owner| owner.held) > named {
            return Err(GroupError::OtherLimit { group: name.to_owned(), named, holds });
        }
    }
    let now = if is_set { found.now } else { limits.now.or(found.now) };
    let others = sum(|owner| owner.low);
    if let Some(limit) = now.filter(|&limit| others.saturating_add(terms.low) > limit) {
        return Err(GroupError::Low { group: name.to_owned(), low: terms.low, others, limit });
    }
    state.limit.store(now.unwrap_or(NONE), Ordering::Relaxed);
    state.named.store(limits.named.or(found.named).unwrap_or(NONE), Ordering::Relaxed);
    state.used.fetch_max(me as u64 + 1, Ordering::AcqRel);
    let program = name_of_process().unwrap_or_else(|| process::program(caller.pid));
    state.entries[me].take(caller, file.namespace, &program, terms);
    Ok(())
}
