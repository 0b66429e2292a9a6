//! Models of TensorFlow Lite, which are flatbuffers.
//!
//! Of the format, these fields are read, by their numbers in the tables:
//!
//! ```text
//! model     1 operator codes  2 subgraphs  4 buffers
//! subgraph  0 tensors  1 inputs  2 outputs  3 operators
//! tensor    0 shape  1 kind of element  2 buffer  3 name  5 is variable  7 shape with what varies
//! operator  0 operator code  1 inputs  2 outputs
//! code      0 number below 127  1 name  3 number
//! buffer    0 content  1 place of the content behind the tables  2 its length
//! ```
//!
//! The first subgraph is planned. A tensor whose buffer has content is a weight. A variable is kept
//! between two runs, so it lives all the time.

use super::{Graph, bounded, bytes, some};
use crate::plan::{Reading, Task};
use crate::trace::BadInput;
use cachalot_planner::operators::{Life, Memory, Output};
use planus::errors::ErrorKind;
use planus::table_reader::Table;
use planus::{SliceWithStartOffset, TableRead, Vector};
use std::collections::HashSet;
use std::path::Path;

/// Operators whose output has the bytes of the first input, by their numbers, with their names.
const VIEWS: [(i32, &str); 3] = [(22, "RESHAPE"), (43, "SQUEEZE"), (70, "EXPAND_DIMS")];

/// The number of an operator that has only a name.
const CUSTOM: i32 = 32;

/// Reads the first subgraph of a model, and builds its problem.
pub(in crate::plan) fn load(file: &Path, model: &[u8], reading: &Reading) -> Result<Vec<Task>, BadInput> {
    let unreadable =
        |why: String| BadInput::whole(file, format!("this model of TensorFlow Lite cannot be read: {why}"));
    let parts = LiteParts::read(model).map_err(unreadable)?;
    let mut builder =
        LiteBuilder { parts: &parts, graph: Graph::new(reading), numbers: Vec::new(), varying: Vec::new() };
    builder.build().map_err(unreadable)?;
    let LiteBuilder { graph, varying, .. } = builder;
    let mut remarks = Vec::new();
    if !varying.is_empty() {
        let some = some(&varying);
        let (tensors, count) = match varying.len() {
            1 => ("1 tensor".to_owned(), "counts"),
            many => (format!("{many} tensors"), "count"),
        };
        remarks.push(format!(
            "{tensors} may have another shape when the model runs, and {count} with the stored one: {some}"
        ));
    }
    if parts.subgraphs > 1 {
        let count = parts.subgraphs;
        remarks.push(format!("the first of {count} subgraphs is planned: what the others need is not in the plan"));
    }
    graph.problem(file, remarks)
}

/// A list of tables.
#[derive(Clone, Copy)]
struct Tables<'m> {
    at: SliceWithStartOffset<'m>,
    count: usize,
}

impl<'m> TableRead<'m> for Tables<'m> {
    fn from_buffer(buffer: SliceWithStartOffset<'m>, offset: usize) -> Result<Self, ErrorKind> {
        let distance = u32::from_buffer(buffer, offset)? as usize;
        let at = buffer.advance(offset.checked_add(distance).ok_or(ErrorKind::InvalidOffset)?)?;
        let count = u32::from_buffer(at, 0)? as usize;
        if count > (at.len() - 4) / 4 {
            return Err(ErrorKind::InvalidLength);
        }
        Ok(Self { at, count })
    }
}

impl<'m> Tables<'m> {
    const NONE: Self = Self { at: SliceWithStartOffset { buffer: &[], offset_from_start: 0 }, count: 0 };

    fn get(self, number: usize) -> Result<Table<'m>, String> {
        if number >= self.count {
            return Err(format!("part {number} of {} does not exist", self.count));
        }
        Table::from_buffer(self.at, 4 + 4 * number).map_err(|error| damaged(&error))
    }
}

fn damaged(error: &impl std::fmt::Display) -> String {
    format!("the file is truncated or damaged ({error})")
}

/// Reads a field of a table. `None` if the table does not have it.
fn field<'m, T: TableRead<'m>>(table: &Table<'m>, number: usize) -> Result<Option<T>, String> {
    table.access(number, "table", "field").map_err(|error| damaged(&error.error_kind))
}

/// A list of numbers.
type Numbers<'m> = Option<Vector<'m, i32>>;

fn each(numbers: Numbers<'_>) -> impl Iterator<Item = i32> {
    numbers.into_iter().flat_map(Vector::iter)
}

