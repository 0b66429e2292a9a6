//! Memory of the host, which is mapped in huge pages, on a NUMA node, and touched by several
//! threads. Nothing here calls the driver.
//!
//! The kernel zeroes each page when it is first touched, on the processor of the thread that
//! touches it. One thread zeroes about 6 GB/s, so memory of the size of a GPU takes seconds.
//! Threads that touch parts of the memory at the same time share this work.

use crate::host_claims::Claim;
use core::ffi::{c_int, c_void};
use core::num::NonZero;
use core::ptr::NonNull;
use rustix::param::page_size;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread::Builder;

/// The size of a huge page in bytes.
const HUGE_PAGE: usize = 2 << 20;
/// The number of bytes for which another thread is worth its cost.
const BYTES_OF_A_THREAD: usize = 8 << 20;
/// The greatest number of threads. More threads do not touch memory faster, because the memory
/// itself is the limit.
const MOST_THREADS: usize = 16;
/// The number of bytes that a thread touches with one system call, after which its claim shrinks.
/// It is small in tests, so that memory is longer.
const TOUCHED_AT_ONCE: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };
/// The part of the system's memory that is left to the system, as a divisor.
const LEFT_TO_SYSTEM: u64 = 16;
/// Touches the pages of a range for writing (Linux 5.14, not in `libc` for every target).
const MADV_POPULATE_WRITE: c_int = 23;
/// Takes pages from a node while it has some, and otherwise from others.
const MPOL_PREFERRED: c_int = 1;
/// The greatest number of NUMA nodes of the kernel.
const NODES: usize = 1024;
/// The number of bits in a word of a mask.
const WORD: usize = u64::BITS as usize;

/// The reason why there is no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The system has too little memory or too few addresses.
    OutOfMemory,
    /// The system refused for another reason.
    Refused,
}

/// Returns the length of the mapping for `bytes` bytes.
fn length_of(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok()?.checked_next_multiple_of(page_size())
}

/// Maps `bytes` bytes of memory and touches them. The memory is in huge pages if the system has
/// some, and preferably on a NUMA node. It is zeroed, and starts at a multiple of 2 MiB if it is at
/// least as long. A forked child does not have the memory, because pinned pages cannot be shared
/// and a copy would take as much memory again. `claim` is a claim to the memory.
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

/// Unmaps memory of [`map`]. Returns whether the system did so; it may not have the memory to
/// divide a mapping.
pub(crate) fn unmap(base: NonNull<c_void>, bytes: u64) -> bool {
    let Some(length) = length_of(bytes) else { return false };
    // SAFETY: the caller gives up the whole mapping, and nothing refers to its memory.
    unsafe { libc::munmap(base.as_ptr(), length) == 0 }
}

/// Returns how many bytes more are mapped for memory of a length, so that a part of this length
/// starts at a multiple of a huge page if the memory is at least as long.
fn spare_for(length: usize, page: usize) -> usize {
    if length < HUGE_PAGE { 0 } else { HUGE_PAGE - page }
}

/// Returns the number of spare bytes before the memory, in a mapping that starts at `start`.
fn before_aligned(start: usize, spare: usize) -> usize {
    if spare == 0 { 0 } else { start.next_multiple_of(HUGE_PAGE) - start }
}

/// Maps memory without touching it. The address is a multiple of the size of a huge page if the
/// memory is at least as long.
fn map_aligned(length: usize) -> Option<NonNull<c_void>> {
    let spare = spare_for(length, page_size());
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
    let before = before_aligned(start.addr(), spare);
    let base = start.wrapping_byte_add(before);
    for (at, bytes) in [(start, before), (base.wrapping_byte_add(length), spare - before)] {
        if bytes > 0 {
            // SAFETY: a part of the new mapping outside the memory. If the part stays, only
            // addresses are lost.
            let _ = unsafe { libc::munmap(at, bytes) };
        }
    }
    NonNull::new(base)
}

/// Lets the pages of a range come from a NUMA node, if the system permits.
fn prefer(base: NonNull<c_void>, length: usize, node: u32) {
    let Some(nodes) = mask_of(node) else { return };
    // The kernel reads one bit less than the number that it gets. SAFETY: the range is mapped, and
    // the mask outlives the call, which reads `NODES` bits.
    let _ =
        unsafe { libc::syscall(libc::SYS_mbind, base.as_ptr(), length, MPOL_PREFERRED, nodes.as_ptr(), NODES + 1, 0) };
}

