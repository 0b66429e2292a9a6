//! Graphs, made by capturing a stream.

use crate::code::{INVALID_VALUE, NOT_SUPPORTED};
use crate::device::enter;
use crate::error::{told, write};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn cudaStreamBeginCapture(stream: u64, mode: c_int) -> u32 {
    told(|| enter()?.cuStreamBeginCapture_v2(stream, mode))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamEndCapture(stream: u64, graph: *mut u64) -> u32 {
    told(|| {
        let mut made = 0;
        let ended = enter()?.cuStreamEndCapture(stream, &raw mut made);
        // Null when the capture was broken, as documented.
        write(graph, made)?;
        ended
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamIsCapturing(stream: u64, status: *mut c_int) -> u32 {
    told(|| {
        let mut found = 0;
        enter()?.cuStreamIsCapturing(stream, &raw mut found)?;
        write(status, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) -> u32 {
    told(|| {
        // SAFETY: null, or valid for reading and writing, as guaranteed by the caller.
        let mode = unsafe { mode.as_mut() }.ok_or(INVALID_VALUE)?;
        enter()?.cuThreadExchangeStreamCaptureMode(mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphInstantiate(executable: *mut u64, graph: u64, flags: u64) -> u32 {
    told(|| {
        let mut made = 0;
        enter()?.cuGraphInstantiateWithFlags(&raw mut made, graph, flags)?;
        write(executable, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphInstantiateWithFlags(executable: *mut u64, graph: u64, flags: u64) -> u32 {
    cudaGraphInstantiate(executable, graph, flags)
}

/// Returns how many nodes a graph has. The driver tells no nodes; libraries ask whether a graph is
/// empty, and a recorded graph counts as one node.
#[unsafe(no_mangle)]
extern "C" fn cudaGraphGetNodes(_graph: u64, nodes: *mut u64, count: *mut usize) -> u32 {
    told(|| if nodes.is_null() { write(count, 1) } else { Err(NOT_SUPPORTED) })
}

/// Tells of the capture on a stream. There are no data of edges.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetCaptureInfo(
    stream: u64,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut u64,
    dependencies: *mut *const u64,
    edges: *mut *const c_void,
    count: *mut usize,
) -> u32 {
    told(|| {
        if !edges.is_null() {
            write(edges, std::ptr::null())?;
        }
        enter()?.cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphLaunch(executable: u64, stream: u64) -> u32 {
    told(|| enter()?.cuGraphLaunch(executable, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphExecDestroy(executable: u64) -> u32 {
    told(|| enter()?.cuGraphExecDestroy(executable))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphDestroy(graph: u64) -> u32 {
    told(|| enter()?.cuGraphDestroy(graph))
}
