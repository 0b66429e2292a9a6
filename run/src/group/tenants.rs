//! Two tenants of one process at their limits: each has an allocator over a simulated device, and
//! both share a group.
//!
//! ```text
//! tenant ─ malloc, free, trim ─▶ allocator ─ obtain, release ─▶ Charged ─ reserve, give_back ─▶ the group
//! ```
//!
//! Each device keeps its own count. After each operation, the tenant is not above its `max`, the
//! sum not above the limit, and the group's figures are those of the tenants. A request for a
//! segment within a tenant's `low` is never refused, and the group never asks a tenant for bytes
//! below its `low`.

use super::{Group, Uuid};
use crate::options::GroupOptions;
use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DeviceError, DeviceIndex, DevicePtr, DeviceResult, Error, ErrorKind, Growable, Segments,
    StreamId,
};
use cachalot_cuda::HeapLock;
use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

const DEVICE: Uuid = Uuid([9; 16]);
const FIRST: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const MIB: u64 = 1 << 20;
const LIMIT: u64 = 1000 * MIB;
/// The `low`, the `max` and the weight of each tenant. The sum of `max` is above the limit.
const TERMS: [(u64, u64, u32); 2] = [(300 * MIB, 700 * MIB, 300), (200 * MIB, 900 * MIB, 100)];
/// The code of a refusal, which no driver has.
const REFUSED: u32 = 7_000_001;

/// The tenants' own counts, outside the group.
#[derive(Default, Debug)]
struct Count {
    /// Bytes of both tenants.
    total: AtomicU64,
    /// Greatest total.
    greatest: AtomicU64,
    checks: AtomicU64,
    faults: AtomicU64,
}

impl Count {
    fn expect(&self, is_right: bool) {
        self.checks.fetch_add(1, SeqCst);
        if !is_right {
            self.faults.fetch_add(1, SeqCst);
        }
    }
}

/// The device of a tenant.
struct Charged {
    inner: SimulatedDevice,
    group: Group,
    low: u64,
    max: u64,
    count: Arc<Count>,
    /// Bytes of the tenant, the greatest number so far, and the refusals. Changed by the tenant's
    /// thread alone.
    held: AtomicU64,
    greatest: AtomicU64,
    refused: AtomicU64,
    /// Segments obtained while the tenant held less than its `low`.
    below_low: AtomicU64,
}

impl Forwarder for Charged {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }
}

impl ForwardSegments for Charged {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let held = self.held.load(SeqCst);
        if self.group.reserve(bytes).is_err() {
            self.refused.fetch_add(1, SeqCst);
            // A promise: what is within the `low` is always there.
            self.count.expect(held + bytes > self.low);
            return Err(DeviceError::new(ErrorKind::OutOfMemory, REFUSED));
        }
        self.below_low.fetch_add((held < self.low).into(), SeqCst);
        let now = self.held.fetch_add(bytes, SeqCst) + bytes;
        let total = self.count.total.fetch_add(bytes, SeqCst) + bytes;
        self.greatest.fetch_max(now, SeqCst);
        self.count.greatest.fetch_max(total, SeqCst);
        self.count.expect(now <= self.max && total <= LIMIT);
        self.inner.obtain(bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.inner.release(base, bytes)?;
        self.held.fetch_sub(bytes, SeqCst);
        self.count.total.fetch_sub(bytes, SeqCst);
        self.group.give_back(bytes);
        Ok(())
    }
}

impl ForwardStreamOrder for Charged {}
impl ForwardHost for Charged {}

type Tenant = Allocator<Charged, HeapLock, Growable>;

/// Checks both bounds of a tenant, and the figures of the group.
fn check(tenant: &Charged) {
    let held = tenant.held.load(SeqCst);
    let budget = tenant.group.budget().unwrap();
    let most = budget.held_by_all <= LIMIT && budget.held_by_this == held && held <= tenant.max;
    // What is within reach is at least what the `low` does not have.
    let least =
        budget.available >= tenant.low.saturating_sub(held) && budget.available <= tenant.max.saturating_sub(held);
    tenant.count.expect(most && least);
}

/// The life of a tenant: mostly at its `max`, or at what the other one leaves.
struct Life<'a> {
    allocator: &'a Tenant,
    random: Rng,
    blocks: Vec<DevicePtr>,
    /// Requests that found no memory.
    lacked: u64,
}

impl<'a> Life<'a> {
    fn new(allocator: &'a Tenant, seed: u64) -> Self {
        Self { allocator, random: Rng::with_seed(seed), blocks: Vec::new(), lacked: 0 }
    }

