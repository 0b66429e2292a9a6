//! Types of `cuda.h` that only a library in front of the driver needs.

/// A handle by which another process opens memory (`CUipcMemHandle`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct CuIpcMemHandle {
    /// The driver's own form.
    pub reserved: [u8; 64],
}

/// A green context (`CUgreenCtx`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct CuGreenContext(pub usize);
