//! Images of the kernels, made by the build.

use core::ffi::CStr;

/// Returns the kernels for devices: machine code for compute capability 8.0 and 9.0, and PTX for
/// all others from 8.0 on. `None` if nvcc was missing when the crate was built.
#[must_use]
pub const fn device_image() -> Option<&'static [u8]> {
    // The driver reads a module's image in words.
    #[repr(align(16))]
    struct Aligned<T: ?Sized>(T);
    static IMAGE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));
    if cfg!(device_image) { Some(&IMAGE.0) } else { None }
}

/// Returns the kernels for the emulated driver: a text that names the shared library of host
/// functions. `None` if a C++ compiler was missing when the crate was built.
#[must_use]
pub const fn emulated_image() -> Option<&'static CStr> {
    #[cfg(host_kernels)]
    const TEXT: Option<&str> = Some(concat!("CACHALOT-EMULATED ", env!("CACHALOT_HOST_KERNELS_LIBRARY"), "\0"));
    #[cfg(not(host_kernels))]
    const TEXT: Option<&str> = None;
    const IMAGE: Option<&CStr> = match TEXT {
        Some(text) => match CStr::from_bytes_with_nul(text.as_bytes()) {
            Ok(text) => Some(text),
            Err(_) => panic!("a path has no NUL"),
        },
        None => None,
    };
    IMAGE
}
