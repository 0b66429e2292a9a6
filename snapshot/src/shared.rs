//! Values that are read once and then shared, by every place of a file that refers to them.
//!
//! ```text
//! pickle   a number for every value that can be referred to ─┐
//!                                                            ├─▶ Known ─▶ clones of one value
//! JSON     equal values                                      ─┘
//! ```

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

/// The name of a serde newtype whose value is shared.
///
/// A value of this name is written to a pickle once, and referred to from then on. Its address tells
/// it from others, so it has to stay where it is until all is written: a [`Stack`](crate::Stack)
/// does as long as any clone of it exists.
///
/// A reader of pickles gives the visitor of this name a map with one entry, from the number of the
/// value in the file to the value. The visitor does not ask for a value whose number it knows.
pub(crate) const SHARED: &str = "cachalot::Shared";

/// A value whose clones share one memory.
pub(crate) trait Shared: Clone + Eq + Hash + 'static {
    /// The value as a file has it.
    type Parts: for<'de> Deserialize<'de>;

    /// Makes the value.
    fn of(parts: Self::Parts) -> Self;
}

/// The values of one type that were read before.
struct Known<T> {
    /// By their numbers in a pickle.
    numbered: HashMap<u32, T>,
    distinct: HashSet<T>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { numbered: HashMap::new(), distinct: HashSet::new() }
    }
}

/// What the reader of a file has read so far: the [`Known`] values of each type.
#[derive(Default)]
struct Read(HashMap<TypeId, Box<dyn Any>>);

impl Read {
    /// Finds the values of a type that were read before.
    fn known<T: Shared>(&mut self) -> &mut Known<T> {
        let known = self.0.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(Known::<T>::default()));
        known.downcast_mut().expect("each type has values of its own")
    }
}

thread_local! {
    /// What this thread's reader has read, if it is reading.
    static READ: RefCell<Option<Read>> = const { RefCell::new(None) };
}

/// Reads a file. Shared values in it become clones of one, also where the file repeats them.
pub(crate) fn reading<T>(read: impl FnOnce() -> T) -> T {
    READ.set(Some(Read::default()));
    let done = read();
    READ.set(None);
    done
}

/// Deserializes a shared value: the one read before, if there is one.
pub(crate) fn deserialize<'de, T: Shared, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_newtype_struct(SHARED, Reader(PhantomData))
}

struct Reader<T>(PhantomData<T>);

impl<'de, T: Shared> Visitor<'de> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stack or a frame of one")
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
    /// The equal value that was read before, or this one from now on.
    fn distinct(&mut self, value: T) -> T {
        if let Some(known) = self.distinct.get(&value) {
            return known.clone();
        }
        self.distinct.insert(value.clone());
        value
    }
}
