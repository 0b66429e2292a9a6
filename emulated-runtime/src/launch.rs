//! Kernels: registration by nvcc's host code at program start, and launches by `<<<>>>`.
//!
//! nvcc creates a host function for each kernel, and the host function's address identifies the
//! kernel. Registration gives the kernel's mangled name. A `__global__` function compiled for the
//! host has the same name, and is found by the name.

use crate::code::{
    Answer, INVALID_CONFIGURATION, INVALID_DEVICE_FUNCTION, INVALID_VALUE, NO_KERNEL_IMAGE, NOT_SUPPORTED,
};
use crate::device::enter;
use crate::driver::Driver;
use crate::error::{told, write};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Module text for the emulated driver. The text names no object, so the driver takes the object
/// from the environment.
const IMAGE: &CStr = c"CACHALOT-EMULATED ";
/// Variable with the path of the object.
const OBJECT_VARIABLE: &str = "CACHALOT_HOST_KERNELS";
/// Greatest number of threads in a block, as reported by the emulated devices, and in a
/// multiprocessor.
const MAX_BLOCK: u32 = 1024;
const MAX_THREADS: u32 = 2048;
/// Greatest number of blocks in a multiprocessor.
const MAX_BLOCKS: u32 = 32;

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Size {
    x: u32,
    y: u32,
    z: u32,
}

/// The configuration between `<<<` and `>>>`.
#[derive(Clone, Copy, Debug)]
struct Configuration {
    grid: Size,
    block: Size,
    shared_bytes: usize,
    stream: u64,
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
struct LaunchConfig {
    grid: Size,
    block: Size,
    shared_bytes: usize,
    stream: u64,
    attributes: *const c_void,
    attribute_count: u32,
}

/// `cudaFuncAttributes`.
#[repr(C)]
struct FunctionAttributes {
    shared_bytes: usize,
    constant_bytes: usize,
    local_bytes: usize,
    max_threads_per_block: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    others: [c_int; 25],
}

/// The driver's attributes of a kernel in the order of `others`, which ends with reserved numbers.
const OTHERS: [c_int; 9] = [7, 8, 9, 10, 11, 12, 13, 15, 14];

const _: () = assert!(size_of::<FunctionAttributes>() == 144 && size_of::<LaunchConfig>() == 56);

thread_local! {
    /// Pushed by the caller's `<<<>>>`, popped by the host function from nvcc.
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Returns the registered kernels: mangled names by the addresses of their host functions.
fn names() -> MutexGuard<'static, BTreeMap<usize, CString>> {
    static NAMES: Mutex<BTreeMap<usize, CString>> = Mutex::new(BTreeMap::new());
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the driver's function for a kernel.
fn function(driver: &Driver, host: *const c_void) -> Answer<u64> {
    static FOUND: Mutex<BTreeMap<usize, Answer<u64>>> = Mutex::new(BTreeMap::new());
    static MODULE: OnceLock<Answer<u64>> = OnceLock::new();
    let name = names().get(&(host as usize)).cloned().ok_or(INVALID_DEVICE_FUNCTION)?;
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    *found.entry(host as usize).or_insert_with(|| {
        let module = *MODULE.get_or_init(|| {
            let mut module = 0;
            driver.cuModuleLoadData(&raw mut module, IMAGE.as_ptr().cast()).map(|()| module)
        });
        let mut function = 0;
        let known = module.and_then(|module| driver.cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
        known.map(|()| function).map_err(|_| {
            let object = std::env::var(OBJECT_VARIABLE).unwrap_or_default();
            eprintln!("emulated runtime: no host function for the kernel {name:?} in {OBJECT_VARIABLE}={object:?}");
            NO_KERNEL_IMAGE
        })
    })
}

/// Launches a kernel.
fn launch(host: *const c_void, configuration: Configuration, arguments: *mut *mut c_void) -> Answer<()> {
    let driver = enter()?;
    let function = function(driver, host)?;
    let Configuration { grid, block, shared_bytes, stream } = configuration;
    let threads = [block.x, block.y, block.z].iter().try_fold(1_u32, |all, &size| all.checked_mul(size));
    let fits = threads.is_some_and(|threads| (1..=MAX_BLOCK).contains(&threads));
    if !fits || [grid.x, grid.y, grid.z].contains(&0) {
        return Err(INVALID_CONFIGURATION);
    }
    let shared_bytes = u32::try_from(shared_bytes).map_err(|_| INVALID_VALUE)?;
    driver.cuLaunchKernel(
        function,
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z,
        shared_bytes,
        stream,
        arguments,
        std::ptr::null_mut(),
    )
}

/// Returns an unused handle, because the emulated runtime cannot use device code.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(_image: *const c_void) -> *mut *mut c_void {
    Box::into_raw(Box::new(std::ptr::null_mut()))
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

/// # Safety
/// As for the real function: `handle` comes from `__cudaRegisterFatBinary` and is not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaUnregisterFatBinary(handle: *mut *mut c_void) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { Box::from_raw(handle) });
}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char {
    1
}

/// # Safety
/// As for the real function: `name` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFunction(
    _handle: *mut *mut c_void,
    host: *const c_void,
    _device: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _sizes: *mut c_void,
) {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    names().insert(host as usize, name.to_owned());
}

/// Ignores a variable of the device. A host kernel has the variables of the kernel's own object,
/// and no copy to a variable is emulated.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(_handle: *mut *mut c_void, _host: *mut c_char) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(grid: Size, block: Size, shared_bytes: usize, stream: u64) -> u32 {
    let configuration = Configuration { grid, block, shared_bytes, stream };
    CONFIGURATIONS.with_borrow_mut(|all| all.push(configuration));
    0
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Size,
    block: *mut Size,
    shared_bytes: *mut usize,
    stream: *mut u64,
) -> u32 {
    told(|| {
        let popped = CONFIGURATIONS.with_borrow_mut(Vec::pop).ok_or(INVALID_CONFIGURATION)?;
        write(grid, popped.grid)?;
        write(block, popped.block)?;
        write(shared_bytes, popped.shared_bytes)?;
        write(stream, popped.stream)
    })
}

