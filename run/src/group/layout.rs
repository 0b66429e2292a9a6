//! The shared file of a group: a header, and an entry for each owner.
//!
//! ```text
//! magic form length uuid limit named gone used | lock | entry 0 | entry 1 | …
//! ```
//!
//! A process that has marked a byte of the file ([`marks`](crate::shared::marks)) has the number of
//! the byte, and with it the entry of that number, and may take the lock under it. Marks are seen
//! from every container, where process ids are not.
//!
//! No sum is stored. Each owner's bytes are an atomic word, and the sum is computed from the
//! entries. So a process can be killed at any moment, and the sum and the entries agree.

use super::lock::Lock;
use super::turns::Contender;
use crate::shared::form;
use crate::shared::map::Words;
use crate::shared::process::Identity;
use cachalot_core::shares::{Figures, NONE};
use std::sync::atomic::{AtomicU64, Ordering};

/// The first word of the file: `CACHGRP2`.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"CACHGRP2");

/// The form of the file: since 4, the lock is held by a number, and each entry names the namespace
/// of its process id; since 5, an entry has `pressed`.
pub(super) const FORM: u64 = 5;

/// Greatest number of owners in a group.
pub(super) const OWNERS: usize = 512;

/// The shared file.
#[repr(C, align(128))]
pub(super) struct State {
    /// [`MAGIC`], written last.
    pub(super) magic: AtomicU64,
    /// [`FORM`].
    pub(super) form: AtomicU64,
    /// Bytes of the file.
    pub(super) length: AtomicU64,
    /// The device.
    pub(super) uuid: [AtomicU64; 2],
    /// Greatest number of bytes of all owners together, or [`NONE`]. Written under the lock.
    pub(super) limit: AtomicU64,
    /// The limit that members name, or [`NONE`]: `limit`, until it is set while the group is in
    /// use. Written under the lock.
    pub(super) named: AtomicU64,
    /// 1 if the file leaves, or has left, the folder. Written under the lock.
    pub(super) gone: AtomicU64,
    /// Number of entries with an owner now or before, all at the start of the table. Grows under
    /// the lock, before the entry gets an owner.
    pub(super) used: AtomicU64,
    /// Held during a reservation, a join and a departure.
    pub(super) lock: Lock,
    pub(super) entries: [OwnerEntry; OWNERS],
}

// SAFETY: atomic words.
unsafe impl Words for State {}

/// The entry of an owner.
#[repr(C, align(128))]
pub(super) struct OwnerEntry {
    /// The process id, or 0 for a free entry. Written under the lock, after the other words at a
    /// join. Whoever has marked the byte of the entry frees it also without the lock.
    pub(super) pid: AtomicU64,
    pub(super) start: AtomicU64,
    pub(super) image: AtomicU64,
    /// The namespace of the process id, or 0 if the owner does not know it.
    pub(super) namespace: AtomicU64,
    /// Bytes held. Grows under the lock only, and shrinks at any time.
    pub(super) held: AtomicU64,
    /// Bytes kept for the owner.
    pub(super) low: AtomicU64,
    /// Greatest number of bytes of the owner, or [`NONE`].
    pub(super) max: AtomicU64,
    pub(super) weight: AtomicU64,
    /// Bytes of the last refused reservation, or 0.
    pub(super) want: AtomicU64,
    /// The program's name.
    pub(super) program: [AtomicU64; 4],
    /// The state of the owner's sleep: see [`Contender`]. Written by the owner alone.
    pub(super) needs: AtomicU64,
    pub(super) waits_since: AtomicU64,
    pub(super) awake_since: AtomicU64,
    pub(super) idle_since: AtomicU64,
    pub(super) awake_at_least: AtomicU64,
    pub(super) pressed: AtomicU64,
}

/// The bounds of an owner, as named at the join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    pub(super) low: u64,
    pub(super) max: u64,
    pub(super) weight: u64,
}

/// The limit of a group in bytes, and the one that its members name. They differ once the limit was
/// set while the group was in use: a program that starts again still names the earlier limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) now: Option<u64>,
    pub(super) named: Option<u64>,
}

impl OwnerEntry {
    /// Returns the owner, or `None` for a free entry.
    pub(super) fn owner(&self) -> Option<Identity> {
        let pid = self.pid.load(Ordering::Acquire);
        (pid != 0).then(|| Identity {
            pid: pid as u32,
            start: self.start.load(Ordering::Relaxed),
            image: self.image.load(Ordering::Relaxed),
        })
    }

    /// Returns the figures. Another process may have written them, so every value is possible.
    pub(super) fn figures(&self) -> Figures {
        Figures {
            held: self.held.load(Ordering::Acquire),
            low: self.low.load(Ordering::Relaxed),
            max: self.max.load(Ordering::Relaxed),
            weight: self.weight.load(Ordering::Relaxed).clamp(1, u64::from(u32::MAX)),
            want: self.want.load(Ordering::Relaxed),
        }
    }

    /// Returns the state of the owner's sleep.
    pub(super) fn contender(&self) -> Contender {
        Contender {
            held: self.held.load(Ordering::Acquire),
            needs: self.needs.load(Ordering::Relaxed),
            waits_since: self.waits_since.load(Ordering::Acquire),
            awake_since: self.awake_since.load(Ordering::Relaxed),
            idle_since: self.idle_since.load(Ordering::Relaxed),
            awake_at_least: self.awake_at_least.load(Ordering::Relaxed),
            pressed: self.pressed.load(Ordering::Relaxed),
        }
    }

    /// Returns the program's name.
    pub(super) fn program(&self) -> String {
        form::unpack(self.program.iter().map(|word| word.load(Ordering::Relaxed)))
    }

    /// Gives a free entry to an owner. The caller holds the lock.
    pub(super) fn take(&self, owner: Identity, namespace: u64, program: &str, terms: Terms) {
        let words = [
            (&self.namespace, namespace),
            (&self.start, owner.start),
            (&self.image, owner.image),
            (&self.held, 0),
            (&self.low, terms.low),
            (&self.max, terms.max),
            (&self.weight, terms.weight),
            (&self.want, 0),
            (&self.needs, 0),
            (&self.waits_since, 0),
            (&self.awake_since, 0),
            (&self.idle_since, 0),
            (&self.awake_at_least, 0),
            (&self.pressed, 0),
        ];
        words.iter().for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        for (word, part) in self.program.iter().zip(form::pack::<4>(program)) {
            word.store(part, Ordering::Relaxed);
        }
        // Last: a process that is killed before leaves a free entry.
        self.pid.store(owner.pid.into(), Ordering::Release);
    }

    /// Frees the entry. The caller holds the lock, or has marked the byte of the entry.
    pub(super) fn clear(&self) {
        self.pid.store(0, Ordering::Release);
    }
}

impl State {
    /// Returns the limit. `None`: no limit.
    pub(super) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != NONE)
    }

    /// Returns the limit and the one that members name.
    pub(super) fn limits(&self) -> Limits {
        let named = Some(self.named.load(Ordering::Relaxed)).filter(|&limit| limit != NONE);
        Limits { now: self.limit(), named }
    }

    /// Returns the numbers of the entries with an owner.
    pub(super) fn owned(&self) -> impl Iterator<Item = usize> {
        (0..self.used()).filter(|&at| self.entries[at].pid.load(Ordering::Acquire) != 0)
    }

    /// Returns the number of entries with an owner now or before, at most the length of the table.
    pub(super) fn used(&self) -> usize {
        usize::try_from(self.used.load(Ordering::Acquire)).unwrap_or(OWNERS).min(OWNERS)
    }
}
