//! Graphs of trained models, ONNX's and TensorFlow Lite's, as programs of operators.
//!
//! The operators run in the order of the file. The inputs of the graph are there before the first
//! one and live until they are read for the last time; the outputs live to the end. Weights are not
//! in the plan. An operator that only gives its input another shape makes a view of it.
//!
//! A file is foreign data: a length is compared with the bytes that are there before it is used,
//! and the numbers of operators and tensors have a bound.

pub(super) mod onnx;
#[cfg(test)]
mod tests;
pub(super) mod tflite;

use super::operators::{self, Names};
use super::{Reading, Task};
use crate::trace::{BadInput, shown};
use cachalot_planner::operators::{Device, Life, Memory, Operator, Output, Program, Value, lower};
use std::path::Path;

/// Alignment in bytes of tensors: that of TensorFlow Lite's arena, and a line of the cache for ONNX
/// Runtime.
const ALIGNMENT: u64 = 64;

/// Most operators, and most tensors, that a graph may have. Published graphs have up to 100,000.
const MOST: usize = 1 << 20;

/// Returns an error if a graph has more than [`MOST`] of something.
fn bounded(count: usize, what: &str) -> Result<(), String> {
    if count <= MOST {
        return Ok(());
    }
    Err(format!("it has more than {MOST} {what}"))
}

/// Returns the bytes of a tensor with elements of `bits` bits, which are packed.
fn bytes(elements: u128, bits: u64) -> Result<u64, String> {
    let bytes = elements.saturating_mul(u128::from(bits)).div_ceil(8);
    let bytes = u64::try_from(bytes).ok().filter(|&bytes| bytes < cachalot_core::MAX_REQUEST);
    bytes.ok_or_else(|| "is 1 EiB or larger".to_owned())
}

/// Formats the names of some values, and counts the rest.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> =
        names.iter().take(SHOWN).map(|name| format!("`{}`", name.replace(['\n', '\r'], " "))).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A graph under construction.
struct Graph {
    names: Names,
    program: Program,
    weights: u64,
    weight_bytes: u64,
}

impl Graph {
    fn new(reading: &Reading) -> Self {
        let alignment = reading.alignment.unwrap_or(ALIGNMENT);
        Self {
            names: Names { devices: vec!["device".to_owned()], ..Names::default() },
            program: Program { devices: vec![Device { alignment, padding: 0 }], ..Program::default() },
            weights: 0,
            weight_bytes: 0,
        }
    }

    /// Adds a tensor, and returns its number.
    fn tensor(&mut self, name: String, size: u64, life: Life) -> u32 {
        let number = self.names.values.len() as u32;
        self.names.values.push(name);
        self.names.sizes.push(size);
        self.names.on.push(0);
        self.program.values.push(Value { size, device: 0, life });
        number
    }

    /// Adds a tensor that the file has the content of.
    fn weight(&mut self, name: String, size: u64) -> u32 {
        self.weights += 1;
        self.weight_bytes = self.weight_bytes.saturating_add(size);
        self.tensor(name, size, Life::Persistent)
    }

    /// Adds the next operator.
    fn operator(&mut self, name: String, inputs: Vec<u32>, outputs: Vec<Output>) {
        self.names.operators.push(name);
        self.program.operators.push(Operator { inputs, outputs });
    }

    /// Adds the step before the first operator, which makes the inputs of the graph.
    fn inputs(&mut self, made: impl Iterator<Item = u32>) {
        let outputs = made.map(|value| Output { value, memory: Memory::Fresh }).collect();
        self.operator("the inputs of the graph".to_owned(), Vec::new(), outputs);
    }

    /// Returns the memory of an output that has the bytes of an input, if it has as many.
    fn reshaped(&self, output: u32, input: Option<u32>) -> Memory {
        let size = |value: u32| self.program.values[value as usize].size;
        match input {
            Some(of) if size(of) == size(output) => Memory::View { of, offset: 0 },
            _ => Memory::Fresh,
        }
    }

    /// Returns the problem.
    fn problem(self, file: &Path, mut remarks: Vec<String>) -> Result<Vec<Task>, BadInput> {
        if self.weights > 0 {
            let (count, bytes) = (self.weights, shown(self.weight_bytes));
            let plural = if count == 1 { " is" } else { "s are" };
            remarks.insert(0, format!("{count} weight{plural} not in the plan: {bytes}"));
        }
        let lowered = lower(&self.program, true).map_err(|wrong| {
            let what = self.names.mistake(wrong).map_or_else(
                || wrong.to_string(),
                |(operator, what)| format!("{}: {what}", self.names.operator(operator)),
            );
            BadInput::whole(file, what)
        })?;
        operators::tasks(file, self.names, lowered, &remarks)
    }
}
