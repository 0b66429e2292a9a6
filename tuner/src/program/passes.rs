//! Runs a program several times on one allocator, and adds up the driver time of the passes.

use super::{Operation, Program, Run, Subject};
use cachalot_core::{DevicePtr, Error, PoolId, StreamId};
use std::collections::BTreeSet;

/// The memory and the work that are left at the end of a program.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remainder {
    /// The live blocks, in the order of the requests.
    slots: Vec<u32>,
    /// The streams with work for which freed blocks wait.
    streams: BTreeSet<StreamId>,
}

/// The estimated time of driver calls over the passes of a program, without waits for work of the
/// device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverTime {
    /// The number of requests in a pass that the recorded program was served.
    pub allocations: u64,
    /// The nanoseconds of each pass. The frees of the blocks that a pass leaves count for the next
    /// pass.
    pub passes_ns: Vec<u64>,
    /// The longest driver time of a request over all passes, in nanoseconds.
    pub longest_stall_ns: u64,
}

impl DriverTime {
    /// Returns the mean driver time of an allocation in the first pass, in microseconds. The first
    /// pass starts on an empty allocator.
    pub fn cold_us(&self) -> f64 {
        self.us_per_allocation(self.passes_ns.get(..1).unwrap_or_default())
    }

    /// Returns the mean driver time of an allocation in all later passes, in microseconds. Returns
    /// `None` if there is only one pass.
    pub fn steady_us(&self) -> Option<f64> {
        self.passes_ns.get(1..).filter(|later| !later.is_empty()).map(|later| self.us_per_allocation(later))
    }

    /// Adds up the times of several programs with the same number of passes.
    pub fn sum<'a>(programs: impl IntoIterator<Item = &'a Self>) -> Self {
        programs.into_iter().fold(Self::default(), |mut sum, program| {
            sum.allocations += program.allocations;
            sum.passes_ns.resize(program.passes_ns.len().max(sum.passes_ns.len()), 0);
            sum.passes_ns.iter_mut().zip(&program.passes_ns).for_each(|(sum, ns)| *sum += ns);
            sum.longest_stall_ns = sum.longest_stall_ns.max(program.longest_stall_ns);
            sum
        })
    }

    fn us_per_allocation(&self, passes_ns: &[u64]) -> f64 {
        let allocations = self.allocations.max(1) as f64 * passes_ns.len().max(1) as f64;
        passes_ns.iter().sum::<u64>() as f64 / 1000.0 / allocations
    }
}

/// A position in the passes.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    /// The number of the pass, from 0.
    pub pass: u32,
    /// The number of the operation in the pass, from 0.
    pub operation: usize,
}

/// The results of all passes of a program.
#[derive(Debug)]
pub struct Passes {
    /// The peak of the requested bytes of all live blocks. If iterations are announced, it counts
    /// from the moment when a plan takes effect.
    pub peak_live_bytes: u64,
    /// The driver time.
    pub driver: DriverTime,
}

/// The number of an operation that an allocator refused, and not because there was no memory, with
/// the reason.
pub type Refusal = (usize, Error);

impl Program {
    /// Returns the memory and the work that are left at the end of the program.
    fn remainder(&self) -> Remainder {
        let mut requests = vec![None; self.slots as usize];
        let mut streams = BTreeSet::new();
        for (at, operation) in self.operations.iter().enumerate() {
            match *operation {
                Operation::Malloc { slot, .. } => requests[slot as usize] = Some(at),
                Operation::Free { slot } => requests[slot as usize] = None,
                Operation::RecordStream { stream, .. } => {
                    streams.insert(stream);
                }
                Operation::Complete { stream } => {
                    streams.remove(&stream);
                }
                _ => {}
            }
        }
        let held = requests.iter().zip(0..).filter_map(|(request, slot)| Some(((*request)?, slot)));
        let mut held: Vec<(usize, u32)> = held.collect();
        held.sort_unstable();
        Remainder { slots: held.into_iter().map(|(_, slot)| slot).collect(), streams }
    }
}

