//! State that is spread over parts by the driver's handles, so that threads which work with
//! different handles rarely wait for each other.

/// The number of parts.
pub(crate) const PARTS: usize = 16;

/// Parts of a state, each for some of the handles and usually with a lock of its own.
#[derive(Default, Debug)]
pub(crate) struct Parts<T>([Part<T>; PARTS]);

/// A part on its own cache lines. It takes 128 bytes, because processors fetch cache lines in
/// pairs.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(crate) struct Part<T>(pub(crate) T);

impl<T> Parts<T> {
    /// Puts the state together from its parts.
    pub(crate) const fn new(parts: [Part<T>; PARTS]) -> Self {
        Self(parts)
    }

    /// Returns the part of a handle.
    pub(crate) const fn of(&self, handle: u64) -> &T {
        &self.0[spread(handle) & (PARTS - 1)].0
    }

    /// Iterates over the parts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|part| &part.0)
    }
}

/// Returns a number with low bits that differ for handles that differ.
#[inline]
pub(crate) const fn spread(handle: u64) -> usize {
    // This is Fibonacci hashing: handles differ in their middle bits, and the top bits of the
    // product depend on all middle bits.
    (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}
