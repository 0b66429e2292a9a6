//! The search itself: decisions on a stack, and how far a failure goes back.

use super::instance::Instance;
use super::order::{Order, nodes};
use super::span::Span;
use super::state::State;
use crate::Plan;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// How far a run has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It goes on.
    Working,
    /// There is a plan: [`Search::plan`].
    Fits,
    /// It is proven that there is none (of the items: see [`Instance::proves`]).
    DoesNotFit,
    /// The run has taken all of its nodes.
    Spent,
}

/// One search for a plan within a capacity: run by run, each in an order of its own.
pub struct Search {
    instance: Arc<Instance>,
    state: State,
    order: Order,
    stack: Vec<Decision>,
    /// The part of the problem that is being completed.
    part: Span,
    progress: Progress,
    /// How many nodes are left to this run.
    left: u64,
    nodes: u64,
}

/// Something decided about an item.
struct Decision {
    item: u32,
    kind: Kind,
    /// The state's mark before it.
    mark: usize,
    part: Span,
    /// What it depends on that there is no other way.
    why: Span,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Placed; postponing it is still to be tried.
    Open,
    /// Placed, and there was no other way.
    Forced,
    /// Postponed: placing it has failed.
    Closed,
}

impl Search {
    /// A search that has not begun.
    pub fn new(instance: Arc<Instance>) -> Self {
        let state = State::new(&instance);
        let order = Order::of(0, &instance.items, &instance.load);
        let part = Span { first: 0, last: 0 };
        Self { instance, state, order, stack: Vec::new(), part, progress: Progress::Spent, left: 0, nodes: 0 }
    }

    /// Begins a run: the number settles its order and how many nodes it may take; the capacity is in bytes.
    pub fn begin(&mut self, run: u64, capacity: u64) {
        let on = &*self.instance;
        self.stack.clear();
        self.order = Order::of(run, &on.items, &on.load);
        self.left = nodes(run, on.items.len());
        self.part = Span { first: 0, last: on.load.len().saturating_sub(1) as u32 };
        self.progress = if self.state.begin(on, capacity) { Progress::Working } else { Progress::DoesNotFit };
    }

    /// Goes on for so many nodes at most. Once it is no longer [`Progress::Working`], only [`begin`](Self::begin) changes that.
    pub fn advance(&mut self, nodes: u64) -> Progress {
        let before = self.nodes;
        while self.progress == Progress::Working && self.nodes - before < nodes {
            if self.state.left == 0 {
                self.progress = Progress::Fits;
            } else if self.left == 0 {
                self.progress = Progress::Spent;
            } else if !self.decide() && !self.retreat() {
                self.progress = Progress::DoesNotFit;
            }
            self.nodes += 1;
            self.left = self.left.saturating_sub(1);
        }
        self.progress
    }

    /// What it searches.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// How many decisions it has taken so far, in all runs.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// How many items have been looked at so far, in all runs: proportional to the time, on any machine.
    pub fn work(&self) -> u64 {
        self.state.work
    }

    /// The plan, if it has just found one.
    pub fn plan(&self) -> Option<Plan> {
        let offset = |slot: &super::state::Slot| slot.low * self.instance.unit;
        (self.progress == Progress::Fits)
            .then(|| self.instance.chains.plan(&self.state.slots.iter().map(offset).collect::<Vec<_>>()))
    }

    /// Decides upon the next item. False if that leads nowhere.
    fn decide(&mut self) -> bool {
        let on = &*self.instance;
        if core::mem::take(&mut self.state.split) {
            self.part = self.next_part();
        }
        let mark = self.state.mark();
        let Some(item) = self.state.pick(on, &self.order, self.part) else {
            // Everything waits for something else to be placed first.
            self.state.failure = self.part;
            return false;
        };
        let ground = self.state.is_ground(on, self.part, item);
        let forced = ground || on.items[item].fixed.is_some() || !self.state.blocked(on, item);
        let why = match forced {
            true if ground => self.part,
            true => self.state.reasons(on, item, self.part),
            false => on.items[item].span,
        };
        let kind = if forced { Kind::Forced } else { Kind::Open };
        self.stack.push(Decision { item: item as u32, kind, mark, part: self.part, why });
        self.state.place(on, item)
    }

    /// The part to complete: inside the one at hand, or, if that is complete, inside the one it was a part of.
    fn next_part(&self) -> Span {
        let outer = self.stack.iter().rev().map(|decision| decision.part);
        let mut last = None;
        for part in core::iter::once(self.part).chain(outer) {
            if last.is_none_or(|last: Span| !last.holds(part)) {
                if let Some(part) = self.state.part(part) {
                    return part;
                }
                last = Some(part);
            }
        }
        let whole = Span { first: 0, last: self.instance.load.len() as u32 - 1 };
        self.state.part(whole).unwrap_or(whole)
    }

    /// Back to the last decision that the failure depends on and that may go the other way. False if there is none.
    fn retreat(&mut self) -> bool {
        while let Some(decision) = self.stack.pop() {
            let on = &*self.instance;
            let item = decision.item as usize;
            let failure = self.state.failure;
            self.state.undo(on, decision.mark);
            if !failure.meets(on.items[item].span) {
                continue;
            }
            self.state.failure = failure.join(decision.why);
            if decision.kind == Kind::Open {
                self.part = decision.part;
                self.state.split = false;
                let why = failure.join(self.state.reasons(on, item, self.part));
                self.stack.push(Decision { kind: Kind::Closed, why, ..decision });
                if self.state.postpone(on, item) {
                    return true;
                }
            }
        }
        false
    }
}
