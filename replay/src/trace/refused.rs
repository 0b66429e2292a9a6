//! Says of a file that no command can use what it is, and what it says of memory all the same.

use super::kind::Kind;
use super::{timeline, vma};
use std::io::BufRead;

/// Returns why a file of a kind cannot be used. `None` if it may be.
pub(super) fn described(kind: Kind, reader: &mut dyn BufRead) -> Option<String> {
    match kind {
        Kind::Timeline => Some(timeline::described(reader)),
        Kind::Vma => Some(vma::described(reader)),
        _ => kind.refused().map(str::to_owned),
    }
}
