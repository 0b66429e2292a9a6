//! The reasons why there is no driver.

use super::result::CuResult;
use core::ffi::CStr;
use core::fmt;
use std::path::PathBuf;

/// The oldest driver that is accepted: CUDA 11.4, the first with `cuGraphInstantiateWithFlags` and `cuDeviceGetUuid_v2`.
pub const OLDEST_VERSION: u32 = 11_040;

/// Why no driver could be had.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// No library of these names could be loaded; the text is the loader's own.
    NotFound {
        /// What was tried, in order.
        tried: Vec<PathBuf>,
        /// What the loader said of the last one.
        reason: String,
    },
    /// The library lacks an entry point that nothing works without.
    MissingSymbol(&'static CStr),
    /// The driver's version is below [`OLDEST_VERSION`].
    TooOld {
        /// What it answered: 1000 × major + 10 × minor.
        version: u32,
    },
    /// The driver did not start: no device (100), a stub (34), or another code.
    Start(CuResult),
    /// Called in a forked child of a process that had a driver.
    Forked,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried, reason } => {
                f.write_str("no CUDA driver: cannot load")?;
                for path in tried {
                    write!(f, " {}", path.display())?;
                }
                write!(f, " ({reason})")
            }
            Self::MissingSymbol(symbol) => {
                write!(f, "the CUDA driver has no {}", symbol.to_string_lossy())
            }
            Self::TooOld { version } => write!(
                f,
                "the CUDA driver is too old: it speaks {}.{}, and {}.{} is needed",
                version / 1000,
                version % 1000 / 10,
                OLDEST_VERSION / 1000,
                OLDEST_VERSION % 1000 / 10
            ),
            Self::Start(code) => write!(f, "the CUDA driver did not start: {code}"),
            Self::Forked => f.write_str("the CUDA driver cannot be used in a forked child process"),
        }
    }
}

impl std::error::Error for LoadError {}
