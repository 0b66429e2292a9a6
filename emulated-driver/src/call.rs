//! One driver call from entry to answer: latches, fault plan, context, capture, the body, the log.

use crate::capture;
use crate::code::{Answer, Code};
use crate::context;
use crate::driver::{Driver, State, driver};
use crate::functions::{Function, InCapture, Requires};
use crate::log::Entry;
use crate::stream;
use crate::sync::Guard;
use crate::{latch, thread};
use std::time::Duration;

/// A call under way: the state, locked, and who calls.
pub(crate) struct Call {
    /// Everything, for this thread alone.
    pub(crate) state: Guard<'static, State>,
    /// The driver, for its condition.
    pub(crate) driver: &'static Driver,
    /// The context current to the calling thread when it called; 0 for none.
    pub(crate) context: u64,
    /// What the call hands out, for the log.
    pub(crate) out: Option<u64>,
    /// What the call made and its caller is to give back.
    made: Option<(&'static str, u64)>,
}

impl Call {
    /// The state for something that is no driver call: a control function, work that breaks its context.
    pub(crate) fn open() -> Self {
        let driver = driver();
        let context = thread::current();
        Self { state: driver.state.lock(), driver, context, out: None, made: None }
    }

    /// Notes what the call made: an object that leaks if the caller never hears of it.
    pub(crate) fn made(&mut self, kind: &'static str, handle: u64) {
        self.out = Some(handle);
        self.made = Some((kind, handle));
    }

    /// Lets other threads go on until `done`. In step mode the calling thread runs the work itself.
    pub(crate) fn wait(&mut self, done: impl Fn(&State) -> bool) {
        while !done(&self.state) {
            if !(self.state.config.step && stream::step(self)) {
                self.driver.progress.wait(&mut self.state);
            }
        }
    }

    /// Tells everybody that something changed that they may wait for.
    pub(crate) fn changed(&self) {
        self.driver.progress.notify_all();
    }

    /// In step mode, lets a few pieces of work run: a driver call is where time passes.
    fn pass_time(&mut self) {
        if self.state.config.step {
            for _ in 0..self.state.random.below(3) {
                stream::step(self);
            }
        }
    }

    /// What must be so before `function` acts.
    fn admit(&mut self, function: Function) -> Answer<()> {
        let required = function.requires();
        if required != Requires::Nothing && !latch::is_ready() {
            return Err(Code::NOT_INITIALIZED);
        }
        if required == Requires::Context {
            if self.context == 0 {
                return Err(Code::INVALID_CONTEXT);
            }
            context::check(&self.state, self.context)?;
        }
        if function.in_capture() == InCapture::Unsafe {
            capture::check_unsafe(&mut self.state)?;
        }
        Ok(())
    }
}

/// Makes a call of `function`: `body` acts and answers, `write` hands the answer out, which happens only if the call
/// succeeds in the caller's eyes. Returns the code for the caller.
pub(crate) fn make<T>(
    function: Function,
    args: &[u64],
    body: impl FnOnce(&mut Call) -> Answer<T>,
    write: impl FnOnce(T),
) -> u32 {
    if let Some(code) = latch::refusal() {
        return code.0;
    }
    if thread::in_host_function() && function.requires() != Requires::Nothing {
        return Code::NOT_PERMITTED.0;
    }
    thread::set_calling(function);
    let mut call = Call::open();
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
            (Ok(_) | Err(Code::NOT_READY), Some(code)) => {
                let made = call.made;
                call.state.abandoned.extend(made);
                Err(code)
            }
            (outcome, _) => outcome,
        }
    };
    let result = match outcome {
        Ok(value) => {
            write(value);
            Code::SUCCESS
        }
        Err(code) => code,
    };
    let out = call.out.filter(|_| result == Code::SUCCESS);
    let entry = Entry { number, function, args: args.to_vec(), out, thread: thread::number(), context, result };
    call.state.log.add(entry);
    result.0
}

/// Sleeps with the lock given up: a slow driver call does not stop the others.
fn pause(call: &mut Call, delay_us: u64) {
    if delay_us > 0 {
        call.state.unlocked(|| std::thread::sleep(Duration::from_micros(delay_us)));
    }
}
