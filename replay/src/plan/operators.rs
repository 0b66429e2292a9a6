//! Programs of operators, in JSON.
//!
//! ```json
//! {
//!   "devices":   [{"name": "gpu", "alignment": 256, "padding": 0}],
//!   "values":    [{"name": "x", "size": 4096, "device": "gpu", "life": "persistent"},
//!                 {"name": "y", "size": 4096}, {"name": "head", "size": 1024}, {"name": "z", "size": 4096}],
//!   "operators": [{"name": "mul", "inputs": ["x"], "outputs": [{"value": "y", "over": "x"}]},
//!                 {"name": "slice", "inputs": ["y"], "outputs": [{"value": "head", "view": "y", "offset": 512}]},
//!                 {"name": "add", "inputs": ["y", "head"], "outputs": [{"value": "z", "over": "y"}]}]
//! }
//! ```
//!
//! Operators run in the order of the list. Without `devices` the program has a single device.
//! `alignment` is 1 and `padding` 0 by default. `device` is the first device by default. `life` is
//! `planned` (the default: from the producing operator to the last reading operator), `kept` (never
//! released), `external` or `persistent` (memory of the program; persistent memory may be viewed).
//! An output is fresh, or an unchanged part of an input (`view`), or may overwrite a part of an
//! input without later readers (`over`), or is an input with new content (`update`). `offset` is
//! the start of the part in bytes, 0 by default. `"share": false` beside the lists refuses every
//! `view` and `over`.

use super::{Reading, Source, Task};
use crate::trace::BadInput;
use cachalot_planner::Plan;
use cachalot_planner::operators::{
    self, Device, Life, Lowered, Memory, Operator, Output, Place, Program, Refusal, Value, Wrong,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// The names behind the numbers of a program.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// The devices.
    pub devices: Vec<String>,
    /// The values.
    pub values: Vec<String>,
    /// Size of each value in bytes.
    pub sizes: Vec<u64>,
    /// The device of each value.
    pub on: Vec<u32>,
    /// The operators. Empty for an operator without a name.
    pub operators: Vec<String>,
    /// The number of the first operator for a reader: 1, or 0 where a step comes before those of
    /// the file.
    pub first: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    #[serde(borrow, default)]
    devices: Vec<&'a RawValue>,
    #[serde(borrow)]
    values: Vec<&'a RawValue>,
    #[serde(borrow)]
    operators: Vec<&'a RawValue>,
    #[serde(default = "yes")]
    share: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    alignment: Option<&'a RawValue>,
    #[serde(default)]
    padding: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueEntry<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    size: &'a RawValue,
    #[serde(borrow)]
    device: Option<&'a RawValue>,
    #[serde(default)]
    life: LifeEntry,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum LifeEntry {
    #[default]
    Planned,
    Kept,
    External,
    Persistent,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperatorEntry<'a> {
    #[serde(default)]
    name: String,
    #[serde(borrow, default)]
    inputs: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    outputs: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputEntry<'a> {
    #[serde(borrow)]
    value: &'a RawValue,
    #[serde(borrow)]
    view: Option<&'a RawValue>,
    #[serde(borrow)]
    over: Option<&'a RawValue>,
    #[serde(borrow)]
    update: Option<&'a RawValue>,
    #[serde(default)]
    offset: u64,
}

/// Reads a program, and builds a problem for each device with buffers.
pub(super) fn load(file: &Path, text: &str, reading: &Reading) -> Result<Vec<Task>, BadInput> {
    let reader = Reader { file, text };
    let document: Document<'_> = reader.parse(text)?;
    let mut names = Names { first: 1, ..Names::default() };
    let mut program = Program::default();
    reader.devices(&document, reading, &mut names, &mut program)?;
    let numbers = reader.values(&document, &mut names, &mut program)?;
    for entry in &document.operators {
        reader.operator(entry, &numbers, &mut names, &mut program)?;
    }
    let lowered = operators::lower(&program, document.share).map_err(|wrong| reader.wrong(&document, &names, wrong))?;
    tasks(file, names, lowered, &[])
}

/// Builds a problem for each device with buffers.
pub(super) fn tasks(file: &Path, names: Names, lowered: Lowered, remarks: &[String]) -> Result<Vec<Task>, BadInput> {
    let (names, lowered) = (Arc::new(names), Arc::new(lowered));
    let mut tasks = Vec::new();
    for (device, problem) in (0..).zip(&lowered.problems).filter(|(_, problem)| !problem.buffers.is_empty()) {
        problem.check().map_err(|error| BadInput::whole(file, error.to_string()))?;
        let part = if names.devices.len() > 1 { names.devices[device as usize].clone() } else { String::new() };
        let source = Source::Operators { names: names.clone(), lowered: lowered.clone(), device };
        tasks.push(Task { part, problem: problem.clone(), source, start: None, held: None, remarks: remarks.to_vec() });
    }
    if tasks.is_empty() {
        return Err(BadInput::whole(file, "no operator makes a value that needs memory: there is nothing to plan"));
    }
    Ok(tasks)
}

/// A text with the file name, for errors.
struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
}

