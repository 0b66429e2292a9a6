//! The reclaim ladder: the steps of a request without a fitting free block, in a single table.
//!
//! ```text
//! malloc   ─ takes step after step, until served ──────▶ block, or out of memory
//! forecast ─ predicts step after step, until an effect ─▶ the first effect
//! ```
//!
//! A step is written only once, in terms of a few acts: search, give back by a rule, grow. Each act
//! is either done or predicted, so a forecast takes the same path as the request.
//!
//! PyTorch's allocator (2.11) makes the same choices in the same order, except for the search after
//! the wait for pending blocks. This search prevents a failure when the only fitting block was
//! waiting for an event (pytorch issue 189504). If frees are gathered, the request waits for one
//! event at a time and searches in between, so it waits for no more work than it needs (171771).

use crate::arena::give::rules;
use crate::arena::heaps::units::Unit;
use crate::arena::holdings::Holdings;
use crate::arena::ledger::fraction_of;
use crate::arena::paging::spill::First;
use crate::arena::platform::{Built, Platform};
use crate::arena::request::Forecast;
use crate::arena::request::Request;
use crate::arena::waits::search::Effort;
use crate::arena::{OnDevice, flags};
use crate::config::{Bfc, Policy};
use crate::device::oom::OutOfMemory;
use crate::device::{DeviceMemory, Host};
use crate::error::Error;
use crate::stats::Occurrence;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::DevicePtr;
use core::cell::Cell;

/// The first pause of a request that waits for other threads, in microseconds.
const FIRST_PAUSE_US: u64 = 100;
/// The longest pause of a request that waits for other threads, in microseconds.
const LONGEST_PAUSE_US: u64 = 10_000;

/// The effect of a step, if the request ends there.
type Effect = Result<Option<Forecast>, Error>;

/// A step of a request without a fitting free block; see [`steps`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// A sentence that describes the step.
    pub text: &'static str,
    /// Whether the step may wait for the device. A capture does not permit this, so a request of a
    /// capturing stream skips the step.
    pub waits: bool,
}

/// Returns the steps of a request without a fitting free block, in order, so that programs can
/// explain a request. The first successful step ends the request, and after the last step the
/// request fails. Every allocator has all steps. A step without an effect under the active policy
/// or settings does nothing.
///
/// Device: not called.
pub fn steps<D: DeviceMemory, R: Lock, S: Storage>() -> impl Iterator<Item = Step> {
    Ladder::<Built<D, R, S>>::STEPS.iter().map(|step| step.step)
}

/// A step of the ladder, which can be done or predicted.
struct LadderStep<P: Platform> {
    step: Step,
    /// Whether the step searches the cache, or makes sense only with a cache. A request without a
    /// cache skips the step.
    needs_cache: bool,
    run: fn(&Ladder<'_, P>) -> Effect,
}

impl<P: Platform> LadderStep<P> {
    const fn new(text: &'static str, run: fn(&Ladder<'_, P>) -> Effect) -> Self {
        Self { step: Step { text, waits: false }, needs_cache: false, run }
    }

    const fn waiting(text: &'static str, run: fn(&Ladder<'_, P>) -> Effect) -> Self {
        Self { step: Step { text, waits: true }, needs_cache: false, run }
    }

    const fn of_cache(text: &'static str, run: fn(&Ladder<'_, P>) -> Effect) -> Self {
        Self { step: Step { text, waits: false }, needs_cache: true, run }
    }
}

/// The way in which a request goes down the ladder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Each step is done.
    Take,
    /// The first effect is predicted. Nothing changes, and pending blocks are left as they are.
    Predict,
}

/// A request on the ladder.
struct Ladder<'a, P: Platform> {
    device: OnDevice<'a, P>,
    /// The memory of the device. Made once for all steps, because it has ten parts.
    held: Holdings<'a, P>,
    request: &'a Request,
    way: Way,
    /// Whether free blocks may serve the request. In direct mode they may not.
    caches: bool,
}

