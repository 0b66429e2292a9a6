//! Shares values: a value is read once, and every reference in the file becomes a clone.
//!
//! ```text
//! pickle   a number for every value with references ─┐
//!                                                    ├─▶ Known ─▶ clones of one value
//! JSON     equal values                              ─┘
//! ```

use rustc_hash::FxHashMap;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

/// Name of the serde newtype for a shared value.
///
/// The writer of pickles writes a shared value once and refers to the value afterwards. The address
/// identifies the value and must not change until the whole file is written. A
/// [`Stack`](crate::Stack) has a fixed address while any clone exists.
///
/// The reader of pickles passes a map with one entry to the visitor of the name: the number of the
/// value in the file, and the value. The visitor does not read the value if the number is known.
pub(crate) const SHARED: &str = "cachalot::Shared";

/// A value with cheap clones in shared memory.
pub(crate) trait Shared: Clone + Eq + Hash + 'static {
    /// The form of the value in a file.
    type Parts: for<'de> Deserialize<'de>;

    /// Builds the value.
    fn of(parts: Self::Parts) -> Self;
}

/// Values of one type read so far.
struct Known<T> {
    /// The values by number in the pickle.
    numbered: FxHashMap<u32, T>,
    distinct: HashSet<T>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { numbered: FxHashMap::default(), distinct: HashSet::new() }
    }
}

/// All values read so far from a file: the [`Known`] values of each type.
#[derive(Default)]
struct Read(HashMap<TypeId, Box<dyn Any>>);

impl Read {
    /// Returns the values of a type read so far.
    fn known<T: Shared>(&mut self) -> &mut Known<T> {
        let known = self.0.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(Known::<T>::default()));
        known.downcast_mut().expect("each type has values of its own")
    }
}

thread_local! {
    /// The values of the calling thread's reader. `None` while the thread reads no file.
    static READ: RefCell<Option<Read>> = const { RefCell::new(None) };
}

/// Runs a reader of one file. Equal shared values become clones of one value, also where the file
/// repeats the value.
pub(crate) fn reading<T>(read: impl FnOnce() -> T) -> T {
    READ.set(Some(Read::default()));
    let done = read();
    READ.set(None);
    done
}

/// Deserializes a shared value, or clones the equal value read earlier.
pub(crate) fn deserialize<'de, T: Shared, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_newtype_struct(SHARED, SharedReader(PhantomData))
}

struct SharedReader<T>(PhantomData<T>);

impl<'de, T: Shared> Visitor<'de> for SharedReader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stack or a frame")
    }

    /// Reads a value from a format without references.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        let value = T::of(T::Parts::deserialize(deserializer)?);
        Ok(READ.with_borrow_mut(|read| match read {
            Some(read) => read.known::<T>().distinct(value),
            None => value,
        }))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let number: u32 = map.next_key()?.ok_or_else(|| serde::de::Error::missing_field("a value's number"))?;
        let known = READ.with_borrow_mut(|read| read.as_mut()?.known::<T>().numbered.get(&number).cloned());
        if let Some(value) = known {
            return Ok(value);
        }
        let value = T::of(map.next_value()?);
        Ok(READ.with_borrow_mut(|read| match read {
            Some(read) => {
                let known = read.known::<T>();
                let value = known.distinct(value);
                known.numbered.insert(number, value.clone());
                value
            }
            None => value,
        }))
    }
}

impl<T: Shared> Known<T> {
    /// Returns a clone of the equal value read earlier, or remembers and returns `value`.
    fn distinct(&mut self, value: T) -> T {
        if let Some(known) = self.distinct.get(&value) {
            return known.clone();
        }
        self.distinct.insert(value.clone());
        value
    }
}
