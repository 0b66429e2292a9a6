//! The threads of the streams.
//!
//! A thread starts with the first work of the queue and ends with the queue or with the process.
//! The exit handler ends all idle threads and waits for their end, so that a leak checker finds no
//! memory of threads. A thread in the middle of a piece of work is left alone, because the work may
//! never end.
//!
//! In step mode no stream has a thread: the thread of a driver call runs the work.

use super::driver::{Driver, State, driver};
use super::{queues, run};
use crate::process::sync::{Condition, Guard};
use crate::tables::stream::{Item, Mark, Workers};
use crate::tables::work::{Task, Work};
use crate::values::code::{Answer, Code};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// How long a thread pauses before the next look at memory that a stream waits for.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);

/// The next step of a queue's thread.
enum Next {
    /// Do the tasks of a context's stream, after a delay in microseconds.
    Run(Vec<Task>, u64, u64),
    Wait(Arc<Condition>),
    /// Look at memory again after a pause: no event marks a change of memory.
    Look,
    End,
}

/// Queues work, after the marks in `after` and the marks implied by the kind of stream. A wait for
/// memory becomes its own piece, so that no thread waits inside a piece.
pub(crate) fn push(state: &mut State, number: u64, work: Work, mut after: Vec<Mark>) -> Answer<()> {
    if let Some(pieces) = work.pieces_with_a_wait() {
        let mut after = Some(after);
        return pieces
            .iter()
            .try_for_each(|piece| push(state, number, piece.clone(), after.take().unwrap_or_default()));
    }
    let step = state.config.step;
    after.extend(state.streams.implied(number));
    let context = state.streams.queue(number)?.context;
    if let Some(context) = state.contexts.get_mut(&context) {
        context.after.retain(|&mark| !state.streams.reached(mark));
        after.extend(&context.after);
    }
    let queue = state.streams.queue_mut(number)?;
    queue.items.push_back(Item { work, after });
    queue.issued += 1;
    if step {
        return Ok(());
    }
    if queue.has_thread {
        queue.wake.notify_all();
        return Ok(());
    }
    queue.has_thread = true;
    start(&mut state.streams.workers, number)
}

/// In step mode, runs one ready piece of work, chosen by the seed, on the calling thread. Returns
/// false without ready work.
pub(crate) fn step(state: &mut Guard<'_, State>) -> bool {
    let ready = state.streams.ready();
    let choice = state.random.below(ready.len() as u64) as usize;
    let Some(&number) = ready.get(choice) else { return false };
    let (tasks, context) = queues::start(state, number);
    state.unlocked(|| run::run(tasks, context));
    queues::finish(state, number);
    driver().progress.notify_all();
    true
}

/// Ends the idle threads, and waits for their end.
pub(crate) fn end_all(driver: &Driver) {
    let mut state = driver.state.lock();
    state.streams.workers.ending = true;
    let threads = std::mem::take(&mut state.streams.workers.threads);
    let busy = |number: &u64| state.streams.queues.get(number).is_some_and(|queue| queue.running);
    let idle: Vec<libc::pthread_t> =
        threads.iter().filter(|(number, _)| !busy(number)).map(|(_, &thread)| thread).collect();
    for queue in state.streams.queues.values() {
        queue.wake.notify_all();
    }
    drop(state);
    idle.into_iter().for_each(wait_for);
}

/// Starts a queue's thread.
fn start(workers: &mut Workers, queue: u64) -> Answer<()> {
    for ended in std::mem::take(&mut workers.ended) {
        if let Some(thread) = workers.threads.remove(&ended) {
            wait_for(thread);
        }
    }
    let mut thread = 0;
    // SAFETY: the thread's argument is a number, and the handle is valid for writing.
    let code = unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), begin, queue as *mut c_void) };
    if code != 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    workers.threads.insert(queue, thread);
    Ok(())
}

/// Waits for the end of a thread that is about to end.
fn wait_for(thread: libc::pthread_t) {
    // SAFETY: every handle comes from pthread_create and is removed from the table before the
    // join.
    unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
}

/// Entry point of a stream's thread.
extern "C" fn begin(queue: *mut c_void) -> *mut c_void {
    serve(queue as u64);
    std::ptr::null_mut()
}

/// Runs the items of a queue on the queue's thread.
fn serve(number: u64) {
    let driver = driver();
    let mut state = driver.state.lock();
    loop {
        match next(&mut state, number) {
            Next::Run(tasks, context, delay_us) => {
                state.unlocked(|| {
                    if delay_us > 0 {
                        std::thread::sleep(Duration::from_micros(delay_us));
                    }
                    run::run(tasks, context);
                });
                queues::finish(&mut state, number);
                driver.progress.notify_all();
            }
            Next::Wait(wake) => wake.wait(&mut state),
            Next::Look => state.unlocked(|| std::thread::sleep(PAUSE)),
            Next::End => {
                state.streams.workers.ended.push(number);
                return;
            }
        }
    }
}

/// Takes the next item of a queue, if ready.
fn next(state: &mut State, number: u64) -> Next {
    if state.streams.workers.ending {
        return Next::End;
    }
    let Some(queue) = state.streams.queues.get(&number) else { return Next::End };
    if queue.is_over() {
        state.streams.queues.remove(&number);
        return Next::End;
    }
    match state.streams.next_of(queue) {
        None => return Next::Wait(Arc::clone(&queue.wake)),
        Some(item) if !item.work.is_due() => return Next::Look,
        Some(_) => {}
    }
    let delay_us = state.random.below(state.config.delay_us + 1);
    let (tasks, context) = queues::start(state, number);
    Next::Run(tasks, context, delay_us)
}
