//! What takes the place of a record's own settings.

use super::bytes;
use cachalot_core::Config;
use cachalot_replay::compare::policy_named;

/// What the command line says of them.
#[derive(clap::Args)]
pub(crate) struct Settings {
    #[arg(
        long,
        value_name = "STRING",
        value_parser = Config::parse,
        help = "The configuration in PyTorch's syntax, in the place of the record's own"
    )]
    config: Option<Config>,
    /// A policy with its defaults, in the place of the record's own configuration; `planned` observes an iteration of the first half
    /// and serves what follows from a plan, and its bytes and times are those of what follows
    #[arg(long, value_name = "NAME", value_parser = policy_named, conflicts_with = "config")]
    policy: Option<&'static str>,
    /// The memory limit, in bytes or with KiB, MiB, GiB or TiB, in the place of the record's own
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    pub(crate) limit: Option<u64>,
}

impl Settings {
    /// The configuration that takes the place of the record's own, if one does.
    pub(crate) fn config(&self) -> Option<Config> {
        let named = self.policy.and_then(|name| Config::parse(&format!("policy:{name}")).ok());
        self.config.clone().or(named)
    }
}
