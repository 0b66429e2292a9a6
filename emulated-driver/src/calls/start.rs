//! Start, version, addresses of functions.

use crate::call::Call;
use crate::exit;
use crate::process::latch;
use crate::values::code::{Answer, Code};
use crate::values::functions::{FUNCTIONS, Function};
use crate::values::pointers::{In, Out};
use crate::values::structs::EXPORT_TABLE;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Once;

/// `CU_GET_PROC_ADDRESS_SUCCESS`.
const PROC_FOUND: c_int = 0;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const PROC_NOT_FOUND: c_int = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`.
const PROC_TOO_OLD: c_int = 2;
/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `_PER_THREAD_DEFAULT_STREAM`.
const PROC_FLAGS: u64 = 3;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PROC_PER_THREAD: u64 = 2;

/// `cuInit`.
pub(crate) fn cuInit(call: &mut Call, flags: u32) -> Answer<()> {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    call.state.initialise();
    if call.state.devices.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    latch::ready(call.state.config.fork, exit::at_exit);
    Ok(())
}

/// The table behind [`EXPORT_TABLE`]: the size in bytes, as in every such table, and a function.
#[repr(C)]
struct ExportTable {
    bytes: usize,
    marker: extern "C" fn() -> c_int,
}

/// The only export table (`cuGetExportTable`) of the emulated driver. The address is the same for
/// every caller.
static TABLE: ExportTable = ExportTable { bytes: size_of::<ExportTable>(), marker: exported };

/// The tables that NVIDIA's CUDA runtime asks for when it starts. Without the second it answers an
/// error to every call, which tells nobody why.
const OF_RUNTIME: [[u8; 16]; 2] = [
    0xf8cf_f951_2146_8b4e_b9e2_fb46_9e7c_0dd9_u128.to_be_bytes(),
    0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9_u128.to_be_bytes(),
];

/// The function of the table.
extern "C" fn exported() -> c_int {
    1
}

/// `cuGetExportTable`. Writes null for an unknown table, as a real driver does.
pub(crate) fn cuGetExportTable(call: &mut Call, table: Out<*const c_void>, uuid: In<[u8; 16]>) -> Answer<()> {
    table.check()?;
    let asked = uuid.read()?;
    if asked != EXPORT_TABLE {
        if OF_RUNTIME.contains(&asked) {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                eprintln!(
                    "emulated driver: the program has NVIDIA's CUDA runtime in it, or a library of NVIDIA that has, and \
                     the runtime does not start on the emulated driver"
                );
            });
        }
        table.write(std::ptr::null());
        return Err(Code::INVALID_VALUE);
    }
    call.give(table, (&raw const TABLE).cast());
    Ok(())
}

/// A function that no header declares: what a library in front of the driver does not know. Doubles
/// a number.
pub(crate) fn cuEmulatedUnknownFunction(call: &mut Call, number: u64, doubled: Out<u64>) -> Answer<()> {
    call.answer(doubled, |_| number.checked_mul(2).ok_or(Code::INVALID_VALUE))
}

/// `cuDriverGetVersion`.
pub(crate) fn cuDriverGetVersion(call: &mut Call, version: Out<c_int>) -> Answer<()> {
    call.answer(version, |call| Ok(call.state.config.driver_version))
}

/// `cuGetProcAddress`, which has no status: what is not found is an error.
pub(crate) fn cuGetProcAddress(
    call: &mut Call,
    symbol: In<c_char>,
    address: Out<*mut c_void>,
    version: c_int,
    flags: u64,
) -> Answer<()> {
    let (found, status) = look_up(call, symbol, address, version, flags)?;
    if status == PROC_NOT_FOUND {
        address.write(found);
    }
    if status != PROC_FOUND {
        return Err(Code::NOT_FOUND);
    }
    call.give(address, found);
    Ok(())
}

/// `cuGetProcAddress_v2`.
pub(crate) fn cuGetProcAddress_v2(
    call: &mut Call,
    symbol: In<c_char>,
    address: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
) -> Answer<()> {
    let (found, code) = look_up(call, symbol, address, version, flags)?;
    // Written for every answer, because only the status explains a null address.
    address.write(found);
    status.write(code);
    if code == PROC_FOUND { Ok(()) } else { call.state.answers.outcome("proc_absent") }
}

/// Returns the newest function of a base name in a driver version, with the status. A program whose
/// stream 0 is the thread's own gets the variant for such programs, where the function has one.
fn look_up(
    call: &mut Call,
    symbol: In<c_char>,
    address: Out<*mut c_void>,
    version: c_int,
    flags: u64,
) -> Answer<(*mut c_void, c_int)> {
    address.check()?;
    let name = symbol.text()?.to_str().map_err(|_| Code::INVALID_VALUE)?;
    if version > call.state.config.driver_version || flags > PROC_FLAGS {
        return Err(Code::INVALID_VALUE);
    }
    let shown = |function: &&Function| !call.state.config.hidden.iter().any(|one| one == function.name());
    let of_name = |function: &&Function| function.base_name() == name;
    let of_name: Vec<Function> = FUNCTIONS.iter().filter(of_name).filter(shown).copied().collect();
    let per_thread = flags & PROC_PER_THREAD != 0 && of_name.iter().any(|function| function.is_per_thread());
    let candidates = of_name.into_iter().filter(|function| function.is_per_thread() == per_thread);
    // Unlocked, because a thread that holds the loader's own lock may wait for the driver's
    // lock.
    let there: Vec<_> = call.state.unlocked(|| {
        candidates.filter_map(|function| Some((function.since(), own_symbol(function.name())?))).collect()
    });
    Ok(match there.iter().rfind(|(since, _)| *since <= version) {
        Some(&(_, found)) => (found, PROC_FOUND),
        None if there.is_empty() => (std::ptr::null_mut(), PROC_NOT_FOUND),
        None => (std::ptr::null_mut(), PROC_TOO_OLD),
    })
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
