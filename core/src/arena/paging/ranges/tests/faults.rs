//! Failures of every call to the device, at every occurrence in a program of ranges and blocks.

use super::*;
use crate::units::DevicePtr;
use std::vec::Vec;

/// A step of the program.
#[derive(Clone, Copy, Debug)]
enum Step {
    Malloc(u64, StreamId),
    /// Frees the oldest block.
    Free,
    Reserve(u64),
    /// A range, with offset and size in pages.
    Commit(usize, u64, u64, StreamId),
    Decommit(usize, u64, u64, StreamId),
    Release(usize),
    Complete(StreamId),
    Destroyed(StreamId),
    EmptyCache,
    Trim,
}

/// Fills the limit from both sides in turn, with parts that overlap, and streams that end.
const PROGRAM: [Step; 26] = {
    use Step::*;
    [
        Reserve(64),
        Commit(0, 0, 10, ONE),
        Malloc(20 * MIB, ONE),
        Malloc(6 * MIB, TWO),
        Decommit(0, 4, 4, ONE),
        Commit(0, 2, 4, TWO),
        Reserve(16),
        Commit(1, 0, 3, TWO),
        Free,
        Commit(0, 8, 8, ONE),
        Decommit(0, 0, 12, TWO),
        Malloc(18 * MIB, ONE),
        Complete(ONE),
        Commit(0, 0, 5, ONE),
        Commit(1, 2, 12, StreamId(3)),
        Destroyed(StreamId(3)),
        Decommit(1, 1, 2, TWO),
        Free,
        Free,
        Trim,
        Commit(0, 30, 12, ONE),
        Release(0),
        Commit(1, 0, 10, TWO),
        Complete(ONE),
        Release(0),
        EmptyCache,
    ]
};

/// A range, and for each committed page the stream that uses it.
struct Used {
    range: RangeId,
    base: DevicePtr,
    pages: Vec<Option<StreamId>>,
}

/// The state while a program runs.
struct Run<'a> {
    allocator: &'a Simulated,
    ranges: Vec<Used>,
    blocks: Vec<DevicePtr>,
}

impl<'a> Run<'a> {
    fn new(allocator: &'a Simulated) -> Self {
        Self { allocator, ranges: Vec::new(), blocks: Vec::new() }
    }

    /// Does one step. Work of its stream uses all new memory at once, because the device refuses
    /// work that is not ordered after earlier work on the same physical memory, and refuses to
    /// unmap memory that is in use.
    fn step(&mut self, step: Step) -> Result<(), Error> {
        let allocator = self.allocator;
        match step {
            Step::Malloc(bytes, stream) => {
                let block = allocator.malloc(DEVICE, bytes, stream)?;
                self.blocks.push(block);
                device(allocator).launch(stream, block, bytes).unwrap();
            }
            Step::Free if self.blocks.is_empty() => {}
            Step::Free => {
                allocator.free(self.blocks[0])?;
                self.blocks.remove(0);
            }
            Step::Reserve(pages) => {
                let reserved = allocator.ranges(DEVICE)?.reserve(pages * PAGE)?;
                let pages = std::vec![None; pages as usize];
                self.ranges.push(Used { range: reserved.range, base: reserved.base, pages });
            }
            // A range that could not be reserved does not exist.
            Step::Commit(range, ..) | Step::Decommit(range, ..) | Step::Release(range)
                if range >= self.ranges.len() => {}
            Step::Commit(range, at, count, stream) => {
                let Used { range, base, pages } = &mut self.ranges[range];
                allocator.ranges(DEVICE)?.commit(*range, at * PAGE, count * PAGE, stream)?;
                for page in at..at + count {
                    if pages[page as usize].is_none() {
                        pages[page as usize] = Some(stream);
                        device(allocator).launch(stream, base.offset(page * PAGE), PAGE).unwrap();
                    }
                }
            }
            Step::Decommit(range, at, count, stream) => {
                let Used { range, pages, .. } = &mut self.ranges[range];
                let part = &mut pages[at as usize..(at + count) as usize];
                // The program orders the work of other streams before the decommit.
                for other in part.iter().flatten().filter(|&&other| other != stream) {
                    device(allocator).complete(*other);
                }
                allocator.ranges(DEVICE)?.decommit(*range, at * PAGE, count * PAGE, stream)?;
                part.fill(None);
            }
            Step::Release(range) => {
                allocator.ranges(DEVICE)?.release(self.ranges[range].range)?;
                self.ranges.remove(range);
            }
            Step::Complete(stream) => device(allocator).complete(stream),
            Step::Destroyed(stream) => allocator.stream_destroyed(DEVICE, stream)?,
            Step::EmptyCache => allocator.empty_cache(DEVICE)?,
            Step::Trim => allocator.trim(DEVICE, 0)?,
        }
        Ok(())
    }

