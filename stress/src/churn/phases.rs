//! Phases of the churn: streams, threads with their own streams, private pools, and blocks.

use super::library::{Answer, BlockAddress, Library, PER_THREAD, Pool, Stream};
use super::memory::Progress;
use super::source::Source;
use crate::sizes;
use fastrand::Rng;
use std::collections::VecDeque;
use std::ffi::c_int;

/// State shared by the threads of a phase.
pub(super) struct Scene {
    pub(super) library: Library,
    pub(super) source: Source,
    pub(super) devices: u32,
    /// Whether streams are reported before destruction.
    pub(super) reported: bool,
    /// The permanent stream of each device.
    pub(super) permanent: Vec<Stream>,
    /// Number of blocks of ended streams and threads that each worker keeps live.
    pub(super) held: usize,
}

/// Units between two releases of the cache, in phases that leave memory in the cache.
const BETWEEN_EMPTYINGS: u64 = 1_000;
/// Units between two steps of the permanent simulated streams.
const BETWEEN_STEPS: u64 = 16;
/// Bytes of the blocks in [`streams`], [`threads`] and [`pools`].
const BYTES: usize = 5_000;
/// Constants of [`blocks`]: live blocks of a thread at most, the largest request, and requests and
/// frees per stream.
const SLOTS: usize = 64;
const LARGEST: u64 = 1 << 20;
const OPS_OF_A_STREAM: u64 = 4_096;

impl Scene {
    fn device(&self, number: u64) -> c_int {
        (number % u64::from(self.devices)) as c_int
    }

    fn permanent(&self, device: c_int) -> Stream {
        self.permanent[device as usize]
    }

    /// Completes the work of the permanent streams, every [`BETWEEN_STEPS`] units.
    fn progress(&self, number: u64) -> Answer {
        if !number.is_multiple_of(BETWEEN_STEPS) {
            return Ok(());
        }
        (0..self.devices as c_int).try_for_each(|device| self.library.progress(device, self.permanent(device)))
    }

    /// Releases the caches, every [`BETWEEN_EMPTYINGS`] units.
    fn empty(&self, number: u64) -> Answer {
        if !number.is_multiple_of(BETWEEN_EMPTYINGS) {
            return Ok(());
        }
        (0..self.devices as c_int).try_for_each(|device| self.library.empty_cache(device))
    }

    /// Ends a stream made by the thread: reports and destroys the stream.
    fn end_stream(&self, device: c_int, stream: Stream) -> Answer {
        if self.reported {
            self.library.stream_destroyed(device, stream)?;
        }
        self.source.destroy(device, stream)
    }

    /// Releases all cached memory, and checks that no memory and no block is left.
    pub(super) fn finish(&self) -> Answer {
        for device in 0..self.devices as c_int {
            self.library.progress(device, self.permanent(device))?;
            self.library.empty_cache(device)?;
        }
        (0..self.devices as c_int).try_for_each(|device| self.library.check_empty(device))
    }
}

/// Creates and destroys streams. When a stream ends, the stream's block is free, or live, or still
/// used by another stream, or in a private pool without users.
pub(super) fn streams(scene: &Scene, progress: &Progress, _worker: u64) -> Answer {
    let library = &scene.library;
    let mut held = VecDeque::new();
    while let Some(number) = progress.next()? {
        let device = scene.device(number);
        let stream = scene.source.make(device)?;
        let block = library.malloc(device, BYTES, stream)?;
        let mut after: Option<(BlockAddress, Option<Pool>)> = None;
        // Five endings of a stream, in turn on every device.
        match number / u64::from(scene.devices) % 5 {
            0 => library.free(block)?,
            1 => after = Some((block, None)),
            2 => {
                library.record_stream(block, scene.permanent(device))?;
                library.free(block)?;
            }
            3 => held.push_back(block),
            _ => {
                let pool = library.enter_pool(device)?;
                let routed = library.malloc(device, BYTES, stream)?;
                library.leave_pool(pool)?;
                library.free(block)?;
                after = Some((routed, Some(pool)));
            }
        }
        scene.end_stream(device, stream)?;
        if let Some((block, pool)) = after {
            if let Some(pool) = pool {
                library.release_pool(pool)?;
            }
            library.free(block)?;
        }
        if held.len() > scene.held
            && let Some(block) = held.pop_front()
        {
            library.free(block)?;
        }
        scene.progress(number)?;
    }
    held.into_iter().try_for_each(|block| library.free(block))
}

