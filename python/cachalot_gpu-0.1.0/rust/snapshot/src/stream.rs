//! Lists whose entries are built during the write.

use serde::ser::{Serialize, SerializeSeq, Serializer};
use std::cell::RefCell;

/// A list whose entries come from an iterator during the write. Can be written once.
#[derive(Debug)]
pub struct Each<I>(RefCell<Option<I>>);

impl<I: Iterator> Each<I>
where
    I::Item: Serialize,
{
    /// Creates a list of the iterator's items.
    pub fn new(entries: impl IntoIterator<IntoIter = I>) -> Self {
        Self(RefCell::new(Some(entries.into_iter())))
    }
}

impl<I: Iterator> Serialize for Each<I>
where
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.0.take().ok_or_else(|| serde::ser::Error::custom("a list was written before"))?;
        let mut list = serializer.serialize_seq(entries.size_hint().1)?;
        for entry in entries {
            list.serialize_element(&entry)?;
        }
        list.end()
    }
}