impl<A: Subject> Run<A> {
    /// Runs a program `passes` times. Calls `watch` after each call. Between two passes all blocks
    /// of the program are freed, but the cache is kept.
    ///
    /// # Errors
    /// The first [`Refusal`].
    pub fn perform_passes(
        &mut self,
        program: &Program,
        passes: u32,
        mut watch: impl FnMut(&Self, Position),
    ) -> Result<Passes, Refusal> {
        let allocations = program.operations.iter().filter(|made| matches!(made, Operation::Malloc { .. })).count();
        let mut driver = DriverTime { allocations: allocations as u64, ..DriverTime::default() };
        let mut peak_live_bytes = 0;
        let plan_begins = program.plan_begins();
        for pass in 0..passes {
            let begins = self.device().driver_ns();
            if pass > 0 {
                self.clean_up(program).map_err(|error| (program.operations.len(), error))?;
            }
            let mut held = vec![0; program.slots as usize];
            let mut live = 0;
            for (at, &operation) in program.operations.iter().enumerate() {
                let before = self.device().driver_ns();
                self.perform(operation).map_err(|error| (at, error))?;
                match operation {
                    Operation::Malloc { bytes, slot, .. } if self.blocks[slot as usize] != DevicePtr::NULL => {
                        held[slot as usize] = bytes;
                        live += bytes;
                    }
                    Operation::Free { slot } => live -= std::mem::take(&mut held[slot as usize]),
                    Operation::Announce if pass == 0 && Some(at) == plan_begins => peak_live_bytes = 0,
                    _ => {}
                }
                if matches!(operation, Operation::Malloc { .. } | Operation::Refused { .. }) {
                    driver.longest_stall_ns = driver.longest_stall_ns.max(self.device().driver_ns() - before);
                }
                peak_live_bytes = live.max(peak_live_bytes);
                watch(self, Position { pass, operation: at });
            }
            driver.passes_ns.push(self.device().driver_ns() - begins);
        }
        Ok(Passes { peak_live_bytes, driver })
    }

