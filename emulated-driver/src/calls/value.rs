//! Numbers in memory that streams write and wait for.

use super::submit::{is_of_device, resolve, submit};
use crate::backing::space::DeviceAccess;
use crate::call::Call;
use crate::tables::watch::{Until, Watch, Width};
use crate::tables::work::{Place, Work};
use crate::values::code::{Answer, Code};
use crate::values::pointers::In;
use std::sync::Arc;

/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_BARRIER: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const FLUSH: u32 = 1 << 30;
/// The first number of operations that `cuStreamBatchMemOp` refuses.
const TOO_MANY: u32 = 256;

/// Defines the functions for each width: the first version and the second, which do the same here.
macro_rules! values {
    ($($type:ty, $width:ident: $write:ident, $write_v2:ident, $wait:ident, $wait_v2:ident;)*) => { $(
        pub(crate) fn $write(call: &mut Call, stream: u64, address: u64, value: $type, flags: u32) -> Answer<()> {
            let work = write(call, stream, address, value.into(), Width::$width, flags)?;
            submit(call, stream, work)
        }

        pub(crate) fn $write_v2(call: &mut Call, stream: u64, address: u64, value: $type, flags: u32) -> Answer<()> {
            $write(call, stream, address, value, flags)
        }

        pub(crate) fn $wait(call: &mut Call, stream: u64, address: u64, value: $type, flags: u32) -> Answer<()> {
            let work = wait(call, stream, address, value.into(), Width::$width, flags)?;
            submit(call, stream, work)
        }

        pub(crate) fn $wait_v2(call: &mut Call, stream: u64, address: u64, value: $type, flags: u32) -> Answer<()> {
            $wait(call, stream, address, value, flags)
        }
    )* };
}
values! {
    u32, Four: cuStreamWriteValue32, cuStreamWriteValue32_v2, cuStreamWaitValue32, cuStreamWaitValue32_v2;
    u64, Eight: cuStreamWriteValue64, cuStreamWriteValue64_v2, cuStreamWaitValue64, cuStreamWaitValue64_v2;
}

/// `cuStreamBatchMemOp`, without the barriers of the second version.
pub(crate) fn cuStreamBatchMemOp(
    call: &mut Call,
    stream: u64,
    count: u32,
    operations: In<[u64; 6]>,
    flags: u32,
) -> Answer<()> {
    batch(call, stream, count, operations, flags, false)
}

/// `cuStreamBatchMemOp_v2`.
pub(crate) fn cuStreamBatchMemOp_v2(
    call: &mut Call,
    stream: u64,
    count: u32,
    operations: In<[u64; 6]>,
    flags: u32,
) -> Answer<()> {
    batch(call, stream, count, operations, flags, true)
}

/// Queues all operations of a list, or none. An operation has its kind in the first word, the
/// address in the second, the value in the third and the flags in the fourth. A barrier has the
/// flags in the upper half of the first word, and no effect here.
fn batch(call: &mut Call, stream: u64, count: u32, operations: In<[u64; 6]>, flags: u32, barriers: bool) -> Answer<()> {
    if flags != 0 || count >= TOO_MANY {
        return Err(Code::INVALID_VALUE);
    }
    let operations = if count == 0 { Vec::new() } else { operations.list(count as usize)? };
    let works = operations.into_iter().map(|[kind, address, value, flags, ..]| {
        let flags = flags as u32;
        match kind as u32 {
            1 => wait(call, stream, address, value, Width::Four, flags),
            2 => write(call, stream, address, value, Width::Four, flags),
            // A flush of remote writes, which the device does not offer.
            3 => Err(Code::NOT_SUPPORTED),
            4 => wait(call, stream, address, value, Width::Eight, flags),
            5 => write(call, stream, address, value, Width::Eight, flags),
            6 if barriers => Ok(Work::Nothing),
            _ => Err(Code::INVALID_VALUE),
        }
    });
    let works = works.collect::<Answer<Vec<Work>>>()?;
    submit(call, stream, Work::in_order(works))
}

/// Returns the work that writes a number.
fn write(call: &mut Call, stream: u64, address: u64, value: u64, width: Width, flags: u32) -> Answer<Work> {
    if flags & !NO_BARRIER != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let to = place(call, stream, address, width, DeviceAccess::ReadWrite)?;
    let contents: Arc<[u8]> = match width {
        Width::Four => Arc::new((value as u32).to_ne_bytes()),
        Width::Eight => Arc::new(value.to_ne_bytes()),
    };
    Ok(Work::Copy { to, from: Place::Kept(contents), bytes: width.bytes() })
}

/// Returns the work that waits for a number.
fn wait(call: &mut Call, stream: u64, address: u64, value: u64, width: Width, flags: u32) -> Answer<Work> {
    let until = match flags & !FLUSH {
        0 => Until::AtLeast,
        1 => Until::Equal,
        2 => Until::CommonBit,
        3 => Until::FreeBit,
        _ => return Err(Code::INVALID_VALUE),
    };
    if flags & FLUSH != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let at = match place(call, stream, address, width, DeviceAccess::Read)? {
        Place::Device { device, address } => call.state.space().seen_by(device, address),
        _ => address,
    };
    Ok(Work::Await(Watch { at, width, value, until }))
}

/// Returns the place of a number: device memory, or pinned memory of the host.
fn place(call: &mut Call, stream: u64, address: u64, width: Width, needed: DeviceAccess) -> Answer<Place> {
    let bytes = width.bytes();
    if !address.is_multiple_of(bytes) {
        return Err(Code::INVALID_VALUE);
    }
    if is_of_device(call, address) {
        let device = resolve(call, address, bytes, stream, needed)?;
        return Ok(Place::Device { device, address });
    }
    if call.state.host_memory.is_pinned(address, bytes)? { Ok(Place::Host(address)) } else { Err(Code::INVALID_VALUE) }
}
