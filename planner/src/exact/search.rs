//! The loop of the search: a stack of decisions, and backjumping after a failure.

use super::instance::Instance;
use super::order::{Order, nodes};
use super::span::Span;
use super::state::State;
use crate::Plan;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The state of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The run is not finished and may continue.
    Working,
    /// The run has found a plan: see [`Search::plan`].
    Fits,
    /// The run has proved that the items have no plan. See [`Instance::proves`] for the problem
    /// itself.
    DoesNotFit,
    /// The run has used up its nodes.
    Spent,
}

/// A search for a plan within a capacity, in numbered runs. Each run has its own order.
pub struct Search {
    instance: Arc<Instance>,
    /// The partial plan, with what is known about unplaced items.
    state: State,
    /// The order of the present run.
    order: Order,
    /// The decisions that led to the partial plan, oldest first.
    stack: Vec<Decision>,
    /// The part of the problem that is being completed.
    part: Span,
    /// The state of the present run.
    progress: Progress,
    /// The number of nodes that the present run may still take.
    left: u64,
    /// The number of nodes that all runs together have searched.
    nodes: u64,
}

/// A decision on an item, with the information to undo it and to judge later failures.
struct Decision {
    /// The number of the item in the instance.
    item: u32,
    /// The decision, and whether its alternative is still open.
    kind: Kind,
    /// The length of the undo trail before the decision.
    mark: usize,
    /// The part that was being completed at the decision.
    part: Span,
    /// The sections on which it depends that there is no alternative.
    why: Span,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The item was placed. The alternative, to postpone it, was not tried yet.
    Open,
    /// The item was placed without an alternative.
    Forced,
    /// The item was postponed, after placing it had failed.
    Closed,
}

impl Search {
    /// Creates a search. Call [`begin`](Self::begin) before [`advance`](Self::advance).
    pub fn new(instance: Arc<Instance>) -> Self {
        let state = State::new(&instance);
        let order = Order::of(0, &instance.items, &instance.load);
        let part = Span { first: 0, last: 0 };
        Self { instance, state, order, stack: Vec::new(), part, progress: Progress::Spent, left: 0, nodes: 0 }
    }

    /// Starts a run within `capacity` bytes. The number of the run determines the order and the
    /// limit of nodes.
    pub fn begin(&mut self, run: u64, capacity: u64) {
        let instance = &*self.instance;
        self.stack.clear();
        self.order = Order::of(run, &instance.items, &instance.load);
        self.left = nodes(run, instance.items.len());
        self.part = Span { first: 0, last: instance.load.len().saturating_sub(1) as u32 };
        self.progress = if self.state.begin(instance, capacity) { Progress::Working } else { Progress::DoesNotFit };
    }

    /// Searches at most `nodes` more nodes. After any result other than [`Progress::Working`], only
    /// [`begin`](Self::begin) starts the search again.
    pub fn advance(&mut self, nodes: u64) -> Progress {
        let before = self.nodes;
        while self.progress == Progress::Working && self.nodes - before < nodes {
            // One node is one decision. A decision that fails retreats at once. If no open decision
            // is left, the run has proved that there is no plan.
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

    /// Returns the instance that is being searched.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Returns the number of nodes that all runs have searched.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns the number of items that all runs so far have examined. It is proportional to the
    /// processor time, on any machine.
    pub fn work(&self) -> u64 {
        self.state.work
    }

    /// Returns the plan, if the last call of [`advance`](Self::advance) returned
    /// [`Progress::Fits`].
    pub fn plan(&self) -> Option<Plan> {
        let offset = |slot: &super::state::Slot| slot.low * self.instance.unit;
        (self.progress == Progress::Fits)
            .then(|| self.instance.chains.plan(&self.state.slots.iter().map(offset).collect::<Vec<_>>()))
    }

    /// Decides on the next item. Returns false if the partial plan cannot be completed.
    fn decide(&mut self) -> bool {
        let instance = &*self.instance;
        // The part is stale only after a placement that may have split or completed it.
        if core::mem::take(&mut self.state.split) {
            self.part = self.next_part();
        }
        let mark = self.state.mark();
        let Some(item) = self.state.pick(instance, &self.order, self.part) else {
            // Every unplaced item is postponed, so each waits for another one to be placed first.
            self.state.failure = self.part;
            return false;
        };
        // There is no alternative if the item may be the ground of its part, has a fixed offset, or
        // cannot be kept from its lowest offset.
        let ground = self.state.is_ground(instance, self.part, item);
        let forced = ground || instance.items[item].fixed.is_some() || !self.state.blocked(instance, item);
        let why = match forced {
            true if ground => self.part,
            true => self.state.reasons(instance, item, self.part),
            false => instance.items[item].span,
        };
        let kind = if forced { Kind::Forced } else { Kind::Open };
        self.stack.push(Decision { item: item as u32, kind, mark, part: self.part, why });
        self.state.place(instance, item)
    }

    /// Chooses the next part: inside the current part, or if this is complete, inside the nearest
    /// enclosing part with unplaced items.
    fn next_part(&self) -> Span {
        // This goes outward through the parts of earlier decisions, and skips those that were found
        // complete already.
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

    /// Returns to the last open decision on which the failure depends, and takes the alternative.
    /// Returns false if there is no such decision.
    fn retreat(&mut self) -> bool {
        while let Some(decision) = self.stack.pop() {
            let instance = &*self.instance;
            let item = decision.item as usize;
            let failure = self.state.failure;
            self.state.undo(instance, decision.mark);
            // The failure does not depend on this item, so no other decision on the item can avoid
            // it.
            if !failure.meets(instance.items[item].span) {
                continue;
            }
            // The failure now depends on everything that forced this decision, too.
            self.state.failure = failure.join(decision.why);
            if decision.kind == Kind::Open {
                self.part = decision.part;
                self.state.split = false;
                // The item is now known to be higher. This depends on the failure of the placement,
                // and on the reasons why the item was chosen at this point.
                let why = failure.join(self.state.reasons(instance, item, self.part));
                self.stack.push(Decision { kind: Kind::Closed, why, ..decision });
                if self.state.postpone(instance, item) {
                    return true;
                }
            }
        }
        false
    }
}
