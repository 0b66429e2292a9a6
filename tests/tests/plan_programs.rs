//! Generated programs of operators run in their planned memory: every operator finds its inputs
//! unchanged.

use cachalot_planner::operators::{Device, Life, Lowered, Memory, Operator, Output, Place, Program, Value, lower};
use cachalot_planner::{HEURISTICS, Plan, verify};
use cachalot_tests::strategies::proptest_config;
use proptest::prelude::*;
use std::collections::HashMap;

/// A draft of an operator: the values read, and the size, kind and place of each output.
type Draft = (Vec<u16>, Vec<(u64, u8, u16)>);

/// Content of a byte: the value that wrote the byte, and the position inside the value.
type Content = (u32, u64);

fn program(lives: &[u8], drafts: &[Draft], device: Device) -> Program {
    let life = |number: u8| match number % 8 {
        0 => Life::Persistent,
        1 => Life::External,
        _ => Life::Planned,
    };
    let given = lives.iter().map(|&number| Value { size: 40, device: 0, life: life(number % 2) }).collect();
    let mut program = Program { devices: vec![device], values: given, operators: Vec::new() };
    let mut readable: Vec<u32> = (0..program.values.len() as u32).collect();
    for (reads, outputs) in drafts {
        let mut operator = Operator::default();
        for &read in reads {
            operator.inputs.push(readable[usize::from(read) % readable.len()]);
        }
        let mut updated = None;
        for &(size, kind, at) in outputs {
            let input = operator.inputs.get(usize::from(at) % operator.inputs.len().max(1)).copied();
            let room = input.map_or(0, |input| program.values[input as usize].size);
            let smaller = size.min(room);
            let offset = if room > smaller { u64::from(at) % (room - smaller + 1) } else { 0 };
            let (size, memory) = match (kind % 8, input) {
                (0..3, Some(of)) => (smaller, Memory::View { of, offset }),
                (3..6, Some(target)) => (smaller, Memory::Over { target, offset }),
                (6, Some(of)) if updated.is_none() => {
                    updated = Some(of);
                    (room, Memory::Update { of })
                }
                _ => (size, Memory::Fresh),
            };
            let life = if kind >= 250 { Life::Kept } else { Life::Planned };
            program.values.push(Value { size, device: 0, life });
            operator.outputs.push(Output { value: program.values.len() as u32 - 1, memory });
        }
        // An updated value is not read again.
        readable.retain(|&value| Some(value) != updated);
        readable.extend(operator.outputs.iter().map(|output| output.value));
        if readable.is_empty() {
            break;
        }
        program.operators.push(operator);
    }
    program
}

/// Memory of a running program: the planned block, and the outside memory by value.
struct Machine<'a> {
    program: &'a Program,
    lowered: &'a Lowered,
    plan: &'a Plan,
    bytes: HashMap<(Option<u32>, u64), Content>,
    /// Expected content of each value.
    expected: Vec<Vec<Content>>,
}

