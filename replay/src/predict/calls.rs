//! Where a program made its calls: what tells requests that grow with the batch from all others.

use crate::trace::{Action, Place, Trace};
use cachalot_snapshot::{Snapshot, Stack};
use std::collections::HashMap;

/// A part of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// The forward pass, and everything that is in none of the other parts.
    #[default]
    Forward,
    /// The backward pass.
    Backward,
    /// The step of an optimizer.
    Optimizer,
}

/// Where a request was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site {
    /// A number for each stack of the program.
    pub stack: u32,
    /// The part of the step.
    pub part: Phase,
    /// Whether the request is for another type of a tensor, such as a weight in 16 bits.
    pub is_cast: bool,
}

/// Where the calls of a program were made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// For each request, in order.
    pub requests: Vec<Site>,
    /// The part of the step of each free, in order.
    pub frees: Vec<Phase>,
}

impl Calls {
    /// Returns where the calls of a record were made. `None` for a record without stacks.
    pub fn of(trace: &Trace, snapshot: &Snapshot) -> Option<Self> {
        let entries = snapshot.device_traces.get(usize::try_from(trace.device).ok()?)?;
        let (mut calls, mut has_stacks) = (Self::default(), false);
        let (mut sites, mut seen): (HashMap<&Stack, Site>, HashMap<usize, Site>) = Default::default();
        for event in trace.events.iter().filter(|event| event.action.is_call()) {
            let Place::Event(number) = event.of.place else { return None };
            let stack = entries.get(usize::try_from(number).ok()?)?.frames.as_ref()?;
            let next = sites.len() as u32;
            // Events of one line share a stack in most files, so that few are compared by frames.
            let shared = stack.frames().as_ptr() as usize;
            let found = || *sites.entry(stack).or_insert_with(|| site(next, stack));
            let site = *seen.entry(shared).or_insert_with(found);
            if event.action == Action::FreeRequested {
                calls.frees.push(site.part);
            } else {
                has_stacks |= !stack.is_empty();
                calls.requests.push(site);
            }
        }
        has_stacks.then_some(calls)
    }

    /// Adds the site of a line of a list of requests, which starts with the part.
    pub(super) fn add(&mut self, text: &str, is_request: bool, stacks: &mut HashMap<String, u32>) {
        let part = match text.split_ascii_whitespace().next() {
            Some("backward") => Phase::Backward,
            Some("optimizer") => Phase::Optimizer,
            _ => Phase::Forward,
        };
        if !is_request {
            self.frees.push(part);
            return;
        }
        let next = stacks.len() as u32;
        let stack = *stacks.entry(text.to_owned()).or_insert(next);
        self.requests.push(Site { stack, part, is_cast: text.contains("_to_copy") });
    }
}

/// Returns the site of a stack.
fn site(number: u32, stack: &Stack) -> Site {
    let frames = || stack.frames().iter();
    let is_optimizer = |folder: &&str| frames().any(|frame| frame.filename.contains(*folder));
    let part = if ["torch/optim/", r"torch\optim\"].iter().any(is_optimizer) {
        Phase::Optimizer
    } else if stack.is_empty() || frames().any(|frame| frame.name.contains("torch::autograd::Engine::")) {
        // The threads of backward passes run no Python, whose frames may be all that was recorded.
        Phase::Backward
    } else {
        Phase::Forward
    };
    Site { stack: number, part, is_cast: frames().any(|frame| frame.name.contains("cached_cast")) }
}
