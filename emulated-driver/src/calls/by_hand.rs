//! Functions that are exported by hand, because they answer also where no other function does: in a
//! forked child, and after the teardown.

use crate::call::make;
use crate::process::latch;
use crate::values::code::Code;
use crate::values::functions::Function;
use crate::values::pointers::Out;
use std::ffi::c_char;

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: Out<*const c_char>) -> u32 {
    describe(Function::cuGetErrorName, code, name, |(name, _)| name)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> u32 {
    describe(Function::cuGetErrorString, code, text, |(_, text)| text)
}

/// Returns the name or the text of a code, or null for a code without a name.
fn describe(
    function: Function,
    code: u32,
    out: Out<*const c_char>,
    choose: impl Fn((&'static str, &'static str)) -> &'static str,
) -> u32 {
    let found = Code(code).describe().map(choose);
    out.write(found.map_or(std::ptr::null(), |text| text.as_ptr().cast()));
    let answer = out.check().and(found.map(drop).ok_or(Code::INVALID_VALUE));
    if latch::refusal().is_some() {
        return answer.map_or_else(|code| code.0, |()| Code::SUCCESS.0);
    }
    make(function, &[code.into(), out.address()], |_| answer)
}
