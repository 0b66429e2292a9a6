//! Pinned memory of the host: registered by the program, or allocated by the driver.
//!
//! A copy from or to pinned memory touches the memory when the copy runs, not when it is queued. A
//! free and the end of a registration wait for the work of the context.

use crate::call::Call;
use crate::state::contexts;
use crate::tables::host::{Pinned, unmap};
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use rustix::param::page_size;
use std::ffi::c_void;

/// `CU_MEMHOSTREGISTER_PORTABLE`, `_DEVICEMAP`, `_IOMEMORY` and `_READ_ONLY`.
const REGISTER_FLAGS: u32 = 0xf;
/// `CU_MEMHOSTALLOC_PORTABLE`, `_DEVICEMAP` and `_WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 0x7;

/// `cuMemHostRegister_v2`.
pub(crate) fn cuMemHostRegister_v2(call: &mut Call, start: u64, bytes: u64, flags: u32) -> Answer<()> {
    if start == 0 || bytes == 0 || flags & !REGISTER_FLAGS != 0 || !is_mapped(start, bytes) {
        return Err(Code::INVALID_VALUE);
    }
    let end = start.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    let id = call.state.next_id();
    let (context, ranges) = (call.context, &mut call.state.host_memory);
    if ranges.overlapping(start, end).is_some() {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    ranges.ranges.insert(start, Pinned { context, bytes, own: false, id, sync_memops: false });
    Ok(())
}

/// `cuMemHostUnregister`.
pub(crate) fn cuMemHostUnregister(call: &mut Call, start: u64) -> Answer<()> {
    let range = call.state.host_memory.ranges.get(&start).filter(|range| !range.own).copied();
    let range = range.ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?;
    contexts::check(&call.state, range.context)?;
    call.state.host_memory.ranges.remove(&start);
    call.wait_for_work_of(range.context);
    Ok(())
}

/// `cuMemAllocHost_v2`. 0 bytes are the null address.
pub(crate) fn cuMemAllocHost_v2(call: &mut Call, memory: Out<*mut c_void>, bytes: u64) -> Answer<()> {
    call.answer(memory, |call| if bytes == 0 { Ok(std::ptr::null_mut()) } else { allocate(call, bytes, 0) })
}

/// `cuMemHostAlloc`.
pub(crate) fn cuMemHostAlloc(call: &mut Call, memory: Out<*mut c_void>, bytes: u64, flags: u32) -> Answer<()> {
    call.answer(memory, |call| allocate(call, bytes, flags))
}

/// Allocates pinned memory.
fn allocate(call: &mut Call, bytes: u64, flags: u32) -> Answer<*mut c_void> {
    if bytes == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let taken = bytes.checked_next_multiple_of(page_size() as u64).ok_or(Code::OUT_OF_MEMORY)?;
    let start = map(taken).ok_or(Code::OUT_OF_MEMORY)?;
    let (context, id) = (call.context, call.state.next_id());
    call.state.host_memory.ranges.insert(start, Pinned { context, bytes, own: true, id, sync_memops: false });
    call.made("host memory", start);
    Ok(start as *mut c_void)
}

/// `cuMemFreeHost`.
pub(crate) fn cuMemFreeHost(call: &mut Call, start: u64) -> Answer<()> {
    let range = call.state.host_memory.ranges.get(&start).filter(|range| range.own).copied();
    let range = range.ok_or(Code::INVALID_VALUE)?;
    contexts::check(&call.state, range.context)?;
    call.state.host_memory.ranges.remove(&start);
    call.wait_for_work_of(range.context);
    unmap(start, range.bytes);
    Ok(())
}

/// `cuMemHostGetDevicePointer_v2`: the host's own address, as with unified addressing.
pub(crate) fn cuMemHostGetDevicePointer_v2(call: &mut Call, address: Out<u64>, at: u64, flags: u32) -> Answer<()> {
    call.answer(address, |call| {
        let pinned = call.state.host_memory.overlapping(at, at.saturating_add(1)).is_some();
        if flags == 0 && pinned { Ok(at) } else { Err(Code::INVALID_VALUE) }
    })
}

/// Returns whether the process has mapped every page of a range.
fn is_mapped(start: u64, bytes: u64) -> bool {
    let page = page_size() as u64;
    let first = start - start % page;
    let Some(length) = (start % page).checked_add(bytes) else { return false };
    let Ok(pages) = usize::try_from(length.div_ceil(page)) else { return false };
    // One byte for each page, for at most 1 TiB: the emulated driver serves small tests.
    if pages > 1 << 28 {
        return false;
    }
    let mut present = vec![0_u8; pages];
    // SAFETY: the call only looks at the range, and the vector has a byte for each page.
    unsafe { libc::mincore(first as *mut c_void, length as usize, present.as_mut_ptr()) == 0 }
}

/// Maps memory.
fn map(bytes: u64) -> Option<u64> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous private mapping at an address of the kernel's choice overlaps no other
    // mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as u64)
}
