//! Checks a program of operators before lowering.

use super::{Life, Memory, Output, Program};
use alloc::vec;
use core::fmt;

/// The reason why a program cannot be lowered. Operators, values and devices are named by their
/// numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wrong {
    /// The program has more operators or values than a 32-bit number can name.
    TooMany,
    /// A value is on a device that does not exist.
    NoSuchDevice {
        /// The number of the value in [`Program::values`].
        value: u32,
        /// The number of the device in [`Program::devices`].
        device: u32,
    },
    /// An operator names a value that does not exist.
    NoSuchValue {
        /// The number of the operator in execution order.
        operator: u32,
        /// The number without a value in [`Program::values`].
        value: u32,
    },
    /// An operator reads a value before any operator makes it.
    ReadTooEarly {
        /// The number of the operator in execution order.
        operator: u32,
        /// The number of the value in [`Program::values`].
        value: u32,
    },
    /// An operator makes a value that exists already.
    MadeTwice {
        /// The number of the operator in execution order.
        operator: u32,
        /// The number of the value in [`Program::values`].
        value: u32,
    },
    /// An output should be in a value that is not an input of the operator.
    NoInput {
        /// The number of the operator in execution order.
        operator: u32,
        /// The number of the value in [`Program::values`].
        value: u32,
    },
    /// An output reaches beyond the end of its input.
    Outside {
        /// The number of the operator in execution order.
        operator: u32,
        /// The number of the output value in [`Program::values`].
        value: u32,
        /// The number of the input value in [`Program::values`].
        input: u32,
    },
    /// An operator updates a value of another device.
    OtherDevice {
        /// The number of the operator in execution order.
        operator: u32,
        /// The number of the value in [`Program::values`].
        value: u32,
    },
    /// An operator updates a value that a later operator still reads, or updates a value twice.
    Lost {
        /// The number of the operator in execution order.
        operator: u32,
        /// The number of the value in [`Program::values`].
        value: u32,
        /// The number of the later operator in execution order.
        reader: u32,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooMany => write!(f, "there are more than {} operators or values", u32::MAX - 1),
            Self::NoSuchDevice { value, device } => {
                write!(f, "value {value} is on device {device}, which does not exist")
            }
            Self::NoSuchValue { operator, value } => {
                write!(f, "operator {operator} names value {value}, which does not exist")
            }
            Self::ReadTooEarly { operator, value } => {
                write!(f, "operator {operator} reads value {value}, which is not made before")
            }
            Self::MadeTwice { operator, value } => {
                write!(f, "operator {operator} makes value {value}, which there is already")
            }
            Self::NoInput { operator, value } => {
                write!(f, "operator {operator} has an output in value {value}, which is none of its inputs")
            }
            Self::Outside { operator, value, input } => {
                write!(f, "operator {operator} has output {value} reach beyond the end of input {input}")
            }
            Self::OtherDevice { operator, value } => {
                write!(f, "operator {operator} updates value {value}, which is on another device than the output")
            }
            Self::Lost { operator, value, reader } => {
                write!(f, "operator {operator} updates value {value}, which operator {reader} still reads")
            }
        }
    }
}

impl core::error::Error for Wrong {}

impl Program {
    /// Checks that the program can be lowered.
    ///
    /// # Errors
    /// The first defect that is found.
    pub fn check(&self) -> Result<(), Wrong> {
        if self.values.len() >= u32::MAX as usize || self.operators.len() >= u32::MAX as usize {
            return Err(Wrong::TooMany);
        }
        for (number, value) in (0..).zip(&self.values) {
            if value.device as usize >= self.devices.len() {
                return Err(Wrong::NoSuchDevice { value: number, device: value.device });
            }
        }
        let outside = |life| matches!(life, Life::External | Life::Persistent);
        let mut there: vec::Vec<bool> = self.values.iter().map(|value| outside(value.life)).collect();
        // For each value, the operator that has given its memory new content.
        let mut updated = vec![None; self.values.len()];
        for (number, operator) in (0..).zip(&self.operators) {
            let missing = |value| Wrong::NoSuchValue { operator: number, value };
            for &value in &operator.inputs {
                if !*there.get(value as usize).ok_or(missing(value))? {
                    return Err(Wrong::ReadTooEarly { operator: number, value });
                }
                if let Some(operator) = updated[value as usize] {
                    return Err(Wrong::Lost { operator, value, reader: number });
                }
            }
            for output in &operator.outputs {
                let there = there.get_mut(output.value as usize).ok_or(missing(output.value))?;
                if core::mem::replace(there, true) {
                    return Err(Wrong::MadeTwice { operator: number, value: output.value });
                }
                self.check_memory(number, *output)?;
                let Memory::Update { of } = output.memory else { continue };
                if self.values[of as usize].device != self.values[output.value as usize].device {
                    return Err(Wrong::OtherDevice { operator: number, value: of });
                }
                if updated[of as usize].replace(number).is_some() {
                    return Err(Wrong::Lost { operator: number, value: of, reader: number });
                }
            }
        }
        Ok(())
    }

    /// Checks that an output is inside an input of its operator.
    fn check_memory(&self, operator: u32, output: Output) -> Result<(), Wrong> {
        let (input, offset) = match output.memory {
            Memory::Fresh => return Ok(()),
            Memory::View { of: input, offset } | Memory::Over { target: input, offset } => (input, offset),
            Memory::Update { of } => (of, 0),
        };
        if !self.operators[operator as usize].inputs.contains(&input) {
            return Err(Wrong::NoInput { operator, value: input });
        }
        let size = self.values[output.value as usize].size;
        match offset.checked_add(size) {
            Some(end) if end <= self.values[input as usize].size => Ok(()),
            _ => Err(Wrong::Outside { operator, value: output.value, input }),
        }
    }
}
