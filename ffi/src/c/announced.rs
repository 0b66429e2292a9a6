//! Announcements to a memory checker: each segment as a heap, each live block as a region.

use crate::c::stacks::Stacks;
use cachalot_core::config::{Guard, Policy};
use cachalot_core::{Action, Config, TraceEntry};
use cachalot_cuda::{MemoryTool, ToolHeap, log};
use cachalot_snapshot::Frame;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

/// Bytes of the longest name of a region. Of a longer one compute-sanitizer 2025.3 warns, and
/// counts the warning among the errors.
const LONGEST_NAME: usize = 49;

/// The segments that a memory checker knows.
pub(crate) struct Announced {
    tool: &'static MemoryTool,
    /// By address: the length, and the checker's name. Locked under a heap's lock; nothing is
    /// locked under it.
    heaps: Mutex<BTreeMap<u64, (u64, ToolHeap)>>,
}

impl Announced {
    /// Returns what is announced, if a memory checker listens and the configuration allows it.
    /// Takes out of `config` what would place blocks on pages, which checkers refuse, and says so.
    pub(crate) fn begin(config: &mut Config) -> Option<Self> {
        let tool = MemoryTool::of_process().filter(|_| config.nvtx() && !orders_memory(config))?;
        let before = config.clone();
        config.set_expandable_segments(false);
        config.set_guard(Guard::Off);
        if config.policy().traits().moves_pages {
            config.set_policy(Policy::Caching);
        }
        if *config != before {
            log::warning(
                "a memory checker listens (NVTX_INJECTION64_PATH), which knows no block on pages: blocks lie in ordinary \
                 segments; nvtx:off leaves the settings as they are",
            );
        }
        Some(Self { tool, heaps: Mutex::default() })
    }

    /// Tells the checker of an event. Called under the lock of the event's heap.
    pub(crate) fn event(&self, entry: &TraceEntry, stacks: &Stacks) {
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entry.addr.0;
        match entry.action {
            Action::SegmentAlloc => {
                if let Some(heap) = self.tool.register_heap(at, entry.size, c"cachalot segment") {
                    heaps.insert(at, (entry.size, heap));
                }
            }
            Action::SegmentFree => {
                if let Some((_, heap)) = heaps.remove(&at) {
                    self.tool.unregister_heap(heap);
                }
            }
            Action::Alloc => {
                if let Some(heap) = heap_around(&heaps, at) {
                    self.tool.register_region(heap, at, entry.size);
                    if let Some(name) = name(entry.site, stacks) {
                        self.tool.name_region(at, &name);
                    }
                }
            }
            Action::FreeCompleted if heap_around(&heaps, at).is_some() => self.tool.unregister_region(at),
            _ => {}
        }
    }
}

/// Returns whether `policy:direct` allocates in the order of streams: under a memory checker, which
/// can then report a block that is used before or after its life in that order. Each block is an
/// allocation of the driver, so nothing is announced.
pub(crate) fn orders_memory(config: &Config) -> bool {
    config.policy() == Policy::Direct && config.nvtx() && MemoryTool::of_process().is_some()
}

/// Returns the checker's name of the segment with the address `at`.
fn heap_around(heaps: &BTreeMap<u64, (u64, ToolHeap)>, at: u64) -> Option<ToolHeap> {
    let (base, &(bytes, heap)) = heaps.range(..=at).next_back()?;
    (at - base < bytes).then_some(heap)
}

/// Returns the place of a request as a name.
fn name(site: u32, stacks: &Stacks) -> Option<CString> {
    stacks.get(site).frames().first().and_then(|frame| name_of(frame))
}

/// Returns the place of a request as a name in ASCII: the file without its folders, the line, and
/// the function, cut after [`LONGEST_NAME`] bytes.
fn name_of(frame: &Frame) -> Option<CString> {
    let file = frame.filename.rsplit('/').next().unwrap_or_default();
    let whole = format!("{file}:{} {}", frame.line, frame.name);
    let ascii = whole.chars().map(|letter| if letter.is_ascii() { letter } else { '?' });
    CString::new(ascii.take(LONGEST_NAME).collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_NAME, name_of};
    use cachalot_snapshot::Frame;

    #[test]
    fn a_place_is_a_name_that_the_checker_takes() {
        let named = |name: &str, filename: &str| {
            let frame = Frame { name: name.into(), filename: filename.into(), line: 81, ..Frame::default() };
            name_of(&frame).unwrap().into_string().unwrap()
        };
        assert_eq!(named("planted", "/home/user/a/program.py"), "program.py:81 planted");
        assert_eq!(named("f", "größe.py"), "gr??e.py:81 f");
        let long = named(&"f".repeat(80), "/home/user/program.py");
        assert_eq!((long.len(), &long[..14]), (LONGEST_NAME, "program.py:81 "));
    }
}