    /// Frees all blocks that a program has left, in the order of their requests, so that the
    /// program can run again. Completes pending frees and destroys graphs. The cache is kept.
    ///
    /// # Errors
    /// Those of the allocator.
    pub fn clean_up(&mut self, program: &Program) -> Result<(), Error> {
        if self.is_capturing() {
            self.perform(Operation::EndCapture)?;
        }
        self.perform(Operation::Route { pool: PoolId::DEFAULT })?;
        let Remainder { slots, streams } = program.remainder();
        slots.into_iter().try_for_each(|slot| self.perform(Operation::Free { slot }))?;
        streams.into_iter().try_for_each(|stream| self.perform(Operation::Complete { stream }))?;
        self.pools().to_vec().into_iter().try_for_each(|pool| self.perform(Operation::Destroy { pool }))?;
        if self.upkeep_us > 0 {
            // The device has finished with memory that is free at the first call when the second
            // one comes.
            self.allocator.maintain(self.upkeep_us)?;
            self.allocator.maintain(self.upkeep_us)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::OnDevice;
    use crate::program::{DEVICE, Settings, Subject};
    use cachalot_core::simulated::{Call, SimulatedDevice};
    use cachalot_core::{Action, Config, MIB};

    fn malloc(bytes: u64, slot: u32) -> Operation {
        Operation::Malloc { bytes, stream: StreamId::DEFAULT, slot }
    }

    fn run(config: &str) -> Run<OnDevice> {
        let settings = Settings { config: Config::parse(config).expect(config), limit: None };
        Run::new(OnDevice::create(SimulatedDevice::new(1 << 40), &settings).expect("an allocator"))
    }

    /// Returns a program with two blocks in a slot, one after the other, a third block that is not
    /// freed, and a fourth one that another stream still uses.
    fn program() -> Program {
        let side = StreamId(7);
        let operations = vec![
            malloc(4 * MIB, 0),
            malloc(30 * MIB, 1),
            Operation::Free { slot: 0 },
            malloc(MIB, 0),
            malloc(40 * MIB, 2),
            Operation::RecordStream { slot: 2, stream: side },
            Operation::Free { slot: 2 },
        ];
        Program { operations, slots: 3, start: 0 }
    }

    #[test]
    fn what_is_left_is_freed_in_the_order_of_its_requests() {
        assert_eq!(program().remainder(), Remainder { slots: vec![1, 0], streams: [StreamId(7)].into() });
        assert_eq!(Program::default().remainder(), Remainder::default());
        let mut run = run("");
        run.perform_all(&program().operations).expect("there is memory");
        run.allocator.trace(DEVICE).expect("a trace").record(64).expect("a trace");
        run.clean_up(&program()).expect("it can be freed");
        let mut freed = Vec::new();
        let entries = run.allocator.trace(DEVICE).map(|trace| {
            trace.for_each(|entry| {
                freed.extend((entry.action == Action::FreeCompleted).then_some(entry.size));
            });
        });
        entries.expect("the trace");
        assert_eq!(freed, [30 * MIB, MIB, 40 * MIB], "the block in use comes last");
    }

    #[test]
    fn upkeep_between_two_passes_removes_mappings_that_pages_have_left() {
        let calls = [0, 1000].map(|upkeep_us| {
            let mut run = run("policy:stitched,slack:0");
            run.upkeep_us = upkeep_us;
            // The third request takes the pages of the first.
            let operations = vec![
                malloc(20 * MIB, 0),
                malloc(20 * MIB, 1),
                Operation::Free { slot: 0 },
                Operation::Complete { stream: StreamId::DEFAULT },
                malloc(30 * MIB, 0),
            ];
            run.perform_passes(&Program { operations, slots: 2, start: 0 }, 3, |_, _| ()).expect("there is memory");
            run.device().calls(Call::Unmap)
        });
        assert!(calls[0] == 0 && calls[1] > 0, "{calls:?}");
    }

    #[test]
    fn a_second_pass_of_the_caching_policy_calls_the_driver_for_no_memory() {
        let mut run = run("");
        let mut places = Vec::new();
        let passes = run.perform_passes(&program(), 3, |_, at| places.push((at.pass, at.operation))).expect("memory");
        let all: Vec<_> = (0..3).flat_map(|pass| (0..7).map(move |operation| (pass, operation))).collect();
        assert_eq!(places, all);
        assert_eq!(passes.peak_live_bytes, 71 * MIB);
        let calls = |call| run.device().calls(call);
        // 20 MiB for the block of 4 MiB, 2 MiB of the small pool, and 30 and 40 MiB.
        assert_eq!([Call::Obtain, Call::Release].map(calls), [4, 0]);
        assert_eq!([Call::CreateEvent, Call::Record].map(calls), [1, 3]);
        let cold = passes.driver.passes_ns[0];
        let segments = run.device().driver_ns_of(Call::Obtain);
        assert!(cold >= segments && segments > 0, "{cold} ns, {segments} ns of segments");
        let DriverTime { allocations, passes_ns, longest_stall_ns } = passes.driver;
        assert_eq!((allocations, passes_ns.len(), passes_ns.iter().sum::<u64>()), (4, 3, run.device().driver_ns()));
        // 40 MiB, between 32 µs for 20 MiB and 49 µs for 200 MiB.
        assert_eq!(longest_stall_ns, 32_000 + 17_000 * 20 / 180);
    }

    #[test]
    fn the_direct_policy_pays_the_same_in_each_pass() {
        let program = Program { operations: vec![malloc(20 * MIB, 0), malloc(2 * MIB, 1)], slots: 2, start: 0 };
        let passes = run("policy:direct").perform_passes(&program, 3, |_, _| ()).expect("there is memory");
        let (obtained, released) = (32_000 + 31_000, 32_000 + 24_000);
        assert_eq!(passes.driver.passes_ns, [obtained, released + obtained, released + obtained]);
        assert_eq!(passes.driver.longest_stall_ns, 32_000);
        assert!((passes.driver.cold_us() - 31.5).abs() < 1e-9);
        assert!((passes.driver.steady_us().expect("later passes") - 59.5).abs() < 1e-9);
    }

    #[test]
    fn programs_are_summed_pass_by_pass() {
        let time = |allocations, passes_ns: [u64; 2], longest_stall_ns| DriverTime {
            allocations,
            passes_ns: passes_ns.into(),
            longest_stall_ns,
        };
        let sum = DriverTime::sum(&[time(1, [7_000, 2_000], 5), time(4, [3_000, 1_000], 4)]);
        assert_eq!(sum, time(5, [10_000, 3_000], 5));
        assert_eq!((sum.cold_us(), sum.steady_us()), (2.0, Some(0.6)));
        assert_eq!(DriverTime::sum([]), DriverTime::default());
    }

    #[test]
    fn one_pass_is_never_steady() {
        let time = DriverTime { allocations: 0, passes_ns: vec![4_000], longest_stall_ns: 0 };
        assert_eq!((time.cold_us(), time.steady_us()), (4.0, None));
        assert_eq!((DriverTime::default().cold_us(), DriverTime::default().steady_us()), (0.0, None));
    }
}
