//! Tenants: the limits of tags, and what each tag holds.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::pool::{Tag, TagLimits, TagUse};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

view! {
    /// The tags of a device: a view of an [`Allocator`], returned by [`Allocator::tags`]. Pools get
    /// tags from [`Parking::tag_pool`](crate::Parking::tag_pool).
    Tags,
    /// Returns the tags of `device`.
    tags
}

impl<D: DeviceMemory, R: Lock, S: Storage> Tags<'_, D, R, S> {
    /// Sets the limits of all private pools with `tag` on the device, present and future; `None`
    /// removes the limits.
    ///
    /// * `max`: a request whose pool would have to grow beyond it has free memory of the tag given
    ///   back first. If that does not suffice, the request is refused, and memory of others stays.
    ///   A lower `max` gives nothing back by itself. Parked memory wakes in spite of it.
    /// * `low` and `weight`: where memory is short, free memory goes back from who holds the most
    ///   above `low`, divided by the weight. Memory without a limited tag has a `low` of 0 and a
    ///   weight of [`TagLimits::WEIGHT`]. `low` reserves nothing: it protects what the tag holds.
    /// * `clear`: pages are filled with zeroes, in the order of their stream, before another pool
    ///   can have them.
    ///
    /// Pools with limits give free memory back while they are in use, as no other private pools do,
    /// unless a graph was captured into them: for requests, for [`Allocator::trim`],
    /// [`Allocator::empty_cache`] and [`trim`](Self::trim), and, down to `low`, for `reclaim:auto`.
    /// Their free blocks serve no requests of other pools (`use_on_oom`).
    ///
    /// Threads: any. Device: not called.
    ///
    /// # Errors
    /// * [`Error::TableFull`].
    /// * [`Error::LimitsRefused`]: `weight` is 0, `low` is above `max`, or the device cannot fill
    ///   memory, as `clear` needs.
    pub fn limit(&self, tag: Tag, limits: Option<TagLimits>) -> Result<(), Error> {
        let device = self.begin("limit_tag");
        device.heaps.limit_tag(&device.driver, tag, limits)
    }

    /// Releases free memory of the private pools with `tag`, with or without users, until they hold
    /// at most `keep` bytes of the device together or none of their memory is free. Does not wait
    /// for pending frees. The limits of the tag play no part.
    ///
    /// Threads: any. Device: called. For expandable segments, waits for their stream.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`], and the errors of [`Allocator::trim`].
    /// * [`Error::GraphMemory`]: the pools hold more than `keep`, and a graph was captured into one
    ///   that has users. Its memory stays.
    pub fn trim(&self, tag: Tag, keep: u64) -> Result<(), Error> {
        self.begin("trim_tag").holdings().trim_tag(tag, keep)
    }

    /// Returns what the pools with `tag` hold on the device. The heaps are read in turn, so the
    /// sums may disagree slightly while threads allocate. Takes time for each heap of the tag, and
    /// none for blocks and segments.
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

    /// Returns the lowest tag above `after` on the device that a pool has or that has limits; the
    /// lowest of all for `None`. A program that calls this with each tag returned finds them all.
    ///
    /// Threads: any. Device: not called.
    pub fn next(&self, after: Option<Tag>) -> Option<Tag> {
        let registry = self.arena.heaps.registry.lock();
        let limited = registry.limited.iter().filter(|entry| entry.limits.is_some()).map(|entry| entry.tag);
        let limited = limited.filter(|&tag| Some(tag) > after).min();
        registry.next_tag(after).into_iter().chain(limited).min()
    }
}
