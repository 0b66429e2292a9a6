//! A limit for a process, or for all processes of a group.
//!
//! A process reserves bytes before the driver allocates, and gives the bytes back after the driver
//! frees. The sum of a group never exceeds the limit. The share of a killed process is given back
//! at the next call of a member in need of the share. How much each member may take, and must give
//! back, is computed as for the tags of an allocator ([`cachalot_core::shares`]).
//!
//! ```text
//! file        the process in a group
//! set         a limit set while the members run
//! watch       groups of a user, read from outside
//! table       the group's shared file: made, opened, removed, and its dead owners
//! failure     why a process may not join, or not reserve
//! turns       which owner wakes, and which is parked for it
//! layout      the words of the shared file
//! lock        a lock, which outlives the holder
//! ```

#[cfg(test)]
mod containers;
mod failure;
#[cfg(test)]
mod faults;
mod file;
mod layout;
mod lock;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod rounds;
pub mod set;
mod table;
#[cfg(test)]
mod tenants;
#[cfg(test)]
mod tests;
mod turns;
pub mod watch;

pub use crate::shared::uuid::Uuid;
pub use failure::{GroupError, Holder, Refusal};
pub use lock::LockFault;
pub use turns::Turn;

use crate::options::GroupOptions;
use crate::shared::folder;
use file::Membership;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The place of the process in a limit. All methods may be called from every thread, and none calls
/// the driver.
#[derive(Debug)]
pub struct Group(Standing);

#[derive(Debug)]
enum Standing {
    Alone { limit: Option<u64>, held: AtomicU64 },
    Member(Box<Membership>),
}

/// Figures of a limit, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The limit of the group, or the process's own `max` if the `max` is less.
    pub limit: u64,
    /// Bytes of all processes of the group.
    pub held_by_all: u64,
    /// Bytes of the process.
    pub held_by_this: u64,
    /// Bytes within the process's reach now.
    pub available: u64,
}

/// Checks the name of a group and the terms of a process by themselves. Joins nothing.
///
/// # Errors
/// The name or the terms are invalid.
pub fn check(options: &GroupOptions, limit: Option<u64>) -> Result<(), GroupError> {
    file::check_options(options, limit)
}

impl Group {
    /// A limit for the process alone, without a shared file.
    pub const fn alone(limit: Option<u64>) -> Self {
        Self(Standing::Alone { limit, held: AtomicU64::new(0) })
    }

    /// Joins the group of a name on a device, and creates the group if the group has no living
    /// process. The first process with a limit decides the group's limit.
    ///
    /// # Errors
    /// The name or the terms are invalid, the shared file cannot be used, the group has another
    /// limit, the `low` bytes of all members would exceed the limit, or the group has no free
    /// place.
    pub fn join(options: &GroupOptions, limit: Option<u64>, device: Uuid) -> Result<Self, GroupError> {
        let folder = folder::of_user().map_err(GroupError::Folder)?;
        Self::join_in(&folder, options, limit, device)
    }

    /// Joins a group whose shared file is in the given folder. See [`Self::join`].
    ///
    /// # Errors
    /// As of [`Self::join`].
    pub fn join_in(
        folder: &Path,
        options: &GroupOptions,
        limit: Option<u64>,
        device: Uuid,
    ) -> Result<Self, GroupError> {
        Membership::join(folder, options, limit, device).map(|member| Self(Standing::Member(Box::new(member))))
    }

    /// Counts bytes before the driver allocates. A failed driver call needs
    /// [`Self::give_back`].
    ///
    /// Waits for members of the group for microseconds, and never for the device.
    ///
    /// # Errors
    /// The bytes do not fit, even with the shares of dead members. Until the process's next success
    /// or end, [`Self::owed`] tells the members of the group about the refusal. A forked child of
    /// the joined process gets the error, too.
    pub fn reserve(&self, bytes: u64) -> Result<(), Refusal> {
        match &self.0 {
            Standing::Member(member) => member.reserve(bytes),
            Standing::Alone { limit, held } => {
                let most = limit.unwrap_or(u64::MAX);
                let fits = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= most);
                let taken = held.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
                taken.map(drop).map_err(|held| Refusal::alone(bytes, most, held))
            }
        }
    }

    /// Gives bytes back after the driver has freed the memory, or has refused to allocate. Never
    /// waits.
    pub fn give_back(&self, bytes: u64) {
        match &self.0 {
            Standing::Member(member) => member.give_back(bytes),
            Standing::Alone { held, .. } => subtract(held, bytes),
        }
    }

    /// Returns the figures for `cuMemGetInfo`. `None`: no limit.
    ///
    /// A member may be counted for 10 ms after death.
    pub fn budget(&self) -> Option<Budget> {
        match &self.0 {
            Standing::Member(member) => member.budget(),
            Standing::Alone { limit, held } => limit.map(|limit| {
                let held = held.load(Ordering::Acquire);
                Budget { limit, held_by_all: held, held_by_this: held, available: limit.saturating_sub(held) }
            }),
        }
    }

    /// Returns the bytes to give back now. More than 0 if members of the group were refused and the
    /// process holds more than a share by weight; at most the held bytes.
    pub fn owed(&self) -> u64 {
        match &self.0 {
            Standing::Member(member) => member.owed(),
            Standing::Alone { .. } => 0,
        }
    }
}

/// The state of a member's sleep, for the others of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SleepNews {
    /// For how long the memory has been awake, 0 on its way to the device. `None`: the memory is
    /// parked.
    pub awake: Option<Duration>,
    /// For how long the process has made no call.
    pub idle: Duration,
    /// For how long the memory stays awake at least, unless nobody waits.
    pub awake_at_least: Duration,
    /// Bytes that the control groups around the process want back, although it has no cache to
    /// give.
    pub pressed: u64,
}

/// Why a member is to be parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum YieldCause {
    /// Another member waits for memory.
    Member,
    /// The control groups around the process want memory back.
    ControlGroup,
}

impl Group {
    /// Tells the other members about the sleep of the process, and returns why the process has to
    /// be parked now. `None`: it may stay awake. Called again and again by members that yield.
    pub fn yields(&self, news: SleepNews) -> Option<YieldCause> {
        match &self.0 {
            Standing::Member(member) => member.yields(news),
            Standing::Alone { .. } => None,
        }
    }

    /// Starts to wait for `bytes` more, or waits on for another number of bytes.
    /// [`end_wait`](Self::end_wait) ends the wait, and only then the next member is served.
    pub fn turn(&self, bytes: u64) -> Turn {
        match &self.0 {
            Standing::Member(member) => member.turn(bytes),
            Standing::Alone { .. } => Turn::Served,
        }
    }

    /// Ends a wait. Does nothing without one.
    pub fn end_wait(&self) {
        if let Standing::Member(member) = &self.0 {
            member.end_wait();
        }
    }
}

/// Subtracts bytes, and stops at 0.
fn subtract(held: &AtomicU64, bytes: u64) {
    let less = |held: u64| Some(held.saturating_sub(bytes));
    let before = held.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    debug_assert!(before.is_ok_and(|before| before >= bytes), "{bytes} bytes were given back of {before:?}");
}
