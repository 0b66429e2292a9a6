//! Whose the completions and releases before a request are: its own, or those of an `empty_cache` before it.
//!
//! The allocator's own forecast answers what a request would do first. Where that leaves two readings, the
//! request is tried out on a copy: the reading is right with which it does what the record says. Of several the
//! one is taken by which the request did everything itself.

use super::compare;
use super::follow::Follower;
use super::trials::Trials;
use crate::program::{DEVICE, Operation};
use crate::trace::{Action, Event};
use cachalot_core::{BlockState, DevicePtr, Error, Forecast, PoolId, StreamId};

/// How often a record is followed anew to try a request out: each time costs as much as the record up to there.
const MOST_TRIALS: usize = 64;

/// What trying a reading out came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// The request did what the record says.
    Agrees,
    /// It did, behind an `empty_cache`.
    AgreesEmptied,
    /// Something else was done.
    Differs,
}

impl Follower<'_> {
    /// How many of the leading `completions` the request's event check found, if it waited for the others
    /// itself.
    ///
    /// It does so before it releases everything, and then finds all that are left. It does not search again
    /// after that, so this differs from completions that were found at its start.
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
        let forecast = self.run.allocator.forecast(DEVICE, call.size, StreamId(call.stream))?;
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

    /// Whether the request itself would now release just the segment at `addr`.
    pub(super) fn releases(&self, addr: u64, call: &Event) -> Result<bool, Error> {
        let forecast = self.run.allocator.forecast(DEVICE, call.size, StreamId(call.stream))?;
        Ok(match forecast {
            Forecast::Release(first) => first == DevicePtr(addr),
            Forecast::Hit(_) => false,
            // It fails all the same in the end, so it is the device that has no more.
            _ => call.action == Action::OutOfMemory && self.settings.limit.is_none(),
        })
    }

    /// Whether a request that releases the first of `cached` releases the others as well.
    ///
    /// It does, if it can only release everything. With rules by which it may release less, a complete release
    /// may be an `empty_cache` that begins with what the request would release.
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

    /// Whether nothing could be released beyond `events`.
    fn is_complete_release(&self, events: &[Event]) -> bool {
        let segments = self.run.allocator.snapshot();
        let whole = segments.iter().filter(|segment| {
            let [block] = segment.blocks.as_slice() else { return false };
            segment.pool == PoolId::DEFAULT && !segment.is_expandable && block.state == BlockState::Inactive
        });
        events.iter().filter(|event| event.action == Action::SegmentFree).count() >= whole.count()
    }

    /// Tries the present request out on a copy, with a reading that `decide` enters.
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

    /// Follows the record up to event `at`, then one call.
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
