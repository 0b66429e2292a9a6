//! The settings of a subject that knows settings, and the device that it allocates from.

/// Bytes of the simulated device: more than any program here asks for.
pub const CAPACITY: u64 = 1 << 50;

/// The settings of a caching allocator.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    /// The configuration, in `PyTorch`'s syntax.
    pub config: String,
    /// The most bytes that may be held from the device.
    pub limit: Option<u64>,
}
