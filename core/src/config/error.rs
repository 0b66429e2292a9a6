//! The errors of settings. An error borrows nothing from the parsed string.

use super::policy::Policy;
use super::suballocation::Policies;
use core::fmt::{self, Write as _};
use core::ops::RangeInclusive;

/// The number of bytes of the offending text that an error keeps. The longest key has 36.
pub const WORD_BYTES: usize = 48;

/// The reason why a configuration was refused. The configuration is unchanged. The message names
/// the keys or values that are accepted, or a similar key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// No setting has this key. The caller corrects the key; the message proposes a similar key,
    /// and [`REFERENCE`](super::REFERENCE) lists those of the core.
    UnknownKey {
        /// The key as written.
        key: Word,
        /// The policies of the host, which have settings as well.
        policies: Policies,
    },
    /// The key belongs to another policy than the configured one. The caller removes the key or
    /// changes the policy.
    OtherPolicy {
        /// The key.
        key: &'static str,
        /// The configured policy.
        policy: Policy,
    },
    /// The string ends too early, or a key, a value or a separator is missing, doubled or
    /// misplaced.
    Syntax {
        /// The token that was expected.
        expected: &'static str,
        /// The text of the entry before the error; empty at the start of the string.
        after: Word,
        /// The token found instead; empty at the end of the string.
        found: Word,
    },
    /// The key does not accept this value.
    Value {
        /// The key.
        key: &'static str,
        /// The value as written.
        value: Word,
        /// The accepted values.
        accepted: Accepted,
    },
}

/// The values accepted by a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Accepted {
    /// `True` or `False`, in this spelling.
    Boolean,
    /// A whole number of mebibytes.
    Mebibytes {
        /// The smallest number.
        least: u64,
        /// The largest number.
        most: u64,
    },
    /// The name of a policy.
    Policy {
        /// Whether only policies are accepted that can be the fallback of the planned policy.
        fallback: bool,
        /// The policies of the host.
        policies: Policies,
    },
    /// The values that the text describes.
    Text(&'static str),
}

/// The start of a text, at most [`WORD_BYTES`] long.
#[derive(Clone, PartialEq, Eq)]
pub struct Word {
    /// The text kept.
    text: heapless::String<WORD_BYTES, u8>,
    /// Set iff the text was longer.
    cut: bool,
}

impl Word {
    /// The empty text.
    pub(super) const EMPTY: Self = Self { text: heapless::String::new(), cut: false };

    /// Formats `value`, cut after [`WORD_BYTES`].
    pub(super) fn of(value: impl fmt::Display) -> Self {
        let mut word = Self::EMPTY;
        // `write_str` below never fails.
        let _ = write!(word, "{value}");
        word
    }

    /// Appends a character, unless the text is cut.
    pub(super) fn push(&mut self, c: char) {
        // Once the text is cut, it remains cut: a shorter character must not be appended after one
        // that did not fit.
        self.cut = self.cut || self.text.push(c).is_err();
    }

    /// Returns the text kept.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text, or `None` if the text was cut.
    #[must_use]
    pub fn whole(&self) -> Option<&str> {
        (!self.cut).then_some(&self.text)
    }

    /// Returns whether the text was cut.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns whether the text is empty.
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
        // A message is a single line, whatever the text contains.
        self.text.chars().try_for_each(|c| f.write_char(if c.is_control() { ' ' } else { c }))?;
        f.write_str(if self.cut { "…" } else { "" })
    }
}

impl Accepted {
    /// Returns the description of a range of mebibytes.
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
            Self::Policy { fallback, policies } => {
                let caches = |name| policies.named(name).is_some_and(|policy| policy.traits().caches);
                let names = policies.names().filter(|name| !fallback || caches(name));
                let last = names.clone().count() - 1;
                names.enumerate().try_for_each(|(i, name)| {
                    let before = if i == 0 {
                        ""
                    } else if i == last {
                        " or "
                    } else {
                        ", "
                    };
                    write!(f, "{before}`{name}`")
                })
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl core::error::Error for ConfigError {}
