//! Tagged pools, and memory parked and woken.

use super::Worker;
use crate::abi::{self, Reply};
use crate::finding;
use crate::history;
use crate::permitted::Situation;
use crate::places::{Change, Domain, Kind, Rest, Stream};
use crate::world::{Group, add};
use cachalot::c::abi::{
    CACHALOT_ASLEEP, CACHALOT_AWAKE, CACHALOT_LENT, CACHALOT_PARK_AFTER_DEVICE, CACHALOT_PARK_AFTER_STREAMS,
    CACHALOT_PARK_DROP, CACHALOT_PARK_KEEP, CACHALOT_PARK_STREAM, CACHALOT_PARK_TAG, CACHALOT_PARK_ZERO,
    CACHALOT_ROUTE_THREAD, CACHALOT_WAKING, cachalot_park_mode, cachalot_park_options, cachalot_park_order,
    cachalot_park_report, cachalot_park_target, cachalot_pool, cachalot_tag_limits, cachalot_tag_report,
};
use cachalot::c::status::{
    CACHALOT_ERROR_DRIVER, CACHALOT_ERROR_OUT_OF_MEMORY, CACHALOT_ERROR_UNKNOWN_TAG, CACHALOT_OK,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Greatest number of the program's groups.
const MOST_GROUPS: usize = 6;

/// A target of a park.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Stream(Arc<Stream>),
    Group(Arc<Group>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(stream) => write!(f, "stream {:#x} of device {}", stream.handle, stream.device),
            Self::Group(group) => write!(f, "tag {} of device {}, owner {:?}", group.tag, group.device, group.owner),
        }
    }
}

impl Target {
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        match self {
            Self::Stream(stream) => &stream.domain,
            Self::Group(group) => &group.domain,
        }
    }

    /// Returns the target as a structure of the interface.
    fn to_c(&self) -> cachalot_park_target {
        let mut target = abi::blank::<cachalot_park_target>();
        match self {
            Self::Stream(stream) => {
                target.kind = CACHALOT_PARK_STREAM;
                target.stream = abi::stream(stream.handle);
            }
            Self::Group(group) => {
                target.kind = CACHALOT_PARK_TAG;
                target.tag = group.tag;
            }
        }
        target
    }

    pub(super) fn device(&self) -> i32 {
        match self {
            Self::Stream(stream) => stream.device as i32,
            Self::Group(group) => group.device as i32,
        }
    }
}

impl Worker {
    /// Makes a group with a new tag, and up to two pools.
    pub(crate) fn group_make(&mut self) {
        if self.world.groups.read().len() < MOST_GROUPS {
            let device = self.any_device();
            let pools = self.rng.usize(1..3);
            let group = self.new_group(device, pools, None);
            self.world.groups.write().push(group);
        }
    }

    /// Returns a new group. If the group has an owner, all other threads only park the memory.
    pub(crate) fn new_group(&mut self, device: usize, pools: usize, owner: Option<u32>) -> Arc<Group> {
        let tag = self.world.tags.fetch_add(1, Ordering::Relaxed);
        let domain = Arc::new(Domain::new(format!("tag {tag}")));
        // Some pools have memory before they have a tag.
        let ordinary = owner.is_none() && self.rng.u8(..6) == 0;
        let mut made = Vec::new();
        for _ in 0..pools {
            let mut pool = cachalot_pool::default();
            self.world.allocator.pool_create(device as i32, 0, &mut pool).judge(self.situation());
            self.place_pool(device, pool);
            if ordinary {
                self.request_in(device, pool, &domain);
            }
            let mapped = if self.world.case.maps_pools() { Situation::NONE } else { Situation::ORDINARY };
            self.world.allocator.pool_tag(device as i32, pool, tag).judge(self.situation() | mapped);
            made.push(pool);
        }
        if self.rng.bool() {
            self.limit_tag(device, tag);
        }
        self.say(|| format!("group {tag} ordinary {ordinary}"));
        Arc::new(Group {
            device,
            tag,
            pools: made.into(),
            domain,
            elsewhere: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            ordinary: AtomicBool::new(ordinary),
            owner,
            routed: Mutex::default(),
        })
    }