/// Returns the mask of a NUMA node for the kernel, or `None` if the kernel has no such node.
fn mask_of(node: u32) -> Option<[u64; NODES / WORD]> {
    let mut nodes = [0; NODES / WORD];
    *nodes.get_mut(node as usize / WORD)? = 1 << (node as usize % WORD);
    Some(nodes)
}

/// Touches all pages of a range of new memory, on several threads for a long range. Returns false
/// if the system does not have the memory. `claim` shrinks while the memory is touched.
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
            // The system can start no more threads.
            Err(_) => part_of(number),
        };
        others.into_iter().map(join).fold(own, |all, one| all && one)
    })
}

/// Touches the pages of a range on the calling thread. Returns false if the system does not have
/// the memory.
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

/// Touches the pages of a range with one call, if the system has this call. Returns false if the
/// system does not have the memory.
fn touch_piece(start: usize, length: usize) -> bool {
    let at = core::ptr::with_exposed_provenance_mut::<c_void>(start);
    loop {
        // SAFETY: the range is a part of a new mapping; touching does not change its contents.
        if unsafe { libc::madvise(at, length, MADV_POPULATE_WRITE) } == 0 {
            return true;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The kernel is older, so each page is written to.
            Some(libc::EINVAL) => break,
            _ => return false,
        }
    }
    for page in (0..length).step_by(page_size()) {
        // SAFETY: the byte is in the new mapping, which nothing else uses. A volatile write is
        // never left out.
        unsafe { at.wrapping_byte_add(page).cast::<u8>().write_volatile(0) };
    }
    true
}

/// Returns the NUMA node of a device on the bus, by its `domain:bus:device.function`. Returns
/// `None` if the system has only one node, or does not report it.
pub(crate) fn node_of(bus_id: &str) -> Option<u32> {
    node_in(&in_system("sys"), bus_id)
}

/// Returns the NUMA node as [`node_of`] does, from the system's files in a folder.
fn node_in(system: &Path, bus_id: &str) -> Option<u32> {
    let only = read(system.join("devices/system/node/online")).is_none_or(|nodes| nodes.trim() == "0");
    if only {
        return None;
    }
    // The file has -1 if there is no node.
    read(system.join("bus/pci/devices").join(place_of(bus_id)?).join("numa_node"))?.trim().parse().ok()
}

/// Returns a place on the bus as the system writes it: in lower-case letters, and with a domain of
/// four digits, where the driver writes eight.
pub(crate) fn place_of(bus_id: &str) -> Option<String> {
    let place = bus_id.get(bus_id.len().checked_sub("0000:00:00.0".len())?..)?;
    Some(place.to_ascii_lowercase())
}

/// Returns a place among the system's files. `CACHALOT_SYSTEM` names a folder that stands for `/`,
/// in containers that mount the system's files elsewhere, and in tests.
pub(crate) fn in_system(path: &str) -> PathBuf {
    static ROOT: LazyLock<PathBuf> =
        LazyLock::new(|| std::env::var_os("CACHALOT_SYSTEM").map_or_else(|| PathBuf::from("/"), PathBuf::from));
    ROOT.join(path)
}

/// Returns the memory of the system and the part that a program can still get, in bytes. Within a
/// control group with a limit, these are at most those of the group. Returns `None` if the system
/// does not report them. Calls no driver.
pub fn of_system() -> Option<(u64, u64)> {
    let text = read(in_system("proc/meminfo"))?;
    let mut memory = (entry(&text, "MemTotal:")? << 10, entry(&text, "MemAvailable:")? << 10);
    let groups = read(in_system("proc/self/cgroup")).unwrap_or_default();
    for (most, free) in of_groups(&groups, &in_system("sys/fs/cgroup")) {
        memory = (memory.0.min(most), memory.1.min(free));
    }
    Some(memory)
}

/// Returns the free bytes of a device that shares the host's memory and has `total` bytes: what the
/// system has available. The driver counts the contents of files as used there, although the system
/// drops them when memory is needed (GB10), so its figure `free` is told only if the system reports
/// none. Calls no driver.
#[must_use]
pub fn free_if_shared(free: u64, total: u64) -> u64 {
    available().unwrap_or(free).min(total)
}

