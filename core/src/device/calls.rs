//! The names of a device's driver calls. They are used to count calls, to charge for them, and to
//! make them fail.

/// Declares all calls in one place: the method, and the driver call that it makes. The calls for
/// events of copies have separate names, because they cost something else.
macro_rules! calls {
    ($($call:ident = $name:literal, $driver:literal;)*) => {
        /// The methods of [`Segments`](crate::Segments), [`StreamOrder`](crate::StreamOrder),
        /// [`VirtualMemory`](crate::VirtualMemory) and [`Contents`](crate::Contents) that call a
        /// driver and may fail.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs, reason = "each is the method of the same name")]
        #[non_exhaustive]
        pub enum Call { $($call,)* }

        impl Call {
            /// All calls.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$call),*];

            /// Returns the name of the method.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$call => $name,)* }
            }

            /// Returns the name of the CUDA driver call, for tables of costs.
            pub const fn driver_name(self) -> &'static str {
                match self { $(Self::$call => $driver,)* }
            }
        }
    };
}

calls! {
    Obtain = "obtain", "cuMemAlloc";
    Release = "release", "cuMemFree";
    MemoryInfo = "memory_info", "cuMemGetInfo";
    CreateEvent = "create_event", "cuEventCreate";
    DestroyEvent = "destroy_event", "cuEventDestroy";
    Record = "record", "cuEventRecord";
    IsComplete = "is_complete", "cuEventQuery";
    IsIdle = "is_idle", "cuStreamQuery";
    Wait = "wait", "cuEventSynchronize";
    OrderBehind = "order_behind", "cuStreamWaitEvent";
    Synchronize = "synchronize", "cuStreamSynchronize";
    IsCapturing = "is_capturing", "cuStreamIsCapturing";
    MarkCapture = "mark_capture", "cuStreamGetCaptureInfo";
    IsBehind = "is_behind", "cuGraphNodeGetDependencies";
    Reserve = "reserve", "cuMemAddressReserve";
    Unreserve = "unreserve", "cuMemAddressFree";
    Create = "create", "cuMemCreate";
    CreateAtHost = "create_at_host", "cuMemCreate_at_host";
    Destroy = "destroy", "cuMemRelease";
    Map = "map", "cuMemMap";
    SetAccess = "set_access", "cuMemSetAccess";
    Unmap = "unmap", "cuMemUnmap";
    Export = "export", "cuMemExportToShareableHandle";
    SynchronizeAll = "synchronize_all", "cuCtxSynchronize";
    Prepare = "prepare", "cuMemHostRegister";
    Save = "save", "cuMemcpyDtoHAsync";
    Restore = "restore", "cuMemcpyHtoDAsync";
    Zero = "zero", "cuMemsetD8Async";
    Mark = "mark", "cuEventRecord_of_copies";
    Finish = "finish", "cuEventSynchronize_of_copies";
    Copy = "copy", "cuMemcpyDtoDAsync";
}
