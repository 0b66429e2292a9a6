//! Runs torch's `_memory_viz.py` on snapshots of busy programs: the script draws every snapshot,
//! and the script's figures equal ours.
//!
//! `CACHALOT_MEMORY_VIZ` names a folder with the script in some versions, created by
//! `scripts/setup/memory_viz.sh`.

use crate::common::subject::{MIB, Subject, ok, stream};
use crate::common::{output, root, scratch, skip};
use cachalot::c::abi::{
    CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_REQUESTED, CACHALOT_ROUTE_ALL, cachalot_action, cachalot_stack,
};
use cachalot::c::capi::{
    cachalot_destroy, cachalot_empty_cache, cachalot_free, cachalot_on_stack, cachalot_pool_begin, cachalot_pool_end,
    cachalot_pool_release, cachalot_record_stream, cachalot_simulate_progress, cachalot_stack_push,
    cachalot_trace_start,
};
use cachalot::c::status::CACHALOT_ERROR_OUT_OF_MEMORY;
use serde_json::json;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

/// Pseudorandom numbers, equal in every run (Marsaglia's xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Options of a program.
struct Scene {
    name: &'static str,
    config: &'static CStr,
    capacity: usize,
    devices: u32,
    stacks: bool,
}

const SCENES: [Scene; 7] = [
    Scene { name: "default", config: c"", capacity: 100_000, devices: 1, stacks: false },
    Scene { name: "truncated", config: c"max_split_size_mb:32", capacity: 300, devices: 1, stacks: false },
    Scene { name: "expandable", config: c"expandable_segments:True", capacity: 100_000, devices: 1, stacks: false },
    Scene {
        name: "expandable_truncated",
        config: c"expandable_segments:True",
        capacity: 200,
        devices: 2,
        stacks: false,
    },
    Scene { name: "stacks", config: c"roundup_power2_divisions:4", capacity: 100_000, devices: 3, stacks: true },
    Scene { name: "bfc", config: c"policy:bfc", capacity: 100_000, devices: 1, stacks: false },
    Scene { name: "slab", config: c"policy:slab", capacity: 1000, devices: 1, stacks: false },
];

thread_local! {
    /// The present function of the program.
    static FUNCTION: Cell<&'static CStr> = const { Cell::new(c"train") };
}

unsafe extern "C" fn describe(_: *mut c_void, stack: *mut cachalot_stack, action: cachalot_action) {
    assert!([CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_REQUESTED].contains(&action));
    if action == CACHALOT_ACTION_FREE_REQUESTED {
        return;
    }
    for (function, line) in [(FUNCTION.get(), 7), (c"main", 70)] {
        // SAFETY: the stack is the one that this callback got; the texts are ended by NUL.
        unsafe { cachalot_stack_push(stack, function.as_ptr(), c"model/module.py".as_ptr(), line) };
    }
}

/// A running program on device 0.
struct Program {
    allocator: ManuallyDrop<Subject>,
    numbers: Numbers,
    /// Live blocks: address and requested bytes.
    held: Vec<(*mut c_void, usize)>,
    /// Whether a private pool is in use.
    has_pool: bool,
}

impl Program {
    fn new(scene: &Scene) -> Self {
        let allocator = ManuallyDrop::new(Subject::new(|options| {
            options.device_count = scene.devices;
            options.config = scene.config.as_ptr();
            // Regions of bfc double, and are released whole.
            options.simulated_bytes = if scene.name == "bfc" { 2 << 30 } else { 700 << 20 };
        }));
        if scene.stacks {
            // SAFETY: the callback takes no userdata.
            ok(unsafe { cachalot_on_stack(allocator.0, Some(describe), null_mut()) });
        }
        ok(cachalot_trace_start(allocator.0, 0, scene.capacity));
        Self { allocator, numbers: Numbers(0x9e37_79b9_7f4a_7c15), held: Vec::new(), has_pool: false }
    }

    fn malloc(&mut self) {
        let small = self.numbers.below(3) > 0;
        let bytes = 1 + self.numbers.below(if small { 200 << 10 } else { 40 * MIB });
        let stream = stream(self.numbers.below(4));
        FUNCTION.set(if small { c"small" } else { c"large" });
        let (status, block) = self.allocator.try_malloc(0, bytes, stream);
        if status == CACHALOT_ERROR_OUT_OF_MEMORY {
            self.free_some(3);
            return;
        }
        ok(status);
        self.held.push((block, bytes));
    }

    fn free(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (block, _) = self.held.swap_remove(self.numbers.below(self.held.len()));
        if self.numbers.one_in(6) {
            ok(cachalot_record_stream(self.allocator.0, block, stream(5 + self.numbers.below(2))));
        }
        self.allocator.free(block);
    }

    fn free_some(&mut self, part: usize) {
        for _ in 0..self.held.len() / part {
            self.free();
        }
    }