impl Machine<'_> {
    fn addresses(&self, value: u32) -> Vec<(Option<u32>, u64)> {
        let size = self.program.values[value as usize].size;
        let (base, start) = match self.lowered.places[value as usize] {
            Place::Buffer { buffer, offset } => (None, self.plan.offsets[buffer as usize] + offset),
            Place::Outside { value, offset } => (Some(value), offset),
            Place::Nowhere => return Vec::new(),
        };
        (start..start + size).map(|byte| (base, byte)).collect()
    }

    fn write(&mut self, value: u32) {
        for (address, content) in self.addresses(value).into_iter().zip(self.expected[value as usize].clone()) {
            self.bytes.insert(address, content);
        }
    }

    fn holds(&self, value: u32) -> bool {
        let expected = &self.expected[value as usize];
        self.addresses(value).iter().zip(expected).all(|(address, content)| self.bytes.get(address) == Some(content))
    }

    /// Runs the program. An error names the operator and the input.
    fn run(&mut self) -> Result<(), String> {
        for value in 0..self.program.values.len() as u32 {
            let own = self.program.values[value as usize];
            self.expected.push((0..own.size).map(|byte| (value, byte)).collect());
            if matches!(own.life, Life::External | Life::Persistent) {
                self.write(value);
            }
        }
        for (number, operator) in self.program.operators.iter().enumerate() {
            let broken = |input: u32, when: &str| format!("operator {number} finds input {input} changed {when}");
            if let Some(&input) = operator.inputs.iter().find(|&&input| !self.holds(input)) {
                return Err(broken(input, "before it runs"));
            }
            let mut rewritten = Vec::new();
            for output in &operator.outputs {
                match output.memory {
                    Memory::View { of, offset } => {
                        let part = offset as usize..(offset + self.program.values[output.value as usize].size) as usize;
                        self.expected[output.value as usize] = self.expected[of as usize][part].to_vec();
                    }
                    Memory::Over { target, .. } => rewritten.push(target),
                    Memory::Update { of } => {
                        // All that is in that memory has the new content.
                        let home = self.addresses(of);
                        let inside = |&input: &u32| self.addresses(input).iter().any(|byte| home.contains(byte));
                        rewritten.extend(operator.inputs.iter().copied().filter(inside));
                    }
                    Memory::Fresh => {}
                }
            }
            // A view that is taken is there already.
            let there = |value: u32| self.lowered.taken.iter().any(|taken| taken.value == value && !taken.written);
            let made: Vec<u32> = operator.outputs.iter().map(|output| output.value).collect();
            for value in made.into_iter().filter(|&value| !there(value)).collect::<Vec<_>>() {
                self.write(value);
            }
            let untouched = |input: &&u32| !rewritten.contains(input) && !self.holds(**input);
            if let Some(&input) = operator.inputs.iter().find(untouched) {
                return Err(broken(input, "while it runs"));
            }
        }
        let kept = (0..self.program.values.len() as u32)
            .filter(|&value| self.program.values[value as usize].life == Life::Kept);
        match kept.filter(|&value| !self.updated(value)).find(|&value| !self.holds(value)) {
            Some(value) => Err(format!("value {value} is not kept")),
            None => Ok(()),
        }
    }

    /// Returns whether any operator updates a value later.
    fn updated(&self, value: u32) -> bool {
        let outputs = self.program.operators.iter().flat_map(|operator| &operator.outputs);
        outputs.into_iter().any(|output| output.memory == Memory::Update { of: value })
    }
}

proptest! {
    #![proptest_config(proptest_config("regressions/plan_programs.txt", 400))]

    #[test]
    fn every_operator_finds_its_inputs(
        lives in prop::collection::vec(any::<u8>(), 1..4),
        drafts in prop::collection::vec(
            (prop::collection::vec(any::<u16>(), 0..4), prop::collection::vec((0..30_u64, any::<u8>(), any::<u16>()), 0..3)),
            1..20,
        ),
        (log2, padding) in (0..4_u32, 0..5_u64),
        share in prop::bool::weighted(0.9),
        which in any::<prop::sample::Index>(),
    ) {
        let program = program(&lives, &drafts, Device { alignment: 1 << log2, padding });
        let lowered = lower(&program, share).expect("a program that makes sense");
        let problem = &lowered.problems[0];
        if problem.buffers.is_empty() {
            // No value needs memory of its own.
            return Ok(());
        }
        problem.check().expect("a problem");
        let plan = HEURISTICS[which.index(HEURISTICS.len())].plan(problem, &mut ()).expect("nobody stops it");
        prop_assert_eq!(verify(problem, &plan), Ok(()));
        let mut machine =
            Machine { program: &program, lowered: &lowered, plan: &plan, bytes: HashMap::new(), expected: Vec::new() };
        prop_assert_eq!(machine.run(), Ok(()));
    }
}
