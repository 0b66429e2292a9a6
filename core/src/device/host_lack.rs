//! Why the host served no more of a request (`spill`), as a report of failed requests says it.

use core::fmt;

/// Why a request got no more pages of the host.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum HostLack {
    /// The request asked for none.
    #[default]
    NotAsked,
    /// The setting `spill` allows no more.
    Limit,
    /// The host would have had too little memory left for itself.
    Share,
    /// The host has no more memory.
    Memory,
    /// The device cannot map memory of the host.
    Unsupported,
}

impl HostLack {
    /// Writes how much lies on the host, and why it is not more. Writes nothing if nothing does,
    /// and nothing was asked for.
    pub(super) fn explain<D: fmt::Display>(
        self,
        f: &mut fmt::Formatter<'_>,
        spilled: u64,
        size: &impl Fn(u64) -> D,
    ) -> fmt::Result {
        if self == Self::NotAsked && spilled == 0 {
            return Ok(());
        }
        write!(f, " {} lie on the host", size(spilled))?;
        f.write_str(match self {
            Self::NotAsked => ".",
            Self::Limit => ", and `spill` allows no more.",
            Self::Share => ", which would have too little memory left for itself after more.",
            Self::Memory => ", which has no more memory.",
            Self::Unsupported => ": the device cannot map memory of the host.",
        })
    }
}