    /// Some requests from a private pool.
    fn graph(&mut self) {
        let pool = self.allocator.pool();
        ok(cachalot_pool_begin(self.allocator.0, 0, pool, CACHALOT_ROUTE_ALL, null_mut()));
        (0..20).for_each(|_| self.malloc());
        ok(cachalot_pool_end(self.allocator.0, 0, pool));
        // The first pool stays, with two users: the program and the graph.
        if std::mem::replace(&mut self.has_pool, true) {
            ok(cachalot_pool_release(self.allocator.0, 0, pool));
            ok(cachalot_pool_release(self.allocator.0, 0, pool));
        }
    }

    fn run(&mut self) {
        for _ in 0..4000 {
            match self.numbers.below(1000) {
                0..520 => self.malloc(),
                520..990 => self.free(),
                990..994 => ok(cachalot_simulate_progress(self.allocator.0, 0, stream(5))),
                994..996 => ok(cachalot_empty_cache(self.allocator.0, 0)),
                996..998 => self.graph(),
                _ => self.free_some(2),
            }
        }
        // The last call is a failing request, with pending frees.
        (0..40).for_each(|_| self.malloc());
        (0..10).for_each(|_| self.free());
        let (status, _) = self.allocator.try_malloc(0, 3000 * MIB, null_mut());
        assert_eq!(status, CACHALOT_ERROR_OUT_OF_MEMORY);
        let (pending, _) = self.held.swap_remove(0);
        ok(cachalot_record_stream(self.allocator.0, pending, stream(6)));
        self.allocator.free(pending);
    }

    /// Writes the snapshot in both formats, and the expected figures of the program beside.
    fn write(&self, scene: &Scene, folder: &Path) {
        for format in ["pickle", "json"] {
            ok(self.allocator.write_snapshot(&folder.join(format!("{}.{format}", scene.name))));
        }
        let stats: HashMap<_, _> = self.allocator.all_stats().into_iter().collect();
        let stat = |key: &str| stats[key];
        let entries: Vec<_> = (0..scene.devices).map(|device| self.allocator.trace(device as c_int).len()).collect();
        let happened: i64 = ["allocation.all.allocated", "allocation.all.freed", "active.all.freed", "num_ooms"]
            .into_iter()
            .chain(["num_device_alloc", "num_device_free"])
            .map(stat)
            .sum();
        let complete = happened as usize == entries[0];
        assert!(complete || entries[0] == scene.capacity, "{} of {happened}", entries[0]);
        assert!(stat("num_ooms") > 1 && stat("num_device_free") > 10, "{stats:?}");
        let expected = json!({
            "segments": if stat("segment.all.current") > 0 && scene.name.starts_with("expandable") { None }
                else { Some(stat("segment.all.current")) },
            "reserved": stat("reserved_bytes.all.current"),
            "allocated": stat("allocated_bytes.all.current"),
            "requested": self.held.iter().map(|(_, bytes)| bytes).sum::<usize>(),
            "complete": complete,
            "entries": entries,
            "events": {
                "allocs": stat("allocation.all.allocated"),
                "frees": stat("allocation.all.freed"),
                "completions": stat("active.all.freed"),
                "segment_allocs": stat("segment.all.allocated"),
                "segment_frees": stat("segment.all.freed"),
                "maps": stat("num_device_alloc") - stat("segment.all.allocated"),
                "unmaps": stat("num_device_free") - stat("segment.all.freed"),
                "ooms": stat("num_ooms"),
            },
            "stack": if scene.stacks { vec!["small", "large"] } else { vec![] },
        });
        let file = folder.join(format!("{}.expected.json", scene.name));
        std::fs::write(file, expected.to_string()).expect("the test's folder can be written");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for (block, _) in self.held.drain(..) {
            cachalot_free(self.allocator.0, block);
        }
        // Pools may have users still.
        cachalot_destroy(self.allocator.0);
    }
}

#[test]
fn torchs_own_script_draws_our_snapshots_and_says_what_we_do() {
    let folder = scratch("memory_viz");
    for scene in &SCENES {
        let mut program = Program::new(scene);
        program.run();
        program.write(scene, &folder);
    }
    let Some(scripts) = std::env::var_os("CACHALOT_MEMORY_VIZ") else {
        skip("torch's _memory_viz.py on our snapshots", "CACHALOT_MEMORY_VIZ is not set: scripts/setup/memory_viz.sh");
        return;
    };
    let mut versions = 0;
    for version in std::fs::read_dir(scripts).expect("the folder of the scripts") {
        let script = version.expect("a version").path();
        let mut command = Command::new("python3");
        command.arg(root().join("ffi/tests/memory_viz.py")).arg(&script).arg(&folder);
        let Some(output) = output(&mut command) else {
            skip("torch's _memory_viz.py on our snapshots", "no python3");
            return;
        };
        let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}: {told}\n{errors}", script.display());
        assert_eq!(told.trim(), SCENES.len().to_string());
        versions += 1;
    }
    assert!(versions > 0, "there is no script");
}
