//! Options that replace the settings of a record.

use super::bytes;
use cachalot_core::Config;
use cachalot_policies::NAMES;
use cachalot_replay::compare::{WrongConfiguration, policy_named};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Options that replace settings.
#[derive(clap::Args)]
pub(crate) struct Settings {
    #[arg(
        long,
        value_name = "STRING",
        value_parser = cachalot_policies::parse,
        help = "The configuration in PyTorch's syntax, instead of the recorded one"
    )]
    config: Option<Config>,
    /// A policy with default settings, instead of the recorded configuration. `planned` observes an
    /// iteration of the first half of the program and serves the second half from a plan; the
    /// figures are for the second half
    #[arg(long, value_name = "NAME", value_parser = policy(), conflicts_with = "config")]
    policy: Option<&'static str>,
    /// The memory limit, instead of the recorded limit: bytes, or a number with KiB, MiB, GiB, TiB,
    /// or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    pub(crate) limit: Option<u64>,
}

/// Returns the parser of a policy's name, which tells the shell the names.
pub(crate) fn policy() -> impl TypedValueParser<Value = &'static str> {
    policy_but("")
}

/// Returns the parser of a policy's name, which tells the shell all names but one.
pub(crate) fn policy_but(hidden: &'static str) -> impl TypedValueParser<Value = &'static str> {
    let names = NAMES.map(|name| PossibleValue::new(name).hide(name == hidden));
    PossibleValuesParser::new(names).try_map(|name| policy_named(&name))
}

/// Returns the message for a configuration that no contender can have, in the words of every other
/// option.
pub(crate) fn refusal(WrongConfiguration { text, mistake }: &WrongConfiguration) -> String {
    format!("error: invalid value '{text}' for '--config <STRING>': {mistake}\n\nFor more information, try '--help'.")
}

impl Settings {
    /// Returns whether any option is given.
    pub(crate) fn are_given(&self) -> bool {
        self.config.is_some() || self.policy.is_some() || self.limit.is_some()
    }

    /// Returns the configuration in place of the record's own, if given.
    pub(crate) fn config(&self) -> Option<Config> {
        let named = self.policy.and_then(|name| cachalot_policies::parse(&format!("policy:{name}")).ok());
        self.config.clone().or(named)
    }
}
