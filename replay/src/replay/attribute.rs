//! Attributes the completions and releases before a request: to the request, or to an earlier
//! `empty_cache`.
//!
//! The allocator's forecast names the first effect of a request. If the forecast leaves two
//! readings, the request runs on a copy with each reading. A reading is right if the copy repeats
//! the recorded events. Of several right readings, a reading without an `empty_cache` is preferred.

use super::compare;
use super::follow::Follower;
use super::trials::Trials;
use crate::program::{DEVICE, Operation};
use crate::trace::{Action, Event};
use cachalot_core::{BlockState, DevicePtr, Error, Forecast, PoolId, StreamId};

/// Limit of trials on copies per record. Each trial replays the record up to the request.
const MOST_TRIALS: usize = 64;

/// Result of a trial with a reading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// The request repeated the recorded events.
    Agrees,
    /// The request repeated the recorded events after an `empty_cache`.
    AgreesEmptied,
    /// The events differ from the record.
    Differs,
}

impl Follower<'_> {
    /// Returns the number of leading `completions` found by the request's event check, if the
    /// request waited for the rest.
    ///
    /// A request waits before a release of all cached segments, and finds all remaining
    /// completions. After the wait the request does not search again. A wait therefore differs from
    /// completions at the start of the request.
    pub(super) fn waits_itself(
        &mut self,
        events: &[Event],
        completions: usize,
        call: &Event,
    ) -> Result<Option<usize>, Error> {
        if let Some(&waits) = self.trials.waits.get(&self.position) {
            return Ok(waits);
        }
        let fails = call.action == Action::OutOfMemory;
        let releases = events.get(completions).map_or(fails, |event| event.action.is_release());
        let obtains = |event: &Event| matches!(event.action, Action::SegmentAlloc | Action::SegmentMap);
        let ends_fresh = fails || events.iter().any(obtains);
        if completions == 0 || completions != self.waiting || !releases || !ends_fresh {
            return Ok(None);
        }
        let forecast = self.run.allocator.forecast(DEVICE)?.malloc(call.size, StreamId(call.of.stream))?;
        if !matches!(forecast, Forecast::Release(_) | Forecast::OutOfMemory) {
            return Ok(None);
        }
        let found_by_check = self.trial(|trials, position| _ = trials.waits.insert(position, None));
        let waits = if found_by_check == Trial::Agrees {
            None
        } else {
            (0..completions).find(|&found| {
                self.trial(|trials, position| _ = trials.waits.insert(position, Some(found))) == Trial::Agrees
            })
        };
        self.trials.waits.insert(self.position, waits);
        Ok(waits)
    }

    /// Returns whether the request would now release exactly the segment at `addr`.
    pub(super) fn releases(&self, addr: u64, call: &Event) -> Result<bool, Error> {
        let forecast = self.run.allocator.forecast(DEVICE)?.malloc(call.size, StreamId(call.of.stream))?;
        Ok(match forecast {
            Forecast::Release(first) => first == DevicePtr(addr),
            Forecast::Hit(_) => false,
            // It fails all the same in the end, so it is the device that has no more.
            _ => call.action == Action::OutOfMemory && self.settings.limit.is_none(),
        })
    }

    /// Returns whether a request released the segments of `cached` by the setting `compact`, before
    /// the segment that `rest` starts with.
    ///
    /// A forecast does not ask the device, and so does not know which segments the device has
    /// finished with. A release of everything may also be an `empty_cache`.
    pub(super) fn compacts(&mut self, cached: &[Event], rest: &[Event]) -> bool {
        let obtains = rest.first().is_some_and(|event| event.action == Action::SegmentAlloc);
        let only_releases = cached.iter().all(|event| event.action == Action::SegmentFree);
        if self.settings.config.compact().is_none() || !obtains || !only_releases {
            return false;
        }
        if !self.is_complete_release(cached) {
            return true;
        }
        if let Some(&compacts) = self.trials.compacts.get(&self.position) {
            return compacts;
        }
        let compacts = self.trial(|trials, position| _ = trials.compacts.insert(position, true)) == Trial::Agrees;
        self.trials.compacts.insert(self.position, compacts);
        compacts
    }

    /// Returns whether a request that releases the first segment of `cached` also releases the
    /// rest.
    ///
    /// Without a rule for partial releases, the request releases all cached segments. With such a
    /// rule, a complete release may also be an `empty_cache` whose first segment is the segment in
    /// the forecast.
    pub(super) fn releases_all(&mut self, cached: &[Event]) -> bool {
        let config = &self.settings.config;
        let may_stop = config.garbage_collection_threshold().is_some() || config.max_split_size().is_some();
        if !may_stop || !self.is_complete_release(cached) {
            return true;
        }
        if let Some(&releases_all) = self.trials.releases_all.get(&self.position) {
            return releases_all;
        }
        let releases_all = self.trials.made >= MOST_TRIALS || self.trial(|_, _| ()) == Trial::Agrees;
        self.trials.releases_all.insert(self.position, releases_all);
        releases_all
    }

    /// Returns whether `events` release every segment that can be released.
    fn is_complete_release(&self, events: &[Event]) -> bool {
        let segments = self.run.allocator.snapshot();
        let whole = segments.iter().filter(|segment| {
            let [block] = segment.blocks.as_slice() else { return false };
            segment.pool == PoolId::DEFAULT && !segment.is_expandable && block.state == BlockState::Inactive
        });
        events.iter().filter(|event| event.action == Action::SegmentFree).count() >= whole.count()
    }

    /// Runs the present request on a copy, with a reading entered by `decide`.
    fn trial(&mut self, decide: impl FnOnce(&mut Trials, usize)) -> Trial {
        if self.trials.made >= MOST_TRIALS {
            return Trial::Differs;
        }
        self.trials.made += 1;
        let Ok(mut copy) = Follower::new(self.trace, self.settings) else { return Trial::Differs };
        copy.trials = self.trials.clone();
        // What else is open at this event is read as the request's own.
        copy.trials.waits.entry(self.position).or_insert(None);
        copy.trials.releases_all.insert(self.position, true);
        decide(&mut copy.trials, self.position);
        copy.follow_one(self.position).unwrap_or(Trial::Differs)
    }

    /// Follows the record up to event `at`, and then a single call.
    fn follow_one(&mut self, at: usize) -> Result<Trial, Error> {
        self.follow(at).map_err(|(_, error)| error)?;
        self.entries.clear();
        self.start_trace()?;
        let made = self.program.operations.len();
        let end = self.follow_from(at)?;
        self.read_trace()?;
        let emptied = self.program.operations[made..].contains(&Operation::EmptyCache);
        let agrees = compare::compare(&self.events[at..end], &self.entries).mismatches == 0;
        Ok(match (agrees, emptied) {
            (true, false) => Trial::Agrees,
            (true, true) => Trial::AgreesEmptied,
            _ => Trial::Differs,
        })
    }
}
