//! Why a process may not join a group, or not reserve bytes.

use super::lock::LockFault;
use crate::shared::bytes::show;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a process could not join a group.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// The name is empty, too long, or has other characters than letters, digits, `.`, `_` and `-`.
    Name(String),
    /// `low` is above `max` or above the limit, or the weight is 0.
    Terms(String),
    /// The user's folder for shared files cannot be used.
    Folder(io::Error),
    /// The group's shared file cannot be used.
    File(PathBuf, io::Error),
    /// The group has another limit, in bytes. `None`: no limit, and more is held than the named
    /// limit.
    OtherLimit {
        /// The name of the group.
        group: String,
        /// The named limit.
        named: u64,
        /// The limit of the group.
        holds: Option<u64>,
    },
    /// The `low` bytes of all members would exceed the limit.
    Low {
        /// The name of the group.
        group: String,
        /// `low` of the caller.
        low: u64,
        /// The sum of `low` of all members but the caller.
        others: u64,
        /// The limit of the group.
        limit: u64,
    },
    /// The `low` bytes of the members exceed a limit that is to be set.
    LimitBelowLow {
        /// The name of the group.
        group: String,
        /// The limit that is to be set.
        limit: u64,
        /// The sum of `low` of all members.
        low: u64,
    },
    /// The group has no living member.
    Missing(String),
    /// The group has the greatest possible number of members.
    Full(String),
    /// The group's lock cannot be taken.
    Lock(String, LockFault),
}

impl std::error::Error for GroupError {}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "`{}` is no name of a group: use 1 to 64 letters, digits, `.`, `_` and `-`, and start with a letter or digit",
                name.escape_default()
            ),
            Self::Terms(text) => f.write_str(text),
            Self::Folder(error) => write!(f, "{error}"),
            Self::File(path, error) => write!(f, "the group's file {}: {error}", path.display()),
            Self::OtherLimit { group, named, holds: Some(holds) } => write!(
                f,
                "group `{group}` has a limit of {} ({holds} bytes), and this process names {} ({named} bytes): \
                 name the group's limit, or none",
                show(*holds),
                show(*named)
            ),
            Self::OtherLimit { group, named, holds: None } => write!(
                f,
                "group `{group}` has no limit, and holds more than the {} that this process names",
                show(*named)
            ),
            Self::Low { group, low, others, limit } => write!(
                f,
                "group `{group}` cannot keep {} for this process: of its limit of {}, {} are kept for others",
                show(*low),
                show(*limit),
                show(*others)
            ),
            Self::LimitBelowLow { group, limit, low } => write!(
                f,
                "group `{group}` keeps {} for its members (`low`), more than a limit of {}",
                show(*low),
                show(*limit)
            ),
            Self::Missing(group) => write!(f, "no process is in group `{group}`"),
            Self::Full(group) => write!(f, "group `{group}` has {} members, and no more", super::layout::OWNERS),
            Self::Lock(group, fault) => write!(f, "group `{group}`: {fault}"),
        }
    }
}

/// A member of a group, with the member's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// The program's name at the time of the join.
    pub program: String,
    /// Bytes held.
    pub held: u64,
    /// Bytes kept for the member, held or not.
    pub low: u64,
}

/// Why bytes could not be reserved. The text names the group, the limit, and who holds what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The refused bytes.
    pub bytes: u64,
    /// Bytes within the process's reach.
    pub available: u64,
    pub(super) reason: Reason,
}

/// The obstacle of a reservation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    Alone { limit: u64, held: u64 },
    Limit { group: String, limit: u64, holders: Vec<Holder> },
    Max { group: String, max: u64, held: u64 },
    Lock { group: String, fault: LockFault },
    Forked { group: String, parent: u32 },
    Gone { group: String, fault: String },
}

/// Greatest number of members in a text.
const MOST_NAMED: usize = 8;

impl Refusal {
    pub(super) fn alone(bytes: u64, limit: u64, held: u64) -> Self {
        Self { bytes, available: limit.saturating_sub(held), reason: Reason::Alone { limit, held } }
    }

    /// Returns the members of the group and their bytes, the greatest first. Empty if another thing
    /// than the group's limit was in the way.
    pub fn holders(&self) -> &[Holder] {
        match &self.reason {
            Reason::Limit { holders, .. } => holders,
            _ => &[],
        }
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = show(self.bytes);
        match &self.reason {
            Reason::Alone { limit, held } => {
                write!(
                    f,
                    "{bytes} more do not fit: this process holds {} of its limit of {}",
                    show(*held),
                    show(*limit)
                )
            }
            Reason::Max { group, max, held } => write!(
                f,
                "{bytes} more do not fit: this process holds {} of its `max` of {} in group `{group}`",
                show(*held),
                show(*max)
            ),
            Reason::Lock { group, fault } => write!(f, "{bytes} could not be reserved in group `{group}`: {fault}"),
            Reason::Gone { group, fault } => write!(
                f,
                "{bytes} could not be reserved in group `{group}`: its file was removed, and cannot be made again: {fault}"
            ),
            Reason::Forked { group, parent } => write!(
                f,
                "{bytes} could not be reserved: process {parent} joined group `{group}`, and this forked child did not"
            ),
            Reason::Limit { group, limit, holders } => {
                let sum = holders.iter().fold(0_u64, |sum, holder| sum.saturating_add(holder.held));
                let limit = show(*limit);
                write!(f, "{bytes} more do not fit: group `{group}` holds {} of its limit of {limit}", show(sum))?;
                for (at, holder) in holders.iter().take(MOST_NAMED).enumerate() {
                    let Holder { pid, program, held, low } = holder;
                    let mark = if at == 0 { ':' } else { ',' };
                    write!(f, "{mark} {} by process {pid} ({program})", show(*held))?;
                    if low > held {
                        write!(f, ", for which {} more are kept", show(low - held))?;
                    }
                }
                let rest = holders.get(MOST_NAMED..).unwrap_or_default();
                if !rest.is_empty() {
                    let sum = rest.iter().fold(0_u64, |sum, holder| sum.saturating_add(holder.held));
                    write!(f, ", {} by {} other processes", show(sum), rest.len())?;
                }
                Ok(())
            }
        }
    }
}
