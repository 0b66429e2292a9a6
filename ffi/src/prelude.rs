//! The names for most Rust programs: `use cachalot::prelude::*;`.

pub use crate::open::{CudaAllocator, HostAllocator, SimulatedAllocator};
pub use cachalot_core::{
    Allocator, Block, BlockAllocator, Buffer, Config, DeviceIndex, DevicePtr, Error, Range, StreamId,
};
pub use cachalot_cuda::HOST_STREAM;
