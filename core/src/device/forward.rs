//! Devices that pass calls on to an inner device.
//!
//! A wrapper names the inner device with [`Forwarder`]. The wrapper then forwards a whole trait: an
//! empty implementation of [`ForwardSegments`] makes the wrapper a [`Segments`](crate::Segments)
//! with every method forwarded, and each method written in the implementation replaces the
//! forwarded method. So a method added to a trait is forwarded by every wrapper, and no wrapper can
//! forget the method. [`Forwarder::before`] sees every call.
//!
//! ```
//! use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
//! use cachalot_core::simulated::SimulatedDevice;
//! use cachalot_core::{Allocator, Config, DeviceIndex, DevicePtr, DeviceResult, Growable, Segments, StreamId};
//!
//! /// A device that prints which segments it allocates.
//! struct Loud(SimulatedDevice);
//!
//! impl Forwarder for Loud {
//!     type Inner = SimulatedDevice;
//!
//!     fn inner(&self) -> DeviceResult<&SimulatedDevice> {
//!         Ok(&self.0)
//!     }
//! }
//!
//! impl ForwardSegments for Loud {
//!     fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
//!         println!("{bytes} bytes");
//!         self.0.obtain(bytes)
//!     }
//! }
//!
//! impl ForwardStreamOrder for Loud {}
//! impl ForwardHost for Loud {}
//!
//! let device = Loud(SimulatedDevice::new(16 << 30));
//! let allocator = Allocator::<_, spin::Mutex<()>, Growable>::new([device], &Config::new())?;
//! allocator.malloc(DeviceIndex(0), 1 << 20, StreamId::DEFAULT)?;
//! # Ok::<(), cachalot_core::Error>(())
//! ```

pub use crate::device::contents::ForwardContents;
pub use crate::device::forwarder::Forwarder;
pub use crate::device::host::ForwardHost;
pub use crate::device::segments::ForwardSegments;
pub use crate::device::stream_order::ForwardStreamOrder;
pub use crate::device::virtual_memory::ForwardVirtualMemory;
