//! `libcachalot.a` and `libcachalot.so`: the C interface of the crate `cachalot`, linked as
//! libraries.
//!
//! The functions are those of `cachalot`; programs in C and C++ include `include/cachalot.h`. A
//! crate of their own keeps the two libraries, of 270 MB and 90 MB in a development build, out of
//! the builds of Rust programs, which depend on `cachalot` alone.

pub use api::*;