    /// Runs a program. After each step, failed or not, the ranges have the memory that they had
    /// before or were given.
    fn run(&mut self, program: impl IntoIterator<Item = Step>) {
        for (number, step) in program.into_iter().enumerate() {
            let result = self.step(step);
            for Used { range, pages, .. } in &self.ranges {
                let committed = pages.iter().flatten().count() as u64 * PAGE;
                assert_eq!(
                    self.allocator.ranges(DEVICE).unwrap().committed_bytes(*range),
                    Ok(committed),
                    "{number}, {step:?}: {result:?}"
                );
            }
            self.allocator.check_invariants().unwrap_or_else(|why| panic!("step {number}, {step:?}: {why}"));
        }
    }

    /// Releases everything, without failures.
    fn give_back(mut self) {
        device(self.allocator).clear_failures();
        for block in self.blocks.drain(..) {
            self.allocator.free(block).unwrap();
        }
        for used in self.ranges.drain(..) {
            self.allocator.ranges(DEVICE).unwrap().release(used.range).unwrap();
        }
        self.allocator.empty_cache(DEVICE).unwrap();
        self.allocator.check_invariants().unwrap();
    }
}

/// Runs the program with one failure.
fn with_failure(config: &str, failure: Option<Failure>) -> Simulated {
    let allocator = allocator(config);
    allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
    if let Some(failure) = failure {
        device(&allocator).fail(failure);
    }
    let mut run = Run::new(&allocator);
    run.run(PROGRAM);
    if failure.is_none_or(|failure| failure.error.kind != ErrorKind::ContextLost) {
        run.give_back();
    }
    allocator
}

const CONFIGS: [&str; 3] = ["", "expandable_segments:True", "policy:stitched"];

#[test]
fn any_call_may_fail_and_leaves_the_ranges_as_they_were() {
    for config in CONFIGS {
        let calm = with_failure(config, None);
        assert_eq!(device(&calm).used(), 0);
        for call in Call::ALL {
            for nth in 1..=device(&calm).calls(call) {
                for (kind, persistent) in
                    [(ErrorKind::Other, false), (ErrorKind::Other, true), (ErrorKind::OutOfMemory, false)]
                {
                    let failure = Failure { call, nth, persistent, error: DeviceError::new(kind, 77) };
                    let allocator = with_failure(config, Some(failure));
                    let (used, leaked) = (device(&allocator).used(), allocator.stats(DEVICE).unwrap().leaked_bytes());
                    let may_leak = matches!(call, Call::Release | Call::Unmap | Call::Destroy);
                    assert_eq!(used, leaked, "{config}: {failure:?}");
                    assert!(leaked == 0 || may_leak, "{config}: {failure:?}");
                }
            }
        }
    }
}

#[test]
fn after_the_loss_of_the_context_the_device_is_not_called() {
    for config in CONFIGS {
        let calm = with_failure(config, None);
        for call in Call::ALL {
            for nth in 1..=device(&calm).calls(call) {
                let error = DeviceError::new(ErrorKind::ContextLost, 700);
                let failure = Failure { call, nth, persistent: false, error };
                let allocator = with_failure(config, Some(failure));
                assert_eq!(device(&allocator).calls_after_loss(), 0, "{config}: {failure:?}");
            }
        }
    }
}

/// Returns the next number of a pseudo-random sequence.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    *seed >> 33
}

