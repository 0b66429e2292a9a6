//! Cuts a program into an earlier and a later part, each of which is a program.

use super::{Operation, Program};
use cachalot_core::{PoolId, StreamId};

/// The least number of requests in a part.
const LEAST_REQUESTS: usize = 16;

/// A block that is live at the cut.
#[derive(Clone, Copy)]
struct Held {
    /// The number of the operation that requested it.
    request: usize,
    bytes: u64,
    stream: StreamId,
    /// The way in which it was requested.
    way: Way,
}

/// Where a request goes: into a pool, or into the graph that is being captured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Pool(PoolId),
    Captured,
}

impl Way {
    const DEFAULT: Self = Self::Pool(PoolId::DEFAULT);

    /// Changes the way of later requests.
    fn turn(&mut self, operation: Operation) {
        match operation {
            Operation::BeginCapture => *self = Self::Captured,
            Operation::EndCapture => *self = Self::DEFAULT,
            Operation::Route { pool } => *self = Self::Pool(pool),
            _ => {}
        }
    }
}

impl Program {
    /// Returns the earlier and the later part of the program. The later part starts with requests
    /// for all blocks that are live at the end of the earlier part, in the order of their requests.
    /// Returns `None` if either part would have fewer than 16 requests.
    ///
    /// The cut is where the fewest bytes are live, between two and three fifths of the operations
    /// and where requests go to the default pool. In a training run this is between two iterations.
    pub fn halves(&self) -> Option<(Self, Self)> {
        let at = self.place_to_cut()?;
        let operations = self.operations[..at].to_vec();
        let earlier = Self { operations, slots: self.slots, start: self.start.min(at) };
        let later = self.rest_from(at);
        let requests = |operations: &[Operation]| operations.iter().filter(|made| made.is_request()).count();
        let counts = [requests(&self.operations[..at]), requests(&self.operations[at..])];
        counts.iter().all(|&count| count >= LEAST_REQUESTS).then_some((earlier, later))
    }

    fn place_to_cut(&self) -> Option<usize> {
        let count = self.operations.len();
        let mut way = Way::DEFAULT;
        let places = self.operations.iter().zip(self.live_bytes()).enumerate().filter_map(|(at, (operation, live))| {
            way.turn(*operation);
            let is_near = (count * 2 / 5..count * 3 / 5).contains(&at);
            (is_near && way == Way::DEFAULT).then_some((live, at + 1))
        });
        places.min().map(|(_, at)| at)
    }

    /// Returns the program from operation number `at` on, after requests for the blocks that are
    /// live there.
    fn rest_from(&self, at: usize) -> Self {
        let mut held: Vec<Option<Held>> = vec![None; self.slots as usize];
        let mut uses: Vec<Vec<StreamId>> = vec![Vec::new(); self.slots as usize];
        let (mut way, mut capturing) = (Way::DEFAULT, None);
        for (request, &operation) in self.operations[..at].iter().enumerate() {
            way.turn(operation);
            match operation {
                Operation::Malloc { bytes, stream, slot } => {
                    held[slot as usize] = Some(Held { request, bytes, stream, way });
                    uses[slot as usize].clear();
                }
                Operation::Free { slot } => held[slot as usize] = None,
                Operation::RecordStream { slot, stream } => uses[slot as usize].push(stream),
                Operation::Capture { stream } => capturing = Some(stream),
                _ => {}
            }
        }
        let found = held.iter().zip(0..).filter_map(|(held, slot)| Some(((*held)?, slot)));
        let mut found: Vec<(Held, u32)> = found.collect();
        found.sort_unstable_by_key(|(held, _)| held.request);
        let malloc = |&(Held { bytes, stream, .. }, slot): &(Held, u32)| Operation::Malloc { bytes, stream, slot };
        let of = |way: Way| found.iter().filter(move |(held, _)| held.way == way).map(malloc);
        let mut operations: Vec<Operation> = of(Way::DEFAULT).collect();
        for pool in pools(&found) {
            operations.push(Operation::Route { pool });
            operations.extend(of(Way::Pool(pool)));
            operations.push(Operation::Route { pool: PoolId::DEFAULT });
        }
        let captured: Vec<Operation> = of(Way::Captured).collect();
        if let Some(stream) = capturing.filter(|_| !captured.is_empty()) {
            operations.extend([Operation::BeginCapture, Operation::Capture { stream }]);
            operations.extend(captured);
            operations.push(Operation::EndCapture);
        } else {
            operations.extend(captured);
        }
        for (_, slot) in found {
            operations.extend(uses[slot as usize].iter().map(|&stream| Operation::RecordStream { slot, stream }));
        }
        let start = operations.len();
        operations.extend_from_slice(&self.operations[at..]);
        renumber(&mut operations, self.slots);
        Self { operations, slots: self.slots, start }
    }
}

/// Returns the private pools with live blocks, in the order of their first requests.
fn pools(found: &[(Held, u32)]) -> Vec<PoolId> {
    let mut pools = Vec::new();
    for (held, _) in found {
        if let Way::Pool(pool) = held.way
            && pool != PoolId::DEFAULT
            && !pools.contains(&pool)
        {
            pools.push(pool);
        }
    }
    pools
}

