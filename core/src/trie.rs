//! An ordered set of items as a radix tree: 16-way nodes, chains of single children left out.
//!
//! ```text
//!            node shift 12            shift = the lowest bit of the digit the children differ in
//!           /      |      \
//!      item 3   node 4   item 9       key order = child order
//!              /      \
//!          item 1   item 7
//! ```
//!
//! Keys are 128 bits wide and distinct, so no path is longer than 32 nodes, however many items there are; `n` items
//! need at most `n − 1` nodes. The items themselves live elsewhere: every operation is told how to read their keys.

use crate::slab::{NONE, Slab, Vacant};
use crate::storage::Storage;
use core::cmp::Ordering;

/// What orders an item among the others of its set.
pub(crate) type Key = u128;

/// A subtree: nothing, one item, or a node. A set is known by the link to its root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link(u32);

const NODE: u32 = 1 << 31;

/// The highest number an item may have.
pub(crate) const MAX_ITEM: u32 = NODE - 1;

impl Link {
    pub(crate) const EMPTY: Self = Self(NONE);

    #[inline]
    pub(crate) fn item(item: u32) -> Self {
        debug_assert!(item <= MAX_ITEM);
        Self(item)
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// The item, if the set holds just one.
    #[inline]
    pub(crate) fn as_item(self) -> Option<u32> {
        (self.0 & NODE == 0).then_some(self.0)
    }

    /// The node this link leads to, if it is one.
    #[inline]
    fn node(self) -> Option<u32> {
        (self.0 & NODE != 0 && self.0 != NONE).then_some(self.0 & !NODE)
    }
}

/// A fork of the tree.
pub(crate) struct Node {
    /// `children[d]` is meaningful ⟺ bit `d` of `occupied` is set.
    children: [Link; 16],
    /// At least two bits are set, except while the node is vacant.
    occupied: u16,
    /// All keys below agree above this digit, and differ in it.
    shift: u8,
}

impl Vacant for Node {
    fn vacant(next: u32) -> Self {
        Self { children: [Link(next); 16], occupied: 0, shift: 0 }
    }

    fn vacate(&mut self, next: u32) {
        self.children[0] = Link(next);
    }

    fn next_vacant(&self) -> u32 {
        self.children[0].0
    }
}

/// The nodes of any number of sets.
pub(crate) struct Trie<S: Storage> {
    nodes: Slab<Node, S>,
}

impl<S: Storage> Default for Trie<S> {
    fn default() -> Self {
        Self { nodes: Slab::default() }
    }
}

#[inline]
fn digit(key: Key, shift: u8) -> usize {
    (key >> shift) as usize & 15
}

/// The digits of an occupied set above and below `digit`.
#[inline]
fn above(occupied: u16, digit: usize) -> u16 {
    occupied & (!1_u16 << digit)
}

#[inline]
fn below(occupied: u16, digit: usize) -> u16 {
    occupied & !(!0_u16 << digit)
}

impl<S: Storage> Trie<S> {
    /// Makes sure that sets of `items` items in all fit.
    #[inline]
    pub(crate) fn make_room_for(&mut self, items: u32) -> bool {
        self.nodes.make_room(items.saturating_sub(self.nodes.len() + 1))
    }

    /// Adds `item`, which is not in the set, and returns the new root.
    #[inline(never)]
    pub(crate) fn insert(&mut self, root: Link, item: u32, key: impl Fn(u32) -> Key) -> Link {
        if root.is_empty() {
            return Link::item(item);
        }
        let new = key(item);
        let near = key(self.nearest(root, new));
        debug_assert_ne!(new, near, "an item is added once");
        let shift = (new ^ near).ilog2() as u8 & !3;
        let (parent, at) = self.fork(root, new, shift);
        if let Some(node) = at.node().filter(|&n| self.nodes[n].shift == shift) {
            self.put(node, digit(new, shift), Link::item(item));
            return root;
        }
        let mut node = Node { children: [Link::EMPTY; 16], occupied: 0, shift };
        for (digit, child) in [(digit(new, shift), Link::item(item)), (digit(near, shift), at)] {
            node.children[digit] = child;
            node.occupied |= 1 << digit;
        }
        let node = Link(self.nodes.insert(node) | NODE);
        self.replace(root, parent, new, node)
    }

    /// Removes `item`, which is in the set, and returns the new root.
    #[inline(never)]
    pub(crate) fn remove(&mut self, root: Link, item: u32, key: impl Fn(u32) -> Key) -> Link {
        if root == Link::item(item) {
            return Link::EMPTY;
        }
        let old = key(item);
        let mut parent = None;
        let mut at = root;
        loop {
            let index = at.node().expect("a removed item is in the set");
            let node = &mut self.nodes[index];
            let digit = digit(old, node.shift);
            let child = node.children[digit];
            if child != Link::item(item) {
                parent = Some(index);
                at = child;
                continue;
            }
            node.occupied &= !(1 << digit);
            if !node.occupied.is_power_of_two() {
                return root;
            }
            let only = node.children[node.occupied.trailing_zeros() as usize];
            self.nodes.remove(index);
            return self.replace(root, parent, old, only);
        }
    }

    /// The item with the lowest key.
    #[inline]
    pub(crate) fn first(&self, mut at: Link) -> Option<u32> {
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            at = node.children[node.occupied.trailing_zeros() as usize];
        }
        (!at.is_empty()).then_some(at.0)
    }

