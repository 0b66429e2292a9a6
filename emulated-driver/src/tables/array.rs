//! Arrays of device memory.

use crate::backing::pages::Extent;

/// An array.
#[derive(Debug)]
pub(crate) struct Array {
    /// The context, whose end is the array's.
    pub(crate) context: u64,
    pub(crate) is_mipmapped: bool,
    /// The device memory.
    pub(crate) memory: Vec<Extent>,
}
