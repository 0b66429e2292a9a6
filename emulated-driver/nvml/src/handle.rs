//! Handles of devices: numbers that no caller can dereference, one for each device and for each of
//! its instances of MIG.

/// `nvmlDevice_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(usize);

/// The number of the first device. Below it is what is no handle, as null.
const FIRST: usize = 0x4e56_0000_0000;
/// The distance of two devices: a device is followed by its instances.
const STEP: usize = 256;

impl Handle {
    /// Returns the handle of a device, or of one of its instances.
    pub(crate) fn new(device: usize, instance: Option<usize>) -> Self {
        Self(FIRST + device * STEP + instance.map_or(0, |instance| instance + 1))
    }

    /// Returns the device and the instance. `None` for what was never a handle.
    pub(crate) fn parts(self) -> Option<(usize, Option<usize>)> {
        let number = self.0.checked_sub(FIRST)?;
        Some((number / STEP, (number % STEP).checked_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::Handle;

    #[test]
    fn a_handle_has_its_parts_and_other_numbers_have_none() {
        assert_eq!(Handle::new(3, None).parts(), Some((3, None)));
        assert_eq!(Handle::new(63, Some(6)).parts(), Some((63, Some(6))));
        assert_eq!(Handle(0).parts(), None);
    }
}
