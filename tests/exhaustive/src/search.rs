//! The search: programs by length. A program that leads to a state met before is not continued.
//!
//! The core is deterministic and cannot be copied, so a state is a program: each step of the search
//! runs the program again on an empty core.

use crate::defects::Defect;
use crate::key;
use crate::letter::Letter;
use crate::setting::Setting;
use crate::theorems::{Violation, check_end, check_refusal, check_state, check_step};
use crate::world::{Step, World};
use cachalot_core::{Error, SnapshotSegment};
use rustc_hash::FxHashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How far to search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest program.
    pub length: u32,
    /// No longer programs are begun after this time.
    pub time: Duration,
    /// Of how many meetings the search checks one: 0 for none.
    pub meetings: u64,
}

/// A program that breaks a theorem.
#[derive(Clone, Debug)]
pub struct Found {
    /// The program.
    pub program: Vec<Letter>,
    /// The theorem, and what was found.
    pub violation: Violation,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The longest programs of which all were run.
    pub length: u32,
    /// Whether no state is left to go on from: longer programs lead to no new state.
    pub is_whole: bool,
    /// The states met, by the length of the shortest program to each.
    pub states: Vec<u64>,
    /// The programs run: each a state and one more letter.
    pub programs: u64,
    /// Meetings of two programs in one state that were checked, each with every letter.
    pub meetings: u64,
    /// Checked meetings of which the programs go on differently.
    pub unequal: u64,
    /// The time.
    pub time: Duration,
    /// The first program found against a theorem: of all, one of the shortest.
    pub found: Option<Found>,
    /// The first two programs found with one key and different continuations.
    pub differing: Option<(Vec<Letter>, Vec<Letter>, Letter)>,
}

/// A state: the state before and the letter between, and the letters that go on.
struct Node {
    before: u32,
    letter: u8,
    /// The permitted letters as bits, by their number in the alphabet.
    letters: u64,
}

/// Of how many states one has all of its statistics added up, which takes longer than every other
/// check together.
const SUMMED: u64 = 8;

/// Letters of a walk behind a meeting.
const WALK: usize = 5;

/// The node of the empty program has no state before.
const NONE: u32 = u32::MAX;

/// A search in progress.
struct Search {
    setting: &'static Setting,
    defect: Option<Defect>,
    letters: Vec<Letter>,
    nodes: Vec<Node>,
    met: FxHashMap<u128, u32>,
    outcome: Outcome,
}

/// Searches the programs of a setting, with a planted defect or without.
///
/// # Panics
/// If the alphabet has more than 64 letters.
#[must_use]
pub fn search(setting: &'static Setting, defect: Option<Defect>, bounds: &Bounds) -> Outcome {
    let letters = setting.alphabet.letters();
    assert!(letters.len() <= 64, "the letters are bits of a word");
    let mut search =
        Search { setting, defect, letters, nodes: Vec::new(), met: FxHashMap::default(), outcome: Outcome::default() };
    let begun = Instant::now();
    search.run(bounds, begun);
    search.outcome.time = begun.elapsed();
    search.outcome
}

/// Runs a program without checks.
///
/// # Panics
/// If the core panics.
#[must_use]
pub fn replay(setting: &'static Setting, defect: Option<Defect>, program: &[Letter]) -> World {
    let mut world = World::new(setting, defect);
    for &letter in program {
        let step = world.apply(letter);
        world.follow(&step);
        world.settle();
    }
    world
}

/// Runs a program with all checks after each call.
///
/// # Errors
/// The first broken theorem.
pub fn check(setting: &'static Setting, program: &[Letter]) -> Result<(), Violation> {
    for length in 1..=program.len() {
        let (before, letter) = (&program[..length - 1], program[length - 1]);
        step(setting, None, before, letter).and_then(|state| state.finish(true))?;
    }
    Ok(())
}

/// A state behind a checked call.
struct State {
    world: World,
    snapshot: Vec<SnapshotSegment>,
    is_out_of_memory: bool,
    program: Vec<Letter>,
}

