//! A `libcuda.so.1` in front of the driver: exported functions, and nothing else.
//!
//! ```text
//! exports     the functions in place of the driver's
//! resolver    cuGetProcAddress, answered by address
//! call        the way of a call: to the process's state, or to the driver
//! addresses   the driver's own functions
//! open        dlopen: paths to the driver lead here
//! nvml        NVML's figures of a device's memory
//! load        the first steps after the loader has mapped the library
//! ```
//!
//! Every decision is in the crate `cachalot-run`. Programs come here through the loader; the driver
//! serves every symbol beyond the exports.

mod addresses;
mod call;
mod exports;
mod load;
mod nvml;
mod open;
mod resolver;
