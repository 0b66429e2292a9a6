//! The out-of-memory report: what was requested and held, which block was needed, why it could not
//! be allocated, and what would help. The text is either the library's own, or uses the words of
//! PyTorch.

use crate::device::MemoryInfo;
use crate::device::host_lack::HostLack;
use crate::pool::Tag;
use crate::units::DeviceIndex;
use core::fmt;

/// The report of a request that failed because there was not enough memory. All figures are in
/// bytes, at the time of the failure.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent condition of the report")]
pub struct OutOfMemory {
    /// The requested size.
    pub requested: u64,
    /// The size of the block that the request needs.
    pub block: u64,
    /// The size of the segment that the device was asked to allocate.
    pub segment: u64,
    /// The device.
    pub device: DeviceIndex,
    /// The total and free memory of the device; 0 if the device did not report it.
    pub memory: MemoryInfo,
    /// Whether the device has no memory besides that of the host.
    pub shares_host_memory: bool,
    /// The device memory that this process uses, if the device reports it.
    pub process: Option<u64>,
    /// The limit on memory reserved from the device, if any.
    pub limit: Option<u64>,
    /// Bytes of live blocks.
    pub allocated: u64,
    /// Bytes reserved from the device, without spare pages.
    pub reserved: u64,
    /// Bytes in pages of virtual memory that are mapped at addresses where no block can be. These
    /// pages could not serve the request, and could not be given back to the device either. The
    /// parts of pages next to guarded blocks count as well.
    pub spare: u64,
    /// Bytes next to guarded blocks, on the pages of those blocks. They are part of `spare`.
    pub beside_guarded: u64,
    /// Bytes of pinned pages of virtual memory. Free memory on pinned pages does not move.
    pub pinned: u64,
    /// Bytes of parked memory: these addresses have no device memory. They are not part of any
    /// other sum.
    pub parked: u64,
    /// Bytes of memory of the host (`spill`). They are part of `reserved`.
    pub spilled: u64,
    /// Why the request got no more memory of the host.
    pub host_lack: HostLack,
    /// Bytes that the program freed, and that still wait for other streams or for the safe
    /// frontier.
    pub pending: u64,
    /// Free bytes in private pools.
    pub private_free: u64,
    /// The largest free block in the request's stream and pool.
    pub largest_free: u64,
    /// The largest free block in other streams and pools.
    pub largest_free_elsewhere: u64,
    /// Whether segments are expandable.
    pub expandable: bool,
    /// Whether the host supplies the segments of the request's pool.
    pub supplied: bool,
    /// Whether the policy and the device support expandable segments.
    pub expandable_available: bool,
    /// Whether the stream is capturing a graph, so that nothing could be released.
    pub capturing: bool,
    /// Whether the request was refused because of the `max` of its tag, and not because memory was
    /// short.
    pub held_to_max: bool,
    /// How much memory the tags hold. Empty if no tag has limits.
    pub tags: TagShares,
    /// Why the request could not get addresses, if addresses were the problem and not memory.
    pub address_lack: AddressLack,
    /// How many bytes of addresses the allocator has reserved on the device, with or without
    /// memory.
    pub address_bytes: u64,
}

/// Why a request could not get addresses. Addresses are a resource of the process: 128 TiB for all
/// of its devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum AddressLack {
    /// The request had addresses, or needed none.
    #[default]
    None,
    /// The device had too few addresses left to reserve.
    Refused,
    /// The setting `expandable_segments_reserve` reserves too few addresses at a time.
    Setting,
}

/// The tag of a request in a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagReport {
    /// The tag.
    pub tag: Tag,
    /// Bytes that the heaps of the tag's pools hold from the device.
    pub charge: u64,
    /// The greatest charge; `u64::MAX` if there is no limit.
    pub max: u64,
}

/// How much memory the tags hold when a request fails, in bytes. An error has room for only a few
/// tags; [`Tags::held`](crate::Tags::held) reports all of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TagShares {
    /// The tag of the request's pool.
    pub own: Option<TagReport>,
    /// The other tag that holds the most, and its charge.
    pub greatest: Option<(Tag, u64)>,
    /// The bytes of all tags except the request's.
    pub others: u64,
}

impl TagShares {
    /// Adds a tag other than the request's.
    pub(crate) fn add(&mut self, tag: Tag, charge: u64) {
        self.others += charge;
        if charge > self.greatest.map_or(0, |(_, most)| most) {
            self.greatest = Some((tag, charge));
        }
    }

