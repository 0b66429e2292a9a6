//! How a setting is declared, and how the value is read and written.

use super::parse::Value;
use super::passed_on::{Form, Written};
use super::policy::{PLANNED, POLICIES};
use super::{Accepted, Config, ConfigError, MOST_MIB, Word};
use crate::units::MIB;
use core::fmt::{self, Write as _};

/// A setting: the reference, and how the value is read and written.
#[derive(Clone, Copy, Debug)]
pub struct SettingReference {
    /// The key, as [`Config::parse`] reads it.
    pub key: &'static str,
    /// The value without the key.
    pub default: SettingDefault,
    /// A value accepted by the key.
    pub example: &'static str,
    /// The effect of the setting, in Markdown.
    pub effect: &'static str,
    /// The policies with the key. [`EVERY`]: all.
    of: &'static [&'static str],
    /// The key under which the value is written. Differs from `key` for a second name of a setting.
    pub(super) written: &'static str,
    access: Access,
}

/// The value of a setting that is not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingDefault {
    /// A value accepted by the key as well.
    Value(&'static str),
    /// A value without a spelling in the key, described in a few words.
    Unset(&'static str),
}

/// Leads to a part of a configuration.
type Lens<T> = fn(&mut Config) -> &mut T;
/// Parses a value and sets it in a configuration.
type Read = fn(&mut Config, &'static str, &Value<'_>) -> Result<(), ConfigError>;
/// Writes the value of a configuration without a change.
type Write = fn(&mut Config, &mut Writer<'_, '_>) -> fmt::Result;

/// How the value of a setting is read and written.
#[derive(Clone, Copy, Debug)]
enum Access {
    /// The first word for false, the second for true.
    Choice([&'static str; 2], Accepted, Lens<bool>),
    /// The least number of MiB; kept in bytes.
    Mebibytes(u64, Lens<u64>),
    /// A whole number.
    Whole(Accepted, Lens<u64>),
    /// Without effect.
    PassedOn(Form),
    /// By own functions.
    Own(Read, Write),
}

/// A value that no key accepts.
const NO_VALUE: &str = "?";
/// The most bytes of a policy, a key and a value without a meaning.
const MOST_ENTRIES: usize = 96;

/// All policies.
pub(super) const EVERY: &[&str] = &[];

/// Creates a setting of the caching policy. Unless told how, the value is neither read nor written.
pub(super) const fn setting(key: &'static str, default: SettingDefault, example: &'static str) -> SettingReference {
    let access = Access::Own(|_, _, _| Ok(()), |_, _| Ok(()));
    SettingReference { key, default, example, effect: "", of: &["caching"], written: key, access }
}

/// Declares functions for settings whose values are read and written in a common way.
macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $Type:ty),*) = $access:expr $(, of $of:expr)?;)*) => {$(
        $(#[$doc])*
        pub(super) const fn $name(
            key: &'static str,
            default: SettingDefault,
            example: &'static str,
            $($argument: $Type),*
        ) -> SettingReference {
            SettingReference { access: $access, ..setting(key, default, example)$(.of($of))? }
        }
    )*};
}

