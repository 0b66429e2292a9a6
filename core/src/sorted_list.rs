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

use crate::slab::NONE;
use crate::storage::{Storage, Table};
use crate::trie::{Key, Link, MAX_ITEM, Trie};
use core::hint::select_unpredictable;

/// Items between posts: about as many as are passed in the time that it takes to find one's way by a trie. Few in tests, so that small
/// sets have posts there.
const STRIDE: usize = if cfg!(test) { 2 } else { 8 };

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

/// What an item has beside its key.
#[derive(Clone, Copy)]
struct Links {
    /// The items before and after it in its list.
    before: u32,
    after: u32,
    /// Whether it is a post.
    is_post: bool,
}

impl Links {
    /// Those of an item that is in no list, or alone in one.
    const NONE: Self = Self { before: NONE, after: NONE, is_post: false };
}

/// The links of any number of lists, in which an item is at most once.
pub(crate) struct Lists<S: Storage> {
    links: S::Table<Links>,
    trie: Trie<S>,
}

impl<S: Storage> Default for Lists<S> {
    fn default() -> Self {
        Self { links: S::Table::<Links>::default(), trie: Trie::default() }
    }
}

impl<S: Storage> Lists<S> {
    /// Makes sure that the items below `count` fit, all of them.
    pub(crate) fn make_room_for(&mut self, count: u32) -> bool {
        let missing = (count as usize).saturating_sub(self.links.len());
        if !self.links.make_room(missing) || !self.trie.make_room_for(count) {
            return false;
        }
        (0..missing).for_each(|_| self.links.add(Links::NONE));
        true
    }

    /// Adds an item to a list that is not empty.
    pub(crate) fn insert(&mut self, list: &mut List, item: u32, key: impl Fn(u32) -> Key) {
        // How many others there are cannot be predicted.
        list.posts = select_unpredictable(list.posts.is_empty(), NO_POSTS, list.posts);
        let (new, first) = (key(item), list.first);
        if new.is_below(key(first)) {
            self.links[item as usize].after = first;
            self.links[first as usize].before = item;
            list.first = item;
            return;
        }
        let before = self.seek(list, new, key);
        let after = core::mem::replace(&mut self.links[before as usize].after, item);
        self.links[item as usize] = Links { before, after, is_post: false };
        // There is no item `NONE`.
        if let Some(after) = self.links.get_mut(after as usize) {
            after.before = item;
        }
    }

    /// Removes an item from a list that holds others, too.
    pub(crate) fn remove(&mut self, list: &mut List, item: u32, key: impl Fn(u32) -> Key) {
        let Links { before, after, is_post } = self.links[item as usize];
        if is_post {
            self.unpost(list, item, &key);
        }
        self.links[item as usize] = Links::NONE;
        if let Some(after) = self.links.get_mut(after as usize) {
            after.before = before;
        }
        if let Some(before) = self.links.get_mut(before as usize) {
            before.after = after;
        } else {
            list.first = after;
            if self.links[after as usize].is_post {
                self.unpost(list, after, &key);
            }
        }
        let alone = self.links[list.first as usize].after == NONE;
        list.posts = select_unpredictable(alone, Link::EMPTY, list.posts);
    }

    /// The item with the lowest key that is at least `bound`.
    pub(crate) fn at_least(&mut self, list: &mut List, bound: Key, key: impl Fn(u32) -> Key) -> Option<u32> {
        let first = list.first()?;
        if !key(first).is_below(bound) {
            return Some(first);
        }
        let before = self.seek(list, bound, key);
        self.after(before)
    }

    /// The item after another in its list.
    #[inline(always)]
    pub(crate) fn after(&self, item: u32) -> Option<u32> {
        let after = self.links[item as usize].after;
        (after != NONE).then_some(after)
    }

    /// The item before another in its list.
    pub(crate) fn before(&self, item: u32) -> Option<u32> {
        let before = self.links[item as usize].before;
        (before != NONE).then_some(before)
    }

    /// The item with the highest key.
    pub(crate) fn last(&self, list: List) -> Option<u32> {
        let near = self.trie.last(list.posts()).or(list.first());
        core::iter::successors(near, |&item| self.after(item)).last()
    }