/// Numbers the slots in the order of their first requests, as a run expects them.
fn renumber(operations: &mut [Operation], slots: u32) {
    let (mut numbers, mut next) = (vec![None; slots as usize], 0);
    for operation in operations {
        match operation {
            Operation::Malloc { slot, .. } | Operation::Free { slot } | Operation::RecordStream { slot, .. } => {
                *slot = *numbers[*slot as usize].get_or_insert_with(|| {
                    next += 1;
                    next - 1
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::OnDevice;
    use crate::program::{Run, Settings, Subject};
    use cachalot_core::Config;
    use cachalot_core::simulated::SimulatedDevice;

    const STREAM: StreamId = StreamId::DEFAULT;

    /// Returns a program with weights, and then `steps` steps of four blocks each.
    fn training(steps: u64) -> Program {
        let malloc = |bytes, slot| Operation::Malloc { bytes, stream: STREAM, slot };
        let mut operations = vec![malloc(7 << 20, 0), malloc(3 << 20, 1)];
        for step in 0..steps {
            operations.extend((2..6).map(|slot| malloc((step + 1) << 18, slot)));
            operations.extend((2..6).map(|slot| Operation::Free { slot }));
        }
        Program { operations, slots: 6, start: 0 }
    }

    #[test]
    fn the_cut_is_between_two_steps_and_the_weights_are_in_both_parts() {
        let program = training(20);
        let (earlier, later) = program.halves().expect("two parts");
        assert_eq!(earlier.live_bytes().last(), Some(10 << 20));
        assert_eq!(later.operations[..2], program.operations[..2]);
        let steps = earlier.operations.len() + later.operations.len() - 4;
        assert_eq!(steps, program.operations.len() - 2);
        let peak = |program: &Program| program.live_bytes().max();
        assert_eq!(peak(&later), peak(&program));
        let settings = Settings { config: Config::new(), limit: None };
        let mut run =
            Run::<OnDevice>::new(OnDevice::create(SimulatedDevice::new(1 << 40), &settings).expect("an allocator"));
        run.perform_all(&later.operations).expect("the later part is a program");
    }

    #[test]
    fn slots_of_blocks_that_are_gone_are_numbered_anew() {
        let mut program = training(20);
        // The first weight is freed early on, so the later part never sees slot 0.
        program.operations.insert(3, Operation::Free { slot: 0 });
        let (_, later) = program.halves().expect("two parts");
        let malloc = |bytes, slot| Operation::Malloc { bytes, stream: STREAM, slot };
        assert_eq!(later.operations[0], malloc(3 << 20, 0));
        assert!(matches!(later.operations[1], Operation::Malloc { slot: 1, .. }));
        let settings = Settings { config: Config::new(), limit: None };
        let mut run =
            Run::<OnDevice>::new(OnDevice::create(SimulatedDevice::new(1 << 40), &settings).expect("an allocator"));
        run.perform_all(&later.operations).expect("the later part is a program");
    }

    #[test]
    fn a_short_program_is_not_cut() {
        assert!(training(4).halves().is_none());
        assert!(Program::default().halves().is_none());
    }

    #[test]
    fn a_block_of_a_private_pool_is_requested_there_again() {
        let mut program = training(20);
        let (pool, block) = (PoolId(3, 0), Operation::Malloc { bytes: 512, stream: STREAM, slot: 6 });
        let [into, back] = [pool, PoolId::DEFAULT].map(|pool| Operation::Route { pool });
        program.operations.splice(2..2, [into, block, back]);
        program.slots = 7;
        let (_, later) = program.halves().expect("two parts");
        let again = Operation::Malloc { bytes: 512, stream: STREAM, slot: 2 };
        assert_eq!(later.operations[2..5], [into, again, back]);
        let settings = Settings { config: Config::new(), limit: None };
        let mut run =
            Run::<OnDevice>::new(OnDevice::create(SimulatedDevice::new(1 << 40), &settings).expect("an allocator"));
        run.perform_all(&later.operations).expect("the later part is a program");
        assert_eq!(run.pools(), [pool]);
    }

    #[test]
    fn a_block_of_a_capture_is_requested_in_a_capture_again() {
        let mut program = training(20);
        let captured = Operation::Malloc { bytes: 512, stream: STREAM, slot: 6 };
        let capture = [Operation::BeginCapture, Operation::Capture { stream: STREAM }, captured, Operation::EndCapture];
        program.operations.splice(2..2, capture);
        program.operations.splice(6..6, [Operation::RecordStream { slot: 0, stream: StreamId(9) }]);
        program.slots = 7;
        let (_, later) = program.halves().expect("two parts");
        // Slots are numbered anew, so the captured block is the third one.
        let again = Operation::Malloc { bytes: 512, stream: STREAM, slot: 2 };
        assert_eq!(later.operations[2..6], [capture[0], capture[1], again, capture[3]]);
        assert_eq!(later.operations[6], Operation::RecordStream { slot: 0, stream: StreamId(9) });
    }
}
