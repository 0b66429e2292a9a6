//! Start, version, names of codes, addresses of functions.

use super::Out;
use crate::call::{Call, make};
use crate::exit;
use crate::process::latch;
use crate::values::code::Code;
use crate::values::functions::{FUNCTIONS, Function};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// `CU_GET_PROC_ADDRESS_SUCCESS`.
const PROC_FOUND: c_int = 0;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const PROC_NOT_FOUND: c_int = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`.
const PROC_TOO_OLD: c_int = 2;

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> u32 {
    make(
        Function::cuInit,
        &[flags.into()],
        |call| {
            if flags != 0 {
                return Err(Code::INVALID_VALUE);
            }
            call.state.initialise();
            if call.state.devices.is_empty() {
                return Err(Code::NO_DEVICE);
            }
            latch::ready(call.state.config.fork, exit::at_exit);
            Ok(())
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    let out = Out(version);
    make(
        Function::cuDriverGetVersion,
        &[version as u64],
        |call| out.check().map(|()| call.state.config.driver_version),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    describe(Function::cuGetErrorName, code, name, |(name, _)| name)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: *mut *const c_char) -> u32 {
    describe(Function::cuGetErrorString, code, text, |(_, text)| text)
}

/// Returns the name or the text of a code, or null for a code without a name. Valid at any time,
/// also in a forked child.
fn describe(
    function: Function,
    code: u32,
    target: *mut *const c_char,
    choose: impl Fn((&'static str, &'static str)) -> &'static str,
) -> u32 {
    let out = Out(target);
    let found = Code(code).describe().map(choose);
    out.write(found.map_or(std::ptr::null(), |text| text.as_ptr().cast()));
    let answer = out.check().and(found.map(drop).ok_or(Code::INVALID_VALUE));
    if latch::refusal().is_some() {
        return answer.map_or_else(|code| code.0, |()| Code::SUCCESS.0);
    }
    make(function, &[code.into(), target as u64], |_| answer, drop)
}

/// # Safety
/// As for the real function: `symbol` is null or a C string, the other pointers are null or valid
/// for writing.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> u32 {
    let (out, status_out) = (Out(address), Out(status));
    make(
        Function::cuGetProcAddress_v2,
        &[symbol as u64, address as u64, version as u64, flags, status as u64],
        |call| {
            out.check()?;
            if symbol.is_null() || version > call.state.config.driver_version {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: not null, the rest is guaranteed by the caller.
            let name = unsafe { CStr::from_ptr(symbol) };
            let (found, code) = look_up(call, name.to_str().map_err(|_| Code::INVALID_VALUE)?, version);
            // Written for every answer, because only the status explains a null address.
            out.write(found);
            status_out.write(code);
            if code == PROC_FOUND { Ok(()) } else { call.state.answers.outcome("proc_absent") }
        },
        drop,
    )
}

/// Returns the newest function of a base name in a driver version, with the status.
fn look_up(call: &mut Call, name: &str, version: c_int) -> (*mut c_void, c_int) {
    let hidden = call.state.config.hidden.clone();
    let wanted = |function: &&Function| function.base_name() == name;
    let shown = |function: &&Function| !hidden.iter().any(|one| one == function.name());
    let candidates = FUNCTIONS.iter().filter(wanted).filter(shown);
    // Unlocked, because a thread that holds the loader's own lock may wait for the driver's
    // lock.
    let there: Vec<_> = call.state.unlocked(|| {
        candidates.filter_map(|function| Some((function.since(), own_symbol(function.name())?))).collect()
    });
    match there.iter().rfind(|(since, _)| *since <= version) {
        Some(&(_, found)) => (found, PROC_FOUND),
        None if there.is_empty() => (std::ptr::null_mut(), PROC_NOT_FOUND),
        None => (std::ptr::null_mut(), PROC_TOO_OLD),
    }
}

/// Returns the address of one of the library's own symbols, as the loader finds the symbol. A
/// symbol hidden from the loader is absent.
fn own_symbol(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    let mut own = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here: *const c_void = (own_symbol as fn(&str) -> Option<*mut c_void>) as *const c_void;
    // SAFETY: the address belongs to a function of the library. The structure is valid for
    // writing.
    if unsafe { libc::dladdr(here, &raw mut own) } == 0 {
        return None;
    }
    // SAFETY: the name is the loader's own name of the loaded library, so the call loads no
    // code.
    let library = unsafe { libc::dlopen(own.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is open and the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