    /// Sets limits of a tag that refuse no request: what the tag keeps, how much it gives, and
    /// whether its pages are cleared.
    fn limit_tag(&mut self, device: usize, tag: u64) {
        let mut limits = abi::blank::<cachalot_tag_limits>();
        limits.low_bytes = self.rng.u64(..64 << 20);
        limits.weight = self.rng.u32(..300);
        limits.clear = self.rng.u32(..2);
        let allocator = self.world.allocator;
        allocator.tag_limit(device as i32, tag, &raw const limits).judge(self.situation());
        let mut held = abi::blank::<cachalot_tag_report>();
        let keep = self.rng.usize(..64 << 20);
        allocator.tag_trim(device as i32, tag, keep).judge(self.situation());
        if allocator.tag_held(device as i32, tag, &mut held).judge(self.situation()) {
            let as_set = (held.low_bytes, held.clear) == (limits.low_bytes, limits.clear);
            if !as_set || held.cached_bytes > held.charge_bytes || held.max_bytes != 0 {
                finding::report_at("tag", 0, 0, &format!("limits {limits:?} of tag {tag} are {held:?}"));
            }
        }
    }

    /// Requests a block of a pool, with a route of the thread.
    fn request_in(&mut self, device: usize, pool: cachalot_pool, domain: &Arc<Domain>) {
        let stream = self.any_stream_of(device);
        let allocator = self.world.allocator;
        let begun = allocator.pool_begin(device as i32, pool, CACHALOT_ROUTE_THREAD, abi::stream(0));
        if !begun.judge(self.situation() | Situation::GONE) {
            return;
        }
        let bytes = self.any_size();
        let before = (domain.rest(), domain.changes());
        if let Some(mut block) = self.request(bytes, &stream, domain, Situation::NONE) {
            if before == (Rest::Awake, domain.changes()) && domain.rest() == Rest::Awake {
                self.touch(&mut block, &stream, true);
                self.blocks.push(block);
            } else {
                // The block may be in the pool or elsewhere.
                self.give_up(block, false);
            }
        }
        allocator.pool_end(device as i32, pool).judge(self.situation());
        allocator.pool_release(device as i32, pool).judge(self.situation());
    }

    /// Returns a random group.
    pub(super) fn any_group(&mut self) -> Option<Arc<Group>> {
        let groups = self.world.groups.read();
        (!groups.is_empty()).then(|| Arc::clone(&groups[self.rng.usize(..groups.len())]))
    }

    /// Requests blocks of a group.
    pub(crate) fn group_requests(&mut self) {
        let Some(group) = self.any_group().filter(|group| group.owner.is_none()) else { return };
        for _ in 0..self.rng.u8(1..4) {
            let pools = group.pools.lock();
            let Some(&pool) = pools.get(self.rng.usize(..2)).or_else(|| pools.first()) else { return };
            drop(pools);
            if self.is_over_budget() {
                return self.free();
            }
            let routed = group.routed.lock();
            self.request_in(group.device, pool, &group.domain);
            drop(routed);
        }
    }

    /// Ends a group, whose blocks live on.
    pub(crate) fn group_end(&mut self) {
        let Some(group) = self.any_group().filter(|group| group.owner.is_none()) else { return };
        self.end_group(&group);
    }

    /// Ends every remaining group.
    pub(crate) fn end_groups(&mut self) {
        let groups = std::mem::take(&mut *self.world.groups.write());
        for group in groups {
            self.end_group(&group);
        }
    }

    /// Releases the pools of a group.
    pub(crate) fn end_group(&self, group: &Group) {
        let Some(rest) = group.domain.begin(&[Rest::Awake, Rest::Parked]) else { return };
        group.gone.store(true, Ordering::Relaxed);
        for pool in group.pools.lock().drain(..) {
            self.world.allocator.pool_release(group.device as i32, pool).judge(self.situation());
        }
        self.say(|| format!("end of group {}", group.tag));
        group.domain.set(rest);
        if rest == Rest::Awake {
            self.world.groups.write().retain(|other| other.tag != group.tag);
        }
    }

    /// Returns the situation of a call for a target.
    pub(super) fn situation_of(&self, target: &Target) -> Situation {
        let mut situation = self.situation();
        match target {
            Target::Stream(_) if !self.world.case.is_mapped() => situation |= Situation::ORDINARY,
            Target::Group(group) if group.gone.load(Ordering::Relaxed) => situation |= Situation::GONE,
            // The pools may have no tag.
            Target::Group(_) if !self.world.case.maps_pools() => situation |= Situation::GONE | Situation::ORDINARY,
            _ => {}
        }
        if self.world.case.has_no_pages() {
            situation |= Situation::ORDINARY;
        }
        situation
    }

