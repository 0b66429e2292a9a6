//! Another policy: the first free range that is large enough serves a request.
//!
//! ```text
//! cargo run -p cachalot-core --example own_policy
//! ```

use cachalot_core::config::{Policies, Suballocation};
use cachalot_core::records::NONE;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::suballoc::{CapacityError, FreeDelta, SubAllocator, SubBlock};
use cachalot_core::{Allocator, Config, DeviceIndex, Growable, StreamId};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::error::Error;

/// The segments of a heap by number. Each has its free ranges, from address to bytes, and a count
/// of live sub-blocks.
#[derive(Clone, Default)]
pub struct FirstFit(BTreeMap<u32, (BTreeMap<u64, u64>, u32)>);

impl FirstFit {
    /// Returns the segment and the address of the first range for `size`.
    fn find(&self, size: u64) -> Option<(u32, u64)> {
        let fitting = |free: &BTreeMap<u64, u64>| free.iter().find(|range| *range.1 >= size).map(|range| *range.0);
        self.0.iter().find_map(|(&segment, (free, _))| Some((segment, fitting(free)?)))
    }
}

impl SubAllocator for FirstFit {
    fn segment_bytes(&self, size: u64) -> u64 {
        size.next_multiple_of(64 << 20)
    }

    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        true // A `BTreeMap` has no way to ask for room: a host without memory ends the program.
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, _size: u64) {
        self.0.insert(segment, (BTreeMap::from([(base, bytes)]), 0));
    }

    fn remove_segment(&mut self, segment: u32) {
        self.0.remove(&segment);
    }

    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        let Some((segment, addr)) = self.find(size) else { return Ok(None) };
        let Some((free, live)) = self.0.get_mut(&segment) else { return Ok(None) };
        let before = free.len() as u32;
        if let Some(bytes) = free.remove(&addr).filter(|&bytes| bytes > size) {
            free.insert(addr + size, bytes - size);
        }
        *live += 1;
        let delta = FreeDelta { alone: *live == 1, before, now: free.len() as u32 };
        Ok(Some((SubBlock { addr, segment, number: NONE }, delta)))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        self.find(size).map(|found| found.1)
    }

    fn free(&mut self, SubBlock { addr, segment, .. }: SubBlock, size: u64) -> FreeDelta {
        let (free, live) = self.0.get_mut(&segment).expect("the heap frees what it has allocated");
        let before = free.len() as u32;
        let after = free.remove(&(addr + size)).unwrap_or(0);
        match free.range_mut(..addr).next_back() {
            Some((&start, bytes)) if start + *bytes == addr => *bytes += size + after,
            _ => _ = free.insert(addr, size + after),
        }
        *live -= 1;
        FreeDelta { alone: *live == 0, before, now: free.len() as u32 }
    }

    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        self.0.get(&segment).into_iter().flat_map(|(free, _)| free).for_each(|(&addr, &bytes)| visit(addr, bytes));
    }

    fn copy(&self) -> Box<dyn SubAllocator> {
        Box::new(self.clone())
    }
}

/// The host's table of policies.
static POLICIES: [Suballocation; 1] = [Suballocation::new("first_fit", |_| Box::new(FirstFit::default()))];

fn main() -> Result<(), Box<dyn Error>> {
    let config = Config::parse_with(Policies::new(&POLICIES), "policy:first_fit")?;
    let allocator = Allocator::<_, spin::Mutex<()>, Growable>::new([SimulatedDevice::new(16 << 30)], &config)?;
    let [one, two] = [3, 7].map(|mib| allocator.block(DeviceIndex(0), mib << 20, StreamId::DEFAULT));
    let blocks = (one?, two?);
    let stats = allocator.stats(DeviceIndex(0))?.totals();
    assert_eq!((stats.allocated_bytes().current, stats.reserved_bytes().current), (10 << 20, 64 << 20));
    drop(blocks);
    assert_eq!(allocator.stats(DeviceIndex(0))?.totals().allocated_bytes().current, 0);
    Ok(())
}

#[test]
fn the_policy_serves_a_program() {
    main().unwrap();
}
