//! Modules and kernels: shared objects of the host, whose functions run on the threads of the
//! streams.
//!
//! The image for `cuModuleLoadData` is the text `CACHALOT-EMULATED <path>`. A kernel `k` is a pair
//! of symbols: `k`, called with pointers to the arguments, the number of blocks and the threads of
//! a block, and `const unsigned k_params`, the number of arguments, each of 8 bytes. An optional
//! `const unsigned long k_addresses` is a mask of the arguments with device addresses. Without the
//! mask, every argument equal to a present or former device address counts as an address. Addresses
//! are translated to the device's view before the call.
//!
//! An object that exports `cachalot_host_kernel_named` has `__global__` functions, compiled for the
//! host with `cachalot_host_kernels.h` of the emulated runtime. The exported function finds a
//! kernel with the argument sizes by the mangled name.

use super::submit::submit;
use crate::call::Call;
use crate::state::{modules, run};
use crate::tables::module::{Kernel, Module};
use crate::tables::work::{Arguments, GlobalKernel, KernelCode, PlainKernel, Shape, Work};
use crate::values::code::{Answer, Code};
use crate::values::pointers::{In, Out};
use crate::values::structs::LaunchConfig;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// Prefix of an image.
const PREFIX: &[u8] = b"CACHALOT-EMULATED ";
/// Variable with the path of the object, for images without a path.
const FALLBACK_VARIABLE: &str = "CACHALOT_HOST_KERNELS";
/// Object for the loader if neither the image nor the variable names a path.
const FALLBACK_OBJECT: &str = "libcachalot_host_kernels.so";
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK` of every emulated device.
const MAX_BLOCK: u64 = 1024;
/// Name of the object's function that finds a `__global__` function.
const FINDER: &[u8] = b"cachalot_host_kernel_named\0";

/// A `__global__` function of a host object, as declared in `cachalot_host_kernels.h`.
#[repr(C)]
struct HostKernel {
    name: *const c_char,
    run: GlobalKernel,
    count: u32,
    sizes: *const u32,
    addresses: u64,
}

/// `cuModuleLoadData`.
pub(crate) fn cuModuleLoadData(call: &mut Call, module: Out<u64>, image: In<c_char>) -> Answer<()> {
    call.answer(module, |call| load(call, image))
}

/// `cuModuleLoadDataEx`. Options are for the compiler of a real driver, and have no effect.
pub(crate) fn cuModuleLoadDataEx(
    call: &mut Call,
    module: Out<u64>,
    image: In<c_char>,
    _count: u32,
    _options: In<c_int>,
    _values: In<*const c_void>,
) -> Answer<()> {
    cuModuleLoadData(call, module, image)
}

/// `cuModuleLoadFatBinary`. Every image is of one kind here.
pub(crate) fn cuModuleLoadFatBinary(call: &mut Call, module: Out<u64>, image: In<c_char>) -> Answer<()> {
    cuModuleLoadData(call, module, image)
}

/// Loads the object of an image, after the work of the context.
fn load(call: &mut Call, image: In<c_char>) -> Answer<u64> {
    let path = path_of(image, call.state.config.skips_kernels)?;
    let context = call.context;
    call.wait_for_work_of(context);
    load_object(call, path.as_deref(), false)
}

/// Loads an object as a module, or a module without one.
fn load_object(call: &mut Call, path: Option<&str>, of_library: bool) -> Answer<u64> {
    // Unlocked, because a thread that holds the loader's own lock may wait for the driver's
    // lock.
    let object = call.state.unlocked(|| path.map(open).transpose())?.map(Arc::new);
    let (context, bytes) = (call.context, call.state.config.module_bytes);
    let device = call.state.contexts.get(&context).map(|context| context.device);
    let own_memory = device.map_or(Ok(Vec::new()), |device| call.state.devices[device].spend(bytes))?;
    let handle = call.state.modules.add(Module { object, of_library, context, own_memory });
    call.made("module", handle);
    Ok(handle)
}

/// `cuModuleUnload`.
pub(crate) fn cuModuleUnload(call: &mut Call, module: u64) -> Answer<()> {
    let its = call.state.modules.get(module)?;
    if its.of_library {
        return Err(Code::NOT_PERMITTED);
    }
    let context = its.context;
    call.wait_for_work_of(context);
    modules::remove(&mut call.state, module)
}

/// `cuLibraryLoadData`. The image is looked at when the library is first used, as by a real driver;
/// options have no effect.
pub(crate) fn cuLibraryLoadData(
    call: &mut Call,
    library: Out<u64>,
    code: In<c_char>,
    _jit_options: In<c_int>,
    _jit_values: In<*const c_void>,
    _jit_count: u32,
    _options: In<c_int>,
    _values: In<*const c_void>,
    _count: u32,
) -> Answer<()> {
    call.answer(library, |call| {
        if code.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let path = path_of(code, call.state.config.skips_kernels);
        let handle = call.state.libraries.add(crate::tables::module::Library { path, module: None });
        call.made("library", handle);
        Ok(handle)
    })
}

/// `cuLibraryUnload`.
pub(crate) fn cuLibraryUnload(call: &mut Call, library: u64) -> Answer<()> {
    let library = call.state.libraries.remove(library)?;
    // The module may have ended with a context.
    let module = library.module.filter(|&module| call.state.modules.get(module).is_ok());
    module.map_or(Ok(()), |module| modules::remove(&mut call.state, module))
}

/// `cuLibraryGetModule`: the same module each time.
pub(crate) fn cuLibraryGetModule(call: &mut Call, module: Out<u64>, library: u64) -> Answer<()> {
    call.answer(module, |call| module_of(call, library))
}

/// `cuLibraryGetKernel`.
pub(crate) fn cuLibraryGetKernel(call: &mut Call, kernel: Out<u64>, library: u64, name: In<c_char>) -> Answer<()> {
    call.answer(kernel, |call| {
        let name = name.text()?;
        let module = module_of(call, library)?;
        function_of(call, module, name)
    })
}

/// `cuKernelGetFunction`. A kernel's handle is the handle of the function.
pub(crate) fn cuKernelGetFunction(call: &mut Call, function: Out<u64>, kernel: u64) -> Answer<()> {
    call.answer(function, |call| call.state.functions.get(kernel).map(|_| kernel))
}

/// Returns the module of a library, loaded at the first use.
fn module_of(call: &mut Call, library: u64) -> Answer<u64> {
    let its = call.state.libraries.get(library)?;
    if let Some(module) = its.module.filter(|&module| call.state.modules.get(module).is_ok()) {
        return Ok(module);
    }
    let path = its.path.clone()?;
    let module = load_object(call, path.as_deref(), true)?;
    call.state.libraries.get_mut(library)?.module = Some(module);
    Ok(module)
}

/// Returns the handle of a kernel of a module.
fn function_of(call: &mut Call, module: u64, name: &CStr) -> Answer<u64> {
    let object = call.state.modules.get(module)?.object.clone();
    let skips = call.state.config.skips_kernels;
    let function = match object.map(|object| call.state.unlocked(|| find(object, name))) {
        Some(Ok(found)) => found,
        // A name that no kernel has is found, too: nothing tells it from a kernel of a GPU.
        None | Some(Err(Code::NOT_FOUND)) if skips => {
            Kernel { code: None, sizes: Vec::new().into(), addresses: 0, set: BTreeMap::new(), _object: None }
        }
        Some(Err(code)) => return Err(code),
        None => return Err(Code::NOT_FOUND),
    };
    Ok(call.state.functions.add(function))
}

/// `cuModuleGetFunction`.
pub(crate) fn cuModuleGetFunction(call: &mut Call, function: Out<u64>, module: u64, name: In<c_char>) -> Answer<()> {
    call.answer(function, |call| {
        let name = name.text()?;
        function_of(call, module, name)
    })
}

/// Loads an object, and passes the object a function that breaks a context.
fn open(path: &str) -> Answer<Library> {
    // SAFETY: loading runs the object's initializers. The program has named the object.
    let object = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let object = object.map_err(|_| Code::FILE_NOT_FOUND)?;
    // SAFETY: the contract between kernels and the driver gives the symbol the type.
    let set_raise = unsafe { object.get::<unsafe extern "C" fn(extern "C" fn(u32))>(b"cachalot_host_set_raise\0") };
    if let Ok(set_raise) = set_raise {
        // SAFETY: the object has asked for the function, which lives as long as the process.
        unsafe { set_raise(cachalot_emulated_raise) };
    }
    Ok(object)
}

/// Finds a kernel in an object: a `__global__` function, or a pair of symbols.
fn find(object: Arc<Library>, name: &CStr) -> Answer<Kernel> {
    // SAFETY: the contract gives the symbol the type.
    let named = unsafe { object.get::<unsafe extern "C" fn(*const c_char) -> *const HostKernel>(FINDER) };
    if let Ok(named) = named {
        // SAFETY: the function takes a C string.
        let found = unsafe { named(name.as_ptr()) };
        // SAFETY: null, or a description with the lifetime of the object.
        let found = unsafe { found.as_ref() }.ok_or(Code::NOT_FOUND)?;
        // SAFETY: the description has `count` sizes.
        let sizes = unsafe { std::slice::from_raw_parts(found.sizes, found.count as usize) };
        let sizes = sizes.iter().map(|&bytes| bytes as usize).collect();
        let code = Some(KernelCode::Global(found.run));
        return Ok(Kernel { code, sizes, addresses: found.addresses, set: BTreeMap::new(), _object: Some(object) });
    }
    find_pair(object, name)
}

/// Finds a kernel as a pair of symbols.
fn find_pair(object: Arc<Library>, name: &CStr) -> Answer<Kernel> {
    let beside = |suffix: &str| [name.to_bytes(), suffix.as_bytes(), b"\0"].concat();
    // SAFETY: the contract gives a kernel's symbol the type.
    let kernel = *unsafe { object.get::<PlainKernel>(name.to_bytes_with_nul()) }.map_err(|_| Code::NOT_FOUND)?;
    // SAFETY: the contract gives the symbol the type.
    let params = unsafe { object.get::<*const u32>(&*beside("_params")) }.map_err(|_| Code::NOT_FOUND)?;
    // SAFETY: the symbol is a constant of the type in a loaded object.
    let params = unsafe { **params } as usize;
    // SAFETY: as for the number of parameters.
    let addresses = unsafe { object.get::<*const u64>(&*beside("_addresses")) };
    // SAFETY: as above, if present.
    let addresses = addresses.map_or(u64::MAX, |mask| unsafe { **mask });
    let (code, sizes) = (Some(KernelCode::Plain(kernel)), vec![size_of::<u64>(); params].into());
    Ok(Kernel { code, sizes, addresses, set: BTreeMap::new(), _object: Some(object) })
}

/// `cuLaunchKernel`. `params` is null or points to a pointer for each of the kernel's parameters,
/// and each pointer has as many readable bytes as the parameter.
pub(crate) fn cuLaunchKernel(
    call: &mut Call,
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared_bytes: u32,
    stream: u64,
    params: In<*const u64>,
    extra: u64,
) -> Answer<()> {
    let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z] };
    let Kernel { code, sizes, addresses, .. } = call.state.functions.get(function)?.clone();
    let volume = |sizes: [u32; 3]| sizes.iter().try_fold(1_u64, |all, &size| all.checked_mul(size.into()));
    let grid = volume(shape.grid).and_then(|grid| u32::try_from(grid).ok()).filter(|&grid| grid > 0);
    let block = volume(shape.block).filter(|&block| block > 0 && block <= MAX_BLOCK);
    if grid.is_none() || block.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    let Some(code) = code else { return submit(call, stream, Work::Nothing) };
    if extra != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let params = if sizes.is_empty() { Vec::new() } else { params.list(sizes.len())? };
    let arguments = read_arguments(&sizes, &params);
    submit(call, stream, Work::Kernel { code, arguments, addresses, shape })
}

/// `cuLaunchCooperativeKernel`. The emulated device runs a kernel on one thread, so no block waits
/// for another.
pub(crate) fn cuLaunchCooperativeKernel(
    call: &mut Call,
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: u64,
    params: In<*const u64>,
) -> Answer<()> {
    cuLaunchKernel(call, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, 0)
}

/// `cuLaunchKernelEx`. Attributes have no effect.
pub(crate) fn cuLaunchKernelEx(
    call: &mut Call,
    config: In<LaunchConfig>,
    function: u64,
    params: In<*const u64>,
    extra: u64,
) -> Answer<()> {
    let LaunchConfig { grid: [x, y, z], block: [width, height, depth], shared_bytes, stream, .. } = config.read()?;
    cuLaunchKernel(call, function, x, y, z, width, height, depth, shared_bytes, stream, params, extra)
}

/// Copies arguments of the given sizes.
fn read_arguments(sizes: &[usize], params: &[*const u64]) -> Arguments {
    let mut slots = Vec::new();
    let mut starts = Vec::new();
    for (&bytes, &param) in sizes.iter().zip(params) {
        let start = slots.len();
        slots.resize(start + bytes.div_ceil(size_of::<u128>()), 0_u128);
        let to: *mut u8 = slots[start..].as_mut_ptr().cast();
        // SAFETY: the caller of the driver guarantees the bytes at the source. The slots have room
        // for them.
        unsafe { std::ptr::copy_nonoverlapping(param.cast(), to, bytes) };
        starts.push(start);
    }
    Arguments { slots: slots.into(), starts: starts.into() }
}

/// Returns the path of an image's object. The image is read up to a NUL or the first byte outside
/// the format. `None` if there is no object, and kernels without one are skipped.
fn path_of(image: In<c_char>, skips: bool) -> Answer<Option<String>> {
    for (index, &expected) in PREFIX.iter().enumerate() {
        // Every earlier byte was part of the image and not the end.
        if image.nth(index).read()?.to_ne_bytes() != [expected] {
            return if skips { Ok(None) } else { Err(Code::INVALID_IMAGE) };
        }
    }
    // An image with the prefix is a text with an end.
    let path = image.nth(PREFIX.len()).text()?.to_str().map_err(|_| Code::INVALID_IMAGE)?;
    if path.is_empty() {
        let named = std::env::var(FALLBACK_VARIABLE).ok();
        return Ok(named.or_else(|| (!skips).then(|| FALLBACK_OBJECT.to_owned())));
    }
    Ok(Some(path.to_owned()))
}

/// Called by a host kernel to break the kernel's context, as a trap does on a device. Does nothing
/// outside of a kernel.
#[unsafe(no_mangle)]
extern "C" fn cachalot_emulated_raise(code: u32) {
    run::raise(Code(code));
}
