//! Lowers a program to planning problems. A forward is accepted only if every value keeps its
//! content until it is read for the last time.

use super::{Forward, Life, Lowered, Memory, Output, Place, Program, Refusal, Wrong};
use crate::overwrites::{NONE, Overwrites};
use crate::{Buffer, Overwrite, Problem};
use alloc::vec;
use alloc::vec::Vec;

/// Lowers a program to one planning problem for each device.
///
/// With `share`, accepts every harmless forward. Without it, only updates share memory.
///
/// # Errors
/// The first defect that [`Program::check`] finds.
pub fn lower(program: &Program, share: bool) -> Result<Lowered, Wrong> {
    program.check()?;
    let mut lowering = Lowering::new(program, share);
    lowering.share_views();
    let storages = lowering.storages();
    let writes = lowering.offered_writes(&storages);
    Ok(lowering.finish(&storages, writes))
}

/// The intermediate state of lowering.
struct Lowering<'a> {
    program: &'a Program,
    share: bool,
    /// For each value, the operator that makes it, or [`NONE`].
    maker: Vec<u32>,
    /// For each value, the last operator that reads it, or else its maker.
    last_read: Vec<u32>,
    /// For each value, the root of its family. A family is the set of values that would share
    /// memory if every view were accepted.
    family: Vec<u32>,
    /// For each value, the value that owns its memory, and the distance in bytes from the start of
    /// that one.
    home: Vec<(u32, u64)>,
    taken: Vec<Forward>,
    refused: Vec<(Forward, Refusal)>,
}

/// The memory of a value, with all values inside it.
#[derive(Clone, Copy)]
struct Storage {
    /// The last operator that reads any value inside, and the value that it reads.
    last: (u32, u32),
    /// A value inside that is never freed.
    kept: Option<u32>,
    /// The number of the buffer, or [`NONE`] for memory outside the plan.
    buffer: u32,
}

impl<'a> Lowering<'a> {
    fn new(program: &'a Program, share: bool) -> Self {
        let count = program.values.len();
        let mut maker = vec![NONE; count];
        let mut last_read = vec![0; count];
        // Operators come in execution order, so the last assignment is the last read.
        for (number, operator) in (0..).zip(&program.operators) {
            for &value in &operator.inputs {
                last_read[value as usize] = number;
            }
            for output in &operator.outputs {
                maker[output.value as usize] = number;
                last_read[output.value as usize] = number;
            }
        }
        let home = (0..count as u32).map(|value| (value, 0)).collect();
        // Inputs come before outputs, so the family of an input is known before that of its output.
        let mut family: Vec<u32> = (0..count as u32).collect();
        for output in program.operators.iter().flat_map(|operator| &operator.outputs) {
            if let Memory::View { of, .. } | Memory::Update { of } = output.memory {
                family[output.value as usize] = family[of as usize];
            }
        }
        Self { program, share, maker, last_read, family, home, taken: Vec::new(), refused: Vec::new() }
    }

