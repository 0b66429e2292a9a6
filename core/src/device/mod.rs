//! The interface that the host of the allocator implements: [`DeviceMemory`], which consists of
//! [`Segments`] for memory, [`StreamOrder`] for events and streams, and [`Host`] for threads, time
//! and the program. A device may also have [`VirtualMemory`], and [`Contents`] for the contents of
//! parked memory.
//!
//! An implementation is **one** device. Any thread may call any method, and several threads may do
//! so at once. During a call, the allocator holds no lock that another stream's fast path needs, so
//! the methods may block. A failed call must have changed nothing, or document the state that it
//! left.
//!
//! The traits have no provided methods. A device takes the answers of parts that it does not have
//! from [`Bare`], either as a [`BasicDevice`] or with [`forward`].

mod bare;
mod basic;
mod calls;
mod contents;
mod error;
pub(crate) mod explanation;
pub mod forward;
mod forwarder;
mod host;
mod host_lack;
pub(crate) mod oom;
#[cfg(feature = "alloc")]
pub(crate) mod rehearsal;
mod segments;
#[cfg(feature = "alloc")]
pub mod simulated;
mod stream_order;
mod types;
#[cfg(feature = "paranoid")]
mod unlocked;
mod virtual_memory;

pub use bare::Bare;
pub use basic::BasicDevice;
pub use calls::Call;
pub use contents::{Contents, CopyMark, Saved};
pub use error::{DeviceError, DeviceResult, ErrorKind};
pub use explanation::{Explanation, Holder, Offset};
pub use host::Host;
pub use host_lack::HostLack;
pub(crate) use oom::AddressLack;
pub use segments::Segments;
pub use stream_order::StreamOrder;
pub use types::{CaptureMark, Descriptor, Event, MemoryInfo, PhysicalHandle};
#[cfg(feature = "paranoid")]
pub(crate) use unlocked::Unlocked;
pub use virtual_memory::VirtualMemory;

/// A device: it allocates segments, knows when its streams have finished their work, and is the
/// allocator's host.
///
/// Every type that implements the three traits is a device. A device that has only segments and
/// events implements [`BasicDevice`] instead, and a device that passes calls on to an inner device
/// uses [`forward`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no device",
    note = "implement `BasicDevice`, or `Segments`, `StreamOrder` and `Host`, or forward them with `cachalot_core::forward`"
)]
pub trait DeviceMemory: Segments + StreamOrder + Host + 'static {}

impl<T: Segments + StreamOrder + Host + 'static> DeviceMemory for T {}

/// Returns the virtual memory of the inner device.
fn inner_virtual_memory<F: forward::Forwarder + ?Sized>(forwarder: &F) -> DeviceResult<&dyn VirtualMemory> {
    forwarder.inner()?.virtual_memory().ok_or(bare::LACKING)
}

/// Returns the inner device's memory for contents.
fn inner_contents<F: forward::Forwarder + ?Sized>(forwarder: &F) -> DeviceResult<&dyn Contents> {
    forwarder.inner()?.contents().ok_or(bare::LACKING)
}
