//! Threads in turn: coroutines on one thread of the system. A seed chooses whose turn is next.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fastrand::Rng;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of the stack of each thread. A build without optimisation needs deep stacks.
const STACK_BYTES: usize = 1 << 20;

/// A thread's reason to give its turn up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    /// Another thread may go on first.
    Passed,
    /// The lock at the address is taken.
    Waits(usize),
}

/// The thread whose turn it is.
#[derive(Clone, Copy)]
struct Running {
    number: u32,
    yielder: *const Yielder<(), Stop>,
}

/// The choice of turns.
struct Choice {
    rng: Rng,
    /// The mean number of offers for a turn passed.
    period: u32,
    /// A number over all turns so far. Equal worlds have equal numbers.
    digest: u64,
    /// The locks released since the last turn.
    released: Vec<usize>,
    /// Whether all threads except for the background have returned.
    is_ending: bool,
}

thread_local! {
    static RUNNING: Cell<Option<Running>> = const { Cell::new(None) };
    static CHOICE: RefCell<Option<Choice>> = const { RefCell::new(None) };
    static IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// The end of a run in which not all threads have returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Halt {
    /// Every thread waits for a lock: the number of each thread, and the address of its lock.
    Deadlock(Vec<(u32, usize)>),
    /// A thread has panicked: the number of the thread, and the message.
    Panic(u32, String),
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock(waiting) => write!(f, "every thread waits for a lock: (thread, lock) {waiting:x?}"),
            Self::Panic(number, message) => write!(f, "thread {number} has panicked: {message}"),
        }
    }
}

/// The body of a thread.
pub type Body = Box<dyn FnOnce()>;

/// Returns the number of the running thread, `None` outside of [`run`].
#[must_use]
pub fn number() -> Option<u32> {
    RUNNING.get().map(|running| running.number)
}

/// Sets whether the calls of the worlds are written to the standard error.
pub fn tell_calls(on: bool) {
    IS_TOLD.set(on);
}

/// Writes what the running thread does, if the calls are told.
pub(crate) fn tell(what: impl FnOnce() -> String) {
    if IS_TOLD.get() {
        let who = number().map_or_else(|| "-".to_owned(), |number| number.to_string());
        eprintln!("{who}: {}", what());
    }
}

/// Returns whether all threads except for the background have returned. The background then returns
/// too.
#[must_use]
pub fn is_ending() -> bool {
    CHOICE.with_borrow(|choice| choice.as_ref().is_none_or(|choice| choice.is_ending))
}

/// Offers the turn to all threads. The seed decides whether another thread goes on first.
pub fn offer() {
    let passes =
        CHOICE.with_borrow_mut(|choice| choice.as_mut().is_some_and(|choice| choice.rng.u32(0..choice.period) == 0));
    if passes {
        stop(Stop::Passed);
    }
}

/// Gives the turn up. The seed may choose the thread again.
pub fn pass() {
    stop(Stop::Passed);
}

/// Gives the turn up until the lock at `address` is released.
///
/// # Panics
/// Outside of [`run`], where no thread can release the lock.
pub(crate) fn wait_for(address: usize) {
    assert!(number().is_some(), "a lock is taken where no thread runs");
    stop(Stop::Waits(address));
}

/// Lets the threads in front of the lock at `address` go on.
pub(crate) fn release(address: usize) {
    CHOICE.with_borrow_mut(|choice| choice.iter_mut().for_each(|choice| choice.released.push(address)));
}

fn stop(why: Stop) {
    let Some(running) = RUNNING.get() else { return };
    // SAFETY: `run` sets the value before it resumes the coroutine with this yielder, and only code
    // on the coroutine's stack, below which the yielder lives, runs until the coroutine stops.
    unsafe { &*running.yielder }.suspend(why);
}

/// Runs threads in turn until all have returned. Threads of `background` return once [`is_ending`]
/// answers true. Returns a number over all turns: equal seeds and threads have equal numbers.
///
/// # Errors
/// Why not all threads have returned. The stacks of such threads stay as they are, with all that
/// lies on them.
pub fn run(seed: u64, period: u32, threads: Vec<Body>, background: Vec<Body>) -> Result<u64, Halt> {
    let foreground = threads.len();
    let mut lines: Vec<Line> = threads.into_iter().chain(background).enumerate().map(Line::new).collect();
    let choice = Choice { rng: Rng::with_seed(seed), period, digest: seed, released: Vec::new(), is_ending: false };
    CHOICE.set(Some(choice));
    let halted = turns(&mut lines, foreground);
    let digest = CHOICE.take().map_or(0, |choice| choice.digest);
    match halted {
        None => Ok(digest),
        Some(halt) => {
            std::mem::forget(lines);
            Err(halt)
        }
    }
}