    /// Returns the bytes of all tags.
    fn sum(&self) -> u64 {
        self.others + self.own.map_or(0, |own| own.charge)
    }
}

/// A size in the largest unit that is not larger than the size: a whole number for a multiple of
/// the unit, otherwise with two decimals. If the decimals would round it to a whole number, the
/// size is written in bytes.
pub(crate) struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let bytes = self.0;
        let Some(power) = (bytes.max(1).ilog2() / 10).checked_sub(1) else { return write!(f, "{bytes} bytes") };
        let shift = (power + 1) * 10;
        let unit = UNITS[power as usize];
        if bytes.trailing_zeros() >= shift {
            return write!(f, "{} {unit}", bytes >> shift);
        }
        // Round to the nearest hundredth. This needs 128 bits, because the product may exceed 64.
        let hundredths = ((u128::from(bytes) * 100) + (1 << (shift - 1))) >> shift;
        match hundredths % 100 {
            0 => write!(f, "{bytes} bytes"),
            part => write!(f, "{}.{part:02} {unit}", hundredths / 100),
        }
    }
}

/// A size in the largest unit of which it is a multiple.
struct Whole(u64);

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, zeros) = (self.0, self.0.trailing_zeros());
        match zeros {
            _ if bytes == 0 => f.write_str("0 bytes"),
            30.. => write!(f, "{} GiB", bytes >> 30),
            20.. => write!(f, "{} MiB", bytes >> 20),
            10.. => write!(f, "{} KiB", bytes >> 10),
            _ => write!(f, "{bytes} bytes"),
        }
    }
}

/// Returns whether two sizes may look the same with two decimals of the largest unit.
fn is_alike(one: u64, other: u64) -> bool {
    let unit = 1 << (one.max(other).max(1).ilog2() / 10 * 10);
    one.abs_diff(other) <= unit / 50
}

/// A size in PyTorch's notation: two decimals of the largest unit that is smaller than the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PyTorchSize(pub u64);

impl fmt::Display for PyTorchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..=1024 => write!(f, "{} bytes", self.0),
            1025..=0x10_0000 => write!(f, "{:.2} KiB", bytes / 1024.0),
            0x10_0001..=0x4000_0000 => write!(f, "{:.2} MiB", bytes / 1024.0 / 1024.0),
            _ => write!(f, "{:.2} GiB", bytes / 1024.0 / 1024.0 / 1024.0),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Device out of memory. Tried to allocate {} on device {}, which has {} free of {}. ",
            Size(self.requested),
            self.device.0,
            Size(self.memory.free),
            Size(self.memory.total)
        )?;
        if let Some(process) = self.process {
            write!(f, "This process uses {} of the device. ", Size(process))?;
        }
        if let Some(limit) = self.limit {
            write!(f, "The memory limit is {}. ", Size(limit))?;
        }
        write!(
            f,
            "The allocator holds {}: {} in live blocks, {} pending, {} free",
            Size(self.held()),
            Size(self.allocated),
            Size(self.pending),
            Size(self.free())
        )?;
        if self.private_free > 0 {
            write!(f, ", {} free in private pools", Size(self.private_free))?;
        }
        if self.spare > 0 {
            write!(f, ", {} in spare pages", Size(self.spare))?;
        }
        if self.parked > 0 {
            write!(f, "; {} more are parked", Size(self.parked))?;
        }
        f.write_str(".")?;
        self.explain(f, &Size)?;
        self.advise(f)
    }
}

/// The report, displayed in the words of PyTorch.
struct ReportInPyTorchWords<'a>(&'a OutOfMemory);

impl fmt::Display for ReportInPyTorchWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        write!(
            f,
            "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
            PyTorchSize(report.segment),
            report.device.0,
            PyTorchSize(report.memory.total),
            PyTorchSize(report.memory.free)
        )?;
        if let Some(process) = report.process {
            write!(f, "Including non-PyTorch memory, this process has {} memory in use. ", PyTorchSize(process))?;
        }
        if let Some(limit) = report.limit {
            write!(f, "{} allowed; ", PyTorchSize(limit))?;
        }
        let (allocated, private_free) = (report.allocated, report.private_free);
        write!(f, "Of the allocated memory {} is allocated by PyTorch, ", PyTorchSize(allocated + private_free))?;
        if private_free > 0 {
            write!(f, "with {} allocated in private pools (e.g., CUDA Graphs), ", PyTorchSize(private_free))?;
        }
        let unallocated = report.held().saturating_sub(allocated + private_free);
        write!(f, "and {} is reserved by PyTorch but unallocated.", PyTorchSize(unallocated))?;
        if !report.expandable && !report.supplied {
            f.write_str(
                " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
                 to avoid fragmentation.  See documentation for Memory Management  \
                 (https://pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)",
            )?;
        }
        report.explain(f, &PyTorchSize)
    }
}

