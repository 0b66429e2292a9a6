//! Devices that pass calls on to an inner device.
//!
//! A wrapper names its inner device with [`Forwarder`]. Then it can forward whole traits: with an
//! empty implementation of [`ForwardSegments`], the wrapper is a [`Segments`](crate::Segments) that
//! forwards every method. Each method that the implementation defines replaces the forwarded one.
//! If a method is added to a trait, every wrapper forwards it, so no wrapper can forget it.
//! [`Forwarder::before`] sees every call.
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