    /// The item with the highest key.
    pub(crate) fn last(&self, mut at: Link) -> Option<u32> {
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            at = node.children[15 - node.occupied.leading_zeros() as usize];
        }
        (!at.is_empty()).then_some(at.0)
    }

    /// The item with the lowest key that is at least `bound`.
    #[inline(never)]
    pub(crate) fn at_least(&self, root: Link, bound: Key, key: impl Fn(u32) -> Key) -> Option<u32> {
        let (at, sibling, order) = self.neighbours(root, bound, key, above, u16::trailing_zeros)?;
        if order.is_ge() { self.first(at) } else { self.first(sibling) }
    }

    /// The item with the highest key that is at most `bound`.
    pub(crate) fn at_most(&self, root: Link, bound: Key, key: impl Fn(u32) -> Key) -> Option<u32> {
        let last = |set: u16| set.ilog2();
        let (at, sibling, order) = self.neighbours(root, bound, key, below, last)?;
        if order.is_le() { self.last(at) } else { self.last(sibling) }
    }

    /// The largest subtree whose keys all lie on one side of `bound` (or are it), the closest subtree beyond it in the
    /// direction of `beyond`, and the side.
    fn neighbours(
        &self,
        root: Link,
        bound: Key,
        key: impl Fn(u32) -> Key,
        beyond: impl Fn(u16, usize) -> u16,
        closest: impl Fn(u16) -> u32,
    ) -> Option<(Link, Link, Ordering)> {
        if root.is_empty() {
            return None;
        }
        let near = key(self.nearest(root, bound));
        let shift = (near != bound).then(|| (near ^ bound).ilog2() as u8 & !3);
        let mut sibling = Link::EMPTY;
        let mut at = root;
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            if shift.is_some_and(|shift| node.shift < shift) {
                break;
            }
            let digit = digit(bound, node.shift);
            let others = beyond(node.occupied, digit);
            if others != 0 {
                sibling = node.children[closest(others) as usize];
            }
            if shift == Some(node.shift) {
                // `bound` itself would be a new child here, so the answer is the sibling on either count.
                return Some((sibling, sibling, Ordering::Equal));
            }
            at = node.children[digit];
        }
        Some((at, sibling, near.cmp(&bound)))
    }

    /// Some item whose key shares the longest prefix with `key` that any item of the set shares.
    #[inline]
    fn nearest(&self, mut at: Link, key: Key) -> u32 {
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            let digit = digit(key, node.shift);
            let digit = if node.occupied & (1 << digit) != 0 { digit } else { node.occupied.trailing_zeros() as usize };
            at = node.children[digit];
        }
        at.0
    }

    /// Where a fork at `shift` on the way to `key` is or belongs, and the node above it.
    #[inline]
    fn fork(&self, root: Link, key: Key, shift: u8) -> (Option<u32>, Link) {
        let mut parent = None;
        let mut at = root;
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            if node.shift <= shift {
                break;
            }
            parent = Some(index);
            at = node.children[digit(key, node.shift)];
        }
        (parent, at)
    }

    /// Puts `child` where the way to `key` leaves `parent`, and returns the root.
    #[inline]
    fn replace(&mut self, root: Link, parent: Option<u32>, key: Key, child: Link) -> Link {
        let Some(parent) = parent else { return child };
        let digit = digit(key, self.nodes[parent].shift);
        self.nodes[parent].children[digit] = child;
        root
    }

    fn put(&mut self, node: u32, digit: usize, child: Link) {
        let node = &mut self.nodes[node];
        node.children[digit] = child;
        node.occupied |= 1 << digit;
    }

    /// How many nodes are in use.
    #[cfg(test)]
    pub(crate) fn node_count(&self) -> u32 {
        self.nodes.len()
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::storage::Growable;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    proptest! {
        /// Against a `BTreeMap`, over keys that share prefixes of every length.
        #[test]
        fn agrees_with_an_ordered_map(steps in prop::collection::vec((0_u8..128, 0_u8..8, any::<bool>()), 1..400)) {
            let keys: Vec<Key> = (0..128_u128).flat_map(|bit| (0..8).map(move |low| (1 << bit) ^ (low << 2))).collect();
            let key = |item: u32| keys[item as usize];
            let mut trie = Trie::<Growable>::default();
            let (mut root, mut model) = (Link::EMPTY, BTreeMap::new());
            for (bit, low, add) in steps {
                let item = u32::from(bit) * 8 + u32::from(low);
                if keys[..item as usize].contains(&key(item)) {
                    continue;
                }
                prop_assert!(trie.make_room_for(model.len() as u32 + 1));
                if add && !model.contains_key(&key(item)) {
                    root = trie.insert(root, item, key);
                    model.insert(key(item), item);
                } else if model.remove(&key(item)).is_some() {
                    root = trie.remove(root, item, key);
                }
                prop_assert_eq!(trie.first(root), model.values().next().copied());
                prop_assert_eq!(trie.last(root), model.values().next_back().copied());
                prop_assert!(trie.node_count() < model.len().max(1) as u32);
                for bound in [key(item), key(item).wrapping_add(1), key(item).wrapping_sub(1), 0, Key::MAX] {
                    prop_assert_eq!(trie.at_least(root, bound, key), model.range(bound..).next().map(|(_, &i)| i));
                    prop_assert_eq!(trie.at_most(root, bound, key), model.range(..=bound).next_back().map(|(_, &i)| i));
                }
            }
        }
    }
}
