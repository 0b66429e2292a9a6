//! Gives peers access to the memory of a device.
//!
//! A single call opens all memory of `cuMemAlloc` to the context of a peer. A mapped range is
//! opened with a list of all devices, so the ranges are remembered, and opened again for a new
//! peer.

use crate::device::CudaDevice;
use crate::driver::result::CuResult;
use crate::driver::types::{CuDevice, CuMemAccessDesc};
use cachalot_core::{DevicePtr, DeviceResult};
use core::ffi::c_int;
use std::sync::PoisonError;

impl CudaDevice {
    /// Returns whether `peer` can access the device's memory. Calls the driver.
    ///
    /// # Errors
    /// Those of the driver. If the driver does not have the entry point, the result is `Ok(false)`.
    pub fn can_be_reached_from(&self, peer: &Self) -> DeviceResult<bool> {
        if self.driver().device_can_access_peer.is_none() {
            return Ok(false);
        }
        let mut can: c_int = 0;
        self.context.call(|driver| {
            // SAFETY: `can` outlives the call, which writes one integer to it.
            unsafe { driver.device_can_access_peer(&raw mut can, peer.device, self.device) }
        })?;
        Ok(can != 0)
    }

    /// Lets kernels on `peer` use the device's memory: present and future allocations, and mapped
    /// ranges. This opens only one direction. A second call for the same peer succeeds.
    ///
    /// Blocks calls that open and close mapped ranges, for about 25 µs for each mapping.
    ///
    /// # Errors
    /// [`Unsupported`](cachalot_core::ErrorKind::Unsupported) (217) if the devices cannot access
    /// each other's memory; those of the driver. After an error some ranges may be open to the
    /// peer, and ranges that are mapped later are not opened to it.
    pub fn allow_access_from(&self, peer: &Self) -> DeviceResult<()> {
        if !self.can_be_reached_from(peer)? {
            return Err(CuResult::PEER_ACCESS_UNSUPPORTED.error());
        }
        peer.context.call(|driver| {
            // SAFETY: takes no pointers; the context is kept alive by this device.
            match unsafe { driver.ctx_enable_peer_access(self.context.handle(), 0) } {
                CuResult::PEER_ACCESS_ALREADY_ENABLED => CuResult::SUCCESS,
                code => code,
            }
        })?;
        let scope = self.context.enter()?;
        let mut devices = self.peers.devices.write().unwrap_or_else(PoisonError::into_inner);
        if devices.contains(&peer.device) {
            return Ok(());
        }
        let mut with_peer = devices.clone();
        with_peer.push(peer.device);
        for (at, bytes) in self.peers.ranges().iter() {
            self.open_range(*at, *bytes, &with_peer)?;
        }
        *devices = with_peer;
        drop(devices);
        drop(scope);
        Ok(())
    }

    /// Opens a mapped range to the device and to all peers.
    pub(crate) fn grant(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let devices = self.peers.devices.read().unwrap_or_else(PoisonError::into_inner);
        self.open_range(at.0, bytes, &devices)?;
        self.peers.ranges().insert(at.0, bytes);
        Ok(())
    }

    /// Unmaps a range, which closes it to all devices.
    pub(crate) fn revoke(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let _devices = self.peers.devices.read().unwrap_or_else(PoisonError::into_inner);
        // The range is forgotten before the call, because after a failed call it is in doubt and
        // must not be opened to another peer.
        self.peers.forget(at.0, bytes);
        // SAFETY: takes no host pointers; the allocator has waited for all work that uses the
        // range.
        self.context.check(unsafe { self.driver().mem_unmap(at.0, bytes as usize) })
    }

    /// Opens a mapped range to the device and to `peers`. The context is entered.
    fn open_range(&self, at: u64, bytes: u64, peers: &[CuDevice]) -> DeviceResult<()> {
        let everyone: Vec<_> =
            core::iter::once(&self.device).chain(peers).map(|&device| CuMemAccessDesc::full(device)).collect();
        // SAFETY: the descriptors outlive the call, which reads `everyone.len()` descriptors.
        self.context
            .check(unsafe { self.driver().mem_set_access(at, bytes as usize, everyone.as_ptr(), everyone.len()) })
    }
}
