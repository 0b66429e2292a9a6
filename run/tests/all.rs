//! Tests of the library in front of the driver, over the emulated driver.

#![allow(clippy::borrow_as_ptr, reason = "results are passed as in C")]

mod serve;
