//! Functions and graphs launched by the program.
//!
//! The driver loads code lazily: not with the module, but with the first launch of a function in a
//! context. What a graph needs on the device is taken at its first launch, too. With full books,
//! the first launch of each function and graph is measured as the load of a module is. Without full
//! books, a launch costs a load of a flag.

use crate::serve::signs::tells_first_launches;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Slots of the table. A process of `PyTorch` launches some hundred functions and graphs.
const SLOTS: usize = 1 << 14;

/// Upper bound for the slots looked at before a function counts as launched.
const PROBES: usize = 32;

/// Handles of launched functions and graphs. A slot changes once, from 0. A function is counted
/// once for all contexts, and a handle reused by the driver for another function or graph counts as
/// launched.
static LAUNCHED: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];

/// Returns whether a function or a graph is launched for the first time since the books started.
/// Always false before first launches are told apart.
#[inline]
pub fn is_first_launch(handle: usize) -> bool {
    tells_first_launches() && note(&LAUNCHED, handle)
}

/// Notes a handle in a table. Returns whether the table had room and did not have the handle.
fn note(table: &[AtomicUsize], handle: usize) -> bool {
    if handle == 0 {
        return false;
    }
    // The product's upper bits depend on all bits of the handle.
    let start = (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % table.len();
    for step in 0..PROBES.min(table.len()) {
        let slot = &table[(start + step) % table.len()];
        let known = match slot.load(Ordering::Relaxed) {
            0 => match slot.compare_exchange(0, handle, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(faster) => faster,
            },
            known => known,
        };
        if known == handle {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::note;
    use core::sync::atomic::AtomicUsize;

    #[test]
    fn each_handle_is_new_once_until_the_table_is_full() {
        let table: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(0)).collect();
        assert!(!note(&table, 0));
        for handle in 1..=8 {
            assert!(note(&table, handle * 4096), "{handle}");
            assert!(!note(&table, handle * 4096), "{handle}");
        }
        assert!(!note(&table, 9 * 4096));
    }
}
