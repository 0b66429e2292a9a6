//! When freed memory may be given out again.
//!
//! The driver's `cuMemFree` waits for the device. Ours returns at once, and the block stays pending
//! until all work submitted by the process before the call is complete: on every stream of
//! every context, by every thread.
//!
//! ```text
//! free ─ reads the count n ─▶ pending at n                       allocator.free_at(block, n)
//! settle ─ count becomes n + 1 ─ an event in each context ─▶ batch n
//!        └ the events of batch n are complete ─────────────▶ reached = n, allocator.set_safe_frontier(n)
//! ```
//!
//! A free reads the count before the block becomes pending. The work before the free was submitted
//! earlier still, and the events of batch n are recorded after the count has left n. So the events
//! come after all work before a free at count n. Events are recorded late, when a request finds no
//! free block and more than the slack waits: a batch covers all frees since the last batch.
//!
//! An event of a context breaks every capture of the context. While any capture runs, no event is
//! recorded, and frees stay pending.

use crate::real::Real;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuCaptureMode, CuContext, CuEvent, CuEventFlags};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a wait for frees pauses at first, and at most, between two questions of the driver.
const SHORTEST_PAUSE: Duration = Duration::from_micros(5);
const LONGEST_PAUSE: Duration = Duration::from_micros(200);

/// The waiting frees of a process, and the contexts of the awaited work.
#[derive(Debug)]
pub(super) struct Frees {
    /// Freed bytes of a context that may wait before the driver is asked.
    slack: u64,
    /// The number of the frees made now. Each batch adds 1.
    count: AtomicU64,
    /// The highest number of a free.
    latest: AtomicU64,
    /// All work before the frees up to the number is complete.
    reached: AtomicU64,
    /// Captures running or about to start.
    captures: AtomicUsize,
    /// The contexts and the batches. Held during short calls of the driver, never during a wait:
    /// what a call waits for may be a function of the program, which waits for a thread that makes
    /// a request.
    state: Mutex<Waiting>,
    /// Told when a context is no longer ending or waited for.
    free_contexts: Condvar,
}

/// The contexts and batches of [`Frees`].
#[derive(Default, Debug)]
struct Waiting {
    /// Every known context of the process, but for those of `ending`.
    contexts: Vec<ContextEvents>,
    /// Contexts that a call of the driver may destroy at any moment. Their events are not polled.
    ending: Vec<ContextEvents>,
    /// Contexts that threads wait for without the lock. None of them is destroyed meanwhile.
    waited_for: Vec<CuContext>,
    /// Batches whose events are recorded, the oldest first.
    batches: VecDeque<Batch>,
}

/// A context, and unused events of the context.
#[derive(Debug)]
struct ContextEvents {
    context: CuContext,
    spare: Vec<CuEvent>,
}

/// Frees with common events.
#[derive(Debug)]
struct Batch {
    /// The number of the frees.
    count: u64,
    /// An event after the work of each context. Events found complete are removed. A null event
    /// stands for a context that was ending.
    events: Vec<(CuContext, CuEvent)>,
}

/// The result of a wait for the oldest frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waited {
    /// More frees are complete than before.
    Advanced,
    /// No free waits, or a capture keeps the frees from being waited for.
    Nothing,
}

impl Frees {
    /// Returns the frees of a process without contexts.
    pub(super) fn new(slack: u64) -> Self {
        Self {
            slack,
            count: AtomicU64::new(1),
            latest: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            captures: AtomicUsize::new(0),
            state: Mutex::default(),
            free_contexts: Condvar::new(),
        }
    }

    /// Returns the freed bytes of a context that may wait before the driver is asked.
    pub(super) fn slack(&self) -> u64 {
        self.slack
    }

