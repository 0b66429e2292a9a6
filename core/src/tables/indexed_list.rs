//! Ordered sets as sorted lists, with skip pointers to a few of the items.
//!
//! ```text
//! list            first ─▶ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■     by key
//! skip pointers                        │           │             a search starts at the last one below its bound
//! ```
//!
//! Most sets are small and have no skip pointers. A removal needs no search, because the item knows
//! its neighbours. A search adds a skip pointer whenever it has walked over [`STRIDE`] items, so
//! that later searches do not walk over them again. A search only walks farther over items that
//! were added since the last search, or that come after a skip pointer that was removed.
//!
//! The items belong to the caller, who passes the table of all items to every operation.

use crate::sync::impl_empty;
use crate::tables::radix_tree::{Key, Link, MAX_ITEM, RadixTree};
use crate::tables::slot_table::NONE;
use crate::tables::{Storage, Table};
use core::hint::select_unpredictable;

/// The number of items between skip pointers. Walking over four items takes about as long as a
/// search of the radix tree. Tests use two, so that small sets have skip pointers.
const STRIDE: usize = if cfg!(test) { 2 } else { 4 };

/// An ordered set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct List {
    /// The item with the lowest key; `NONE` ⟺ the set is empty.
    first: u32,
    /// The radix tree of the skip pointers. `first` is never one of them. [`Link::EMPTY`] ⟺ the set
    /// has at most one item. [`NO_SKIPS`] ⟺ it has several items but no skip pointers.
    skips: Link,
}

/// Marks a set that has several items but no skip pointers. No item has this number.
const NO_SKIPS: Link = Link::item(MAX_ITEM);

impl List {
    /// The set without items.
    pub(crate) const EMPTY: Self = Self { first: NONE, skips: Link::EMPTY };

    /// Returns the set with the single item `item`.
    #[inline(always)]
    pub(crate) const fn of(item: u32) -> Self {
        Self { first: item, skips: Link::EMPTY }
    }

    /// Returns the item with the lowest key.
    #[inline(always)]
    pub(crate) fn first(self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Returns whether the set has several items.
    #[inline(always)]
    pub(crate) fn has_several(self) -> bool {
        !self.skips.is_empty()
    }

    /// Returns the root of the tree of skip pointers.
    fn skips(self) -> Link {
        if self.skips == NO_SKIPS { Link::EMPTY } else { self.skips }
    }
}

/// An item of a list, with links to both neighbours.
pub(crate) trait Linked {
    /// Returns the sort key. No two items of a list have the same key.
    fn key(&self) -> Key;

    /// Returns the items before and after this one, or [`NONE`] at the ends of the list.
    fn links(&self) -> (u32, u32);

    /// Sets the item before this one.
    fn set_before(&mut self, before: u32);

    /// Sets the item after this one.
    fn set_after(&mut self, after: u32);
}

/// Returns a function that reads an item's key.
fn key<T: Linked>(items: &[T]) -> impl Fn(u32) -> Key {
    |item| items[item as usize].key()
}

/// The skip pointers of any number of lists. An item is in at most one list.
#[derive(Clone)]
pub(crate) struct Lists<S: Storage> {
    /// The nodes of all lists' trees of skip pointers.
    tree: RadixTree<S>,
    /// Whether each item has a skip pointer. This saves a search of the tree in every removal.
    is_skip: S::Table<bool>,
}

impl_empty! { [S: Storage] Lists<S> { tree, is_skip } }

impl<S: Storage> Lists<S> {
    /// Makes room for the items 0 to `count − 1`. Returns false if they do not fit.
    pub(crate) fn make_room_for(&mut self, count: u32) -> bool {
        let missing = (count as usize).saturating_sub(self.is_skip.len());
        if !self.is_skip.make_room(missing) || !self.tree.make_room_for(count) {
            return false;
        }
        (0..missing).for_each(|_| self.is_skip.add(false));
        true
    }