    /// Parks a stream's memory or a group.
    pub(crate) fn park(&mut self) {
        let target = if self.rng.bool() {
            let stream = self.any_stream();
            if matches!(stream.kind, Kind::OfThread(_)) {
                return;
            }
            Target::Stream(stream)
        } else {
            let Some(group) = self.any_group() else { return };
            Target::Group(group)
        };
        let mode =
            [CACHALOT_PARK_KEEP, CACHALOT_PARK_KEEP, CACHALOT_PARK_DROP, CACHALOT_PARK_ZERO][self.rng.usize(..4)];
        let order = if self.rng.bool() { CACHALOT_PARK_AFTER_STREAMS } else { CACHALOT_PARK_AFTER_DEVICE };
        self.park_in(&target, mode, order);
    }

    /// Parks a target, if awake.
    fn park_in(&mut self, target: &Target, mode: cachalot_park_mode, order: cachalot_park_order) {
        let alive = if let Target::Stream(stream) = target { Some(stream.alive()) } else { None };
        if matches!(alive, Some(None)) || target.domain().begin(&[Rest::Awake]).is_none() {
            return;
        }
        history::note(0, 0, || format!("park {target} mode {mode} order {order}"));
        let (allocator, device) = (self.world.allocator, target.device());
        let options = cachalot_park_options { mode, order, ..abi::blank() };
        let reply = allocator.park(device, &target.to_c(), &raw const options);
        history::note(0, 0, || format!("park {target} mode {mode} order {order}: {}", reply.status));
        self.say(|| format!("park {target} mode {mode} order {order}: {}", reply.status));
        let status = reply.status_in(self.situation_of(target));
        if status == CACHALOT_ERROR_UNKNOWN_TAG {
            return target.domain().set(Rest::Awake);
        }
        let rest = self.rest_of(target);
        if status == CACHALOT_OK {
            add(&self.world.tally.parks);
            target.domain().change(self.effect(target, mode));
            // Where nothing can be parked, the domain counts as parked until a wake all the same.
            target.domain().set(Rest::Parked);
            return;
        }
        // What the driver has unmapped has lost its contents, unless they were to be kept.
        if mode != CACHALOT_PARK_KEEP && self.world.case.faults {
            target.domain().change(Change::Dropped);
        }
        // Other threads may have taken the memory of what was parked by then.
        if rest != Rest::Awake && !self.world.case.faults && !self.world.case.tight {
            finding::report_at(
                "park",
                0,
                0,
                &format!("{reply:?} left the memory {rest:?}: {target} mode {mode}: {}", abi::last_error()),
            );
        }
        target.domain().set(rest);
    }

    /// Returns the effect of a park's mode on the contents.
    fn effect(&self, target: &Target, mode: cachalot_park_mode) -> Change {
        match mode {
            CACHALOT_PARK_KEEP => Change::Kept,
            CACHALOT_PARK_DROP => Change::Dropped,
            _ => {
                let ordinary = match target {
                    // Blocks that another stream has lent stay awake, and so do those of plans.
                    Target::Stream(_) => true,
                    // Segments that were obtained while the cache was off lie on no pages.
                    Target::Group(group) => {
                        let uncached = self.world.case.no_caching || self.world.unusual.load(Ordering::Relaxed);
                        group.ordinary.load(Ordering::Relaxed) || uncached
                    }
                };
                let pinned = self.world.tally.pins.load(Ordering::Relaxed) > 0;
                Change::Zeroed { partly: ordinary || pinned }
            }
        }
    }

    /// Asks the library where the memory of a target is.
    fn rest_of(&self, target: &Target) -> Rest {
        let mut report = abi::blank::<cachalot_park_report>();
        let (allocator, device) = (self.world.allocator, target.device());
        let asked = target.to_c();
        let mut ask = || allocator.park_report(device, &asked, &mut report);
        // The driver may fail to identify a stream, mostly once.
        let mut status = ask().status_in(self.situation_of(target));
        while matches!(status, CACHALOT_ERROR_DRIVER | CACHALOT_ERROR_OUT_OF_MEMORY) {
            status = ask().status_in(self.situation_of(target));
        }
        if status != CACHALOT_OK {
            return if status == CACHALOT_ERROR_UNKNOWN_TAG { Rest::Parked } else { Rest::Awake };
        }
        match report.state {
            CACHALOT_AWAKE => Rest::Awake,
            CACHALOT_ASLEEP | CACHALOT_LENT => Rest::Parked,
            CACHALOT_WAKING => Rest::Waking,
            other => finding::report_at("park", 0, 0, &format!("{target:?} is in state {other}")),
        }
    }

