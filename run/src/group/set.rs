//! The limit of a group, set from outside while its members run.

use super::failure::GroupError;
use super::file::path_of;
use super::table::MappedTable;
use super::{Uuid, watch};
use crate::shared::process::Identity;
use cachalot_core::shares::NONE;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Sets the limit of a group on a device, in bytes. `None`: no limit.
///
/// From then on no reservation exceeds the limit. A limit below what the members hold takes nothing
/// away from them: they get nothing more, and give free memory of their caches back.
///
/// # Errors
/// The group has no living member on the device, the `low` bytes of its members exceed the limit,
/// or its file cannot be used.
pub fn set_limit(folder: &Path, group: &str, device: Uuid, limit: Option<u64>) -> Result<(), GroupError> {
    let missing = || GroupError::Missing(group.to_owned());
    let path = path_of(folder, group, device)?;
    let in_file = |error| GroupError::File(path.clone(), error);
    let table = MappedTable::open(&path, device, false).map_err(in_file)?.ok_or_else(missing)?;
    let caller = Identity::of_caller().map_err(in_file)?;
    let number = table.number(caller).map_err(in_file)?.ok_or_else(|| GroupError::Full(group.to_owned()))?;
    let held = table.lock_first(number).map_err(|fault| GroupError::Lock(group.to_owned(), fault))?;
    table.sweep(number, &held);
    let state = &table.state;
    if state.gone.load(Ordering::Relaxed) != 0 || state.owned().next().is_none() || table.is_removed() {
        return Err(missing());
    }
    let low = state.owned().map(|at| state.entries[at].figures().low).fold(0_u64, u64::saturating_add);
    if let Some(limit) = limit.filter(|&limit| low > limit) {
        return Err(GroupError::LimitBelowLow { group: group.to_owned(), limit, low });
    }
    state.limit.store(limit.unwrap_or(NONE), Ordering::Relaxed);
    drop(held);
    Ok(())
}

/// Sets the limit of a group on every device on which it has members. Returns the group on each, as
/// it is then. See [`set_limit`].
///
/// # Errors
/// As of [`set_limit`], of the first device that refuses.
pub fn set_limits(
    folder: &Path,
    group: &str,
    is_meant: impl Fn(&str) -> bool,
    limit: Option<u64>,
) -> Result<Vec<watch::GroupView>, GroupError> {
    let of_group = || -> Result<Vec<watch::GroupView>, GroupError> {
        let mut groups = watch::groups(folder).map_err(GroupError::Folder)?;
        groups.retain(|found| found.name == group && is_meant(&found.device));
        Ok(groups)
    };
    let found = of_group()?;
    if found.is_empty() {
        return Err(GroupError::Missing(group.to_owned()));
    }
    for on_device in &found {
        set_limit(folder, group, on_device.uuid, limit)?;
    }
    of_group()
}