/// Returns the step for a random number, on ranges of 24 pages.
fn any_step(mut seed: u64) -> Step {
    let mut below = |bound: u64| next(&mut seed) % bound;
    let (kind, range, at, stream) = (below(16), below(3) as usize, below(24), StreamId(below(3)));
    let count = 1 + below(24 - at);
    match kind {
        0..4 => Step::Commit(range, at, count, stream),
        4..8 => Step::Decommit(range, at, count, stream),
        8..11 => Step::Malloc((1 + below(20)) * MIB, stream),
        11..14 => Step::Free,
        14 => Step::Complete(stream),
        _ => [Step::Trim, Step::EmptyCache, Step::Release(range), Step::Reserve(24), Step::Reserve(24)]
            [below(5) as usize],
    }
}

#[test]
fn work_on_shared_pages_is_ordered_and_memory_in_use_stays_mapped() {
    for config in CONFIGS {
        let mut seed = 7;
        for _ in 0..20 {
            let allocator = allocator(config);
            allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
            let mut run = Run::new(&allocator);
            run.run((0..150).map(|number| if number < 2 { Step::Reserve(24) } else { any_step(next(&mut seed)) }));
            run.give_back();
            assert_eq!(
                (device(&allocator).used(), allocator.stats(DEVICE).map(|stats| stats.leaked_bytes())),
                (0, Ok(0)),
                "{config}"
            );
        }
    }
}

/// Makes a later call of a kind fail, after `ahead` calls that succeed.
fn fail<S: Storage>(allocator: &In<S>, call: Call, ahead: u64, persistent: bool) -> DeviceError {
    let error = DeviceError::new(ErrorKind::Other, 77);
    let nth = device(allocator).calls(call) + 1 + ahead;
    device(allocator).fail(Failure { call, nth, persistent, error });
    error
}

/// Releases a range with `lost` pages that may be mapped forever, and checks that the addresses
/// stay reserved.
fn release_with_lost_pages(allocator: &Simulated, range: Owned<'_>, lost: u64) {
    range.release().unwrap();
    for stream in [ONE, TWO] {
        device(allocator).complete(stream);
    }
    allocator.empty_cache(DEVICE).unwrap();
    let left = device(allocator).outstanding();
    assert_eq!((left.mappings, left.reservations), (lost as usize, 1));
    assert_eq!(
        (device(allocator).used(), allocator.stats(DEVICE).map(|stats| stats.leaked_bytes())),
        (lost * PAGE, Ok(lost * PAGE))
    );
    allocator.check_invariants().unwrap();
}

