//! From operators to buffers: who needs how many bytes for how long, and who may lie where another lies already.
//!
//! Operators run in the order of the list; its positions are the steps of the [`Problem`]s. A value's buffer begins with the
//! operator that makes it and ends behind the last one that reads it. The rules are those of `seq_mem_opt` of MegEngine (2022).

mod check;
mod lower;

pub use check::Wrong;
pub use lower::lower;

use super::Problem;
use alloc::vec::Vec;
use core::fmt;

/// Who answers for a value's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The plan, from the operator that makes the value to the last that reads it.
    Planned,
    /// The plan, from the operator that makes the value to the end of time.
    Kept,
    /// The program, which may give it back or reuse it at any time: nothing else lies there.
    External,
    /// The program, for good: a view may lie there, but nobody may write there but an [update](Memory::Update).
    Persistent,
}

/// What operators read and make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// Its length in bytes. Without any it needs no memory.
    pub size: u64,
    /// Whose memory it lies in, in [`Program::devices`].
    pub device: u32,
    /// Who answers for that memory.
    pub life: Life,
}

/// Where the memory of an output may come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// It needs memory of its own.
    Fresh,
    /// It is a part of an input, unchanged: a read-only forward. Refused, it is a copy with memory of its own.
    View {
        /// The input.
        of: u32,
        /// Where in it the output begins, in bytes.
        offset: u64,
    },
    /// It may be written over a part of an input, while the operator still reads that: a write forward. Refused, it has memory of its own.
    Over {
        /// The input.
        target: u32,
        /// Where in it the output begins, in bytes.
        offset: u64,
    },
    /// It is an input with new content, in the same memory. This is what the operator does, so it cannot be refused.
    Update {
        /// The input.
        of: u32,
    },
}

/// What an operator makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Output {
    /// The value.
    pub value: u32,
    /// Where its memory may come from.
    pub memory: Memory,
}

/// A step of the program.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Operator {
    /// The values that it reads.
    pub inputs: Vec<u32>,
    /// The values that it makes.
    pub outputs: Vec<Output>,
}

/// What buffers are like on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// What offsets are multiples of; a power of two.
    pub alignment: u64,
    /// How many bytes are added to every size.
    pub padding: u64,
}

/// Operators and what they work with.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Program {
    /// The devices, numbered from 0.
    pub devices: Vec<Device>,
    /// The values, numbered from 0.
    pub values: Vec<Value>,
    /// The operators, in the order in which they run.
    pub operators: Vec<Operator>,
}

/// Where a value lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a buffer of its device's problem.
    Buffer {
        /// The buffer.
        buffer: u32,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// In the memory of an external or persistent value; that may be the value itself.
    Outside {
        /// That value.
        value: u32,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// Nowhere: it has no bytes, or no operator makes it.
    Nowhere,
}

/// A forward that the program offered: output `value` of `operator`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward {
    /// The operator.
    pub operator: u32,
    /// Its output.
    pub value: u32,
    /// The input whose memory it was to have.
    pub input: u32,
    /// Where in the input, in bytes.
    pub offset: u64,
    /// Whether it was to be written there, not to be there unchanged.
    pub written: bool,
}

/// Why a forward is not taken: the output has memory of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing was to be shared.
    NotWanted,
    /// The two values are on different devices.
    OtherDevice,
    /// One of them has no bytes.
    NoBytes,
    /// The input's memory is the program's, which may do with it what it likes.
    External,
    /// It would change a persistent value.
    Persistent,
    /// It would change a value that is never given back.
    Kept {
        /// That value.
        value: u32,
    },
    /// It would change a value that a later operator reads.
    ReadLater {
        /// That value.
        value: u32,
        /// The operator.
        operator: u32,
    },
    /// It would change another input of the operator.
    ReadMeanwhile {
        /// That input.
        value: u32,
    },
    /// The input's memory gets new content before the output is read for the last time.
    Updated {
        /// The operator that changes it.
        operator: u32,
    },
    /// A larger or earlier output is written over the same memory.
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

/// What is to be planned for a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lowered {
    /// The problem of each device. One without buffers needs no plan (and passes no check).
    pub problems: Vec<Problem>,
    /// Where each value lies.
    pub places: Vec<Place>,
    /// The forwards that are taken, in the order of the program, views first.
    pub taken: Vec<Forward>,
    /// Those that are not, and why.
    pub refused: Vec<(Forward, Refusal)>,
}
