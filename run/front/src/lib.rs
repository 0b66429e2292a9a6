//! A `libcuda.so.1` in front of the driver: exported functions, and nothing else.
//!
//! Every decision is in the crate `cachalot-run`. Programs come here through the loader; the driver
//! serves every symbol that is not exported here.
