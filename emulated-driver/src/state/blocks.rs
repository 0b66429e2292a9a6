//! The memory that contains an address, of whatever kind: the one answer for pointer attributes and
//! handles.

use super::contexts;
use super::driver::State;
use crate::backing::space::DeviceAccess;
use crate::tables::memory::Source;
use crate::tables::virtual_memory::Home;

/// The kind of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockKind {
    /// `cuMemAlloc` and its like.
    Plain,
    /// Stream-ordered memory.
    Pool,
    /// `cuMemAllocManaged`.
    Managed,
    /// Memory of another process.
    Imported,
    /// A mapping of `cuMemMap`, of memory of a device.
    Mapped,
    /// A mapping of `cuMemMap`, of memory of the host.
    MappedHost,
    /// Pinned host memory.
    Host,
}

/// A block of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) kind: BlockKind,
    /// Start of the block.
    pub(crate) start: u64,
    /// The context, or 0 for memory that belongs to none.
    pub(crate) context: u64,
    pub(crate) device: usize,
    /// The number that no other block of the process has or had.
    pub(crate) id: u64,
    /// The number of the physical memory.
    pub(crate) memory_id: u64,
    /// Start and size of the range that the program asked for: of a mapping the whole reservation.
    pub(crate) range: (u64, u64),
    /// Start and size of what is mapped at once.
    pub(crate) mapping: (u64, u64),
    /// `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS`: 0 none, 1 read, 3 read and write.
    pub(crate) access: u32,
    /// `CUmemAllocationHandleType` for export.
    pub(crate) handle_types: u64,
    pub(crate) pool: Option<u64>,
    pub(crate) sync_memops: bool,
}

/// Returns the block that contains an address.
pub(crate) fn containing(state: &State, address: u64) -> Option<Block> {
    allocation(state, address).or_else(|| mapping(state, address)).or_else(|| pinned(state, address))
}

/// Returns the allocation that contains an address.
fn allocation(state: &State, address: u64) -> Option<Block> {
    let (start, allocation) = state.memory.containing(address)?;
    let region = state.memory.regions.get(&allocation.region)?;
    let kind = match (allocation.source, allocation.pool) {
        (Source::Imported, _) => BlockKind::Imported,
        (Source::Managed, _) => BlockKind::Managed,
        (Source::Plain, Some(_)) => BlockKind::Pool,
        (Source::Plain, None) => BlockKind::Plain,
    };
    Some(Block {
        kind,
        start,
        // Memory of a pool belongs to the device.
        context: if allocation.pool.is_some() { 0 } else { allocation.context },
        device: region.device,
        id: allocation.id,
        memory_id: allocation.region,
        range: (start, allocation.bytes),
        mapping: (allocation.region, region.bytes),
        access: 3,
        handle_types: 0,
        pool: allocation.pool,
        sync_memops: allocation.sync_memops,
    })
}

/// Returns the mapping that contains an address.
fn mapping(state: &State, address: u64) -> Option<Block> {
    let (start, bytes) = state.virtual_memory.containing(address)?;
    let mapping = &state.virtual_memory.mappings[&start];
    let physical = &state.virtual_memory.physical[&mapping.physical];
    let access = mapping.users.get(&physical.home.device()).or_else(|| mapping.users.values().next());
    Some(Block {
        kind: if physical.home == Home::Host { BlockKind::MappedHost } else { BlockKind::Mapped },
        start,
        context: 0,
        device: physical.home.device(),
        id: mapping.id,
        memory_id: mapping.physical,
        range: state.virtual_memory.reservation_of(address).unwrap_or((start, bytes)),
        mapping: (start, bytes),
        access: access.map_or(0, |&access| if access == DeviceAccess::ReadWrite { 3 } else { 1 }),
        handle_types: physical.handle_types as u64,
        pool: None,
        sync_memops: true,
    })
}

/// Returns the pinned range of the host that contains an address.
fn pinned(state: &State, address: u64) -> Option<Block> {
    let (start, range) = state.host_memory.overlapping(address, address.checked_add(1)?)?;
    Some(Block {
        kind: BlockKind::Host,
        start,
        context: range.context,
        device: contexts::device_of(state, range.context).unwrap_or(0),
        id: range.id,
        memory_id: range.id,
        range: (start, range.bytes),
        mapping: (start, range.bytes),
        access: 3,
        handle_types: 0,
        pool: None,
        sync_memops: range.sync_memops,
    })
}
