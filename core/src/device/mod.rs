//! The interface of the allocator's host: [`DeviceMemory`], which is [`Segments`] for memory,
//! [`StreamOrder`] for events and streams and [`Host`] for threads, time and the program. Devices
//! may also have [`VirtualMemory`], and [`Contents`] for the contents of parked memory.
//!
//! An implementation stands for **one** device. Any thread may call any method, several threads at
//! once. The allocator holds no lock needed by another stream's fast path during a call, so the
//! methods may block. A failed call must have changed nothing, or document the state left.
//!
//! The traits have no provided methods. A device takes the answers of missing parts from [`Bare`],
//! as a [`BasicDevice`] or by [`forward`].

mod bare;
mod basic;
mod calls;
mod contents;
mod error;
pub(crate) mod explanation;
pub mod forward;
mod forwarder;
mod host;
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
pub(crate) use oom::AddressLack;
pub use segments::Segments;
pub use stream_order::StreamOrder;
pub use types::{CaptureMark, Descriptor, Event, MemoryInfo, PhysicalHandle};
#[cfg(feature = "paranoid")]
pub(crate) use unlocked::Unlocked;
pub use virtual_memory::VirtualMemory;

/// A device: allocates segments, tells when its streams have finished their work, and is the
/// allocator's host.
///
/// Every type with the three traits is a device. A device with segments and events only implements
/// [`BasicDevice`] instead, and a device that passes calls on to an inner device uses [`forward`].
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

/// Returns the memory for contents of the inner device.
fn inner_contents<F: forward::Forwarder + ?Sized>(forwarder: &F) -> DeviceResult<&dyn Contents> {
    forwarder.inner()?.contents().ok_or(bare::LACKING)
}
