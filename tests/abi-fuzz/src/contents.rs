//! The contents of memory: stamps at known places, written and checked by host functions in the
//! order of a stream.
//!
//! A stamp is a word that depends on the tag of the contents and on the address. Small blocks are
//! stamped throughout, longer blocks at both ends and at multiples of 4 or 64 KiB. Multiples are of
//! the address, so that two blocks at one place meet in their stamps.

use crate::finding::{self, Origin};
use crate::history;
use std::ffi::c_void;
use std::fmt;

/// What memory contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Anything.
    Unknown,
    /// The stamps of a tag.
    Tag(u64),
    /// Zeroes.
    Zero,
    /// At each place zeroes, or the stamp of the tag.
    ZeroOr(u64),
}

/// What a job does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Writes the stamps of a tag.
    Write(u64),
    /// Checks the contents.
    Check(Contents),
}

/// A piece of work on a part of memory.
#[derive(Debug)]
pub(crate) struct Job {
    /// Device address of the first byte, as the program knows it.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// Distance from the program's address to the address at which work finds the memory.
    pub(crate) shift: u64,
    pub(crate) action: Action,
    pub(crate) origin: Origin,
    /// Whether the job runs more than once, as part of a graph.
    pub(crate) stays: bool,
}

impl Job {
    /// Returns the program's address for an address of the work's view.
    pub(crate) fn seen_at(&self, address: usize) -> u64 {
        (address as u64).wrapping_sub(self.shift)
    }

    /// Hands the job out as the argument of [`run`].
    pub(crate) fn into_argument(self) -> *mut c_void {
        Box::into_raw(Box::new(self)).cast()
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:#x}+{:#x}, queued at {}", self.action, self.address, self.bytes, self.origin)
    }
}

/// Runs a job on the thread of a stream.
///
/// # Safety
/// The argument comes from [`Job::into_argument`]. A job that does not stay runs once.
pub(crate) unsafe extern "C" fn run(argument: *mut c_void) {
    let argument = argument.cast::<Job>();
    // SAFETY: guaranteed by the caller.
    let job = unsafe { &*argument };
    finding::in_job(job, || act(job));
    if !job.stays {
        // SAFETY: the job has run for the only time.
        drop(unsafe { Box::from_raw(argument) });
    }
}

/// Distance between the stamps of a long block.
fn stride(bytes: usize) -> u64 {
    if bytes <= 1 << 20 { 4 << 10 } else { 64 << 10 }
}

/// Calls `each` with the offsets of all stamps of a part of memory.
fn stamps(address: u64, bytes: usize, mut each: impl FnMut(usize)) {
    let words = bytes / 8;
    if words <= 512 {
        (0..words).for_each(|word| each(word * 8));
        return;
    }
    (0..8).chain(words - 8..words).for_each(|word| each(word * 8));
    let stride = stride(bytes);
    let first = address.next_multiple_of(stride) - address;
    (first as usize..words * 8).step_by(stride as usize).for_each(each);
}

/// Returns the stamp of a tag at an address.
fn stamp(tag: u64, address: u64) -> u64 {
    let mixed = (tag ^ address.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    // Never zero, so that zeroes are told apart.
    (mixed ^ (mixed >> 29)) | 1
}

/// Returns the address at which a word is the stamp of a tag, in the lower half of all addresses.
fn place(tag: u64, word: u64) -> Option<u64> {
    // The inverse of the odd factor of a stamp, by Newton's steps: each doubles the number of right
    // bits.
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let inverse =
        (0..6).fold(FACTOR, |inverse: u64, _| inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse))));
    // The lowest bit of a stamp was set.
    [word, word ^ 1].into_iter().find_map(|word| {
        let mixed = word ^ (word >> 29) ^ (word >> 58);
        let address = (mixed.wrapping_mul(inverse) ^ tag).rotate_left(32);
        (stamp(tag, address) == word | 1 && address >> 47 == 0).then_some(address)
    })
}

/// Runs a job.
fn act(job: &Job) {
    let at = job.address.wrapping_add(job.shift) as usize;
    let word = |offset: usize| std::ptr::with_exposed_provenance_mut::<u64>(at + offset);
    match job.action {
        Action::Write(tag) => history::note_write(job.address, job.bytes as u64, tag, || format!("run {job}")),
        Action::Check(_) => history::note(job.address, job.bytes as u64, || format!("run {job}")),
    }
    match job.action {
        Action::Write(tag) => stamps(job.address, job.bytes, |offset| {
            // SAFETY: memory of the emulated device while the block lives; otherwise the fault is a
            // finding.
            unsafe { word(offset).write_volatile(stamp(tag, job.address + offset as u64)) };
        }),
        Action::Check(Contents::Unknown) => {}
        Action::Check(contents) => stamps(job.address, job.bytes, |offset| {
            // SAFETY: as for a write.
            let found = unsafe { word(offset).read_volatile() };
            if !fits(contents, job.address + offset as u64, found) {
                wrong(job, offset, found);
            }
        }),
    }
}

/// Returns whether the word at an address fits the contents.
fn fits(contents: Contents, address: u64, found: u64) -> bool {
    match contents {
        Contents::Unknown => true,
        Contents::Tag(tag) => found == stamp(tag, address),
        Contents::Zero => found == 0,
        Contents::ZeroOr(tag) => found == 0 || found == stamp(tag, address),
    }
}

/// Reports wrong contents.
fn wrong(job: &Job, offset: usize, found: u64) -> ! {
    let kind = match found {
        0 => "zeroes",
        0xA5A5_A5A5_A5A5_A5A5 => "new memory",
        0xDDDD_DDDD_DDDD_DDDD => "freed memory",
        _ => "other contents",
    };
    // Two addresses may hold one page: the word tells where it was written.
    if let Some((at, writer)) = history::writer(|tag| place(tag, found)) {
        println!("written at {at:#x} by {writer}");
        history::print(at, 1);
    }
    finding::report_at(
        "contents",
        job.address,
        job.bytes as u64,
        &format!("{job}: {kind} ({found:#x}) at offset {offset:#x}"),
    )
}
