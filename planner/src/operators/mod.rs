//! Converts a program of operators to planning problems: decides how long each value needs memory,
//! and which values may share it.
//!
//! Operators run in the order of the list. The position of an operator is the step in the
//! [`Problem`]s. The buffer of a value lives from the operator that makes the value up to and
//! including its last reader. The rules are those of `seq_mem_opt` in MegEngine (2022).

mod check;
mod lower;

pub use check::Wrong;
pub use lower::lower;

use super::Problem;
use alloc::vec::Vec;
use core::fmt;

/// The owner and the lifetime of a value's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The plan owns the memory, from the maker of the value to its last reader.
    Planned,
    /// The plan owns the memory, from the maker of the value to the end of the program and beyond.
    Kept,
    /// The program owns the memory and may free or reuse it at any time. No other value may be
    /// there.
    External,
    /// The program owns the memory permanently. Views may be there; only an
    /// [update](Memory::Update) may write there.
    Persistent,
}

/// A value that operators read or make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// The length in bytes. A value of length 0 needs no memory.
    pub size: u64,
    /// The index of the device in [`Program::devices`].
    pub device: u32,
    /// The owner and the lifetime of the memory.
    pub life: Life,
}

/// The source of the memory of an output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// New memory, which no other value shares at first.
    Fresh,
    /// A part of an input, unchanged (MegEngine: read-only forward). If refused, the output is a
    /// copy in new memory.
    View {
        /// The number of the input value in [`Program::values`].
        of: u32,
        /// The distance in bytes from the start of the input to the output.
        offset: u64,
    },
    /// Preferably a part of an input, which the output overwrites while the operator still reads
    /// the input (MegEngine: write forward). If refused, the output gets new memory.
    Over {
        /// The number of the input value in [`Program::values`].
        target: u32,
        /// The distance in bytes from the start of the input to the output.
        offset: u64,
    },
    /// The memory of an input, with new content. An update is the effect of the operator, so it
    /// cannot be refused.
    Update {
        /// The number of the input value in [`Program::values`].
        of: u32,
    },
}

/// An output of an operator, with the memory it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Output {
    /// The number of the value in [`Program::values`].
    pub value: u32,
    /// The source of the memory of the value.
    pub memory: Memory,
}

/// A step of the program, which reads and makes values.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Operator {
    /// The values that the operator reads.
    pub inputs: Vec<u32>,
    /// The values that the operator makes.
    pub outputs: Vec<Output>,
}

/// The rules for all buffers in the memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The alignment of all offsets, a power of two.
    pub alignment: u64,
    /// The bytes that are added to the size of each value.
    pub padding: u64,
}

/// A program: operators with their values and devices.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Program {
    /// The devices of the program, numbered from 0.
    pub devices: Vec<Device>,
    /// The values of the program, numbered from 0.
    pub values: Vec<Value>,
    /// The operators in execution order.
    pub operators: Vec<Operator>,
}

/// The memory location of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Inside a buffer of the device's problem.
    Buffer {
        /// The number of the buffer.
        buffer: u32,
        /// The distance in bytes from the start of the buffer.
        offset: u64,
    },
    /// Inside the memory of an external or persistent value, possibly the value itself.
    Outside {
        /// The number of the external or persistent value.
        value: u32,
        /// The distance in bytes from the start of the external or persistent value.
        offset: u64,
    },
    /// No location, because the value has no bytes, or because no operator makes it.
    Nowhere,
}

/// A forward that the program offers: `value`, an output of `operator`, may be inside `input`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward {
    /// The number of the operator in execution order.
    pub operator: u32,
    /// The number of the output value in [`Program::values`].
    pub value: u32,
    /// The number of the input value in [`Program::values`].
    pub input: u32,
    /// The distance in bytes from the start of the input to the output.
    pub offset: u64,
    /// Whether the output overwrites the input. If false, the output is an unchanged part of the
    /// input.
    pub written: bool,
}

/// The reason why a forward is refused. In this case the output gets new memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// Sharing was not requested.
    NotWanted,
    /// The two values are on different devices.
    OtherDevice,
    /// A value has no bytes.
    NoBytes,
    /// The input is external, so the program may free or reuse its memory at any time.
    External,
    /// The write would change a persistent value.
    Persistent,
    /// The write would change a value that is never freed.
    Kept {
        /// The number of the value in [`Program::values`].
        value: u32,
    },
    /// The write would change a value that a later operator reads.
    ReadLater {
        /// The number of the value in [`Program::values`].
        value: u32,
        /// The number of the later operator in execution order.
        operator: u32,
    },
    /// The write would change another input of the operator.
    ReadMeanwhile {
        /// The number of the other input value in [`Program::values`].
        value: u32,
    },
    /// An operator updates the input's memory before the last read of the output.
    Updated {
        /// The number of the updating operator in execution order.
        operator: u32,
    },
    /// A larger or earlier output already overwrites the input.
    Taken,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWanted => write!(f, "nothing is to be shared"),
            Self::OtherDevice => write!(f, "the input is on another device"),
            Self::NoBytes => write!(f, "there are no bytes to share"),
            Self::External => write!(f, "the input's memory is external"),
            Self::Persistent => write!(f, "it would change a persistent value"),
            Self::Kept { value } => write!(f, "it would change value {value}, which is never given back"),
            Self::ReadLater { value, operator } => {
                write!(f, "it would change value {value}, which operator {operator} reads later")
            }
            Self::ReadMeanwhile { value } => write!(f, "it would change value {value}, another input of the operator"),
            Self::Updated { operator } => {
                write!(f, "operator {operator} changes the input before the output is read for the last time")
            }
            Self::Taken => write!(f, "a larger or earlier output is written over the same memory"),
        }
    }
}

/// The planning problems of a program, with the location of every value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lowered {
    /// One problem for each device. A problem without buffers needs no plan, and fails
    /// [`Problem::check`].
    pub problems: Vec<Problem>,
    /// The location of each value, by its number.
    pub places: Vec<Place>,
    /// The accepted forwards in program order, views before writes.
    pub taken: Vec<Forward>,
    /// The refused forwards, each with the reason.
    pub refused: Vec<(Forward, Refusal)>,
}
