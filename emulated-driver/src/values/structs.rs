//! Structures of the driver's header.

use cachalot_cuda_abi::types::{CuIpcMemHandle, CuMemAccessDesc, CuMemAllocationProp, CuMemLocation};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const POSIX_FD: i32 = 1;

/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const FABRIC: i32 = 8;

/// The name of the one table that `cuGetExportTable` of the emulated driver knows.
pub const EXPORT_TABLE: [u8; 16] = *b"cachalot-emu-tab";

/// `CUmemAllocationProp` for plain memory of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// `CUmemAllocationType`; 1 is pinned.
    pub kind: i32,
    /// `CUmemAllocationHandleType`.
    pub handle_types: i32,
    /// `CUmemLocationType`; 1 is a device.
    pub location_kind: i32,
    /// The device.
    pub location: i32,
    /// Null.
    pub metadata: u64,
    /// Zero.
    pub flags: [u8; 8],
}

impl Properties {
    /// Returns the properties of plain memory of a device.
    pub fn of_device(device: i32) -> Self {
        Self { kind: 1, handle_types: 0, location_kind: 1, location: device, metadata: 0, flags: [0; 8] }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// `CUmemLocationType`; 1 is a device.
    pub location_kind: i32,
    /// The device.
    pub location: i32,
    /// 0 none, 1 read, 3 read and write.
    pub flags: i32,
}

impl Access {
    /// Returns full access for a device.
    pub fn full(device: i32) -> Self {
        Self { location_kind: 1, location: device, flags: 3 }
    }
}

/// `CUmemPoolProps` for plain memory of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProperties {
    /// `CUmemAllocationType`; 1 is pinned.
    pub kind: i32,
    /// `CUmemAllocationHandleType`.
    pub handle_types: i32,
    /// `CUmemLocationType`; 1 is a device.
    pub location_kind: i32,
    /// The device.
    pub location: i32,
    /// Null.
    pub security: u64,
    /// Most bytes of the pool. 0 for no limit.
    pub max_bytes: usize,
    /// Zero.
    pub reserved: [u8; 56],
}

impl PoolProperties {
    /// Returns the properties of a pool of plain memory of a device.
    pub fn of_device(device: i32) -> Self {
        let (kind, location_kind) = (1, 1);
        Self { kind, handle_types: 0, location_kind, location: device, security: 0, max_bytes: 0, reserved: [0; 56] }
    }
}

/// `CUipcMemHandle` or `CUmemFabricHandle`: a name of memory, which a process passes on to another
/// process.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcMemory(pub [u8; 64]);

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayShape {
    /// Elements of a row.
    pub width: usize,
    /// Rows, or 0.
    pub height: usize,
    /// `CUarray_format`: 1 is a byte, 0x20 a float.
    pub format: u32,
    /// Numbers of an element.
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SolidShape {
    /// Elements of a row.
    pub width: usize,
    /// Rows of a slice, or 0.
    pub height: usize,
    /// Slices, or 0.
    pub depth: usize,
    /// As in [`ArrayShape`].
    pub format: u32,
    /// Numbers of an element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    /// `CUmemLocationType`; 1 is a device, 2 the host.
    pub kind: i32,
    /// The device.
    pub id: i32,
}

/// One end of [`Copy2D`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct End2D {
    /// Bytes before the rows' first byte in each line.
    pub x: usize,
    /// Lines before the first row.
    pub y: usize,
    /// `CUmemorytype`: 1 is the host, 2 a device, 3 an array, 4 any address.
    pub kind: u32,
    /// The address, for the host.
    pub host: u64,
    /// The address, for a device and for any address.
    pub device: u64,
    /// The array.
    pub array: u64,
    /// Bytes of a line.
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Copy2D {
    /// The source.
    pub from: End2D,
    /// The destination.
    pub to: End2D,
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

/// One end of [`Copy3D`].
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct End3D {
    /// Bytes before the rows' first byte in each line.
    pub x: usize,
    /// Lines before the first row in each slice.
    pub y: usize,
    /// Slices before the first.
    pub z: usize,
    /// The level of a mipmapped array.
    pub level: usize,
    /// As in [`End2D`].
    pub kind: u32,
    /// The address, for the host.
    pub host: u64,
    /// The address, for a device and for any address.
    pub device: u64,
    /// The array.
    pub array: u64,
    /// The context of the address, in `CUDA_MEMCPY3D_PEER`. Else null.
    pub context: u64,
    /// Bytes of a line.
    pub pitch: usize,
    /// Lines of a slice.
    pub height: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Copy3D {
    /// The source.
    pub from: End3D,
    /// The destination.
    pub to: End3D,
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows of a slice.
    pub height: usize,
    /// Number of slices.
    pub depth: usize,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct LaunchConfig {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: u64,
    /// The list of attributes, or null.
    pub attributes: u64,
    /// The number of attributes.
    pub attribute_count: u32,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct InstantiateParams {
    /// `CUgraphInstantiate_flags`.
    pub flags: u64,
    /// The stream for an upload, or 0.
    pub upload_stream: u64,
    /// The node with the mistake, or 0.
    pub error_node: u64,
    /// `CUgraphInstantiateResult`: 0 is a success, 1 is a mistake.
    pub result: i32,
}

const _: () = assert!(size_of::<Access>() == size_of::<CuMemAccessDesc>());
const _: () = assert!(size_of::<Properties>() == size_of::<CuMemAllocationProp>());
const _: () = assert!(size_of::<Location>() == size_of::<CuMemLocation>());
const _: () = assert!(size_of::<IpcMemory>() == size_of::<CuIpcMemHandle>());
const _: () = assert!(size_of::<PoolProperties>() == 88);
const _: () = assert!(size_of::<InstantiateParams>() == 32 && size_of::<LaunchConfig>() == 56);
const _: () = assert!(size_of::<Copy2D>() == 128 && size_of::<Copy3D>() == 200);
const _: () = assert!(size_of::<ArrayShape>() == 24 && size_of::<SolidShape>() == 40);
