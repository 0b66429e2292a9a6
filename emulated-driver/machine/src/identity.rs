//! The names of an emulated device: name, UUID, and place on the PCI bus.

/// Returns the name of a device.
pub fn name(device: usize) -> String {
    format!("Emulated device {device}")
}

/// Returns the UUID of a device, different for each of the first 256.
pub fn uuid(device: usize) -> [u8; 16] {
    let mut bytes = *b"cachalot-emu-00\0";
    bytes[15] = device as u8;
    bytes
}

/// Returns the number of a device's PCI bus. The domain and the number of the device there are 0.
pub fn bus(device: usize) -> u32 {
    device as u32 + 1
}