/// Returns the bytes that the system can give to new memory, without the limits of control groups,
/// which do not count the memory of devices. The contents of files that the system can drop are
/// among them. Returns `None` if the system does not report them. Calls no driver.
pub(crate) fn available() -> Option<u64> {
    entry(&read(in_system("proc/meminfo"))?, "MemAvailable:").map(|kib| kib << 10)
}

/// Returns the bytes that programs on a device with the host's memory should give back: what the
/// system lacks of a sixteenth of its memory. Below this, it drops files that are in use, and then
/// stands still or ends programs (GB10). Calls no driver.
pub(crate) fn owed_if_shared() -> u64 {
    read(in_system("proc/meminfo")).and_then(|text| lacking(&text)).unwrap_or(0)
}

/// Returns the bytes that the system lacks of the part that it should have left, by its text.
fn lacking(text: &str) -> Option<u64> {
    let left = entry(text, "MemTotal:")? / LEFT_TO_SYSTEM;
    Some(left.saturating_sub(entry(text, "MemAvailable:")?) << 10)
}

/// Claims memory of a device that shares the host's memory, until its driver has it. Returns `None`
/// if the system does not have as much, not even after moving what programs have to its swap.
///
/// The driver would try to get it: it takes page by page from the system, which ends programs for
/// it or stands still (GB10).
pub(crate) fn claim_if_shared(bytes: u64) -> Option<Claim> {
    Claim::new(bytes, || {
        let text = read(in_system("proc/meminfo"))?;
        let most = entry(&text, "MemAvailable:")?.saturating_add(entry(&text, "SwapFree:").unwrap_or(0));
        Some(most << 10)
    })
}

