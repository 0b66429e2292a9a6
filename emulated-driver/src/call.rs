//! Runs one driver call from entry to answer: latches, fault plan, context, capture, the body, the
//! log.

use crate::process::sync::Guard;
use crate::process::{latch, thread};
use crate::state::driver::{Driver, State, driver};
use crate::state::{captures, contexts, queues, threads};
use crate::tables::log::Entry;
use crate::values::code::{Answer, Code};
use crate::values::functions::{Function, InCapture, Requires};
use crate::values::pointers::Out;
use std::time::Duration;

/// `CU_STREAM_PER_THREAD`.
const OWN_STREAM: u64 = 2;

/// A driver call in progress: the locked state, and the caller.
pub(crate) struct Call {
    /// The locked state of the driver.
    pub(crate) state: Guard<'static, State>,
    /// The driver, with the condition for waits.
    pub(crate) driver: &'static Driver,
    /// The calling thread's current context, or 0.
    pub(crate) context: u64,
    /// The result of the call, for the log.
    pub(crate) out: Option<u64>,
    /// Whether stream 0 is the calling thread's own stream.
    per_thread: bool,
    /// The functions that write the results, once the call is a success.
    results: Vec<Box<dyn FnOnce()>>,
    /// Kind and handle of an object created by the call, to be released by the caller.
    made: Option<(&'static str, u64)>,
}

impl Call {
    /// Locks the state for work outside a driver call: a control function, or work that breaks a
    /// context.
    pub(crate) fn open() -> Self {
        let driver = driver();
        let context = thread::current();
        let (per_thread, results) = (false, Vec::new());
        Self { state: driver.state.lock(), driver, context, out: None, per_thread, results, made: None }
    }

    /// Leaves a result for the caller.
    pub(crate) fn give<T: 'static>(&mut self, out: Out<T>, value: T) {
        self.later(move || out.write(value));
    }

    /// Leaves an action for the moment at which the call is a success.
    pub(crate) fn later(&mut self, action: impl FnOnce() + 'static) {
        self.results.push(Box::new(action));
    }

    /// Acts, and leaves the value for the caller. Refuses null before acting.
    pub(crate) fn answer<T: 'static>(&mut self, out: Out<T>, act: impl FnOnce(&mut Self) -> Answer<T>) -> Answer<()> {
        out.check()?;
        let value = act(self)?;
        self.give(out, value);
        Ok(())
    }

    /// Returns the queue of a `CUstream`.
    pub(crate) fn queue(&mut self, stream: u64) -> Answer<u64> {
        let stream = if stream == 0 && self.per_thread { OWN_STREAM } else { stream };
        queues::find(&mut self.state, stream, self.context)
    }

    /// Records an object created by the call. The object leaks if the caller never receives the
    /// handle.
    pub(crate) fn made(&mut self, kind: &'static str, handle: u64) {
        self.out = Some(handle);
        self.made = Some((kind, handle));
    }

    /// Lets other threads run until `done`. In step mode the calling thread runs the work.
    pub(crate) fn wait(&mut self, done: impl Fn(&State) -> bool) {
        while !done(&self.state) {
            if self.state.config.step {
                if threads::step(&mut self.state) {
                    continue;
                }
                if self.state.streams.queues.values().any(|queue| self.state.streams.watches(queue)) {
                    self.state.unlocked(|| std::thread::sleep(threads::PAUSE));
                    continue;
                }
            }
            self.driver.progress.wait(&mut self.state);
        }
    }

    /// Waits for the work queued so far in a context, unless frees do not wait.
    pub(crate) fn wait_for_work_of(&mut self, context: u64) {
        if self.state.config.free_waits {
            let marks = contexts::ends(&self.state, context);
            self.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
        }
    }

    /// Wakes all waiting threads after a change of the state.
    pub(crate) fn changed(&self) {
        self.driver.progress.notify_all();
    }

    /// In step mode, runs a few pieces of work, so that time passes during driver calls.
    fn pass_time(&mut self) {
        if self.state.config.step {
            for _ in 0..self.state.random.below(3) {
                threads::step(&mut self.state);
            }
        }
    }

    /// Checks the conditions for a call of `function`.
    fn admit(&mut self, function: Function) -> Answer<()> {
        let required = function.requires();
        if required != Requires::Nothing && !latch::is_ready() {
            return Err(Code::NOT_INITIALIZED);
        }
        if required == Requires::Context {
            if self.context == 0 {
                return Err(Code::INVALID_CONTEXT);
            }
            contexts::check(&self.state, self.context)?;
        }
        if function.in_capture() == InCapture::Unsafe {
            captures::check_unsafe(&mut self.state)?;
        }
        Ok(())
    }
}

/// Makes a call of `function`. `body` acts, answers, and leaves the results for the caller, who
/// gets them only with a success. Returns the code for the caller.
pub(crate) fn make(function: Function, args: &[u64], body: impl FnOnce(&mut Call) -> Answer<()>) -> u32 {
    if let Some(code) = latch::refusal() {
        return code.0;
    }
    if thread::in_host_function() && function.requires() != Requires::Nothing {
        return Code::NOT_PERMITTED.0;
    }
    thread::set_calling(function);
    let mut call = Call::open();
    call.per_thread = function.is_per_thread();
    let state = &mut *call.state;
    let number = state.log.begin(function);
    let verdict = state.plan.judge(function, &mut state.random);
    pause(&mut call, verdict.delay_before_us);
    let context = call.context;
    let outcome = if let Some(code) = verdict.before {
        Err(code)
    } else {
        call.pass_time();
        let outcome = call.admit(function).and_then(|()| body(&mut call));
        pause(&mut call, verdict.delay_after_us);
        match (outcome, verdict.after) {
            (Ok(()) | Err(Code::NOT_READY), Some(code)) => {
                let made = call.made;
                call.state.abandoned.extend(made);
                Err(code)
            }
            (outcome, _) => outcome,
        }
    };
    let result = match outcome {
        Ok(()) => {
            call.results.drain(..).for_each(|write| write());
            Code::SUCCESS
        }
        Err(code) => code,
    };
    let out = call.out.filter(|_| result == Code::SUCCESS);
    let entry = Entry { number, function, args: args.to_vec(), out, thread: thread::number(), context, result };
    call.state.log.add(entry);
    result.0
}

/// Sleeps without the lock, so that a slow driver call does not stop other calls.
fn pause(call: &mut Call, delay_us: u64) {
    if delay_us > 0 {
        call.state.unlocked(|| std::thread::sleep(Duration::from_micros(delay_us)));
    }
}
