//! Keys without effect: checked as `PyTorch` checks them, kept, and written again.

use super::error::{Accepted, ConfigError, Word};
use super::parse::{Value, for_each_entry};
use super::{MOST_MIB, Reserve, key, refused, valid_reserve};
use crate::units::MIB;
use core::fmt;
use heapless::LinearMap;

/// The most stream classes with an address reserve of their own.
const MOST_CLASSES: usize = 8;
/// The longest name of a stream class, in bytes.
const CLASS_BYTES: usize = 32;
/// The name of a stream class.
type ClassName = heapless::String<CLASS_BYTES, u8>;

/// The form of a value.
#[derive(Clone, Copy)]
enum Form {
    /// `True` or `False`. `True` counts as 1.
    Flag,
    /// A number of threads.
    Threads,
    /// A number of MiB, at least this.
    Mebibytes(u64),
}

/// A key whose value is a number.
struct NumberKey {
    key: &'static str,
    /// Another name of the key, or the key again.
    other_name: &'static str,
    form: Form,
    /// Why the key has no effect.
    reason: &'static str,
}

const fn row(key: &'static str, form: Form) -> NumberKey {
    NumberKey { key, other_name: key, form, reason: NOT_PINNED }
}

/// Why a key without effect has none. The reference of settings says the same.
const NO_LOCK: &str = "cached requests never wait for a lock during a call of the driver";
const NOT_PINNED: &str = "pinned memory has the settings of other memory";
const NO_CLASSES: &str = "the library knows no classes of streams";

impl NumberKey {
    /// Adds another name of the key.
    const fn also(self, other_name: &'static str) -> Self {
        Self { other_name, ..self }
    }
}

/// The keys whose value is a number, in the order in which they are written.
static ROWS: [NumberKey; 8] = [
    NumberKey { reason: NO_LOCK, ..row(key::RELEASE_LOCK_ON_CUDAMALLOC, Form::Flag) }
        .also(key::RELEASE_LOCK_ON_HIPMALLOC),
    row(key::PINNED_USE_CUDA_HOST_REGISTER, Form::Flag).also(key::PINNED_USE_HIP_HOST_REGISTER),
    row(key::PINNED_NUM_REGISTER_THREADS, Form::Threads),
    row(key::PINNED_USE_BACKGROUND_THREADS, Form::Flag),
    row(key::PINNED_RESERVE_SEGMENT_SIZE_MB, Form::Mebibytes(1)),
    row(key::PINNED_MAX_ROUND_THRESHOLD_MB, Form::Mebibytes(0)),
    row(key::PINNED_MAX_CACHED_SIZE_MB, Form::Mebibytes(0)),
    row(key::PINNED_FREE_CATCH_ALL, Form::Flag),
];

/// `PyTorch`'s own limit (2.0–2.15).
const MOST_REGISTER_THREADS: u32 = 128;
const REGISTER_THREADS: Accepted = Accepted::Text("a power of two up to 128");
const CLASSES: Accepted = Accepted::Text("a list like `[name:0.5,other:40G]`");
const CLASS_NAME: Accepted = Accepted::Text("class names of 1 to 32 bytes without white space or separators");
const CLASS_COUNT: Accepted = Accepted::Text("up to 8 classes");

const _: () = assert!(MOST_CLASSES == 8 && CLASS_BYTES == 32); // The texts above state both numbers.

/// The values of the keys without effect.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PassedOn {
    /// The numbers, in the order of the rows. `None` is the default.
    numbers: [Option<u64>; ROWS.len()],
    /// The classes of streams with an address reserve of their own.
    classes: LinearMap<ClassName, Reserve, MOST_CLASSES>,
}

impl PassedOn {
    /// Returns the defaults.
    pub(super) const fn new() -> Self {
        Self { numbers: [None; ROWS.len()], classes: LinearMap::new() }
    }

    /// Checks the value of a key of the table, by either name, and keeps it.
    pub(super) fn read(&mut self, key: &'static str, value: &Value<'_>) -> Result<(), ConfigError> {
        let Some(at) = ROWS.iter().position(|row| row.key == key || row.other_name == key) else {
            return self.read_classes(key, value);
        };
        self.numbers[at] = match ROWS[at].form {
            Form::Flag => {
                let mut is_on = false;
                value.read_boolean(key, &mut is_on)?;
                is_on.then_some(1)
            }
            Form::Threads => {
                let threads = value.power_of_two(key, MOST_REGISTER_THREADS, REGISTER_THREADS)?;
                (threads > 1).then_some(threads.into())
            }
            Form::Mebibytes(least) => Some(value.mebibytes(key, least..=MOST_MIB)? / MIB),
        };
        Ok(())
    }

    /// Checks a list of classes, which replaces all classes kept before.
    fn read_classes(&mut self, key: &'static str, value: &Value<'_>) -> Result<(), ConfigError> {
        let Value::List(list) = value else {
            return Err(value.refused(key, CLASSES));
        };
        self.classes.clear();
        for_each_entry(&Word::of(format_args!("{key}:[")), list, |class, value| {
            let (class, reserve) = (class.as_str(), value.reserve(key)?);
            let name = ClassName::try_from(class).map_err(|_| refused(key, class, CLASS_NAME))?;
            let kept = self.classes.insert(name, valid_reserve(key, reserve)?);
            kept.map(|_before| ()).map_err(|_| refused(key, class, CLASS_COUNT))
        })
    }

    /// Iterates over the keys whose value is a number other than the default.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (&'static str, Written)> {
        self.rows().map(|(row, number)| (row.key, Written { form: row.form, number }))
    }

    /// Iterates over the keys whose value is not the default, with the reason why each has no effect.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let of_classes = (key::EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS, NO_CLASSES);
        self.classes().map(|_| of_classes).into_iter().chain(self.rows().map(|(row, _)| (row.key, row.reason)))
    }

    fn rows(&self) -> impl Iterator<Item = (&'static NumberKey, u64)> {
        ROWS.iter().zip(self.numbers).filter_map(|(row, number)| Some((row, number?)))
    }

    /// Returns the classes of streams, as a list, if there are any.
    pub(super) fn classes(&self) -> Option<impl fmt::Display> {
        (!self.classes.is_empty()).then_some(Classes(self))
    }
}

/// A number, written as its key takes it.
#[derive(Clone, Copy)]
pub(super) struct Written {
    form: Form,
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
