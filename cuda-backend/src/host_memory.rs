//! Memory of the host: mapped in huge pages, on a NUMA node, and touched by several threads. Calls no
//! driver.
//!
//! The kernel zeroes each page when the page is first touched, on the processor of the thread. One
//! thread zeroes about 6 GB/s, so memory of a GPU's size takes seconds. Threads that touch parts of the
//! memory at the same time share the work.

use crate::host_claims::Claim;
use core::ffi::{c_int, c_void};
use core::num::NonZero;
use core::ptr::NonNull;
use std::path::Path;
use std::thread::Builder;

/// The granularity of mappings in bytes.
const PAGE: usize = 4096;
/// The size of a huge page in bytes.
const HUGE_PAGE: usize = 2 << 20;
/// A further thread pays off for this many bytes.
const BYTES_OF_A_THREAD: usize = 8 << 20;
/// More threads than this do not touch memory faster: the memory itself is the limit.
const MOST_THREADS: usize = 16;
/// Bytes that a thread touches by one call of the system. A claim shrinks by as much.
const TOUCHED_AT_ONCE: usize = 64 << 20;
/// Touches the pages of a range for writing (Linux 5.14, not in `libc` for every target).
const MADV_POPULATE_WRITE: c_int = 23;
/// Takes pages from a node while the node has some, else from others.
const MPOL_PREFERRED: c_int = 1;
/// The greatest number of NUMA nodes of the kernel.
const NODES: usize = 1024;

/// Reason why there is no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The system has too little memory or too few addresses.
    OutOfMemory,
    /// The system refused for another reason.
    Refused,
}

/// Returns the length of the mapping for `bytes` bytes.
fn length_of(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok()?.checked_next_multiple_of(PAGE)
}

/// Maps `bytes` bytes of memory, touched, in huge pages where the system has some, and preferably on a
/// NUMA node. The memory is zeroed, and begins at a multiple of 2 MiB if as long. A forked child does not
/// have the memory: a copy would take as much memory again, because pinned pages cannot be shared. `claim` is a claim to
/// the memory.
///
/// # Errors
/// [`Failure`]; nothing is mapped then.
pub(crate) fn map(bytes: u64, node: Option<u32>, claim: &Claim) -> Result<NonNull<c_void>, Failure> {
    let base = map_untouched(bytes, node)?;
    if touch(base, bytes, claim) {
        return Ok(base);
    }
    unmap(base, bytes);
    Err(Failure::OutOfMemory)
}

/// Maps memory as [`map`] does, and leaves touching it to [`touch`].
///
/// # Errors
/// [`Failure`]; nothing is mapped then.
pub(crate) fn map_untouched(bytes: u64, node: Option<u32>) -> Result<NonNull<c_void>, Failure> {
    let length = length_of(bytes).filter(|&length| length > 0).ok_or(Failure::OutOfMemory)?;
    let base = map_aligned(length).ok_or(Failure::OutOfMemory)?;
    // Without huge pages, or on another node, the memory is slower and otherwise equal.
    // SAFETY: the range is the new mapping; the advice does not change its contents.
    let _ = unsafe { libc::madvise(base.as_ptr(), length, libc::MADV_HUGEPAGE) };
    // SAFETY: the range is the new mapping; the advice only concerns children.
    if unsafe { libc::madvise(base.as_ptr(), length, libc::MADV_DONTFORK) } != 0 {
        unmap(base, bytes);
        return Err(Failure::Refused);
    }
    if let Some(node) = node {
        prefer(base, length, node);
    }
    Ok(base)
}

/// Unmaps memory of [`map`]. Returns whether the system did so; it may lack the memory to divide a
/// mapping.
pub(crate) fn unmap(base: NonNull<c_void>, bytes: u64) -> bool {
    let Some(length) = length_of(bytes) else { return false };
    // SAFETY: the caller gives up the whole mapping, and nothing refers to its memory.
    unsafe { libc::munmap(base.as_ptr(), length) == 0 }
}

