//! Tenants: parts of the program that use a device in turn. The memory of a tenant is parked and
//! woken as a whole, by any thread.
//!
//! ```text
//!          fill, check, use on other streams, free
//!             ┌─────┐
//!             ▼     │
//!  ─▶ awake ──┴─────┘──── park ───▶ asleep ── wake_start ──▶ waking
//!       ▲                             │ free                   │ free
//!       └───────── wake ──────────────┴─────── wake_wait ──────┘
//! ```
//!
//! One thread at a time works with a tenant: the tenant's lock is held by every call that queues
//! work with the tenant's memory, and by every call that parks or wakes the memory. Requests and
//! frees of *guests* go on without the lock, while the memory is being parked.

use crate::block::Block;
use crate::checker::Checker;
use crate::setup::SetupError;
use crate::stage::{Device, Line, part};
use crate::subject::Subject;
use cachalot_core::{Config, ParkMode, ParkTarget, PoolId, PoolOptions, Tag};
use cachalot_kernels::Region;
use parking_lot::Mutex;
use std::num::NonZeroU64;

/// Part of a device that the blocks of all its tenants may have.
const SHARE: u64 = 8;

/// The state of a tenant's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Awake,
    Asleep(ParkMode),
    Waking(ParkMode),
}

/// One stream of a tenant, and the blocks requested on the stream.
pub(crate) struct TenantStream {
    /// The memory of the checker.
    pub(crate) memory: Region,
    /// The pool of the blocks. `None` for the default pool.
    pub(crate) pool: Option<PoolId>,
    pub(crate) line: Line,
    pub(crate) checker: Checker,
    /// Blocks whose contents are known in the order of the stream.
    pub(crate) blocks: Vec<Block>,
    /// Streams that have read blocks, which the next write follows.
    pub(crate) readers: Vec<Line>,
}

/// The state that a thread with the tenant's lock works with.
pub(crate) struct Tenant {
    pub(crate) parts: Vec<TenantStream>,
    pub(crate) state: State,
}

/// A tenant of a device.
pub(crate) struct Tenancy {
    pub(crate) device: usize,
    pub(crate) target: ParkTarget,
    /// Upper bound for the bytes of the tenant's blocks.
    pub(crate) most_bytes: u64,
    pub(crate) tenant: Mutex<Tenant>,
    /// Another pool with the tag, for requests by a thread without the tenant's lock. Locked while
    /// a route leads into the pool.
    pub(crate) guests: Mutex<Option<PoolId>>,
}

impl Tenant {
    /// Returns the bytes of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().flat_map(|part| &part.blocks).map(|block| block.bytes).sum()
    }
}

impl Tenancy {
    /// Creates the tenants of a device, of three kinds in turn: a tag on two pools, a tag on one
    /// pool, and a stream in the default pool if its memory is on pages.
    ///
    /// # Errors
    /// The device's, the allocator's, and a device without virtual memory.
    pub(crate) fn all(
        subject: &Subject,
        config: &Config,
        stage: &'static Device,
        count: u32,
        batch: u32,
    ) -> Result<Vec<Self>, SetupError> {
        let on_pages = config.policy_name() == "stitched" || config.expandable_segments();
        let mut all = Vec::new();
        for number in 0..count {
            let most_bytes = stage.total_bytes / SHARE / u64::from(count);
            let tenancy = if number % 3 == 2 && on_pages {
                let part = TenantStream::new(stage, None, batch)?;
                let target = ParkTarget::Stream(part.line.id);
                let tenant = Mutex::new(Tenant { parts: vec![part], state: State::Awake });
                Self { device: stage.index.0 as usize, target, most_bytes, tenant, guests: Mutex::new(None) }
            } else {
                let tag = Tag(NonZeroU64::MIN.saturating_add(number.into()));
                Self::with_tag(subject, stage, tag, 2 - number % 2, most_bytes, batch)?
            };
            all.push(tenancy);
        }
        Ok(all)
    }

    /// Creates a tenant with a tag.
    fn with_tag(
        subject: &Subject,
        stage: &'static Device,
        tag: Tag,
        parts: u32,
        most_bytes: u64,
        batch: u32,
    ) -> Result<Self, SetupError> {
        let pool = || {
            let pool = subject.pools(stage.index)?.create(PoolOptions::default())?;
            subject.parking(stage.index)?.tag_pool(pool, Some(tag))?;
            Ok::<_, cachalot_core::Error>(pool)
        };
        let guests = Mutex::new(Some(pool()?));
        let mut of_tag = Vec::new();
        for _ in 0..parts {
            of_tag.push(TenantStream::new(stage, Some(pool()?), batch)?);
        }
        let tenant = Mutex::new(Tenant { parts: of_tag, state: State::Awake });
        Ok(Self { device: stage.index.0 as usize, target: ParkTarget::Tag(tag), most_bytes, tenant, guests })
    }
}

impl TenantStream {
    /// Creates a part without blocks, with its own stream.
    fn new(stage: &'static Device, pool: Option<PoolId>, batch: u32) -> Result<Self, SetupError> {
        let each = Checker::bytes(batch);
        let memory = stage.own_memory(each)?;
        let reader = stage.make_line()?.handle;
        let checker = Checker::new(stage, part(memory, 0, each), batch, reader)?;
        Ok(Self { memory, pool, line: stage.make_line()?, checker, blocks: Vec::new(), readers: Vec::new() })
    }
}