    /// Returns the number for a free made now. Calls no driver, takes no lock.
    #[inline]
    pub(super) fn number(&self) -> u64 {
        let count = self.count.load(Ordering::SeqCst);
        // The load first: the word then stays shared between the caches of threads that free.
        if self.latest.load(Ordering::Relaxed) < count {
            self.latest.fetch_max(count, Ordering::SeqCst);
        }
        count
    }

    /// Returns the number up to which all frees are complete, as far as known. Calls no driver.
    #[inline]
    pub(super) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Notes a context whose work later frees wait for. Waits while a call may destroy a context
    /// with the handle: the driver may use the handle again before the call returns.
    pub(super) fn add_context(&self, context: CuContext) {
        let mut state = self.lock_when(|state| state.ending.iter().all(|ending| ending.context != context));
        if !context.is_null() && state.contexts.iter().all(|known| known.context != context) {
            state.contexts.push(ContextEvents { context, spare: Vec::new() });
        }
    }

    /// Makes `call`, which may destroy `context`. If `gone` tells so from the answer, `forget` is
    /// called before any thread learns of a later context with the handle, and must not call the
    /// driver.
    ///
    /// The work of a destroyed context is over, and the events have gone with the context. `call`
    /// may wait for work, so it is made without the lock.
    pub(super) fn end_context<T>(
        &self,
        context: CuContext,
        call: impl FnOnce() -> T,
        gone: impl FnOnce(&T) -> bool,
        forget: impl FnOnce(),
    ) -> T {
        let mut state = self.lock_when(|state| !state.waited_for.contains(&context));
        let at = state.contexts.iter().position(|known| known.context == context);
        let events = at.map(|at| state.contexts.swap_remove(at));
        let is_known = events.is_some();
        state.ending.push(events.unwrap_or(ContextEvents { context, spare: Vec::new() }));
        drop(state);
        let answer = call();
        let mut state = self.lock();
        let at = state.ending.iter().position(|ending| ending.context == context);
        let events = at.map(|at| state.ending.swap_remove(at));
        if gone(&answer) {
            forget();
            for batch in &mut state.batches {
                batch.events.retain(|(of, _)| *of != context);
            }
        } else {
            state.contexts.extend(events.filter(|_| is_known));
            self.drop_batches_without_event(&mut state, context);
        }
        drop(state);
        self.free_contexts.notify_all();
        answer
    }

