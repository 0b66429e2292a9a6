//! Why a setting was refused. An error is a value of its own: it borrows nothing from the string it is about.

use super::policy::Policy;
use core::fmt::{self, Write as _};
use core::ops::RangeInclusive;

/// How many bytes of the offending text an error keeps; the longest key has 36.
pub const WORD_BYTES: usize = 48;

/// Why a configuration was refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// No setting has this key.
    UnknownKey {
        /// The key as written.
        key: Word,
    },
    /// The key is one of another policy than the one that is set.
    OtherPolicy {
        /// The key.
        key: &'static str,
        /// The policy that is set.
        policy: Policy,
    },
    /// The string breaks off, or a key, a value or a separator is missing, doubled or misplaced.
    Syntax {
        /// What had to stand there.
        expected: &'static str,
        /// The text of the entry before it; empty at the start of the string.
        after: Word,
        /// What stands there instead; empty at the end of the string.
        found: Word,
    },
    /// The key exists and does not take this value.
    Value {
        /// The key.
        key: &'static str,
        /// The value as written.
        value: Word,
        /// What the key takes.
        accepted: Accepted,
    },
}

/// The values that a key takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Accepted {
    /// `True` or `False`, exactly.
    Boolean,
    /// A whole number of mebibytes.
    Mebibytes {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// What the text says.
    Text(&'static str),
}

/// The start of a piece of text, at most [`WORD_BYTES`] long.
#[derive(Clone, PartialEq, Eq)]
pub struct Word {
    text: heapless::String<WORD_BYTES, u8>,
    /// Set iff something was left off.
    cut: bool,
}

impl Word {
    pub(super) const EMPTY: Self = Self { text: heapless::String::new(), cut: false };

    /// What `value` displays, cut after [`WORD_BYTES`].
    pub(super) fn of(value: impl fmt::Display) -> Self {
        let mut word = Self::EMPTY;
        // `write_str` below never fails.
        let _ = write!(word, "{value}");
        word
    }

    pub(super) fn push(&mut self, c: char) {
        // Once cut, always cut: a shorter character must not slip in behind one that did not fit.
        self.cut = self.cut || self.text.push(c).is_err();
    }

    /// The text that was kept.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The text, if it was kept whole.
    #[must_use]
    pub fn whole(&self) -> Option<&str> {
        (!self.cut).then_some(&self.text)
    }

    /// Whether text was left off.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

impl fmt::Write for Word {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().for_each(|c| self.push(c));
        Ok(())
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())?;
        f.write_str(if self.cut { "…" } else { "" })
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A message is one line, whatever the text holds.
        self.text.chars().try_for_each(|c| f.write_char(if c.is_control() { ' ' } else { c }))?;
        f.write_str(if self.cut { "…" } else { "" })
    }
}

impl Accepted {
    pub(super) fn mebibytes(range: RangeInclusive<u64>) -> Self {
        let (least, most) = range.into_inner();
        Self::Mebibytes { least, most }
    }
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("`True` or `False`"),
            Self::Mebibytes { least, most } => {
                write!(f, "a whole number of MiB from {least} to {most}")
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl core::error::Error for ConfigError {}
