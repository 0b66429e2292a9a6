//! Members of a control group beside a neighbour that grows: memory goes back before anybody is
//! ended for it, each member gives by its share, and no request is refused that would have fitted.
//!
//! ```text
//! kernel   what each group uses, in files; whose request ends whom at the hard limit
//! member   an allocator over a simulated device, whose memory the kernel counts
//! neighbour takes up to its share, step by step, and lets go again
//! ```

use crate::device_groups::GroupMemory;
use crate::lock::HeapLock;
use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DeviceError, DeviceIndex, DevicePtr, DeviceResult, ErrorKind, Growable, Host, PhysicalHandle,
    Segments, StreamId, VirtualMemory,
};
use fastrand::Rng;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// The bytes of the device, which are the limit of the group around all.
const LIMIT: u64 = 16 << 30;
/// The place of the device on the bus.
const PLACE: &str = "0000:3b:00.0";
/// The protected shares of three members and of the neighbour, in MiB.
const SHARES: [u64; 4] = [6 << 10, 3 << 10, 2 << 10, 4 << 10];
/// The group of the neighbour.
const NEIGHBOUR: usize = 3;
/// Bytes by which the neighbour grows between two rounds of upkeep.
const STEP: u64 = 64 * MIB;
/// Operations of each member between two rounds.
const BETWEEN: u64 = 10;
/// The time between two rounds.
const ROUND_US: u64 = 1_000_000;
/// The largest block, in pages.
const MOST_PAGES: u64 = 4;
/// The bytes of a page. Blocks are of whole pages, so what is live is what has to be held.
const PAGE: u64 = 20 * MIB;
/// What members may have beyond their shares while the neighbour has nothing: a quarter.
const BORROWED: u64 = 4;
/// Rounds for which members borrow, then work within their shares, and then the neighbour grows.
const ROUNDS: [u64; 3] = [150, 5, SHARES[NEIGHBOUR] * MIB / STEP + 20];
const FIRST: DeviceIndex = DeviceIndex(0);

/// The use of the groups.
#[derive(Clone, Copy, Default, Debug)]
struct Use {
    used: [u64; 4],
    /// Requests at the hard limit for which a process beyond its share was to be ended.
    evictions: u64,
    /// Requests of members beyond their share at the hard limit. They give cache back and ask
    /// again.
    refused: u64,
}

impl Use {
    fn all(&self) -> u64 {
        self.used.iter().sum()
    }
}

/// The kernel's controller of device memory.
struct Kernel {
    system: TempDir,
    state: Mutex<Use>,
}

impl Kernel {
    fn new() -> Self {
        let kernel = Self { system: tempfile::tempdir().expect("a folder"), state: Mutex::default() };
        kernel.write("pod/dmem.max", LIMIT);
        for (group, share) in SHARES.into_iter().enumerate() {
            let files = kernel.of_group(group);
            std::fs::create_dir_all(files.join("proc/self")).expect("made");
            std::fs::write(files.join("proc/self/cgroup"), format!("0::/pod/{group}\n")).expect("written");
            std::os::unix::fs::symlink(kernel.system.path().join("sys"), files.join("sys")).expect("linked");
            kernel.write(&format!("pod/{group}/dmem.low"), share * MIB);
        }
        kernel
    }

    /// Returns the folder that stands for `/` in the processes of a group.
    fn of_group(&self, group: usize) -> PathBuf {
        self.system.path().join(format!("seen-by-{group}"))
    }

    fn write(&self, file: &str, bytes: u64) {
        let path = self.system.path().join("sys/fs/cgroup").join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("made");
        std::fs::write(path, format!("nvidia/{PLACE}/vidmem {bytes}\n")).expect("written");
    }

    fn state(&self) -> MutexGuard<'_, Use> {
        self.state.lock().expect("no thread panicked")
    }

    /// Charges a request of a group. At the hard limit, a request within the group's share has
    /// a process ended, and another is refused.
    fn charge(&self, group: usize, bytes: u64) -> bool {
        let mut state = self.state();
        if state.all() + bytes <= LIMIT {
            state.used[group] += bytes;
            return true;
        }
        let is_within = state.used[group] + bytes <= SHARES[group] * MIB;
        *(if is_within { &mut state.evictions } else { &mut state.refused }) += 1;
        false
    }

    fn give(&self, group: usize, bytes: u64) {
        self.state().used[group] -= bytes;
    }

    /// Tells what the groups of a process want back, by the files.
    fn owed(&self, group: usize) -> u64 {
        let state = *self.state();
        self.write("pod/dmem.current", state.all());
        state.used.iter().enumerate().for_each(|(group, &used)| self.write(&format!("pod/{group}/dmem.current"), used));
        GroupMemory::under(&self.of_group(group), PLACE, |_| None).owed
    }
}

