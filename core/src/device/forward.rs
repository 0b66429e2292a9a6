//! Devices that pass calls on to an inner device.
//!
//! A wrapper names the inner device with [`Forwarder`]. The wrapper then forwards a whole trait: an empty
//! implementation of [`ForwardSegments`] makes the wrapper a [`Segments`](crate::Segments) with every method
//! forwarded, and each method written in the implementation replaces the forwarded method. So a method added to a
//! trait is forwarded by every wrapper, and no wrapper can forget the method. [`Forwarder::before`] sees every call.
//!
//! ```
//! use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
//! use cachalot_core::simulated::SimulatedDevice;
//! use cachalot_core::{Allocator, Config, DeviceIndex, DevicePtr, DeviceResult, Growable, Segments, StreamId};
//!
//! /// A device that prints which segments it allocates.
//! struct Loud(SimulatedDevice);
//!
//! impl Forwarder for Loud {
//!     type Inner = SimulatedDevice;
//!
//!     fn inner(&self) -> DeviceResult<&SimulatedDevice> {
//!         Ok(&self.0)
//!     }
//! }
//!
//! impl ForwardSegments for Loud {
//!     fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
//!         println!("{bytes} bytes");
//!         self.0.obtain(bytes)
//!     }
//! }
//!
//! impl ForwardStreamOrder for Loud {}
//! impl ForwardHost for Loud {}
//!
//! let device = Loud(SimulatedDevice::new(16 << 30));
//! let allocator = Allocator::<_, spin::Mutex<()>, Growable>::new([device], &Config::new())?;
//! allocator.malloc(DeviceIndex(0), 1 << 20, StreamId::DEFAULT)?;
//! # Ok::<(), cachalot_core::Error>(())
//! ```

use crate::device::bare::LACKING;
use crate::device::oom::OutOfMemory;
use crate::device::{
    Bare, Call, CaptureMark, Contents, CopyMark, Descriptor, DeviceMemory, DeviceResult, Event, Host, MemoryInfo,
    PhysicalHandle, Saved, Segments, StreamOrder, VirtualMemory,
};
use crate::pool::PoolId;
use crate::trace::{CallSite, TraceEntry};
use crate::units::{DevicePtr, StreamId};

/// A device that passes calls on to an inner device.
pub trait Forwarder: Send + Sync + 'static {
    /// The inner device. [`Bare`] for a device with only some methods of a trait.
    type Inner: DeviceMemory + ?Sized;

    /// Returns the inner device.
    ///
    /// # Errors
    /// The error of each forwarded call while the inner device is absent. Infallible methods then answer like
    /// [`Bare`].
    fn inner(&self) -> DeviceResult<&Self::Inner>;

    /// Called before each method of a forwarded trait, also if the wrapper has a method of its own. `method` is the
    /// name of the method, and `call` the kind of the call if the method reaches a driver.
    #[inline]
    fn before(&self, method: &'static str, call: Option<Call>) {
        let _ = (method, call);
    }
}

/// Returns the virtual memory of the inner device.
fn virtual_memory<F: Forwarder + ?Sized>(forwarder: &F) -> DeviceResult<&dyn VirtualMemory> {
    forwarder.inner()?.virtual_memory().ok_or(LACKING)
}

/// Returns the memory for contents of the inner device.
fn contents<F: Forwarder + ?Sized>(forwarder: &F) -> DeviceResult<&dyn Contents> {
    forwarder.inner()?.contents().ok_or(LACKING)
}

/// The kind of a call, or `None` for a call without a kind.
macro_rules! call {
    () => {
        None
    };
    ($call:ident) => {
        Some(Call::$call)
    };
}