impl<'a> Reader<'a> {
    /// Returns an error at a part of the text.
    fn at(&self, part: &str, what: impl std::fmt::Display) -> BadInput {
        self.at_byte(part.as_ptr() as usize - self.text.as_ptr() as usize, what)
    }

    fn at_byte(&self, byte: usize, what: impl std::fmt::Display) -> BadInput {
        // The parser counts bytes, and may stop inside a character.
        let end = (0..=byte.min(self.text.len())).rev().find(|&end| self.text.is_char_boundary(end)).unwrap_or(0);
        let before = &self.text[..end];
        let line = before.matches('\n').count() as u64 + 1;
        let column = before.chars().rev().take_while(|&other| other != '\n').count() + 1;
        super::at_column(self.file, line, column, what)
    }

    /// Parses a part of the text.
    fn parse<T: Deserialize<'a>>(&self, part: &'a str) -> Result<T, BadInput> {
        serde_json::from_str(part).map_err(|error| {
            let what = error.to_string();
            let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
            if !part.trim_start().starts_with(['{', '[']) {
                return self.at(part, what);
            }
            // The parser's line is relative to the part, and the column counts bytes up to the last
            // byte read.
            let line_start = match error.line().saturating_sub(1) {
                0 => 0,
                lines => part.match_indices('\n').nth(lines - 1).map_or(0, |(at, _)| at + 1),
            };
            let byte = part.as_ptr() as usize - self.text.as_ptr() as usize + line_start;
            self.at_byte(byte + error.column().saturating_sub(1), what)
        })
    }

    fn devices(
        &self,
        document: &Document<'a>,
        reading: &Reading,
        names: &mut Names,
        program: &mut Program,
    ) -> Result<(), BadInput> {
        let standard = reading.alignment.unwrap_or(1);
        for entry in &document.devices {
            let device: DeviceEntry<'a> = self.parse(entry.get())?;
            let name: String = self.parse(device.name.get())?;
            if names.devices.contains(&name) {
                return Err(self.at(device.name.get(), format!("there is a device `{name}` already")));
            }
            let alignment = device.alignment.map_or(Ok(standard), |alignment| {
                let value: u64 = self.parse(alignment.get())?;
                let accepted = "expected a power of two";
                if value.is_power_of_two() {
                    return Ok(value);
                }
                Err(self.at(alignment.get(), format!("alignment {value}: {accepted}")))
            })?;
            names.devices.push(name);
            program.devices.push(Device { alignment, padding: device.padding });
        }
        if names.devices.is_empty() {
            names.devices.push("device".to_owned());
            program.devices.push(Device { alignment: standard, padding: 0 });
        }
        Ok(())
    }

    fn values(
        &self,
        document: &Document<'a>,
        names: &mut Names,
        program: &mut Program,
    ) -> Result<HashMap<String, u32>, BadInput> {
        let mut numbers = HashMap::new();
        for (number, entry) in (0..).zip(&document.values) {
            let value: ValueEntry<'a> = self.parse(entry.get())?;
            let name: String = self.parse(value.name.get())?;
            if numbers.insert(name.clone(), number).is_some() {
                return Err(self.at(value.name.get(), format!("there is a value `{name}` already")));
            }
            let device = match value.device {
                None => 0,
                Some(device) => {
                    let name: String = self.parse(device.get())?;
                    let place = names.devices.iter().position(|other| *other == name);
                    place.ok_or_else(|| {
                        let accepted = names.devices.join(", ");
                        self.at(device.get(), format!("there is no device `{name}`: expected one of {accepted}"))
                    })?
                }
            };
            let size: u64 = self.parse(value.size.get())?;
            if size >= cachalot_core::MAX_REQUEST {
                let most = cachalot_core::MAX_REQUEST - 1;
                return Err(self.at(value.size.get(), format!("size {size}: expected 0 to {most} bytes")));
            }
            let life = match value.life {
                LifeEntry::Planned => Life::Planned,
                LifeEntry::Kept => Life::Kept,
                LifeEntry::External => Life::External,
                LifeEntry::Persistent => Life::Persistent,
            };
            names.values.push(name);
            names.sizes.push(size);
            names.on.push(device as u32);
            program.values.push(Value { size, device: device as u32, life });
        }
        Ok(numbers)
    }

    fn operator(
        &self,
        entry: &'a RawValue,
        numbers: &HashMap<String, u32>,
        names: &mut Names,
        program: &mut Program,
    ) -> Result<(), BadInput> {
        let operator: OperatorEntry<'a> = self.parse(entry.get())?;
        let value = |name: &'a RawValue| -> Result<u32, BadInput> {
            let text: String = self.parse(name.get())?;
            let unknown = || self.at(name.get(), format!("no value is named `{text}`: expected one of `values`"));
            numbers.get(&text).copied().ok_or_else(unknown)
        };
        let inputs = operator.inputs.iter().map(|&name| value(name)).collect::<Result<Vec<_>, _>>()?;
        let mut outputs = Vec::with_capacity(operator.outputs.len());
        for part in operator.outputs {
            let output: OutputEntry<'a> = self.parse(part.get())?;
            let offset = output.offset;
            let memory = match (output.view, output.over, output.update) {
                (None, None, None) if offset == 0 => Memory::Fresh,
                (Some(of), None, None) => Memory::View { of: value(of)?, offset },
                (None, Some(target), None) => Memory::Over { target: value(target)?, offset },
                (None, None, Some(of)) if offset == 0 => Memory::Update { of: value(of)? },
                _ => {
                    let accepted = "an output has at most one of `view`, `over` and `update`, and `offset` only with the first two";
                    return Err(self.at(part.get(), accepted));
                }
            };
            outputs.push(Output { value: value(output.value)?, memory });
        }
        names.operators.push(operator.name);
        program.operators.push(Operator { inputs, outputs });
        Ok(())
    }

    /// Returns an error at the operator, with the names of values.
    fn wrong(&self, document: &Document<'a>, names: &Names, wrong: Wrong) -> BadInput {
        match names.mistake(wrong) {
            Some((operator, what)) => self.at(document.operators[operator as usize].get(), what),
            None => BadInput::whole(self.file, wrong.to_string()),
        }
    }
}

