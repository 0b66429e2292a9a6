//! A slice: values in memory of a pool, taken by cudarc like a `CudaSlice`, and the requests for
//! slices.

use crate::pool::{DEVICE, Pool, RequestError};
use cachalot::{Buffer, CudaDevice};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, HostSlice, LaunchArgs,
    PushKernelArg, SyncOnDrop, ValidAsZeroBits,
};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, RangeBounds};
use std::sync::Arc;

/// Values of type `T` in memory of a [`Pool`], for cudarc's copies, launches and views.
///
/// Dereferences to a [`CudaSlice`] for reading. A copy by [`CudaSlice::try_clone`] is memory of
/// cudarc.
///
/// The drop frees the memory in the order of the slice's stream, after all work of other streams
/// known to cudarc. The drop never waits. Failures are kept by the context
/// ([`check_err`](cudarc::driver::CudaContext::check_err)) and told by
/// [`on_failed_drop`](cachalot::Allocator::on_failed_drop).
pub struct CachalotSlice<T> {
    /// cudarc's slice with events over the memory. Never dropped, but leaked: cudarc would free the
    /// pool's memory.
    slice: ManuallyDrop<CudaSlice<T>>,
    /// Freed after `slice`'s last work.
    memory: Buffer<T, Pool>,
    /// Held until the memory is free.
    _stream: Arc<CudaStream>,
}

/// Requests.
impl Pool {
    /// Allocates `len` values on a stream, usable there at once.
    ///
    /// Device: called if no cached block fits.
    ///
    /// # Errors
    /// [`RequestError`], with the allocator's report if memory ran out.
    ///
    /// # Safety
    /// The values are unset. Every bit pattern is a `T`, or the program writes the values before
    /// reading.
    pub unsafe fn alloc<T: DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<CachalotSlice<T>, RequestError> {
        let number = self.number(stream, CudaDevice::stream_id)?;
        let memory = Buffer::new(self.clone(), DEVICE, len, number)?;
        Ok(CachalotSlice::new(memory, stream))
    }

    /// Allocates `len` values on a stream, and sets them to zero there.
    ///
    /// Device: called for the zeros, and if no cached block fits.
    ///
    /// # Errors
    /// [`RequestError`], with the allocator's report if memory ran out.
    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<CachalotSlice<T>, RequestError> {
        // SAFETY: the values are set to zero, which is a `T`, before anyone has the slice.
        let mut slice = unsafe { self.alloc(stream, len) }?;
        if len > 0 {
            stream.memset_zeros(&mut slice)?;
        }
        Ok(slice)
    }

    /// Allocates a copy of values of the host on a stream.
    ///
    /// Device: called for the copy, and if no cached block fits.
    ///
    /// # Errors
    /// [`RequestError`], with the allocator's report if memory ran out.
    pub fn clone_htod<T: DeviceRepr, Source: HostSlice<T> + ?Sized>(
        &self,
        stream: &Arc<CudaStream>,
        source: &Source,
    ) -> Result<CachalotSlice<T>, RequestError> {
        // SAFETY: the values are copied, before anyone has the slice.
        let mut slice = unsafe { self.alloc(stream, source.len()) }?;
        if !source.is_empty() {
            stream.memcpy_htod(source, &mut slice)?;
        }
        Ok(slice)
    }
}

impl<T> CachalotSlice<T> {
    /// Makes a slice of memory of `stream`.
    pub(crate) fn new(memory: Buffer<T, Pool>, stream: &Arc<CudaStream>) -> Self {
        // SAFETY: the buffer has room for the values, and outlives the slice.
        let slice = unsafe { stream.upgrade_device_ptr(memory.ptr().0, memory.len()) };
        Self { slice: ManuallyDrop::new(slice), memory, _stream: Arc::clone(stream) }
    }

    /// The pool of the memory.
    pub fn pool(&self) -> &Pool {
        self.memory.block().allocator()
    }

    /// Announces work queued on `stream` as a use of the values: after the drop, the memory is
    /// reused after the work. Needed for work untracked by cudarc.
    ///
    /// Device: called, to record an event.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn record_stream(&self, stream: &CudaStream) -> Result<(), RequestError> {
        let number = self.pool().number(stream, CudaDevice::stream_in_use)?;
        Ok(self.memory.record_stream(number)?)
    }

    /// All values, as cudarc's view for writing; [`CudaSlice::as_view`] is for reading.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }

    /// Some of the values, as cudarc's view for writing.
    ///
    /// # Panics
    /// If the range is not within the slice.
    pub fn slice_mut(&mut self, bounds: impl RangeBounds<usize>) -> CudaViewMut<'_, T> {
        self.slice.slice_mut(bounds)
    }

    /// Two views for writing: the values before `mid`, and the others.
    ///
    /// # Panics
    /// If `mid` is not within the slice.
    pub fn split_at_mut(&mut self, mid: usize) -> (CudaViewMut<'_, T>, CudaViewMut<'_, T>) {
        self.slice.split_at_mut(mid)
    }
}

impl<T> Drop for CachalotSlice<T> {
    fn drop(&mut self) {
        // SAFETY: the slice is not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Orders the slice's stream after its events, and leaves the memory to the buffer.
        slice.leak();
    }
}

// No `DerefMut`: a slice of cudarc's in place of this one would be freed by the pool, and this one
// by cudarc.
impl<T> Deref for CachalotSlice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> fmt::Debug for CachalotSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachalotSlice")
            .field("len", &self.len())
            .field("ptr", &self.memory.ptr())
            .finish_non_exhaustive()
    }
}

impl<T> DeviceSlice<T> for CachalotSlice<T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T> DevicePtr<T> for CachalotSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for CachalotSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr_mut(stream)
    }
}

// SAFETY: cudarc's own argument for a slice that it reads.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b CachalotSlice<T>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, slice: &'b CachalotSlice<T>) -> &mut Self {
        self.arg(&*slice.slice)
    }
}

// SAFETY: cudarc's own argument for a slice that it writes.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut CachalotSlice<T>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, slice: &'b mut CachalotSlice<T>) -> &mut Self {
        self.arg(&mut *slice.slice)
    }
}
