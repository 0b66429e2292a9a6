//! Tests of the C interface, and of C, C++ and Python programs over the library. One program, so
//! that they share what is built once: the installed tree, the programs and the emulated driver.

mod common;
mod documents;
mod examples;
mod header;
mod host;
mod interface;
mod memory_viz;
mod metrics;
mod misuse;
mod onnxruntime;
mod packaging;
mod planned;
mod processes;
mod snapshot_file;
mod torch;
mod torch_graph_reuse;
mod torch_python;
mod torch_supplied;
mod tuned;
mod two_streams;
mod unreported_streams;
