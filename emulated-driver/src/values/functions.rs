//! The exported driver functions: name, first driver version, and conditions of each.

/// Condition of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requires {
    /// Nothing: callable before `cuInit`.
    Nothing,
    /// A successful `cuInit`.
    Init,
    /// A context current to the calling thread, alive and without a sticky error.
    Context,
}

/// The effect of a function on captures in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InCapture {
    /// No effect, or an effect that depends on the stream or event and is decided elsewhere.
    Safe,
    /// "Potentially unsafe" in CUDA's words: refused, and breaks every forbidding capture.
    Unsafe,
}

/// Declares the functions once.
macro_rules! functions {
    ($($name:ident: $version:literal, $requires:ident, $capture:ident;)*) => {
        /// A function of the driver API.
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the driver's own names")]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub(crate) enum Function { $($name),* }

        /// All functions, in the order of their declaration.
        pub(crate) const FUNCTIONS: &[Function] = &[$(Function::$name),*];

        impl Function {
            /// Returns the exported symbol.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// Returns the first driver version with the symbol: 1000 × major + 10 × minor.
            pub(crate) fn since(self) -> i32 {
                match self { $(Self::$name => $version),* }
            }

            /// Returns the condition of the function.
            pub(crate) fn requires(self) -> Requires {
                match self { $(Self::$name => Requires::$requires),* }
            }

            /// Returns the effect of the function on captures in progress.
            pub(crate) fn in_capture(self) -> InCapture {
                match self { $(Self::$name => InCapture::$capture),* }
            }
        }
    };
}

