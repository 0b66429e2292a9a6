//! The shared state of a case's threads.

use crate::abi::Allocator;
use crate::case::Case;
use crate::driver::Driver;
use crate::finding;
use crate::history;
use crate::permitted::Situation;
use crate::places::{Domain, Kind, Rest, Stream};
use crate::worker::block::Block;
use cachalot::c::abi::cachalot_pool;
use cachalot_tests::claims::Ranges;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Private pools with a tag.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) device: usize,
    pub(crate) tag: u64,
    /// The pools, each with a single user.
    pub(crate) pools: Mutex<Vec<cachalot_pool>>,
    pub(crate) domain: Arc<Domain>,
    /// Whether the default pool serves requests while the group is parked.
    pub(crate) elsewhere: AtomicBool,
    /// Whether the group has ended.
    pub(crate) gone: AtomicBool,
    /// Held while a route leads to a pool of the group: the end of a route ends the newest route to
    /// the pool, even a route begun by another thread.
    pub(crate) routed: Mutex<()>,
    /// The only thread that requests memory of the group, for graphs.
    pub(crate) owner: Option<u32>,
    /// Whether a pool of the group had memory before the tag.
    pub(crate) ordinary: AtomicBool,
}

/// Counts for the summary.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) mallocs: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) checked: AtomicU64,
    pub(crate) parks: AtomicU64,
    pub(crate) wakes: AtomicU64,
    pub(crate) graphs: AtomicU64,
    pub(crate) replays: AtomicU64,
    pub(crate) ranges: AtomicU64,
    pub(crate) pins: AtomicU64,
    /// Calls that moved pages to the host or back.
    pub(crate) moved: AtomicU64,
    /// The most bytes of the host in use at an audit.
    pub(crate) spilled: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) forecasts: AtomicU64,
    pub(crate) fits: AtomicU64,
    pub(crate) mistakes: AtomicU64,
}

/// Adds 1 to a count.
pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// The driver, and the devices.
pub(crate) struct Machine {
    pub(crate) driver: Driver,
    /// The context of each device.
    pub(crate) contexts: Vec<u64>,
    /// Distance from a program's address to the view of each device's work.
    pub(crate) shifts: Vec<u64>,
}

/// The shared state of a case's threads.
pub(crate) struct World {
    /// Whether operations are printed.
    pub(crate) trace: bool,
    pub(crate) case: Case,
    pub(crate) driver: Driver,
    pub(crate) allocator: Allocator,
    /// The context of each device.
    pub(crate) contexts: Vec<u64>,
    /// Distance from a program's address to the view of each device's work.
    pub(crate) shifts: Vec<u64>,
    pub(crate) streams: RwLock<Vec<Arc<Stream>>>,
    /// The legacy stream of each device.
    pub(crate) legacy: Vec<Arc<Stream>>,
    pub(crate) groups: RwLock<Vec<Arc<Group>>>,
    /// Blocks given up by a thread, for any thread.
    pub(crate) offered: Mutex<Vec<Block>>,
    /// The addresses of live blocks, each with the domain of its memory.
    live: Mutex<Ranges<Arc<Domain>>>,
    /// The addresses of pages, as the callbacks tell.
    mapped: Mutex<Ranges<()>>,
    /// Captures under way.
    pub(crate) captures: AtomicU64,
    /// Whether memory can have a form outside the configuration.
    pub(crate) unusual: AtomicBool,
    /// Whether requests can exceed the memory or a limit now.
    pub(crate) short: AtomicBool,
    pub(crate) tags: AtomicU64,
    pub(crate) tally: Tally,
}

