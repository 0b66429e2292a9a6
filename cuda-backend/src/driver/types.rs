//! Handles, structures, flags and attributes of the driver interface, laid out as in `cuda.h`.
//!
//! Handles are opaque numbers: nothing here dereferences them. Flags and attributes are integers, never Rust enums,
//! so that a value of a newer driver is only a number that is not known. The numbers are those of `cuda.h` 13.0;
//! `tests/header.rs` compares every constant and layout with the header.

use core::ffi::{c_char, c_int, c_void};

/// Declares opaque handles: the numbers that stand for the driver's objects.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
            #[repr(transparent)]
            pub struct $name(pub usize);

            impl $name {
                /// No object.
                pub const NULL: Self = Self(0);

                /// Whether this stands for no object.
                #[must_use]
                pub const fn is_null(self) -> bool {
                    self.0 == 0
                }
            }
        )*
    };
}

handles! {
    /// A context: one device's state in this process (`CUcontext`).
    CuContext
    /// A stream (`CUstream`). 0, 1 and 2 are the default streams, see [`CuStream::LEGACY`].
    CuStream
    /// An event (`CUevent`).
    CuEvent
    /// A loaded module (`CUmodule`).
    CuModule
    /// A kernel of a module (`CUfunction`).
    CuFunction
    /// A captured graph (`CUgraph`).
    CuGraph
    /// A node of a graph (`CUgraphNode`).
    CuGraphNode
    /// A graph made ready to run (`CUgraphExec`).
    CuGraphExec
    /// A pool of the driver's stream-ordered allocator (`CUmemoryPool`).
    CuMemoryPool
}

impl CuStream {
    /// Returns the stream with the handle of another binding, for example cudarc's `CudaStream::cu_stream`.
    /// [`CudaDevice::stream_id`](crate::CudaDevice::stream_id) then numbers the stream.
    #[must_use]
    pub fn from_handle<T>(handle: *mut T) -> Self {
        Self(handle.addr())
    }

    /// The default stream that every thread shares (`CU_STREAM_LEGACY`); handle 0 means the same one.
    pub const LEGACY: Self = Self(1);
    /// The calling thread's own default stream (`CU_STREAM_PER_THREAD`).
    pub const PER_THREAD: Self = Self(2);
}

/// A device, as the driver counts them (`CUdevice`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct CuDevice(pub c_int);

/// Physical memory made by `cuMemCreate` (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct CuMemHandle(pub u64);

/// An address in device memory (`CUdeviceptr`).
pub type CuDevicePtr = u64;

/// A function that the driver runs on the host in a stream's order (`CUhostFn`).
pub type CuHostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// A device's identity over restarts and processes (`CUuuid`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuUuid {
    /// 128 bits, in the order in which they are printed.
    pub bytes: [c_char; 16],
}

/// Where memory is, or from where it is accessed (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuMemLocation {
    /// What `id` counts.
    pub kind: CuMemLocationType,
    /// The device's ordinal, where `kind` is a device.
    pub id: c_int,
}

/// Who may access a range, and how (`CUmemAccessDesc`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuMemAccessDesc {
    /// From where.
    pub location: CuMemLocation,
    /// How.
    pub flags: CuMemAccessFlags,
}

/// What physical memory to make (`CUmemAllocationProp`). All zero but for the fields that CUDA 11.4 knows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CuMemAllocationProp {
    /// Pinned is the only type that can be mapped.
    pub kind: CuMemAllocationType,
    /// How the handle can be exported: not at all.
    pub requested_handle_types: u32,
    /// On which device.
    pub location: CuMemLocation,
    /// Always null here.
    pub win32_handle_metadata: *mut c_void,
    /// Hints.
    pub flags: CuMemAllocationFlags,
}

/// The hints of [`CuMemAllocationProp`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuMemAllocationFlags {
    /// Compressible memory: not asked for.
    pub compression_type: u8,
    /// 1: other devices on the bus may read and write it directly.
    pub gpu_direct_rdma_capable: u8,
    /// Intended uses: none that this crate names.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}

