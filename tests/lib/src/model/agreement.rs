//! Whether core and model agree: on an answer, and on all segments.

use super::{Answer, Refusal, Shortage};
use cachalot_core::{Error, SnapshotSegment};
use std::fmt::Debug;

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        match error {
            Error::OutOfMemory(report) => Self::OutOfMemory(Shortage {
                requested: report.requested,
                block: report.block,
                segment: report.segment,
                allocated: report.allocated,
                reserved: report.reserved,
                pending: report.pending,
                private_free: report.private_free,
                largest_free: report.largest_free,
                largest_free_elsewhere: report.largest_free_elsewhere,
            }),
            Error::Rejected(bytes) => Self::Rejected(*bytes),
            Error::TooLarge(_) => Self::TooLarge,
            Error::InvalidPointer { .. } => Self::InvalidPointer,
            Error::WrongSize { .. } => Self::WrongSize,
            Error::UnknownPool(_) => Self::UnknownPool,
            Error::GraphMemory(_) => Self::GraphMemory,
            Error::PoolExists(_) => Self::PoolExists,
            Error::NotRouted(_) => Self::NotRouted,
            Error::Device(error) => Self::Device(*error),
            _ => Self::Unexpected,
        }
    }
}

/// Compares an answer of the core with the model's.
///
/// # Errors
/// Both answers.
pub fn of_answers<T: PartialEq + Debug>(core: &Result<T, Error>, model: &Answer<T>) -> Result<(), String> {
    let agree = match (core, model) {
        (Ok(core), Ok(model)) => core == model,
        (Err(core), Err(model)) => Refusal::from(core) == *model,
        _ => false,
    };
    if agree { Ok(()) } else { Err(format!("the core answers {core:?}, the model {model:?}")) }
}

/// Compares the segments of the core with the model's.
///
/// # Errors
/// The first segment of each that the other does not have.
pub fn of_segments(core: &[SnapshotSegment], model: &[SnapshotSegment]) -> Result<(), String> {
    if core == model {
        return Ok(());
    }
    let differing = core.iter().find(|segment| !model.contains(segment));
    let missing = model.iter().find(|segment| !core.contains(segment));
    Err(format!("the core has {differing:#?}, the model {missing:#?}"))
}
