//! Steps with tenants: blocks requested, used on other streams and freed, and the memory parked and
//! woken.

use super::Worker;
use super::park::Wake;
use super::refusals::Reason;
use crate::block::Block;
use crate::sizes;
use crate::stage::{Device, Line};
use crate::tenant::{State, Tenancy, Tenant};
use crate::verdict::Kind;
use cachalot_core::{
    DevicePtr, Error, Host, MIB, ParkMode, ParkOrder, ParkState, ParkTarget, Physical, Route, RoutePurpose,
};
use cachalot_cuda::driver::types::CuStream;
use std::mem;
use std::ops::Range;

/// Number of steps in a disturbance.
const STEPS: Range<u32> = 1..9;
/// The largest block of a tenant.
const LARGEST: u64 = 4 * MIB;
/// Largest number of blocks requested or used in a step.
const SOME: usize = 6;
/// Upper bound for the number of loose blocks. Any thread may free a loose block.
const LOOSE: usize = 64;

impl Worker {
    /// Makes some steps with random tenants.
    pub(super) fn tenant_steps(&mut self) {
        for _ in 0..self.rng.u32(STEPS) {
            self.tenant_step();
        }
    }

    fn tenant_step(&mut self) {
        let shared = self.shared;
        let tenancy = &shared.tenancies[self.rng.usize(0..shared.tenancies.len())];
        // A thread that finds the tenant in use does what is permitted meanwhile.
        let Some(mut tenant) = tenancy.tenant.try_lock() else { return self.be_guest(tenancy) };
        let kind = self.rng.u32(0..12);
        match (tenant.state, kind) {
            (_, 0) => {
                drop(tenant);
                self.be_guest(tenancy);
            }
            (State::Awake, 1..=3) => self.grow(tenancy, &mut tenant),
            (State::Awake, 4) => self.shrink(tenancy, &mut tenant),
            (State::Awake, 5) => self.let_loose(tenancy, &mut tenant),
            (State::Awake, 6) => self.lend_to_lane(tenancy, &mut tenant),
            (State::Awake, 7) => self.lend_to_guest(tenancy, &mut tenant),
            (State::Awake | State::Asleep(_), 8) => self.replace_line(tenancy, &mut tenant),
            (State::Awake, _) => self.put_to_sleep(tenancy, &mut tenant),
            (State::Asleep(mode), 1) => self.insist(tenancy, mode),
            (State::Asleep(_) | State::Waking(_), 2..=4) => self.free_asleep(&mut tenant),
            (State::Asleep(mode), 5 | 6) => {
                if self.wake(self.stage_of(tenancy), tenancy.target, Wake::Start) {
                    tenant.state = State::Waking(mode);
                }
            }
            (State::Asleep(mode), _) => self.wake_up(tenancy, &mut tenant, mode, Wake::Whole),
            (State::Waking(mode), _) => self.wake_up(tenancy, &mut tenant, mode, Wake::Wait),
        }
    }

