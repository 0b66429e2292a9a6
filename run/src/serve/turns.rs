//! A wait for memory, in a group where members are parked for each other.

use crate::charge::DeviceCharge;
use crate::group::Turn;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a wait pauses between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// For how long a wait goes on that nothing would help: a new member has not told of its sleep yet.
const HOPE: Duration = Duration::from_millis(500);

/// A process that waits for memory of its group. The wait ends when dropped: the process has the
/// memory then, or gives up.
pub(super) struct InTurn {
    /// The charges of the devices that the process has waited for.
    charges: Vec<Arc<DeviceCharge>>,
    end: Instant,
    /// Whether the process has waited before.
    has_waited: bool,
}

impl InTurn {
    /// Starts a wait of at most `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self { charges: Vec::new(), end: Instant::now() + patience, has_waited: false }
    }

    /// Waits until the process is served bytes of devices, asked for at each look: the process may
    /// be parked during the wait. Pauses at least once. Returns false at the end of the patience,
    /// and where no wait helps: also for a process that is served again and again, and that the
    /// device refuses each time.
    pub(super) fn wait(&mut self, needs: impl Fn() -> Vec<(Arc<DeviceCharge>, u64)>) -> bool {
        let mut hoped = Instant::now();
        if core::mem::replace(&mut self.has_waited, true) && hoped >= self.end {
            return false;
        }
        loop {
            std::thread::sleep(PAUSE);
            let needs = needs();
            for (charge, _) in &needs {
                if self.charges.iter().all(|known| !Arc::ptr_eq(known, charge)) {
                    self.charges.push(Arc::clone(charge));
                }
            }
            let turns: Vec<Turn> = needs.iter().map(|(charge, bytes)| charge.turn(*bytes)).collect();
            if turns.iter().all(|&turn| turn == Turn::Served) {
                return true;
            }
            let now = Instant::now();
            if !turns.contains(&Turn::Hopeless) {
                hoped = now;
            }
            if now.duration_since(hoped) >= HOPE || now >= self.end {
                return false;
            }
        }
    }
}

impl Drop for InTurn {
    fn drop(&mut self) {
        self.charges.iter().for_each(|charge| charge.end_wait());
    }
}