impl World {
    /// Returns the world of a case.
    pub(crate) fn new(case: Case, machine: Machine, allocator: Allocator, trace: bool) -> Self {
        let Machine { driver, contexts, shifts } = machine;
        let devices = 0..case.devices as usize;
        let legacy = devices.map(|device| Stream::new(0, device, Kind::Legacy)).collect();
        Self {
            trace,
            short: AtomicBool::new(case.tight),
            shifts,
            case,
            driver,
            allocator,
            contexts,
            streams: RwLock::default(),
            legacy,
            groups: RwLock::default(),
            offered: Mutex::default(),
            live: Mutex::default(),
            mapped: Mutex::default(),
            captures: AtomicU64::new(0),
            unusual: AtomicBool::new(false),
            tags: AtomicU64::new(1),
            tally: Tally::default(),
        }
    }

    /// Returns the situation of a call at any moment.
    pub(crate) fn situation(&self) -> Situation {
        let mut situation = Situation::NONE;
        if self.case.faults {
            situation |= Situation::FAULTS;
        }
        if self.short.load(Ordering::Relaxed) {
            situation |= Situation::SHORT;
        }
        if self.case.threads > 1 {
            situation |= Situation::OTHERS | Situation::CAPTURE;
        }
        if self.captures.load(Ordering::Relaxed) > 0 {
            situation |= Situation::CAPTURE;
        }
        situation
    }

    /// Notes a live block. The block must overlap no live block.
    pub(crate) fn born(&self, address: u64, bytes: usize, domain: &Arc<Domain>) {
        history::note(address, bytes as u64, || "live".to_owned());
        let claimed = self.live.lock().claim(address..address + bytes as u64, Arc::clone(domain));
        if let Err((other, _)) = claimed {
            finding::report("overlap", &format!("block {address:#x}+{bytes:#x} overlaps live block {other:#x?}"));
        }
    }

    /// Forgets a block before the free.
    pub(crate) fn gone(&self, address: u64) {
        let bytes = self.live.lock().give_up(address).map_or(1, |end| end - address);
        history::note(address, bytes, || "about to be freed".to_owned());
    }

    /// Notes a mapped page.
    pub(crate) fn mapped(&self, address: u64, bytes: u64) {
        history::note(address, bytes, || "on_map".to_owned());
        let claimed = self.mapped.lock().claim(address..address + bytes, ());
        if let Err((other, ())) = claimed {
            finding::report("hooks", &format!("on_map of {address:#x}+{bytes:#x}, where {other:#x?} is mapped"));
        }
    }

    /// Notes a page before the page is unmapped. No live block may lie on the page, unless the
    /// block's domain is parked.
    pub(crate) fn unmapped(&self, address: u64, bytes: u64) {
        history::note(address, bytes, || "on_unmap".to_owned());
        let page = address..address + bytes;
        if self.mapped.lock().give_up(address) != Some(page.end) {
            finding::report("hooks", &format!("on_unmap of {address:#x}+{bytes:#x}, which on_map did not name"));
        }
        let live = self.live.lock();
        let awake = live.overlapping(page).find(|(_, domain)| domain.rest() == Rest::Awake);
        if let Some((block, domain)) = awake {
            let text =
                format!("on_unmap of {address:#x}+{bytes:#x} under the live block {block:#x?} of {}", domain.name);
            drop(live);
            finding::report_at("unmap", block.start, bytes, &text);
        }
    }

    /// Returns the bytes of the mapped pages whose beginnings are in a part.
    pub(crate) fn pages_inside(&self, parts: &[(u64, u64)]) -> u64 {
        let mapped = self.mapped.lock();
        let inside = |address: u64| parts.iter().any(|&(first, end)| first <= address && address < end);
        mapped.iter().filter(|(page, ())| inside(page.start)).map(|(page, ())| page.end - page.start).sum()
    }

    /// Returns the mapped pages whose beginnings are in no part.
    pub(crate) fn pages_outside(&self, parts: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mapped = self.mapped.lock();
        let outside = |address: u64| !parts.iter().any(|&(first, end)| first <= address && address < end);
        let pages = mapped.iter().map(|(page, ())| (page.start, page.end - page.start));
        pages.filter(|&(address, _)| outside(address)).collect()
    }

    /// Returns whether every byte of a part lies on pages named by the callbacks.
    pub(crate) fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        self.mapped.lock().cover(address..address + bytes)
    }
}
