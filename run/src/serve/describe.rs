//! Questions of a program about an address: the range, and the attributes.
//!
//! The driver knows segments. A block answers like an allocation of the driver, and memory in
//! pieces like memory with one handle.

use crate::serve::process::{MemoryAt, Process};
use crate::serve::served::Served;
use cachalot_core::Allocation;
use cachalot_cuda::driver::types::{CuDevicePtr, CuPointerAttribute};
use cachalot_cuda::{CuResult, HOST_STREAM};
use core::ffi::{c_int, c_uint, c_void};

impl Process {
    /// `cuMemGetAddressRange_v2`: the block around an address, with the bytes of the request.
    ///
    /// # Safety
    /// `base` and `bytes` are null or writable.
    pub unsafe fn mem_get_address_range(
        &self,
        base: *mut CuDevicePtr,
        bytes: *mut usize,
        address: CuDevicePtr,
    ) -> CuResult {
        let admitted = if self.frees.is_capturing() { CuResult::SUCCESS } else { self.admit() };
        let range = match self.memory_at(address) {
            MemoryAt::Block(_, block) => Some((block.base.0, block.requested)),
            MemoryAt::Free if admitted.is_success() => return CuResult::NOT_FOUND,
            MemoryAt::Free => return admitted,
            MemoryAt::Foreign => self.opened_around(address).or_else(|| self.program.open_mapping_around(address)),
        };
        let Some((start, length)) = range.filter(|_| admitted.is_success()) else {
            // SAFETY: the arguments are the caller's.
            return unsafe { self.real.mem_get_address_range(base, bytes, address) };
        };
        if !base.is_null() {
            // SAFETY: the caller vouches for a non-null address.
            unsafe { base.write(start) };
        }
        if !bytes.is_null() {
            // SAFETY: the caller vouches for a non-null address.
            unsafe { bytes.write(length as usize) };
        }
        CuResult::SUCCESS
    }

    /// `cuPointerGetAttribute`.
    ///
    /// # Safety
    /// `value` is null, or writable for the attribute.
    pub unsafe fn pointer_get_attribute(
        &self,
        value: *mut c_void,
        attribute: CuPointerAttribute,
        address: CuDevicePtr,
    ) -> CuResult {
        // The driver knows nothing about an address whose memory is parked.
        self.awake(|| {
            // SAFETY: the arguments are the caller's.
            let pass = || unsafe { self.real.pointer_get_attribute(value, attribute, address) };
            match self.memory_at(address) {
                MemoryAt::Foreign => {
                    let code = pass();
                    if code.is_success() {
                        // SAFETY: the driver has written a value of the attribute there.
                        unsafe { self.correct_divided(value, attribute, address) };
                    }
                    code
                }
                // The driver knows the segment, and the program has freed the block.
                MemoryAt::Free => CuResult::INVALID_VALUE,
                MemoryAt::Block(served, block) => {
                    let code = pass();
                    if code.is_success() {
                        // SAFETY: the driver has written a value of the attribute there.
                        unsafe { self.correct(value, attribute, &served, &block) };
                    }
                    code
                }
            }
        })
    }

    /// `cuPointerGetAttributes`.
    ///
    /// # Safety
    /// `attributes` has `count` entries, and `values` as many addresses, each writable for the
    /// attribute.
    pub unsafe fn pointer_get_attributes(
        &self,
        count: c_uint,
        attributes: *mut CuPointerAttribute,
        values: *mut *mut c_void,
        address: CuDevicePtr,
    ) -> CuResult {
        self.awake(|| {
            let memory = self.memory_at(address);
            // For an address that it does not know, the driver answers each attribute with nothing.
            // No program has memory at address 1.
            let asked = if matches!(memory, MemoryAt::Free) { 1 } else { address };
            // SAFETY: the arguments are the caller's.
            let code = unsafe { self.real.pointer_get_attributes(count, attributes, values, asked) };
            let block = match memory {
                MemoryAt::Block(served, block) => Some((served, block)),
                MemoryAt::Foreign => None,
                MemoryAt::Free => return code,
            };
            // The driver refuses null arrays, but for 0 attributes.
            if !code.is_success() || attributes.is_null() || values.is_null() {
                return code;
            }
            // SAFETY: after success the driver has read `count` entries of the array.
            let attributes = unsafe { core::slice::from_raw_parts(attributes, count as usize) };
            // SAFETY: as above.
            let values = unsafe { core::slice::from_raw_parts(values, count as usize) };
            for (&attribute, &value) in attributes.iter().zip(values) {
                match &block {
                    _ if value.is_null() => {}
                    // SAFETY: the driver has written a value of the attribute there.
                    Some((served, block)) => unsafe { self.correct(value, attribute, served, block) },
                    // SAFETY: as above.
                    None => unsafe { self.correct_divided(value, attribute, address) },
                }
            }
            code
        })
    }