functions! {
    cuInit: 2000, Nothing, Safe;
    cuDriverGetVersion: 2020, Nothing, Safe;
    cuGetErrorName: 6000, Nothing, Safe;
    cuGetErrorString: 6000, Nothing, Safe;
    cuGetProcAddress_v2: 12000, Nothing, Safe;
    cuDeviceGet: 2000, Init, Safe;
    cuDeviceGetCount: 2000, Init, Safe;
    cuDeviceGetAttribute: 2000, Init, Safe;
    cuDeviceGetName: 2000, Init, Safe;
    cuDeviceTotalMem_v2: 3020, Init, Safe;
    cuDeviceGetPCIBusId: 4010, Init, Safe;
    cuDeviceGetUuid_v2: 11040, Init, Safe;
    cuDeviceCanAccessPeer: 4000, Init, Safe;
    cuDeviceGetDefaultMemPool: 11020, Init, Safe;
    cuDeviceGetMemPool: 11020, Init, Safe;
    cuDeviceSetMemPool: 11020, Init, Safe;
    cuMemPoolCreate: 11020, Init, Unsafe;
    cuMemPoolDestroy: 11020, Init, Unsafe;
    cuMemPoolGetAttribute: 11020, Init, Unsafe;
    cuMemPoolSetAttribute: 11020, Init, Unsafe;
    cuMemPoolTrimTo: 11020, Init, Unsafe;
    cuMemAllocAsync: 11020, Init, Safe;
    cuMemAllocFromPoolAsync: 11020, Init, Safe;
    cuMemFreeAsync: 11020, Init, Safe;
    cuCtxEnablePeerAccess: 4000, Context, Unsafe;
    cuCtxDisablePeerAccess: 4000, Context, Unsafe;
    cuDevicePrimaryCtxRetain: 7000, Init, Safe;
    cuDevicePrimaryCtxRelease_v2: 11000, Init, Safe;
    cuCtxGetCurrent: 4000, Init, Safe;
    cuCtxSetCurrent: 4000, Init, Safe;
    cuCtxPushCurrent_v2: 4000, Init, Safe;
    cuCtxPopCurrent_v2: 4000, Init, Safe;
    cuCtxGetDevice: 2000, Init, Safe;
    cuCtxSynchronize: 2000, Context, Safe;
    cuCtxCreate_v2: 3020, Init, Unsafe;
    cuCtxDestroy_v2: 4000, Init, Unsafe;
    cuMemAlloc_v2: 3020, Context, Unsafe;
    cuMemFree_v2: 3020, Init, Unsafe;
    cuMemGetInfo_v2: 3020, Context, Safe;
    cuMemGetAddressRange_v2: 3020, Context, Safe;
    cuMemHostAlloc: 2020, Context, Unsafe;
    cuMemFreeHost: 2000, Init, Unsafe;
    cuMemHostRegister_v2: 6050, Context, Unsafe;
    cuMemHostUnregister: 4000, Init, Unsafe;
    cuMemHostGetDevicePointer_v2: 3020, Context, Safe;
    cuMemsetD8Async: 3020, Init, Safe;
    cuMemcpyHtoD_v2: 3020, Context, Safe;
    cuMemcpyDtoH_v2: 3020, Context, Safe;
    cuMemcpyHtoDAsync_v2: 3020, Init, Safe;
    cuMemcpyDtoHAsync_v2: 3020, Init, Safe;
    cuMemcpyDtoDAsync_v2: 3020, Init, Safe;
    cuMemcpyAsync: 4000, Init, Safe;
    cuMemGetAllocationGranularity: 10020, Init, Safe;
    cuMemAddressReserve: 10020, Init, Safe;
    cuMemAddressFree: 10020, Init, Safe;
    cuMemCreate: 10020, Init, Safe;
    cuMemRelease: 10020, Init, Safe;
    cuMemMap: 10020, Init, Safe;
    cuMemUnmap: 10020, Init, Safe;
    cuMemSetAccess: 10020, Init, Safe;
    cuMemExportToShareableHandle: 10020, Init, Safe;
    cuMemImportFromShareableHandle: 10020, Init, Safe;
    cuEventCreate: 2000, Context, Safe;
    cuEventRecord: 2000, Init, Safe;
    cuEventQuery: 2000, Init, Safe;
    cuEventSynchronize: 2000, Init, Safe;
    cuEventElapsedTime: 2000, Init, Safe;
    cuEventDestroy_v2: 4000, Init, Safe;
    cuStreamCreate: 2000, Context, Safe;
    cuStreamCreateWithPriority: 5050, Context, Safe;
    cuStreamGetPriority: 5050, Init, Safe;
    cuStreamGetFlags: 5050, Init, Safe;
    cuCtxGetStreamPriorityRange: 5050, Context, Safe;
    cuStreamDestroy_v2: 4000, Init, Safe;
    cuStreamSynchronize: 2000, Init, Safe;
    cuStreamQuery: 2000, Init, Safe;
    cuStreamWaitEvent: 3020, Init, Safe;
    cuStreamGetId: 12000, Init, Safe;
    cuStreamGetCtx: 9020, Init, Safe;
    cuStreamIsCapturing: 10000, Init, Safe;
    cuStreamGetCaptureInfo_v2: 11030, Init, Safe;
    cuThreadExchangeStreamCaptureMode: 10010, Init, Safe;
    cuLaunchHostFunc: 10000, Init, Safe;
    cuModuleLoadData: 2000, Context, Unsafe;
    cuModuleUnload: 2000, Context, Unsafe;
    cuModuleGetFunction: 2000, Context, Safe;
    cuLaunchKernel: 4000, Context, Safe;
    cuStreamBeginCapture_v2: 10010, Init, Safe;
    cuStreamEndCapture: 10000, Init, Safe;
    cuGraphInstantiateWithFlags: 11040, Init, Safe;
    cuGraphLaunch: 10000, Init, Safe;
    cuGraphExecDestroy: 10000, Init, Safe;
    cuGraphDestroy: 10000, Init, Safe;
    cuGraphNodeGetDependencies: 10000, Init, Safe;
    cuGraphNodeGetDependencies_v2: 12030, Init, Safe;
}

impl Function {
    /// Returns the function with an exported symbol.
    pub(crate) fn named(name: &str) -> Option<Self> {
        FUNCTIONS.iter().copied().find(|function| function.name() == name)
    }

    /// Returns the name without version suffix, as used by `cuGetProcAddress_v2`.
    pub(crate) fn base_name(self) -> &'static str {
        let name = self.name();
        name.rsplit_once("_v").filter(|(_, digits)| digits.parse::<u32>().is_ok()).map_or(name, |(base, _)| base)
    }
}

#[cfg(test)]
mod tests {
    use super::{FUNCTIONS, Function};

    #[test]
    fn symbols_are_found_by_name_and_base_names_lose_their_version() {
        assert!(FUNCTIONS.iter().all(|&function| Function::named(function.name()) == Some(function)));
        assert_eq!(Function::cuMemAlloc_v2.base_name(), "cuMemAlloc");
        assert_eq!(Function::cuStreamGetId.base_name(), "cuStreamGetId");
        assert_eq!(Function::named("cuMemAlloc"), None);
    }
}
