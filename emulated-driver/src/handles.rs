//! Tables of objects behind opaque handles, strict about which handle is alive.
//!
//! A destroyed object's handle is the next one handed out (the newest first), as a real driver's freed memory comes
//! back: a program that keeps a stale handle meets a living object of another life. In quarantine no handle returns.

use crate::code::{Answer, Code};
use std::collections::BTreeMap;

/// Distance between handles; real ones are addresses of structures.
const STRIDE: u64 = 0x100;

/// Objects of one kind and the handles they are known by.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    /// The kind's first handle; kinds lie far apart, so that a handle of one is never a handle of another.
    base: u64,
    live: BTreeMap<u64, T>,
    /// Handles of destroyed objects, newest last.
    retired: Vec<u64>,
    /// How many handles were ever made.
    made: u64,
    quarantine: bool,
}

impl<T> Handles<T> {
    /// No objects; `kind` tells the tables apart.
    pub(crate) fn new(kind: u64) -> Self {
        // Above 65536 and below 2^48, where a program expects pointers to be, and never dereferenced.
        let base = 0x5000_0000_0000 + (kind << 36);
        Self { base, live: BTreeMap::new(), retired: Vec::new(), made: 0, quarantine: false }
    }

    /// From now on: never use a handle again, or do.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.quarantine = on;
    }

    /// Adds an object and returns its handle.
    pub(crate) fn add(&mut self, object: T) -> u64 {
        let reused = if self.quarantine { None } else { self.retired.pop() };
        let handle = reused.unwrap_or_else(|| {
            self.made += 1;
            self.base + self.made * STRIDE
        });
        self.live.insert(handle, object);
        handle
    }

    /// The object of a living handle.
    pub(crate) fn get(&self, handle: u64) -> Answer<&T> {
        self.live.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// The object of a living handle, to change.
    pub(crate) fn get_mut(&mut self, handle: u64) -> Answer<&mut T> {
        self.live.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Takes a living handle's object out; the handle may come again.
    pub(crate) fn remove(&mut self, handle: u64) -> Answer<T> {
        let object = self.live.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.retired.push(handle);
        Ok(object)
    }

    /// Whether a handle was handed out once and its object is destroyed.
    pub(crate) fn is_retired(&self, handle: u64) -> bool {
        let distance = handle.wrapping_sub(self.base);
        let made = distance.is_multiple_of(STRIDE) && (1..=self.made).contains(&(distance / STRIDE));
        made && !self.live.contains_key(&handle)
    }

    /// Handles and objects, by handle.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.live.iter().map(|(&handle, object)| (handle, object))
    }

    /// How many objects are alive.
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Handles;
    use crate::code::Code;

    #[test]
    fn the_newest_retired_handle_comes_back_first() {
        let mut handles = Handles::new(1);
        let (first, second) = (handles.add('a'), handles.add('b'));
        assert_eq!(handles.remove(first), Ok('a'));
        assert_eq!(handles.remove(first), Err(Code::INVALID_HANDLE));
        assert!(handles.is_retired(first) && !handles.is_retired(second));
        assert!(
            !handles.is_retired(0) && !handles.is_retired(first - 1) && !handles.is_retired(second + super::STRIDE)
        );
        assert_eq!(handles.remove(second), Ok('b'));
        assert_eq!(handles.add('c'), second);
        handles.set_quarantine(true);
        assert_ne!(handles.add('d'), first);
        assert_eq!(handles.get(second), Ok(&'c'));
        assert_eq!(handles.len(), 2);
    }
}
