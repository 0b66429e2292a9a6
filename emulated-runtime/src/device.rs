//! Devices, and the context for a thread's calls: the current context, otherwise the primary
//! context of the thread's device.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::driver::{Driver, driver};
use crate::error::{told, write};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Version of the runtime, equal to the version of the supported headers.
const VERSION: c_int = 13_000;

thread_local! {
    /// The device of the thread while no context is current.
    static CHOSEN: Cell<c_int> = const { Cell::new(0) };
}

/// Returns the driver, after making a context current to the calling thread.
pub(crate) fn enter() -> Answer<&'static Driver> {
    let driver = driver()?;
    let mut current = 0;
    driver.cuCtxGetCurrent(&raw mut current)?;
    if current == 0 {
        make_current(driver, CHOSEN.get())?;
    }
    Ok(driver)
}

/// Returns the device of the calling thread.
pub(crate) fn current(driver: &Driver) -> c_int {
    let mut device = 0;
    // Without a context, the device of the thread's next call.
    if driver.cuCtxGetDevice(&raw mut device).is_ok() { device } else { CHOSEN.get() }
}

/// Returns the primary contexts that the runtime has retained, by device.
fn retained() -> MutexGuard<'static, BTreeMap<c_int, u64>> {
    static RETAINED: Mutex<BTreeMap<c_int, u64>> = Mutex::new(BTreeMap::new());
    RETAINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a device's primary context, retained on first use until the device is reset.
fn primary(driver: &Driver, device: c_int) -> Answer<u64> {
    let mut retained = retained();
    if let Some(&context) = retained.get(&device) {
        return Ok(context);
    }
    let mut context = 0;
    driver.cuDevicePrimaryCtxRetain(&raw mut context, device)?;
    retained.insert(device, context);
    Ok(context)
}

/// Makes a device's primary context current.
fn make_current(driver: &Driver, device: c_int) -> Answer<()> {
    driver.cuCtxSetCurrent(primary(driver, device)?)
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> u32 {
    told(|| {
        let mut number = 0;
        driver()?.cuDeviceGetCount(&raw mut number)?;
        write(count, number)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(device: c_int) -> u32 {
    told(|| {
        let driver = driver()?;
        let mut count = 0;
        driver.cuDeviceGetCount(&raw mut count)?;
        if !(0..count).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        make_current(driver, device)?;
        CHOSEN.set(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDevice(device: *mut c_int) -> u32 {
    told(|| write(device, current(driver()?)))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> u32 {
    told(|| {
        let mut found = 0;
        driver()?.cuDeviceGetAttribute(&raw mut found, attribute, device)?;
        write(value, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSynchronize() -> u32 {
    told(|| enter()?.cuCtxSynchronize())
}

/// Ends the context of the calling thread's device, and with it the device's memory. The next call
/// makes another.
#[unsafe(no_mangle)]
extern "C" fn cudaDeviceReset() -> u32 {
    told(|| {
        let driver = driver()?;
        let device = current(driver);
        CHOSEN.set(device);
        driver.cuCtxSetCurrent(0)?;
        retained().remove(&device);
        driver.cuDevicePrimaryCtxReset_v2(device)
    })
}

/// Flags say how the host waits, which makes no difference here.
#[unsafe(no_mangle)]
extern "C" fn cudaSetDeviceFlags(_flags: u32) -> u32 {
    told(|| driver().map(drop))
}

/// Caches are not emulated.
#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSetCacheConfig(_config: c_int) -> u32 {
    told(|| driver().map(drop))
}

/// No profiler runs.
#[unsafe(no_mangle)]
extern "C" fn cudaProfilerStart() -> u32 {
    told(|| driver().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cudaProfilerStop() -> u32 {
    told(|| driver().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> u32 {
    told(|| {
        let (mut low, mut high) = (0, 0);
        enter()?.cuCtxGetStreamPriorityRange(&raw mut low, &raw mut high)?;
        write(least, low)?;
        write(greatest, high)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> u32 {
    told(|| {
        let mut answer = 0;
        driver()?.cuDeviceCanAccessPeer(&raw mut answer, device, peer)?;
        write(can, answer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceEnablePeerAccess(peer: c_int, flags: u32) -> u32 {
    told(|| {
        let driver = enter()?;
        driver.cuCtxEnablePeerAccess(primary(driver, peer)?, flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceDisablePeerAccess(peer: c_int) -> u32 {
    told(|| {
        let driver = enter()?;
        driver.cuCtxDisablePeerAccess(primary(driver, peer)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDriverGetVersion(version: *mut c_int) -> u32 {
    told(|| {
        let mut found = 0;
        driver()?.cuDriverGetVersion(&raw mut found)?;
        write(version, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaRuntimeGetVersion(version: *mut c_int) -> u32 {
    told(|| write(version, VERSION))
}

/// Returns a driver function by name. `CUdriverProcAddressQueryResult` has the same numbers in the
/// driver and the runtime.
#[unsafe(no_mangle)]
extern "C" fn cudaGetDriverEntryPointByVersion(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: u32,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    told(|| {
        if symbol.is_null() || function.is_null() {
            return Err(INVALID_VALUE);
        }
        driver()?.cuGetProcAddress_v2(symbol, function, version as c_int, flags, status)
    })
}
