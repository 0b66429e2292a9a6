//! Questions about an address: `cuPointerGetAttribute` and similar functions.
//!
//! The answers are those of driver 580.159 on an H100.

use crate::call::Call;
use crate::state::blocks::{self, Block, BlockKind};
use crate::state::driver::State;
use crate::values::code::{Answer, Code};
use crate::values::pointers::{In, Out};
use std::ffi::c_int;

/// `CU_POINTER_ATTRIBUTE_*`.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE_POINTER: c_int = 3;
const HOST_POINTER: c_int = 4;
const P2P_TOKENS: c_int = 5;
const SYNC_MEMOPS: c_int = 6;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const IS_LEGACY_IPC_CAPABLE: c_int = 10;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const MAPPED: c_int = 13;
const ALLOWED_HANDLE_TYPES: c_int = 14;
const IS_RDMA_CAPABLE: c_int = 15;
const ACCESS_FLAGS: c_int = 16;
const POOL_HANDLE: c_int = 17;
const MAPPING_SIZE: c_int = 18;
const MAPPING_BASE: c_int = 19;
const MEMORY_BLOCK_ID: c_int = 20;
const IS_DECOMPRESS_CAPABLE: c_int = 21;
/// The ordinal of memory that no device has.
const NO_DEVICE: i32 = -2;

/// The value of an attribute, with the size that the attribute has.
#[derive(Clone, Copy, Debug)]
enum Value {
    Word(u32),
    Long(u64),
    /// Two tokens without a meaning.
    Tokens,
}

/// `cuPointerGetAttribute`.
pub(crate) fn cuPointerGetAttribute(call: &mut Call, out: Out<u8>, attribute: c_int, address: u64) -> Answer<()> {
    out.check()?;
    let block = blocks::containing(&call.state, address).ok_or(Code::INVALID_VALUE)?;
    let value = value_of(&call.state, &block, attribute, address)?;
    give(call, out, value);
    Ok(())
}

/// `cuPointerGetAttributes`. An unknown address is no mistake: it has no context, no type and no
/// device.
pub(crate) fn cuPointerGetAttributes(
    call: &mut Call,
    count: u32,
    attributes: In<c_int>,
    values: In<*mut u8>,
    address: u64,
) -> Answer<()> {
    if count == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let attributes = attributes.list(count as usize)?;
    let outs = values.list(count as usize)?;
    let block = blocks::containing(&call.state, address);
    for (&attribute, &out) in attributes.iter().zip(&outs) {
        let value = match (&block, attribute) {
            (Some(block), _) => Some(value_of(&call.state, block, attribute, address)?),
            (None, DEVICE_ORDINAL) => Some(Value::Word(NO_DEVICE.cast_unsigned())),
            (None, MEMORY_TYPE | IS_MANAGED) => Some(Value::Word(0)),
            (None, CONTEXT | DEVICE_POINTER | HOST_POINTER) => Some(Value::Long(0)),
            (None, CONTEXT..=IS_DECOMPRESS_CAPABLE) => None,
            (None, _) => return Err(Code::INVALID_VALUE),
        };
        if let Some(value) = value {
            give(call, Out::from_caller(out), value);
        }
    }
    Ok(())
}

/// `cuPointerSetAttribute`: of the one attribute that can be set. Virtual memory has no such
/// setting.
pub(crate) fn cuPointerSetAttribute(call: &mut Call, value: In<u32>, attribute: c_int, address: u64) -> Answer<()> {
    let on = value.read()? != 0;
    if attribute != SYNC_MEMOPS {
        return Err(Code::INVALID_VALUE);
    }
    let block = blocks::containing(&call.state, address).ok_or(Code::INVALID_VALUE)?;
    let state = &mut *call.state;
    if let Some(allocation) = state.memory.allocations.get_mut(&block.start) {
        allocation.sync_memops = on;
    } else if let Some(range) = state.host_memory.ranges.get_mut(&block.start) {
        range.sync_memops = on;
    } else {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(())
}

/// Leaves a value for the caller.
fn give(call: &mut Call, out: Out<u8>, value: Value) {
    match value {
        Value::Word(value) => call.give(out.cast(), value),
        Value::Long(value) => call.give(out.cast(), value),
        Value::Tokens => call.give(out.cast(), [0_u32; 3]),
    }
}

/// Returns an attribute of an address inside a block.
fn value_of(state: &State, block: &Block, attribute: c_int, address: u64) -> Answer<Value> {
    let flag = |on: bool| Value::Word(on.into());
    let plain = block.kind == BlockKind::Plain;
    Ok(match attribute {
        CONTEXT => Value::Long(block.context),
        MEMORY_TYPE => Value::Word(if matches!(block.kind, BlockKind::Host | BlockKind::MappedHost) { 1 } else { 2 }),
        DEVICE_POINTER if block.access == 0 => return Err(Code::INVALID_VALUE),
        DEVICE_POINTER => Value::Long(address),
        HOST_POINTER if matches!(block.kind, BlockKind::Host | BlockKind::Managed) => Value::Long(address),
        P2P_TOKENS if block.kind != BlockKind::Host => Value::Tokens,
        SYNC_MEMOPS => flag(block.sync_memops),
        BUFFER_ID => Value::Long(block.id),
        IS_MANAGED => flag(block.kind == BlockKind::Managed),
        DEVICE_ORDINAL => Value::Word(block.device as u32),
        IS_LEGACY_IPC_CAPABLE | IS_RDMA_CAPABLE | IS_DECOMPRESS_CAPABLE => flag(plain),
        RANGE_START => Value::Long(block.range.0),
        RANGE_SIZE => Value::Long(block.range.1),
        MAPPED => flag(true),
        ALLOWED_HANDLE_TYPES => Value::Long(block.handle_types),
        ACCESS_FLAGS => Value::Word(block.access),
        POOL_HANDLE => Value::Long(block.pool.map_or(0, |pool| handle_of(state, pool))),
        MAPPING_SIZE => Value::Long(block.mapping.1),
        MAPPING_BASE => Value::Long(block.mapping.0),
        MEMORY_BLOCK_ID => Value::Long(block.memory_id),
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Returns the handle of a pool, or 0 once the pool is destroyed.
fn handle_of(state: &State, pool: u64) -> u64 {
    state.pools.handles.iter().find(|&(_, &number)| number == pool).map_or(0, |(handle, _)| handle)
}
