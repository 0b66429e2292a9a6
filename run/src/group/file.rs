//! A group's shared file, and the caller's entry in the file.

use super::failure::{GroupError, Holder, Reason, Refusal};
use super::layout::{FORM, MAGIC, OWNERS, OwnerEntry, State, Terms};
use super::lock::Held;
use super::turns::{self, Contender, Turn};
use super::{Budget, SleepNews, Uuid, subtract};
use crate::options::{GroupOptions, name_of_process};
use crate::shared::map::Shared;
use crate::shared::process::{self, Identity};
use crate::shared::time::milliseconds;
use crate::shared::{folder, form, marks};
use cachalot_core::shares::{self, Figures, NONE};
use cachalot_cuda::log;
use cachalot_cuda::own_files::OwnFile;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// The start of the name of every group's file.
pub(super) const PREFIX: &str = "group-";

/// Bytes of the file.
pub(super) const BYTES: u64 = Shared::<State>::BYTES;

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
    /// The number of the process's entry.
    me: usize,
}

/// A mapped file.
struct MappedTable {
    state: Shared<State>,
    /// Carries the marks of the living.
    open: OwnFile,
}

impl MappedTable {
    fn new(file: File) -> io::Result<Self> {
        Ok(Self { state: Shared::new(&file)?, open: OwnFile::new(file)? })
    }

    fn is_removed(&self) -> bool {
        self.open.is_removed()
    }

    /// See [`marks::is_held`].
    fn is_marked(&self, at: usize) -> Option<bool> {
        marks::is_held(self.open.get().ok()?, at)
    }

