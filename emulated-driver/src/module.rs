//! Modules and kernels: shared objects of the host, whose functions are run on the streams' threads.
//!
//! The image that `cuModuleLoadData` takes is the text `CACHALOT-EMULATED <path>`. A kernel `k` is a pair of symbols:
//! `k`, called with pointers to its arguments, the number of blocks and the threads of a block, and
//! `const unsigned k_params`, the number of its arguments, each of 8 bytes. An optional `const unsigned long
//! k_addresses` is a mask of the arguments that are device addresses; without it, every argument that is a device
//! address handed out before is taken for one. Addresses are moved into the device's own view before the call.
//!
//! An object that exports `cachalot_host_kernel_named` has `__global__` functions, compiled for the
//! host with `cachalot_host_kernels.h` of the emulated runtime: that function finds one by its
//! mangled name, with its arguments' sizes.

use crate::call::Call;
use crate::capture;
use crate::code::{Answer, Code};
use crate::work::{self, Arguments, GlobalKernel, KernelCode, PlainKernel, Shape, Work};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// What an image begins with.
const PREFIX: &[u8] = b"CACHALOT-EMULATED ";
/// Names the object when the image does not.
const FALLBACK_VARIABLE: &str = "CACHALOT_HOST_KERNELS";
/// Sought by the loader when nothing else names an object.
const FALLBACK_OBJECT: &str = "libcachalot_host_kernels.so";
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK` of every emulated device.
const MAX_BLOCK: u64 = 1024;
/// The function of an object that finds its `__global__` functions.
const FINDER: &[u8] = b"cachalot_host_kernel_named\0";

/// A loaded object.
#[derive(Debug)]
pub(crate) struct Module {
    /// Kept by functions and never unloaded while work of it may be queued.
    object: Arc<Library>,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    code: KernelCode,
    /// Bytes of each argument.
    sizes: Arc<[usize]>,
    /// A mask of the arguments that are device addresses.
    addresses: u64,
    /// Keeps the code in memory.
    _object: Arc<Library>,
}

/// A `__global__` function of a host object, as `cachalot_host_kernels.h` declares it.
#[repr(C)]
struct HostKernel {
    name: *const c_char,
    run: GlobalKernel,
    count: u32,
    sizes: *const u32,
    addresses: u64,
}

/// `cuModuleLoadData`.
///
/// # Safety
/// `image` is null or points to an image.
pub(crate) unsafe fn load(call: &mut Call, image: *const c_char) -> Answer<u64> {
    // SAFETY: the caller's promise.
    let path = unsafe { path_of(image) }?;
    // The loader has a lock of its own: another thread may hold it and wait for this driver's.
    let object = call.state.unlocked(|| open(&path))?;
    let handle = call.state.modules.add(Module { object: Arc::new(object) });
    call.made("module", handle);
    Ok(handle)
}

/// `cuModuleUnload`.
pub(crate) fn unload(call: &mut Call, module: u64) -> Answer<()> {
    let module = call.state.modules.remove(module)?;
    // Work queued earlier may still run the object's code.
    std::mem::forget(module.object);
    Ok(())
}

/// `cuModuleGetFunction`.
pub(crate) fn function(call: &mut Call, module: u64, name: &CStr) -> Answer<u64> {
    let object = Arc::clone(&call.state.modules.get(module)?.object);
    let function = call.state.unlocked(|| find(object, name))?;
    Ok(call.state.functions.add(function))
}

/// Loads an object and tells it how its kernels break their context.
fn open(path: &str) -> Answer<Library> {
    // SAFETY: loading runs the object's initialisers; the program named it as its kernels.
    let object = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let object = object.map_err(|_| Code::FILE_NOT_FOUND)?;
    // SAFETY: the name is given this type in the contract between kernels and this driver.
    let set_raise = unsafe { object.get::<unsafe extern "C" fn(extern "C" fn(u32))>(b"cachalot_host_set_raise\0") };
    if let Ok(set_raise) = set_raise {
        // SAFETY: the object asked for the function, which lives as long as the process.
        unsafe { set_raise(cachalot_emulated_raise) };
    }
    Ok(object)
}

/// Finds a kernel in an object: a `__global__` function, or a pair of symbols.
fn find(object: Arc<Library>, name: &CStr) -> Answer<Function> {
    // SAFETY: the contract gives the symbol this type.
    let named = unsafe { object.get::<unsafe extern "C" fn(*const c_char) -> *const HostKernel>(FINDER) };
    if let Ok(named) = named {
        // SAFETY: the function takes a C string.
        let found = unsafe { named(name.as_ptr()) };
        // SAFETY: null, or a description that lives as long as the object.
        let found = unsafe { found.as_ref() }.ok_or(Code::NOT_FOUND)?;
        // SAFETY: the description has this many sizes.
        let sizes = unsafe { std::slice::from_raw_parts(found.sizes, found.count as usize) };
        let sizes = sizes.iter().map(|&bytes| bytes as usize).collect();
        let code = KernelCode::Global(found.run);
        return Ok(Function { code, sizes, addresses: found.addresses, _object: object });
    }
    find_pair(object, name)
}

/// Finds a kernel that is a pair of symbols.
fn find_pair(object: Arc<Library>, name: &CStr) -> Answer<Function> {
    let beside = |suffix: &str| [name.to_bytes(), suffix.as_bytes(), b"\0"].concat();
    // SAFETY: the contract gives a kernel's symbol this type.
    let kernel = *unsafe { object.get::<PlainKernel>(name.to_bytes_with_nul()) }.map_err(|_| Code::NOT_FOUND)?;
    // SAFETY: the contract gives the symbol this type.
    let params = unsafe { object.get::<*const u32>(&*beside("_params")) }.map_err(|_| Code::NOT_FOUND)?;
    // SAFETY: the symbol is a constant of this type in a loaded object.
    let params = unsafe { **params } as usize;
    // SAFETY: as for the number of parameters.
    let addresses = unsafe { object.get::<*const u64>(&*beside("_addresses")) };
    // SAFETY: as above, if it is there.
    let addresses = addresses.map_or(u64::MAX, |mask| unsafe { **mask });
    let (code, sizes) = (KernelCode::Plain(kernel), vec![size_of::<u64>(); params].into());
    Ok(Function { code, sizes, addresses, _object: object })
}

/// `cuLaunchKernel`.
///
/// # Safety
/// `params` is null or points to a pointer for each of the kernel's parameters, to as many readable bytes as it has.
pub(crate) unsafe fn launch(
    call: &mut Call,
    function: u64,
    shape: Shape,
    stream: u64,
    params: *const *const u8,
) -> Answer<()> {
    let Function { code, sizes, addresses, .. } = call.state.functions.get(function)?.clone();
    let volume = |sizes: [u32; 3]| sizes.iter().try_fold(1_u64, |all, &size| all.checked_mul(size.into()));
    let grid = volume(shape.grid).and_then(|grid| u32::try_from(grid).ok()).filter(|&grid| grid > 0);
    let block = volume(shape.block).filter(|&block| block > 0 && block <= MAX_BLOCK);
    if grid.is_none() || block.is_none() || (!sizes.is_empty() && params.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let arguments = unsafe { read_arguments(&sizes, params) };
    capture::submit(call, stream, Work::Kernel { code, arguments, addresses, shape })
}

/// Copies arguments of these sizes.
///
/// # Safety
/// `params` points to a pointer for each size, to as many readable bytes.
unsafe fn read_arguments(sizes: &[usize], params: *const *const u8) -> Arguments {
    let mut slots = Vec::new();
    let mut starts = Vec::new();
    for (index, &bytes) in sizes.iter().enumerate() {
        let start = slots.len();
        slots.resize(start + bytes.div_ceil(size_of::<u128>()), 0_u128);
        // SAFETY: the caller's promise covers the pointer.
        let param = unsafe { *params.wrapping_add(index) };
        let to = slots[start..].as_mut_ptr().cast();
        // SAFETY: the caller's promise covers what it points to; the slots have the room.
        unsafe { std::ptr::copy_nonoverlapping(param, to, bytes) };
        starts.push(start);
    }
    Arguments { slots: slots.into(), starts: starts.into() }
}

/// The object that an image names.
///
/// # Safety
/// `image` is null or points to an image: it is read up to the first byte that does not fit, or a NUL.
unsafe fn path_of(image: *const c_char) -> Answer<String> {
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    for (index, &expected) in PREFIX.iter().enumerate() {
        // SAFETY: every byte before was part of the image and not its end.
        let byte = unsafe { *image.wrapping_add(index) };
        if byte.cast_unsigned() != expected {
            return Err(Code::INVALID_IMAGE);
        }
    }
    // SAFETY: an image with the prefix is a text that ends in NUL.
    let rest = unsafe { CStr::from_ptr(image.wrapping_add(PREFIX.len())) };
    let path = rest.to_str().map_err(|_| Code::INVALID_IMAGE)?;
    if path.is_empty() {
        return Ok(std::env::var(FALLBACK_VARIABLE).unwrap_or_else(|_| FALLBACK_OBJECT.to_owned()));
    }
    Ok(path.to_owned())
}

/// Called by a host kernel to break the context it runs in, as a trap does on a device. Elsewhere it does nothing.
#[unsafe(no_mangle)]
extern "C" fn cachalot_emulated_raise(code: u32) {
    work::raise(Code(code));
}