    /// Iterates over all outputs with the numbers of their operators.
    fn outputs(&self) -> impl Iterator<Item = (u32, Output)> + use<'a> {
        let operators = (0..).zip(&self.program.operators);
        operators.flat_map(|(number, operator)| operator.outputs.iter().map(move |&output| (number, output)))
    }

    /// Moves every view and update into the memory of its input, or records a refusal.
    fn share_views(&mut self) {
        let old = self.last_reads_of_content();
        let updates = self.updates();
        for (operator, Output { value, memory }) in self.outputs() {
            let (of, offset) = match memory {
                Memory::View { of, offset } => (of, offset),
                // An update cannot be refused, because the operator writes there in any case.
                Memory::Update { of } => {
                    self.home[value as usize] = self.home[of as usize];
                    continue;
                }
                Memory::Fresh | Memory::Over { .. } => continue,
            };
            let forward = Forward { operator, value, input: of, offset, written: false };
            // From the view on, both values must keep their present content until either is read
            // for the last time.
            let needed = old[of as usize].max(old[value as usize]);
            // The first update at or after the view; each list is in execution order.
            let family = &updates[self.family[of as usize] as usize];
            let change = family[family.partition_point(|&update| update < operator)..].first();
            let refusal = self.refusal(of, value).or_else(|| match self.life_of(of) {
                Life::External => Some(Refusal::External),
                _ => change.filter(|&&update| update < needed).map(|&operator| Refusal::Updated { operator }),
            });
            if let Some(refusal) = refusal {
                self.refused.push((forward, refusal));
                continue;
            }
            // A view of a view is in the memory of the first input, at the sum of the offsets.
            let (root, base) = self.home[of as usize];
            self.home[value as usize] = (root, base + offset);
            self.taken.push(forward);
        }
    }

    /// Returns the reason to refuse any forward from `input` to `output`, whatever the timing.
    fn refusal(&self, input: u32, output: u32) -> Option<Refusal> {
        let (from, to) = (&self.program.values[input as usize], &self.program.values[output as usize]);
        if !self.share {
            return Some(Refusal::NotWanted);
        }
        if from.device != to.device {
            return Some(Refusal::OtherDevice);
        }
        (to.size == 0).then_some(Refusal::NoBytes)
    }

    /// Returns the lifetime of the memory in which a value is.
    fn life_of(&self, value: u32) -> Life {
        self.program.values[self.home[value as usize].0 as usize].life
    }

    /// Finds for each value the last operator that reads its content, directly or through views.
    /// Every view counts as accepted.
    fn last_reads_of_content(&self) -> Vec<u32> {
        let mut last = self.last_read.clone();
        for (value, own) in self.program.values.iter().enumerate() {
            if own.life == Life::Kept {
                last[value] = u32::MAX;
            }
        }
        // A view is made after its input. So when going backwards, the last read of a view is final
        // before it counts for the input.
        for operator in self.program.operators.iter().rev() {
            for output in operator.outputs.iter().rev() {
                if let Memory::View { of, .. } = output.memory {
                    last[of as usize] = last[of as usize].max(last[output.value as usize]);
                }
            }
        }
        last
    }

    /// Returns the updates of each family in program order, indexed by the root of the family.
    fn updates(&self) -> Vec<Vec<u32>> {
        let mut updates = vec![Vec::new(); self.program.values.len()];
        for (operator, output) in self.outputs() {
            if let Memory::Update { of } = output.memory {
                updates[self.family[of as usize] as usize].push(operator);
            }
        }
        updates
    }

    /// Builds the storage of every value, indexed by the owner. The buffers are numbered in the
    /// order of their lives.
    fn storages(&self) -> Vec<Storage> {
        let mut storages = vec![Storage { last: (0, NONE), kept: None, buffer: NONE }; self.home.len()];
        for (value, &(root, _)) in (0..).zip(&self.home) {
            let storage = &mut storages[root as usize];
            let last = self.last_read[value as usize];
            // The last reader of any value inside ends the life of the whole storage.
            if storage.last.1 == NONE || last > storage.last.0 {
                storage.last = (last, value);
            }
            if self.program.values[value as usize].life == Life::Kept && self.maker[value as usize] != NONE {
                storage.kept = Some(value);
            }
        }
        let mut order: Vec<u32> = (0..self.home.len() as u32).filter(|&value| self.is_planned(value)).collect();
        order.sort_by_key(|&root| (self.maker[root as usize], storages[root as usize].end()));
        // Buffers are numbered for each device, because every device has its own problem.
        let mut counts = vec![0; self.program.devices.len()];
        for root in order {
            let count: &mut u32 = &mut counts[self.program.values[root as usize].device as usize];
            storages[root as usize].buffer = *count;
            *count += 1;
        }
        storages
    }

    /// Returns whether a value owns memory in the plan.
    fn is_planned(&self, value: u32) -> bool {
        let own = &self.program.values[value as usize];
        self.home[value as usize].0 == value
            && self.maker[value as usize] != NONE
            && own.size > 0
            && matches!(own.life, Life::Planned | Life::Kept)
    }

    /// Returns the writes in place that destroy no content that is still needed, and records a
    /// refusal for all others.
    fn offered_writes(&mut self, storages: &[Storage]) -> Vec<Forward> {
        let mut offered = Vec::new();
        for (operator, Output { value, memory }) in self.outputs() {
            let Memory::Over { target, offset } = memory else { continue };
            let forward = Forward { operator, value, input: target, offset, written: true };
            let refusal = self.refusal(target, value).or_else(|| self.harm(storages, &forward));
            match refusal {
                Some(refusal) => self.refused.push((forward, refusal)),
                None => offered.push(forward),
            }
        }
        offered
    }

    /// Returns the reason why a write in place would destroy content that is still needed, or
    /// `None` for a harmless write.
    fn harm(&self, storages: &[Storage], forward: &Forward) -> Option<Refusal> {
        let &Forward { operator, value, input: target, offset, .. } = forward;
        let (root, base) = self.home[target as usize];
        let storage = &storages[root as usize];
        match self.life_of(target) {
            Life::External => return Some(Refusal::External),
            Life::Persistent => return Some(Refusal::Persistent),
            Life::Planned | Life::Kept => {}
        }
        if let Some(value) = storage.kept {
            return Some(Refusal::Kept { value });
        }
        if storage.last.0 > operator {
            return Some(Refusal::ReadLater { value: storage.last.1, operator: storage.last.0 });
        }
        // An update by the operator itself writes to the same memory at the same step.
        let own = &self.program.operators[operator as usize];
        let updates = |output: &Output| {
            matches!(output.memory, Memory::Update { .. }) && self.home[output.value as usize].0 == root
        };
        if own.outputs.iter().any(updates) {
            return Some(Refusal::Updated { operator });
        }
        // The write must not touch any other input that is in the same memory.
        let size = |value: u32| self.program.values[value as usize].size;
        let (low, high) = (base + offset, base + offset + size(value));
        let meets = |other: u32| {
            let (other_root, other_low) = self.home[other as usize];
            other != target && other_root == root && other_low < high && low < other_low + size(other)
        };
        own.inputs.iter().copied().find(|&other| meets(other)).map(|value| Refusal::ReadMeanwhile { value })
    }

    /// Builds the result. Accepts those of the offered writes that the rules of [`Overwrite`]
    /// accept.
    fn finish(mut self, storages: &[Storage], writes: Vec<Forward>) -> Lowered {
        let mut problems = self.problems(storages);
        for forward in &writes {
            problems[self.device(forward)].overwrites.push(self.overwrite(storages, forward));
        }
        let accepted: Vec<Overwrites> = problems.iter().map(Overwrites::of).collect();
        for forward in writes {
            let pair = self.overwrite(storages, &forward);
            if accepted[self.device(&forward)].target[pair.writer as usize] == pair.target {
                self.taken.push(forward);
            } else {
                self.refused.push((forward, Refusal::Taken));
            }
        }
        let places = (0..self.home.len() as u32).map(|value| self.place(storages, value)).collect();
        Lowered { problems, places, taken: self.taken, refused: self.refused }
    }

    /// Builds the buffers of every device.
    fn problems(&self, storages: &[Storage]) -> Vec<Problem> {
        let mut problems = vec![Problem::default(); self.program.devices.len()];
        let mut roots: Vec<u32> = (0..self.home.len() as u32).filter(|&value| self.is_planned(value)).collect();
        roots.sort_by_key(|&root| storages[root as usize].buffer);
        for root in roots {
            let value = &self.program.values[root as usize];
            let device = &self.program.devices[value.device as usize];
            problems[value.device as usize].buffers.push(Buffer {
                start: u64::from(self.maker[root as usize]),
                end: storages[root as usize].end(),
                size: value.size.saturating_add(device.padding),
                alignment: device.alignment,
                fixed: None,
            });
        }
        problems
    }

    fn device(&self, forward: &Forward) -> usize {
        self.program.values[forward.value as usize].device as usize
    }

    /// Converts an accepted forward to an overwrite between buffers.
    fn overwrite(&self, storages: &[Storage], forward: &Forward) -> Overwrite {
        let (root, base) = self.home[forward.input as usize];
        let buffer = |value: u32| storages[value as usize].buffer;
        Overwrite { writer: buffer(forward.value), target: buffer(root), offset: base + forward.offset }
    }

    /// Returns the location of a value.
    fn place(&self, storages: &[Storage], value: u32) -> Place {
        let (root, offset) = self.home[value as usize];
        match self.program.values[root as usize].life {
            Life::External | Life::Persistent => Place::Outside { value: root, offset },
            _ if storages[root as usize].buffer == NONE => Place::Nowhere,
            _ => Place::Buffer { buffer: storages[root as usize].buffer, offset },
        }
    }
}

impl Storage {
    /// Returns the first step at which the storage is no longer live.
    fn end(&self) -> u64 {
        if self.kept.is_some() { u64::MAX } else { u64::from(self.last.0) + 1 }
    }
}
