//! Reads dumps of the Vulkan Memory Allocator, as `vmaBuildStatsString` writes them: of versions 2
//! and 3, and of the D3D12 Memory Allocator, which has the same form.
//!
//! ```text
//! Total          blocks, allocations and free ranges: their numbers and bytes
//! MemoryInfo     (since version 3) the heaps
//!   Heap 0       flags, budget, and the same sums as in Total
//! DefaultPools   (in detailed dumps) every block with its allocations: kind, size, name
//! CustomPools
//! ```
//!
//! A dump is a state, without addresses and without streams. It says what is held and by what, and
//! nothing about an allocator's decisions.

use super::start::size;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::BufRead;

/// Number of the largest allocations that are named.
const LARGEST: usize = 3;

/// Most heaps that Vulkan has, and most kinds of allocations that are told apart.
const MOST: usize = 16;

/// Greatest length of a text that is kept, in characters.
const LONGEST: usize = 60;

/// Returns what a dump is, and what it says.
pub(super) fn described(reader: impl BufRead) -> String {
    let mut dump = Dump::default();
    let read = DumpReader(&mut dump).deserialize(&mut serde_json::Deserializer::from_reader(reader));
    let library = if dump.interface.starts_with("Direct3D") { "D3D12" } else { "Vulkan" };
    let what = format!("this is a dump of the {library} Memory Allocator");
    match (read, &dump.total) {
        (Err(error), _) => format!("{what} that ends early or is damaged: {error}"),
        (Ok(_), None) => format!("{what} without totals"),
        (Ok(_), Some(total)) => format!(
            "{what}: {}; it is a state without a history and without addresses, so nothing can be replayed or drawn",
            dump.figures(total)
        ),
    }
}

/// What a dump has.
#[derive(Default)]
struct Dump {
    /// `Vulkan` or `Direct3D 12`.
    interface: String,
    total: Option<DumpSums>,
    heaps: Vec<(String, Facts)>,
    /// Number and bytes of the allocations of each kind.
    kinds: BTreeMap<String, (u64, u64)>,
    /// The largest allocations, the largest first.
    largest: Vec<DumpedAllocation>,
    largest_free: u64,
}

/// An allocation of a detailed dump.
struct DumpedAllocation {
    size: u64,
    kind: String,
    name: Option<String>,
}

/// Numbers and bytes of blocks, allocations and free ranges.
#[derive(Clone, Copy, Default)]
struct DumpSums {
    blocks: u64,
    block_bytes: u64,
    allocations: u64,
    used_bytes: u64,
    free_ranges: u64,
    largest_free: u64,
}

impl Dump {
    fn figures(&self, total: &DumpSums) -> String {
        let plural = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let (held, used) = (size(total.block_bytes), size(total.used_bytes));
        let mut text = format!(
            "{held} in {}, of which {used} are in {}",
            plural(total.blocks, "block"),
            plural(total.allocations, "allocation")
        );
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
        if !kinds.is_empty() {
            let kind = |(name, (count, bytes)): &(&String, &(u64, u64))| format!("{} in {count} {name}", size(*bytes));
            let _ = write!(text, " ({})", kinds.iter().map(kind).collect::<Vec<_>>().join(", "));
        }
        let free = total.block_bytes.saturating_sub(total.used_bytes);
        let _ = write!(text, " and {} are free in {}", size(free), plural(total.free_ranges, "range"));
        let largest = self.largest_free.max(total.largest_free);
        if largest > 0 {
            let _ = write!(text, ", the largest {}", size(largest));
        }
        let heaps = self.heaps.iter().filter(|(_, heap)| heap.stats.is_some_and(|stats| stats.block_bytes > 0));
        let heaps: Vec<String> = heaps.map(|(name, heap)| heap.told(name)).collect();
        if !heaps.is_empty() {
            let _ = write!(text, "; by heap: {}", heaps.join(", "));
        }
        if !self.largest.is_empty() {
            let largest: Vec<String> = self.largest.iter().map(DumpedAllocation::told).collect();
            let _ = write!(text, "; the largest allocations: {}", largest.join(", "));
        }
        text
    }

    /// Notes an allocation, or a free range.
    fn add(&mut self, allocation: DumpedAllocation) {
        if allocation.kind == "FREE" {
            self.largest_free = self.largest_free.max(allocation.size);
            return;
        }
        if self.kinds.len() < MOST || self.kinds.contains_key(&allocation.kind) {
            let (count, bytes) = self.kinds.entry(allocation.kind.clone()).or_default();
            (*count, *bytes) = (*count + 1, bytes.saturating_add(allocation.size));
        }
        let place = self.largest.partition_point(|other| other.size >= allocation.size);
        if place < LARGEST {
            self.largest.truncate(LARGEST - 1);
            self.largest.insert(place, allocation);
        }
    }
}

impl DumpedAllocation {
    fn told(&self) -> String {
        let name = self.name.as_ref().map_or_else(String::new, |name| format!(" `{name}`"));
        format!("{}{name} ({})", size(self.size), self.kind)
    }
}

