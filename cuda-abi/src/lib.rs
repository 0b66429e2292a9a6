//! The functions of the CUDA driver in one table.
//!
//! A function of the driver is a row of `functions.rs`. Lists of functions, for calls to a driver
//! or in its place, are made from the rows, so that no two of them can differ in a signature.
//!
//! ```
//! use cachalot_cuda_abi::table;
//! use cachalot_cuda_abi::types::*;
//! use core::ffi::c_int;
//!
//! /// The answer of a call.
//! #[derive(PartialEq, Debug)]
//! #[repr(transparent)]
//! pub struct CuResult(pub u32);
//! # impl CuResult { pub const CALL_REQUIRES_NEWER_DRIVER: Self = Self(36); }
//!
//! table! {
//!     /// Two functions.
//!     pub struct Few {
//!         /// Starts the driver.
//!         required init = cuInit;
//!         /// Reports the number of devices.
//!         optional device_get_count = cuDeviceGetCount;
//!     }
//! }
//!
//! // SAFETY: no address is given.
//! let none = unsafe { Few::fill(|_symbol| None) };
//! // SAFETY: takes no pointers.
//! assert_eq!(unsafe { none.init(0) }, CuResult(36));
//! assert_eq!(none.missing().count(), 2);
//! ```

#![no_std]

pub mod types;

mod functions;
mod table;

pub use functions::FUNCTIONS;
pub use table::EntryPoint;
