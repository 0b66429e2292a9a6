//! Ordered sets as radix trees: 32-way nodes, none of which has only one child.
//!
//! ```text
//!            node shift 15            shift = the lowest bit of the digit in which the children differ
//!           /      |      \
//!      item 3   node 4   item 9       key order = child order
//!              /      \
//!          item 1   item 7
//! ```
//!
//! A key has two words, and no two items have the same key. So no path is longer than 26 nodes,
//! however many items there are, and `n` items need at most `n − 1` nodes. A node stores the common
//! prefix of the keys below it, so every operation needs only one descent. The items belong to the
//! caller, who tells every operation how to read a key. An operation reads at most one key besides
//! that of its item.

use crate::sync::{empty_by, impl_empty};
use crate::tables::Storage;
use crate::tables::slot_table::{NONE, SlotTable, Vacant};

/// The number of bits in a digit. Wider digits make paths shorter, but nodes larger; most nodes
/// have few children.
const DIGIT_BITS: u8 = 5;
/// The number of children of a node: one for each value of a digit.
const FAN_OUT: usize = 1 << DIGIT_BITS;

const _: () = assert!(FAN_OUT == u32::BITS as usize, "a bit of `Node::occupied` for each child");

/// The sort key of an item: `major` is compared first, then `minor`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Key {
    /// The word that is compared first.
    pub major: u64,
    /// The word that decides if the `major` words are equal.
    pub minor: u64,
}

impl Key {
    /// Compares like `<`, but without a branch, because the order of two blocks cannot be
    /// predicted.
    #[inline(always)]
    pub(crate) fn is_below(self, other: Self) -> bool {
        let wide = |key: Self| u128::from(key.major) << 64 | u128::from(key.minor);
        wide(self) < wide(other)
    }

    /// Returns the digit at `shift`. Shifts below 64 select `minor`, the rest `major`.
    #[inline(always)]
    fn digit(self, shift: u8) -> usize {
        let word = if shift < 64 { self.minor } else { self.major };
        (word >> (shift % 64)) as usize % FAN_OUT
    }

    /// Returns the shift of the highest digit in which two keys differ, or 0 if they are equal.
    #[inline(always)]
    fn fork(self, other: Self) -> u8 {
        let (major, minor) = (self.major ^ other.major, self.minor ^ other.minor);
        let (word, base) = if major == 0 { (minor, 0) } else { (major, 64) };
        // `| 1` keeps `ilog2` defined for equal keys, and changes no other result.
        let bit = (word | 1).ilog2() as u8;
        // Each word has separate digits: a digit starts at a multiple of 5 within its word.
        base + (bit - bit % DIGIT_BITS)
    }
}

/// A subtree: empty, one item, or a node. The link to the root represents the whole set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(u32);

/// The bit that is set in the number of a node and clear in the number of an item.
const NODE: u32 = 1 << 31;

/// The highest number of an item.
pub(crate) const MAX_ITEM: u32 = NODE - 1;

empty_by!(Link = Self::EMPTY);

impl Link {
    /// The set without items.
    pub const EMPTY: Self = Self(NONE);

    /// Returns the set with the single item `item`.
    #[inline]
    pub(crate) const fn item(item: u32) -> Self {
        debug_assert!(item <= MAX_ITEM);
        Self(item)
    }

    /// Returns whether the set has no item.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// Returns the node that the link leads to, or `None` for an item and for the empty set.
    #[inline]
    fn node(self) -> Option<u32> {
        (self.0 & NODE != 0 && self.0 != NONE).then_some(self.0 & !NODE)
    }
}

/// An inner node of the tree. `repr(C)` puts the fields that every descent reads first, so that
/// they are usually in one cache line.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct Node {
    /// A key that agrees with all keys below the node above the digit at `shift`.
    prefix: Key,
    /// Bit `d` is set ⟺ `children[d]` is meaningful. At least two bits are set, except in a vacant
    /// node.
    occupied: u32,
    /// The keys below the node agree above this digit, and differ in it.
    shift: u8,
    /// The subtrees, by digit. In a vacant node, `children[0]` is the link to the next vacant node.
    children: [Link; FAN_OUT],
}

impl Vacant for Node {
    fn vacant(next: u32) -> Self {
        Self { prefix: Key::default(), occupied: 0, shift: 0, children: [Link(next); FAN_OUT] }
    }

    fn vacate(&mut self, next: u32) {
        self.children[0] = Link(next);
    }

    fn next_vacant(&self) -> u32 {
        self.children[0].0
    }
}

impl Node {
    /// Returns whether the node has a child at `digit`.
    #[inline(always)]
    fn has(&self, digit: usize) -> bool {
        self.occupied >> digit & 1 == 1
    }

