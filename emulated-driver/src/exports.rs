//! The exported driver functions: each enters the driver and calls the function of the same name in
//! `calls`.
//!
//! Only the C interface is here, and it comes from the rows of [`table`](crate::values::table). A
//! call writes results if and only if it returns `CUDA_SUCCESS`.

#![allow(non_snake_case, reason = "the driver's own names")]
#![allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
#![allow(clippy::wildcard_imports, reason = "the types of every signature")]

use crate::call::make;
use crate::calls::{
    array, capture, context, device, event, fill, function, graph, green, host, ipc, memory, module, pointer, pool,
    rows, start, stream, transfer, value, virtual_memory,
};
use crate::values::functions::Function;
use crate::values::pointers::{In, Out};
use crate::values::table::types::*;
use crate::values::table::{functions, signature};
use std::ffi::{c_char, c_int, c_void};

/// An argument of an exported function.
trait Argument {
    /// Returns the argument as a number, for the log.
    fn number(&self) -> u64;
}

/// An argument of an exported function, as the function of `calls` takes it: a pointer is a result,
/// a value or a list to read, or an address of the host; a size has 64 bits.
trait Passed<T> {
    /// Converts the argument.
    fn passed(self) -> T;
}

/// Arguments that are passed on as they are, each with its number for the log.
macro_rules! values {
    ($($type:ty: $number:expr),*) => { $(
        impl Argument for $type {
            fn number(&self) -> u64 {
                let number: fn($type) -> u64 = $number;
                number(*self)
            }
        }

        impl Passed<$type> for $type {
            fn passed(self) -> $type {
                self
            }
        }
    )* };
}
values! {
    u8: u64::from, u16: u64::from, u32: u64::from, u64: u64::from, i32: |value| value as u64,
    usize: |value| value as u64,
    CuHostFn: |function| function.map_or(0, |function| function as usize as u64),
    CuIpcMemHandle: |handle| handle.0.iter().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte)),
    CuMemLocation: |place| u64::from(place.id.cast_unsigned()) << 32 | u64::from(place.kind.cast_unsigned())
}

impl Passed<u64> for usize {
    fn passed(self) -> u64 {
        self as u64
    }
}

impl<T> Argument for *mut T {
    fn number(&self) -> u64 {
        *self as u64
    }
}

impl<T> Argument for *const T {
    fn number(&self) -> u64 {
        *self as u64
    }
}

impl<T, U> Passed<Out<U>> for *mut T {
    fn passed(self) -> Out<U> {
        Out::from_caller(self.cast())
    }
}

impl<T, U> Passed<In<U>> for *const T {
    fn passed(self) -> In<U> {
        In::from_caller(self.cast())
    }
}

impl<T, U> Passed<In<U>> for *mut T {
    fn passed(self) -> In<U> {
        In::from_caller(self.cast())
    }
}

impl<T> Passed<u64> for *mut T {
    fn passed(self) -> u64 {
        self as u64
    }
}

impl<T> Passed<u64> for *const T {
    fn passed(self) -> u64 {
        self as u64
    }
}

/// Exports a function under a symbol.
macro_rules! export {
    ({ $kind:ident $name:ident $symbol:ident } ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($argument: $type),*) -> u32 {
            let numbers = [$(Argument::number(&$argument)),*];
            make(Function::$symbol, &numbers, |call| $kind::$name(call, $($argument.passed()),*))
        }
    };
}

/// Exports the functions of a row.
macro_rules! row {
    (by_hand $($symbol:ident)+) => {};
    ($kind:ident $name:ident $($own:ident)?) => {
        signature! { $name => export { $kind $name $name } }
        $(signature! { $own => export { $kind $name $own } })?
    };
}

/// Exports the functions of the rows.
macro_rules! exports {
    ($($kind:ident {
        $($($symbol:ident),+: $version:literal, $requires:ident, $capture:ident;)*
    })*) => { $($(row! { $kind $($symbol)+ })*)* };
}
functions!(exports);