/// The device of a member.
struct Counted {
    inner: SimulatedDevice,
    kernel: Arc<Kernel>,
    group: usize,
    /// The bytes of each page, by its handle.
    pages: Mutex<HashMap<u64, u64>>,
}

impl Forwarder for Counted {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }
}

impl Counted {
    /// Takes memory that the kernel counts.
    fn counted<T>(&self, bytes: u64, take: impl FnOnce() -> DeviceResult<T>) -> DeviceResult<T> {
        if self.kernel.charge(self.group, bytes) { take() } else { Err(DeviceError::new(ErrorKind::OutOfMemory, 2)) }
    }
}

impl ForwardSegments for Counted {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.counted(bytes, || Segments::obtain(&self.inner, bytes))
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        Segments::release(&self.inner, base, bytes)?;
        self.kernel.give(self.group, bytes);
        Ok(())
    }

    fn owed(&self) -> u64 {
        self.kernel.owed(self.group)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl ForwardVirtualMemory for Counted {
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let page = self.counted(bytes, || VirtualMemory::create(&self.inner, bytes))?;
        self.pages.lock().expect("no thread panicked").insert(page.0, bytes);
        Ok(page)
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        VirtualMemory::destroy(&self.inner, handle)?;
        let bytes = self.pages.lock().expect("no thread panicked").remove(&handle.0).expect("a page of the member");
        self.kernel.give(self.group, bytes);
        Ok(())
    }
}

impl ForwardStreamOrder for Counted {}
impl ForwardHost for Counted {}

/// A member: its allocator, and its live blocks with their bytes.
struct Member {
    allocator: Allocator<Counted, HeapLock, Growable>,
    blocks: Vec<(DevicePtr, u64)>,
    live: u64,
    /// The bytes beyond its share each time when the neighbour began to grow, in all.
    over: u64,
    /// The bytes given back while the neighbour grew, in all.
    given: u64,
    /// The most bytes held.
    most: u64,
}

impl Member {
    fn new(kernel: &Arc<Kernel>, group: usize) -> Self {
        let inner = SimulatedDevice::new(4 * LIMIT).with_work_done_at_once();
        let config = Config::parse("reclaim:auto,expandable_segments:True").expect("settings");
        let device = Counted { inner, kernel: Arc::clone(kernel), group, pages: Mutex::default() };
        let allocator = Allocator::new([device], &config).expect("opens");
        Self { allocator, blocks: Vec::new(), live: 0, over: 0, given: 0, most: 0 }
    }

    /// Takes or frees a block, with at most `most` bytes live. Returns whether the request was
    /// refused.
    fn step(&mut self, most: u64, random: &mut Rng) -> bool {
        let bytes = random.u64(1..=MOST_PAGES) * PAGE;
        if self.live + bytes <= most && random.u8(..) < 160 {
            let Ok(block) = self.allocator.malloc(FIRST, bytes, StreamId(1)) else { return true };
            self.blocks.push((block, bytes));
            self.live += bytes;
        } else {
            self.free_one(random);
        }
        false
    }

    fn free_one(&mut self, random: &mut Rng) {
        if !self.blocks.is_empty() {
            let (block, bytes) = self.blocks.swap_remove(random.usize(..self.blocks.len()));
            self.allocator.free(block).expect("a block");
            self.live -= bytes;
        }
    }

    /// Does a round of upkeep. Returns the bytes given back.
    fn upkeep(&mut self) -> u64 {
        let device = self.allocator.device(FIRST).expect("a device");
        Host::pause(&device.inner, ROUND_US);
        let before = device.kernel.state().used[device.group];
        self.allocator.pages(FIRST).expect("pages").maintain(u64::MAX / 2000).expect("upkeep");
        let after = device.kernel.state().used[device.group];
        self.most = self.most.max(before);
        before.saturating_sub(after)
    }
}