impl Names {
    /// Returns the operator of a mistake, and the mistake with the names of values.
    pub(super) fn mistake(&self, wrong: Wrong) -> Option<(u32, String)> {
        let value = |value: u32| &self.values[value as usize];
        Some(match wrong {
            Wrong::ReadTooEarly { operator, value: read } => {
                (operator, format!("`{}` is read here, and no operator makes it before", value(read)))
            }
            Wrong::MadeTwice { operator, value: made } => {
                (operator, format!("`{}` is made here, but it exists already", value(made)))
            }
            Wrong::NoInput { operator, value: other } => {
                (operator, format!("an output is in `{}`: expected one of the operator's inputs", value(other)))
            }
            Wrong::Outside { operator, value: made, input } => {
                let (made, input) = (value(made), value(input));
                (operator, format!("`{made}` reaches beyond the end of `{input}`: only its inside is accepted"))
            }
            Wrong::OtherDevice { operator, value: other } => {
                (operator, format!("`{}` is updated here by a value of another device", value(other)))
            }
            Wrong::Lost { operator, value: lost, reader } => {
                let reader = self.operator(reader);
                (operator, format!("`{}` is updated here, but {reader} still reads it", value(lost)))
            }
            _ => return None,
        })
    }

    /// Returns the reason why a forward is refused.
    pub fn why(&self, refusal: &Refusal) -> String {
        let value = |value: u32| &self.values[value as usize];
        match *refusal {
            Refusal::Kept { value: kept } => format!("it would change `{}`, which is kept", value(kept)),
            Refusal::ReadLater { value: read, operator } => {
                format!("it would change `{}`, which {} reads later", value(read), self.operator(operator))
            }
            Refusal::ReadMeanwhile { value: read } => {
                format!("it would change `{}`, another input", value(read))
            }
            Refusal::Updated { operator } => {
                format!("{} changes the input before the output is read for the last time", self.operator(operator))
            }
            ref other => other.to_string(),
        }
    }

    /// Returns the number of an operator in the list, counted from 1, with the operator's name if
    /// given.
    pub fn operator(&self, operator: u32) -> String {
        let number = operator + self.first;
        match self.operators[operator as usize].as_str() {
            "" => format!("operator {number}"),
            name => format!("operator {number} (`{name}`)"),
        }
    }
}

/// Returns the position of each value of a device: `id,device,size,offset`. Values with shared
/// memory have overlapping positions.
pub(super) fn placed(names: &Names, lowered: &Lowered, device: u32, plan: &Plan) -> Vec<Vec<String>> {
    let header = ["id", "device", "size", "offset"].map(str::to_owned).to_vec();
    let row = |(value, place): (usize, &Place)| match *place {
        Place::Buffer { buffer, offset } if names.on[value] == device => Some(vec![
            names.values[value].clone(),
            names.devices[device as usize].clone(),
            names.sizes[value].to_string(),
            (plan.offsets[buffer as usize] + offset).to_string(),
        ]),
        _ => None,
    };
    std::iter::once(header).chain(lowered.places.iter().enumerate().filter_map(row)).collect()
}
