//! Parses `PyTorch`'s syntax of settings, and the forms of values.
//!
//! ```text
//! config = [ entry { "," entry } ]      entry = key ":" value      value = word | "[" config "]"
//! ```
//! Lists are one level deep and contain words only. The value of some keys may be a word, a colon
//! and a number. White space is dropped everywhere, even inside words, as in `PyTorch`.

use super::error::{Accepted, ConfigError, Word};
use super::{RESERVE, Reserve, in_range, refused};
use crate::config::rounding::{Divisions, INTERVALS};
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

/// Calls `visit` with each key and value of `text`, in order, until the first error. `within` is
/// the text before `text` in the whole string, for error messages. The value of a key that
/// `takes_number` may be a word, a colon and a number.
pub(super) fn for_each_entry<'a>(
    within: &Word,
    text: &'a str,
    takes_number: impl Fn(&Word) -> bool,
    mut visit: impl FnMut(&Word, Value<'a>) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    if is_blank(text) {
        return Ok(());
    }
    let mut lexer = Lexer { rest: text };
    let mut after = within.clone();
    loop {
        let name = match lexer.token() {
            Token::Word(word) => word,
            other => return Err(other.instead_of("a key", after)),
        };
        // No key contains `=`, so the mistake is the separator and not the key. Names in lists may
        // contain it.
        if within.is_empty()
            && let Some((key, _)) = name.as_str().split_once('=')
        {
            return Err(Token::Separator('=').instead_of("`:`", Word::of(key)));
        }
        after = Word::of(format_args!("{within}{name}"));
        match lexer.token() {
            Token::Separator(':') => after.push(':'),
            other => return Err(other.instead_of("`:`", after)),
        }
        let value = match lexer.token() {
            Token::Word(word) if takes_number(&name) => Value::Word(lexer.with_number(word)),
            Token::Word(word) => Value::Word(word),
            Token::Separator('[') if within.is_empty() => {
                let Some(list) = lexer.list() else {
                    after.push('[');
                    return Err(Token::End.instead_of("`]`", after));
                };
                Value::List(list)
            }
            other => return Err(other.instead_of("a value", after)),
        };
        after = Word::of(format_args!("{within}{name}:{value}"));
        // Look at the next token before visiting the entry: in `a:1 b:2` the missing comma is the
        // mistake, not the value `1b`.
        let more = match lexer.token() {
            Token::End => false,
            Token::Separator(',') => true,
            other => return Err(other.instead_of("`,`", after)),
        };
        visit(&name, value)?;
        if !more {
            return Ok(());
        }
        after.push(',');
    }
}

/// Returns whether `c` ends a word.
fn is_separator(c: char) -> bool {
    matches!(c, ',' | ':' | '[' | ']')
}

/// Returns whether `c` is white space in the C locale.
fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0B'
}

/// Returns whether `text` has white space only.
fn is_blank(text: &str) -> bool {
    text.chars().all(is_space)
}

/// A token of the string.
enum Token {
    Word(Word),
    Separator(char),
    End,
}

impl Token {
    /// Returns the error of finding this token where `expected` should be.
    fn instead_of(self, expected: &'static str, after: Word) -> ConfigError {
        let found = match self {
            Self::Word(word) => word,
            Self::Separator(c) => Word::of(c),
            Self::End => Word::EMPTY,
        };
        ConfigError::Syntax { expected, after, found }
    }
}

/// Reads a string token by token.
struct Lexer<'a> {
    /// The text not read yet.
    rest: &'a str,
}

impl<'a> Lexer<'a> {
    /// Reads the next token.
    fn token(&mut self) -> Token {
        let mut word = Word::EMPTY;
        let mut chars = self.rest.chars();
        while let Some(c) = chars.next() {
            if is_separator(c) {
                if word.is_empty() {
                    self.rest = chars.as_str();
                    return Token::Separator(c);
                }
                break;
            }
            if !is_space(c) {
                word.push(c);
            }
            self.rest = chars.as_str();
        }
        if word.is_empty() { Token::End } else { Token::Word(word) }
    }

    /// Appends a colon and another word to `word`, if both follow.
    fn with_number(&mut self, mut word: Word) -> Word {
        let mut ahead = Lexer { rest: self.rest };
        if let Token::Separator(':') = ahead.token()
            && let Token::Word(number) = ahead.token()
        {
            word = Word::of(format_args!("{word}:{number}"));
            self.rest = ahead.rest;
        }
        word
    }

    /// Reads the text before the next `]`, and skips the bracket. Returns `None` if there is no
    /// bracket.
    fn list(&mut self) -> Option<&'a str> {
        let (list, rest) = self.rest.split_once(']')?;
        self.rest = rest;
        Some(list)
    }
}

/// The right side of an entry.
pub(super) enum Value<'a> {
    Word(Word),
    /// The text between the brackets.
    List(&'a str),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "{word}"),
            Self::List(list) => write!(f, "[{list}]"),
        }
    }
}

