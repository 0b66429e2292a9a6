//! Handles, structures, flags and attributes of the driver interface, laid out as in `cuda.h`.
//!
//! Handles are opaque numbers, and no code in this crate dereferences a handle. Flags and
//! attributes are integers, never Rust enums, so that a value of a newer driver is merely an
//! unknown number. The numbers come from `cuda.h` 13.0; the test `header` of `cachalot-cuda`
//! compares every constant and layout with the header.

use core::ffi::{c_char, c_int, c_void};

/// Declares opaque handles: numbers for the driver's objects.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
            #[repr(transparent)]
            pub struct $name(pub usize);

            impl $name {
                /// The null handle.
                pub const NULL: Self = Self(0);

                /// Returns whether the handle is the null handle.
                #[must_use]
                pub const fn is_null(self) -> bool {
                    self.0 == 0
                }
            }
        )*
    };
}

handles! {
    /// A context, the state of a device in a process (`CUcontext`).
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
    /// An instantiated graph (`CUgraphExec`).
    CuGraphExec
    /// A pool of the driver's stream-ordered allocator (`CUmemoryPool`).
    CuMemoryPool
    /// A green context, for some multiprocessors of a device (`CUgreenCtx`).
    CuGreenContext
    /// A library of code (`CUlibrary`).
    CuLibrary
    /// A kernel of a library (`CUkernel`).
    CuKernel
    /// An array, laid out by the driver (`CUarray`).
    CuArray
    /// An array with levels (`CUmipmappedArray`).
    CuMipmappedArray
    /// A texture reference (`CUtexref`).
    CuTexRef
}

impl CuStream {
    /// Returns the stream with the handle of another binding, for example cudarc's
    /// `CudaStream::cu_stream`. `CudaDevice::stream_id` of `cachalot-cuda` then numbers the stream.
    #[must_use]
    pub fn from_handle<T>(handle: *mut T) -> Self {
        Self(handle.addr())
    }

    /// The legacy default stream, shared by all threads (`CU_STREAM_LEGACY`). Handle 0 stands for
    /// the legacy default stream too.
    pub const LEGACY: Self = Self(1);
    /// The calling thread's own default stream (`CU_STREAM_PER_THREAD`).
    pub const PER_THREAD: Self = Self(2);
}

/// A device handle (`CUdevice`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct CuDevice(pub c_int);

/// Physical memory created by `cuMemCreate` (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct CuMemHandle(pub u64);

/// An address in device memory (`CUdeviceptr`).
pub type CuDevicePtr = u64;

/// A function that the driver runs on the host in a stream's order (`CUhostFn`).
pub type CuHostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// A device's identity across restarts and processes (`CUuuid`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuUuid {
    /// 128 bits, in the order of printing.
    pub bytes: [c_char; 16],
}

/// A handle by which another process opens memory (`CUipcMemHandle`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct CuIpcMemHandle {
    /// The driver's own form.
    pub reserved: [u8; 64],
}

/// Declares structures that are only passed on.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            /// A structure that is only passed on.
            #[derive(Debug)]
            #[repr(C)]
            pub struct $name {
                _unread: [u8; 0],
            }
        )*
    };
}

opaque! {
    CuLaunchConfig CuMemPoolProps CuStreamBatchMemOpParams CudaArrayDescriptor CudaArray3DDescriptor
    CudaGraphInstantiateParams CudaMemcpy2D CudaMemcpy3D CudaMemcpy3DPeer
}

/// Properties of a dependency in a graph (`CUgraphEdgeData`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuGraphEdgeData {
    /// Which part of the earlier node must be done; 0 for all of it.
    pub from_port: u8,
    /// Which part of the later node depends; 0 for all of it.
    pub to_port: u8,
    /// The kind of the dependency (`CUgraphDependencyType`).
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// Location of memory, or of an accessor (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuMemLocation {
    /// The kind of location that `id` names.
    pub kind: CuMemLocationType,
    /// The device's ordinal, if `kind` is a device.
    pub id: c_int,
}

/// Access rights of one device to a range (`CUmemAccessDesc`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuMemAccessDesc {
    /// The device that accesses the range.
    pub location: CuMemLocation,
    /// The permitted accesses.
    pub flags: CuMemAccessFlags,
}

impl CuMemAccessDesc {
    /// Describes every access by a device.
    #[must_use]
    pub const fn full(device: CuDevice) -> Self {
        Self {
            location: CuMemLocation { kind: CuMemLocationType::DEVICE, id: device.0 },
            flags: CuMemAccessFlags::READ_WRITE,
        }
    }
}