    /// Adds an item to a list that has at least one item. The caller has made room.
    pub(crate) fn insert<T: Linked>(&mut self, list: &mut List, item: u32, items: &mut [T]) {
        // The list has several items from now on. Whether it had several before is not predictable,
        // so this uses no branch.
        list.skips = select_unpredictable(list.skips.is_empty(), NO_SKIPS, list.skips);
        let (new, first) = (items[item as usize].key(), list.first);
        let (before, after) = if new.is_below(items[first as usize].key()) {
            list.first = item;
            (NONE, first)
        } else {
            let before = self.seek(list, new, items);
            let (_, after) = items[before as usize].links();
            items[before as usize].set_after(item);
            (before, after)
        };
        // The bounds check replaces a comparison with `NONE`: no table has that many items.
        if let Some(after) = items.get_mut(after as usize) {
            after.set_before(item);
        }
        items[item as usize].set_before(before);
        items[item as usize].set_after(after);
    }

    /// Removes an item from a list of several items. The item's link to the next item is left
    /// unchanged; the caller overwrites it.
    pub(crate) fn remove<T: Linked>(&mut self, list: &mut List, item: u32, items: &mut [T]) {
        let (before, after) = items[item as usize].links();
        self.drop_skip(list, item, items);
        if let Some(after) = items.get_mut(after as usize) {
            after.set_before(before);
        }
        if let Some(before) = items.get_mut(before as usize) {
            before.set_after(after);
        } else {
            list.first = after;
            // The next item becomes the first, and the first item never has a skip pointer.
            self.drop_skip(list, after, items);
        }
        items[item as usize].set_before(NONE);
        // Whether one or several items are left is not predictable, so this uses no branch.
        let (_, second) = items[list.first as usize].links();
        list.skips = select_unpredictable(second == NONE, Link::EMPTY, list.skips);
    }

    /// Returns the item with the lowest key that is at least `bound`.
    pub(crate) fn at_least<T: Linked>(&mut self, list: &mut List, bound: Key, items: &[T]) -> Option<u32> {
        let first = list.first()?;
        // `seek` requires that the first item is below `bound`.
        if !items[first as usize].key().is_below(bound) {
            return Some(first);
        }
        let before = self.seek(list, bound, items);
        Some(items[before as usize].links().1).filter(|&after| after != NONE)
    }

    /// Returns the item with the highest key.
    pub(crate) fn last<T: Linked>(&self, list: List, items: &[T]) -> Option<u32> {
        // Only a few items come after the last skip pointer, so walk from there.
        let near = self.tree.last(list.skips()).or(list.first());
        let after = |&item: &u32| Some(items[item as usize].links().1).filter(|&after| after != NONE);
        core::iter::successors(near, after).last()
    }

    /// Returns the last item below `bound`. The first item must be below `bound`.
    fn seek<T: Linked>(&mut self, list: &mut List, bound: Key, items: &[T]) -> u32 {
        let skips = list.skips();
        let mut at = list.first;
        if !skips.is_empty() {
            at = self.tree.below(skips, bound, key(items)).unwrap_or(at);
        }
        loop {
            for _ in 0..STRIDE {
                let (_, after) = items[at as usize].links();
                match items.get(after as usize) {
                    Some(next) if next.key().is_below(bound) => at = after,
                    _ => return at,
                }
            }
            // `STRIDE` items had no skip pointer: add one here for later searches.
            self.is_skip[at as usize] = true;
            list.skips = self.tree.insert(list.skips(), at, key(items));
        }
    }

    /// Removes the skip pointer of `item`, if there is one.
    #[inline(always)]
    fn drop_skip<T: Linked>(&mut self, list: &mut List, item: u32, items: &[T]) {
        if !list.skips().is_empty() && self.is_skip[item as usize] {
            self.remove_skip(list, item, items);
        }
    }

    /// Removes the skip pointer of `item`. Cold: few items have a skip pointer.
    #[cold]
    fn remove_skip<T: Linked>(&mut self, list: &mut List, item: u32, items: &[T]) {
        self.is_skip[item as usize] = false;
        let skips = self.tree.remove(list.skips, item, key(items));
        list.skips = if skips.is_empty() { NO_SKIPS } else { skips };
    }

