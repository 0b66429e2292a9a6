//! A pool: an allocator of cachalot in a context of cudarc.

use cachalot::cuda::driver::types::CuStream;
use cachalot::cuda::{DeviceOptions, StreamIdentity};
use cachalot::{Config, CudaAllocator, CudaDevice, DeviceIndex, Driver, Error, OpenError, StreamId};
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The only device of a pool's allocator, for its statistics and limits.
pub const DEVICE: DeviceIndex = DeviceIndex(0);

/// Device memory for the streams of one context of cudarc.
///
/// Clones share the memory. The memory returns to the driver with the last clone and the last
/// slice. Any thread may call any method at any time.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

/// The allocator with the context that its device works in.
struct Shared {
    allocator: CudaAllocator,
    context: Arc<CudaContext>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A drop returns no error. After a failure the device stays open, with the memory that the
        // driver has not taken back.
        let emptied = self.allocator.empty_cache(DEVICE).and_then(|()| self.allocator.destroy_idle_events(DEVICE));
        if let (Ok(()), Some(device)) = (emptied, self.allocator.device(DEVICE)) {
            let _ = device.close();
        }
    }
}

impl Deref for Pool {
    type Target = CudaAllocator;

    /// The allocator, for statistics, limits and settings of [`DEVICE`].
    fn deref(&self) -> &CudaAllocator {
        &self.0.allocator
    }
}

impl Pool {
    /// Makes a pool with settings of cachalot in a primary context, as made by
    /// [`CudaContext::new`].
    ///
    /// Device: opened; no memory is taken before the first request. With a driver older than CUDA
    /// 12.0, a program calls [`stream_ended`](Self::stream_ended) before it drops the last handle
    /// of a stream.
    ///
    /// # Errors
    /// [`RequestError::OtherContext`] for a context that is not primary; [`RequestError::Open`].
    pub fn new(context: &Arc<CudaContext>, config: &Config) -> Result<Self, RequestError> {
        if !context.is_primary() {
            return Err(RequestError::OtherContext);
        }
        let driver = Driver::load().map_err(OpenError::Driver)?;
        let ordinal = context.ordinal() as u32;
        // cudarc destroys streams without a word, and a later stream may have the same handle.
        let options = DeviceOptions { identity: StreamIdentity::Asked, ..DeviceOptions::default() };
        let device =
            CudaDevice::open_with(driver, ordinal, options).map_err(|error| OpenError::Device { ordinal, error })?;
        let allocator = CudaAllocator::new([device], config).map_err(|error| OpenError::Allocator(Box::new(error)))?;
        Ok(Self(Arc::new(Shared { allocator, context: Arc::clone(context) })))
    }

    /// The context whose streams the pool serves.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// Returns the memory cached for a stream to the driver, before the program drops the stream's
    /// last handle. Needed only with drivers older than CUDA 12.0.
    ///
    /// Device: called.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn stream_ended(&self, stream: &CudaStream) -> Result<(), RequestError> {
        let number = self.number(stream, CudaDevice::stream_id)?;
        Ok(self.stream_destroyed(DEVICE, number)?)
    }

    /// Asks the device for the number of a stream.
    pub(crate) fn number<E: Into<Error>>(
        &self,
        stream: &CudaStream,
        ask: impl FnOnce(&CudaDevice, CuStream) -> Result<StreamId, E>,
    ) -> Result<StreamId, RequestError> {
        if stream.context() != self.context() {
            return Err(RequestError::OtherContext);
        }
        let device = self.device(DEVICE).expect("a pool has a device");
        Ok(ask(device, CuStream::from_handle(stream.cu_stream())).map_err(Into::into)?)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("ordinal", &self.context().ordinal()).finish_non_exhaustive()
    }
}

/// The reason why a pool or a slice was not made, or a use not announced.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The allocator refuses the request: out of memory, with a report, or a full table.
    Cachalot(Error),
    /// cudarc's call of the driver failed.
    Driver(DriverError),
    /// The stream belongs to another context than the pool, or the context is not primary.
    OtherContext,
    /// The device or the settings were refused.
    Open(OpenError),
}

impl RequestError {
    /// Whether memory ran out: a smaller request may succeed, or the same request after a free.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Cachalot(Error::OutOfMemory(_)))
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        Self::Cachalot(error)
    }
}

impl From<DriverError> for RequestError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<OpenError> for RequestError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cachalot(error) => error.fmt(f),
            Self::Driver(error) => error.fmt(f),
            Self::OtherContext => f.write_str("a pool serves the streams of one primary context"),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RequestError {}