impl CuMemAllocationProp {
    /// Memory on the device with this ordinal, with direct access from the bus if `rdma`.
    #[must_use]
    pub const fn on_device(ordinal: c_int, rdma: bool) -> Self {
        Self {
            kind: CuMemAllocationType::PINNED,
            requested_handle_types: 0,
            location: CuMemLocation { kind: CuMemLocationType::DEVICE, id: ordinal },
            win32_handle_metadata: core::ptr::null_mut(),
            flags: CuMemAllocationFlags {
                compression_type: 0,
                gpu_direct_rdma_capable: rdma as u8,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }
}

/// Declares an integer type with named values, and lists the values under their names in `cuda.h`.
macro_rules! constants {
    ($($(#[$doc:meta])* $type:ident($repr:ty) { $($(#[$value_doc:meta])* $name:ident = $value:literal, $c_name:literal;)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
            #[repr(transparent)]
            pub struct $type(pub $repr);

            impl $type {
                $($(#[$value_doc])* pub const $name: Self = Self($value);)*
            }
        )*

        /// Every constant of this file: its name in `cuda.h`, and its value here.
        pub const CONSTANTS: &[(&str, u64)] = &[$($(($c_name, $type::$name.0 as u64),)*)*];
    };
}

constants! {
    /// A question about a device (`CUdevice_attribute`).
    CuDeviceAttribute(u32) {
        /// Multiprocessors.
        MULTIPROCESSOR_COUNT = 16, "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT";
        /// Number on the PCI bus.
        PCI_BUS_ID = 33, "CU_DEVICE_ATTRIBUTE_PCI_BUS_ID";
        /// Device on the PCI bus.
        PCI_DEVICE_ID = 34, "CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID";
        /// Domain of the PCI bus.
        PCI_DOMAIN_ID = 50, "CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID";
        /// Compute capability, the part before the dot.
        COMPUTE_CAPABILITY_MAJOR = 75, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR";
        /// Compute capability, the part after the dot.
        COMPUTE_CAPABILITY_MINOR = 76, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR";
        /// 1: the device has virtual memory.
        VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102, "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED";
        /// 1: memory made by `cuMemCreate` can be reached by other devices on the bus.
        GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110, "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED";
        /// 1: the driver has a stream-ordered allocator of its own for this device.
        MEMORY_POOLS_SUPPORTED = 115, "CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED";
    }
    /// How an event behaves (`CUevent_flags`).
    CuEventFlags(u32) {
        /// Records the time, and waits by spinning.
        DEFAULT = 0, "CU_EVENT_DEFAULT";
        /// Waits by sleeping.
        BLOCKING_SYNC = 1, "CU_EVENT_BLOCKING_SYNC";
        /// Records no time; what this crate uses, since it is several times cheaper.
        DISABLE_TIMING = 2, "CU_EVENT_DISABLE_TIMING";
    }
    /// How a stream behaves (`CUstream_flags`).
    CuStreamFlags(u32) {
        /// Ordered with the legacy default stream.
        DEFAULT = 0, "CU_STREAM_DEFAULT";
        /// Not ordered with the legacy default stream.
        NON_BLOCKING = 1, "CU_STREAM_NON_BLOCKING";
    }
    /// Whether a stream is capturing (`CUstreamCaptureStatus`).
    CuCaptureStatus(u32) {
        /// It is not.
        NONE = 0, "CU_STREAM_CAPTURE_STATUS_NONE";
        /// It is.
        ACTIVE = 1, "CU_STREAM_CAPTURE_STATUS_ACTIVE";
        /// It is, and an error spoilt the capture.
        INVALIDATED = 2, "CU_STREAM_CAPTURE_STATUS_INVALIDATED";
    }
    /// Which calls are refused while a stream captures (`CUstreamCaptureMode`).
    CuCaptureMode(u32) {
        /// Unsafe calls of every thread.
        GLOBAL = 0, "CU_STREAM_CAPTURE_MODE_GLOBAL";
        /// Unsafe calls of the capturing thread.
        THREAD_LOCAL = 1, "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL";
        /// None.
        RELAXED = 2, "CU_STREAM_CAPTURE_MODE_RELAXED";
    }
    /// What [`CuMemLocation::id`] counts (`CUmemLocationType`).
    CuMemLocationType(u32) {
        /// Nothing.
        INVALID = 0, "CU_MEM_LOCATION_TYPE_INVALID";
        /// Devices.
        DEVICE = 1, "CU_MEM_LOCATION_TYPE_DEVICE";
    }
    /// What physical memory is (`CUmemAllocationType`).
    CuMemAllocationType(u32) {
        /// Nothing.
        INVALID = 0, "CU_MEM_ALLOCATION_TYPE_INVALID";
        /// It stays where it is.
        PINNED = 1, "CU_MEM_ALLOCATION_TYPE_PINNED";
    }
    /// How a range may be accessed (`CUmemAccess_flags`).
    CuMemAccessFlags(u32) {
        /// Not at all.
        NONE = 0, "CU_MEM_ACCESS_FLAGS_PROT_NONE";
        /// Read.
        READ = 1, "CU_MEM_ACCESS_FLAGS_PROT_READ";
        /// Read and written.
        READ_WRITE = 3, "CU_MEM_ACCESS_FLAGS_PROT_READWRITE";
    }
    /// Which granularity is asked for (`CUmemAllocationGranularity_flags`).
    CuGranularity(u32) {
        /// The smallest that works.
        MINIMUM = 0, "CU_MEM_ALLOC_GRANULARITY_MINIMUM";
        /// The one that is fastest.
        RECOMMENDED = 1, "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED";
    }
    /// A question about a pool of the driver's own allocator (`CUmemPool_attribute`).
    CuMemPoolAttribute(u32) {
        /// Bytes held from the device (`u64`).
        RESERVED_MEM_CURRENT = 5, "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT";
        /// Bytes in use by the program (`u64`).
        USED_MEM_CURRENT = 7, "CU_MEMPOOL_ATTR_USED_MEM_CURRENT";
    }
}