/// Runs a program and one more letter, with the checks behind the letter.
fn step(
    setting: &'static Setting,
    defect: Option<Defect>,
    program: &[Letter],
    letter: Letter,
) -> Result<State, Violation> {
    let mut world = replay(setting, defect, program);
    let step = world.apply(letter);
    let snapshot = world.settle();
    check_step(&mut world, &step, &snapshot)?;
    let is_out_of_memory = matches!(step.answer, Err(Error::OutOfMemory(_))) && step.fired.is_none();
    let program = program.iter().copied().chain([letter]).collect();
    let state = State { world, snapshot, is_out_of_memory, program };
    if state.is_out_of_memory {
        check_refusal(&mut replay(setting, defect, &state.program), letter)?;
    }
    Ok(state)
}

impl State {
    /// Makes the checks about a new state. The state is spent.
    fn finish(self, is_summed: bool) -> Result<(), Violation> {
        if is_summed {
            check_state(&self.world)?;
        }
        check_end(self.world)
    }
}

/// Calls `act`, and takes a panic for a broken theorem.
fn guarded<T>(act: impl FnOnce() -> Result<T, Violation>) -> Result<T, Violation> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(crate::theorems::Theorem::Answers.violated(format!("a panic: {}", text.unwrap_or_default())))
    })
}

impl Search {
    fn run(&mut self, bounds: &Bounds, begun: Instant) {
        let mut world = World::new(self.setting, self.defect);
        let snapshot = world.settle();
        self.met.insert(key::of(&world, &snapshot), 0);
        let letters = self.permitted(&world);
        self.nodes.push(Node { before: NONE, letter: 0, letters });
        self.outcome.states.push(1);
        let mut level = 0..1;
        while self.outcome.length < bounds.length && !level.is_empty() {
            for node in level.clone() {
                if begun.elapsed() > bounds.time {
                    return;
                }
                if let Err(found) = self.expand(node, bounds) {
                    self.outcome.found = Some(found);
                    return;
                }
            }
            level = level.end..self.nodes.len() as u32;
            self.outcome.length += 1;
            self.outcome.states.push(u64::from(level.end - level.start));
        }
        self.outcome.is_whole = level.is_empty();
    }

