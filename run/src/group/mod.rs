//! A limit for one process, or for all processes of a group.
//!
//! A process reserves bytes before the driver's call that takes them, and gives the bytes back after
//! the driver's call that frees them. The sum of a group never exceeds its limit. A process that is
//! killed gives its share back at the next call of another that needs the share.
//!
//! ```text
//! file        the group's shared file: made, opened, left
//! watch       groups of a user, read by others
//! failure     why a process may not join, or not reserve
//! shares      how much each owner may take, and who gives back
//! layout      the words of the shared file
//! lock        a mutex that outlives its holder
//! ```

mod failure;
#[cfg(test)]
mod faults;
mod file;
mod layout;
mod lock;
#[cfg(test)]
mod processes;
mod shares;
#[cfg(test)]
mod tests;
pub mod watch;

pub use crate::shared::uuid::Uuid;
pub use failure::{GroupError, Holder, Refusal};
pub use lock::LockFault;

use crate::options::GroupOptions;
use crate::shared::folder;
use file::Membership;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The place of this process in a limit. All methods may be called from every thread, and none calls
/// the driver.
#[derive(Debug)]
pub struct Group(Kind);

#[derive(Debug)]
enum Kind {
    Alone { limit: Option<u64>, held: AtomicU64 },
    Member(Box<Membership>),
}

/// What a process may know about its limit. All figures are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The limit of the group, or the process's own `max` if that is less.
    pub limit: u64,
    /// Bytes of all processes of the group.
    pub held_by_all: u64,
    /// Bytes of this process.
    pub held_by_this: u64,
    /// Bytes that this process could reserve now.
    pub available: u64,
}

impl Group {
    /// A limit for this process alone, without a shared file.
    pub const fn alone(limit: Option<u64>) -> Self {
        Self(Kind::Alone { limit, held: AtomicU64::new(0) })
    }

    /// Joins the group of a name on a device, and creates the group if no living process is in it.
    /// The first process that names a limit gives the group its limit.
    ///
    /// # Errors
    /// The name or the terms are invalid, the shared file cannot be used, the group has another limit,
    /// the `low` bytes of all members would exceed the limit, or the group has no free place.
    pub fn join(options: &GroupOptions, limit: Option<u64>, device: Uuid) -> Result<Self, GroupError> {
        let folder = folder::of_user().map_err(GroupError::Folder)?;
        Self::join_in(&folder, options, limit, device)
    }

    /// Joins a group whose shared file lies in the given folder. See [`Self::join`].
    ///
    /// # Errors
    /// As of [`Self::join`].
    pub fn join_in(
        folder: &Path,
        options: &GroupOptions,
        limit: Option<u64>,
        device: Uuid,
    ) -> Result<Self, GroupError> {
        Membership::join(folder, options, limit, device).map(|member| Self(Kind::Member(Box::new(member))))
    }

    /// Counts bytes before the driver's call that takes them. A failed driver call needs
    /// [`Self::give_back`].
    ///
    /// Waits for other processes of the group for microseconds, and never for the device.
    ///
    /// # Errors
    /// The bytes do not fit, even with the shares of members that have died. The other members learn
    /// from [`Self::owed`] that this process was refused, until its next success or its end. The
    /// error is returned, too, in a forked child of the process that joined.
    pub fn reserve(&self, bytes: u64) -> Result<(), Refusal> {
        match &self.0 {
            Kind::Member(member) => member.reserve(bytes),
            Kind::Alone { limit, held } => {
                let most = limit.unwrap_or(u64::MAX);
                let fits = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= most);
                let taken = held.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
                taken.map(drop).map_err(|held| Refusal::alone(bytes, most, held))
            }
        }
    }

    /// Gives bytes back after the driver's call that freed them, or that did not take them. Never
    /// waits.
    pub fn give_back(&self, bytes: u64) {
        match &self.0 {
            Kind::Member(member) => member.give_back(bytes),
            Kind::Alone { held, .. } => subtract(held, bytes),
        }
    }

    /// Returns the figures for `cuMemGetInfo`. `None`: there is no limit.
    ///
    /// A member that died in the last 10 ms may be counted still.
    pub fn budget(&self) -> Option<Budget> {
        match &self.0 {
            Kind::Member(member) => member.budget(),
            Kind::Alone { limit, held } => limit.map(|limit| {
                let held = held.load(Ordering::Acquire);
                Budget { limit, held_by_all: held, held_by_this: held, available: limit.saturating_sub(held) }
            }),
        }
    }

    /// Returns the bytes that this process should give back now, since members of the group were
    /// refused and this process holds more than its share by weight. Never above what it holds.
    pub fn owed(&self) -> u64 {
        match &self.0 {
            Kind::Member(member) => member.owed(),
            Kind::Alone { .. } => 0,
        }
    }
}

/// Subtracts bytes, and at most what is there.
fn subtract(held: &AtomicU64, bytes: u64) {
    let less = |held: u64| Some(held.saturating_sub(bytes));
    let before = held.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    debug_assert!(before.is_ok_and(|before| before >= bytes), "{bytes} bytes were given back of {before:?}");
}
