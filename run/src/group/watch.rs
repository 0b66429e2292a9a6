//! The groups of a user, read without taking part.

use super::Uuid;
use super::file::PREFIX;
use super::layout::{FORM, Limits, MAGIC};
use super::table::{MappedTable, remove_without_members};
use crate::shared::folder::user;
use cachalot_core::shares::{Figures, NONE};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

/// A group, as read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GroupView {
    /// The user of the group, where groups of all users are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The name of the group.
    pub name: String,
    /// The identity of the device, as printed by `nvidia-smi`.
    pub device: String,
    /// The same.
    #[serde(skip)]
    pub uuid: Uuid,
    /// Greatest number of bytes of all members together. `None`: no limit.
    pub limit: Option<u64>,
    /// The limit that members name: the limit, until it is set while the group is in use.
    #[serde(skip)]
    pub named: Option<u64>,
    /// The living members, in the order of their places.
    pub members: Vec<MemberView>,
}

/// A member of a group, as read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemberView {
    /// The process id, as the member's container has it. Where groups of all users are read, the
    /// reader's id of the process.
    pub pid: u32,
    /// The namespace of process ids, if it is not the reader's: a container. 0 if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<u64>,
    /// The program's name at the time of the join.
    pub program: String,
    /// Bytes held.
    pub held: u64,
    /// Bytes kept for the member.
    pub low: u64,
    /// Greatest number of bytes of the member. `None`: the group's limit.
    pub max: Option<u64>,
    /// The member's share relative to the weights of all members.
    pub weight: u64,
    /// Bytes of the last refused reservation, or 0.
    pub want: u64,
}

/// Reads all groups with a living member whose files are in a folder, in the order of their names.
/// A file of another kind or version is left out, and one without a living member is removed.
///
/// # Errors
/// The folder cannot be read.
pub fn groups(folder: &Path) -> io::Result<Vec<GroupView>> {
    in_folder(folder, user(), remove_without_members)
}

/// Reads all groups of a user with a living member, and removes nothing. See [`groups`].
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn groups_of(folder: &Path, user: u32) -> io::Result<Vec<GroupView>> {
    in_folder(folder, user, |_| {})
}

/// Reads the groups of a user. `clear` gets the path of each file without a living member.
fn in_folder(folder: &Path, user: u32, clear: impl Fn(&Path)) -> io::Result<Vec<GroupView>> {
    let mut groups = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        // A file may be removed meanwhile.
        match read(&entry.path(), rest, user) {
            Ok(Some(group)) => groups.push(group),
            Ok(None) => clear(&entry.path()),
            Err(_) => {}
        }
    }
    groups.sort_by(|one, other| (&one.name, &one.device).cmp(&(&other.name, &other.device)));
    Ok(groups)
}

/// Reads the group of a file. `None`: the file is of another version, or no member lives.
fn read(path: &Path, rest: &str, user: u32) -> io::Result<Option<GroupView>> {
    let file = MappedTable::to_read(path, user)?;
    let state = &file.state;
    let is_form = state.magic.load(Ordering::Acquire) == MAGIC && state.form.load(Ordering::Relaxed) == FORM;
    let uuid = Uuid::of_words([0, 1].map(|at| state.uuid[at].load(Ordering::Relaxed)));
    let device = uuid.to_string();
    let Some(name) = rest.strip_suffix(&device).and_then(|rest| rest.strip_suffix('-')) else { return Ok(None) };
    if !is_form {
        return Ok(None);
    }
    let members = state.owned().filter(|&at| file.counts(at)).filter_map(|at| {
        let entry = &state.entries[at];
        let owner = entry.owner()?;
        let Figures { held, low, max, weight, want } = entry.figures();
        let max = Some(max).filter(|&max| max != NONE);
        let namespace = entry.namespace.load(Ordering::Relaxed);
        let container = Some(namespace).filter(|&at| at != file.namespace || at == 0);
        Some(MemberView { pid: owner.pid, container, program: entry.program(), held, low, max, weight, want })
    });
    let members: Vec<_> = members.collect();
    let Limits { now: limit, named } = state.limits();
    Ok((!members.is_empty()).then(|| GroupView {
        user: None,
        name: name.to_owned(),
        device,
        uuid,
        limit,
        named,
        members,
    }))
}