impl CuDeviceAttribute {
    /// Number of the device's locality domains (`CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT`, CUDA
    /// 13.4). Drivers before do not know the attribute.
    pub const LOCALITY_DOMAIN_COUNT: Self = Self(149);
}

impl CuMemLocationType {
    /// A locality domain of a device (`CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`, CUDA 13.4).
    pub const DEVICE_LOCALITY_DOMAIN: Self = Self(6);
}

impl CuMemLocation {
    /// Returns a device.
    #[must_use]
    pub const fn device(device: CuDevice) -> Self {
        Self { kind: CuMemLocationType::DEVICE, id: device.0 }
    }

    /// Returns a locality domain of a device. The identifier is a union, and has two bytes here:
    /// the device's ordinal and the domain's.
    #[must_use]
    pub const fn locality_domain(device: CuDevice, domain: u8) -> Self {
        let id = c_int::from_ne_bytes([device.0 as u8, domain, 0, 0]);
        Self { kind: CuMemLocationType::DEVICE_LOCALITY_DOMAIN, id }
    }
}

/// Properties of physical memory to create (`CUmemAllocationProp`). Fields unknown to CUDA 11.4
/// stay zero.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CuMemAllocationProp {
    /// Allocation type. Only pinned memory can be mapped.
    pub kind: CuMemAllocationType,
    /// Type of exported handles, or none for memory that cannot be exported.
    pub requested_handle_types: CuMemHandleType,
    /// The device that holds the memory.
    pub location: CuMemLocation,
    /// Always null on Linux.
    pub win32_handle_metadata: *mut c_void,
    /// Hints to the driver.
    pub flags: CuMemAllocationFlags,
}

/// Hints of [`CuMemAllocationProp`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(C)]
pub struct CuMemAllocationFlags {
    /// Type of compression, or 0 for memory without compression.
    pub compression_type: u8,
    /// 1 iff other devices on the bus may access the memory directly.
    pub gpu_direct_rdma_capable: u8,
    /// Intended uses of the memory, or 0 for uses without a flag in `cuda.h`.
    pub usage: u16,
    /// Reserved by the driver, always zero.
    pub reserved: [u8; 4],
}

impl CuMemAllocationFlags {
    /// [`usage`](Self::usage) by the decompression engine (`CU_MEM_CREATE_USAGE_HW_DECOMPRESS`).
    pub const HW_DECOMPRESS: u16 = 2;
}

impl CuMemAllocationProp {
    /// Describes memory on the device with the given ordinal, with direct access from the bus if
    /// `rdma`, and for export to other processes if `export`.
    #[must_use]
    pub const fn on_device(ordinal: c_int, rdma: bool, export: bool) -> Self {
        let requested_handle_types = if export { CuMemHandleType::POSIX_FD } else { CuMemHandleType::NONE };
        let mut it = Self::at(CuMemLocation { kind: CuMemLocationType::DEVICE, id: ordinal });
        it.requested_handle_types = requested_handle_types;
        it.flags.gpu_direct_rdma_capable = rdma as u8;
        it
    }

    /// Describes memory at a location, for this process alone.
    #[must_use]
    pub const fn at(location: CuMemLocation) -> Self {
        Self {
            kind: CuMemAllocationType::PINNED,
            requested_handle_types: CuMemHandleType::NONE,
            location,
            win32_handle_metadata: core::ptr::null_mut(),
            flags: CuMemAllocationFlags { compression_type: 0, gpu_direct_rdma_capable: 0, usage: 0, reserved: [0; 4] },
        }
    }
}

/// Declares an integer type with named values, and lists the values with their names in `cuda.h`.
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

        /// Every constant of this file: name in `cuda.h`, and value.
        pub const CONSTANTS: &[(&str, u64)] = &[$($(($c_name, $type::$name.0 as u64),)*)*];
    };
}