/// Returns the address of the host function as the kernel's handle.
#[unsafe(no_mangle)]
extern "C" fn __cudaGetKernel(kernel: *mut *const c_void, host: *const c_void) -> u32 {
    told(|| write(kernel, host))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetKernel(kernel: *mut *const c_void, host: *const c_void) -> u32 {
    told(|| {
        let known = names().contains_key(&(host as usize));
        if known { write(kernel, host) } else { Err(INVALID_DEVICE_FUNCTION) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn __cudaLaunchKernel(
    kernel: *const c_void,
    grid: Size,
    block: Size,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: u64,
) -> u32 {
    told(|| launch(kernel, Configuration { grid, block, shared_bytes, stream }, arguments))
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchKernel(
    function: *const c_void,
    grid: Size,
    block: Size,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: u64,
) -> u32 {
    __cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream)
}

/// One thread runs a kernel, so no block waits for another.
#[unsafe(no_mangle)]
extern "C" fn cudaLaunchCooperativeKernel(
    function: *const c_void,
    grid: Size,
    block: Size,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: u64,
) -> u32 {
    __cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream)
}

/// Attributes (clusters, cooperation) are not emulated.
///
/// # Safety
/// As for the real function: `config` is null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaLaunchKernelExC(
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *mut *mut c_void,
) -> u32 {
    told(|| {
        // SAFETY: guaranteed by the caller.
        let config = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        if config.attribute_count > 0 {
            return Err(NOT_SUPPORTED);
        }
        let &LaunchConfig { grid, block, shared_bytes, stream, .. } = config;
        launch(function, Configuration { grid, block, shared_bytes, stream }, arguments)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFuncGetAttributes(attributes: *mut FunctionAttributes, host: *const c_void) -> u32 {
    told(|| {
        let driver = enter()?;
        let kernel = function(driver, host)?;
        let asked = |attribute: c_int| {
            let mut value = 0;
            driver.cuFuncGetAttribute(&raw mut value, attribute.cast_unsigned(), kernel).map(|()| value)
        };
        let bytes = |attribute| asked(attribute).map(|bytes| bytes as usize);
        let mut others = [0; 25];
        for (other, attribute) in others.iter_mut().zip(OTHERS) {
            *other = asked(attribute)?;
        }
        let all = FunctionAttributes {
            shared_bytes: bytes(1)?,
            constant_bytes: bytes(2)?,
            local_bytes: bytes(3)?,
            max_threads_per_block: asked(0)?,
            registers: asked(4)?,
            ptx_version: asked(5)?,
            binary_version: asked(6)?,
            others,
        };
        write(attributes, all)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFuncSetCacheConfig(host: *const c_void, config: c_int) -> u32 {
    told(|| {
        let driver = enter()?;
        driver.cuFuncSetCacheConfig(function(driver, host)?, config.cast_unsigned())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFuncSetAttribute(host: *const c_void, attribute: c_int, value: c_int) -> u32 {
    told(|| {
        let driver = enter()?;
        driver.cuFuncSetAttribute(function(driver, host)?, attribute.cast_unsigned(), value)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    host: *const c_void,
    block_size: c_int,
    _shared_bytes: usize,
    _flags: u32,
) -> u32 {
    told(|| {
        function(enter()?, host)?;
        let threads = u32::try_from(block_size).ok().filter(|size| (1..=MAX_BLOCK).contains(size));
        let threads = threads.ok_or(INVALID_VALUE)?;
        write(blocks, (MAX_THREADS / threads).min(MAX_BLOCKS) as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    host: *const c_void,
    block_size: c_int,
    shared_bytes: usize,
) -> u32 {
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, block_size, shared_bytes, 0)
}