/// What the members of an object say.
#[derive(Default)]
struct Facts {
    sums: DumpSums,
    size: Option<u64>,
    kind: Option<String>,
    name: Option<String>,
    interface: Option<String>,
    flags: Vec<String>,
    stats: Option<DumpSums>,
    budget: Option<u64>,
    most: u64,
    unused_bytes: Option<u64>,
}

impl Facts {
    /// Notes a member of an object.
    fn add(&mut self, key: &str, member: Member, dump: &mut Dump) {
        let sums = &mut self.sums;
        match (key, member) {
            ("Size", Member::Number(bytes)) => self.size = Some(bytes),
            ("BlockCount" | "Blocks", Member::Number(count)) => sums.blocks = count,
            ("BlockBytes", Member::Number(bytes)) => sums.block_bytes = bytes,
            ("AllocationCount" | "Allocations", Member::Number(count)) => sums.allocations = count,
            ("AllocationBytes" | "UsedBytes", Member::Number(bytes)) => sums.used_bytes = bytes,
            ("UnusedBytes", Member::Number(bytes)) => self.unused_bytes = Some(bytes),
            ("UnusedRangeCount" | "UnusedRanges", Member::Number(count)) => sums.free_ranges = count,
            ("UnusedRangeSizeMax", Member::Number(bytes)) => sums.largest_free = bytes,
            ("UnusedRangeSize", Member::Object(of)) => sums.largest_free = of.most,
            ("Max", Member::Number(bytes)) => self.most = bytes,
            ("BudgetBytes", Member::Number(bytes)) => self.budget = Some(bytes),
            ("Type", Member::Text(kind)) => self.kind = Some(kind),
            ("Name", Member::Text(name)) => self.name = Some(name),
            ("API", Member::Text(interface)) => self.interface = Some(interface),
            ("Flags", Member::Texts(flags)) => self.flags = flags,
            ("Stats", Member::Object(of)) => self.stats = Some(of.total()),
            ("Budget", Member::Object(of)) => self.budget = of.budget,
            ("General", Member::Object(of)) => dump.interface = of.interface.unwrap_or_default(),
            ("Total", Member::Object(of)) => dump.total = Some(of.total()),
            (key, Member::Object(of)) if of.stats.is_some() && is_heap(key) && dump.heaps.len() < MOST => {
                dump.heaps.push((key.to_lowercase(), *of));
            }
            _ => {}
        }
    }

    /// Returns the sums. Version 2 has the free bytes, and not those of the blocks.
    fn total(&self) -> DumpSums {
        let block_bytes = match self.unused_bytes {
            Some(unused) if self.sums.block_bytes == 0 => self.sums.used_bytes.saturating_add(unused),
            _ => self.sums.block_bytes,
        };
        DumpSums { block_bytes, ..self.sums }
    }

    /// Describes a heap.
    fn told(&self, name: &str) -> String {
        let held = size(self.stats.map_or(0, |stats| stats.block_bytes));
        let budget = self.budget.map(|bytes| format!("a budget of {}", size(bytes)));
        let notes: Vec<String> = self.flags.iter().cloned().chain(budget).collect();
        if notes.is_empty() { format!("{held} of {name}") } else { format!("{held} of {name} ({})", notes.join(", ")) }
    }
}

/// Returns whether a key is the name of a heap: of Vulkan, or of Direct3D 12.
fn is_heap(key: &str) -> bool {
    key.starts_with("Heap ") || matches!(key, "L0" | "L1")
}

/// A value of the dump.
enum Member {
    Number(u64),
    Text(String),
    Texts(Vec<String>),
    Object(Box<Facts>),
    Other,
}

/// Reads a value, and notes the allocations inside.
struct DumpReader<'d>(&'d mut Dump);

