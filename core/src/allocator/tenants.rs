//! Tenants: the limits of tags, and how much memory each tag holds.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::pool::{Tag, TagLimits, TagUse};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

view! {
    /// The tags of a device: a view of an [`Allocator`], returned by [`Allocator::tags`].
    /// [`Parking::tag_pool`](crate::Parking::tag_pool) gives tags to pools.
    Tags,
    /// Returns the tags of `device`.
    tags
}

impl<D: DeviceMemory, R: Lock, S: Storage> Tags<'_, D, R, S> {
    /// Sets the limits of all private pools with `tag` on the device, present and future. `None`
    /// removes the limits.
    ///
    /// * `max`: if a pool would have to grow beyond it for a request, free memory of the tag is
    ///   given back first. If that is not enough, the request is refused, and the memory of others
    ///   is not touched. A lower `max` gives nothing back by itself, and parked memory wakes in
    ///   spite of it.
    /// * `low` and `weight`: if memory is short, free memory is given back from whoever holds the
    ///   most above `low`, divided by the weight. Memory without a limited tag has a `low` of 0 and
    ///   a weight of [`TagLimits::WEIGHT`]. `low` reserves nothing: it protects what the tag
    ///   already holds.
    /// * `clear`: pages are filled with zeroes, in the order of their stream, before another pool
    ///   can use them.
    ///
    /// Unlike other private pools, pools with limits give free memory back while they are in use,
    /// unless a graph was captured into them: for requests, for [`Allocator::trim`],
    /// [`Allocator::empty_cache`] and [`trim`](Self::trim), and, down to `low`, for `reclaim:auto`.
    /// Their free blocks serve no requests of other pools (`use_on_oom`).
    ///
    /// Threads: any. Device: not called.
    ///
    /// # Errors
    /// * [`Error::TableFull`].
    /// * [`Error::LimitsRefused`]: `weight` is 0, `low` is above `max`, or the device cannot fill
    ///   memory, which `clear` needs.
    pub fn limit(&self, tag: Tag, limits: Option<TagLimits>) -> Result<(), Error> {
        let device = self.begin("limit_tag");
        device.heaps.limit_tag(&device.driver, tag, limits)
    }

    /// Releases free memory of the private pools with `tag`, with or without users, until together
    /// they hold at most `keep` bytes of the device or have no free memory. Does not wait for
    /// pending frees. The limits of the tag do not matter.
    ///
    /// Threads: any. Device: called. For expandable segments, waits for their stream.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`], and the errors of [`Allocator::trim`].
    /// * [`Error::GraphMemory`]: the pools hold more than `keep`, and a graph was captured into one
    ///   that has users. Its memory is kept.
    pub fn trim(&self, tag: Tag, keep: u64) -> Result<(), Error> {
        self.begin("trim_tag").holdings().trim_tag(tag, keep)
    }

    /// Returns how much the pools with `tag` hold on the device. The heaps are read in turn, so the
    /// sums may disagree slightly while threads allocate. The time depends on the number of heaps
    /// of the tag, not on that of blocks and segments.
    ///
    /// Threads: any. Device: not called.
    ///
    /// # Errors
    /// [`Error::UnknownTag`]: no pool has the tag, and it has no limits.
    pub fn held(&self, tag: Tag) -> Result<TagUse, Error> {
        let heaps = &self.arena.heaps;
        let registry = heaps.registry.lock();
        let is_known = registry.next_tagged(0, tag).is_some() || registry.limited_tag(tag).is_some();
        if is_known { Ok(heaps.tag_use(&registry, tag)) } else { Err(Error::UnknownTag(tag)) }
    }

    /// Returns the lowest tag above `after` on the device that a pool has or that has limits, or
    /// the lowest of all for `None`. A program finds all tags by calling this with each tag that it
    /// returned.
    ///
    /// Threads: any. Device: not called.
    pub fn next(&self, after: Option<Tag>) -> Option<Tag> {
        let registry = self.arena.heaps.registry.lock();
        let limited = registry.limited.iter().filter(|entry| entry.limits.is_some()).map(|entry| entry.tag);
        let limited = limited.filter(|&tag| Some(tag) > after).min();
        registry.next_tag(after).into_iter().chain(limited).min()
    }
}