/// What a run has shown.
#[derive(Debug)]
struct Outcome {
    operations: u64,
    refused: u64,
    kernel: Use,
    /// The most bytes of all groups after a round in which the neighbour grew.
    most: u64,
    members: Vec<Figures>,
}

/// What a member had and gave, in bytes.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// The greatest use.
    most: u64,
    /// See [`Member`].
    over: u64,
    given: u64,
}

/// Runs a number of operations of members beside the neighbour.
fn run(operations: u64, seed: u64) -> Outcome {
    let (kernel, mut random) = (Arc::new(Kernel::new()), Rng::with_seed(seed));
    let mut members: Vec<Member> = (0..NEIGHBOUR).map(|group| Member::new(&kernel, group)).collect();
    let (mut done, mut refused, mut most) = (0, 0, 0);
    while done < operations {
        for (phase, rounds) in ROUNDS.into_iter().enumerate() {
            if phase == 2 {
                let used = kernel.state().used;
                for ((member, used), share) in members.iter_mut().zip(used).zip(SHARES) {
                    member.over += used.saturating_sub(share * MIB);
                }
            }
            for _ in 0..rounds {
                for (member, share) in members.iter_mut().zip(SHARES) {
                    let share = share * MIB;
                    let bound = if phase == 0 { share + share / BORROWED } else { share };
                    while member.live > bound {
                        member.free_one(&mut random);
                    }
                    for _ in 0..BETWEEN {
                        refused += u64::from(member.step(bound, &mut random));
                        done += 1;
                    }
                }
                if phase == 2 && kernel.state().used[NEIGHBOUR] < SHARES[NEIGHBOUR] * MIB {
                    kernel.charge(NEIGHBOUR, STEP);
                }
                let given: Vec<u64> = members.iter_mut().map(Member::upkeep).collect();
                if phase == 2 {
                    members.iter_mut().zip(given).for_each(|(member, given)| member.given += given);
                    most = most.max(kernel.state().all());
                }
            }
        }
        let neighbour = kernel.state().used[NEIGHBOUR];
        assert_eq!(neighbour, SHARES[NEIGHBOUR] * MIB, "seed {seed}: the neighbour has its share");
        kernel.give(NEIGHBOUR, neighbour);
    }
    members.iter().for_each(|member| member.allocator.check_invariants().expect("whole"));
    let figures = members.iter().map(|&Member { most, over, given, .. }| Figures { most, over, given }).collect();
    let state = *kernel.state();
    Outcome { operations: done, refused, kernel: state, most, members: figures }
}

impl Outcome {
    /// Returns the outcome in a line, in MiB.
    fn line(&self) -> String {
        let Self { operations, refused, kernel, most, members } = self;
        let of_member = |&Figures { most, over, given }| [most, over, given].map(|bytes| bytes / MIB);
        let members: Vec<_> = members.iter().map(of_member).collect();
        let Use { evictions, refused: at_limit, .. } = kernel;
        format!(
            "{operations} operations, {refused} refused, {at_limit} at the limit, {evictions} ended, at most {} MiB; \
             at most, beyond shares, given: {members:?}",
            most / MIB
        )
    }
}

/// Checks that no process was ended, nothing was refused, and that who had more beyond its share
/// gave more.
fn check(outcome: &Outcome) {
    let line = outcome.line();
    assert_eq!((outcome.kernel.evictions, outcome.refused), (0, 0), "{line}");
    assert!(outcome.most <= LIMIT, "{line}");
    assert!(outcome.members.is_sorted_by(|more, less| more.given > less.given), "{line}");
    for (figures, share) in outcome.members.iter().zip(SHARES) {
        assert!(figures.most > share * MIB, "a member never borrowed: {line}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not have the system's files")]
fn nobody_is_ended_for_a_neighbour_that_grows_and_no_request_is_refused() {
    check(&run(30_000, 1));
}

#[test]
#[ignore = "a campaign: tests/results/pressure.md has the command"]
fn a_million_operations_beside_a_neighbour_that_grows() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let operations = number("CACHALOT_PRESSURE_OPERATIONS").unwrap_or(1_000_000);
    let seed = number("CACHALOT_PRESSURE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let begin = std::time::Instant::now();
    let outcome = run(operations, seed);
    println!("seed {seed}, {:.1} s: {}", begin.elapsed().as_secs_f64(), outcome.line());
    check(&outcome);
}