    /// Sets the child at `digit`.
    #[inline(always)]
    fn put(&mut self, digit: usize, child: Link) {
        self.children[digit] = child;
        self.occupied |= 1 << digit;
    }

    /// Returns the first child among the set bits of `among`, which must not be 0.
    #[inline(always)]
    fn first(&self, among: u32) -> Link {
        // `among` is not 0, so `% FAN_OUT` changes nothing. It saves the bounds check.
        self.children[among.trailing_zeros() as usize % FAN_OUT]
    }

    /// Returns the last child among the set bits of `among`, which must not be 0.
    #[inline(always)]
    fn last(&self, among: u32) -> Link {
        self.children[among.ilog2() as usize]
    }
}

/// The nodes of any number of sets. A set is a [`Link`] that the caller stores.
#[derive(Clone)]
pub struct RadixTree<S: Storage> {
    nodes: SlotTable<Node, S>,
}

impl_empty! { [S: Storage] RadixTree<S> { nodes } }

impl<S: Storage> RadixTree<S> {
    /// Makes room for `items` items in all sets together. Returns false if they do not fit.
    #[inline]
    pub fn make_room_for(&mut self, items: u32) -> bool {
        // A set of `n` items has at most `n − 1` nodes.
        self.nodes.make_room(items.saturating_sub(self.nodes.len() + 1))
    }

    /// Makes room for `count` more items, in any sets. Returns false if they do not fit. Unlike
    /// [`make_room_for`](Self::make_room_for), this does not make room for later steps: removing an
    /// item and adding it with another key needs room again.
    pub(crate) fn make_room(&mut self, count: u32) -> bool {
        // An item adds at most one node.
        self.nodes.make_room(count)
    }

    /// Adds `item`, which is not in the set, and returns the new root. The caller has made room.
    #[inline]
    pub fn insert(&mut self, root: Link, item: u32, key: impl Fn(u32) -> Key) -> Link {
        if root.is_empty() {
            return Link::item(item);
        }
        let new = key(item);
        let nodes = self.nodes.entries_mut();
        let (mut parent, mut at) = (NONE, root);
        // Descend to the place where the new key leaves the tree. `near` is a key in or below the
        // subtree at that place. It differs from the new key, and the new node goes above this
        // subtree.
        let near = loop {
            let Some(index) = at.node() else { break key(at.0) };
            let node = &mut nodes[index as usize];
            if new.fork(node.prefix) > node.shift {
                break node.prefix;
            }
            let digit = new.digit(node.shift);
            if !node.has(digit) {
                node.put(digit, Link::item(item));
                return root;
            }
            (parent, at) = (index, node.children[digit]);
        };
        debug_assert_ne!(new, near, "an item is added once");
        let shift = new.fork(near);
        let (nodes, vacancies) = self.nodes.parts();
        let index = vacancies.occupy(nodes);
        // Build the node in place: copying a node would cost more than everything else.
        let node = &mut nodes[index as usize];
        (node.prefix, node.occupied, node.shift) = (new, 0, shift);
        node.put(near.digit(shift), at);
        node.put(new.digit(shift), Link::item(item));
        self.replace(root, parent, new, Link(index | NODE))
    }

    /// Removes `item`, which is in the set, and returns the new root.
    ///
    /// # Panics
    /// If the item is not in the set.
    #[inline(never)]
    pub fn remove(&mut self, root: Link, item: u32, key: impl Fn(u32) -> Key) -> Link {
        if root == Link::item(item) {
            return Link::EMPTY;
        }
        let old = key(item);
        let nodes = self.nodes.entries_mut();
        let (mut parent, mut at) = (NONE, root);
        loop {
            let index = at.node().expect("a removed item is in the set");
            let node = &mut nodes[index as usize];
            let digit = old.digit(node.shift);
            let child = node.children[digit];
            if child != Link::item(item) {
                (parent, at) = (index, child);
                continue;
            }
            node.occupied &= !(1 << digit);
            // At least two children are left, so the node is kept.
            if !node.occupied.is_power_of_two() {
                return root;
            }
            // One child is left. It replaces the node.
            let only = node.first(node.occupied);
            self.nodes.remove(index);
            return self.replace(root, parent, old, only);
        }
    }

    /// Stores `child` where the path of `key` leaves the node `parent`, and returns the root. If
    /// `parent` is [`NONE`], the child is the new root.
    #[inline(always)]
    fn replace(&mut self, root: Link, parent: u32, key: Key, child: Link) -> Link {
        if parent == NONE {
            return child;
        }
        let parent = &mut self.nodes[parent];
        parent.children[key.digit(parent.shift)] = child;
        root
    }