    fn stage_of(&self, tenancy: &Tenancy) -> &'static Device {
        &self.shared.devices[tenancy.device]
    }

    /// Requests and writes blocks of a tenant.
    fn grow(&mut self, tenancy: &Tenancy, tenant: &mut Tenant) {
        // A route of the thread might take the requests.
        if self.route.is_some() {
            return;
        }
        let (subject, stage) = (&self.shared.subject, self.stage_of(tenancy));
        let mut bytes_held = tenant.bytes();
        let at = self.rng.usize(0..tenant.parts.len());
        let part = &mut tenant.parts[at];
        if let Some(pool) = part.pool
            && let Err(error) = subject.pools(stage.index).unwrap().begin_route(
                pool,
                Route::Stream(part.line.id),
                RoutePurpose::Requests,
            )
        {
            return self.failed("begin_allocate_to_pool", &error);
        }
        let largest = self.shared.options.max_bytes(stage.total_bytes).min(LARGEST);
        for _ in 0..self.rng.usize(1..=SOME) {
            let bytes = sizes::pick(&mut self.rng, largest);
            if bytes_held + bytes > tenancy.most_bytes {
                break;
            }
            if let Some(block) = self.obtain(tenancy.device, part.line, bytes, true) {
                self.held[tenancy.device] -= bytes;
                bytes_held += bytes;
                part.blocks.push(block);
            }
        }
        if let Some(pool) = part.pool {
            let ended = subject.pools(stage.index).unwrap().end_route(pool, RoutePurpose::Requests);
            if let Err(error) = ended.and_then(|_| subject.pools(stage.index).unwrap().release(pool)) {
                self.failed("the end of a tenant's route", &error);
            }
        }
        self.write(tenancy, tenant, at);
    }

    /// Writes those blocks of a part that have no contents.
    fn write(&mut self, tenancy: &Tenancy, tenant: &mut Tenant, at: usize) {
        let part = &mut tenant.parts[at];
        for reader in mem::take(&mut part.readers) {
            if let Err(error) = self.put_behind(tenancy.device, part.line, reader) {
                self.device_failed("order", error);
            }
        }
        let (stage, line) = (self.stage_of(tenancy), part.line);
        // Blocks of the part's earlier streams are only read and freed.
        let mut fresh: Vec<_> =
            part.blocks.iter_mut().filter(|block| !block.written && !block.is_foreign_to(line)).collect();
        if fresh.is_empty() {
            return;
        }
        let rows: Vec<_> = fresh.iter().map(|block| block.row()).collect();
        let filled = part.checker.fill(line.handle, &rows);
        fresh.iter_mut().for_each(|block| block.written = filled.is_ok());
        if let Err(error) = filled {
            self.device_failed("fill", error);
            // The kernels of a part of the blocks may be queued.
            let _waited = stage.synchronize(line.handle);
        }
    }

    /// Checks blocks on the stream of their part. Returns the blocks with a successful announcement
    /// of the use.
    fn check(&mut self, tenancy: &Tenancy, tenant: &mut Tenant, at: usize, blocks: Vec<Block>) -> Vec<Block> {
        let (stage, line) = (self.stage_of(tenancy), tenant.parts[at].line);
        let (mut used, left): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| self.announce(line, block));
        let part = &mut tenant.parts[at];
        part.blocks.extend(left);
        let rows: Vec<_> = used.iter().filter(|block| block.written).map(Block::row).collect();
        match part.checker.verify(line.handle, &rows, &self.shared.verdict) {
            Ok(checked) => {
                self.counts.verified_blocks += checked.blocks;
                self.counts.verified_bytes += checked.bytes;
            }
            Err(error) => self.device_failed("verify", error),
        }
        if used.iter().any(|block| block.is_foreign_to(line))
            && let Some(visit) = self.end_visit(stage, line)
        {
            used.iter_mut().filter(|block| block.is_foreign_to(line)).for_each(|block| block.add_visit(&visit));
        }
        used
    }

    /// Takes some random blocks of a random part of a tenant. Returns the part's index, too.
    fn take_blocks(&mut self, tenant: &mut Tenant) -> (usize, Vec<Block>) {
        let at = self.rng.usize(0..tenant.parts.len());
        let blocks = &mut tenant.parts[at].blocks;
        let count = if blocks.is_empty() { 0 } else { self.rng.usize(1..=SOME.min(blocks.len())) };
        (at, (0..count).map(|_| blocks.swap_remove(self.rng.usize(0..blocks.len()))).collect())
    }

    /// Frees blocks of a tenant. A block whose free fails stays with the tenant.
    fn free_blocks(&mut self, tenant: &mut Tenant, at: usize, blocks: Vec<Block>) {
        for block in blocks {
            self.held[block.device] += block.bytes;
            if let Err(block) = self.free_block(block) {
                self.held[block.device] -= block.bytes;
                tenant.parts[at].blocks.push(block);
            }
        }
    }

    /// Checks and frees some blocks.
    fn shrink(&mut self, tenancy: &Tenancy, tenant: &mut Tenant) {
        let (at, blocks) = self.take_blocks(tenant);
        let checked = self.check(tenancy, tenant, at, blocks);
        self.free_blocks(tenant, at, checked);
    }

    /// Frees some blocks of memory parked or about to wake. No work uses the blocks.
    fn free_asleep(&mut self, tenant: &mut Tenant) {
        let (at, blocks) = self.take_blocks(tenant);
        self.free_blocks(tenant, at, blocks);
    }

    /// Checks some blocks, perhaps also on another stream, and lets any thread free the blocks at
    /// any time, also while the memory is being parked.
    fn let_loose(&mut self, tenancy: &Tenancy, tenant: &mut Tenant) {
        if self.rng.bool() {
            self.lend_to_lane(tenancy, tenant);
        }
        let (at, blocks) = self.take_blocks(tenant);
        let checked = self.check(tenancy, tenant, at, blocks);
        let mut loose = self.shared.loose.lock();
        let room = LOOSE.saturating_sub(loose.len()).min(checked.len());
        let mut checked = checked;
        tenant.parts[at].blocks.extend(checked.split_off(room));
        loose.extend(checked);
    }

    /// Frees a loose block, if any. Returns whether a loose block existed.
    pub(super) fn free_loose(&mut self) -> bool {
        let Some(block) = self.shared.loose.lock().pop() else { return false };
        self.held[block.device] += block.bytes;
        if let Err(block) = self.free_block(block) {
            self.held[block.device] -= block.bytes;
            self.shared.loose.lock().push(block);
        }
        true
    }

    /// Checks blocks of a tenant on a lane, and perhaps writes them anew. Frees some of them.
    fn lend_to_lane(&mut self, tenancy: &Tenancy, tenant: &mut Tenant) {
        let first = self.places.iter().position(|place| place.device == tenancy.device).expect("a lane of each device");
        let place = first + self.rng.usize(0..self.stage_of(tenancy).lanes.len());
        let (at, blocks) = self.take_blocks(tenant);
        let (later, earlier) = (self.line(place), tenant.parts[at].line);
        if let Err(error) = self.put_behind(tenancy.device, later, earlier) {
            tenant.parts[at].blocks.extend(blocks);
            return self.device_failed("order", error);
        }
        if self.rng.bool() {
            self.hold(place);
        }
        let rewrite = self.rng.bool();
        // A write follows the reads on other streams, which the tenant's own stream need not follow
        // yet.
        let readers = if rewrite { mem::take(&mut tenant.parts[at].readers) } else { Vec::new() };
        for reader in readers {
            if let Err(error) = self.put_behind(tenancy.device, later, reader) {
                self.device_failed("order", error);
            }
        }
        self.counts.visits += blocks.len() as u64;
        // Blocks whose use could not be announced come back by the list of the place.
        let stayed = mem::take(&mut self.places[place].filled);
        let mut used = self.use_on(place, blocks, rewrite);
        let back = mem::replace(&mut self.places[place].filled, stayed);
        tenant.parts[at].blocks.extend(back);
        let readers = &mut tenant.parts[at].readers;
        if !rewrite {
            readers.retain(|reader| *reader != later);
            readers.push(later);
        } else if let Err(error) = self.put_behind(tenancy.device, earlier, later) {
            self.device_failed("order", error);
        }
        let freed = used.split_off(self.rng.usize(0..=used.len()));
        tenant.parts[at].blocks.extend(used);
        self.free_blocks(tenant, at, freed);
    }

    /// Checks blocks of a tenant on a stream that ends before the work is complete. Frees some of
    /// the blocks, and keeps the rest.
    fn lend_to_guest(&mut self, tenancy: &Tenancy, tenant: &mut Tenant) {
        let stage = self.stage_of(tenancy);
        let guest = match stage.make_line() {
            Ok(line) => line,
            Err(error) => return self.device_failed("stream_create", error),
        };
        self.counts.guests += 1;
        let (at, blocks) = self.take_blocks(tenant);
        let line = tenant.parts[at].line;
        if let Err(error) = self.put_behind(tenancy.device, guest, line) {
            tenant.parts[at].blocks.extend(blocks);
            return self.device_failed("order", error);
        }
        let mut used = self.check_on_guest(tenancy.device, guest, blocks);
        let freed = used.split_off(self.rng.usize(0..=used.len()));
        // Only what is kept is used again. A free without an order leaves the wait to the
        // allocator.
        if !used.is_empty()
            && let Err(error) = self.put_behind(tenancy.device, line, guest)
        {
            self.device_failed("order", error);
        }
        tenant.parts[at].blocks.extend(used);
        self.free_blocks(tenant, at, freed);
        self.end_line(stage, guest);
    }

    /// Makes a guest check blocks, and announces the uses before or after the check.
    fn check_on_guest(&mut self, device: usize, guest: Line, blocks: Vec<Block>) -> Vec<Block> {
        let (shared, result) = (self.shared, self.sites[device].guests);
        let stage = &shared.devices[device];
        let most = shared.options.hold_us;
        if most > 0 && self.rng.bool() {
            let held = stage.kernels.hold(guest.handle, self.rng.u64(1..=most));
            held.unwrap_or_else(|error| self.device_failed("hold", error));
        }
        let after = self.rng.bool();
        let mut used = blocks;
        for block in &mut used {
            if !after && !self.announce(guest, block) {
                continue;
            }
            if block.written
                && let Err(error) = stage.kernels.verify(guest.handle, block.region(), block.life, result)
            {
                self.device_failed("verify", error);
            }
            if after && let Err(error) = shared.subject.record_use(block.ptr, guest.id) {
                self.failed("record_use", &error);
                let waited = stage.synchronize(guest.handle);
                waited.unwrap_or_else(|error| self.device_failed("synchronize", error));
            }
        }
        // A block whose use was recorded may serve its own stream at once, ordered after the use.
        if !after && let Some(visit) = self.end_visit(stage, guest) {
            used.iter_mut().for_each(|block| block.add_visit(&visit));
        }
        used
    }

    /// Replaces a stream of a tenant with a tag. The stream's blocks stay, also if parked.
    fn replace_line(&mut self, tenancy: &Tenancy, tenant: &mut Tenant) {
        let ParkTarget::Tag(_) = tenancy.target else { return };
        let stage = self.stage_of(tenancy);
        let at = self.rng.usize(0..tenant.parts.len());
        let old = tenant.parts[at].line;
        let new = match stage.make_line() {
            Ok(line) => line,
            Err(error) => return self.device_failed("stream_create", error),
        };
        if let Err(error) = self.put_behind(tenancy.device, new, old) {
            return self.device_failed("order", error);
        }
        tenant.parts[at].line = new;
        self.end_line(stage, old);
    }

    /// Parks the memory of a tenant, while work with the memory is queued.
    fn put_to_sleep(&mut self, tenancy: &Tenancy, tenant: &mut Tenant) {
        let modes = [ParkMode::Keep, ParkMode::Keep, ParkMode::Drop, ParkMode::Zero];
        let mode = modes[self.rng.usize(0..modes.len())];
        let order = if self.rng.bool() { ParkOrder::Device } else { ParkOrder::Streams };
        if self.park(self.stage_of(tenancy), tenancy.target, mode, order) {
            tenant.state = State::Asleep(mode);
        }
    }

    /// Makes calls without an effect on parked memory. Only a park may have an effect: on memory
    /// left awake by an earlier park.
    fn insist(&mut self, tenancy: &Tenancy, mode: ParkMode) {
        let (target, since) = (tenancy.target, self.shared.captures.now());
        let parking = match self.shared.subject.parking(self.stage_of(tenancy).index) {
            Ok(parking) => parking,
            Err(error) => return self.failed("parking", &error),
        };
        let Ok(_alone) = self.shared.untold.try_write() else { return };
        if let Err(error) = parking.park(target, mode, ParkOrder::Streams) {
            self.refused_for("a park of parked memory", &error, since, &[Reason::Capture, Reason::Turn]);
        }
        let (ParkTarget::Tag(tag), Some(pool)) = (target, *tenancy.guests.lock()) else { return };
        match parking.tag_pool(pool, None) {
            Err(Error::Parked) => {}
            other => {
                let text = format!("the tag of a parked pool was removed: {other:?}");
                self.shared.verdict.report(Kind::Accepted, text);
            }
        }
        if let Err(error) = parking.serve_elsewhere(tag, self.rng.bool()) {
            self.failed("serve_elsewhere", &error);
        }
    }

    /// Wakes the memory of a tenant, and checks the contents.
    fn wake_up(&mut self, tenancy: &Tenancy, tenant: &mut Tenant, mode: ParkMode, step: Wake) {
        if !self.wake(self.stage_of(tenancy), tenancy.target, step) {
            // A call that another thread's call keeps from its turn changes nothing.
            let report = self.report(self.stage_of(tenancy), tenancy.target);
            if report.is_some_and(|report| report.state == ParkState::Asleep) {
                tenant.state = State::Asleep(mode);
            }
            return;
        }
        tenant.state = State::Awake;
        for at in 0..tenant.parts.len() {
            match mode {
                ParkMode::Keep => {
                    let blocks = mem::take(&mut tenant.parts[at].blocks);
                    let checked = self.check(tenancy, tenant, at, blocks);
                    tenant.parts[at].blocks.extend(checked);
                }
                ParkMode::Drop => tenant.parts[at].blocks.iter_mut().for_each(|block| block.written = false),
                ParkMode::Zero => self.check_zeroes(tenancy, tenant, at),
            }
            self.write(tenancy, tenant, at);
        }
    }

    /// Checks that blocks contain zeroes. A block on pages shared with lent blocks or on pages of
    /// the host, or a lent block, may have stayed awake with its contents.
    fn check_zeroes(&mut self, tenancy: &Tenancy, tenant: &mut Tenant, at: usize) {
        let (stage, reader) = (self.stage_of(tenancy), self.sites[tenancy.device].reader);
        let may_stay = matches!(tenancy.target, ParkTarget::Stream(_)) || stage.spills;
        for block in &mut tenant.parts[at].blocks {
            // A block of an ordinary segment, obtained while the cache was off, keeps its contents.
            match self.is_in_segment(stage, block.ptr) {
                Ok(false) => {}
                Ok(true) => continue,
                Err(error) => return self.failed("extents", &error),
            }
            let was_written = mem::take(&mut block.written);
            if may_stay && !was_written {
                continue;
            }
            let found = match stage.read_bytes(reader, block.region()) {
                Ok(found) => found,
                Err(error) => return self.device_failed("read", error),
            };
            let stays = |(offset, &byte): (usize, &u8)| may_stay && byte == block.life.byte(offset as u64);
            if let Some(wrong) = found.iter().enumerate().position(|at| *at.1 != 0 && !stays(at)) {
                let (byte, written) = (found[wrong], block.life.byte(wrong as u64));
                let text = format!(
                    "{byte:#x} and not 0 at offset {wrong} of block {:#x} at {}, {} bytes of {:?}, after a park of {:?} with \
                     zeroes; {written:#x} was written there",
                    block.life.block, block.ptr, block.bytes, block.home, tenancy.target
                );
                self.shared.verdict.report(Kind::Content, text);
            }
            self.counts.verified_blocks += 1;
            self.counts.verified_bytes += block.bytes;
        }
    }

    /// Returns whether a block is in an ordinary segment, and not on pages.
    fn is_in_segment(&self, stage: &Device, block: DevicePtr) -> Result<bool, Error> {
        let mut found = false;
        self.shared.subject.pages(stage.index)?.extents(block, |extent| {
            found |= matches!(extent.memory, Physical::Segment(_));
        })?;
        Ok(found)
    }

    /// Requests a block of a tenant's pool, without the tenant's lock: the memory may be parked, or
    /// be about to be. The block is not used. Frees a loose block.
    fn be_guest(&mut self, tenancy: &Tenancy) {
        self.free_loose();
        let (subject, stage) = (&self.shared.subject, self.stage_of(tenancy));
        if let ParkTarget::Stream(id) = tenancy.target {
            return self.request_unused(tenancy.device, Line { handle: CuStream::NULL, id });
        }
        let Some(pool) = tenancy.guests.try_lock() else { return };
        let Some(pool) = pool.filter(|_| self.route.is_none()) else { return };
        let route = Route::Thread(stage.cuda.thread_id());
        if let Err(error) = subject.pools(stage.index).unwrap().begin_route(pool, route, RoutePurpose::Requests) {
            return self.failed("begin_allocate_to_pool", &error);
        }
        let line = stage.lanes[self.rng.usize(0..stage.lanes.len())].line();
        self.request_unused(tenancy.device, line);
        let ended = subject.pools(stage.index).unwrap().end_route(pool, RoutePurpose::Requests);
        if let Err(error) = ended.and_then(|_| subject.pools(stage.index).unwrap().release(pool)) {
            self.failed("the end of a guest's route", &error);
        }
    }

    /// Requests a block from memory that may be parked. No work uses the block. The block becomes a
    /// loose block.
    fn request_unused(&mut self, device: usize, line: Line) {
        let most = self.shared.options.max_bytes(self.shared.devices[device].total_bytes);
        let bytes = sizes::pick(&mut self.rng, LARGEST.min(most));
        let since = self.shared.captures.now();
        match self.try_obtain(device, line, bytes, true) {
            Ok(block) => {
                self.held[device] -= bytes;
                self.shared.loose.lock().push(block);
            }
            Err(error) => {
                let reasons = [Reason::Parked, Reason::Memory, Reason::Capture];
                self.refused_for("a request of memory that may be parked", &error, since, &reasons);
            }
        }
    }

    /// Waits for the work of all tenants, and reports the findings. No thread works with a tenant.
    pub(super) fn finish_tenants(&mut self) {
        for tenancy in &self.shared.tenancies {
            for part in &mut tenancy.tenant.lock().parts {
                // The lanes have been waited for, and may be replaced.
                part.readers.clear();
                if let Err(error) = part.checker.finish(part.line.handle, &self.shared.verdict) {
                    self.device_failed("finish", error);
                }
            }
        }
    }

    /// Wakes all tenants, or frees their blocks asleep, and gives up their pools. No other thread
    /// works.
    pub(super) fn end_tenants(&mut self) {
        let shared = self.shared;
        for tenancy in &shared.tenancies {
            let mut tenant = tenancy.tenant.lock();
            let stage = self.stage_of(tenancy);
            let freed = self.rng.bool();
            match tenant.state {
                State::Awake => {}
                State::Asleep(_) if freed => {}
                State::Asleep(mode) => self.wake_up(tenancy, &mut tenant, mode, Wake::Whole),
                State::Waking(mode) => self.wake_up(tenancy, &mut tenant, mode, Wake::Wait),
            }
            let stays = matches!(tenant.state, State::Waking(_)) || tenant.state != State::Awake && !freed;
            if stays && !shared.is_stopped() {
                shared.verdict.report(Kind::Refused, format!("{:?} does not wake at the end", tenancy.target));
            }
            for at in 0..tenant.parts.len() {
                let blocks = mem::take(&mut tenant.parts[at].blocks);
                let awake = tenant.state == State::Awake;
                let done = if awake { self.check(tenancy, &mut tenant, at, blocks) } else { blocks };
                self.free_blocks(&mut tenant, at, done);
                if let Some(pool) = tenant.parts[at].pool
                    && let Err(error) = shared.subject.pools(stage.index).unwrap().release(pool)
                {
                    self.failed("release_pool", &error);
                }
            }
            if let Some(pool) = tenancy.guests.lock().take()
                && let Err(error) = shared.subject.pools(stage.index).unwrap().release(pool)
            {
                self.failed("release_pool", &error);
            }
        }
        while self.free_loose() && !shared.is_stopped() {}
        self.finish_tenants();
    }
}