constants! {
    /// An attribute of a device (`CUdevice_attribute`).
    CuDeviceAttribute(u32) {
        /// Number of multiprocessors of the device.
        MULTIPROCESSOR_COUNT = 16, "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT";
        /// 1 iff the device has no memory besides that of the host.
        INTEGRATED = 18, "CU_DEVICE_ATTRIBUTE_INTEGRATED";
        /// Number of the PCI bus that the device is attached to.
        PCI_BUS_ID = 33, "CU_DEVICE_ATTRIBUTE_PCI_BUS_ID";
        /// Number of the device on the PCI bus.
        PCI_DEVICE_ID = 34, "CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID";
        /// Number of the PCI bus's domain.
        PCI_DOMAIN_ID = 50, "CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID";
        /// Major version of the compute capability, the part before the dot.
        COMPUTE_CAPABILITY_MAJOR = 75, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR";
        /// Minor version of the compute capability, the part after the dot.
        COMPUTE_CAPABILITY_MINOR = 76, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR";
        /// 1 iff the device supports the management of virtual memory.
        VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102, "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED";
        /// 1 iff memory of `cuMemCreate` can be exported as a POSIX file descriptor.
        HANDLE_TYPE_POSIX_FD_SUPPORTED = 103, "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED";
        /// 1 iff the device exports memory to a fabric.
        HANDLE_TYPE_FABRIC_SUPPORTED = 128, "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED";
        /// 1 iff other devices on the bus can access memory of `cuMemCreate` directly.
        GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110, "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED";
        /// 1 iff the driver has a stream-ordered allocator for the device.
        MEMORY_POOLS_SUPPORTED = 115, "CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED";
        /// Number of the NUMA node of the host closest to the device, or -1.
        HOST_NUMA_ID = 134, "CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID";
        /// The algorithms of the device's decompression engine, a bit each; 0 without an engine.
        MEM_DECOMPRESS_ALGORITHM_MASK = 136, "CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK";
        /// 1 iff memory of `cuMemCreate` can lie on a NUMA node of the host.
        HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141, "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED";
        /// 1 iff memory of `cuMemCreate` can lie anywhere on the host.
        HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145, "CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED";
    }
    /// Behaviour of an event (`CUevent_flags`).
    CuEventFlags(u32) {
        /// Records the time, and waits by spinning.
        DEFAULT = 0, "CU_EVENT_DEFAULT";
        /// Records the time, and waits by sleeping.
        BLOCKING_SYNC = 1, "CU_EVENT_BLOCKING_SYNC";
        /// Records no time. Used by this crate, since such events are several times cheaper.
        DISABLE_TIMING = 2, "CU_EVENT_DISABLE_TIMING";
        /// Can be opened by other processes. Only together with `DISABLE_TIMING`.
        INTERPROCESS = 4, "CU_EVENT_INTERPROCESS";
    }
    /// Behaviour of a stream (`CUstream_flags`).
    CuStreamFlags(u32) {
        /// Ordered with the legacy default stream.
        DEFAULT = 0, "CU_STREAM_DEFAULT";
        /// Not ordered with the legacy default stream.
        NON_BLOCKING = 1, "CU_STREAM_NON_BLOCKING";
    }
    /// Capture status of a stream (`CUstreamCaptureStatus`).
    CuCaptureStatus(u32) {
        /// The stream takes part in no capture.
        NONE = 0, "CU_STREAM_CAPTURE_STATUS_NONE";
        /// The stream takes part in a valid capture.
        ACTIVE = 1, "CU_STREAM_CAPTURE_STATUS_ACTIVE";
        /// The stream takes part in a capture that an error has invalidated.
        INVALIDATED = 2, "CU_STREAM_CAPTURE_STATUS_INVALIDATED";
    }
    /// Calls that are refused while a stream captures (`CUstreamCaptureMode`).
    CuCaptureMode(u32) {
        /// Refuses unsafe calls of every thread.
        GLOBAL = 0, "CU_STREAM_CAPTURE_MODE_GLOBAL";
        /// Refuses unsafe calls of the capturing thread.
        THREAD_LOCAL = 1, "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL";
        /// Refuses no call, neither of the capturing thread nor of others.
        RELAXED = 2, "CU_STREAM_CAPTURE_MODE_RELAXED";
    }
    /// The kind of location that [`CuMemLocation::id`] names (`CUmemLocationType`).
    CuMemLocationType(u32) {
        /// No location at all, an invalid value.
        INVALID = 0, "CU_MEM_LOCATION_TYPE_INVALID";
        /// A device, identified by its ordinal.
        DEVICE = 1, "CU_MEM_LOCATION_TYPE_DEVICE";
        /// The host, on any node.
        HOST = 2, "CU_MEM_LOCATION_TYPE_HOST";
        /// A NUMA node of the host, identified by its number.
        HOST_NUMA = 3, "CU_MEM_LOCATION_TYPE_HOST_NUMA";
    }
    /// Type of physical memory (`CUmemAllocationType`).
    CuMemAllocationType(u32) {
        /// No type at all, an invalid value.
        INVALID = 0, "CU_MEM_ALLOCATION_TYPE_INVALID";
        /// Pinned memory, which never moves.
        PINNED = 1, "CU_MEM_ALLOCATION_TYPE_PINNED";
    }
    /// Type of the handles by which other processes name physical memory
    /// (`CUmemAllocationHandleType`).
    CuMemHandleType(u32) {
        /// No handles.
        NONE = 0, "CU_MEM_HANDLE_TYPE_NONE";
        /// POSIX file descriptors.
        POSIX_FD = 1, "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
        /// Handles of 64 bytes, which processes on other nodes of an `NVLink` fabric can import.
        FABRIC = 8, "CU_MEM_HANDLE_TYPE_FABRIC";
    }
    /// Access rights to a range (`CUmemAccess_flags`).
    CuMemAccessFlags(u32) {
        /// Neither reads nor writes.
        NONE = 0, "CU_MEM_ACCESS_FLAGS_PROT_NONE";
        /// Reads without writes.
        READ = 1, "CU_MEM_ACCESS_FLAGS_PROT_READ";
        /// Both reads and writes.
        READ_WRITE = 3, "CU_MEM_ACCESS_FLAGS_PROT_READWRITE";
    }
    /// Granularity to query (`CUmemAllocationGranularity_flags`).
    CuGranularity(u32) {
        /// The smallest granularity that works.
        MINIMUM = 0, "CU_MEM_ALLOC_GRANULARITY_MINIMUM";
        /// The granularity with the best performance.
        RECOMMENDED = 1, "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED";
    }
    /// Behaviour of registered memory of the host (`CU_MEMHOSTREGISTER_…`).
    CuMemHostRegisterFlags(u32) {
        /// Pinned for every context, also of other devices.
        PORTABLE = 1, "CU_MEMHOSTREGISTER_PORTABLE";
        /// Mapped for the device, so that kernels may use the memory.
        DEVICEMAP = 2, "CU_MEMHOSTREGISTER_DEVICEMAP";
    }
    /// An attribute of a pool of the driver's own allocator (`CUmemPool_attribute`).
    CuMemPoolAttribute(u32) {
        /// Bytes that the pool holds from the device (`u64`).
        RESERVED_MEM_CURRENT = 5, "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT";
        /// Most bytes that the pool has held from the device (`u64`).
        RESERVED_MEM_HIGH = 6, "CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH";
        /// Bytes of the pool in use by the program (`u64`).
        USED_MEM_CURRENT = 7, "CU_MEMPOOL_ATTR_USED_MEM_CURRENT";
        /// Most bytes of the pool that were in use by the program (`u64`).
        USED_MEM_HIGH = 8, "CU_MEMPOOL_ATTR_USED_MEM_HIGH";
    }
    /// An attribute of an address (`CUpointer_attribute`).
    CuPointerAttribute(u32) {
        /// Whether synchronous operations on the memory wait for completion (`unsigned int`).
        SYNC_MEMOPS = 6, "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS";
        /// The number of the allocation, unique in the process (`unsigned long long`).
        BUFFER_ID = 7, "CU_POINTER_ATTRIBUTE_BUFFER_ID";
        /// Whether a legacy IPC handle of the memory can be made (`int`).
        IS_LEGACY_CUDA_IPC_CAPABLE = 10, "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE";
        /// The first address of the allocation (`CUdeviceptr`).
        RANGE_START_ADDR = 11, "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR";
        /// The bytes of the allocation (`size_t`).
        RANGE_SIZE = 12, "CU_POINTER_ATTRIBUTE_RANGE_SIZE";
        /// The pool of the allocation, null outside of pools (`CUmemoryPool`).
        MEMPOOL_HANDLE = 17, "CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE";
        /// The bytes of the mapping (`size_t`).
        MAPPING_SIZE = 18, "CU_POINTER_ATTRIBUTE_MAPPING_SIZE";
        /// The first address of the mapping (`CUdeviceptr`).
        MAPPING_BASE_ADDR = 19, "CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR";
        /// The number of the physical memory (`unsigned long long`).
        MEMORY_BLOCK_ID = 20, "CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID";
    }
    /// Why a look-up of a function found nothing (`CUdriverProcAddressQueryResult`).
    CuDriverProcAddressQueryResult(u32) {
        /// The function is found.
        SUCCESS = 0, "CU_GET_PROC_ADDRESS_SUCCESS";
    }
}