    /// The last item below `bound`, which the first one is.
    fn seek(&mut self, list: &mut List, bound: Key, key: impl Fn(u32) -> Key) -> u32 {
        let posts = list.posts();
        let mut at = list.first;
        if !posts.is_empty() {
            at = self.trie.below(posts, bound, &key).unwrap_or(at);
        }
        loop {
            for _ in 0..STRIDE {
                match self.after(at) {
                    Some(after) if key(after).is_below(bound) => at = after,
                    _ => return at,
                }
            }
            self.links[at as usize].is_post = true;
            list.posts = self.trie.insert(list.posts(), at, &key);
        }
    }

    /// Makes a post an item like others.
    #[cold]
    fn unpost(&mut self, list: &mut List, item: u32, key: impl Fn(u32) -> Key) {
        self.links[item as usize].is_post = false;
        let posts = self.trie.remove(list.posts, item, key);
        list.posts = if posts.is_empty() { NO_POSTS } else { posts };
    }

    /// The items of a list are in order and linked both ways, the posts are found, and there are `count` items at most. How many.
    pub(crate) fn check(&self, list: List, count: u32, key: impl Fn(u32) -> Key) -> Result<u32, &'static str> {
        let (mut seen, mut before, mut posts) = (0, None, 0);
        let mut at = list.first();
        while let Some(item) = at {
            if self.before(item) != before || seen == count {
                return Err("a link back in a sorted list is wrong");
            }
            if before.is_some_and(|before| !key(before).is_below(key(item))) {
                return Err("a sorted list is out of order");
            }
            let is_post = self.links[item as usize].is_post;
            if is_post != (self.trie.at_least(list.posts(), key(item), &key) == Some(item))
                || is_post && before.is_none()
            {
                return Err("an item disagrees with the posts of its list about being one");
            }
            (seen, before, at, posts) = (seen + 1, at, self.after(item), posts + u32::from(is_post));
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
    use crate::storage::Growable;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const ITEMS: u32 = 200;

    /// Items' order is not that of their numbers.
    fn key(item: u32) -> Key {
        Key { major: 7, minor: u64::from(item * 77 % ITEMS * 2) }
    }

    proptest! {
        /// Two lists against two `BTreeSet`s: as many items as posts are needed for come, in every order, and go.
        #[test]
        fn agrees_with_ordered_sets(steps in prop::collection::vec((0..ITEMS, any::<bool>()), 1..600)) {
            let mut lists = Lists::<Growable>::default();
            prop_assert!(lists.make_room_for(ITEMS));
            let (mut sets, mut models) = ([List::EMPTY; 2], [BTreeSet::new(), BTreeSet::new()]);
            for (item, add) in steps {
                let which = item as usize % 2;
                let (list, model) = (&mut sets[which], &mut models[which]);
                let entry = (key(item).minor, item);
                if model.remove(&entry) {
                    if *list == List::of(item) {
                        *list = List::EMPTY;
                    } else {
                        lists.remove(list, item, key);
                    }
                } else if add && model.is_empty() {
                    model.insert(entry);
                    *list = List::of(item);
                } else if add {
                    model.insert(entry);
                    lists.insert(list, item, key);
                }
                prop_assert_eq!(lists.check(*list, ITEMS, key), Ok(model.len() as u32));
                prop_assert_eq!(list.first(), model.first().map(|&(_, item)| item));
                prop_assert_eq!(lists.last(*list), model.last().map(|&(_, item)| item));
                for minor in [entry.0, entry.0 + 1] {
                    let found = model.range((minor, 0)..).next().map(|&(_, item)| item);
                    prop_assert_eq!(lists.at_least(list, Key { major: 7, minor }, key), found);
                }
            }
        }
    }

    /// However the items come, a search does not walk: among many it begins at a post.
    #[test]
    fn searches_leave_posts_behind() {
        for order in [|item| item, |item| 9_999 - item, |item| item * 7_777 % 10_000] {
            let key = |item: u32| Key { major: 0, minor: u64::from(order(item)) };
            let mut lists = Lists::<Growable>::default();
            assert!(lists.make_room_for(10_000));
            let mut list = List::of(0);
            (1..10_000).for_each(|item| lists.insert(&mut list, item, key));
            assert_eq!(lists.at_least(&mut list, Key { major: 0, minor: 9_999 }, key), lists.last(list));
            let gaps = core::iter::successors(list.first(), |&item| lists.after(item));
            let posts = gaps.filter(|&item| lists.links[item as usize].is_post).count();
            assert!((10_000 / 2 / STRIDE..=10_000).contains(&posts), "{posts} posts");
            assert_eq!(lists.check(list, 10_000, key), Ok(10_000));
        }
    }
}
