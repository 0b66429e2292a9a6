//! Declares settings, and reads and writes their values.

use super::parse::Value;
use super::passed_on::{Form, Written};
use super::policy::{PLANNED, Policy};
use super::suballocation::Policies;
use super::{Accepted, Config, ConfigError, MOST_MIB, Word};
use crate::suballoc::{OptionReference, Suballocation};
use crate::units::MIB;
use core::fmt::{self, Write as _};

/// A setting: its entry in the reference, and how its value is read and written.
#[derive(Clone, Copy, Debug)]
pub struct SettingReference {
    /// The key, as [`Config::parse`] reads it.
    pub key: &'static str,
    /// The value if the key is not set.
    pub default: SettingDefault,
    /// A value accepted by the key.
    pub example: &'static str,
    /// The effect of the setting, in Markdown.
    pub effect: &'static str,
    /// The policies with the key. [`EVERY`] means all of them.
    of: &'static [&'static str],
    /// The key under which the value is written. It differs from `key` for a second name of a
    /// setting.
    pub(super) written: &'static str,
    /// Whether the entry is written at the end of the string form.
    pub(super) is_last: bool,
    /// The step in which the value is read.
    pub(super) order: ReadOrder,
    /// The description of the values under the planned policy, if only the default is accepted
    /// there.
    unplanned: Option<Accepted>,
    /// Whether the value may be a word, a colon and a number.
    pub(super) takes_number: bool,
    access: Access,
}

/// The value of a setting that is not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingDefault {
    /// A value that the key accepts, too.
    Value(&'static str),
    /// A value that the key cannot spell, described in a few words.
    Unset(&'static str),
}

/// The step in which the value of a setting is read. Settings of one step are read in the order of
/// the string.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum ReadOrder {
    /// First, because other values are checked against it.
    First,
    /// After the settings of the first step, because they decide whether it has an effect.
    Second,
    /// After both.
    Last,
}