/// Maps untouched memory. The address is a multiple of the size of a huge page if the memory is as long.
fn map_aligned(length: usize) -> Option<NonNull<c_void>> {
    let spare = if length < HUGE_PAGE { 0 } else { HUGE_PAGE - PAGE };
    let whole = length.checked_add(spare)?;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice overlaps no other
    // mapping.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            whole,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let before = if spare == 0 { 0 } else { start.addr().next_multiple_of(HUGE_PAGE) - start.addr() };
    let base = start.wrapping_byte_add(before);
    for (at, bytes) in [(start, before), (base.wrapping_byte_add(length), spare - before)] {
        if bytes > 0 {
            // SAFETY: a part of the new mapping beside the memory. If the part stays, only addresses are
            // lost.
            let _ = unsafe { libc::munmap(at, bytes) };
        }
    }
    NonNull::new(base)
}

/// Lets the pages of a range come from a NUMA node, if the system permits.
fn prefer(base: NonNull<c_void>, length: usize, node: u32) {
    const WORD: usize = u64::BITS as usize;
    let mut nodes = [0_u64; NODES / WORD];
    let Some(word) = nodes.get_mut(node as usize / WORD) else { return };
    *word = 1 << (node as usize % WORD);
    // The kernel reads one bit less than it is told.
    // SAFETY: the range is mapped, and the mask outlives the call, which reads `NODES` bits.
    let _ =
        unsafe { libc::syscall(libc::SYS_mbind, base.as_ptr(), length, MPOL_PREFERRED, nodes.as_ptr(), NODES + 1, 0) };
}

/// Touches all pages of a range of new memory, on several threads for a long range. Returns false if the
/// system lacks the memory. `claim` shrinks with the memory that is touched.
pub(crate) fn touch(base: NonNull<c_void>, bytes: u64, claim: &Claim) -> bool {
    let Some(length) = length_of(bytes) else { return false };
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (length / BYTES_OF_A_THREAD).min(processors).clamp(1, MOST_THREADS);
    // Two threads in one huge page would zero the page twice.
    let part = length.div_ceil(threads).next_multiple_of(HUGE_PAGE);
    let start = base.as_ptr().expose_provenance();
    let part_of = move |number: usize| {
        let from = number * part;
        from >= length || touch_part(start + from, part.min(length - from), claim)
    };
    std::thread::scope(|scope| {
        let spawn = |number| Builder::new().spawn_scoped(scope, move || part_of(number));
        let others: Vec<_> = (1..threads).map(|number| (number, spawn(number))).collect();
        let own = part_of(0);
        let join = |(number, other): (usize, std::io::Result<std::thread::ScopedJoinHandle<'_, bool>>)| match other {
            Ok(thread) => thread.join().unwrap_or(false),
            // The system has no further thread.
            Err(_) => part_of(number),
        };
        others.into_iter().map(join).fold(own, |all, one| all && one)
    })
}

/// Touches the pages of a range on the calling thread. Returns false if the system lacks the memory.
fn touch_part(start: usize, length: usize, claim: &Claim) -> bool {
    (0..length).step_by(TOUCHED_AT_ONCE).all(|from| {
        let piece = TOUCHED_AT_ONCE.min(length - from);
        let there = touch_piece(start + from, piece);
        if there {
            claim.touched(piece as u64);
        }
        there
    })
}

/// Touches the pages of a range by one call, where the system has this call. Returns false if the system lacks the memory.
fn touch_piece(start: usize, length: usize) -> bool {
    let at = core::ptr::with_exposed_provenance_mut::<c_void>(start);
    loop {
        // SAFETY: the range is a part of a new mapping; touching does not change its contents.
        if unsafe { libc::madvise(at, length, MADV_POPULATE_WRITE) } == 0 {
            return true;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // An older kernel: write to each page.
            Some(libc::EINVAL) => break,
            _ => return false,
        }
    }
    for page in (0..length).step_by(PAGE) {
        // SAFETY: the byte lies in the new mapping, which nothing else uses. A volatile write is never
        // left out.
        unsafe { at.wrapping_byte_add(page).cast::<u8>().write_volatile(0) };
    }
    true
}

/// Returns the NUMA node of a device on the bus, by its `domain:bus:device.function`. `None` if the system
/// has one node, or does not tell.
pub(crate) fn node_of(bus_id: &str) -> Option<u32> {
    let only = read("/sys/devices/system/node/online").is_none_or(|nodes| nodes.trim() == "0");
    if only {
        return None;
    }
    // The system writes small letters, and a domain of four digits.
    let name = bus_id.to_ascii_lowercase();
    let name = name.get(name.len().checked_sub("0000:00:00.0".len())?..)?;
    // -1 for no node.
    read(Path::new("/sys/bus/pci/devices").join(name).join("numa_node"))?.trim().parse().ok()
}

