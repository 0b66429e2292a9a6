//! Values that may be odd without making a file unreadable.
//!
//! Whatever a snapshot does not need in order to be understood is read as far as it makes sense,
//! and is otherwise unknown: one line number of 2^64 - 1 (PyTorch stores a missing line, -1,
//! without its sign) must not refuse the other gigabyte.

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use std::fmt;
use std::marker::PhantomData;

/// Methods of a visitor for what has no value.
macro_rules! nothing {
    ($($visit:ident $(($of:ty))?),*) => {$(
        fn $visit<E>(self $(, _: $of)?) -> Result<Self::Value, E> {
            Ok(None)
        }
    )*};
}

/// A value that is made of whatever a file has in its place.
pub(crate) trait Odd: Sized {
    /// The value of a number without a fraction.
    fn of_int(_: i128) -> Option<Self> {
        None
    }

    /// The value of any other number.
    fn of_float(_: f64) -> Option<Self> {
        None
    }

    /// The value of a truth.
    fn of_bool(_: bool) -> Option<Self> {
        None
    }

    /// The value of a text.
    fn of_text(_: &str) -> Option<Self> {
        None
    }
}

/// What fits into 64 bits with or without a sign, bit by bit.
fn bits(value: i128) -> Option<i64> {
    i64::try_from(value).ok().or_else(|| u64::try_from(value).ok().map(u64::cast_signed))
}

impl Odd for i64 {
    fn of_int(value: i128) -> Option<Self> {
        bits(value)
    }

    fn of_float(value: f64) -> Option<Self> {
        // Exact for what a double holds as a whole number; times in fractions lose these.
        (value.is_finite() && value.abs() < 9.0e18).then_some(value as i64)
    }
}

impl Odd for f64 {
    fn of_int(value: i128) -> Option<Self> {
        Some(value as f64)
    }

    fn of_float(value: f64) -> Option<Self> {
        Some(value)
    }
}

impl Odd for bool {
    fn of_bool(value: bool) -> Option<Self> {
        Some(value)
    }

    fn of_int(value: i128) -> Option<Self> {
        Some(value != 0)
    }
}

impl Odd for String {
    fn of_text(value: &str) -> Option<Self> {
        Some(value.to_owned())
    }
}

/// A value, or `None` where the file has something else in its place.
pub(crate) struct Maybe<T>(pub(crate) Option<T>);

impl<'de, T: Odd> Deserialize<'de> for Maybe<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader(PhantomData)).map(Self)
    }
}

struct Reader<T>(PhantomData<T>);

impl<'de, T: Odd> Visitor<'de> for Reader<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(T::of_int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(T::of_int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Self::Value, E> {
        Ok(T::of_int(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(T::of_float(value))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(T::of_bool(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(T::of_text(value))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Self::Value, E> {
        Ok(str::from_utf8(value).ok().and_then(T::of_text))
    }

    nothing! { visit_unit, visit_none }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// Reads a value, or its default where the file has something else in its place.
pub(crate) fn or_default<'de, T: Odd + Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Maybe::deserialize(deserializer)?.0.unwrap_or_default())
}

/// Reads a value, or `None` where the file has something else in its place.
pub(crate) fn or_none<'de, T: Odd, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Maybe::deserialize(deserializer)?.0)
}

/// Reads an address or a size that must be there. A negative one is the same bits without a sign,
/// as PyTorch's own pickler writes addresses above 2^63.
///
/// # Errors
/// If the value is no number of 64 bits.
pub(crate) fn unsigned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value: Option<i64> = or_none(deserializer)?;
    value.map(i64::cast_unsigned).ok_or_else(|| serde::de::Error::custom("expected a number of 64 bits"))
}

/// Reads an address or a size, or `None` where the file has something else in its place.
pub(crate) fn unsigned_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(or_none::<i64, D>(deserializer)?.map(i64::cast_unsigned))
}

/// Reads the two numbers of a pool, or `None` where the file has something else in their place.
pub(crate) fn pair<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<(u64, u64)>, D::Error> {
    struct Numbers;
    impl<'de> Visitor<'de> for Numbers {
        type Value = Option<(u64, u64)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("two numbers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut next = || Ok(list.next_element::<Maybe<i64>>()?.and_then(|found| found.0).map(i64::cast_unsigned));
            let found = next()?.zip(next()?);
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(found)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_any(self)
        }

        nothing! { visit_none, visit_unit, visit_i64(i64), visit_u64(u64), visit_str(&str) }
    }
    deserializer.deserialize_any(Numbers)
}

/// [`pair`] as a type.
pub(crate) struct Pair(pub(crate) Option<(u64, u64)>);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        pair(deserializer).map(Self)
    }
}

/// Reads a list of objects, or `None` where the file has something else in its place. Objects in
/// lists inside are of the list too, for a list of lists by device; other elements are passed over.
pub(crate) fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    deserializer.deserialize_any(Objects { levels: LIST_OF_LISTS, of: PhantomData })
}

/// Reads an object, or `None` where the file has something else in its place.
pub(crate) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let found = deserializer.deserialize_any(Objects { levels: 0, of: PhantomData })?;
    Ok(found.and_then(|mut objects: Vec<T>| objects.pop()))
}

/// Name of the serde newtype for an event. A reader of pickles passes the number of a finished
/// event to the visitor of the name.
pub(crate) const HARVESTED: &str = "cachalot::Event";

/// Levels of lists around the objects: those of a list, and those of lists by device.
const LIST_OF_LISTS: u8 = 2;

/// Reads the objects in lists. Nothing else has any.
struct Objects<T> {
    /// Levels of lists that there may be.
    levels: u8,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Objects<T> {
    type Value = Option<Vec<T>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        // A reader of pickles has finished events already, and passes their numbers.
        deserializer.deserialize_newtype_struct(HARVESTED, self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Objects<T> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        if self.levels == LIST_OF_LISTS {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(None);
        }
        T::deserialize(MapAccessDeserializer::new(map)).map(|object| Some(vec![object]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some(levels) = self.levels.checked_sub(1) else {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(None);
        };
        let mut objects = Vec::new();
        while let Some(inside) = list.next_element_seed(Objects { levels, of: PhantomData })? {
            objects.extend(inside.into_iter().flatten());
        }
        Ok(Some(objects))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_u32<E: Error>(self, number: u32) -> Result<Self::Value, E> {
        let event = T::deserialize(IntoDeserializer::<E>::into_deserializer(number));
        Ok(event.ok().map(|event| vec![event]))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    nothing! { visit_none, visit_unit, visit_bool(bool), visit_i64(i64), visit_i128(i128), visit_u64(u64), visit_f64(f64), visit_str(&str), visit_bytes(&[u8]) }
}

/// Reads any value by way of a tree, or `None` if it is not what is expected. For values that occur
/// once in a file.
pub(crate) fn whole_or_none<'de, T: serde::de::DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(deserializer)?).ok())
}