impl<P: Platform> Ladder<'_, P> {
    /// The steps, from top to bottom. A request that none of them serves fails.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "a method of `Ladder` has a fixed lifetime")]
    const STEPS: &'static [LadderStep<P>] = &[
        LadderStep::of_cache("Complete pending blocks, and search again.", |on| {
            on.act(|| on.device.waiting().search_pending(on.request, Effort::Ask, || on.device.search(on.request)))
        }),
        LadderStep::of_cache("Order the stream behind uses announced with `record_use`, and search again.", |on| {
            on.act(|| on.device.waiting().search_pending(on.request, Effort::Order, || on.device.search(on.request)))
        }),
        LadderStep::new("Ask the program to free memory, if a shortage callback is set, and search again.", |on| {
            // No lock is held, so the program may free blocks in the callback.
            on.act(|| {
                let asked = on.device.driver.device().on_shortage(on.request.size);
                if asked { on.try_again() } else { Ok(None) }
            })
        }),
        LadderStep::waiting("Release the free memory of ended streams.", |on| {
            let release = || {
                on.held.release_ended();
                Ok(())
            };
            on.release(release, || on.device.heaps.first_ended(&on.device.driver, on.request.slot / 2))
        }),
        LadderStep::new("Release old free segments, if a limit and `garbage_collection_threshold` are set.", |on| {
            on.give(rules::old(&on.held))
        }),
        // This comes before the steps that give up cached memory for the request.
        LadderStep::of_cache(
            "Reject a request beyond `per_process_memory_fraction`, if `throw_on_cudamalloc_oom` is set.",
            |on| on.reject(),
        ),
        LadderStep::of_cache(
            "With `compact`, use any free block where another segment would exceed the budget.",
            |on| {
                if on.held.any_block_serves_first(on.request) { on.search_any() } else { Ok(None) }
            },
        ),
        LadderStep::new(
            "With `compact`, release segments that the device has finished with, down to the budget.",
            |on| {
                let held = &on.held;
                let release = || {
                    if held.release_excess(on.request)? {
                        on.device.apply_config();
                    }
                    Ok(())
                };
                on.release(release, || first_of(held.quiet_segments(on.request)))
            },
        ),
        LadderStep::new(
            "Obtain a segment from the driver, with the `max` of the pool's tag kept by its own free memory.",
            |on| on.grow(false),
        ),
        LadderStep::of_cache("With `compact`, use any free block.", |on| on.search_any()),
        LadderStep::of_cache("Use the free blocks of private pools with the flag `CACHALOT_POOL_USE_ON_OOM`.", |on| {
            on.search_oom_pools()
        }),
        LadderStep::new("Release oversize segments, if `max_split_size_mb` is set, and obtain a segment.", |on| {
            on.give_oversize(false)
        }),
        LadderStep::waiting("Wait for all pending blocks, and search again.", |on| on.act(|| on.wait())),
        LadderStep::waiting(
            "Release every free segment, by the shares of tags with limits, and obtain a segment.",
            |on| on.release_all(),
        ),
        // Both were tried before the wait, which has made more memory free. Without this, a request
        // could fail now that they would serve if it were made again. The steps in between are
        // PyTorch's, in its order.
        LadderStep {
            step: Step {
                text: "Use the free blocks of the private pools with that flag, after the wait.",
                waits: true,
            },
            needs_cache: true,
            run: |on| on.search_oom_pools(),
        },
        LadderStep::waiting("Release oversize segments after the wait, and obtain a segment.", |on| {
            on.give_oversize(true)
        }),
        // This is the last of the releases, because new plans require observing the program again.
        LadderStep::waiting("Give up the plans of the policy `planned`, and obtain a segment.", |on| {
            on.give_plans_up()
        }),
        LadderStep::waiting("Wait for other threads to free memory, if `retry_ms` of the policy `bfc` is set.", |on| {
            on.act(|| on.retry_with_pauses())
        }),
        LadderStep::of_cache("Wait for segments that other threads obtain for the stream, and search again.", |on| {
            on.act(|| on.device.search_after_pending_segments(on.request))
        }),
        LadderStep::new("Map memory of the host, if `spill` is set.", |on| on.spill()),
    ];

    /// Goes down the ladder to the first step with an effect.
    fn go(&self) -> Effect {
        let permits =
            |step: &&LadderStep<P>| !(step.step.waits && self.request.capturing || step.needs_cache && !self.caches);
        Self::STEPS.iter().filter(permits).find_map(|step| (step.run)(self).transpose()).transpose()
    }

    /// Serves the request with `take`. `predict` predicts the effect.
    fn serve(
        &self,
        take: impl FnOnce() -> Result<Option<DevicePtr>, Error>,
        predict: impl FnOnce() -> Result<Option<Forecast>, Error>,
    ) -> Effect {
        match self.way {
            Way::Take => Ok(take()?.map(Forecast::Hit)),
            Way::Predict => predict(),
        }
    }

    /// Serves the request with `take`, which cannot be predicted because the device, the program or
    /// another thread decides.
    fn act(&self, take: impl FnOnce() -> Result<Option<DevicePtr>, Error>) -> Effect {
        self.serve(take, || Ok(None))
    }

    /// Releases memory with `take`. `first` predicts the first segment or range.
    fn release(&self, take: impl FnOnce() -> Result<(), Error>, first: impl FnOnce() -> Option<DevicePtr>) -> Effect {
        self.serve(|| take().map(|()| None), || Ok(first().map(Forecast::Release)))
    }

    /// Gives the units of a rule back.
    fn give(&self, rule: impl Iterator<Item = Unit>) -> Effect {
        match self.way {
            Way::Take => self.held.give(rule).map(|_bytes| None),
            Way::Predict if self.device.driver.holds_frees() => Ok(None),
            Way::Predict => Ok(first_of(rule).map(Forecast::Release)),
        }
    }

    /// Serves the request, which may have been moved to another pool, from a free block of its
    /// heap.
    fn search(&self, request: &Request) -> Effect {
        let predict = || self.device.heaps.lock(request.slot).peek(request.size);
        self.serve(|| self.device.search(request), || Ok(predict().map(Forecast::Hit)))
    }

    /// Serves the request from the free blocks of private pools with the flag
    /// `CACHALOT_POOL_USE_ON_OOM`.
    fn search_oom_pools(&self) -> Effect {
        self.device.heaps.in_oom_pools(self.request, |request| self.search(request).transpose()).transpose()
    }

    /// Releases oversize segments, and serves the request from new memory. For `has_waited` see
    /// [`grow`](Self::grow).
    fn give_oversize(&self, has_waited: bool) -> Effect {
        let missing = Cell::new(0);
        let released = self.give(rules::oversize(&self.device.heaps, self.request, &missing))?;
        if missing.get() > 0 || released.is_some() { Ok(released) } else { self.grow(has_waited) }
    }

    /// Serves the request from any free block, under `compact`.
    fn search_any(&self) -> Effect {
        let (device, request) = (self.device, self.request);
        self.serve(
            || device.search_any_block(request),
            || Ok(device.heaps.predict_any_block(request).map(Forecast::Hit)),
        )
    }

    /// Serves the request from new memory. `has_waited` is true if this comes after the wait for
    /// pending blocks.
    fn grow(&self, has_waited: bool) -> Effect {
        let predict = || self.device.forecast_of_growth(self.request, has_waited);
        self.serve(|| self.device.grow(self.request), predict)
    }

    /// Serves the request from pages of the host, where the device has no more, if `spill` is set.
    fn spill(&self) -> Effect {
        self.serve(
            || self.held.spill(self.request, First::Device),
            || Ok(self.held.would_spill(self.request)?.then_some(Forecast::Expand)),
        )
    }

    /// Rejects the request if the memory would exceed the configured fraction of the device.
    fn reject(&self) -> Effect {
        let Some(bytes) = self.rejected()? else { return Ok(None) };
        let reject = || {
            self.device.peaks.device.count(Occurrence::OomRejection);
            Err(Error::Rejected(bytes))
        };
        self.serve(reject, || Ok(Some(Forecast::OutOfMemory)))
    }

    /// Serves the request from memory that has become free, in the cache or, without a cache, on
    /// the device.
    fn try_again(&self) -> Result<Option<DevicePtr>, Error> {
        if self.caches { self.device.search(self.request) } else { self.device.grow(self.request) }
    }

    /// Waits for all pending blocks, and serves the request from the first one that fits. Without a
    /// cache, serves it from the device, to which the blocks have gone back.
    fn wait(&self) -> Result<Option<DevicePtr>, Error> {
        let (device, request) = (self.device, self.request);
        if !self.caches {
            device.waiting().wait_for_events()?;
            self.held.wait_for_departures()?;
            return device.grow(request);
        }
        if let Some(ptr) = device.waiting().search_pending(request, Effort::Wait, || device.search(request))? {
            return Ok(Some(ptr));
        }
        self.held.wait_for_departures()?;
        // `single_search` switches to PyTorch's order without the search.
        if device.settings.single_search.load(Ordering::Relaxed) == 0
            && let Some(ptr) = device.search(request)?
        {
            return Ok(Some(ptr));
        }
        device.search_any_block(request)
    }

    /// Gives memory back according to the limits of tags, and serves the request from new memory.
    fn release_by_tags(&self) -> Effect {
        if self.held.is_held_to_max(self.request) {
            // Since the wait, the tag may have more free memory.
            return self.grow(true);
        }
        if self.way == Way::Predict {
            return Ok(self.held.first_by_shares().map(Forecast::Release));
        }
        // Enough bytes may be free in pieces that the device cannot combine. Then more is given
        // back, as long as there is any.
        while self.held.give_by_shares(self.held.growth_bytes(self.request))? > 0 {
            let served = self.grow(true)?;
            if served.is_some() {
                return Ok(served);
            }
        }
        Ok(None)
    }

    /// Releases every free segment, and serves the request from new memory, if the policy releases
    /// the cache.
    fn release_all(&self) -> Effect {
        let device = self.device;
        if device.driver.flags.has(flags::TENANTS) {
            let effect = self.release_by_tags()?;
            // Releasing the whole cache would not help against `max`.
            if effect.is_some() || self.held.is_held_to_max(self.request) {
                return Ok(effect);
            }
        }
        if !device.settings.policy().releases_cache() {
            // No segment goes back, but the pages do that the wait has made spare, or will make
            // spare.
            let pages = device.paging.bytes();
            return if pages.spare + pages.departed > 0 { self.grow(true) } else { Ok(None) };
        }
        match self.way {
            Way::Take => self.held.release_and_retry(|| {
                self.held.stitcher().map_or(Ok(()), |stitcher| stitcher.wait_for_free_pages(self.request))?;
                self.grow(true)
            }),
            Way::Predict => match device.heaps.first_releasable(&device.driver, &device.paging) {
                Some(first) => Ok(Some(Forecast::Release(first))),
                None => self.grow(true),
            },
        }
    }

    /// Gives up the plans, and serves the request from new memory.
    fn give_plans_up(&self) -> Effect {
        let device = self.device;
        if !device.driver.flags.has(flags::PLANNED) || self.held.is_held_to_max(self.request) {
            return Ok(None);
        }
        let released = self.release(
            || device.plan_switch().map_or(Ok(()), |plans| plans.give_up()),
            || device.plans.first_idle(&device.heaps),
        )?;
        if released.is_some() { Ok(released) } else { self.grow(true) }
    }

    /// Pauses and retries until the request is served, the policy's retry time has passed, or the
    /// host refuses to pause. The first pause is [`FIRST_PAUSE_US`], and each later one is twice as
    /// long, up to [`LONGEST_PAUSE_US`].
    fn retry_with_pauses(&self) -> Result<Option<DevicePtr>, Error> {
        let request = self.request;
        let Policy::Bfc(Bfc { retry_ms, .. }) = self.device.settings.policy() else { return Ok(None) };
        if retry_ms == 0 || !self.may_become_free()? {
            return Ok(None);
        }
        // Saturates, so that a huge retry time results in a long wait and not a short one.
        let (mut left, mut pause) = (retry_ms.saturating_mul(1000), FIRST_PAUSE_US);
        while left > 0 && self.device.driver.device().pause(pause.min(left)) {
            left = left.saturating_sub(pause);
            pause = LONGEST_PAUSE_US.min(pause * 2);
            self.device.waiting().process_events()?;
            if self.caches
                && let Some(ptr) = self.device.search(request)?
            {
                return Ok(Some(ptr));
            }
            if self.device.settings.policy().releases_cache() && !self.held.is_held_to_max(request) {
                self.held.release_cached(None)?;
            }
            // Memory is short, so ask for the request's own size instead of a full region.
            let served = if self.device.heaps.source_now(&self.device.driver.flags, request).maps_pages() {
                self.device.grow(request)?
            } else {
                self.device.allocate_segment(request, request.size)?
            };
            if served.is_some() {
                return Ok(served);
            }
        }
        Ok(None)
    }

    /// Returns whether other threads could free the memory for the request: it is within the limit
    /// and the device, and there is something to free.
    fn may_become_free(&self) -> Result<bool, Error> {
        let memory = self.device.ledger.memory_info(&self.device.driver)?;
        let report = self.device.report_of(memory, None);
        Ok(self.request.size <= self.device.ledger.limit().min(memory.total) && report.allocated + report.pending > 0)
    }

    /// Returns how many bytes of new memory a request would need, if `throw_on_cudamalloc_oom` is
    /// set and they would exceed the configured fraction of the device.
    fn rejected(&self) -> Result<Option<u64>, Error> {
        let request = self.request;
        // Not a copy of the configuration, which would cost a twentieth of a cold request.
        let fraction = {
            let config = self.device.settings.config.lock();
            config.throw_on_device_oom().then(|| config.per_process_memory_fraction())
        };
        let Some(fraction) = fraction else { return Ok(None) };
        if self.held.lies_on_host(request) && self.held.would_spill(request)? {
            return Ok(None);
        }
        let total = self.device.ledger.memory_info(&self.device.driver)?.total;
        let allowed = fraction_of(fraction, total);
        // The request takes lent pages before new memory.
        let lent = self.held.lent_bytes(request.capturing)?;
        let room = allowed.saturating_sub(self.device.ledger.reserved().saturating_sub(lent));
        let stitcher = self.device.stitcher();
        let is_stitched = self.device.heaps.source_now(&self.device.driver.flags, request).maps_pages();
        let more = match stitcher.filter(|_| is_stitched) {
            Some(stitcher) => stitcher.bytes_to_obtain(request, room)?,
            None => self.device.segment_bytes(request),
        };
        Ok((more > room).then_some(more))
    }
}

