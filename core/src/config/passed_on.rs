//! Keys that have no effect. They are checked as `PyTorch` checks them, kept, and written again.

use super::error::{Accepted, ConfigError, Word};
use super::parse::{Value, for_each_entry};
use super::{MOST_MIB, Reserve, refused, valid_reserve};
use crate::units::MIB;
use core::fmt;
use heapless::LinearMap;

/// The number of keys with a number as value.
const MOST_NUMBERS: usize = 8;
/// The key with a list of classes as value.
const CLASSES_KEY: &str = "expandable_segments_reserve_by_class";
/// The most stream classes with their own address reserve.
const MOST_CLASSES: usize = 8;
/// The longest name of a stream class, in bytes.
const CLASS_BYTES: usize = 32;
/// The name of a stream class.
type ClassName = heapless::String<CLASS_BYTES, u8>;

/// The form of a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// `True` or `False`. `True` counts as 1.
    Flag,
    /// A number of threads.
    Threads,
    /// A number of MiB, which is at least this one.
    Mebibytes(u64),
}

/// `PyTorch`'s own limit (2.0–2.15).
const MOST_REGISTER_THREADS: u32 = 128;
const REGISTER_THREADS: Accepted = Accepted::Text("a power of two up to 128");
const CLASSES: Accepted = Accepted::Text("a list like `[name:0.5,other:40G]`");
const CLASS_NAME: Accepted = Accepted::Text("class names of 1 to 32 bytes without white space or separators");
const CLASS_COUNT: Accepted = Accepted::Text("up to 8 classes");

const _: () = assert!(MOST_CLASSES == 8 && CLASS_BYTES == 32); // The texts above state both numbers.

/// The values of the keys without effect, other than the defaults.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PassedOn {
    numbers: LinearMap<&'static str, u64, MOST_NUMBERS>,
    /// The classes of streams that have their own address reserve.
    classes: LinearMap<ClassName, Reserve, MOST_CLASSES>,
}

impl PassedOn {
    /// Returns the defaults.
    pub(super) const fn new() -> Self {
        Self { numbers: LinearMap::new(), classes: LinearMap::new() }
    }

    /// Checks the number of the key `key`, and keeps it under the key `kept`.
    pub(super) fn read(
        &mut self,
        kept: &'static str,
        form: Form,
        key: &'static str,
        value: &Value<'_>,
    ) -> Result<(), ConfigError> {
        let (number, default) = match form {
            Form::Flag => (value.one_of(key, ["False", "True"], Accepted::Boolean)? as u64, Some(0)),
            Form::Threads => (value.power_of_two(key, MOST_REGISTER_THREADS, REGISTER_THREADS)?.into(), Some(1)),
            Form::Mebibytes(least) => (value.mebibytes(key, least..=MOST_MIB)? / MIB, None),
        };
        self.numbers.remove(kept);
        if Some(number) != default {
            let replaced = self.numbers.insert(kept, number);
            debug_assert_eq!(replaced, Ok(None), "each key has room");
        }
        Ok(())
    }

    /// Checks a list of classes, which replaces all classes kept before.
    pub(super) fn read_classes(&mut self, key: &'static str, value: &Value<'_>) -> Result<(), ConfigError> {
        let Value::List(list) = value else {
            return Err(value.refused(key, CLASSES));
        };
        self.classes.clear();
        for_each_entry(
            &Word::of(format_args!("{key}:[")),
            list,
            |_| false,
            |class, value| {
                let (class, reserve) = (class.as_str(), value.reserve(key)?);
                let name = ClassName::try_from(class).map_err(|_| refused(key, class, CLASS_NAME))?;
                let kept = self.classes.insert(name, valid_reserve(key, reserve)?);
                kept.map(|_before| ()).map_err(|_| refused(key, class, CLASS_COUNT))
            },
        )
    }

    /// Returns the number of a key, unless it is the default.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.numbers.get(key).copied()
    }

    /// Returns whether the value of a key is not the default.
    pub(super) fn holds(&self, key: &str) -> bool {
        self.number(key).is_some() || key == CLASSES_KEY && !self.classes.is_empty()
    }

    /// Returns the classes of streams, as a list, if there are any.
    pub(super) fn classes(&self) -> Option<impl fmt::Display> {
        (!self.classes.is_empty()).then_some(Classes(self))
    }
}

/// A number, written as its key takes it.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub(super) form: Form,
    /// The number, in the unit of the key.
    pub(super) number: u64,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self.form, Form::Flag) { f.write_str("True") } else { write!(f, "{}", self.number) }
    }
}

/// Writes the classes of streams with their reserves, as a list.
struct Classes<'a>(&'a PassedOn);

impl fmt::Display for Classes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, reserve)) in self.0.classes.iter().enumerate() {
            let open = if i == 0 { "[" } else { "," };
            write!(f, "{open}{name}:{reserve}")?;
        }
        f.write_str("]")
    }
}
