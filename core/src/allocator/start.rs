//! Where an allocator gets its devices: all at once when it is created, or later, if it is a
//! static.

use crate::allocator::{Allocator, Called, On};
use crate::arena::Arena;
use crate::config::Config;
use crate::device::{DeviceMemory, MemoryInfo, Segments};
use crate::error::Error;
use crate::page_map::{MAX_DEVICES, PageMap};
use crate::sync::{Lock, empty};
use crate::tables::{Devices, Storage, Table};
use spin::Once;

/// The devices that an allocator will have, each with its memory if the configuration limits the
/// allocator to a fraction.
type Given<D, S> = <S as Storage>::ForDevices<(Called<D>, Option<MemoryInfo>)>;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Creates an allocator over `devices`, which are numbered from 0 in the given order. `config`
    /// applies to all of them. Obtains no memory.
    ///
    /// Device: called to get the size of its memory if `config` limits the allocator to a fraction.
    ///
    /// # Errors
    /// * [`Error::PolicyUnavailable`]: the policy needs the feature `alloc`.
    /// * [`Error::TableFull`]: more than 127 devices, or more than `S` has room for.
    /// * [`Error::Device`].
    pub fn new(devices: impl IntoIterator<Item = D>, config: &Config) -> Result<Self, Error> {
        let devices = Self::given(devices, config)?;
        let arenas = S::Devices::with_places(devices.len()).ok_or(Error::TableFull("devices"))?;
        let allocator = Self::over(arenas, PageMap::default(), Once::initialized(()));
        allocator.start_with(devices, config);
        Ok(allocator)
    }

    /// Returns an allocator over these devices.
    pub(super) const fn over(arenas: S::Devices<Arena<On<D, R, S>>>, pages: PageMap<R, S>, started: Once<()>) -> Self {
        Self { arenas, pages, failed_drop: lock_api::Mutex::new(None), started }
    }

    /// Checks the devices and the configuration of an allocator. Calls the devices as described in
    /// [`new`](Self::new), but starts nothing, so that there is nothing to undo after a failure.
    fn given(devices: impl IntoIterator<Item = D>, config: &Config) -> Result<Given<D, S>, Error> {
        if config.planned().is_some() && !cfg!(feature = "alloc") {
            return Err(Error::PolicyUnavailable(config.policy_name()));
        }
        let mut given: Given<D, S> = empty!();
        for device in devices {
            if given.len() >= MAX_DEVICES || !given.make_room(1) {
                return Err(Error::TableFull("devices"));
            }
            let device = Called::<D>::from(device);
            let is_limited = config.per_process_memory_fraction() < 1.0;
            let memory = if is_limited { Some(Segments::memory_info(&device)?) } else { None };
            given.add((device, memory));
        }
        Ok(given)
    }

    /// Starts the devices, which must have places. At most, this reads the clock of a device.
    fn start_with(&self, mut devices: Given<D, S>, config: &Config) {
        let count = devices.len();
        while let Some((device, memory)) = devices.pop() {
            let number = devices.len();
            self.arenas.places()[number].start(device, number as u32, config, memory);
        }
        self.arenas.publish(count);
    }
}

/// An allocator of fixed tables can be a static.
impl<D, R, const DEVICES: usize, const HEAPS: usize, const BLOCKS: usize, const PAGES: usize>
    Allocator<D, R, crate::tables::Fixed<DEVICES, HEAPS, BLOCKS, PAGES>>
where
    D: DeviceMemory,
    R: Lock,
{
    /// Returns an allocator without devices, which must be [started](Self::start). Until then,
    /// every call answers that the device is unknown.
    ///
    /// The value is a constant: for a `static`, the compiler creates it, and no table has to be on
    /// the stack.
    ///
    /// ```
    /// # use cachalot_core::simulated::SimulatedDevice;
    /// use cachalot_core::{Allocator, Config, DeviceIndex, Error, Fixed, StreamId};
    /// use spin::mutex::SpinMutex;
    ///
    /// static ALLOCATOR: Allocator<SimulatedDevice, SpinMutex<()>, Fixed<1, 2, 16, 64>> = Allocator::empty();
    ///
    /// const DEVICE: DeviceIndex = DeviceIndex(0);
    /// assert_eq!(ALLOCATOR.malloc(DEVICE, 512, StreamId(1)), Err(Error::UnknownDevice(DEVICE)));
    /// ALLOCATOR.start([SimulatedDevice::new(64 << 20)], &Config::new())?;
    /// let ptr = ALLOCATOR.malloc(DEVICE, 512, StreamId(1))?;
    /// ALLOCATOR.free(ptr)?;
    /// # Ok::<(), Error>(())
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub const fn empty() -> Self {
        Self::over(empty!(), PageMap::with(empty!()), Once::new())
    }

    /// Gives an [`empty`](Self::empty) allocator its devices and its configuration, as
    /// [`new`](Self::new) does. Obtains no memory. If several threads start the allocator at the
    /// same time, the others wait for the first.
    ///
    /// Device: called to get the size of its memory if `config` limits the allocator to a fraction.
    ///
    /// # Errors
    /// * [`Error::AlreadyStarted`]: the allocator already has its devices.
    /// * Those of [`new`](Self::new).
    ///
    /// After an error nothing has changed. An allocator that still has no devices may be started
    /// again.
    pub fn start(&self, devices: impl IntoIterator<Item = D>, config: &Config) -> Result<(), Error> {
        let mut is_first = false;
        self.started.try_call_once(|| {
            is_first = true;
            let devices = Self::given(devices, config)?;
            self.start_with(devices, config);
            Ok::<(), Error>(())
        })?;
        if is_first { Ok(()) } else { Err(Error::AlreadyStarted) }
    }
}
