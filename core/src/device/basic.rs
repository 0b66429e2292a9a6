//! Devices that have only segments and events.

use crate::device::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use crate::device::{Bare, DeviceResult, Event, MemoryInfo};
#[cfg(doc)]
use crate::device::{DeviceMemory, Segments, StreamOrder};
use crate::pool::PoolId;
use crate::units::{DevicePtr, StreamId};

/// A device that has only segments and events. Every basic device is a [`DeviceMemory`]: [`Bare`]
/// answers the calls to parts that are missing, and a stream is ordered after an event by waiting
/// for the event.
///
/// A device with more parts implements [`Segments`], [`StreamOrder`] and [`Host`](crate::Host)
/// directly. These traits have no provided methods, so the compiler names each method that is
/// missing. A device that implements only some methods of a trait forwards the rest to [`Bare`], as
/// described in [`forward`](crate::forward).
///
/// ```
/// use cachalot_core::{Allocator, BasicDevice, Config, DeviceIndex, DevicePtr, DeviceResult, Event, Growable};
/// use cachalot_core::{MemoryInfo, StreamId};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// A device of 1 TiB that hands out addresses from the bottom up, and whose streams do their work at once.
/// struct Bump(AtomicU64);
///
/// impl BasicDevice for Bump {
///     fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
///         Ok(DevicePtr(self.0.fetch_add(bytes, Ordering::Relaxed)))
///     }
///     fn release(&self, _: DevicePtr, _: u64) -> DeviceResult<()> {
///         Ok(())
///     }
///     fn memory_info(&self) -> DeviceResult<MemoryInfo> {
///         Ok(MemoryInfo { free: 1 << 40, total: 1 << 40 })
///     }
///     fn create_event(&self) -> DeviceResult<Event> {
///         Ok(Event(0))
///     }
///     fn destroy_event(&self, _: Event) -> DeviceResult<()> {
///         Ok(())
///     }
///     fn record(&self, _: Event, _: StreamId) -> DeviceResult<()> {
///         Ok(())
///     }
///     fn is_complete(&self, _: Event) -> DeviceResult<bool> {
///         Ok(true)
///     }
///     fn wait(&self, _: Event) -> DeviceResult<()> {
///         Ok(())
///     }
///     fn synchronize(&self, _: StreamId) -> DeviceResult<()> {
///         Ok(())
///     }
///     fn is_capturing(&self, _: StreamId) -> DeviceResult<bool> {
///         Ok(false)
///     }
/// }
///
/// let device = Bump(AtomicU64::new(1 << 30));
/// let allocator = Allocator::<_, spin::Mutex<()>, Growable>::new([device], &Config::new())?;
/// allocator.malloc(DeviceIndex(0), 1 << 20, StreamId::DEFAULT)?;
/// # Ok::<(), cachalot_core::Error>(())
/// ```
pub trait BasicDevice: Send + Sync + 'static {
    /// Allocates a segment, as [`Segments::obtain`] does.
    ///
    /// # Errors
    /// The errors of [`Segments::obtain`].
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr>;

    /// Releases a segment, as [`Segments::release`] does.
    ///
    /// # Errors
    /// The errors of [`Segments::release`].
    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Returns how much memory the device has, as [`Segments::memory_info`] does.
    ///
    /// # Errors
    /// Any error of the device.
    fn memory_info(&self) -> DeviceResult<MemoryInfo>;

    /// Creates an event, as [`StreamOrder::create_event`] does.
    ///
    /// # Errors
    /// Any error of the device.
    fn create_event(&self) -> DeviceResult<Event>;

    /// Destroys an event, as [`StreamOrder::destroy_event`] does.
    ///
    /// # Errors
    /// Any error of the device.
    fn destroy_event(&self, event: Event) -> DeviceResult<()>;

    /// Records an event, as [`StreamOrder::record`] does.
    ///
    /// # Errors
    /// The errors of [`StreamOrder::record`].
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()>;

    /// Returns whether the work before an event is done, as [`StreamOrder::is_complete`] does.
    ///
    /// # Errors
    /// The errors of [`StreamOrder::is_complete`].
    fn is_complete(&self, event: Event) -> DeviceResult<bool>;

    /// Waits for an event, as [`StreamOrder::wait`] does.
    ///
    /// # Errors
    /// The errors of [`StreamOrder::is_complete`].
    fn wait(&self, event: Event) -> DeviceResult<()>;

    /// Waits for all work on a stream, as [`StreamOrder::synchronize`] does.
    ///
    /// # Errors
    /// Any error of the device.
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()>;

    /// Returns whether a stream captures a graph, as [`StreamOrder::is_capturing`] does.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool>;
}