constructors! {
    /// Creates a setting with two words: the first for false, the second for true.
    choice(words: [&'static str; 2], accepted: Accepted, part: Lens<bool>) = Access::Choice(words, accepted, part);
    /// Creates a setting with the values `True` and `False`.
    flag(part: Lens<bool>) = Access::Choice(["False", "True"], Accepted::Boolean, part);
    /// Creates a setting in MiB, at least `least`.
    mebibytes(least: u64, part: Lens<u64>) = Access::Mebibytes(least, part);
    /// Creates a setting with a whole number.
    whole(accepted: Accepted, part: Lens<u64>) = Access::Whole(accepted, part);
    /// Creates a setting without effect, of every policy.
    passed_on(form: Form) = Access::PassedOn(form), of EVERY;
}

impl SettingReference {
    /// Changes the policies with the key.
    pub(super) const fn of(mut self, policies: &'static [&'static str]) -> Self {
        self.of = policies;
        self
    }

    /// Makes the key a second name of `key`, under which the value is written.
    pub(super) const fn another_name_of(mut self, key: &'static str) -> Self {
        self.written = key;
        self
    }

    /// Sets how the value is read.
    pub(super) const fn reads(mut self, read: Read) -> Self {
        if let Access::Own(own, _) = &mut self.access {
            *own = read;
        }
        self
    }

    /// Sets how the value is written.
    pub(super) const fn writes(mut self, write: Write) -> Self {
        if let Access::Own(_, own) = &mut self.access {
            *own = write;
        }
        self
    }

    /// Sets the effect.
    pub(super) const fn effect(mut self, effect: &'static str) -> Self {
        self.effect = effect;
        self
    }

    /// Returns the policies with the key: those that place blocks, or else `planned`.
    pub fn policies(&self) -> impl Iterator<Item = &'static str> {
        let Self { of, .. } = *self;
        let is_planned = of == [PLANNED];
        let has = move |policy: &&str| of.is_empty() || of.contains(policy);
        POLICIES.into_iter().filter(has).filter(move |&policy| is_planned || policy != PLANNED)
    }

    /// Returns the values that the key accepts, under the first policy that has it.
    #[must_use]
    pub fn accepted(&self) -> Option<Accepted> {
        let mut text = heapless::String::<MOST_ENTRIES, u8>::new();
        if self.key != "policy" {
            write!(text, "policy:{},", self.policies().next()?).ok()?;
        }
        write!(text, "{}:{NO_VALUE}", self.key).ok()?;
        match Config::parse(&text) {
            Err(ConfigError::Value { accepted, .. }) => Some(accepted),
            _ => None,
        }
    }

    /// Returns whether the policy named `policy` has the key.
    pub(super) fn is_of(&self, policy: &str) -> bool {
        self.of.is_empty() || self.of.contains(&policy)
    }

    /// Returns whether a configuration accepts the key.
    pub(super) fn is_accepted(&self, config: &Config) -> bool {
        self.is_of(config.policy.name()) || config.planned.is_some() && self.is_of(PLANNED)
    }

    /// Sets a value, which is parsed first.
    pub(super) fn read(&self, config: &mut Config, value: &Value<'_>) -> Result<(), ConfigError> {
        let key = self.key;
        match self.access {
            Access::Choice(words, accepted, part) => *part(config) = value.one_of(key, words, accepted)? == 1,
            Access::Mebibytes(least, part) => *part(config) = value.mebibytes(key, least..=MOST_MIB)?,
            Access::Whole(accepted, part) => *part(config) = value.number(key, accepted)?,
            Access::PassedOn(form) => return config.passed_on.read(self.written, form, key, value),
            Access::Own(read, _) => return read(config, key, value),
        }
        Ok(())
    }

    /// Writes the entry, if the value is not the default.
    pub(super) fn write(&self, config: &mut Config, out: &mut Writer<'_, '_>) -> fmt::Result {
        match self.access {
            Access::Choice(words, _, part) => out.some(Some(words[usize::from(*part(config))])),
            Access::Mebibytes(_, part) => out.some(Some(*part(config) / MIB)),
            Access::Whole(_, part) => out.some(Some(*part(config))),
            Access::PassedOn(form) => out.some(config.passed_on(self.key).map(|number| Written { form, number })),
            Access::Own(_, write) => write(config, out),
        }
    }
}

/// Writes entries with commas between them.
pub(super) struct Writer<'a, 'b> {
    pub(super) f: &'a mut fmt::Formatter<'b>,
    pub(super) comma: &'static str,
    /// The setting whose entry is written.
    pub(super) setting: &'static SettingReference,
}

impl Writer<'_, '_> {
    /// Writes the entry of the current setting, unless the value is absent or the default.
    pub(super) fn some(&mut self, value: Option<impl fmt::Display>) -> fmt::Result {
        let SettingReference { key, default, .. } = self.setting;
        let is_default =
            |value: &_| matches!(default, SettingDefault::Value(text) if Word::of(value).as_str() == *text);
        let Some(value) = value.filter(|value| !is_default(value)) else { return Ok(()) };
        let comma = core::mem::replace(&mut self.comma, ",");
        write!(self.f, "{comma}{key}:{value}")
    }
}

/// Writes every digit needed to read the number back, with an exponent where there are many zeros.
pub(super) struct Exact(pub(super) f64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