impl OutOfMemory {
    /// Returns the report in the words of `PyTorch`, followed by the block that was needed and the
    /// reasons. This is for hosts whose users know the words of `PyTorch` and search for them.
    pub fn in_words_of_pytorch(&self) -> impl fmt::Display + '_ {
        ReportInPyTorchWords(self)
    }

    /// Returns all bytes that the allocator holds from the device.
    fn held(&self) -> u64 {
        self.reserved + self.spare
    }

    /// Returns the free bytes that the allocator holds, except those in private pools.
    fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated + self.pending + self.private_free)
    }

    /// Returns the bytes that the memory limit leaves, if there is one. It counts no memory of the
    /// host.
    fn left(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.held().saturating_sub(self.spilled)))
    }

    /// Returns whether the memory limit refused the segment, and not the device.
    fn is_limited(&self) -> bool {
        self.left().is_some_and(|left| self.segment > left)
    }

    /// Writes which block was needed, and why it could not be allocated.
    fn explain<D: fmt::Display>(&self, f: &mut fmt::Formatter<'_>, size: &impl Fn(u64) -> D) -> fmt::Result {
        write!(
            f,
            "\nThe request of {} needs a block of {}; the largest free block of its stream and pool has {}",
            size(self.requested),
            size(self.block),
            size(self.largest_free)
        )?;
        if self.largest_free >= self.block {
            f.write_str(", which the rules for oversize blocks reserve for larger requests")?;
        }
        f.write_str(".")?;
        if self.largest_free_elsewhere >= self.block {
            write!(
                f,
                " Another stream or pool has a free block of {}, part of a segment that is in use: blocks are not moved between them.",
                size(self.largest_free_elsewhere)
            )?;
        }
        if self.pending > 0 {
            write!(
                f,
                " {} are freed but still in use on other streams, or ahead of the safe frontier.",
                size(self.pending)
            )?;
        }
        if self.spare > self.beside_guarded {
            let left = self.spare - self.beside_guarded;
            write!(f, " {} lie in pages whose old addresses are still in use.", size(left))?;
        }
        if self.beside_guarded > 0 {
            write!(f, " {} lie beside guarded blocks, on their pages.", size(self.beside_guarded))?;
        }
        if self.pinned > 0 {
            write!(f, " {} lie in pinned pages, which do not move.", size(self.pinned))?;
        }
        if self.parked > 0 {
            write!(f, " {} are parked and take none of the device's memory.", size(self.parked))?;
        }
        self.host_lack.explain(f, self.spilled, size)?;
        if self.capturing {
            f.write_str(" Nothing could be released because the stream is capturing a graph.")?;
        }
        self.explain_tags(f, size)?;
        self.explain_refusal(f, size)
    }

    /// Writes what refused more memory: the limit, the pool's own allocator, or the device.
    fn explain_refusal<D: fmt::Display>(&self, f: &mut fmt::Formatter<'_>, size: &impl Fn(u64) -> D) -> fmt::Result {
        match self.left() {
            _ if self.held_to_max => Ok(()),
            Some(left) if self.is_limited() => {
                // The segment may be larger than the block, by less than two decimals can show.
                if is_alike(self.segment, left) {
                    let (segment, left) = (Whole(self.segment), Whole(left));
                    write!(f, " A segment of {segment} is needed, and the memory limit leaves {left}.")
                } else {
                    let (segment, left) = (size(self.segment), size(left));
                    write!(f, " A segment of {segment} is needed, and the memory limit leaves {left}.")
                }
            }
            _ if self.supplied => write!(f, " The pool's own allocator would not give {}.", size(self.segment)),
            _ => match self.address_lack {
                AddressLack::None => {
                    write!(f, " The device would not give {} more.", size(self.segment))?;
                    if self.shares_host_memory {
                        f.write_str(
                            " Its memory is that of the host: other programs take it, too, and what counts as free \
                             includes the contents of files, which the system drops when memory is needed.",
                        )?;
                    }
                    Ok(())
                }
                AddressLack::Refused => write!(
                    f,
                    " Addresses ran out, and not memory: the device would not reserve {} more of them. The allocator has \
                     reserved {}.",
                    size(self.segment),
                    size(self.address_bytes)
                ),
                AddressLack::Setting => f.write_str(
                    " The setting `expandable_segments_reserve` reserves fewer addresses at a time than the request needs.",
                ),
            },
        }
    }

    /// Writes how much the tag of the request and the other tags hold. Writes nothing if no tag has
    /// limits, or if none holds memory.
    fn explain_tags<D: fmt::Display>(&self, f: &mut fmt::Formatter<'_>, size: &impl Fn(u64) -> D) -> fmt::Result {
        let TagShares { own, greatest, others } = self.tags;
        if let Some(TagReport { tag, charge, max }) = own {
            write!(f, " The tag {:#x} holds {}", tag.0, size(charge))?;
            match max {
                max if self.held_to_max => write!(f, ", and its `max` of {} refuses more.", size(max))?,
                u64::MAX => f.write_str(".")?,
                max => write!(f, " of its `max` of {}.", size(max))?,
            }
        }
        if let Some((tag, charge)) = greatest {
            write!(f, " The tag {:#x} holds {}.", tag.0, size(charge))?;
            if others > charge {
                write!(f, " Further tags hold {}.", size(others - charge))?;
            }
        }
        if own.is_none() && greatest.is_none() {
            return Ok(());
        }
        write!(f, " Memory without a tag has {}.", size(self.held().saturating_sub(self.tags.sum())))
    }

    /// Writes which settings would have helped, if any.
    fn advise(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.held_to_max {
            return Ok(());
        }
        if self.is_limited() && self.memory.free >= self.segment {
            f.write_str(" A higher limit would help: the device has enough free memory.")?;
        }
        // Every heap on pages reserves this many addresses.
        if self.address_lack == AddressLack::Refused && self.expandable && !self.is_limited() {
            f.write_str(
                " A smaller `expandable_segments_reserve` would help: each stream reserves so many addresses.",
            )?;
        }
        // Free memory is only left between live blocks, because completely free segments were
        // released.
        let has_no_pages = !self.expandable && !self.supplied;
        if self.expandable_available && has_no_pages && !self.capturing && self.free() >= self.block {
            f.write_str(
                " The setting `expandable_segments:True` would help: \
                 it returns free memory between live blocks to the device.",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;
    use super::*;
    use crate::units::MIB;
    use core::num::NonZeroU64;
    use std::string::{String, ToString};

    /// Returns the text of the report of a request for 100 MiB on a full device of 1 GiB, changed
    /// by `change`.
    fn text(change: impl FnOnce(&mut OutOfMemory)) -> String {
        report(change).to_string()
    }

    /// Returns the report of a request for 100 MiB, changed by `change`.
    pub(crate) fn report(change: impl FnOnce(&mut OutOfMemory)) -> OutOfMemory {
        let mut report = OutOfMemory {
            requested: 100 * MIB,
            block: 100 * MIB,
            segment: 100 * MIB,
            memory: MemoryInfo { free: 24 * MIB, total: 1024 * MIB },
            allocated: 1000 * MIB,
            reserved: 1000 * MIB,
            expandable_available: true,
            ..OutOfMemory::default()
        };
        change(&mut report);
        report
    }

    #[test]
    fn the_own_text_names_no_other_host() {
        assert_eq!(
            text(|_| ()),
            "Device out of memory. Tried to allocate 100 MiB on device 0, which has 24 MiB free of 1 GiB. \
             The allocator holds 1000 MiB: 1000 MiB in live blocks, 0 bytes pending, 0 bytes free.\n\
             The request of 100 MiB needs a block of 100 MiB; the largest free block of its stream and pool has \
             0 bytes. The device would not give 100 MiB more."
        );
    }

    #[test]
    fn a_device_with_the_hosts_memory_says_who_else_takes_it() {
        const HOST: &str = " Its memory is that of the host";
        assert!(text(|report| report.shares_host_memory = true).contains(HOST));
        assert!(report(|report| report.shares_host_memory = true).in_words_of_pytorch().to_string().contains(HOST));
        let limited = |report: &mut OutOfMemory| (report.shares_host_memory, report.limit) = (true, Some(1000 * MIB));
        assert!(!text(limited).contains(HOST), "the limit has refused the memory");
    }

    #[test]
    fn advice_is_given_only_where_it_has_an_effect() {
        const EXPANDABLE: &str = " The setting `expandable_segments:True` would help";
        const LIMIT: &str = " A higher limit would help";
        let fragmented = |report: &mut OutOfMemory| report.allocated = 900 * MIB;
        assert!(text(fragmented).contains(EXPANDABLE));
        for prevent in [
            (|report| report.allocated += MIB) as fn(&mut OutOfMemory),
            |report| report.expandable = true,
            |report| report.supplied = true,
            |report| report.expandable_available = false,
            |report| report.capturing = true,
            |report| report.private_free = 100 * MIB,
            |report| report.pending = MIB,
        ] {
            let text = text(|report| {
                fragmented(report);
                prevent(report);
            });
            assert!(!text.contains(EXPANDABLE), "{text}");
        }
        assert!(!text(|report| report.limit = Some(1000 * MIB)).contains(LIMIT), "the device is full as well");
        assert!(!text(|report| report.memory.free = 100 * MIB).contains(LIMIT), "there is no limit");
        let limited = text(|report| (report.limit, report.memory.free) = (Some(1000 * MIB), 100 * MIB));
        assert!(limited.contains(LIMIT) && limited.contains("The memory limit is 1000 MiB."), "{limited}");
    }

    #[test]
    fn what_refused_the_block_is_told_to_the_very_byte() {
        type Change = fn(&mut OutOfMemory);
        const RULES: &str = ", which the rules for oversize blocks reserve for larger requests.";
        const ELSEWHERE: &str = " Another stream or pool has a free block of 100 MiB, part of a segment that is in use";
        const PENDING: &str = " 1 MiB are freed but still in use on other streams";
        const LIMIT: &str = " A segment of 104857601 bytes is needed, and the memory limit leaves 100 MiB.";
        const DEVICE: &str = " The device would not give 100 MiB more.";
        let cases: [(Change, &[&str]); 7] = [
            (|_| (), &[DEVICE]),
            (|report| (report.largest_free, report.largest_free_elsewhere) = (100 * MIB - 1, 100 * MIB - 1), &[DEVICE]),
            (|report| report.largest_free = 100 * MIB, &[RULES, DEVICE]),
            (|report| report.largest_free_elsewhere = 100 * MIB, &[ELSEWHERE, DEVICE]),
            (|report| report.pending = MIB, &[PENDING, DEVICE]),
            (|report| report.limit = Some(1100 * MIB), &[DEVICE]),
            (|report| (report.limit, report.segment) = (Some(1100 * MIB), 100 * MIB + 1), &[LIMIT]),
        ];
        for (change, parts) in cases {
            let text = text(change);
            for part in [RULES, ELSEWHERE, PENDING, LIMIT, DEVICE] {
                assert_eq!(text.contains(part), parts.contains(&part), "{part} in: {text}");
            }
        }
    }

    #[test]
    fn the_text_for_pytorch_counts_free_memory_of_pools_apart() {
        const ADVICE: &str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        let text = |change: fn(&mut OutOfMemory)| ReportInPyTorchWords(&report(change)).to_string();
        let fragmented = text(|report| (report.allocated, report.private_free) = (700 * MIB, 60 * MIB));
        for part in [
            "Of the allocated memory 760.00 MiB is allocated by PyTorch, with 60.00 MiB allocated in private pools",
            "and 240.00 MiB is reserved by PyTorch but unallocated.",
            ADVICE,
        ] {
            assert!(fragmented.contains(part), "{fragmented}");
        }
        let whole = text(|report| report.allocated = 700 * MIB);
        assert!(whole.contains("allocated by PyTorch, and 300.00 MiB is reserved"), "{whole}");
        assert!(!text(|report| report.expandable = true).contains(ADVICE));
        assert!(!text(|report| report.supplied = true).contains(ADVICE));
    }

    #[test]
    fn the_tag_with_the_most_is_named_and_the_others_are_summed_up() {
        let shares = |charges: &[(u64, u64)]| {
            let mut tags = TagShares::default();
            charges.iter().for_each(|&(tag, charge)| tags.add(Tag(NonZeroU64::new(tag).unwrap()), charge * MIB));
            tags
        };
        for (charges, named) in [
            (&[(1, 0)][..], None),
            (&[(1, 30)], Some((1, 30, None))),
            (&[(1, 0), (2, 30)], Some((2, 30, None))),
            (&[(1, 10), (2, 30), (3, 20)], Some((2, 30, Some(30)))),
        ] {
            let text = text(|report| report.tags = shares(charges));
            let told = named.map_or(String::new(), |(tag, most, further)| {
                let further = further.map_or(String::new(), |more: u64| std::format!(" Further tags hold {more} MiB."));
                let all: u64 = charges.iter().map(|(_, charge)| charge).sum();
                std::format!(
                    " The tag {tag:#x} holds {most} MiB.{further} Memory without a tag has {} MiB.",
                    1000 - all
                )
            });
            assert!(text.contains(&std::format!("0 bytes.{told} The device would not give")), "{text}");
        }
    }

    #[test]
    fn the_program_is_named_where_it_supplies_the_segments() {
        assert!(text(|report| report.supplied = true).ends_with(" The pool's own allocator would not give 100 MiB."));
    }

    #[test]
    fn pages_that_cannot_serve_are_named() {
        let text = text(|report| {
            (report.spare, report.pinned, report.reserved) = (16 * MIB, 6 * MIB, 984 * MIB);
            report.beside_guarded = 5 * MIB;
            (report.allocated, report.limit) = (980 * MIB, Some(1090 * MIB));
        });
        for part in [
            " holds 1000 MiB: 980 MiB in live blocks, 0 bytes pending, 4 MiB free, 16 MiB in spare pages.",
            " 11 MiB lie in pages whose old addresses are still in use.",
            " 5 MiB lie beside guarded blocks, on their pages.",
            " 6 MiB lie in pinned pages, which do not move.",
            " A segment of 100 MiB is needed, and the memory limit leaves 90 MiB.",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_segment_that_a_limit_refuses_is_told_apart_from_what_the_limit_leaves() {
        for (segment, left, told) in [
            (1282 * MIB, 1281 * MIB, "A segment of 1282 MiB is needed, and the memory limit leaves 1281 MiB."),
            (
                1282 * MIB,
                1281 * MIB + 1,
                "A segment of 1282 MiB is needed, and the memory limit leaves 1343225857 bytes.",
            ),
            (3 << 30, 1281 * MIB, "A segment of 3 GiB is needed, and the memory limit leaves 1.25 GiB."),
        ] {
            let limited = |report: &mut OutOfMemory| {
                (report.requested, report.block, report.segment) = (1281 * MIB, 1281 * MIB, segment);
                report.limit = Some(1000 * MIB + left);
            };
            let own = text(limited);
            assert!(own.contains(told), "{own}");
        }
    }

    #[test]
    fn addresses_that_ran_out_are_not_called_memory() {
        let lack = |lack, expandable| {
            text(|report| {
                (report.address_lack, report.address_bytes, report.expandable) = (lack, 128 << 40, expandable);
            })
        };
        let refused = lack(AddressLack::Refused, true);
        for part in [
            " Addresses ran out, and not memory: the device would not reserve 100 MiB more of them.",
            " The allocator has reserved 128 TiB.",
            " A smaller `expandable_segments_reserve` would help",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        assert!(!refused.contains("would not give"), "{refused}");
        assert!(!lack(AddressLack::Refused, false).contains("expandable_segments_reserve"));
        let setting = lack(AddressLack::Setting, true);
        assert!(
            setting
                .ends_with("`expandable_segments_reserve` reserves fewer addresses at a time than the request needs.")
        );
        let limited = text(|report| (report.address_lack, report.limit) = (AddressLack::Refused, Some(1000 * MIB)));
        assert!(limited.contains("the memory limit leaves 0 bytes.") && !limited.contains("Addresses"), "{limited}");
    }

    #[test]
    fn parked_memory_is_named_apart() {
        let text =
            text(|report| (report.parked, report.allocated, report.reserved) = (256 * MIB, 640 * MIB, 640 * MIB));
        for part in [
            " holds 640 MiB: 640 MiB in live blocks, 0 bytes pending, 0 bytes free; 256 MiB more are parked.",
            " 256 MiB are parked and take none of the device's memory.",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn sizes_are_whole_where_they_can_be() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 29) + 1, "536870913 bytes"),
            ((1 << 30) - 1, "1073741823 bytes"),
            (1 << 30, "1 GiB"),
            ((1 << 30) + (1 << 25), "1.03 GiB"),
            (32 << 40, "32 TiB"),
            (u64::MAX, "18446744073709551615 bytes"),
        ] {
            assert_eq!(Size(bytes).to_string(), text, "{bytes}");
        }
        assert_eq!(PyTorchSize(1 << 30).to_string(), "1024.00 MiB");
    }
}
