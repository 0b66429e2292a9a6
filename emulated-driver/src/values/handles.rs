//! Tables of objects behind opaque handles. Only live handles are valid.
//!
//! The next object gets the handle of the object destroyed last, as freed memory comes back in a
//! real driver: a stale handle in a program then names a new object. In quarantine no handle
//! returns.

use crate::values::code::{Answer, Code};
use std::collections::BTreeMap;

/// Distance between handles. Handles of a real driver are addresses of structures.
const STRIDE: u64 = 0x100;

/// Objects of one kind with the handles.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    /// First handle of the kind. Kinds are far apart, so no two kinds share a handle.
    base: u64,
    live: BTreeMap<u64, T>,
    /// Handles of destroyed objects, newest last.
    retired: Vec<u64>,
    /// Number of handles ever created.
    made: u64,
    quarantine: bool,
}

impl<T> Handles<T> {
    /// Creates an empty table. `kind` distinguishes the tables.
    pub(crate) fn new(kind: u64) -> Self {
        // Above 65536 and below 2^48, in the range of pointers. Never dereferenced.
        let base = 0x5000_0000_0000 + (kind << 36);
        Self { base, live: BTreeMap::new(), retired: Vec::new(), made: 0, quarantine: false }
    }

    /// Sets quarantine: handles are never reused.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.quarantine = on;
    }

    /// Adds an object and returns the handle.
    pub(crate) fn add(&mut self, object: T) -> u64 {
        let reused = if self.quarantine { None } else { self.retired.pop() };
        let handle = reused.unwrap_or_else(|| {
            self.made += 1;
            self.base + self.made * STRIDE
        });
        self.live.insert(handle, object);
        handle
    }

    /// Returns the object of a live handle.
    pub(crate) fn get(&self, handle: u64) -> Answer<&T> {
        self.live.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Returns the object of a live handle for changes.
    pub(crate) fn get_mut(&mut self, handle: u64) -> Answer<&mut T> {
        self.live.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Removes the object of a live handle. The handle may be reused.
    pub(crate) fn remove(&mut self, handle: u64) -> Answer<T> {
        let object = self.live.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.retired.push(handle);
        Ok(object)
    }

    /// Returns whether a handle belongs to a destroyed object.
    pub(crate) fn is_retired(&self, handle: u64) -> bool {
        let distance = handle.wrapping_sub(self.base);
        let made = distance.is_multiple_of(STRIDE) && (1..=self.made).contains(&(distance / STRIDE));
        made && !self.live.contains_key(&handle)
    }

    /// Handles and objects, by handle.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.live.iter().map(|(&handle, object)| (handle, object))
    }

    /// Objects for changes, by handle.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.live.values_mut()
    }

    /// Returns the number of live objects.
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Handles;
    use crate::values::code::Code;

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