/// The parts of a model.
struct LiteParts<'m> {
    codes: Tables<'m>,
    buffers: Tables<'m>,
    tensors: Tables<'m>,
    operators: Tables<'m>,
    inputs: Numbers<'m>,
    outputs: Numbers<'m>,
    subgraphs: usize,
    /// Most elements that all lists together may have: the parts of a flatbuffer may be the same
    /// bytes, so a short file could have long lists.
    most: usize,
}

impl<'m> LiteParts<'m> {
    fn read(model: &'m [u8]) -> Result<Self, String> {
        let start = SliceWithStartOffset { buffer: model, offset_from_start: 0 };
        let root = Table::from_buffer(start, 0).map_err(|error| damaged(&error))?;
        let tables = |table: &Table<'m>, number| Ok::<_, String>(field(table, number)?.unwrap_or(Tables::NONE));
        let subgraphs = tables(&root, 2)?;
        if subgraphs.count == 0 {
            return Err("it has no subgraph".to_owned());
        }
        let first = subgraphs.get(0)?;
        let (tensors, operators) = (tables(&first, 0)?, tables(&first, 3)?);
        bounded(tensors.count, "tensors")?;
        bounded(operators.count, "operators")?;
        Ok(Self {
            codes: tables(&root, 1)?,
            buffers: tables(&root, 4)?,
            tensors,
            operators,
            inputs: field(&first, 1)?,
            outputs: field(&first, 2)?,
            subgraphs: subgraphs.count,
            most: model.len() / 4,
        })
    }

    /// Returns whether a buffer has content.
    fn has_content(&self, number: u32) -> Result<bool, String> {
        if number as usize >= self.buffers.count {
            return Ok(false);
        }
        let buffer = self.buffers.get(number as usize)?;
        let content: Option<&[u8]> = field(&buffer, 0)?;
        // Where the tables alone have 2 GiB, the content is behind them.
        let length: u64 = field(&buffer, 2)?.unwrap_or(0);
        Ok(content.is_some_and(|content| !content.is_empty()) || length > 1)
    }

    /// Returns the number and the name of an operator.
    fn code(&self, number: u32) -> Result<(i32, String), String> {
        let code = self.codes.get(number as usize)?;
        let early: i8 = field(&code, 0)?.unwrap_or(0);
        let number = field(&code, 3)?.unwrap_or(0).max(i32::from(early));
        let name: Option<&str> = if number == CUSTOM { field(&code, 1)? } else { None };
        let known = VIEWS.iter().find(|(view, _)| *view == number).map(|(_, name)| *name);
        Ok((number, name.or(known).map_or_else(|| format!("builtin {number}"), str::to_owned)))
    }
}

/// Returns the bits of an element. `None` for texts, and for kinds that are not known here.
fn bits(kind: i8) -> Option<u64> {
    Some(match kind {
        3 | 6 | 9 | 21 | 22 => 8,
        1 | 7 | 16 | 18 => 16,
        0 | 2 | 15 => 32,
        4 | 8 | 10 | 12 => 64,
        11 => 128,
        17 | 20 => 4,
        19 => 2,
        _ => return None,
    })
}

/// Builds the graph.
struct LiteBuilder<'m, 'r> {
    parts: &'r LiteParts<'m>,
    graph: Graph,
    /// The number in the graph of each tensor.
    numbers: Vec<u32>,
    /// Tensors with dimensions that may vary.
    varying: Vec<String>,
}