    fn tenant(&self) -> &'a Charged {
        self.allocator.device(FIRST).unwrap()
    }

    /// Frees some block, if there is one.
    fn free(&mut self) {
        if !self.blocks.is_empty() {
            let at = self.random.usize(..self.blocks.len());
            self.allocator.free(self.blocks.swap_remove(at)).unwrap();
        }
    }

    fn step(&mut self) {
        let tenant = self.tenant();
        match self.random.u32(..100_000) {
            0..52_000 => match self.allocator.malloc(FIRST, 1 << self.random.u32(9..26), STREAM) {
                Ok(block) => self.blocks.push(block),
                Err(Error::OutOfMemory(_)) => {
                    self.lacked += 1;
                    // So that the next requests change which tenant is at its limit.
                    let part = self.random.usize(..=self.blocks.len() / 8);
                    (0..part).for_each(|_| self.free());
                }
                Err(other) => panic!("{other}"),
            },
            52_000..99_900 => self.free(),
            99_900..99_990 => {
                let (owed, held) = (tenant.group.owed(), tenant.held.load(SeqCst));
                tenant.count.expect(owed <= held.saturating_sub(tenant.low));
                self.allocator.trim(FIRST, held - owed.min(held)).unwrap();
            }
            // Holds nothing, so that the other tenant takes what it can, and this one needs its
            // `low` again.
            _ => self.end(),
        }
        check(tenant);
    }

    /// Frees all blocks, and gives back all memory.
    fn end(&mut self) {
        self.blocks.drain(..).for_each(|block| self.allocator.free(block).unwrap());
        self.allocator.empty_cache(FIRST).unwrap();
        let tenant = self.tenant();
        tenant.count.expect(tenant.held.load(SeqCst) == 0);
    }
}

/// Has both tenants do half of the operations each, in turn on one thread.
fn in_turn(tenants: &[Tenant; 2], operations: u64, seed: u64) -> [u64; 2] {
    let mut lives = [0, 1].map(|number| Life::new(&tenants[number], seed ^ number as u64));
    for _ in 0..operations / 2 {
        lives.iter_mut().for_each(Life::step);
    }
    lives.each_mut().map(|life| {
        life.end();
        life.lacked
    })
}

/// Has both tenants do half of the operations each, on a thread each.
fn at_once(tenants: &[Tenant; 2], operations: u64, seed: u64) -> [u64; 2] {
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| {
            let mut life = Life::new(&tenants[number], seed ^ number as u64);
            scope.spawn(move || {
                (0..operations / 2).for_each(|_| life.step());
                life.end();
                life.lacked
            })
        });
        threads.map(|thread| thread.join().unwrap())
    })
}

/// Runs both tenants for a number of operations together, and prints the figures.
fn campaign(run: fn(&[Tenant; 2], u64, u64) -> [u64; 2], operations: u64, seed: u64) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let count = Arc::new(Count::default());
    let tenants = TERMS.map(|(low, max, weight)| {
        let options = GroupOptions { name: "tenants".to_owned(), low, max: Some(max), weight };
        let group = Group::join_in(dir.path(), &options, Some(LIMIT), DEVICE).unwrap();
        let device = Charged {
            inner: SimulatedDevice::new(2 * LIMIT),
            group,
            low,
            max,
            count: Arc::clone(&count),
            held: AtomicU64::new(0),
            greatest: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            below_low: AtomicU64::new(0),
        };
        Tenant::new([device], &Config::new()).unwrap()
    });
    let begin = Instant::now();
    let lacked = run(&tenants, operations, seed);
    let read = |word: &AtomicU64| word.load(SeqCst);
    println!("seed {seed}: {} operations in {:.1} s, {count:?}", operations / 2 * 2, begin.elapsed().as_secs_f64());
    for ((tenant, (low, max, weight)), lacked) in tenants.iter().zip(TERMS).zip(lacked) {
        let device = tenant.device(FIRST).unwrap();
        let [greatest, refused, below_low] = [&device.greatest, &device.refused, &device.below_low].map(read);
        println!(
            "low {low}, max {max}, weight {weight}: greatest {greatest}, segments refused {refused}, \
             obtained below the low {below_low}, requests without memory {lacked}"
        );
        assert!(greatest > low && refused > 0 && below_low > 0, "seed {seed}: the limits were not reached");
        assert_eq!(read(&device.held), 0, "seed {seed}");
        tenant.check_invariants().unwrap();
    }
    assert_eq!(read(&count.faults), 0, "seed {seed}");
    assert_eq!(read(&count.total), 0, "seed {seed}");
    assert!(read(&count.greatest) > LIMIT / 10 * 9, "seed {seed}: the limit was not reached");
}

#[test]
fn two_tenants_stay_within_their_bounds() {
    campaign(in_turn, 200_000, 1);
}

#[test]
#[ignore = "a campaign: tests/groups.sh runs it"]
fn ten_million_operations_of_two_tenants() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let operations = number("CACHALOT_GROUP_OPERATIONS").unwrap_or(10_000_000);
    campaign(at_once, operations, number("CACHALOT_GROUP_SEED").unwrap_or_else(|| fastrand::u64(..)));
}