/// Returns the memory of the system and the part that a program can still get, in bytes. Within a control
/// group with a limit, the group's. `None` if the system does not tell. Calls no driver.
pub fn of_system() -> Option<(u64, u64)> {
    let text = read("/proc/meminfo")?;
    let mut memory = (entry(&text, "MemTotal:")? << 10, entry(&text, "MemAvailable:")? << 10);
    // `0::/path` is the group in the unified hierarchy.
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    for group in Path::new(path).ancestors() {
        if let Some((most, free)) = of_group(&Path::new("/sys/fs/cgroup").join(group)) {
            memory = (memory.0.min(most), memory.1.min(free));
        }
    }
    Some(memory)
}

/// Returns the limit of a control group and the bytes below the limit, or `None` without a limit.
fn of_group(folder: &Path) -> Option<(u64, u64)> {
    let number = |name: &str| read(folder.join(name))?.trim().parse::<u64>().ok();
    let (most, used) = (number("memory.max")?, number("memory.current")?);
    // Contents of files that the kernel can drop count as used.
    let cached = read(folder.join("memory.stat")).and_then(|text| entry(&text, "inactive_file")).unwrap_or(0);
    Some((most, most.saturating_sub(used.saturating_sub(cached))))
}

/// Claims memory of the system that is about to be touched. `None` if too little is left.
pub(crate) fn claim(bytes: u64) -> Option<Claim> {
    Claim::new(bytes, || of_system().map(|(_, free)| free))
}

/// Returns the bytes of memory that this process has.
pub(crate) fn of_process() -> Option<u64> {
    let pages: u64 = read("/proc/self/statm")?.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE as u64)
}

/// Returns the number behind a name at the beginning of a line.
fn entry(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Returns the text of a file of the system.
fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    /// Returns whether an address is mapped.
    fn is_mapped(at: usize) -> bool {
        let maps = read("/proc/self/maps").expect("Linux");
        maps.lines().any(|line| {
            let (range, _) = line.split_once(' ').expect("a range");
            let (from, to) = range.split_once('-').expect("two addresses");
            let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).expect("hexadecimal"));
            (from..to).contains(&at)
        })
    }

    #[test]
    fn memory_is_zeroed_writable_and_given_back() {
        for bytes in [512, 4096, (2 << 20) - 512, 2 << 20, (40 << 20) + 1536] {
            let base = map(bytes, Some(0), &claim(bytes).expect("memory")).expect("memory");
            let length = length_of(bytes).expect("short");
            let alignment = if length < HUGE_PAGE { PAGE } else { HUGE_PAGE };
            assert_eq!(base.addr().get() % alignment, 0);
            // SAFETY: the mapping has `length` bytes, and no other reference to them exists.
            let memory = unsafe { core::slice::from_raw_parts_mut(base.cast::<u8>().as_ptr(), length) };
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(0xa5);
            assert!(unmap(base, bytes));
            for at in [0, length / 2, length - 1] {
                assert!(!is_mapped(base.addr().get() + at), "{bytes}");
            }
        }
    }

    #[test]
    fn absurd_sizes_are_out_of_memory() {
        for bytes in [0, 1 << 60, u64::MAX, u64::MAX - 4096] {
            let claim = claim(0).expect("nothing");
            assert_eq!(map(bytes, None, &claim), Err(Failure::OutOfMemory), "{bytes:#x}");
        }
    }

    #[test]
    fn the_pages_are_there_before_the_first_use() {
        let bytes = 64 << 20;
        let base = map(bytes, None, &claim(bytes).expect("memory")).expect("memory");
        let mut present = vec![0_u8; bytes as usize / PAGE];
        // SAFETY: the range is mapped, and the vector has a byte for each page.
        let asked = unsafe { libc::mincore(base.as_ptr(), bytes as usize, present.as_mut_ptr()) };
        assert_eq!(asked, 0);
        assert!(present.iter().all(|&page| page & 1 == 1));
        assert!(unmap(base, bytes));
    }

    #[test]
    fn the_system_tells_its_memory() {
        let (total, free) = of_system().expect("Linux");
        assert!(0 < free && free <= total, "{free} of {total}");
        assert!(of_process().expect("Linux") < total);
        assert_eq!(entry("MemTotal:  12 kB\nMemFree: 3 kB", "MemFree:"), Some(3));
        assert_eq!(node_of("no bus"), None);
    }
}
