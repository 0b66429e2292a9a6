//! Settings that adjust themselves (`tune:auto`): the host's interface to search for better
//! settings and to activate them.

use crate::allocator::Allocator;
use crate::arena::tuning::{TuneReport, TuneStage};
use crate::config::Config;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::trace::Action;
use crate::units::DeviceIndex;
#[cfg(feature = "alloc")]
use crate::{pool::PoolId, snapshot::SnapshotSegment, trace::TraceEntry};
#[cfg(feature = "alloc")]
use alloc::vec::Vec;

/// The latest requests of a device, and its memory after them. Only the default pool is included.
#[cfg(feature = "alloc")]
#[derive(Clone, Debug)]
pub struct Window {
    /// The events, oldest first, with times in the device's ticks.
    pub events: Vec<TraceEntry>,
    /// The segments after the events.
    pub segments: Vec<SnapshotSegment>,
    /// The active settings.
    pub config: Config,
    /// The limit of the device in bytes, if any.
    pub limit: Option<u64>,
    /// How often the program has changed the configuration.
    pub serial: u64,
}

view! {
    /// The tuning of a device: a view of an [`Allocator`], returned by [`Allocator::tuning`].
    ///
    /// A tuning host reads a [`window`](Self::window) at an idle moment, searches with the window
    /// on any thread, and passes the settings to [`put_in_force`](Self::put_in_force) at the next
    /// idle moment. The crate `cachalot-tuner` has the search; `cachalot` does all steps on its
    /// own thread.
    Tuning,
    /// Returns the tuning of `device`.
    tuning
}

impl<D: DeviceMemory, R: Lock, S: Storage> Tuning<'_, D, R, S> {
    /// Returns whether settings may adjust themselves now: `tune:auto` is set, memory is cached,
    /// and no graph is being captured.
    pub fn is_possible(&self) -> bool {
        let arena = self.arena;
        arena.settings.may_tune(&arena.driver.flags)
    }

    /// Returns the configuration of the program.
    /// [`DeviceSettings::config`](crate::DeviceSettings::config) returns the one that is active.
    pub fn own_config(&self) -> Config {
        let arena = self.arena;
        arena.settings.own_config(&arena.tuning)
    }

    /// Returns the latest requests, up to 131072 events, and the memory after them. This is exact
    /// only if no other thread allocates or frees during the call.
    #[cfg(feature = "alloc")]
    pub fn window(&self) -> Window {
        let arena = self.begin("tuning window");
        let serial = arena.tuning.lock().serial;
        let config = arena.settings.copy();
        for slot in arena.heaps.slot_numbers() {
            arena.heaps.flush_trace(&mut arena.heaps.lock(slot));
        }
        let events = arena.heaps.trace.window();
        let mut segments = Vec::new();
        arena.heaps.snapshot(&arena.history.sites, &mut segments);
        segments.retain(|segment| segment.pool == PoolId::DEFAULT);
        Window { events, segments, config, limit: arena.ledger.limit_if_set(), serial }
    }

    /// Activates those settings in `settings` that concern placement. All others do not change.
    /// Idle segments of the default pool serve no more requests, and are given back once the device
    /// has finished with them, at the latest when cached memory is released. Call this at an idle
    /// moment.
    ///
    /// Returns false, and changes nothing, if a graph is being captured, if `tune:auto` is off, or
    /// if the program has changed the configuration since the window with this `serial` was read.
    ///
    /// `predicted_bytes` is for the trace.
    ///
    /// Device: called to release memory. Never waits for the device.
    ///
    /// # Errors
    /// [`Error::Device`]: memory could not be released. The settings are active anyway.
    pub fn put_in_force(&self, settings: &Config, serial: u64, predicted_bytes: u64) -> Result<bool, Error> {
        self.change(settings, serial, Action::SettingsChanged, predicted_bytes)
    }

    /// Activates earlier settings again, as [`put_in_force`](Self::put_in_force) does.
    /// `measured_bytes` is for the trace.
    ///
    /// # Errors
    /// As for [`put_in_force`](Self::put_in_force).
    pub fn take_back(&self, settings: &Config, serial: u64, measured_bytes: u64) -> Result<bool, Error> {
        self.change(settings, serial, Action::SettingsTakenBack, measured_bytes)
    }

    #[cfg_attr(not(feature = "alloc"), expect(clippy::unnecessary_wraps, reason = "only memory given back can fail"))]
    fn change(&self, settings: &Config, serial: u64, action: Action, bytes: u64) -> Result<bool, Error> {
        let device = self.begin("tuning change");
        if !device.settings.take_placement(&device.driver.flags, &device.tuning, settings, serial) {
            return Ok(false);
        }
        device.apply_config();
        device.recorder().settings(action, bytes);
        #[cfg(feature = "alloc")]
        device.holdings().give_old_form_back(&device.tuning, true)?;
        Ok(true)
    }

    /// Gives back idle memory that still has the form of earlier settings, if the device has
    /// finished with it. Call this at idle moments. This needs the feature `alloc`; without it,
    /// such memory is only given back by [`Allocator::trim`] and [`Allocator::empty_cache`].
    ///
    /// Device: called to release memory. Never waits for the device.
    ///
    /// # Errors
    /// [`Error::Device`].
    #[cfg(feature = "alloc")]
    pub fn give_back(&self) -> Result<(), Error> {
        let device = self.begin("tuning give_back");
        device.holdings().give_old_form_back(&device.tuning, false)
    }

    /// Returns the figures.
    pub fn report(&self) -> TuneReport {
        let arena = self.arena;
        let [given_back_bytes, retired_bytes] = [arena.paging.retired_given_back(), arena.paging.retired_bytes()];
        TuneReport { given_back_bytes, retired_bytes, ..arena.tuning.lock().report }
    }

    /// Changes the figures that a host keeps. The stage is [`TuneStage::Off`] while `tune` is off.
    pub fn update_report(&self, update: impl FnOnce(&mut TuneReport)) {
        let arena = self.arena;
        let is_on = arena.settings.config.lock().tunes();
        let mut state = arena.tuning.lock();
        update(&mut state.report);
        if !is_on {
            state.report.stage = TuneStage::Off;
        }
    }
}
