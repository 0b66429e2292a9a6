//! Options that replace the settings of a record.

use super::bytes;
use cachalot_core::Config;
use cachalot_replay::compare::policy_named;

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
    #[arg(long, value_name = "NAME", value_parser = policy_named, conflicts_with = "config")]
    policy: Option<&'static str>,
    /// The memory limit, instead of the recorded limit: bytes, or a number with KiB, MiB, GiB, TiB,
    /// or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    pub(crate) limit: Option<u64>,
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