    /// Checks that the items are in order and linked both ways, that every skip pointer can be
    /// found, and that there are at most `count` items. Returns the number of items.
    pub(crate) fn check<T: Linked>(&self, list: List, count: u32, items: &[T]) -> Result<u32, &'static str> {
        let (mut seen, mut skips) = (0, 0);
        let (mut before, mut at) = (NONE, list.first);
        while let Some(item) = items.get(at as usize) {
            if item.links().0 != before || seen == count {
                return Err("a link back in a sorted list is wrong");
            }
            if items.get(before as usize).is_some_and(|before| !before.key().is_below(item.key())) {
                return Err("a sorted list is out of order");
            }
            let is_skip = self.is_skip[at as usize];
            let found = self.tree.at_least(list.skips(), item.key(), key(items)) == Some(at);
            if is_skip != found || is_skip && before == NONE {
                return Err("an item is marked as a skip pointer and not in the tree, or the reverse");
            }
            (seen, skips) = (seen + 1, skips + u32::from(is_skip));
            (before, at) = (at, item.links().1);
        }
        if (skips == 0) != list.skips().is_empty() || (seen < 2) != list.skips.is_empty() {
            return Err("the skip pointers of a sorted list do not match the list");
        }
        Ok(seen)
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::Growable;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    struct Item {
        minor: u64,
        before: u32,
        after: u32,
    }

    impl Linked for Item {
        fn key(&self) -> Key {
            Key { major: 7, minor: self.minor }
        }

        fn links(&self) -> (u32, u32) {
            (self.before, self.after)
        }

        fn set_before(&mut self, before: u32) {
            self.before = before;
        }

        fn set_after(&mut self, after: u32) {
            self.after = after;
        }
    }

    /// Returns `count` items with different keys, and lists that have room for them.
    fn items(count: u32, minor: impl Fn(u64) -> u64) -> (Vec<Item>, Lists<Growable>) {
        let mut lists = Lists::default();
        assert!(lists.make_room_for(count));
        ((0..count).map(|item| Item { minor: minor(u64::from(item)), before: NONE, after: NONE }).collect(), lists)
    }

    proptest! {
        /// Compares two lists with two `BTreeSet`s. Items are added in any order, enough for skip
        /// pointers, and removed again.
        #[test]
        fn agrees_with_ordered_sets(steps in prop::collection::vec((0_u32..200, any::<bool>()), 1..600)) {
            let (mut items, mut lists) = items(200, |item| item * 77 % 200 * 2);
            let (mut sets, mut models) = ([List::EMPTY; 2], [BTreeSet::new(), BTreeSet::new()]);
            for (item, add) in steps {
                let which = item as usize % 2;
                let (list, model) = (&mut sets[which], &mut models[which]);
                let entry = (items[item as usize].minor, item);
                if model.remove(&entry) {
                    if *list == List::of(item) {
                        *list = List::EMPTY;
                    } else {
                        lists.remove(list, item, &mut items);
                    }
                } else if add && model.is_empty() {
                    model.insert(entry);
                    *list = List::of(item);
                    (items[item as usize].before, items[item as usize].after) = (NONE, NONE);
                } else if add {
                    model.insert(entry);
                    lists.insert(list, item, &mut items);
                }
                prop_assert_eq!(lists.check(*list, 200, &items), Ok(model.len() as u32));
                prop_assert_eq!(list.first(), model.first().map(|&(_, item)| item));
                prop_assert_eq!(lists.last(*list, &items), model.last().map(|&(_, item)| item));
                for minor in [entry.0, entry.0 + 1] {
                    let found = model.range((minor, 0)..).next().map(|&(_, item)| item);
                    prop_assert_eq!(lists.at_least(list, Key { major: 7, minor }, &items), found);
                }
            }
        }
    }

    /// In every order of insertion, a search leaves skip pointers, and later searches walk over few
    /// items.
    #[test]
    fn searches_leave_skip_pointers() {
        for order in [|item| item, |item| 9_999 - item, |item| item * 7_777 % 10_000] {
            let (mut items, mut lists) = items(10_000, order);
            let mut list = List::of(0);
            (1..10_000).for_each(|item| lists.insert(&mut list, item, &mut items));
            assert_eq!(lists.at_least(&mut list, Key { major: 7, minor: 9_999 }, &items), lists.last(list, &items));
            let skips = lists.is_skip.iter().filter(|is_skip| **is_skip).count();
            assert!((10_000 / 2 / STRIDE..=10_000).contains(&skips), "{skips} skip pointers");
            assert_eq!(lists.check(list, 10_000, &items), Ok(10_000));
        }
    }
}