impl<'de> DeserializeSeed<'de> for DumpReader<'_> {
    type Value = Member;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Member, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DumpReader<'_> {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Member, A::Error> {
        let mut facts = Box::<Facts>::default();
        while let Some(key) = map.next_key::<String>()? {
            let member = map.next_value_seed(DumpReader(self.0))?;
            facts.add(&key, member, self.0);
        }
        if let (Some(kind), Some(size)) = (&facts.kind, facts.size) {
            self.0.add(DumpedAllocation { size, kind: kind.clone(), name: facts.name.take() });
        }
        Ok(Member::Object(facts))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Member, A::Error> {
        let mut texts = Vec::new();
        while let Some(member) = list.next_element_seed(DumpReader(self.0))? {
            match member {
                Member::Text(text) if texts.len() < MOST => texts.push(text),
                _ => {}
            }
        }
        Ok(Member::Texts(texts))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Member, E> {
        Ok(Member::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Member, E> {
        let is_shown = |character: &char| !character.is_control();
        Ok(Member::Text(text.chars().filter(is_shown).take(LONGEST).collect()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Member, E> {
        Ok(Member::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Member, E> {
        Ok(Member::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Member, E> {
        Ok(Member::Other)
    }

    fn visit_unit<E>(self) -> Result<Member, E> {
        Ok(Member::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::described;

    const OF_3: &str = r#"{
      "General": {"API": "Vulkan", "GPU": "one", "memoryHeapCount": 2},
      "Total": {"BlockCount": 3, "BlockBytes": 138412032, "AllocationCount": 4, "AllocationBytes": 102760448,
                "UnusedRangeCount": 2, "AllocationSizeMin": 1048576, "AllocationSizeMax": 67108864,
                "UnusedRangeSizeMin": 2097152, "UnusedRangeSizeMax": 33554432},
      "MemoryInfo": {
        "Heap 0": {"Flags": ["DEVICE_LOCAL", 4], "Size": 8589934592, "Budget": {"BudgetBytes": 7516192768, "UsageBytes": 1},
          "Stats": {"BlockCount": 2, "BlockBytes": 134217728, "AllocationCount": 3, "AllocationBytes": 98566144},
          "MemoryPools": {"Type 0": {"Flags": ["DEVICE_LOCAL"], "Stats": {"BlockCount": 2, "BlockBytes": 134217728}}}},
        "Heap 1": {"Flags": [], "Size": 1, "Budget": {"BudgetBytes": 2147483648},
          "Stats": {"BlockCount": 1, "BlockBytes": 4194304, "AllocationCount": 1, "AllocationBytes": 4194304}},
        "Heap 2": {"Flags": [], "Stats": {"BlockCount": 0, "BlockBytes": 0}}},
      "DefaultPools": {"Type 0": {"PreferredBlockSize": 67108864, "Blocks": {"0": {"TotalBytes": 67108864, "Suballocations": [
          {"Offset": 0, "Type": "BUFFER", "Size": 31457280, "Usage": 34, "Name": "vertices\nof all"},
          {"Offset": 31457280, "Type": "FREE", "Size": 33554432},
          {"Offset": 65011712, "Type": "FREE", "Size": 2097152}]}},
        "DedicatedAllocations": [{"Type": "IMAGE_OPTIMAL", "Size": 67108864, "Usage": 6}]}},
      "CustomPools": {"Type 1": [{"Name": "0 - uploads", "Blocks": {}, "DedicatedAllocations": [
          {"Type": "BUFFER", "Size": 4194304, "CustomData": 7}, {"Type": "BUFFER", "Size": 5}]}]}}"#;

    #[test]
    fn a_dump_says_what_is_held_by_heap_and_by_kind() {
        let said = described(OF_3.as_bytes());
        let figures = "132.00 MiB in 3 blocks, of which 98.00 MiB are in 4 allocations (64.00 MiB in 1 IMAGE_OPTIMAL, \
                       34.00 MiB in 3 BUFFER) and 34.00 MiB are free in 2 ranges, the largest 32.00 MiB; by heap: \
                       128.00 MiB of heap 0 (DEVICE_LOCAL, a budget of 7.00 GiB), 4.00 MiB of heap 1 (a budget of 2.00 \
                       GiB); the largest allocations: 64.00 MiB (IMAGE_OPTIMAL), 30.00 MiB `verticesof all` (BUFFER), \
                       4.00 MiB (BUFFER); it is a state";
        assert!(said.starts_with(&format!("this is a dump of the Vulkan Memory Allocator: {figures}")), "{said}");
    }

    #[test]
    fn a_dump_of_version_2_has_free_bytes_in_the_place_of_all() {
        let said = described(
            r#"{"Total": {"Blocks": 1, "Allocations": 2, "UnusedRanges": 1, "UsedBytes": 1048576, "UnusedBytes": 3145728,
                "UnusedRangeSize": {"Min": 3145728, "Avg": 3145728, "Max": 3145728}},
                "Heap 0": {"Size": 1, "Flags": ["DEVICE_LOCAL"], "Stats": {"Blocks": 1, "UsedBytes": 1048576, "UnusedBytes": 3145728}}}"#
                .as_bytes(),
        );
        let figures = "4.00 MiB in 1 block, of which 1.00 MiB are in 2 allocations and 3.00 MiB are free in 1 range, the \
                       largest 3.00 MiB; by heap: 4.00 MiB of heap 0 (DEVICE_LOCAL);";
        assert!(said.contains(figures), "{said}");
    }

    #[test]
    fn a_dump_that_is_cut_or_odd_gets_one_line() {
        for end in 0..OF_3.len() {
            let said = described(&OF_3.as_bytes()[..end]);
            assert!(said.contains("ends early or is damaged") && !said.contains('\n'), "{end}: {said}");
        }
        let most = u64::MAX;
        let odd = format!(
            r#"{{"Total": {{"UsedBytes": {most}, "UnusedBytes": {most}, "Blocks": -1}}, "a": [{{"Type": "X", "Size": {most}}}, {{"Type": "X", "Size": 1}}]}}"#
        );
        assert!(described(odd.as_bytes()).contains("of which"));
        assert!(
            described(&b"{\"General\": {\"API\": \"Direct3D 12\"}}"[..])
                .contains("D3D12 Memory Allocator without totals")
        );
        assert!(described("[".repeat(1000).as_bytes()).contains("damaged"));
    }
}