/// Returns a part of a configuration.
type Lens<T> = fn(&mut Config) -> &mut T;
/// Parses a value and sets it in a configuration.
type Read = fn(&mut Config, &'static str, &Value<'_>) -> Result<(), ConfigError>;
/// Writes the value in a configuration, which it does not change.
type Write = fn(&mut Config, &mut Writer<'_>) -> fmt::Result;

/// The way to read and write the value of a setting.
#[derive(Clone, Copy, Debug)]
enum Access {
    /// One of two words: the first means false, and the second means true.
    Choice([&'static str; 2], Accepted, Lens<bool>),
    /// A number of MiB, at least this one. The value is kept in bytes.
    Mebibytes(u64, Lens<u64>),
    /// A whole number.
    Whole(Accepted, Lens<u64>),
    /// The option at a place of a host's policy.
    Option(usize, &'static OptionReference),
    /// A value without effect.
    PassedOn(Form),
    /// A value with its own functions.
    Own(Read, Write),
}

/// A value that no key accepts.
const NO_VALUE: &str = "?";
/// The greatest length in bytes of a string with a policy, a key and [`NO_VALUE`].
const MOST_ENTRIES: usize = 96;
/// The policy of the row that has the setting.
const OF_ITS_ROW: &[&str] = &[""];

/// All policies.
pub(super) const EVERY: &[&str] = &[];

/// Creates a setting of the caching policy. Until functions are given, the value is neither read
/// nor written.
pub(super) const fn setting(key: &'static str, default: SettingDefault, example: &'static str) -> SettingReference {
    let access = Access::Own(|_, _, _| Ok(()), |_, _| Ok(()));
    SettingReference {
        key,
        default,
        example,
        effect: "",
        of: &["caching"],
        written: key,
        is_last: false,
        order: ReadOrder::Last,
        unplanned: None,
        takes_number: false,
        access,
    }
}

/// Declares a part of the configuration: a structure, and for each setting its field, the default,
/// the methods that read and set it, and the rows of its keys. This is the only place to edit for
/// another setting.
///
/// ```text
/// /// Returns whether …                  the field's doc, and the getter's
/// name: Type = default,                  the field, in the unit that the code uses
///     read by name, set by set_name,     methods, if reading and setting need no more code
///     in placement;                      taken over by the method that the first line names
/// row flag("key", …).effect("…");        how the key is read, written and documented
/// ```
/// The rows are in the order of the string form.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $Struct:ident with $fields:vis fields $(, $take:ident($from:ident))?;
        $(row $first:expr;)*
        $(
            $(#[$doc:meta])+
            $field:ident: $Type:ty = $default:expr
                $(, read by $get:ident)? $(, set by $set:ident)? $(, in $part:ident)?;
            $(row $row:expr;)*
        )*
    ) => {
        $(#[$meta])*
        pub struct $Struct {
            $($(#[$doc])+ $fields $field: $Type,)*
        }

        impl $Struct {
            /// The defaults.
            $fields const DEFAULT: Self = Self { $($field: $default,)* };
            /// The settings, in the order of the string form.
            pub(super) const ROWS: &[SettingReference] = &[$($first,)* $($($row,)*)*];

            $(
                settings!(@get [$($get)?] $field: $Type, $(#[$doc])+);
                settings!(@set [$($set)?] $field: $Type);
            )*
            settings!(@take [$($take $from)?] $([$field $($part)?])*);
        }

        impl Default for $Struct {
            fn default() -> Self {
                Self::DEFAULT
            }
        }
    };
    (@get [] $($rest:tt)*) => {};
    (@get [$get:ident] $field:ident: $Type:ty, $(#[$doc:meta])+) => {
        $(#[$doc])+
        #[must_use]
        pub const fn $get(&self) -> $Type {
            self.$field
        }
    };
    (@set [] $($rest:tt)*) => {};
    (@set [$set:ident] $field:ident: $Type:ty) => {
        #[doc = concat!("Sets `", stringify!($field), "`.")]
        pub fn $set(&mut self, value: $Type) {
            self.$field = value;
        }
    };
    (@take [] $($rest:tt)*) => {};
    (@take [$take:ident $from:ident] $([$field:ident $($other:ident)?])*) => {
        /// Takes the settings of placement from another configuration: all settings that may change
        /// while an allocator of the caching policy exists, and that a search for settings varies.
        /// Every other setting remains as it is.
        pub fn $take(&mut self, $from: &Self) {
            $($(self.$field = $other.$field;)?)*
        }
    };
}
pub(super) use settings;

/// Declares functions for the settings with values that are read and written in a common way.
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
    /// Sets which policies have the key.
    pub(super) const fn of(mut self, policies: &'static [&'static str]) -> Self {
        self.of = policies;
        self
    }

    /// Makes the key a second name of `key`, under which the value is written.
    pub(super) const fn another_name_of(mut self, key: &'static str) -> Self {
        self.written = key;
        self
    }

    /// Puts the entry at the end of the string form.
    pub(super) const fn last(mut self) -> Self {
        self.is_last = true;
        self
    }

    /// Sets the step in which the value is read.
    pub(super) const fn at(mut self, order: ReadOrder) -> Self {
        self.order = order;
        self
    }

    /// Accepts only the default under the planned policy.
    pub(super) const fn unplanned(mut self, accepted: Accepted) -> Self {
        self.unplanned = Some(accepted);
        self
    }

    /// Accepts a colon and a number after the word of a value.
    pub(super) const fn with_number(mut self) -> Self {
        self.takes_number = true;
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

    /// Iterates over the policies with the key, of the core and of a table: those that place
    /// blocks, or else `planned`.
    pub fn policies(&self, table: Policies) -> impl Iterator<Item = &'static str> {
        let setting = *self;
        let is_planned = self.of == [PLANNED];
        let has = move |name: &&str| match table.named(name) {
            Some(policy) => setting.is_of(policy),
            None => is_planned,
        };
        table.names().filter(has)
    }

    /// Returns the description of the values that the key accepts, under the first policy that has
    /// it.
    #[must_use]
    pub fn accepted(&self, table: Policies) -> Option<Accepted> {
        let mut text = heapless::String::<MOST_ENTRIES, u8>::new();
        if self.key != "policy" {
            write!(text, "policy:{},", self.policies(table).next()?).ok()?;
        }
        write!(text, "{}:{NO_VALUE}", self.key).ok()?;
        match Config::parse_with(table, &text) {
            Err(ConfigError::Value { accepted, .. }) => Some(accepted),
            _ => None,
        }
    }

    /// Returns whether the policy has the key.
    pub(super) fn is_of(&self, policy: Policy) -> bool {
        let is_own = policy.settings().any(|setting| setting.key == self.key);
        let is_shared = matches!(policy, Policy::Suballocated(own) if own.rules.shared.contains(&self.key));
        is_own || is_shared || self.is_of_name(policy.name())
    }

    /// Returns whether the policy named `policy` has the key.
    fn is_of_name(&self, policy: &str) -> bool {
        self.of.is_empty() || self.of.contains(&policy)
    }

    /// Returns whether a configuration accepts the key.
    pub(super) fn is_accepted(&self, config: &Config) -> bool {
        self.is_of(config.policy) || config.planned.is_some() && self.is_of_name(PLANNED)
    }

    /// Parses a value and sets it. After an error `config` may have changed.
    pub(super) fn read(&self, config: &mut Config, value: &Value<'_>) -> Result<(), ConfigError> {
        let key = self.key;
        match self.access {
            Access::Choice(words, accepted, part) => *part(config) = value.one_of(key, words, accepted)? == 1,
            Access::Mebibytes(least, part) => *part(config) = value.mebibytes(key, least..=MOST_MIB)?,
            Access::Whole(accepted, part) => *part(config) = value.number(key, accepted)?,
            Access::Option(place, option) => {
                let accepted = Accepted::Text(option.accepted);
                let number = value.number(key, accepted)?;
                if !(option.accepts)(number) {
                    return Err(value.refused(key, accepted));
                }
                if let Policy::Suballocated(own) = &mut config.policy {
                    own.options[place] = number.saturating_mul(option.unit);
                }
            }
            Access::PassedOn(form) => config.passed_on.read(self.written, form, key, value)?,
            Access::Own(read, _) => read(config, key, value)?,
        }
        match self.unplanned {
            Some(accepted) if config.planned.is_some() && self.is_set(config) => Err(value.refused(key, accepted)),
            _ => Ok(()),
        }
    }

    /// Returns whether the value is not the default.
    fn is_set(&self, config: &mut Config) -> bool {
        let mut entry = Word::EMPTY;
        // Writing to a word never fails.
        let _ = self.write(config, &mut Writer { out: &mut entry, comma: "", setting: *self });
        !entry.is_empty()
    }

    /// Writes the entry, if the value is not the default.
    pub(super) fn write(&self, config: &mut Config, out: &mut Writer<'_>) -> fmt::Result {
        match self.access {
            Access::Choice(words, _, part) => out.some(Some(words[usize::from(*part(config))])),
            Access::Mebibytes(_, part) => out.some(Some(*part(config) / MIB)),
            Access::Whole(_, part) => out.some(Some(*part(config))),
            Access::Option(place, option) => match config.policy {
                Policy::Suballocated(own) => out.some(Some(own.options[place] / option.unit)),
                _ => Ok(()),
            },
            Access::PassedOn(form) => out.some(config.passed_on(self.key).map(|number| Written { form, number })),
            Access::Own(_, write) => write(config, out),
        }
    }
}

/// Iterates over the settings of a host's policy.
fn settings_of(rules: &'static Suballocation) -> impl Iterator<Item = SettingReference> + Clone {
    rules.settings.iter().enumerate().map(|(place, option)| {
        let &OptionReference { key, example, effect, .. } = option;
        let plain = setting(key, SettingDefault::Value(option.default), example).of(OF_ITS_ROW).effect(effect);
        SettingReference { access: Access::Option(place, option), ..plain }
    })
}

impl Policy {
    /// Iterates over the own settings of a host's policy.
    pub(super) fn settings(self) -> impl Iterator<Item = SettingReference> + Clone {
        let rules = if let Self::Suballocated(own) = self { Some(own.rules) } else { None };
        rules.into_iter().flat_map(settings_of)
    }
}

impl Policies {
    /// Iterates over the settings of the table's policies.
    pub fn settings(self) -> impl Iterator<Item = SettingReference> + Clone {
        self.rows().iter().flat_map(settings_of)
    }
}

/// Writes entries with commas between them.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut dyn fmt::Write,
    pub(super) comma: &'static str,
    /// The setting of the entry.
    pub(super) setting: SettingReference,
}

impl Writer<'_> {
    /// Writes the entry of the current setting, unless the value is absent or the default.
    pub(super) fn some(&mut self, value: Option<impl fmt::Display>) -> fmt::Result {
        let SettingReference { key, default, .. } = self.setting;
        let is_default = |value: &_| matches!(default, SettingDefault::Value(text) if Word::of(value).as_str() == text);
        let Some(value) = value.filter(|value| !is_default(value)) else { return Ok(()) };
        let comma = core::mem::replace(&mut self.comma, ",");
        write!(self.out, "{comma}{key}:{value}")
    }
}

/// Writes every digit that is needed to read the number back, with an exponent if there are many
/// zeros.
pub(super) struct Exact(pub(super) f64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
