//! The names of a device's driver calls: for counting calls, for their costs, and for making calls fail.

/// Declares the calls once.
macro_rules! calls {
    ($($call:ident = $name:literal,)*) => {
        /// The methods of [`Segments`](crate::Segments), [`StreamOrder`](crate::StreamOrder),
        /// [`VirtualMemory`](crate::VirtualMemory) and [`Contents`](crate::Contents) that reach a driver, and may fail.
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
        }
    };
}

calls! {
    Obtain = "obtain",
    Release = "release",
    MemoryInfo = "memory_info",
    CreateEvent = "create_event",
    DestroyEvent = "destroy_event",
    Record = "record",
    IsComplete = "is_complete",
    IsIdle = "is_idle",
    Wait = "wait",
    OrderBehind = "order_behind",
    Synchronize = "synchronize",
    IsCapturing = "is_capturing",
    MarkCapture = "mark_capture",
    IsBehind = "is_behind",
    Reserve = "reserve",
    Unreserve = "unreserve",
    Create = "create",
    Destroy = "destroy",
    Map = "map",
    SetAccess = "set_access",
    Unmap = "unmap",
    Export = "export",
    SynchronizeAll = "synchronize_all",
    Prepare = "prepare",
    Save = "save",
    Restore = "restore",
    Zero = "zero",
    Mark = "mark",
    Finish = "finish",
}