#[test]
fn where_the_removal_of_a_stale_mapping_has_failed_nothing_is_mapped_again() {
    for config in CONFIGS {
        let removals: [fn(&Simulated, &Owned<'_>); 3] = [
            |allocator, _| allocator.process_events(DEVICE).unwrap(),
            |_, range| range.decommit(7 * PAGE, PAGE, TWO).unwrap(),
            |_, range| assert!(range.commit(PAGE, 2 * PAGE, TWO).is_err()),
        ];
        for (number, remove) in removals.into_iter().enumerate() {
            let allocator = allocator(config);
            let range = reserve(&allocator, 8);
            range.commit(0, 4 * PAGE, ONE).unwrap();
            range.decommit(PAGE, PAGE, ONE).unwrap();
            // The page is used elsewhere, so that a commit cannot take it back.
            let other = reserve(&allocator, 1);
            other.commit(0, PAGE, ONE).unwrap();
            device(&allocator).complete(ONE);
            let error = fail(&allocator, Call::Unmap, 0, false);
            remove(&allocator, &range);
            allocator.check_invariants().unwrap();
            let calls = device(&allocator).calls(Call::Map);
            for (offset, pages) in [(0, 8), (PAGE, 1), (0, 2), (PAGE, 3)] {
                assert_eq!(range.commit(offset, pages * PAGE, TWO), Err(Error::Device(error)), "`{config}`, {number}");
            }
            assert_eq!(device(&allocator).calls(Call::Map), calls, "`{config}`, {number}");
            assert_eq!(range.committed_bytes(), Ok(3 * PAGE));
            range.decommit(0, 2 * PAGE, ONE).unwrap();
            range.commit(2 * PAGE, 6 * PAGE, ONE).unwrap();
            range.commit(0, PAGE, ONE).unwrap();
            assert!(device(&allocator).is_accessible(range.base().offset(2 * PAGE), 6 * PAGE));
            allocator.check_invariants().unwrap();
            other.release().unwrap();
            release_with_lost_pages(&allocator, range, 1);
        }
    }
}

#[test]
fn where_the_rollback_of_a_commit_has_failed_nothing_is_mapped_again() {
    for config in CONFIGS {
        let allocator = allocator(config);
        let range = reserve(&allocator, 8);
        // The second page of four stays mapped.
        let error = fail(&allocator, Call::SetAccess, 0, false);
        fail(&allocator, Call::Unmap, 1, false);
        assert_eq!(range.commit(0, 4 * PAGE, ONE), Err(Error::Device(error)));
        allocator.check_invariants().unwrap();
        let calls = device(&allocator).calls(Call::Map);
        for (offset, pages) in [(0, 4), (PAGE, 1), (0, 2), (PAGE, 3)] {
            assert_eq!(range.commit(offset, pages * PAGE, TWO), Err(Error::Device(error)), "`{config}`");
        }
        assert_eq!((device(&allocator).calls(Call::Map), range.committed_bytes()), (calls, Ok(0)), "`{config}`");
        range.commit(0, PAGE, ONE).unwrap();
        range.commit(2 * PAGE, 6 * PAGE, TWO).unwrap();
        assert!(device(&allocator).is_accessible(range.base().offset(2 * PAGE), 6 * PAGE));
        allocator.check_invariants().unwrap();
        release_with_lost_pages(&allocator, range, 1);
    }
}

#[test]
fn a_full_table_has_room_for_the_addresses_that_a_failed_commit_loses() {
    type Small = In<Fixed<2, 4, 8, 64>>;
    let allocator = Small::new([SimulatedDevice::new(CAPACITY)], &Config::default()).unwrap();
    let range = Range::reserve(&allocator, DEVICE, 16 * PAGE).unwrap();
    let error = fail(&allocator, Call::SetAccess, 0, false);
    fail(&allocator, Call::Unmap, 0, true);
    assert_eq!(range.commit(0, 8 * PAGE, ONE), Err(Error::Device(error)));
    device(&allocator).clear_failures();
    allocator.check_invariants().unwrap();
    assert_eq!(range.commit(7 * PAGE, PAGE, ONE), Err(Error::Device(error)));
    let full = range.commit(8 * PAGE, PAGE, ONE);
    assert!(matches!(full, Err(Error::TableFull(_))), "{full:?}");
    range.release().unwrap();
    assert_eq!(device(&allocator).outstanding().reservations, 1, "the addresses stay reserved");
    let range = Range::reserve(&allocator, DEVICE, 16 * PAGE).unwrap();
    range.commit(0, 8 * PAGE, ONE).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn a_commit_that_has_its_memory_succeeds_though_the_device_takes_no_other_back() {
    let allocator = allocator("expandable_segments:True");
    // Each block has its own pages, and is cached.
    let blocks: Vec<_> = (0..CAPACITY / (20 * MIB)).map(|_| allocator.malloc(DEVICE, 20 * MIB, ONE).unwrap()).collect();
    blocks.iter().for_each(|&block| allocator.free(block).unwrap());
    let range = reserve(&allocator, 20);
    // The commit takes cached pages, and the others go back to the device.
    let nth = device(&allocator).calls(Call::Destroy) + 1;
    let error = DeviceError::new(ErrorKind::Other, 9);
    device(&allocator).fail(Failure { call: Call::Destroy, nth, persistent: true, error });
    assert_eq!(range.commit(0, 20 * PAGE, ONE), Ok(()));
    assert!(device(&allocator).calls(Call::Destroy) >= nth, "the call failed");
    assert!(allocator.stats(DEVICE).unwrap().leaked_bytes() > 0);
    assert!(device(&allocator).is_accessible(range.base(), 20 * PAGE));
}
