//! What NVML is to say of a device's memory, so that it says the limit.

use super::{Charge, DeviceCharge};
use crate::group::Budget;
use crate::group::watch::{GroupView, groups};
use crate::shared::folder::of_user;
use std::sync::{Arc, PoisonError};

impl Charge {
    /// Returns the total and the free bytes of a device within the limit. `uuid`: the device's
    /// identity, as NVML prints it. `total`, `free`: the device's own figures. `None` without a
    /// limit.
    ///
    /// Free is what the limit has left, as far as the device has it. What a process has in its
    /// cache counts as used, as it does for the driver. A device that the process does not use
    /// counts what the rest of the group holds there, and the group is not joined.
    pub fn within(&self, uuid: &str, total: u64, free: u64) -> Option<[u64; 2]> {
        let budget = match self.known(uuid) {
            Some(charge) => charge.budget(),
            None => self.before_the_first_use(uuid),
        };
        budget.map(|Budget { limit, available, .. }| [total.min(limit), free.min(available).min(limit)])
    }

    /// Returns the charge of a device in use.
    fn known(&self, uuid: &str) -> Option<Arc<DeviceCharge>> {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let found = devices.iter().find(|(_, charge)| is_same(&charge.joining.uuid.to_string(), uuid));
        found.map(|(_, charge)| Arc::clone(charge))
    }

    /// Returns the figures that the process would have on a device if it started to use it now.
    fn before_the_first_use(&self, uuid: &str) -> Option<Budget> {
        let named = self.options.group.as_ref();
        let group = named.and_then(|named| {
            let all = of_user().and_then(|folder| groups(&folder)).unwrap_or_default();
            all.into_iter().find(|group| group.name == named.name && is_same(&group.device, uuid))
        });
        let most = named.and_then(|named| named.max);
        let own = group.as_ref().map_or(self.options.limit, |group| group.limit);
        let limit = own.into_iter().chain(most).min()?;
        let held_by_all = group.as_ref().map_or(0, |group| group.members.iter().map(|member| member.held).sum());
        let rest = own.map_or(u64::MAX, |own| own.saturating_sub(group.as_ref().map_or(0, taken)));
        Some(Budget { limit, held_by_all, held_by_this: 0, available: rest.min(limit) })
    }
}

/// Returns what nobody outside can take of a group: what members hold, or what is kept for them.
fn taken(group: &GroupView) -> u64 {
    group.members.iter().map(|member| member.held.max(member.low)).sum()
}

/// Returns whether two texts name one device. The driver's identity of an instance is the one that
/// NVML prints after `MIG-`.
fn is_same(one: &str, other: &str) -> bool {
    let bare = |text: &str| text.split_once('-').map(|(_, bare)| bare.to_owned());
    bare(one).is_some() && bare(one) == bare(other)
}