/// Gives turns until all threads have returned. Returns why they have not.
fn turns(lines: &mut [Line], foreground: usize) -> Option<Halt> {
    loop {
        let ready: Vec<usize> = (0..lines.len()).filter(|&line| lines[line].is_ready()).collect();
        let is_ending = lines[..foreground].iter().all(|line| line.coroutine.done());
        if is_ending && ready.is_empty() {
            return None;
        }
        if !is_ending && ready.iter().all(|&line| line >= foreground) {
            let waits = |line: &Line| line.waits.map(|lock| (line.number, lock));
            return Some(Halt::Deadlock(lines.iter().filter_map(waits).collect()));
        }
        let next = CHOICE.with_borrow_mut(|choice| {
            let choice = choice.as_mut().expect("the choice of this run");
            choice.is_ending = is_ending;
            let next = ready[choice.rng.usize(0..ready.len())];
            choice.digest = (choice.digest ^ next as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            next
        });
        if let Err(halt) = lines[next].turn() {
            return Some(halt);
        }
        let released =
            CHOICE.with_borrow_mut(|choice| choice.as_mut().map(|choice| std::mem::take(&mut choice.released)));
        for lock in released.into_iter().flatten() {
            lines.iter_mut().filter(|line| line.waits == Some(lock)).for_each(|line| line.waits = None);
        }
    }
}

/// A thread.
struct Line {
    coroutine: Coroutine<(), Stop, ()>,
    number: u32,
    /// The value of [`RUNNING`] during the turns of the thread. `None` before the first turn.
    running: Option<Running>,
    /// The lock for which the thread waits.
    waits: Option<usize>,
}

impl Line {
    fn new((number, body): (usize, Body)) -> Self {
        let number = number as u32;
        let stack = DefaultStack::new(STACK_BYTES).expect("the stack of a coroutine");
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Stop>, ()| {
            RUNNING.set(Some(Running { number, yielder }));
            body();
        });
        Self { coroutine, number, running: None, waits: None }
    }

    fn is_ready(&self) -> bool {
        self.waits.is_none() && !self.coroutine.done()
    }

    /// Gives the thread a turn.
    ///
    /// # Errors
    /// [`Halt::Panic`].
    fn turn(&mut self) -> Result<(), Halt> {
        RUNNING.set(self.running);
        let turn = catch_unwind(AssertUnwindSafe(|| self.coroutine.resume(())));
        self.running = RUNNING.take();
        match turn {
            Ok(CoroutineResult::Yield(Stop::Waits(lock))) => self.waits = Some(lock),
            Ok(CoroutineResult::Yield(Stop::Passed) | CoroutineResult::Return(())) => {}
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                return Err(Halt::Panic(self.number, text.unwrap_or_default()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latch::Latch;
    use lock_api::Mutex;
    use std::rc::Rc;

    /// Threads that write their numbers, and offer the turn between two of them.
    fn written(seed: u64) -> (u64, Vec<u32>) {
        let all = Rc::new(RefCell::new(Vec::new()));
        let body = |number: u32| -> Body {
            let all = Rc::clone(&all);
            Box::new(move || {
                for _ in 0..8 {
                    all.borrow_mut().push(number);
                    offer();
                }
            })
        };
        let digest = run(seed, 2, (0..3).map(body).collect(), Vec::new()).expect("no thread waits");
        (digest, all.take())
    }

    #[test]
    fn equal_seeds_have_equal_turns() {
        assert_eq!(written(7), written(7));
        let orders: std::collections::BTreeSet<_> = (0..64).map(|seed| written(seed).1).collect();
        assert!(orders.len() > 60, "{} orders of 64 seeds", orders.len());
        assert_eq!(number(), None);
    }

    #[test]
    fn a_lock_is_held_by_one_thread_and_passed_on() {
        let shared = Rc::new(Mutex::<Latch, u32>::new(0));
        let body = |_| -> Body {
            let shared = Rc::clone(&shared);
            Box::new(move || {
                for _ in 0..100 {
                    let mut guard = shared.lock();
                    let before = *guard;
                    pass();
                    *guard = before + 1;
                }
            })
        };
        run(3, 2, (0..4).map(body).collect(), Vec::new()).expect("each lock is released");
        assert_eq!(*shared.lock(), 400);
    }

    #[test]
    fn a_deadlock_names_the_threads_and_a_panic_the_message() {
        let locks = Rc::new([Mutex::<Latch, ()>::new(()), Mutex::new(())]);
        let body = |first: usize| -> Body {
            let locks = Rc::clone(&locks);
            Box::new(move || {
                let _first = locks[first].lock();
                pass();
                let _second = locks[1 - first].lock();
            })
        };
        let halted = (0..100).find_map(|seed| run(seed, 2, vec![body(0), body(1)], Vec::new()).err());
        assert!(matches!(&halted, Some(Halt::Deadlock(waiting)) if waiting.len() == 2), "{halted:?}");
        let panics: Body = Box::new(|| panic!("on purpose"));
        assert_eq!(run(0, 2, vec![panics], Vec::new()), Err(Halt::Panic(0, "on purpose".into())));
    }

    #[test]
    fn the_background_ends_after_all_others() {
        let turns = Rc::new(Cell::new(0));
        let (of, seen) = (Rc::clone(&turns), Rc::clone(&turns));
        let background: Body = Box::new(move || {
            while !is_ending() {
                of.set(of.get() + 1);
                pass();
            }
        });
        let thread: Body = Box::new(move || {
            while seen.get() < 5 {
                pass();
            }
        });
        run(1, 2, vec![thread], vec![background]).expect("no thread waits");
        assert!(turns.get() >= 5);
    }
}
