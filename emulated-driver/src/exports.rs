//! The exported driver functions: each enters the driver and calls the function of the same name in `calls`.
//!
//! Only the C interface is here, and it comes from the rows of [`table`](crate::values::table). A call
//! writes results if and only if it returns `CUDA_SUCCESS`.

#![allow(non_snake_case, reason = "the driver's own names")]
#![allow(clippy::too_many_arguments, reason = "the driver's own signatures")]

use crate::call::make;
use crate::calls::{
    array, capture, context, device, event, fill, graph, green, host, ipc, memory, module, pointer, pool, rows, start,
    stream, transfer, value, virtual_memory,
};
use crate::tables::work::HostFunction;
use crate::values::functions::Function;
use crate::values::pointers::{In, Out};
use crate::values::structs::{
    Access, ArrayShape, Copy2D, Copy3D, InstantiateParams, IpcMemory, LaunchConfig, Location, PoolProperties,
    Properties, SolidShape,
};
use crate::values::table::functions;
use std::ffi::{c_char, c_int, c_void};

/// A result that may be null.
type Maybe<T> = Out<T>;
/// A list that may be null.
type List<T> = In<T>;
/// A C string.
type Text = In<c_char>;
/// An address of the host.
type Host = u64;
/// An address of the host that is only read.
type ConstHost = u64;
/// A size: the emulated driver runs where a size has 64 bits.
type Bytes = u64;
/// A function of the host, or null.
type HostCall = Option<HostFunction>;

/// An argument, as a number for the log.
trait Argument {
    /// Returns the number.
    fn number(&self) -> u64;
}

/// The numbers of a C signature, each as the number for the log.
macro_rules! numbers {
    ($($type:ty: $number:expr),*) => { $(impl Argument for $type {
        fn number(&self) -> u64 {
            let number: fn($type) -> u64 = $number;
            number(*self)
        }
    })* };
}
numbers!(u8: u64::from, u16: u64::from, u32: u64::from, u64: u64::from, i32: |value| value as u64, usize: |value| value as u64);

impl<T> Argument for Out<T> {
    fn number(&self) -> u64 {
        self.address()
    }
}

impl<T> Argument for In<T> {
    fn number(&self) -> u64 {
        self.address()
    }
}

impl Argument for IpcMemory {
    fn number(&self) -> u64 {
        self.0.iter().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

impl Argument for Location {
    fn number(&self) -> u64 {
        u64::from(self.id.cast_unsigned()) << 32 | u64::from(self.kind.cast_unsigned())
    }
}

impl Argument for HostCall {
    fn number(&self) -> u64 {
        self.map_or(0, |function| function as usize as u64)
    }
}

/// Exports a function under a symbol.
macro_rules! export {
    (by_hand $name:ident $symbol:ident $arguments:tt) => {};
    ($kind:ident $name:ident $symbol:ident ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($argument: $type),*) -> u32 {
            make(Function::$symbol, &[$(Argument::number(&$argument)),*], |call| $kind::$name(call, $($argument),*))
        }
    };
}

/// Exports the functions of the rows.
macro_rules! exports {
    ($($kind:ident {
        $($name:ident $arguments:tt: $version:literal, $requires:ident, $capture:ident $(, $own:ident)?;)*
    })*) => { $($(
        export! { $kind $name $name $arguments }
        $(export! { $kind $name $own $arguments })?
    )*)* };
}
functions!(exports);
