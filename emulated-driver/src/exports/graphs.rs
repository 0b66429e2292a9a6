//! Modules, launches, captures and graphs.

use super::Out;
use crate::call::make;
use crate::calls::{capture, graph, module};
use crate::tables::work::Shape;
use crate::values::code::Code;
use crate::values::functions::Function;
use std::ffi::{CStr, c_char, c_int};

/// # Safety
/// As for the real function: `image` is null or points to an image.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(handle: *mut u64, image: *const c_char) -> u32 {
    let out = Out(handle);
    make(
        Function::cuModuleLoadData,
        &[handle as u64, image as u64],
        |call| {
            out.check()?;
            // SAFETY: guaranteed by the caller.
            unsafe { module::load(call, image) }
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(handle: u64) -> u32 {
    make(Function::cuModuleUnload, &[handle], |call| module::unload(call, handle), drop)
}

/// # Safety
/// As for the real function: `name` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: *mut u64, handle: u64, name: *const c_char) -> u32 {
    let out = Out(function);
    make(
        Function::cuModuleGetFunction,
        &[function as u64, handle, name as u64],
        |call| {
            out.check()?;
            if name.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: not null, the rest is guaranteed by the caller.
            let name = unsafe { CStr::from_ptr(name) };
            module::function(call, handle, name)
        },
        |value| out.write(value),
    )
}

/// # Safety
/// As for the real function: `params` is null or points to one pointer for each parameter of the
/// kernel, and each pointer has as many readable bytes as the parameter.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: u64,
    params: *const *const u8,
    extra: *const u64,
) -> u32 {
    make(
        Function::cuLaunchKernel,
        &[
            function,
            grid_x.into(),
            grid_y.into(),
            grid_z.into(),
            block_x.into(),
            block_y.into(),
            block_z.into(),
            shared_bytes.into(),
            stream,
        ],
        |call| {
            if !extra.is_null() {
                return Err(Code::NOT_SUPPORTED);
            }
            let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z] };
            // SAFETY: guaranteed by the caller.
            unsafe { module::launch(call, function, shape, stream, params) }
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) -> u32 {
    make(Function::cuStreamBeginCapture_v2, &[stream, mode as u64], |call| capture::begin(call, stream, mode), drop)
}

/// Writes a null graph if the capture fails, as documented by CUDA: the only result written on
/// failure.
#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: u64, graph: *mut u64) -> u32 {
    let out = Out(graph);
    let code = make(
        Function::cuStreamEndCapture,
        &[stream, graph as u64],
        |call| out.check().and_then(|()| capture::end(call, stream)),
        |value| out.write(value),
    );
    if (Code::STREAM_CAPTURE_UNSUPPORTED.0..=Code::STREAM_CAPTURE_IMPLICIT.0).contains(&code) {
        out.write(0);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(executable: *mut u64, graph: u64, flags: u64) -> u32 {
    let out = Out(executable);
    make(
        Function::cuGraphInstantiateWithFlags,
        &[executable as u64, graph, flags],
        |call| out.check().and_then(|()| graph::instantiate(call, graph)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(executable: u64, stream: u64) -> u32 {
    make(Function::cuGraphLaunch, &[executable, stream], |call| graph::launch(call, executable, stream), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(executable: u64) -> u32 {
    make(Function::cuGraphExecDestroy, &[executable], |call| graph::destroy_executable(call, executable), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: u64) -> u32 {
    make(Function::cuGraphDestroy, &[graph], |call| graph::destroy_graph(call, graph), drop)
}

/// # Safety
/// As for the real function: `nodes` is null, or has room for `count` handles.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetDependencies(node: u64, nodes: *mut u64, count: *mut usize) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { dependencies(Function::cuGraphNodeGetDependencies, node, nodes, std::ptr::null_mut(), count) }
}

/// # Safety
/// As for the real function: `nodes` is null, or has room for `count` handles, and `properties` is null, or has
/// room for as many.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetDependencies_v2(
    node: u64,
    nodes: *mut u64,
    properties: *mut [u8; 8],
    count: *mut usize,
) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { dependencies(Function::cuGraphNodeGetDependencies_v2, node, nodes, properties, count) }
}

/// Writes the nodes right before a node with their properties, which are all zero, and their number. Without a list,
/// writes the number alone.
///
/// # Safety
/// As for [`cuGraphNodeGetDependencies_v2`].
unsafe fn dependencies(
    function: Function,
    node: u64,
    nodes: *mut u64,
    properties: *mut [u8; 8],
    count: *mut usize,
) -> u32 {
    let count_out = Out(count);
    make(
        function,
        &[node, nodes as u64, count as u64],
        |call| count_out.check().and_then(|()| capture::predecessors(call, node)),
        |before| {
            // SAFETY: not null, the rest is guaranteed by the caller.
            let room = if nodes.is_null() { 0 } else { unsafe { *count } };
            for (place, &handle) in before.iter().take(room).enumerate() {
                // SAFETY: there is room for the handle.
                let node = unsafe { nodes.add(place) };
                Out(node).write(handle);
                if !properties.is_null() {
                    // SAFETY: there is room for as many properties.
                    let property = unsafe { properties.add(place) };
                    Out(property).write([0; 8]);
                }
            }
            count_out.write(if nodes.is_null() { before.len() } else { before.len().min(room) });
        },
    )
}
