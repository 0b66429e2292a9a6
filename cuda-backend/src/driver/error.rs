//! The reasons why the driver cannot be used.

use super::LIBRARY_VARIABLE;
use super::result::CuResult;
use core::ffi::CStr;
use core::fmt;
use std::path::PathBuf;

/// The oldest accepted version of the driver: CUDA 11.4, the first with
/// `cuGraphInstantiateWithFlags` and `cuDeviceGetUuid_v2`.
pub const OLDEST_VERSION: u32 = 11_040;

/// The reason why no driver could be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The loader found no driver. None is installed, or the container does not include it.
    NotFound {
        /// The names that were tried, in order.
        tried: Vec<PathBuf>,
        /// The loader's reason for the last file, without the file's name.
        reason: String,
    },
    /// The library named by the caller or by [`LIBRARY_VARIABLE`] cannot be loaded.
    NotLoaded {
        /// The path of the library.
        path: PathBuf,
        /// The loader's reason, without the file's name.
        reason: String,
        /// Whether [`LIBRARY_VARIABLE`] names the library.
        by_variable: bool,
    },
    /// The library does not have a required entry point.
    MissingSymbol(&'static CStr),
    /// The driver's version is below [`OLDEST_VERSION`].
    TooOld {
        /// The driver's version: 1000 × major + 10 × minor.
        version: u32,
    },
    /// The driver did not start: because there is no device (100), because the library is a stub
    /// (34), or for another reason.
    Start(CuResult),
    /// Called in a forked child of a process that had a driver.
    Forked,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried, reason } => {
                f.write_str("no CUDA driver: cannot load ")?;
                for (index, path) in tried.iter().enumerate() {
                    write!(f, "{}{}", if index == 0 { "" } else { " or " }, path.display())?;
                }
                write!(
                    f,
                    " ({reason}); install NVIDIA's driver, start a container with `--gpus all`, or name the \
                     library in {LIBRARY_VARIABLE}"
                )
            }
            Self::NotLoaded { path, reason, by_variable } => {
                write!(f, "no CUDA driver: cannot load {}", path.display())?;
                if *by_variable {
                    write!(f, ", which {LIBRARY_VARIABLE} names")?;
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
            Self::Start(code) => {
                write!(f, "the CUDA driver did not start: {code}")?;
                match *code {
                    CuResult::NO_DEVICE => f.write_str(
                        "; the process sees no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES, and start a \
                         container with `--gpus all`",
                    ),
                    CuResult::STUB_LIBRARY => {
                        write!(f, "; the library is the toolkit's stub: name NVIDIA's driver in {LIBRARY_VARIABLE}")
                    }
                    _ => Ok(()),
                }
            }
            Self::Forked => f.write_str("the CUDA driver cannot be used in a forked child process"),
        }
    }
}

impl std::error::Error for LoadError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_with_what_helps() {
        let not_loaded =
            |by_variable| LoadError::NotLoaded { path: "/opt/cuda.so".into(), reason: "no file".into(), by_variable };
        let expected = [
            (
                LoadError::NotFound {
                    tried: vec!["libcuda.so.1".into(), "libcuda.so".into()],
                    reason: "no file".into(),
                },
                "no CUDA driver: cannot load libcuda.so.1 or libcuda.so (no file); install NVIDIA's driver, start a \
                 container with `--gpus all`, or name the library in CACHALOT_LIBCUDA",
            ),
            (not_loaded(false), "no CUDA driver: cannot load /opt/cuda.so (no file)"),
            (not_loaded(true), "no CUDA driver: cannot load /opt/cuda.so, which CACHALOT_LIBCUDA names (no file)"),
            (LoadError::MissingSymbol(c"cuInit"), "the CUDA driver has no cuInit"),
            (LoadError::TooOld { version: 10_020 }, "the CUDA driver is too old: it speaks 10.2, and 11.4 is needed"),
            (
                LoadError::Start(CuResult::NO_DEVICE),
                "the CUDA driver did not start: NO_DEVICE (100); the process sees no GPU: check `nvidia-smi` and \
                 CUDA_VISIBLE_DEVICES, and start a container with `--gpus all`",
            ),
            (
                LoadError::Start(CuResult::STUB_LIBRARY),
                "the CUDA driver did not start: STUB_LIBRARY (34); the library is the toolkit's stub: name NVIDIA's \
                 driver in CACHALOT_LIBCUDA",
            ),
            (LoadError::Start(CuResult::UNKNOWN), "the CUDA driver did not start: UNKNOWN (999)"),
            (LoadError::Forked, "the CUDA driver cannot be used in a forked child process"),
        ];
        for (error, text) in expected {
            assert_eq!(error.to_string(), text);
        }
    }
}