impl<T: BasicDevice> Forwarder for T {
    type Inner = Bare;

    #[inline]
    fn inner(&self) -> DeviceResult<&Bare> {
        Ok(&Bare)
    }
}

/// Forwards methods to the methods of [`BasicDevice`] with the same names.
macro_rules! to_basic {
    ($($name:ident($($argument:ident: $type:ty),*) -> $value:ty;)*) => {
        $(
            #[inline]
            fn $name(&self, $($argument: $type),*) -> DeviceResult<$value> {
                BasicDevice::$name(self, $($argument),*)
            }
        )*
    };
}

impl<T: BasicDevice> ForwardSegments for T {
    to_basic! {
        obtain(bytes: u64) -> DevicePtr;
        release(base: DevicePtr, bytes: u64) -> ();
        memory_info() -> MemoryInfo;
    }

    #[inline]
    fn obtain_for(&self, _: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        BasicDevice::obtain(self, bytes)
    }
}

impl<T: BasicDevice> ForwardStreamOrder for T {
    to_basic! {
        create_event() -> Event;
        destroy_event(event: Event) -> ();
        record(event: Event, stream: StreamId) -> ();
        is_complete(event: Event) -> bool;
        wait(event: Event) -> ();
        synchronize(stream: StreamId) -> ();
        is_capturing(stream: StreamId) -> bool;
    }

    #[inline]
    fn create_order_event(&self) -> DeviceResult<Event> {
        BasicDevice::create_event(self)
    }

    #[inline]
    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        BasicDevice::record(self, event, stream)
    }

    #[inline]
    fn order_behind(&self, _: StreamId, event: Event) -> DeviceResult<()> {
        BasicDevice::wait(self, event)
    }
}

impl<T: BasicDevice> ForwardHost for T {}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::BasicDevice;
    use crate::device::{DeviceResult, Event, MemoryInfo, Segments, StreamOrder};
    use crate::pool::PoolId;
    use crate::units::{DevicePtr, StreamId};
    use std::sync::Mutex;
    use std::vec::Vec;

    /// Records its calls, with the number of the event or of bytes.
    #[derive(Default)]
    struct Noting(Mutex<Vec<(&'static str, u64)>>);

    impl Noting {
        fn note(&self, call: &'static str, number: u64) {
            self.0.lock().unwrap().push((call, number));
        }
    }

    impl BasicDevice for Noting {
        fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
            self.note("obtain", bytes);
            Ok(DevicePtr(4096))
        }

        fn release(&self, _: DevicePtr, bytes: u64) -> DeviceResult<()> {
            self.note("release", bytes);
            Ok(())
        }

        fn memory_info(&self) -> DeviceResult<MemoryInfo> {
            Ok(MemoryInfo { free: 1, total: 2 })
        }

        fn create_event(&self) -> DeviceResult<Event> {
            Ok(Event(1))
        }

        fn destroy_event(&self, _: Event) -> DeviceResult<()> {
            Ok(())
        }

        fn record(&self, event: Event, _: StreamId) -> DeviceResult<()> {
            self.note("record", event.0);
            Ok(())
        }

        fn is_complete(&self, _: Event) -> DeviceResult<bool> {
            Ok(true)
        }

        fn wait(&self, event: Event) -> DeviceResult<()> {
            self.note("wait", event.0);
            Ok(())
        }

        fn synchronize(&self, _: StreamId) -> DeviceResult<()> {
            Ok(())
        }

        fn is_capturing(&self, _: StreamId) -> DeviceResult<bool> {
            Ok(false)
        }
    }

    #[test]
    fn what_a_basic_device_lacks_is_made_of_what_it_has() {
        let device = Noting::default();
        assert_eq!(device.obtain_for(PoolId(0, 1), 512), Ok(DevicePtr(4096)));
        device.record_announced(Event(3), StreamId(1)).unwrap();
        StreamOrder::order_behind(&device, StreamId(1), Event(4)).unwrap();
        assert_eq!(*device.0.lock().unwrap(), [("obtain", 512), ("record", 3), ("wait", 4)]);
    }
}
