//! Settings of the configurable subjects, and the size of their device.

/// Bytes of the simulated device, more than any benchmarked program requests.
pub const CAPACITY: u64 = 1 << 50;

/// The settings of a caching allocator.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    /// The configuration, in `PyTorch`'s syntax.
    pub config: String,
    /// The largest number of bytes that may be reserved from the device.
    pub limit: Option<u64>,
}
