//! The codes that NVML's functions answer, with their names.

use std::ffi::CStr;

/// A code of `nvmlReturn_t`. A number and no enumeration, because a file may name any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) u32);

/// What a function answers: a value, or the code of the refusal.
pub(crate) type Answer<T> = Result<T, Code>;

impl Code {
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const TIMEOUT: Self = Self(10);
    pub(crate) const OPERATING_SYSTEM: Self = Self(17);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(crate) const UNKNOWN: Self = Self(999);

    /// Returns the code with a name, as in a file: that of the header, without `NVML_ERROR_`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = name.strip_prefix("NVML_ERROR_").unwrap_or(name);
        NAMES.iter().find(|entry| entry.1.to_bytes() == name.as_bytes()).map(|entry| Self(entry.0))
    }

    /// Returns the name of the code.
    pub(crate) fn name(self) -> &'static CStr {
        NAMES.iter().find(|entry| entry.0 == self.0).map_or(c"unknown code", |entry| entry.1)
    }
}

/// Number and name of each code of the header.
const NAMES: &[(u32, &CStr)] = &[
    (0, c"SUCCESS"),
    (1, c"UNINITIALIZED"),
    (2, c"INVALID_ARGUMENT"),
    (3, c"NOT_SUPPORTED"),
    (4, c"NO_PERMISSION"),
    (5, c"ALREADY_INITIALIZED"),
    (6, c"NOT_FOUND"),
    (7, c"INSUFFICIENT_SIZE"),
    (8, c"INSUFFICIENT_POWER"),
    (9, c"DRIVER_NOT_LOADED"),
    (10, c"TIMEOUT"),
    (11, c"IRQ_ISSUE"),
    (12, c"LIBRARY_NOT_FOUND"),
    (13, c"FUNCTION_NOT_FOUND"),
    (14, c"CORRUPTED_INFOROM"),
    (15, c"GPU_IS_LOST"),
    (16, c"RESET_REQUIRED"),
    (17, c"OPERATING_SYSTEM"),
    (18, c"LIB_RM_VERSION_MISMATCH"),
    (19, c"IN_USE"),
    (20, c"MEMORY"),
    (21, c"NO_DATA"),
    (22, c"VGPU_ECC_NOT_SUPPORTED"),
    (23, c"INSUFFICIENT_RESOURCES"),
    (24, c"FREQ_NOT_SUPPORTED"),
    (25, c"ARGUMENT_VERSION_MISMATCH"),
    (26, c"DEPRECATED"),
    (27, c"NOT_READY"),
    (28, c"GPU_NOT_FOUND"),
    (29, c"INVALID_STATE"),
    (999, c"UNKNOWN"),
];

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn a_code_has_the_name_of_the_header_with_and_without_its_prefix() {
        assert_eq!(Code::named("GPU_IS_LOST"), Some(Code(15)));
        assert_eq!(Code::named("NVML_ERROR_NOT_SUPPORTED"), Some(Code::NOT_SUPPORTED));
        assert_eq!(Code::named("LOST"), None);
        assert_eq!(Code(15).name(), c"GPU_IS_LOST");
        assert_eq!(Code(500).name(), c"unknown code");
    }
}