/// Declares how the methods of a trait are forwarded: `fallible` methods, with the type of their result, and
/// `certain` methods, with the type of their answer. `[Call]` is the kind of the call. The trait has no provided
/// methods, so the compiler refuses an incomplete list.
macro_rules! forwarding {
    (
        $(#[$doc:meta])*
        $Forward:ident: $Trait:ident, to $inner:path;
        fallible { $($name:ident($($argument:ident: $type:ty),*) -> $value:ty $([$call:ident])?;)* }
        certain { $($sure:ident($($input:ident: $kind:ty),*) $(-> $answer:ty)?;)* }
    ) => {
        $(#[$doc])*
        pub trait $Forward: Forwarder {
            $(
                #[doc = concat!("Forwards [`", stringify!($name), "`](", stringify!($Trait), "::", stringify!($name), ").")]
                ///
                /// # Errors
                /// The errors of the inner device, and of [`inner`](crate::forward::Forwarder::inner).
                #[inline]
                fn $name(&self, $($argument: $type),*) -> DeviceResult<$value> {
                    $Trait::$name($inner(self)?, $($argument),*)
                }
            )*
            $(
                #[doc = concat!("Forwards [`", stringify!($sure), "`](", stringify!($Trait), "::", stringify!($sure), ").")]
                #[inline]
                fn $sure(&self, $($input: $kind),*) $(-> $answer)? {
                    match $inner(self) {
                        Ok(inner) => $Trait::$sure(inner, $($input),*),
                        Err(_) => $Trait::$sure(&Bare, $($input),*),
                    }
                }
            )*
        }

        impl<T: $Forward> $Trait for T {
            $(
                #[inline]
                fn $name(&self, $($argument: $type),*) -> DeviceResult<$value> {
                    self.before(stringify!($name), call!($($call)?));
                    $Forward::$name(self, $($argument),*)
                }
            )*
            $(
                #[inline]
                fn $sure(&self, $($input: $kind),*) $(-> $answer)? {
                    self.before(stringify!($sure), None);
                    $Forward::$sure(self, $($input),*)
                }
            )*
        }
    };
}

forwarding! {
    /// Forwards [`Segments`], except for the methods written in the implementation.
    ForwardSegments: Segments, to Forwarder::inner;
    fallible {
        obtain(bytes: u64) -> DevicePtr [Obtain];
        release(base: DevicePtr, bytes: u64) -> () [Release];
        memory_info() -> MemoryInfo [MemoryInfo];
        obtain_for(pool: PoolId, bytes: u64) -> DevicePtr [Obtain];
    }
    certain {
        process_use() -> Option<u64>;
        uuid() -> Option<[u8; 16]>;
        supplies(pool: PoolId) -> bool;
        virtual_memory() -> Option<&dyn VirtualMemory>;
        contents() -> Option<&dyn Contents>;
    }
}

forwarding! {
    /// Forwards [`StreamOrder`], except for the methods written in the implementation.
    ForwardStreamOrder: StreamOrder, to Forwarder::inner;
    fallible {
        create_event() -> Event [CreateEvent];
        destroy_event(event: Event) -> () [DestroyEvent];
        record(event: Event, stream: StreamId) -> () [Record];
        record_announced(event: Event, stream: StreamId) -> () [Record];
        is_complete(event: Event) -> bool [IsComplete];
        wait(event: Event) -> () [Wait];
        order_behind(stream: StreamId, event: Event) -> () [OrderBehind];
        synchronize(stream: StreamId) -> () [Synchronize];
        synchronize_all() -> () [SynchronizeAll];
        is_idle(stream: StreamId) -> Option<bool> [IsIdle];
        is_capturing(stream: StreamId) -> bool [IsCapturing];
        mark_capture(stream: StreamId, mark: Option<CaptureMark>) -> Option<CaptureMark> [MarkCapture];
        is_behind(stream: StreamId, mark: CaptureMark) -> bool [IsBehind];
    }
    certain {
        can_order(stream: StreamId) -> bool;
        reports_end(stream: StreamId) -> bool;
        remove_mark(mark: CaptureMark);
    }
}

forwarding! {
    /// Forwards [`Host`], except for the methods written in the implementation.
    ForwardHost: Host, to Forwarder::inner;
    fallible {}
    certain {
        thread_id() -> u64;
        pause(us: u64) -> bool;
        ticks() -> u64;
        time_us(ticks: u64) -> u64;
        leads(route: u64, stream: StreamId) -> bool;
        on_shortage(bytes: u64) -> bool;
        on_out_of_memory(report: &OutOfMemory);
        on_missing_virtual_memory();
        on_map(at: DevicePtr, bytes: u64);
        on_unmap(at: DevicePtr, bytes: u64);
        on_event(entry: &TraceEntry, pool: PoolId);
        call_site(site: CallSite) -> u32;
    }
}

forwarding! {
    /// Forwards [`VirtualMemory`] to the virtual memory of the inner device, except for the methods written in the
    /// implementation. [`virtual_memory`](crate::Segments::virtual_memory) of the wrapper then returns the wrapper.
    ForwardVirtualMemory: VirtualMemory, to virtual_memory;
    fallible {
        reserve(bytes: u64) -> DevicePtr [Reserve];
        unreserve(base: DevicePtr, bytes: u64) -> () [Unreserve];
        create(bytes: u64) -> PhysicalHandle [Create];
        destroy(handle: PhysicalHandle) -> () [Destroy];
        export(handle: PhysicalHandle) -> Descriptor [Export];
        map(at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> () [Map];
        set_access(at: DevicePtr, bytes: u64) -> () [SetAccess];
        unmap(at: DevicePtr, bytes: u64) -> () [Unmap];
    }
    certain {
        granularity() -> u64;
        begin_mapping();
        end_mapping();
    }
}

forwarding! {
    /// Forwards [`Contents`] to the memory for contents of the inner device, except for the methods written in the
    /// implementation. [`contents`](crate::Segments::contents) of the wrapper then returns the wrapper.
    ForwardContents: Contents, to contents;
    fallible {
        prepare(bytes: u64, largest: u64) -> () [Prepare];
        save(at: DevicePtr, bytes: u64) -> Saved [Save];
        restore(saved: Saved, at: DevicePtr, bytes: u64) -> () [Restore];
        zero(at: DevicePtr, bytes: u64) -> () [Zero];
        mark() -> CopyMark [Mark];
        finish(mark: CopyMark) -> () [Finish];
    }
    certain {
        end_saves();
        forget(saved: Saved);
    }
}