    /// Wakes a stream's memory or a group, in a single step or in two.
    pub(crate) fn wake(&mut self) {
        let asleep = |domain: &Domain| matches!(domain.rest(), Rest::Parked | Rest::Waking);
        let mut targets: Vec<Target> = Vec::new();
        let groups = self.world.groups.read();
        targets.extend(groups.iter().filter(|group| asleep(&group.domain)).cloned().map(Target::Group));
        drop(groups);
        let streams = self.world.streams.read();
        let all = streams.iter().chain(&self.world.legacy);
        targets.extend(all.filter(|stream| asleep(&stream.domain)).cloned().map(Target::Stream));
        drop(streams);
        if !targets.is_empty() {
            let target = targets.swap_remove(self.rng.usize(..targets.len()));
            let step = self.rng.u8(..4);
            self.wake_by(&target, step);
        }
    }

    /// Wakes a sleeping target: step 0 starts the wake, step 1 waits, and any further step wakes
    /// the whole target. Returns whether the target is awake.
    pub(crate) fn wake_by(&self, target: &Target, step: u8) -> bool {
        let alive = if let Target::Stream(stream) = target { Some(stream.alive()) } else { None };
        if matches!(alive, Some(None)) || target.domain().begin(&[Rest::Parked, Rest::Waking]).is_none() {
            return false;
        }
        history::note(0, 0, || format!("wake {target} step {step}"));
        let (allocator, device) = (self.world.allocator, target.device());
        if !self.bring_back(target) {
            target.domain().set(Rest::Parked);
            return false;
        }
        let woken = target.to_c();
        let reply: Reply = match step {
            0 => allocator.wake_start(device, &woken),
            1 => allocator.wake_wait(device, &woken),
            _ => allocator.wake(device, &woken),
        };
        history::note(0, 0, || format!("wake {target} step {step}: {}", reply.status));
        self.say(|| format!("wake {target} step {step}: {}", reply.status));
        let status = reply.status_in(self.situation_of(target));
        let started = step == 0;
        let rest = match status {
            CACHALOT_OK if started => Rest::Waking,
            CACHALOT_OK => Rest::Awake,
            CACHALOT_ERROR_UNKNOWN_TAG => Rest::Parked,
            _ => self.rest_of(target),
        };
        if status == CACHALOT_OK && !started {
            add(&self.world.tally.wakes);
            let seen = self.rest_of(target);
            if seen != Rest::Awake && !self.situation_of(target).has(Situation::GONE) {
                finding::report_at("wake", 0, 0, &format!("{target:?} is {seen:?} after a wake"));
            }
        }
        // Awake memory that a call refused to wake counts as asleep: the next wake does nothing.
        target.domain().set(if status != CACHALOT_OK && rest == Rest::Awake { Rest::Parked } else { rest });
        rest == Rest::Awake && status == CACHALOT_OK
    }

    /// Sets whether parked groups send requests elsewhere, or sets the host memory kept for parks.
    pub(crate) fn park_settings(&mut self) {
        let allocator = self.world.allocator;
        if self.rng.bool() {
            let device = self.any_device() as i32;
            let bytes = if self.rng.bool() { 0 } else { 64 << 20 };
            allocator.park_retain(device, bytes).judge(self.situation_of_device());
            return;
        }
        let Some(group) = self.any_group() else { return };
        let on = self.rng.bool();
        let target = Target::Group(Arc::clone(&group));
        allocator.park_elsewhere(group.device as i32, group.tag, i32::from(on)).judge(self.situation_of(&target));
        group.elsewhere.store(on, Ordering::Relaxed);
    }

    /// Returns the situation of a call for pages of a device.
    pub(crate) fn situation_of_device(&self) -> Situation {
        let ordinary = if self.world.case.has_no_pages() { Situation::ORDINARY } else { Situation::NONE };
        self.situation() | ordinary
    }
}
