//! Ordered sets of items as sorted lists, with a trie over a few of the items to find one's way by.
//!
//! ```text
//! list    first ─▶ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■ ⇄ ■     by key
//! posts                        │           │             a search begins at the last one below what it looks for
//! ```
//!
//! Most sets are small, and need no posts. To take an item out is to look for nothing, and its neighbours are at hand. A search
//! leaves a post wherever it has passed [`STRIDE`] items, so that none has to pass them again: what it passes beyond as many was added
//! since the last search came by, or lies behind a post that was taken out.
//!
//! The items themselves live elsewhere: every operation is told how to read their keys.

use crate::tables::radix_tree::{Key, Link, MAX_ITEM, RadixTree};
use crate::tables::slot_table::NONE;
use crate::tables::{Storage, Table};
use core::hint::select_unpredictable;

/// Items between posts: as many as are passed in about the time that it takes to find one's way by a trie. Half as many in tests, so
/// that small sets have posts there.
const STRIDE: usize = if cfg!(test) { 2 } else { 4 };

/// A set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct List {
    /// The item with the lowest key; `NONE` ⟺ the set is empty.
    first: u32,
    /// The posts, which are among the other items; [`NO_POSTS`] if none of those is one, and empty ⟺ there are no others.
    posts: Link,
}

/// No item has this number.
const NO_POSTS: Link = Link::item(MAX_ITEM);

impl List {
    pub(crate) const EMPTY: Self = Self { first: NONE, posts: Link::EMPTY };

    /// The set of one item.
    #[inline(always)]
    pub(crate) const fn of(item: u32) -> Self {
        Self { first: item, posts: Link::EMPTY }
    }

    /// The item with the lowest key.
    #[inline(always)]
    pub(crate) fn first(self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Root of the set of posts.
    fn posts(self) -> Link {
        if self.posts == NO_POSTS { Link::EMPTY } else { self.posts }
    }
}

/// An item that knows its neighbours.
pub(crate) trait Linked {
    /// What orders it among the others; no two items of a list have the same.
    fn key(&self) -> Key;

    /// The items before and after it, or [`NONE`].
    fn links(&self) -> (u32, u32);

    /// Changes the item before.
    fn set_before(&mut self, before: u32);

    /// Changes the item after.
    fn set_after(&mut self, after: u32);
}

/// The order of items.
fn key<T: Linked>(items: &[T]) -> impl Fn(u32) -> Key {
    |item| items[item as usize].key()
}

/// The posts of any number of lists, in which an item is at most once.
pub(crate) struct Lists<S: Storage> {
    trie: RadixTree<S>,
    /// Whether an item is a post of its list.
    is_post: S::Table<bool>,
}

impl<S: Storage> Default for Lists<S> {
    fn default() -> Self {
        Self { trie: RadixTree::default(), is_post: S::Table::<bool>::default() }
    }
}

impl<S: Storage> Lists<S> {
    /// Makes sure that the items below `count` fit, all of them.
    pub(crate) fn make_room_for(&mut self, count: u32) -> bool {
        let missing = (count as usize).saturating_sub(self.is_post.len());
        if !self.is_post.make_room(missing) || !self.trie.make_room_for(count) {
            return false;
        }
        (0..missing).for_each(|_| self.is_post.add(false));
        true
    }

    /// Adds an item to a list that is not empty.
    pub(crate) fn insert<T: Linked>(&mut self, list: &mut List, item: u32, items: &mut [T]) {
        // How many others there are cannot be predicted.
        list.posts = select_unpredictable(list.posts.is_empty(), NO_POSTS, list.posts);
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
        // There is no item `NONE`.
        if let Some(after) = items.get_mut(after as usize) {
            after.set_before(item);
        }
        items[item as usize].set_before(before);
        items[item as usize].set_after(after);
    }

    /// Removes an item from a list that holds others, too. What comes after it is the caller's to change.
    pub(crate) fn remove<T: Linked>(&mut self, list: &mut List, item: u32, items: &mut [T]) {
        let (before, after) = items[item as usize].links();
        self.unpost(list, item, items);
        if let Some(after) = items.get_mut(after as usize) {
            after.set_before(before);
        }
        if let Some(before) = items.get_mut(before as usize) {
            before.set_after(after);
        } else {
            list.first = after;
            self.unpost(list, after, items);
        }
        items[item as usize].set_before(NONE);
        let (_, second) = items[list.first as usize].links();
        list.posts = select_unpredictable(second == NONE, Link::EMPTY, list.posts);
    }