    /// `cuPointerSetAttribute`. `SYNC_MEMOPS` is kept for each block.
    ///
    /// # Safety
    /// `value` is null, or readable for the attribute.
    pub unsafe fn pointer_set_attribute(
        &self,
        value: *const c_void,
        attribute: CuPointerAttribute,
        address: CuDevicePtr,
    ) -> CuResult {
        if attribute == CuPointerAttribute::SYNC_MEMOPS && !value.is_null() {
            match self.memory_at(address) {
                MemoryAt::Block(_, block) => {
                    // SAFETY: the attribute's value is an `unsigned int`.
                    let on = unsafe { value.cast::<c_uint>().read_unaligned() } != 0;
                    return self.notes.set_syncs(self.real, block.base.0, block.segment.0, on);
                }
                MemoryAt::Free => return CuResult::INVALID_VALUE,
                MemoryAt::Foreign => {}
            }
        }
        // SAFETY: the arguments are the caller's.
        unsafe { self.real.pointer_set_attribute(value, attribute, address) }
    }

    /// Replaces the driver's value of an attribute of an address in memory of the program's, a
    /// piece's, by the whole mapping's.
    ///
    /// # Safety
    /// `value` is writable for the attribute.
    unsafe fn correct_divided(&self, value: *mut c_void, attribute: CuPointerAttribute, address: CuDevicePtr) {
        let Some((base, bytes)) = self.program.divided_mapping_around(address) else { return };
        match attribute {
            CuPointerAttribute::MAPPING_SIZE => {
                // SAFETY: the attribute's value is a `size_t`.
                unsafe { value.cast::<usize>().write_unaligned(bytes as usize) };
            }
            CuPointerAttribute::MAPPING_BASE_ADDR
            | CuPointerAttribute::BUFFER_ID
            | CuPointerAttribute::MEMORY_BLOCK_ID => {
                // The first piece answers for all. The driver has answered for another piece a
                // moment ago. SAFETY: the caller vouches for the value.
                let _ = unsafe { self.real.pointer_get_attribute(value, attribute, base) };
            }
            _ => {}
        }
    }

    /// Replaces the driver's value of an attribute, the segment's, by the block's.
    ///
    /// # Safety
    /// `value` is writable for the attribute.
    unsafe fn correct(&self, value: *mut c_void, attribute: CuPointerAttribute, served: &Served, block: &Allocation) {
        let is_ordered = block.stream != HOST_STREAM;
        match attribute {
            CuPointerAttribute::RANGE_START_ADDR => {
                // SAFETY: the attribute's value is a `CUdeviceptr`.
                unsafe { value.cast::<CuDevicePtr>().write_unaligned(block.base.0) };
            }
            CuPointerAttribute::RANGE_SIZE => {
                // SAFETY: the attribute's value is a `size_t`.
                unsafe { value.cast::<usize>().write_unaligned(block.requested as usize) };
            }
            CuPointerAttribute::BUFFER_ID => {
                // SAFETY: the attribute's value is an `unsigned long long`.
                unsafe { value.cast::<u64>().write_unaligned(self.notes.number(block.base.0)) };
            }
            CuPointerAttribute::SYNC_MEMOPS => {
                // SAFETY: the attribute's value is an `unsigned int`.
                unsafe { value.cast::<c_uint>().write_unaligned(u32::from(self.notes.syncs(block.base.0))) };
            }
            // Memory of a pool has no legacy handle.
            CuPointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE if is_ordered => {
                // SAFETY: the attribute's value is an `int`.
                unsafe { value.cast::<c_int>().write_unaligned(0) };
            }
            CuPointerAttribute::MEMPOOL_HANDLE if is_ordered => {
                let pool = self.pools.default_of(self.real, served.ordinal());
                // SAFETY: the attribute's value is a `CUmemoryPool`.
                unsafe { value.cast::<usize>().write_unaligned(pool.0) };
            }
            _ => {}
        }
    }
}
