//! The identity of a device.

use std::fmt;

/// A device's identity (`cuDeviceGetUuid`), equal in all processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Returns the identity as two words, for a mapped file.
    pub(crate) fn to_words(self) -> [u64; 2] {
        let value = u128::from_le_bytes(self.0);
        [value as u64, (value >> 64) as u64]
    }

    /// Returns the identity in two words of a mapped file.
    pub(crate) fn of_words([low, high]: [u64; 2]) -> Self {
        Self((u128::from(low) | u128::from(high) << 64).to_le_bytes())
    }
}

/// The form of `nvidia-smi`: `GPU-` and five groups of hexadecimal digits.
impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&at) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Uuid;

    #[test]
    fn a_uuid_is_printed_as_nvidia_smi_does_and_survives_two_words() {
        let uuid = Uuid(std::array::from_fn(|at| at as u8 * 16 + 1));
        assert_eq!(uuid.to_string(), "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
        assert_eq!(Uuid::of_words(uuid.to_words()), uuid);
    }
}