    /// Drops the batches that have no event of a context, which lives on. The next batch covers
    /// their frees.
    fn drop_batches_without_event(&self, state: &mut Waiting, context: CuContext) {
        let Waiting { contexts, batches, .. } = state;
        let whole = |batch: &Batch| !batch.events.contains(&(context, CuEvent::NULL));
        if batches.iter().all(whole) {
            return;
        }
        let (kept, dropped) = batches.drain(..).partition::<VecDeque<_>, _>(whole);
        *batches = kept;
        dropped.into_iter().for_each(|batch| keep_events(contexts, batch.events));
        self.latest.fetch_max(self.count.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Announces a capture before it starts. No event of a context is recorded from the return
    /// on until [`capture_ended`](Self::capture_ended).
    pub(super) fn capture_begins(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
        // A thread that saw no capture may be recording an event: it holds the lock.
        drop(self.lock());
    }

    /// Takes back a call of [`capture_begins`](Self::capture_begins).
    pub(super) fn capture_ended(&self) {
        self.captures.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether a capture runs, or is about to start. Takes no lock.
    #[inline]
    pub(super) fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::SeqCst) != 0
    }

    /// Asks which frees are complete, and has events recorded for the frees without an event.
    /// Waits only with a driver without events of contexts (before 12.5), as the driver's own free
    /// does. Returns the number up to which all frees are complete.
    pub(super) fn settle(&self, real: &Real) -> u64 {
        let _relaxed = Relaxed::enter(real);
        let mut state = self.lock();
        let _ = self.poll(real, &mut state);
        if self.latest.load(Ordering::SeqCst) < self.count.load(Ordering::SeqCst) || self.is_capturing() {
            return self.reached();
        }
        if real.ctx_record_event.is_none() {
            return self.wait_for_contexts(real, state);
        }
        let count = self.count.fetch_add(1, Ordering::SeqCst);
        match record(real, &mut state) {
            Some(events) => {
                state.batches.push_back(Batch { count, events });
                // An idle device has nothing before the events.
                let _ = self.poll(real, &mut state);
            }
            // The next batch covers these frees as well.
            None => drop(self.latest.fetch_max(count + 1, Ordering::SeqCst)),
        }
        self.reached()
    }

    /// Waits until more frees are complete.
    pub(super) fn wait(&self, real: &Real) -> Waited {
        let before = self.reached();
        if self.settle(real) > before {
            return Waited::Advanced;
        }
        let _relaxed = Relaxed::enter(real);
        let mut pause = SHORTEST_PAUSE;
        loop {
            // The driver is asked under the lock, and never waits for an event: the program may
            // destroy the event's context, which is no context of the calling thread.
            let mut state = self.lock();
            let answer = self.poll(real, &mut state);
            if self.reached() > before {
                return Waited::Advanced;
            }
            if answer != CuResult::NOT_READY {
                return Waited::Nothing;
            }
            drop(state);
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Takes the complete batches out, the oldest first. Returns the driver's answer about the
    /// event that the oldest of the other batches waits for, and success if no batch is left.
    fn poll(&self, real: &Real, state: &mut Waiting) -> CuResult {
        let Waiting { contexts, ending, batches, .. } = state;
        while let Some(batch) = batches.front_mut() {
            while let Some(&(context, event)) = batch.events.last() {
                if ending.iter().any(|ending| ending.context == context) {
                    return CuResult::NOT_READY;
                }
                // SAFETY: takes no host pointers. The event is one of this module's, of a context
                // that the program has not destroyed.
                let code = unsafe { real.event_query(event) };
                // An error of the call itself tells nothing about the work.
                if !code.is_success() && !is_over(code) && code != CuResult::INVALID_HANDLE {
                    return code;
                }
                batch.events.pop();
                // The event of a failed context is not used again.
                if code.is_success()
                    && let Some(known) = contexts.iter_mut().find(|known| known.context == context)
                {
                    known.spare.push(event);
                }
            }
            self.reached.fetch_max(batch.count, Ordering::AcqRel);
            batches.pop_front();
        }
        CuResult::SUCCESS
    }

    /// Waits for the work of every context, for a driver without events of contexts.
    fn wait_for_contexts(&self, real: &Real, state: MutexGuard<'_, Waiting>) -> u64 {
        let count = self.count.fetch_add(1, Ordering::SeqCst);
        drop(state);
        // The work of a context that is ending is over when its call returns.
        let mut state = self.lock_when(|state| state.ending.is_empty());
        let contexts: Vec<_> = state.contexts.iter().map(|known| known.context).collect();
        state.waited_for.extend(&contexts);
        drop(state);
        let mut complete = true;
        for &context in &contexts {
            let code = in_context(real, context, || {
                // SAFETY: takes nothing.
                unsafe { real.ctx_synchronize() }
            });
            complete &= code.is_success() || is_over(code);
        }
        let mut state = self.lock();
        for context in contexts {
            // Several threads may wait for a context.
            if let Some(at) = state.waited_for.iter().position(|&waited_for| waited_for == context) {
                state.waited_for.swap_remove(at);
            }
        }
        drop(state);
        self.free_contexts.notify_all();
        if complete {
            self.reached.fetch_max(count, Ordering::AcqRel);
        } else {
            // The next wait covers these frees as well.
            self.latest.fetch_max(count + 1, Ordering::SeqCst);
        }
        self.reached()
    }

    /// Locks the contexts and the batches.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic inside leaves at worst an event that is never used again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the contexts and the batches when `is_so` is true of them.
    fn lock_when(&self, is_so: impl Fn(&Waiting) -> bool) -> MutexGuard<'_, Waiting> {
        let state = self.lock();
        self.free_contexts.wait_while(state, |state| !is_so(state)).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records an event after the work of each context. `None` if a context with work refused the
/// event.
fn record(real: &Real, state: &mut Waiting) -> Option<Vec<(CuContext, CuEvent)>> {
    let Waiting { contexts, ending, .. } = state;
    let mut events: Vec<_> = ending.iter().map(|ending| (ending.context, CuEvent::NULL)).collect();
    let mut complete = true;
    for known in &mut *contexts {
        let event = match known.spare.pop().map_or_else(|| create(real, known.context), Ok) {
            Ok(event) => event,
            Err(code) => {
                complete &= is_over(code);
                continue;
            }
        };
        // SAFETY: takes no host pointers; the event was created in the context.
        let code = unsafe { real.ctx_record_event(known.context, event) };
        if code.is_success() {
            events.push((known.context, event));
        } else if !is_over(code) {
            // An event without its context's state is no event any longer.
            if code != CuResult::INVALID_HANDLE {
                known.spare.push(event);
            }
            complete = false;
        }
    }
    if complete {
        return Some(events);
    }
    keep_events(contexts, events);
    None
}

/// Keeps events of a batch that is none for later batches. An event already recorded is queried
/// before it is recorded again: it waits in no batch.
fn keep_events(contexts: &mut [ContextEvents], events: Vec<(CuContext, CuEvent)>) {
    for (context, event) in events.into_iter().filter(|(_, event)| *event != CuEvent::NULL) {
        if let Some(known) = contexts.iter_mut().find(|known| known.context == context) {
            known.spare.push(event);
        }
    }
}

/// Returns whether an answer says that a context has failed or is destroyed: nothing runs there any
/// longer.
fn is_over(code: CuResult) -> bool {
    code.is_sticky() || code == CuResult::INVALID_CONTEXT
}

/// Creates an event in a context.
///
/// # Errors
/// The driver's code.
fn create(real: &Real, context: CuContext) -> Result<CuEvent, CuResult> {
    let mut event = CuEvent::NULL;
    let code = in_context(real, context, || {
        // SAFETY: `event` outlives the call, which writes one handle to it.
        unsafe { real.event_create(&raw mut event, CuEventFlags::DISABLE_TIMING) }
    });
    if code.is_success() { Ok(event) } else { Err(code) }
}

/// Makes a call with `context` current, and makes the thread's own context current again.
pub(super) fn in_context(real: &Real, context: CuContext, call: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: takes a handle. A context that the program has destroyed is answered with an error.
    let pushed = unsafe { real.ctx_push_current(context) };
    if !pushed.is_success() {
        return pushed;
    }
    let code = call();
    let mut popped = CuContext::NULL;
    // SAFETY: `popped` outlives the call. The topmost context is the one pushed above.
    let _ = unsafe { real.ctx_pop_current(&raw mut popped) };
    code
}

/// Period in which the calling thread's capture mode is relaxed, so that a question after an event
/// breaks no capture.
pub(super) struct Relaxed<'a> {
    real: &'a Real,
    /// The mode to restore.
    mode: CuCaptureMode,
}

impl<'a> Relaxed<'a> {
    /// Makes the mode relaxed until the value is dropped.
    pub(super) fn enter(real: &'a Real) -> Self {
        let mut mode = CuCaptureMode::RELAXED;
        // SAFETY: `mode` outlives the call, which swaps it with the calling thread's. A driver
        // without the call leaves it relaxed.
        let _ = unsafe { real.thread_exchange_stream_capture_mode(&raw mut mode) };
        Self { real, mode }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if self.mode != CuCaptureMode::RELAXED {
            // SAFETY: `mode` outlives the call.
            let _ = unsafe { self.real.thread_exchange_stream_capture_mode(&raw mut self.mode) };
        }
    }
}