impl Value<'_> {
    /// Returns the error of this value for `key`.
    pub(super) fn refused(&self, key: &'static str, accepted: Accepted) -> ConfigError {
        let value = match self {
            // A clone remembers whether the word was cut; `Display` does not.
            Self::Word(word) => word.clone(),
            Self::List(_) => Word::of(self),
        };
        ConfigError::Value { key, value, accepted }
    }

    /// Returns the text of a word. Returns `None` for a list, and for a word that is too long to be
    /// valid.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Word(word) => word.whole(),
            Self::List(_) => None,
        }
    }

    /// Parses a number.
    pub(super) fn number<T: FromStr>(&self, key: &'static str, accepted: Accepted) -> Result<T, ConfigError> {
        self.text().and_then(|text| text.parse().ok()).ok_or_else(|| self.refused(key, accepted))
    }

    /// Parses a number of mebibytes in `range`, and returns bytes.
    pub(super) fn mebibytes(&self, key: &'static str, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let mib = self.number(key, Accepted::mebibytes(range.clone()))?;
        in_range(key, mib, range)
    }

    /// Parses a power of two up to `most`.
    pub(super) fn power_of_two(&self, key: &'static str, most: u32, accepted: Accepted) -> Result<u32, ConfigError> {
        let number: u32 = self.number(key, accepted)?;
        if number.is_power_of_two() && number <= most { Ok(number) } else { Err(self.refused(key, accepted)) }
    }

    /// Returns which of some words the value is.
    pub(super) fn one_of<const N: usize>(
        &self,
        key: &'static str,
        words: [&str; N],
        accepted: Accepted,
    ) -> Result<usize, ConfigError> {
        let at = words.iter().position(|word| self.text() == Some(word));
        at.ok_or_else(|| self.refused(key, accepted))
    }

    /// Parses a reserve: a number followed by G is in GiB, and any other number is a fraction of
    /// the device. The setter checks the sign.
    pub(super) fn reserve(&self, key: &'static str) -> Result<Reserve, ConfigError> {
        let text = self.text().unwrap_or_default();
        let (number, reserve): (&str, fn(f64) -> Reserve) = match text.strip_suffix(['G', 'g']) {
            Some(number) => (number, Reserve::Gibibytes),
            None => (text, Reserve::Fraction),
        };
        match number.parse() {
            Ok(number) => Ok(reserve(number)),
            Err(_) => Err(self.refused(key, RESERVE)),
        }
    }

    /// Parses one number for all intervals, or a list of intervals.
    pub(super) fn divisions(&self, key: &'static str) -> Result<Divisions, ConfigError> {
        let of_interval = match self {
            Self::Word(_) => [self.power_of_two(key, MOST_DIVISIONS, DIVISIONS)?; INTERVALS],
            Self::List(list) if is_blank(list) => return Err(self.refused(key, DIVISIONS)),
            Self::List(list) => divisions_of_intervals(key, list)?,
        };
        Divisions::new(of_interval).ok_or_else(|| self.refused(key, DIVISIONS))
    }
}

/// Parses a list of intervals.
fn divisions_of_intervals(key: &'static str, list: &str) -> Result<[u32; INTERVALS], ConfigError> {
    let mut of_interval = [0; INTERVALS];
    let mut previous = None;
    let within = Word::of(format_args!("{key}:["));
    for_each_entry(
        &within,
        list,
        |_| false,
        |interval, value| {
            let divisions = match value.text() {
                Some("0") => 0,
                _ => value.power_of_two(key, MOST_DIVISIONS, DIVISIONS_OF_INTERVAL)?,
            };
            if interval.whole() == Some(">") {
                of_interval[previous.unwrap_or(0) + 1..].fill(divisions);
                return Ok(());
            }
            let index = interval_index(interval).ok_or_else(|| refused(key, interval, INTERVAL))?;
            if previous.is_none() {
                of_interval[..index].fill(divisions);
            }
            of_interval[index] = divisions;
            previous = Some(index);
            Ok(())
        },
    )?;
    Ok(of_interval)
}

/// Returns the index of the interval that starts at a size in MiB. Sizes beyond the last interval
/// belong to the last one, as in `PyTorch`.
fn interval_index(mib: &Word) -> Option<usize> {
    let mib: u64 = mib.whole()?.parse().ok()?;
    mib.is_power_of_two().then(|| (mib.ilog2() as usize).min(INTERVALS - 1))
}

const MOST_DIVISIONS: u32 = 1 << 31;
const DIVISIONS: Accepted = Accepted::Text("a power of two up to 2147483648 or a list like `[256:1,512:2,>:4]`");
const DIVISIONS_OF_INTERVAL: Accepted = Accepted::Text("0 or a power of two up to 2147483648 as divisions");
const INTERVAL: Accepted = Accepted::Text("a power of two (MiB) or `>` as interval");