impl LiteBuilder<'_, '_> {
    fn build(&mut self) -> Result<(), String> {
        let parts = self.parts;
        let mut left = parts.most;
        let mut spend = |count: usize| {
            left = left.checked_sub(count).ok_or("its lists are longer than the file")?;
            Ok::<_, String>(())
        };
        let (mut made, mut outputs) = (HashSet::new(), HashSet::new());
        for list in [parts.inputs, parts.outputs] {
            spend(list.map_or(0, Vector::len))?;
        }
        made.extend(each(parts.inputs));
        outputs.extend(each(parts.outputs));
        let mut operators = Vec::with_capacity(parts.operators.count);
        for number in 0..parts.operators.count {
            let operator = parts.operators.get(number)?;
            let (reads, makes): (Numbers<'_>, Numbers<'_>) = (field(&operator, 1)?, field(&operator, 2)?);
            spend(1 + reads.map_or(0, Vector::len) + makes.map_or(0, Vector::len))?;
            made.extend(each(makes));
            operators.push((field(&operator, 0)?.unwrap_or(0_u32), reads, makes));
        }
        let mut starts: Vec<i32> = each(parts.inputs).collect();
        for number in 0..parts.tensors.count {
            let is_variable = self.tensor(number, &made, &outputs, &mut spend)?;
            if is_variable && !made.contains(&(number as i32)) {
                starts.push(number as i32);
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let starts = starts.into_iter().map(|number| self.number(number)).collect::<Result<Vec<u32>, _>>()?;
        let starts: Vec<u32> = starts.into_iter().filter(|&value| !self.is_weight(value)).collect();
        self.graph.inputs(starts.into_iter());
        for (code, reads, makes) in operators {
            self.operator(code, reads, makes)?;
        }
        Ok(())
    }

    /// Adds a tensor. Returns whether it is a variable.
    fn tensor(
        &mut self,
        number: usize,
        made: &HashSet<i32>,
        outputs: &HashSet<i32>,
        spend: &mut impl FnMut(usize) -> Result<(), String>,
    ) -> Result<bool, String> {
        let tensor = self.parts.tensors.get(number)?;
        let name: &str = field(&tensor, 3)?.unwrap_or_default();
        let (shape, varies): (Numbers<'_>, Numbers<'_>) = (field(&tensor, 0)?, field(&tensor, 7)?);
        spend(1 + name.len() / 4 + shape.map_or(0, Vector::len) + varies.map_or(0, Vector::len))?;
        // Names need not differ, and the numbers do.
        let name = if name.is_empty() { format!("tensor {number}") } else { format!("{name} ({number})") };
        let is_variable: bool = field(&tensor, 5)?.unwrap_or(false);
        let content = self.parts.has_content(field(&tensor, 2)?.unwrap_or(0_u32))?;
        let is_made = made.contains(&(number as i32)) || is_variable;
        let size = size(shape, field(&tensor, 1)?.unwrap_or(0_i8));
        // A weight without elements has no content either.
        let is_weight = content && !is_variable || !is_made && size == Ok(0);
        let number = if is_weight {
            self.graph.weight(name, size.unwrap_or(0))
        } else {
            let size = if is_made { size.map_err(|what| format!("`{name}` {what}"))? } else { 0 };
            if is_made && each(varies).any(|dimension| dimension < 0) {
                self.varying.push(name.clone());
            }
            let is_kept = is_variable || outputs.contains(&(number as i32));
            self.graph.tensor(name, size, if is_kept { Life::Kept } else { Life::Planned })
        };
        self.numbers.push(number);
        Ok(is_variable)
    }

    fn is_weight(&self, value: u32) -> bool {
        self.graph.program.values[value as usize].life == Life::Persistent
    }

    /// Returns the number in the graph of a tensor.
    fn number(&self, tensor: i32) -> Result<u32, String> {
        let number = usize::try_from(tensor).ok().and_then(|number| self.numbers.get(number));
        number.copied().ok_or_else(|| format!("there is no tensor {tensor}"))
    }

    fn operator(&mut self, code: u32, reads: Numbers<'_>, makes: Numbers<'_>) -> Result<(), String> {
        let (code, name) = self.parts.code(code)?;
        // An optional input that is left out has the number -1.
        let reads = each(reads).filter(|&tensor| tensor >= 0).map(|tensor| self.number(tensor));
        let inputs = reads.collect::<Result<Vec<u32>, _>>()?;
        let first = inputs.first().copied();
        let is_view = VIEWS.iter().any(|(view, _)| *view == code);
        let mut outputs = Vec::new();
        for value in each(makes).filter(|&tensor| tensor >= 0).map(|tensor| self.number(tensor)) {
            let value = value?;
            if !self.is_weight(value) {
                let memory = if is_view { self.graph.reshaped(value, first) } else { Memory::Fresh };
                outputs.push(Output { value, memory });
            }
        }
        self.graph.operator(name, inputs, outputs);
        Ok(())
    }
}

/// Returns the bytes of a tensor.
fn size(shape: Numbers<'_>, kind: i8) -> Result<u64, String> {
    let bits = bits(kind).ok_or("has elements without a fixed length, as texts have")?;
    let mut elements = 1_u128;
    for dimension in each(shape) {
        let dimension = u128::try_from(dimension).map_err(|_| "has a dimension that is not known".to_owned())?;
        elements = elements.saturating_mul(dimension);
    }
    bytes(elements, bits)
}
