//! Functions that libraries link, and that programs call for what is not emulated: symbols, arrays,
//! IPC, libraries of kernels, graphs made by hand. They answer so; without them, the libraries
//! would not even load. Arguments are not looked at.

use crate::code::NOT_SUPPORTED;
use crate::error::told;
use std::ffi::c_int;

/// `cudaChannelFormatDesc`.
#[repr(C)]
struct Channel {
    bits: [c_int; 4],
    kind: c_int,
}

/// Describes an element of an array, which programs do before they ask for one.
#[unsafe(no_mangle)]
extern "C" fn cudaCreateChannelDesc(x: c_int, y: c_int, z: c_int, w: c_int, kind: c_int) -> Channel {
    Channel { bits: [x, y, z, w], kind }
}

/// Declares the functions.
macro_rules! unsupported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            told(|| Err(NOT_SUPPORTED))
        }
    )*};
}

unsupported! {
    cudaArrayGetInfo cudaCreateSurfaceObject cudaCreateTextureObject cudaDestroySurfaceObject cudaDestroyTextureObject
    cudaDeviceGetGraphMemAttribute cudaDeviceSetGraphMemAttribute cudaFreeArray cudaFreeMipmappedArray
    cudaGetSymbolAddress cudaGetSymbolSize cudaGraphAddDependencies cudaGraphAddEmptyNode cudaGraphAddHostNode
    cudaGraphAddKernelNode cudaGraphAddMemcpyNode cudaGraphAddMemsetNode cudaGraphAddNode
    cudaGraphConditionalHandleCreate cudaGraphCreate cudaGraphDebugDotPrint cudaGraphExecUpdate cudaGraphNodeGetDependencies
    cudaGraphNodeGetType cudaGraphRetainUserObject cudaIpcCloseMemHandle cudaIpcGetEventHandle cudaIpcGetMemHandle
    cudaIpcOpenEventHandle cudaIpcOpenMemHandle cudaKernelSetAttributeForDevice cudaLibraryGetGlobal
    cudaLibraryGetKernel cudaLibraryGetKernelCount cudaLibraryGetManaged cudaLibraryGetUnifiedFunction
    cudaLibraryLoadData cudaLibraryLoadFromFile cudaLibraryUnload cudaMalloc3D cudaMalloc3DArray cudaMallocArray
    cudaMallocMipmappedArray cudaMemPoolSetAccess cudaMemcpy2DFromArray cudaMemcpy2DToArray cudaMemcpy2DToArrayAsync
    cudaMemcpy3D cudaMemcpy3DAsync cudaMemcpyFromSymbol cudaMemcpyFromSymbolAsync cudaMemcpyPeer cudaMemcpyPeerAsync
    cudaMemcpyToSymbol cudaMemcpyToSymbolAsync cudaMemset3D cudaMemset3DAsync cudaStreamAttachMemAsync
    cudaStreamBeginCaptureToGraph cudaStreamGetAttribute cudaStreamSetAttribute cudaStreamUpdateCaptureDependencies
    cudaUserObjectCreate cudaUserObjectRelease
}