    /// See [`marks::hold_all`].
    fn mark_all(&self) -> bool {
        self.open.get().is_ok_and(marks::hold_all)
    }
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

impl Membership {
    /// Joins a group whose file is in a folder. See [`Group::join`](super::Group::join).
    pub(super) fn join(
        folder: &Path,
        options: &GroupOptions,
        limit: Option<u64>,
        device: Uuid,
    ) -> Result<Self, GroupError> {
        check_name(&options.name)?;
        let path = folder.join(format!("{PREFIX}{}-{device}", options.name));
        let own = RwLock::new(OwnEntry::take(&path, options, limit, device)?);
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
        let new = OwnEntry::take(&self.path, &self.options, entry.state().limit(), self.device)?;
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
        let held = state.lock.take();
        let held = held.map_err(|fault| refuse(Reason::Lock { group: group(), fault }))?;
        #[cfg(test)]
        super::faults::reach(super::faults::Point::Locked);
        let limit = state.limit().unwrap_or(u64::MAX);
        // The dead are looked for only where their shares matter.
        let fits = bytes <= entry.room(limit) || {
            sweep(state, &held);
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
        if let Ok(held) = entry.state().lock.take() {
            sweep(entry.state(), &held);
        }
    }

    /// See [`Group::owed`](super::Group::owed).
    pub(super) fn owed(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        // The maintenance thread asks once a second, also while the program makes no request.
        let _ = self.stay_in_group();
        let is_wanted = {
            let entry = self.own_entry();
            let state = entry.state();
            let wants = |at: usize| at != entry.me && state.entries[at].want.load(Ordering::Relaxed) != 0;
            state.owned().any(wants)
        };
        // The usual case takes no lock.
        if !is_wanted {
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
    pub(super) fn yields(&self, news: SleepNews) -> bool {
        let now = monotonic_ms();
        let before = |time: Duration| now.saturating_sub(milliseconds(time)).max(1);
        let entry = self.own_entry();
        let mine = entry.mine();
        mine.awake_at_least.store(milliseconds(news.awake_at_least), Ordering::Relaxed);
        let is_busy = milliseconds(news.idle) < turns::IDLE;
        mine.idle_since.store(if is_busy { 0 } else { before(news.idle) }, Ordering::Relaxed);
        mine.awake_since.store(news.awake.map_or(0, before), Ordering::Relaxed);
        let Some(limit) = entry.state().limit().filter(|_| !self.is_forked()) else { return false };
        // The usual case is that nobody waits.
        let is_waiting = |at: usize| entry.state().entries[at].waits_since.load(Ordering::Relaxed) != 0;
        if !entry.state().owned().any(is_waiting) {
            return false;
        }
        drop(entry);
        self.look_for_the_dead();
        let (members, me) = self.own_entry().contenders();
        turns::due(limit, &members, now) == Some(me)
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
    fn take(path: &Path, options: &GroupOptions, limit: Option<u64>, device: Uuid) -> Result<Self, GroupError> {
        let terms = terms(options, limit)?;
        let name = &options.name;
        let in_file = |error| GroupError::File(path.to_owned(), error);
        let caller = Identity::of_caller().map_err(in_file)?;
        for _ in 0..ATTEMPTS {
            let Some(file) = open(path, device).map_err(in_file)? else { continue };
            let held = file.state.lock.take().map_err(|fault| GroupError::Lock(name.clone(), fault))?;
            if file.state.gone.load(Ordering::Relaxed) != 0 {
                // The process that removes the file was killed before it did.
                unlink(path, &file);
                continue;
            }
            let me = enter(&file, name, caller, terms, limit)?;
            match file.open.get().and_then(|open| marks::hold(open, me)) {
                // A file system without locks has process ids alone.
                Ok(()) => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    // Another process has marked all bytes, and is about to remove the file.
                    file.state.entries[me].clear();
                    drop(held);
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
            // A process that found no mark may have removed the file before the mark.
            if file.is_removed() {
                continue;
            }
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
        if let Ok(held) = state.lock.take() {
            entry.mine().clear();
            sweep(state, &held);
            if state.owned().next().is_none() {
                state.gone.store(1, Ordering::Relaxed);
                unlink(&self.path, &entry.file);
            }
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Frees the entries of dead owners.
fn sweep(state: &State, _: &Held<'_>) {
    let caller = std::process::id();
    for at in state.owned() {
        let dead = |owner: Identity| owner.pid != caller && !owner.is_alive();
        if state.entries[at].owner().is_some_and(dead) {
            state.entries[at].clear();
            #[cfg(test)]
            super::faults::reach(super::faults::Point::Swept);
        }
    }
}

/// Gives the caller an entry. The caller holds the lock.
fn enter(
    file: &MappedTable,
    name: &str,
    caller: Identity,
    terms: Terms,
    limit: Option<u64>,
) -> Result<usize, GroupError> {
    let state = &file.state;
    for at in state.owned() {
        // An entry of the caller's id is of a second join, or of a program before an `exec`: the
        // system closed its file and took the mark. Where addresses are not random, nothing else
        // tells the two programs apart.
        let is_before = |owner: Identity| owner.pid == caller.pid && file.is_marked(at) == Some(false);
        if state.entries[at].owner().is_some_and(|owner| !owner.is_alive() || is_before(owner)) {
            state.entries[at].clear();
        }
    }
    let owners: Vec<Figures> = state.owned().map(|at| state.entries[at].figures()).collect();
    let sum = |of: fn(&Figures) -> u64| owners.iter().map(of).fold(0_u64, u64::saturating_add);
    let present = if owners.is_empty() { None } else { state.limit() };
    if let Some(named) = limit {
        let holds = present;
        let is_other = holds.is_some_and(|holds| holds != named) || sum(|owner| owner.held) > named;
        if is_other {
            return Err(GroupError::OtherLimit { group: name.to_owned(), named, holds });
        }
    }
    let limit = limit.or(present);
    let others = sum(|owner| owner.low);
    if let Some(limit) = limit.filter(|&limit| others.saturating_add(terms.low) > limit) {
        return Err(GroupError::Low { group: name.to_owned(), low: terms.low, others, limit });
    }
    // A forked child may keep the mark of a member that has ended.
    let is_free = |at: &usize| state.entries[*at].owner().is_none() && file.is_marked(*at) != Some(true);
    let free = (0..OWNERS).find(is_free);
    let me = free.ok_or_else(|| GroupError::Full(name.to_owned()))?;
    state.limit.store(limit.unwrap_or(NONE), Ordering::Relaxed);
    state.used.fetch_max(me as u64 + 1, Ordering::AcqRel);
    let program = name_of_process().unwrap_or_else(|| process::program(caller.pid));
    state.entries[me].take(caller, &program, terms);
    Ok(me)
}

/// Opens the file of a group, or creates the file. `None`: another process removed or created the
/// file meanwhile.
fn open(path: &Path, device: Uuid) -> io::Result<Option<MappedTable>> {
    match form::open(path, BYTES, true) {
        Ok(file) => {
            let file = MappedTable::new(file)?;
            match check(&file.state, device) {
                Ok(()) => Ok(Some(file)),
                Err(error) => remove_abandoned(path, &file, error),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path, device),
        Err(error) => {
            // A file of another length is of another version.
            let file = form::open_of_user(path, true)?;
            let mut magic = [0; size_of_val(&MAGIC)];
            let is_group = file.read_exact_at(&mut magic, 0).is_ok() && u64::from_ne_bytes(magic) == MAGIC;
            if !is_group || file.metadata()?.len() == BYTES || !marks::hold_all(&file) {
                return Err(error);
            }
            fs::remove_file(path)?;
            Ok(None)
        }
    }
}

/// Removes the file of a group that this process cannot join, if no member lives: the file of a
/// container that has ended, or of another version. The marks of members tell, for the process ids
/// are of another container.
fn remove_abandoned(path: &Path, file: &MappedTable, error: io::Error) -> io::Result<Option<MappedTable>> {
    let is_here = file.state.namespace.load(Ordering::Acquire) == process::namespace()?;
    // Members of an earlier version have no marks.
    let lives = |at: usize| file.state.entries[at].owner().is_some_and(|owner| owner.is_alive());
    let is_group = file.state.magic.load(Ordering::Acquire) == MAGIC;
    if !is_group || is_here && file.state.owned().any(lives) || !file.mark_all() {
        return Err(error);
    }
    unlink(path, file);
    Ok(None)
}

/// Removes the file of a group of this namespace of process ids in which no member lives: members
/// that were killed, or ended without their handlers, leave it.
pub(super) fn remove_without_members(path: &Path) {
    let Ok(file) = form::open(path, BYTES, true).and_then(MappedTable::new) else { return };
    let is_here = process::namespace().is_ok_and(|here| file.state.namespace.load(Ordering::Acquire) == here);
    let lives = |at: usize| file.state.entries[at].owner().is_some_and(|owner| owner.is_alive());
    let is_group = file.state.magic.load(Ordering::Acquire) == MAGIC;
    // The marks of all members keep out whoever joins meanwhile.
    if is_group && is_here && file.mark_all() && !file.state.owned().any(lives) {
        unlink(path, &file);
    }
}

/// Checks the constant words of a file.
fn check(state: &State, device: Uuid) -> io::Result<()> {
    let read = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Acquire);
    let fault = if read(&state.magic) != MAGIC || read(&state.length) != BYTES {
        "is no file of a group"
    } else if read(&state.form) != FORM {
        "was made by a program with another C library, or by another version of cachalot"
    } else if read(&state.namespace) != process::namespace()? {
        // There, other processes have the ids of the owners, and nobody could tell who is dead.
        "was made in a container that has its own process ids"
    } else if Uuid::of_words([read(&state.uuid[0]), read(&state.uuid[1])]) != device {
        "is of another device"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, fault))
}

/// Creates the file of a group. A complete file gets the name. `None`: another process
/// was first.
fn create(path: &Path, device: Uuid) -> io::Result<Option<MappedTable>> {
    let folder = path.parent().expect("the path has a folder");
    let file = form::create(folder, BYTES)?;
    let mapped = MappedTable::new(file)?;
    let state = &mapped.state;
    let [low, high] = device.to_words();
    let words = [
        (&state.form, FORM),
        (&state.length, BYTES),
        (&state.namespace, process::namespace()?),
        (&state.uuid[0], low),
        (&state.uuid[1], high),
        (&state.limit, NONE),
    ];
    words.iter().for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    state.lock.initialise().map_err(|fault| io::Error::other(fault.to_string()))?;
    state.magic.store(MAGIC, Ordering::Release);
    Ok(form::give_name(mapped.open.get()?, path)?.then_some(mapped))
}

/// Removes the name of a file, unless another file has the name by now. Only the holder of the
/// file's lock, or of all its marks, removes the name, so the name cannot pass to another file in
/// between.
fn unlink(path: &Path, file: &MappedTable) {
    let is_same = |found: fs::Metadata| (found.dev(), found.ino()) == file.open.inode();
    if fs::symlink_metadata(path).is_ok_and(is_same) {
        // A file that stays says that it is gone, and the next process removes it.
        let _ = fs::remove_file(path);
    }
}
