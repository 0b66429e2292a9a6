//! The CUDA driver as the device of [`cachalot_core`].
//!
//! ```no_run
//! use cachalot_core::Segments;
//! use cachalot_cuda::{CudaDevice, Driver};
//!
//! let device = CudaDevice::open(Driver::load()?, 0)?;
//! let segment = device.obtain(2 << 20)?;
//! device.release(segment, 2 << 20)?;
//! device.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate `cachalot` opens an allocator over such devices.
//!
//! * [`driver`]: the driver's entry points, found at run time by exactly versioned names, and the
//!   driver's types as integers.
//! * [`CudaDevice`]: a device in a context, which implements the core's traits.
//! * [`HostDevice`]: pinned host memory for such a device, as a separate device.
//! * [`Streams`] and [`StreamIdentity`]: numbers that identify streams, although the driver reuses
//!   their handles.
//! * [`clock`]: a clock for traces, which is cheaper than that of the system.
//! * [`HeapLock`]: the lock of an allocator's heaps.
//! * [`fork`]: detection of forked children, which must not call the driver.
//! * `log`, with the feature `log`: lines for operators (`CACHALOT_LOG`).
//! * [`own_files`]: the library's own writes, which never end the program, and the numbers of its
//!   files.
//!
//! Building needs neither a CUDA toolkit nor a driver. The crate makes no driver call at process
//! exit: only [`CudaDevice::close`] releases objects of the driver.

pub mod clock;
pub mod driver;
pub mod fork;
pub mod lock;
#[cfg(feature = "log")]
pub mod log;
pub mod own_files;

mod announced;
mod announced_work;
mod capture_marks;
mod contents;
mod contents_file;
mod context;
mod context_wait;
mod copy_marks;
mod device;
mod device_event;
mod device_groups;
mod events;
mod exit;
mod file_copies;
mod file_crew;
mod file_jobs;
mod handle;
mod host_claims;
mod host_device;
mod host_memory;
mod host_stream;
mod in_use;
mod kept_bytes;
mod management;
mod nvtx;
mod own_stream;
mod parts;
mod peer_access;
mod peers;
mod pinned;
mod region;
mod retired_streams;
mod shared_event;
mod spare_events;
mod stand_ins;
mod store;
mod stream_order;
mod streams;
mod usage;
mod virtual_memory;
mod virtual_support;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod shared_fake;
#[cfg(test)]
mod tests;

pub use contents_file::is_no_room;
pub use device::{CudaDevice, DeviceOptions};
pub use device_groups::GroupMemory;
pub use driver::result::CuResult;
pub use driver::{Driver, LoadError};
pub use exit::BackgroundWork;
pub use host_device::{HOST_SETTINGS, HostDevice};
pub use host_memory::{free_if_shared, of_system as memory_of_system};
pub use host_stream::{HOST_STREAM, HostStream};
pub use lock::HeapLock;
pub use management::{ProcessMemory, set_limit_of_group};
pub use nvtx::{MemoryTool, ToolHeap};
pub use streams::{StreamIdentity, Streams, this_thread};
pub use usage::{BUS_ID_BYTES, MemoryUsers, memory_of_this_process, used_memory};
pub use virtual_support::PageOptions;
#[cfg(feature = "log")]
pub use virtual_support::tell_of_missing_virtual_memory;

// Sizes are converted between the core's `u64` and the driver's `size_t`. CUDA exists for 64-bit
// hosts only.
const _: () = assert!(size_of::<usize>() == 8, "CUDA needs a 64-bit host");