/// Runs threads that use their own default streams. When a thread ends, the thread's block is free,
/// or live, or still used by another stream, or the thread's stream uses another stream's block.
/// Every other thread reports its stream.
pub(super) fn threads(scene: &Scene, progress: &Progress, _worker: u64) -> Answer {
    let library = &scene.library;
    let mut held = VecDeque::new();
    while let Some(number) = progress.next()? {
        let visit = || -> Answer<Option<BlockAddress>> {
            let (device, permanent) = (scene.device(number), scene.permanent(scene.device(number)));
            let turn = number / u64::from(scene.devices);
            let own = library.malloc(device, BYTES, PER_THREAD)?;
            let mut left = None;
            // Four endings of a thread. Each ending occurs with a report (even turns) and without.
            match turn / 2 % 4 {
                0 => library.free(own)?,
                1 => left = Some(own),
                2 => {
                    library.record_stream(own, permanent)?;
                    library.free(own)?;
                }
                _ => {
                    let other = library.malloc(device, BYTES, permanent)?;
                    library.record_stream(other, PER_THREAD)?;
                    library.free(other)?;
                    library.free(own)?;
                }
            }
            if turn.is_multiple_of(2) {
                library.stream_destroyed(device, PER_THREAD)?;
            }
            Ok(left)
        };
        let left = std::thread::scope(|scope| scope.spawn(visit).join()).map_err(|_| "a thread panicked")?;
        held.extend(left?);
        if held.len() > scene.held
            && let Some(block) = held.pop_front()
        {
            library.free(block)?;
        }
        scene.progress(number)?;
        scene.empty(number)?;
    }
    held.into_iter().try_for_each(|block| library.free(block))
}

/// Creates and releases private pools. Every third pool is released while a block is live.
pub(super) fn pools(scene: &Scene, progress: &Progress, _worker: u64) -> Answer {
    let library = &scene.library;
    while let Some(number) = progress.next()? {
        let device = scene.device(number);
        let pool = library.enter_pool(device)?;
        let block = library.malloc(device, BYTES, scene.permanent(device))?;
        library.leave_pool(pool)?;
        if number / u64::from(scene.devices) % 3 == 0 {
            // The pool is released first, and must disappear with the free of its last block.
            library.release_pool(pool)?;
            library.free(block)?;
        } else {
            library.free(block)?;
            library.release_pool(pool)?;
        }
        scene.empty(number)?;
    }
    Ok(())
}

/// Requests and frees blocks, on the permanent streams and on streams that each thread replaces
/// from time to time.
pub(super) fn blocks(scene: &Scene, progress: &Progress, worker: u64) -> Answer {
    let (library, mut rng, device) = (&scene.library, Rng::with_seed(worker), scene.device(worker));
    let mut slots = [None; SLOTS];
    let mut own = scene.source.make(device)?;
    let mut ops = 0_u64;
    while let Some(number) = progress.next()? {
        ops += 1;
        let slot = &mut slots[rng.usize(0..SLOTS)];
        if let Some(block) = slot.take() {
            if rng.u32(0..16) == 0 {
                library.record_stream(block, scene.permanent(device))?;
            }
            library.free(block)?;
        } else {
            let on = if rng.u32(0..4) == 0 { scene.permanent(device) } else { own };
            *slot = Some(library.malloc(device, sizes::pick(&mut rng, LARGEST) as usize, on)?);
        }
        // Blocks of the old stream stay live in `slots` beyond the stream's end.
        if ops.is_multiple_of(OPS_OF_A_STREAM) {
            scene.end_stream(device, own)?;
            own = scene.source.make(device)?;
        }
        scene.progress(number)?;
    }
    slots.into_iter().flatten().try_for_each(|block| library.free(block))?;
    scene.end_stream(device, own)
}
