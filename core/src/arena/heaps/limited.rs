//! The tags with limits. They are found by a hash of the tag, however many there are.

use crate::pool::{Tag, TagLimits};
use crate::sync::impl_empty;
use crate::tables::hash_index::{HashIndex, Indexed};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage, Table};
use core::ops::{Deref, DerefMut};

/// A tag with limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagEntry {
    pub tag: Tag,
    /// The limits. `None` ⟺ the entry is vacant.
    pub limits: Option<TagLimits>,
    /// Bytes of growth in progress. They are in no heap yet, or have just been added to one.
    pub growing: u64,
    /// Bytes that are about to go back. They are still in a heap, or have just left it.
    pub giving: u64,
    /// The number of requests refused because of `max`.
    pub refusals: u64,
    /// The bytes that went back because of the limits of a tag.
    pub given: u64,
    /// The next entry with the same hash of the tag.
    next: u32,
}

impl TagEntry {
    /// Creates an entry without counts.
    const fn new(tag: Tag, limits: Option<TagLimits>) -> Self {
        Self { tag, limits, growing: 0, giving: 0, refusals: 0, given: 0, next: NONE }
    }
}

impl Indexed for TagEntry {
    fn key(&self) -> u64 {
        self.tag.0.get()
    }

    fn chain(&self) -> u32 {
        self.next
    }

    fn set_chain(&mut self, next: u32) {
        self.next = next;
    }
}

/// The entries of tags with limits, including vacant ones. They are read only when a heap grows or
/// memory is short.
#[derive(Clone)]
pub(crate) struct LimitedTags<S: Storage> {
    entries: S::Table<TagEntry>,
    /// Every entry by its tag, including vacant ones.
    by_tag: HashIndex<S>,
    /// All entries before this one have limits.
    first_vacant: usize,
}

impl_empty! { [S: Storage] LimitedTags<S> { entries, by_tag, first_vacant } }

impl<S: Storage> Deref for LimitedTags<S> {
    type Target = [TagEntry];

    fn deref(&self) -> &[TagEntry] {
        &self.entries
    }
}

/// The caller changes only counts, not tags or limits.
impl<S: Storage> DerefMut for LimitedTags<S> {
    fn deref_mut(&mut self) -> &mut [TagEntry] {
        &mut self.entries
    }
}

impl<S: Storage> LimitedTags<S> {
    /// Returns the place of a tag's entry, even if the tag has no limits any more.
    pub(crate) fn find(&self, tag: Tag) -> Option<usize> {
        self.by_tag.find(tag.0.get(), &self.entries).map(|at| at as usize)
    }

    /// Returns the place of a tag's entry, if the tag has limits.
    pub(crate) fn with_limits(&self, tag: Tag) -> Option<usize> {
        self.find(tag).filter(|&at| self.entries[at].limits.is_some())
    }

    /// Returns the first vacant entry without a growth in progress.
    fn vacant(&mut self) -> Option<usize> {
        while self.entries.get(self.first_vacant).is_some_and(|entry| entry.limits.is_some()) {
            self.first_vacant += 1;
        }
        let is_unused = |entry: &TagEntry| entry.limits.is_none() && (entry.growing, entry.giving) == (0, 0);
        let found = self.entries[self.first_vacant..].iter().position(is_unused)?;
        Some(self.first_vacant + found)
    }

    /// Sets or removes the limits of a tag.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full.
    pub(crate) fn set(&mut self, tag: Tag, limits: Option<TagLimits>) -> Result<(), CapacityError> {
        // The tag's own entry is used again, with its counts, even while a growth that started
        // under earlier limits is in progress. Another tag takes only an entry without growth.
        if let Some(own) = self.find(tag) {
            self.entries[own].limits = limits;
            if limits.is_none() {
                self.first_vacant = self.first_vacant.min(own);
            }
            return Ok(());
        }
        if limits.is_none() {
            return Ok(());
        }
        let vacant = self.vacant();
        if let Some(at) = vacant {
            let former = self.entries[at].tag;
            self.by_tag.take(former.0.get(), &mut self.entries);
            self.entries[at] = TagEntry::new(tag, limits);
        } else if self.entries.make_room(1) && self.by_tag.make_room(&mut self.entries) {
            self.entries.add(TagEntry::new(tag, limits));
        } else {
            return Err(CapacityError);
        }
        let at = vacant.unwrap_or(self.entries.len() - 1);
        self.by_tag.insert(at as u32, &mut self.entries);
        Ok(())
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::{Fixed, Growable};
    use core::num::NonZeroU64;
    use std::collections::BTreeMap;

    fn tag(number: u64) -> Tag {
        Tag(NonZeroU64::new(number).unwrap())
    }

    const fn low(bytes: u64) -> TagLimits {
        TagLimits { low: bytes, ..TagLimits::NONE }
    }

    #[test]
    fn every_tag_is_found_by_one_look_after_any_changes() {
        let (mut tags, mut model) = (LimitedTags::<Growable>::default(), BTreeMap::new());
        let mut seed = 1_u64;
        for step in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (number, limits) = (1 + (seed >> 40) % 3000, if seed >> 63 == 0 { Some(low(step)) } else { None });
            tags.set(tag(number), limits).unwrap();
            model.insert(number, limits);
            let at = tags.with_limits(tag(number));
            assert_eq!(at.map(|at| tags[at].limits), limits.map(Some), "step {step}");
        }
        for (&number, &limits) in &model {
            let found = tags.with_limits(tag(number)).map(|at| (tags[at].tag, tags[at].limits));
            assert_eq!(found, limits.map(|limits| (tag(number), Some(limits))));
        }
        assert_eq!(tags.by_tag.count(&tags.entries) as usize, tags.len(), "each entry is in the index once");
        assert!(tags.len() <= model.len(), "a vacant entry serves another tag");
    }

    #[test]
    fn a_full_table_of_tags_refuses_one_more_and_keeps_the_others() {
        let mut tags = LimitedTags::<Fixed<1, 8, 4, 64>>::default();
        let fit = (1..1000).take_while(|&number| tags.set(tag(number), Some(low(number))).is_ok()).count() as u64;
        assert!((1..999).contains(&fit));
        assert!((1..=fit).all(|number| tags.with_limits(tag(number)).is_some()));
        tags.set(tag(1), None).unwrap();
        tags.set(tag(fit + 1), Some(low(7))).unwrap();
        assert_eq!((tags.find(tag(1)), tags.with_limits(tag(fit + 1))), (None, Some(0)));
    }
}
