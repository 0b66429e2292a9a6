//! Tests of the kernels.

mod c_header;
mod device;
mod host;