/// A hierarchy of control groups: the names of its files for the limit and the use, and of the
/// entry for contents that can be dropped.
struct Hierarchy([&'static str; 3]);

/// The unified hierarchy, which a line `0::/path` names.
const UNIFIED: Hierarchy = Hierarchy(["memory.max", "memory.current", "inactive_file "]);

/// The hierarchy of the memory alone, of version 1, which a line `N:memory:/path` names. Its
/// entries without `total_` do not include the groups below.
const OF_MEMORY: Hierarchy = Hierarchy(["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "]);

/// Returns the limits of the control groups of a process, and for each the bytes left below it.
/// `lines` is the process's list of groups, and `system` the folder of the hierarchies.
fn of_groups(lines: &str, system: &Path) -> Vec<(u64, u64)> {
    let unified = group_folders(lines, system).into_iter().map(|folder| (folder, &UNIFIED));
    let of_memory = folders_of(lines, |controllers| controllers.split(',').any(|name| name == "memory"));
    let of_memory = of_memory.map(|group| (system.join("memory").join(group), &OF_MEMORY));
    unified.chain(of_memory).filter_map(|(folder, hierarchy)| of_group(&folder, hierarchy)).collect()
}

/// Returns the folders of a process's control groups in the unified hierarchy, from the innermost
/// to the root. `lines` is the process's list of groups, and `system` the folder of the
/// hierarchies.
pub(crate) fn group_folders(lines: &str, system: &Path) -> Vec<PathBuf> {
    folders_of(lines, str::is_empty).map(|group| system.join(group)).collect()
}

/// Iterates over the groups of the hierarchies whose controllers are wanted, each with those around
/// it. A container sees its own group at the root of the hierarchy, and the path of the host.
fn folders_of(lines: &str, wants: impl Fn(&str) -> bool) -> impl Iterator<Item = &Path> {
    lines
        .lines()
        .filter_map(move |line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wants(controllers).then_some(Path::new(path.trim_start_matches('/')))
        })
        .flat_map(Path::ancestors)
}

/// Returns the limit of a control group and the bytes left below it, or `None` if it has no limit.
fn of_group(folder: &Path, Hierarchy([most, used, droppable]): &Hierarchy) -> Option<(u64, u64)> {
    let number = |name: &str| read(folder.join(name))?.trim().parse::<u64>().ok();
    let (most, used) = (number(most)?, number(used)?);
    // The use includes contents of files that the kernel can drop.
    let cached = read(folder.join("memory.stat")).and_then(|text| entry(&text, droppable)).unwrap_or(0);
    Some((most, most.saturating_sub(used.saturating_sub(cached))))
}

/// Claims memory of the system that is about to be touched. Returns `None` if too little is left.
pub(crate) fn claim(bytes: u64) -> Option<Claim> {
    Claim::new(bytes, || of_system().map(|(_, free)| free))
}

/// Returns the bytes of memory that this process has.
pub(crate) fn of_process() -> Option<u64> {
    let pages: u64 = read("/proc/self/statm")?.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}

/// Returns the number after a name at the start of a line.
fn entry(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Returns the text of a file of the system.
pub(crate) fn read(path: impl AsRef<Path>) -> Option<String> {
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
            let alignment = if length < HUGE_PAGE { page_size() } else { HUGE_PAGE };
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
        let mut present = vec![0_u8; bytes as usize / page_size()];
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

    #[test]
    fn the_memory_of_the_process_grows_by_what_is_touched() {
        // A forked child process runs only the thread that forked it: no test on another thread
        // takes memory there.
        let in_child = || {
            let (bytes, before) = (64 << 20, of_process());
            let mapped = claim(bytes).and_then(|claim| map(bytes, None, &claim).ok());
            let grown = before.zip(of_process()).map(|(before, after)| after.saturating_sub(before));
            // The kernel counts by processor, and sums up now and then.
            i32::from(mapped.is_none() || !grown.is_some_and(|grown| (bytes / 2..bytes * 2).contains(&grown)))
        };
        assert_eq!(crate::fork::tests::in_forked_child(in_child), 0);
    }

    #[test]
    fn memory_is_lacking_if_any_part_is() {
        let bytes = 4 * BYTES_OF_A_THREAD as u64;
        // A forked child process runs only the thread that forked it: no test on another thread
        // maps memory into the gap.
        let in_child = |first: usize, of: usize| {
            let (Ok(base), Some(claim)) = (map_untouched(bytes, None), claim(bytes)) else { return 1 };
            let part = bytes as usize / of;
            let gap = base.as_ptr().wrapping_byte_add(first * part);
            // SAFETY: a part of the mapping, which nothing refers to.
            if unsafe { libc::munmap(gap, part) } != 0 {
                return 2;
            }
            i32::from(touch(base, bytes, &claim)) * 3
        };
        for (first, of) in [(0, 2), (1, 2), (1, 4), (3, 4)] {
            assert_eq!(crate::fork::tests::in_forked_child(|| in_child(first, of)), 0, "{first} of {of}");
        }
    }

    #[test]
    fn a_device_on_the_bus_has_the_node_that_the_system_tells() {
        let system = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let node = || node_in(system.path(), "00000000:3B:00.0");
        write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
        assert_eq!(node(), None, "the system does not tell its nodes");
        write("devices/system/node/online", "0\n");
        assert_eq!(node(), None, "one node");
        write("devices/system/node/online", "0-1\n");
        assert_eq!(node(), Some(1));
        assert_eq!(node_in(system.path(), "0000:3b:00.0"), Some(1));
        assert_eq!(node_in(system.path(), "0000:3c:00.0"), None);
        assert_eq!(node_in(system.path(), "3b:00.0"), None);
        write("bus/pci/devices/0000:3b:00.0/numa_node", "-1\n");
        assert_eq!(node(), None, "no node");
    }

    #[test]
    fn a_mask_has_the_bit_of_its_node() {
        for node in [0, 1, 63, 64, 200, 1023] {
            let mask = mask_of(node).expect("the kernel has as many");
            let bits: Vec<u32> =
                (0..NODES as u32).filter(|bit| mask[*bit as usize / 64] >> (bit % 64) & 1 == 1).collect();
            assert_eq!(bits, [node]);
        }
        assert_eq!(mask_of(1024), None);
    }

    #[test]
    fn a_group_has_the_memory_below_its_limit_and_what_the_kernel_can_drop() {
        let group = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).expect("written");
        assert_eq!(of_group(group.path(), &UNIFIED), None);
        write("memory.current", "600\n");
        write("memory.max", "max\n");
        assert_eq!(of_group(group.path(), &UNIFIED), None, "no limit");
        write("memory.max", "1000\n");
        assert_eq!(of_group(group.path(), &UNIFIED), Some((1000, 400)));
        write("memory.stat", "anon 500\ninactive_file 70\n");
        assert_eq!(of_group(group.path(), &UNIFIED), Some((1000, 470)));
        write("memory.current", "1100\n");
        assert_eq!(of_group(group.path(), &UNIFIED), Some((1000, 0)));
    }

    #[test]
    fn groups_of_both_versions_bound_the_memory() {
        let system = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let file = system.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::write(file, text).expect("written");
        };
        let of = |lines: &str| of_groups(lines, system.path());
        let lines = "12:cpu,cpuacct:/a/b\n4:memory:/a/b\n1:name=systemd:/user\n";
        assert_eq!(of(lines), [], "no group is there");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.usage_in_bytes", "5000\n");
        write("memory/a/b/memory.limit_in_bytes", "1000\n");
        write("memory/a/b/memory.usage_in_bytes", "600\n");
        write("memory/a/b/memory.stat", "inactive_file 10\ntotal_inactive_file 50\n");
        assert_eq!(of(lines), [(1000, 450), (9_223_372_036_854_771_712, 9_223_372_036_854_766_712)]);
        write("memory.max", "700\n");
        write("memory.current", "100\n");
        assert_eq!(of("0::/elsewhere\n"), [(700, 600)], "a container's own group is the root");
    }

    #[test]
    fn a_system_with_little_left_wants_memory_back() {
        let lacking = |available: u64| lacking(&format!("MemTotal: 16000 kB\nMemAvailable: {available} kB\n"));
        assert_eq!([1000, 5000, 900, 0].map(lacking), [0, 0, 100 << 10, 1000 << 10].map(Some));
        assert_eq!(super::lacking("MemTotal: 16000 kB\n"), None);
    }

    #[test]
    fn what_is_unmapped_beside_an_aligned_mapping_is_whole_pages() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for bytes in [page, HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE - page + 4096] {
                let length = bytes.next_multiple_of(page);
                let spare = spare_for(length, page);
                for start in [HUGE_PAGE, HUGE_PAGE + page, 5 * HUGE_PAGE - page] {
                    let before = before_aligned(start, spare);
                    let parts = [before, length, spare - before];
                    assert!(parts.iter().all(|part| part.is_multiple_of(page)), "{page} {bytes} {start:#x}: {parts:?}");
                    assert!(length < HUGE_PAGE || (start + before).is_multiple_of(HUGE_PAGE));
                }
            }
        }
    }

    #[test]
    fn an_aligned_mapping_leaves_nothing_mapped_beside_it() {
        let pages = || read("/proc/self/statm")?.split_whitespace().next()?.parse::<usize>().ok();
        let in_child = || {
            // The first reading has the buffer made.
            let (Some(_), Some(mut before)) = (pages(), pages()) else { return 1 };
            let page = page_size();
            for length in [page, HUGE_PAGE - page, HUGE_PAGE, HUGE_PAGE + page, 3 * HUGE_PAGE] {
                for _ in 0..3 {
                    let (Some(base), Some(after)) = (map_aligned(length), pages()) else { return 2 };
                    if after - before != length / page {
                        return 3;
                    }
                    if length >= HUGE_PAGE && !base.addr().get().is_multiple_of(HUGE_PAGE) {
                        return 4;
                    }
                    // Other addresses next time.
                    let (Some(_), Some(later)) = (map_aligned(page), pages()) else { return 5 };
                    before = later;
                }
            }
            0
        };
        assert_eq!(crate::fork::tests::in_forked_child(in_child), 0);
    }

    #[test]
    fn a_kernel_without_the_call_has_each_page_written_to() {
        let (page, bytes) = (page_size(), 16 * page_size() as u64);
        let base = map_untouched(bytes, None).expect("memory");
        // The kernel refuses an address within a page as it refuses an unknown advice.
        let start = base.as_ptr().expose_provenance() + 512;
        assert!(touch_piece(start, 5 * page));
        let mut present = [0_u8; 16];
        // SAFETY: the range is mapped, and the array has a byte for each page.
        assert_eq!(unsafe { libc::mincore(base.as_ptr(), bytes as usize, present.as_mut_ptr()) }, 0);
        assert!(present[..5].iter().all(|&page| page & 1 == 1), "{present:?}");
        assert!(unmap(base, bytes));
        assert!(!touch_piece(base.as_ptr().expose_provenance(), page), "no memory is there");
    }
}