    /// Returns the item with the lowest key.
    #[inline]
    pub(crate) fn first(&self, mut at: Link) -> Option<u32> {
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            at = node.first(node.occupied);
        }
        (!at.is_empty()).then_some(at.0)
    }

    /// Returns the item with the highest key.
    pub(crate) fn last(&self, mut at: Link) -> Option<u32> {
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            at = node.last(node.occupied);
        }
        (!at.is_empty()).then_some(at.0)
    }

    /// Returns the item with the lowest key that is at least `bound`.
    #[inline(never)]
    pub fn at_least(&self, root: Link, bound: Key, key: impl Fn(u32) -> Key) -> Option<u32> {
        // `sibling` is the closest subtree in which all keys are above `bound`. It contains the
        // answer if the subtree at `at` turns out to have no key from `bound` on, so the descent
        // never has to go back up.
        let (mut at, mut sibling) = (root, Link::EMPTY);
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            if bound.fork(node.prefix) > node.shift {
                // `bound` differs from all keys below the node in the same digit, so they are all
                // on one side of it.
                return self.first(if node.prefix > bound { at } else { sibling });
            }
            let digit = bound.digit(node.shift);
            let above = node.occupied & (!1 << digit);
            if above != 0 {
                sibling = node.first(above);
            }
            if !node.has(digit) {
                return self.first(sibling);
            }
            at = node.children[digit];
        }
        if !at.is_empty() && key(at.0) >= bound { Some(at.0) } else { self.first(sibling) }
    }

    /// Returns the item with the highest key below `bound`.
    pub(crate) fn below(&self, root: Link, bound: Key, key: impl Fn(u32) -> Key) -> Option<u32> {
        // `sibling` is the closest subtree in which all keys are below `bound`. Its last item is
        // the answer if the subtree at `at` turns out to have no key below `bound`.
        let (mut at, mut sibling) = (root, Link::EMPTY);
        while let Some(index) = at.node() {
            let node = &self.nodes[index];
            if bound.fork(node.prefix) > node.shift {
                return self.last(if node.prefix < bound { at } else { sibling });
            }
            let digit = bound.digit(node.shift);
            let below = node.occupied & !(!0 << digit);
            if below != 0 {
                sibling = node.last(below);
            }
            if !node.has(digit) {
                return self.last(sibling);
            }
            at = node.children[digit];
        }
        if !at.is_empty() && key(at.0) < bound { Some(at.0) } else { self.last(sibling) }
    }

    /// Returns the number of nodes in use.
    #[cfg(all(test, feature = "alloc", not(loom)))]
    pub(crate) fn node_count(&self) -> u32 {
        self.nodes.len()
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::Growable;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn wide(key: u128) -> Key {
        Key { major: (key >> 64) as u64, minor: key as u64 }
    }

    proptest! {
        /// Compares with a `BTreeMap`, over keys that share prefixes of every length.
        #[test]
        fn agrees_with_an_ordered_map(steps in prop::collection::vec((0_u8..128, 0_u8..8, any::<bool>()), 1..400)) {
            let keys: Vec<Key> = (0..128_u128).flat_map(|bit| (0..8).map(move |low| wide((1 << bit) ^ (low << 2)))).collect();
            let key = |item: u32| keys[item as usize];
            let mut tree = RadixTree::<Growable>::default();
            let (mut root, mut model) = (Link::EMPTY, BTreeMap::new());
            for (bit, low, add) in steps {
                let item = u32::from(bit) * 8 + u32::from(low);
                if keys[..item as usize].contains(&key(item)) {
                    continue;
                }
                prop_assert!(tree.make_room_for(model.len() as u32 + 1));
                if add && !model.contains_key(&key(item)) {
                    root = tree.insert(root, item, key);
                    model.insert(key(item), item);
                } else if model.remove(&key(item)).is_some() {
                    root = tree.remove(root, item, key);
                }
                prop_assert_eq!(tree.first(root), model.values().next().copied());
                prop_assert_eq!(tree.last(root), model.values().next_back().copied());
                prop_assert!(tree.node_count() < model.len().max(1) as u32);
                let middle = u128::from(key(item).major) << 64 | u128::from(key(item).minor);
                for bound in [middle, middle.wrapping_add(1), middle.wrapping_sub(1), 0, u128::MAX].map(wide) {
                    prop_assert_eq!(tree.at_least(root, bound, key), model.range(bound..).next().map(|(_, &i)| i));
                    prop_assert_eq!(tree.below(root, bound, key), model.range(..bound).next_back().map(|(_, &i)| i));
                }
            }
        }
    }
}