    /// Returns the permitted letters of a state as bits.
    fn permitted(&self, world: &World) -> u64 {
        let bits = self.letters.iter().enumerate().filter(|(_, letter)| world.permits(**letter));
        bits.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// Returns the program of a state.
    fn program(&self, mut node: u32) -> Vec<Letter> {
        let mut program = Vec::new();
        while self.nodes[node as usize].before != NONE {
            program.push(self.letters[usize::from(self.nodes[node as usize].letter)]);
            node = self.nodes[node as usize].before;
        }
        program.reverse();
        program
    }

    /// Goes on from a state with every permitted letter.
    fn expand(&mut self, node: u32, bounds: &Bounds) -> Result<(), Found> {
        let program = self.program(node);
        let letters = self.nodes[node as usize].letters;
        let (setting, defect) = (self.setting, self.defect);
        for number in (0..self.letters.len()).filter(|number| letters >> number & 1 == 1) {
            let letter = self.letters[number];
            self.outcome.programs += 1;
            let found = |violation| {
                let program = program.iter().copied().chain([letter]).collect();
                Found { program, violation }
            };
            let state = guarded(|| step(setting, defect, &program, letter)).map_err(found)?;
            let key = key::of(&state.world, &state.snapshot);
            if let Some(&met) = self.met.get(&key) {
                if bounds.meetings > 0 && (key as u64).is_multiple_of(bounds.meetings) {
                    self.check_meeting(met, &state, (key >> 64) as u64);
                }
                continue;
            }
            let letters = self.permitted(&state.world);
            self.met.insert(key, self.nodes.len() as u32);
            self.nodes.push(Node { before: node, letter: number as u8, letters });
            guarded(|| state.finish((key as u64).is_multiple_of(SUMMED))).map_err(found)?;
        }
        Ok(())
    }

    /// Checks that two programs with one key go on equally with every letter, and behind the letter
    /// with a few more.
    ///
    /// The visible states are compared, and not the keys: a key may tell states apart that no
    /// program can.
    fn check_meeting(&mut self, met: u32, state: &State, seed: u64) {
        self.outcome.meetings += 1;
        let other = self.program(met);
        let letters = self.permitted(&state.world);
        let mut is_equal = letters == self.nodes[met as usize].letters;
        for number in (0..self.letters.len()).filter(|number| letters >> number & 1 == 1) {
            let letter = self.letters[number];
            let walks = [&other, &state.program]
                .map(|program| walk(self.setting, self.defect, program, letter, seed).unwrap_or_default());
            is_equal &= walks[0] == walks[1];
            if !is_equal && self.outcome.differing.is_none() {
                self.outcome.differing = Some((other.clone(), state.program.clone(), letter));
            }
        }
        self.outcome.unequal += u64::from(!is_equal);
    }
}

/// What a program sees behind each letter of a walk: the answer, and the visible state.
type Walked = Vec<(String, u128)>;

/// Goes on from a program with a letter, and with letters chosen by `seed`. Returns what the
/// program sees, or `None` if the core panics.
fn walk(
    setting: &'static Setting,
    defect: Option<Defect>,
    program: &[Letter],
    letter: Letter,
    mut seed: u64,
) -> Option<Walked> {
    let walk = || {
        let mut world = replay(setting, defect, program);
        let mut walked = Vec::new();
        let mut next = Some(letter);
        while let Some(letter) = next.filter(|_| walked.len() < WALK) {
            let step = world.apply(letter);
            world.follow(&step);
            let snapshot = world.settle();
            walked.push((answer(&step), key::visible(&world, &snapshot)));
            next = choose(setting, &world, seed);
            seed = seed.rotate_right(5);
        }
        walked
    };
    catch_unwind(AssertUnwindSafe(walk)).ok()
}

/// Chooses a permitted letter by a number.
fn choose(setting: &Setting, world: &World, number: u64) -> Option<Letter> {
    let permitted: Vec<_> = setting.alphabet.letters().into_iter().filter(|&letter| world.permits(letter)).collect();
    permitted.get(number as usize % permitted.len().max(1)).copied()
}

/// Meetings of random programs.
#[derive(Debug, Default)]
pub struct Meetings {
    /// Meetings checked.
    pub checked: u32,
    /// The first two programs with one key that went on differently, and the first letter behind.
    pub differing: Option<(Vec<Letter>, Vec<Letter>, Letter)>,
}

/// Runs `programs` random programs of `length` letters. Where two come to one key by different
/// letters, both go on with two walks and have to see the same.
#[must_use]
pub fn meet_at_random(setting: &'static Setting, programs: u64, length: usize) -> Meetings {
    let mut met: FxHashMap<u128, Vec<Letter>> = FxHashMap::default();
    let mut meetings = Meetings::default();
    // A linear congruential generator: the high bits are good enough to choose letters.
    let mut state = 1_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for _ in 0..programs {
        let mut world = World::new(setting, None);
        let mut program = Vec::new();
        while let Some(letter) = choose(setting, &world, draw()).filter(|_| program.len() < length) {
            let step = world.apply(letter);
            world.follow(&step);
            let snapshot = world.settle();
            program.push(letter);
            let key = key::of(&world, &snapshot);
            let Some(other) = met.get(&key) else {
                met.insert(key, program.clone());
                continue;
            };
            if *other == program || program.len() < length / 2 {
                continue;
            }
            meetings.checked += 1;
            for _ in 0..2 {
                let (first, seed) = (choose(setting, &world, draw()), draw());
                let Some(first) = first else { continue };
                let both = [other, &program].map(|program| walk(setting, None, program, first, seed));
                if both[0] != both[1] && meetings.differing.is_none() {
                    meetings.differing = Some((other.clone(), program.clone(), first));
                }
            }
        }
    }
    meetings
}

/// Returns the answer of a call as a text, without the report of a shortage.
fn answer(step: &Step) -> String {
    match &step.answer {
        Ok(ptr) => ptr.to_string(),
        Err(Error::OutOfMemory(_)) => "out of memory".to_owned(),
        Err(error) => error.to_string(),
    }
}