    /// The item with the lowest key that is at least `bound`.
    pub(crate) fn at_least<T: Linked>(&mut self, list: &mut List, bound: Key, items: &[T]) -> Option<u32> {
        let first = list.first()?;
        if !items[first as usize].key().is_below(bound) {
            return Some(first);
        }
        let before = self.seek(list, bound, items);
        Some(items[before as usize].links().1).filter(|&after| after != NONE)
    }

    /// The item with the highest key.
    pub(crate) fn last<T: Linked>(&self, list: List, items: &[T]) -> Option<u32> {
        let near = self.trie.last(list.posts()).or(list.first());
        let after = |&item: &u32| Some(items[item as usize].links().1).filter(|&after| after != NONE);
        core::iter::successors(near, after).last()
    }

    /// The last item below `bound`, which the first one is.
    fn seek<T: Linked>(&mut self, list: &mut List, bound: Key, items: &[T]) -> u32 {
        let posts = list.posts();
        let mut at = list.first;
        if !posts.is_empty() {
            at = self.trie.below(posts, bound, key(items)).unwrap_or(at);
        }
        loop {
            for _ in 0..STRIDE {
                let (_, after) = items[at as usize].links();
                match items.get(after as usize) {
                    Some(next) if next.key().is_below(bound) => at = after,
                    _ => return at,
                }
            }
            self.is_post[at as usize] = true;
            list.posts = self.trie.insert(list.posts(), at, key(items));
        }
    }

    /// If an item is a post, it is one no longer.
    #[inline(always)]
    fn unpost<T: Linked>(&mut self, list: &mut List, item: u32, items: &[T]) {
        if !list.posts().is_empty() && self.is_post[item as usize] {
            self.remove_post(list, item, items);
        }
    }

    #[cold]
    fn remove_post<T: Linked>(&mut self, list: &mut List, item: u32, items: &[T]) {
        self.is_post[item as usize] = false;
        let posts = self.trie.remove(list.posts, item, key(items));
        list.posts = if posts.is_empty() { NO_POSTS } else { posts };
    }

    /// The items of a list are in order and linked both ways, the posts are found, and there are `count` items at most. How many.
    pub(crate) fn check<T: Linked>(&self, list: List, count: u32, items: &[T]) -> Result<u32, &'static str> {
        let (mut seen, mut posts) = (0, 0);
        let (mut before, mut at) = (NONE, list.first);
        while let Some(item) = items.get(at as usize) {
            if item.links().0 != before || seen == count {
                return Err("a link back in a sorted list is wrong");
            }
            if items.get(before as usize).is_some_and(|before| !before.key().is_below(item.key())) {
                return Err("a sorted list is out of order");
            }
            let is_post = self.is_post[at as usize];
            let found = self.trie.at_least(list.posts(), item.key(), key(items)) == Some(at);
            if is_post != found || is_post && before == NONE {
                return Err("an item disagrees with the posts of its list about being one");
            }
            (seen, posts) = (seen + 1, posts + u32::from(is_post));
            (before, at) = (at, item.links().1);
        }
        if (posts == 0) != list.posts().is_empty() || (seen < 2) != list.posts.is_empty() {
            return Err("a sorted list has posts that are not its own, or others that it does not know of");
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

    /// So many items, each with a key of its own, and lists that have room for them.
    fn items(count: u32, minor: impl Fn(u64) -> u64) -> (Vec<Item>, Lists<Growable>) {
        let mut lists = Lists::default();
        assert!(lists.make_room_for(count));
        ((0..count).map(|item| Item { minor: minor(u64::from(item)), before: NONE, after: NONE }).collect(), lists)
    }

    proptest! {
        /// Two lists against two `BTreeSet`s: as many items as posts are needed for come, in every order, and go.
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

    /// However the items come, a search does not walk: among many it begins at a post.
    #[test]
    fn searches_leave_posts_behind() {
        for order in [|item| item, |item| 9_999 - item, |item| item * 7_777 % 10_000] {
            let (mut items, mut lists) = items(10_000, order);
            let mut list = List::of(0);
            (1..10_000).for_each(|item| lists.insert(&mut list, item, &mut items));
            assert_eq!(lists.at_least(&mut list, Key { major: 7, minor: 9_999 }, &items), lists.last(list, &items));
            let posts = lists.is_post.iter().filter(|is_post| **is_post).count();
            assert!((10_000 / 2 / STRIDE..=10_000).contains(&posts), "{posts} posts");
            assert_eq!(lists.check(list, 10_000, &items), Ok(10_000));
        }
    }
}
