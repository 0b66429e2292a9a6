//! The stacks of a file, each with a number.

use cachalot_snapshot::Stack;
use rustc_hash::FxHashMap;

/// The number of the empty stack.
pub(super) const NO_STACK: u32 = 0;

/// The number of the stack of blocks from before the first event.
pub(super) const BEFORE: u32 = 1;

/// A stack with the program's description of the event.
#[derive(Debug, Clone)]
pub(super) struct DescribedStack {
    pub(super) stack: Stack,
    /// `user_metadata` and the compilation in progress, or a constant text for special stacks.
    pub(super) note: Option<Box<str>>,
}

/// All stacks of a file.
#[derive(Clone, Debug)]
pub(super) struct Stacks {
    entries: Vec<DescribedStack>,
    /// Numbers by the address of the frames and the number of the note. An entry keeps the frames,
    /// and so the address, alive.
    numbers: FxHashMap<(usize, u32), u32>,
    notes: FxHashMap<Box<str>, u32>,
}

impl Default for Stacks {
    fn default() -> Self {
        let special = |note: &str| DescribedStack { stack: Stack::default(), note: Some(note.into()) };
        let entries = vec![special("no stack recorded"), special("allocated before the first event")];
        Self { entries, numbers: FxHashMap::default(), notes: FxHashMap::default() }
    }
}

impl Stacks {
    /// Returns the number of a stack with a note. The reader of snapshots shares equal stacks, so
    /// the address of the frames identifies a stack.
    pub(super) fn number(&mut self, stack: Option<&Stack>, note: Option<&str>) -> u32 {
        let stack = stack.filter(|stack| !stack.is_empty());
        let note_number = note.map_or(0, |note| self.note(note));
        let Some(address) = stack.map(|stack| stack.frames().as_ptr() as usize).or((note_number > 0).then_some(0))
        else {
            return NO_STACK;
        };
        let next = self.entries.len() as u32;
        let number = *self.numbers.entry((address, note_number)).or_insert(next);
        if number == next {
            self.entries.push(DescribedStack { stack: stack.cloned().unwrap_or_default(), note: note.map(Into::into) });
        }
        number
    }

    /// Returns the number of a note, from 1.
    fn note(&mut self, note: &str) -> u32 {
        if let Some(&number) = self.notes.get(note) {
            return number;
        }
        let number = self.notes.len() as u32 + 1;
        self.notes.insert(note.into(), number);
        number
    }

    /// Returns the stack with a number.
    pub(super) fn get(&self, number: u32) -> &DescribedStack {
        &self.entries[number as usize]
    }
}
