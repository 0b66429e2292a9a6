//! NVML's figures of a device's memory, which say the limit.
//!
//! A program finds these two functions because the library is preloaded, if the program links NVML,
//! and through the NVML of the private folder, if it opens one. That file has no code: it needs the
//! library in front and the real NVML, in this order, so a look-up by its handle finds these two
//! here and every other function in the real one.

use crate::open::has_nvml;
use cachalot_run::loader::symbol;
use cachalot_run::serve::process;
use core::ffi::{CStr, c_char, c_uint, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::panic::catch_unwind;

/// `NVML_SUCCESS`.
const SUCCESS: c_uint = 0;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
const FUNCTION_NOT_FOUND: c_uint = 13;
/// More than the bytes of the text of an identity (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_BYTES: usize = 96;

/// A device of NVML (`nvmlDevice_t`).
type Device = *mut c_void;
/// A function that answers for the memory of a device.
type Tell<T> = unsafe extern "C" fn(Device, *mut T) -> c_uint;

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
struct Memory2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) -> c_uint {
    let within_limit = |memory: &mut Memory| {
        if let Some([total, free]) = within(device, memory.total, memory.free) {
            *memory = Memory { total, free, used: total - free };
        }
    };
    // SAFETY: the arguments are the caller's, and the name has this signature.
    unsafe { answer(c"nvmlDeviceGetMemoryInfo", device, memory, within_limit) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut Memory2) -> c_uint {
    let within_limit = |memory: &mut Memory2| {
        if let Some([total, free]) = within(device, memory.total, memory.free) {
            *memory = Memory2 { version: memory.version, total, reserved: 0, free, used: total - free };
        }
    };
    // SAFETY: the arguments are the caller's, and the name has this signature.
    unsafe { answer(c"nvmlDeviceGetMemoryInfo_v2", device, memory, within_limit) }
}

/// Asks the real function of a name, and changes a successful answer.
///
/// # Safety
/// The function of the name has the type [`Tell<T>`], and the arguments are its caller's.
unsafe fn answer<T>(name: &CStr, device: Device, memory: *mut T, change: impl FnOnce(&mut T)) -> c_uint {
    let Some(real) = real(name) else { return FUNCTION_NOT_FOUND };
    // SAFETY: guaranteed by the caller.
    let real = unsafe { core::mem::transmute::<NonNull<c_void>, Tell<T>>(real) };
    // SAFETY: guaranteed by the caller.
    let code = unsafe { real(device, memory) };
    if code == SUCCESS {
        // SAFETY: NVML refuses null, so it has written the caller's figures.
        change(unsafe { &mut *memory });
    }
    code
}

/// Returns what the limit of the process leaves of a device: the total, and what is free. `None`:
/// the device's own figures hold.
fn within(device: Device, total: u64, free: u64) -> Option<[u64; 2]> {
    let process = has_nvml().then(process).flatten()?;
    let uuid = uuid_of(device)?;
    catch_unwind(|| process.within_limit(&uuid, total, free)).ok().flatten()
}

/// Returns a device's identity, as NVML prints it.
fn uuid_of(device: Device) -> Option<String> {
    type Ask = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_uint;
    let ask = real(c"nvmlDeviceGetUUID")?;
    // SAFETY: the name has this signature.
    let ask = unsafe { core::mem::transmute::<NonNull<c_void>, Ask>(ask) };
    let mut text = [0_u8; UUID_BYTES];
    // SAFETY: the buffer outlives the call, which writes at most its bytes.
    let code = unsafe { ask(device, text.as_mut_ptr().cast(), UUID_BYTES as c_uint) };
    let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| code == SUCCESS)?;
    text.to_str().ok().map(str::to_owned)
}

/// Returns a function of the real NVML. `None`: there is none.
fn real(name: &CStr) -> Option<NonNull<c_void>> {
    static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut library = LIBRARY.load(Ordering::Relaxed);
    if library.is_null() {
        // From here the name leads to the real one. It is loaded already, or the program would have
        // no device to ask for.
        // SAFETY: the name ends with a zero.
        library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY) };
        // Two threads at once write the same handle.
        LIBRARY.store(library, Ordering::Relaxed);
    }
    // SAFETY: the handle is the loader's and is never closed.
    NonNull::new(library).and_then(|library| NonNull::new(unsafe { symbol(library.as_ptr(), name) }))
}
