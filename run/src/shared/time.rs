//! Times as numbers.

use std::time::Duration;

/// Returns a time in milliseconds. A longer time than the number can hold is the longest.
pub fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