/// Returns the address of the first unit of a rule.
fn first_of(mut rule: impl Iterator<Item = Unit>) -> Option<DevicePtr> {
    rule.next().map(|unit| unit.ptr())
}

impl<P: Platform> OnDevice<'_, P> {
    /// Serves a request for which the heap has no free block, with the steps of the ladder.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] after the last step, [`Error::Rejected`], and errors of the device.
    #[cold]
    pub(super) fn reclaim(self, request: &Request) -> Result<DevicePtr, Error> {
        match self.on_ladder(request, Way::Take)? {
            Some(Forecast::Hit(ptr)) => Ok(ptr),
            _ => Err(self.run_out_of_memory(request, self.holdings().is_held_to_max(request))),
        }
    }

    /// Counts, traces and reports a request that fails because there is no memory, and returns the
    /// error. `is_held` is true if the `max` of the request's tag held the request back.
    fn run_out_of_memory(self, request: &Request, is_held: bool) -> Error {
        self.peaks.device.count(Occurrence::OutOfMemory);
        let tags = self.heaps.tag_shares(&self.driver.flags, request, is_held);
        let report = OutOfMemory { held_to_max: is_held, tags, ..self.out_of_memory(request) };
        self.trace(|recorder| recorder.out_of_memory(request, &report));
        self.driver.device().on_out_of_memory(&report);
        Error::OutOfMemory(report)
    }

    /// Returns the first effect of a request for which the heap has no free block.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub(super) fn forecast_of_reclaim(self, request: &Request) -> Result<Forecast, Error> {
        Ok(self.on_ladder(request, Way::Predict)?.unwrap_or(Forecast::OutOfMemory))
    }

    fn on_ladder(self, request: &Request, way: Way) -> Effect {
        let caches = !self.driver.flags.has(flags::DIRECT);
        Ladder { device: self, held: self.holdings(), request, way, caches }.go()
    }

    /// Waits for segments that other calls are adding to the request's heap, and searches again.
    /// Returns `None` at once if no segment is pending.
    ///
    /// A pending segment is charged against the limit but does not offer a free block yet. Without
    /// this wait a request could fail although memory for it is on the way.
    pub(crate) fn search_after_pending_segments(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let pending = &self.heaps.slot(request.slot).pending_segments;
        if pending.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        // Acquire pairs with the Release in `allocate_segment`. The wait ends, because a call that
        // adds a segment never waits for another request.
        while pending.load(Ordering::Acquire) > 0 {
            self.driver.give_way();
        }
        self.search(request)
    }
}
