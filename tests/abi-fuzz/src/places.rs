//! Streams and domains. A domain is parked as a whole: a stream's memory of the default pool, or
//! the memory of a tag.

use crate::contents::Contents;
use crate::driver::{Driver, insist};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Where the memory of a domain is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Rest {
    Awake,
    /// A thread parks or wakes the domain.
    Busy,
    Parked,
    /// Between the start and the end of a wake.
    Waking,
}

/// Effect of a park on the contents of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Kept,
    Dropped,
    /// Zeroes, except in memory left on the device.
    Zeroed {
        /// Whether memory can have stayed on the device.
        partly: bool,
    },
}

/// Memory parked as a whole.
#[derive(Debug)]
pub(crate) struct Domain {
    /// The stream or the tag of the memory.
    pub(crate) name: String,
    /// Held for reading during the submission of work on the memory.
    lock: RwLock<()>,
    rest: AtomicU8,
    changes: Mutex<Vec<Change>>,
}

impl Domain {
    /// Returns an awake domain.
    pub(crate) fn new(name: String) -> Self {
        Self { name, lock: RwLock::new(()), rest: AtomicU8::new(0), changes: Mutex::new(Vec::new()) }
    }

    /// Returns where the memory is.
    pub(crate) fn rest(&self) -> Rest {
        match self.rest.load(Ordering::Acquire) {
            0 => Rest::Awake,
            1 => Rest::Busy,
            2 => Rest::Parked,
            _ => Rest::Waking,
        }
    }

    /// Sets where the memory is.
    pub(crate) fn set(&self, rest: Rest) {
        self.rest.store(rest as u8, Ordering::Release);
    }

    /// Keeps the domain awake until the guard is dropped. `None` for a domain not awake.
    pub(crate) fn awake(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.lock.read_recursive();
        (self.rest() == Rest::Awake).then_some(guard)
    }

    /// Keeps threads from making the domain busy.
    pub(crate) fn lock(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read_recursive()
    }

    /// Makes the domain busy, if the present state is in `from` and no thread submits work. Returns
    /// the former state.
    pub(crate) fn begin(&self, from: &[Rest]) -> Option<Rest> {
        let _alone = self.lock.try_write_for(Duration::from_millis(1))?;
        let rest = self.rest();
        from.contains(&rest).then(|| {
            self.set(Rest::Busy);
            rest
        })
    }

    /// Notes the effect of a park.
    pub(crate) fn change(&self, change: Change) {
        self.changes.lock().push(change);
    }

    /// Returns the number of changes.
    pub(crate) fn changes(&self) -> usize {
        self.changes.lock().len()
    }

    /// Returns the contents after the changes from number `seen` on.
    pub(crate) fn after(&self, mut contents: Contents, seen: &mut usize) -> Contents {
        let changes = self.changes.lock();
        for change in &changes[*seen..] {
            contents = match (change, contents) {
                (Change::Kept, contents) => contents,
                (Change::Dropped, _) | (Change::Zeroed { partly: true }, Contents::Unknown) => Contents::Unknown,
                (Change::Zeroed { partly: false }, _) | (Change::Zeroed { .. }, Contents::Zero) => Contents::Zero,
                (Change::Zeroed { partly: true }, Contents::Tag(tag) | Contents::ZeroOr(tag)) => Contents::ZeroOr(tag),
            };
        }
        *seen = changes.len();
        contents
    }
}

/// The kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Made by the program.
    Made,
    /// The legacy default stream.
    Legacy,
    /// The own default stream of a thread.
    OfThread(u32),
}

/// The life of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Alive,
    /// Destroyed, with an event behind the last work.
    Ended(u64),
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// Held for reading while the handle is used.
    pub(crate) life: RwLock<Life>,
    /// The memory of the stream in the default pool.
    pub(crate) domain: Arc<Domain>,
}

impl Stream {
    /// Returns a stream for a handle.
    pub(crate) fn new(handle: u64, device: usize, kind: Kind) -> Arc<Self> {
        Arc::new(Self {
            handle,
            device,
            kind,
            life: RwLock::new(Life::Alive),
            domain: Arc::new(Domain::new(format!("stream {handle:#x}"))),
        })
    }

    /// Makes a stream, which the legacy stream does not wait for if `flags` is 1. The device's
    /// context is current.
    pub(crate) fn make(driver: &Driver, device: usize, flags: u32) -> Arc<Self> {
        let mut handle = 0;
        insist("cuStreamCreate", || driver.stream_create(&mut handle, flags));
        Self::new(handle, device, Kind::Made)
    }

    /// Keeps the stream alive until the guard is dropped; `None` if the stream has ended.
    pub(crate) fn alive(&self) -> Option<RwLockReadGuard<'_, Life>> {
        let guard = self.life.read_recursive();
        (*guard == Life::Alive).then_some(guard)
    }

    /// Returns whether a thread can submit work to the stream.
    pub(crate) fn is_usable_by(&self, thread: u32) -> bool {
        !matches!(self.kind, Kind::OfThread(owner) if owner != thread)
    }
}
