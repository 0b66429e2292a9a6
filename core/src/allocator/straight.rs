//! The straight path: requests and frees that one heap serves by the plain rules, in one function
//! without calls. It does all of a request or a free, or declines and has changed nothing.
//!
//! It is inlined into [`Allocator::malloc`] and [`Allocator::free`], and into the functions of
//! other languages' interfaces. It calls nothing but the walks of sorted lists, so its values stay
//! in registers, and its results fit into one.

use crate::allocator::Allocator;
use crate::arena::OnDevice;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::{Devices, Storage};
use crate::units::{DeviceIndex, DevicePtr, StreamId};

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Allocates a block as [`malloc`](Self::malloc) does, if a free block of the stream serves the
    /// request by the plain rules, and nothing is unusual. Otherwise returns `None`, and has
    /// changed nothing: call [`malloc_anew`](Self::malloc_anew).
    #[inline(always)]
    #[must_use]
    pub fn malloc_straight(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        let _checked = self.checked("malloc", device);
        let arena = self.arenas.get(device.0 as usize)?;
        OnDevice { arena, pages: &self.pages }.malloc_straight(bytes, stream)
    }

    /// Allocates a block as [`malloc`](Self::malloc) does, under any conditions, after the straight
    /// path has declined.
    ///
    /// # Errors
    /// Those of [`malloc`](Self::malloc).
    #[cold]
    #[inline(never)]
    pub fn malloc_anew(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let _checked = self.checked("malloc", device);
        self.on(device)?.malloc(bytes, stream)
    }

    /// Frees the block at `ptr` as [`free`](Self::free) does, or as
    /// [`free_sized`](Self::free_sized) does if `bytes` is given, if no other stream uses the block
    /// and no special rule applies to its heap. Otherwise returns false, and has changed nothing:
    /// call [`free_anew`](Self::free_anew).
    #[inline(always)]
    pub fn free_straight(&self, ptr: DevicePtr, bytes: Option<u64>) -> bool {
        let _checked = self.checked_at("free", ptr);
        let heap = self.pages.word(ptr).unplanned();
        self.device_of(heap).is_some_and(|device| device.free_straight(heap, ptr, bytes))
    }

    /// Frees the block at `ptr` as [`free_straight`](Self::free_straight) does, under any
    /// conditions, after that has declined.
    ///
    /// # Errors
    /// Those of [`free`](Self::free) and [`free_sized`](Self::free_sized).
    #[cold]
    #[inline(never)]
    pub fn free_anew(&self, ptr: DevicePtr, bytes: Option<u64>) -> Result<(), Error> {
        self.free_by(ptr, bytes, |_, _| false)
    }
}
