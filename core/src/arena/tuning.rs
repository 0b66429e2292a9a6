//! Settings that adjust themselves (`tune:auto`): the window of the latest requests, and the
//! activation of settings at a safe moment. `give/old_form.rs` gives back memory of the old form.
//!
//! The search itself is no part of the core: a host reads the window, searches with it on any
//! thread and without a lock, and passes settings back.

use crate::arena::flags::{self, Flags};
use crate::arena::platform::Platform;
use crate::arena::settings::Settings;
use crate::arena::tracing::Recorder;
use crate::config::{Config, Policy};
use crate::sync::{Lock, Ranked, impl_empty};

/// The stage of `tune:auto` on a device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum TuneStage {
    /// The setting is off, or the device cannot be tuned.
    #[default]
    Off,
    /// Requests are recorded, with the program's settings or with those found earlier.
    Recording,
    /// A search is running.
    Searching,
    /// Other settings are active, and their effect is being measured.
    Trial,
}

/// A report on what `tune:auto` has done on a device. Bytes are those of the default pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TuneReport {
    /// The present stage.
    pub stage: TuneStage,
    /// Whether the active settings differ from the program's.
    pub is_tuned: bool,
    /// The number of windows read, for searches and for trials.
    pub windows: u64,
    /// The number of searches that have ended.
    pub searches: u64,
    /// The number of configurations run on a window.
    pub candidates: u64,
    /// The number of searches that found no better settings for the part of the window held back.
    pub without_gain: u64,
    /// The number of activations of other settings.
    pub switches: u64,
    /// The number of trials that met the predicted peak.
    pub held: u64,
    /// The number of settings taken back.
    pub taken_back: u64,
    /// The time of all searches, in microseconds.
    pub search_us: u64,
    /// The peak of reserved memory in the window of the latest switch, in bytes.
    pub before_bytes: u64,
    /// The peak predicted for this window with the new settings, in bytes.
    pub predicted_bytes: u64,
    /// The peak of reserved memory in the window of the latest trial that has ended, in bytes.
    pub after_bytes: u64,
    /// The bytes of idle memory given back after switches.
    pub given_back_bytes: u64,
    /// The bytes of segments that go back once the device has finished with them. They serve no
    /// request, and are in no other sum.
    pub retired_bytes: u64,
}

impl_empty! {
    TuneReport {
        stage: TuneStage::Off,
        is_tuned,
        windows,
        searches,
        candidates,
        without_gain,
        switches,
        held,
        taken_back,
        search_us,
        before_bytes,
        predicted_bytes,
        after_bytes,
        given_back_bytes,
        retired_bytes,
    }
}

/// The state of `tune:auto` for a device.
#[derive(Clone)]
pub(crate) struct TuningState {
    /// The program's own configuration, while other settings are active.
    pub own: Option<Config>,
    /// The number of times that the program has changed the configuration.
    pub serial: u64,
    /// Whether memory of the old form may be left.
    pub has_leftovers: bool,
    /// The figures.
    pub report: TuneReport,
}

impl_empty! { TuningState { own, serial, has_leftovers, report } }

impl<P: Platform> Recorder<'_, P> {
    /// Starts or stops the recording of the window, according to the configuration.
    pub(super) fn follow_tuning(&self, settings: &Settings<P::Lock>, tuning: &Ranked<P::Lock, TuningState>) {
        // Without an allocator on the host there is no window.
        let wanted = cfg!(feature = "alloc") && settings.config.lock().tunes();
        let [capacity, window] = self.heaps.trace.room();
        if wanted != (window > 0) {
            // If there is no memory for the window, nothing is recorded and nothing is tuned.
            let _recorded = self.start(capacity, self.heaps.trace.times(), wanted);
        }
        let stage = if wanted { TuneStage::Recording } else { TuneStage::Off };
        tuning.lock().report.stage = stage;
    }
}

impl<R: Lock> Settings<R> {
    /// Returns the program's own configuration.
    pub(crate) fn own_config(&self, tuning: &Ranked<R, TuningState>) -> Config {
        let present = self.config.lock();
        let own = tuning.lock().own.clone();
        own.unwrap_or_else(|| present.clone())
    }

    /// Replaces the program's own configuration, which the caller must apply, except for the
    /// settings of the debug layer. Settings found by a search are dropped.
    pub(crate) fn replace(&self, config: &Config, tuning: &Ranked<R, TuningState>) {
        let mut present = self.config.lock();
        let mut state = tuning.lock();
        let mut next = config.clone();
        next.keep_debug_settings(&present);
        *present = next;
        state.own = None;
        state.serial += 1;
        state.report.is_tuned = false;
    }

    /// Takes over settings of placement, which the caller must apply, unless a graph is being
    /// captured or the program has changed the configuration since `serial`. Returns whether they
    /// were taken over.
    pub(crate) fn take_placement(
        &self,
        flags: &Flags,
        tuning: &Ranked<R, TuningState>,
        placement: &Config,
        serial: u64,
    ) -> bool {
        if !self.may_tune(flags) {
            return false;
        }
        let mut present = self.config.lock();
        let mut state = tuning.lock();
        if state.serial != serial {
            return false;
        }
        let own = state.own.get_or_insert_with(|| present.clone()).clone();
        present.take_placement(placement);
        state.has_leftovers = true;
        state.report.is_tuned = *present != own;
        true
    }

    /// Returns whether settings can adjust themselves now: the setting is on, memory is cached, and
    /// no graph is being captured.
    pub(crate) fn may_tune(&self, flags: &Flags) -> bool {
        self.policy() == Policy::Caching
            && !flags.has(flags::DIRECT | flags::CAPTURE | flags::LOST)
            && self.config.lock().tunes()
    }
}
