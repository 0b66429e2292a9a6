//! Whole lives of processes, from C: forks, exits, unloading, lost contexts, callbacks, missing or
//! old drivers.

use crate::common::{
    self, Link, build, emulated, emulated_driver, library_folder, output, printed, root, scratch, simulated, skip,
    succeed, without_errors, without_leaks,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a program of `tests/c_abi/process`.
fn program(name: &str) -> Option<PathBuf> {
    build(&root().join("tests/c_abi/process").join(name).with_extension("c"), Link::Shared, &[])
}

/// Builds a program that calls the emulated driver itself.
fn program_with_driver(name: &str) -> Option<PathBuf> {
    let source = root().join("tests/c_abi/process").join(name).with_extension("c");
    let driver = emulated_driver().parent().expect("a folder").as_os_str();
    build(&source, Link::Shared, &["-L".as_ref(), driver, "-lcuda".as_ref()])
}

#[test]
fn a_forked_child_is_told_that_it_is_one() {
    let Some(program) = program("fork") else { return };
    succeed(&mut simulated(&program));
    without_leaks(&mut emulated(&program), "fork");
    without_errors(&simulated(&program));
}

/// Two pages are refused: that of the table of handles, and that of the mark of a parent. The
/// complete check of a handle then compares process ids.
#[test]
fn a_forked_child_is_told_where_the_kernel_wipes_no_pages() {
    let kernel = root().join("tests/c_abi/process/no_wipe.c");
    let Some(kernel) = build(&kernel, Link::Shared, &["-shared".as_ref(), "-fPIC".as_ref()]) else { return };
    let Some(program) = program("fork") else { return };
    for command in [simulated, emulated] {
        let said = succeed(command(&program).env("LD_PRELOAD", &kernel));
        assert!(said.is_some_and(|said| said.matches("refused\n").count() >= 2), "the kernel was asked");
    }
}

#[test]
fn nothing_is_called_at_exit() {
    let Some(program) = program("exit") else { return };
    succeed(&mut simulated(&program));
    succeed(simulated(&program).arg("--late"));
    without_errors(simulated(&program).arg("--late"));
    for teardown in ["polite", "crash"] {
        succeed(emulated(&program).env("CACHALOT_EMU_TEARDOWN", teardown));
    }
    succeed(emulated(&program).arg("--late").env("CACHALOT_EMU_TEARDOWN", "polite"));
}

#[test]
fn the_upkeep_thread_calls_no_driver_once_the_process_ends() {
    let Some(program) = program("upkeep_exit") else { return };
    for config in ["policy:stitched", "expandable_segments:True", "reclaim:auto"] {
        succeed(emulated(&program).arg(config).env("CACHALOT_EMU_TEARDOWN", "crash"));
    }
}

#[test]
fn the_library_can_be_unloaded() {
    let Some(program) = program("unload") else { return };
    let command = || {
        let mut command = Command::new(&program);
        command.arg(library_folder().join("libcachalot.so"));
        command
    };
    succeed(&mut command());
    without_errors(&command());
}

#[test]
fn a_lost_context_is_remembered_and_not_called() {
    let Some(program) = program("context_lost") else { return };
    succeed(&mut emulated(&program));
}

#[test]
fn a_context_that_was_reset_or_destroyed_is_lost_and_a_new_allocator_works() {
    let Some(program) = program("reset") else { return };
    for config in ["", "decisions:improved", "policy:bfc", "expandable_segments:True", "policy:stitched", "policy:slab"]
    {
        succeed(emulated(&program).arg(config));
    }
}

#[test]
fn the_host_waits_for_no_use_where_the_driver_has_no_more_events_for_streams() {
    let Some(program) = program("order_events") else { return };
    for config in ["", "decisions:improved", "policy:bfc", "policy:slab", "policy:stitched", "expandable_segments:True"]
    {
        succeed(emulated(&program).arg(config));
    }
}

/// A library in the place of compute-sanitizer refuses what a checker would refuse, and its list of
/// regions is compared with the blocks after every operation.
#[test]
fn a_memory_checker_knows_exactly_the_live_blocks() {
    let tool = root().join("tests/c_abi/process/nvtx_tool.c");
    let Some(tool) = build(&tool, Link::Shared, &["-shared".as_ref(), "-fPIC".as_ref()]) else { return };
    let Some(program) = program("nvtx") else { return };
    let said = |config: &str, listens: bool, seed: &str| {
        let mut command = emulated(&program);
        command.args([config, seed]).env("CACHALOT_EMU_DELAY_US", "100").env("CACHALOT_LOG", "off");
        if listens {
            command.env("NVTX_INJECTION64_PATH", &tool);
        }
        succeed(&mut command)
    };
    for config in ["", "parity:False", "expandable_segments:True", "policy:stitched", "policy:bfc", "guard:all"] {
        for seed in ["1", "2"] {
            assert_eq!(said(config, true, seed).as_deref(), Some("nvtx: told\n"), "{config}");
        }
    }
    assert_eq!(said("", false, "1").as_deref(), Some("nvtx: silent\n"));
    // Each block is the driver's, in the order of its stream.
    assert_eq!(said("policy:direct", true, "1").as_deref(), Some("nvtx: silent\n"));
    assert_eq!(said("nvtx:off", true, "1").as_deref(), Some("nvtx: silent\n"));
    let refused = emulated(&program)
        .arg("")
        .envs([("CACHALOT_EMU_DELAY_US", "100"), ("CACHALOT_LOG", "off"), ("NVTX_TOOL_REFUSES", "1")])
        .env("NVTX_INJECTION64_PATH", &tool)
        .output();
    assert!(refused.is_ok_and(|output| output.status.success()));
    // Settings that cannot be kept are named.
    for (config, warnings) in [("policy:bfc", 0), ("expandable_segments:True", 1)] {
        let mut command = emulated(&program);
        let lines = logged(command.args([config, "1"]).env("NVTX_INJECTION64_PATH", &tool), "warning", "nvtx");
        let told = lines.iter().filter(|line| line.starts_with("warning: a memory checker listens"));
        assert_eq!(told.count(), warnings, "{lines:?}");
    }
    // Simulated devices have no memory to check. The tool names mistakes on the standard error.
    let Some(planned) = self::program("planned") else { return };
    logged(simulated(&planned).env("NVTX_INJECTION64_PATH", &tool), "warning", "nvtx");
}

/// The emulated driver delivers the faults, and its memory has real pages.
#[test]
fn a_memory_error_faults_and_the_library_names_the_block() {
    let Some(kernels) = cachalot_kernels::emulated_image() else { return skip("guards", "no C++ compiler") };
    let kernels = kernels.to_str().expect("UTF-8").strip_prefix("CACHALOT-EMULATED ").expect("the path of a library");
    let source = root().join("tests/c_abi/process/guards.c");
    let include = root().join("cuda-kernels/include");
    let Some(program) = build(&source, Link::Shared, &["-I".as_ref(), include.as_os_str()]) else { return };
    for config in ["guard:after", "guard:all", "guard:sampled:1", "policy:bfc,guard:after"] {
        for case in ["after_free", "overrun", "missing_record", "clean"] {
            // Small blocks share pages under `guard:all`: the next one is after, at other
            // addresses.
            if (config, case) != ("guard:all", "overrun") {
                succeed(emulated(&program).args([config, case]).env("CACHALOT_KERNELS", kernels));
            }
        }
    }
}

#[test]
fn an_allocator_leaves_nothing_in_a_context_that_lives_on() {
    let Some(program) = program_with_driver("ended") else { return };
    for config in ["", "parity:False", "policy:stitched", "expandable_segments:True", "policy:planned,fallback:bfc"] {
        let said = succeed(emulated(&program).arg(config).env("CACHALOT_EMU_DELAY_US", "100"));
        assert_eq!(said.as_deref(), Some("ended: well\n"), "{config}");
    }
}

#[test]
fn handles_of_streams_that_nothing_reported_are_left_alone() {
    let Some(program) = program_with_driver("unreported") else { return };
    let configs =
        ["", "expandable_segments:True", "parity:False", "compact:0", "reclaim:auto", "policy:stitched,slack:0"];
    for config in configs {
        let mut command = emulated(&program);
        let said = without_leaks(command.arg(config).env("CACHALOT_EMU_STRICT", "1"), "unreported");
        assert_eq!(said.as_deref(), Some("unreported: well\n"));
    }
}

#[test]
fn a_block_is_reused_behind_its_use_on_another_stream() {
    let Some(program) = program_with_driver("record_use") else { return };
    for config in ["", "parity:False", "expandable_segments:True", "policy:stitched", "policy:bfc"] {
        let said = succeed(emulated(&program).arg(config));
        assert_eq!(said.as_deref(), Some("record_use: well\n"), "{config}");
    }
    without_leaks(emulated(&program).arg(""), "record_use");
}

/// Contents are compared byte for byte: the emulated driver's memory is real.
#[test]
fn parked_memory_wakes_with_its_contents() {
    let Some(program) = program_with_driver("park") else { return };
    for config in ["", "expandable_segments:True", "policy:stitched"] {
        let said = succeed(emulated(&program).arg(config));
        assert_eq!(said.as_deref(), Some("park: well\n"), "{config}");
    }
    without_leaks(emulated(&program).arg(""), "park");
}

/// Graphs copy through memory that others write to between the replays.
#[test]
fn graphs_lend_their_free_memory_and_write_the_same_bytes() {
    let Some(program) = program_with_driver("lend") else { return };
    for config in ["", "expandable_segments:True", "policy:stitched"] {
        let said = succeed(emulated(&program).arg(config).env("CACHALOT_EMU_DELAY_US", "300"));
        assert_eq!(said.as_deref(), Some("lend: well\n"), "{config}");
    }
    without_leaks(emulated(&program).arg("expandable_segments:True"), "lend");
}

/// The driver refuses what waits or releases memory, and counts each refusal.
#[test]
fn a_hold_calls_no_function_that_waits_or_releases_memory() {
    let Some(program) = program_with_driver("hold") else { return };
    for config in ["", "expandable_segments:True", "policy:stitched", "policy:direct", "compact:1,max_split_size_mb:20"]
    {
        let said = succeed(emulated(&program).arg(config).env("CACHALOT_EMU_DELAY_US", "300"));
        assert_eq!(said.as_deref(), Some("hold: well\n"), "{config}");
    }
}

/// The mappings of the emulated driver have real memory, so that a wrong page is a wrong byte.
#[test]
fn ranges_and_blocks_share_pages_and_keep_their_bytes() {
    let source = root().join("tests/c_abi/process/ranges.cpp");
    let driver = emulated_driver().parent().expect("a folder").as_os_str();
    let Some(program) = build(&source, Link::Shared, &["-L".as_ref(), driver, "-lcuda".as_ref()]) else { return };
    for config in ["", "expandable_segments:True", "policy:stitched"] {
        let mut command = emulated(&program);
        command.arg(config).env("CACHALOT_EMU_DELAY_US", "300");
        if config == "policy:stitched" {
            command.env("RANGES_SAME_PAGES", "1");
        }
        let said = without_leaks(&mut command, "ranges");
        assert_eq!(said.as_deref(), Some("ranges: well\n"), "{config}");
    }
}

/// What other caches over virtual memory got wrong: kvcached 364, 371, 372 and 412.
#[test]
fn a_range_over_a_driver_that_fails_or_is_slow_loses_nothing() {
    let Some(program) = program_with_driver("range_faults") else { return };
    for config in ["", "expandable_segments:True", "policy:stitched"] {
        let said = without_leaks(emulated(&program).arg(config), "range_faults");
        assert_eq!(said.as_deref(), Some("range_faults: well\n"), "{config}");
    }
}

#[test]
fn a_device_without_virtual_memory_is_named_once_under_the_stitched_policy() {
    let Some(program) = program("fallback") else { return };
    let said = |command: &mut Command| {
        let output = output(command).expect("it was just built");
        assert!(output.status.success(), "{command:?}\n{}\n{}", output.status, printed(&output));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_eq!(said(emulated(&program).arg("pages")), "");
    // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED.
    let warned = said(emulated(&program).env("CACHALOT_EMU_ATTRIBUTES", r#"{"102": 0}"#));
    let line = |device| {
        format!(
            "cachalot: device {device} has no virtual memory, which policy:stitched and expandable_segments:True \
             need: blocks are placed as by policy:caching without them\n"
        )
    };
    assert_eq!(warned, line(0) + &line(1));
}

#[test]
fn a_setting_without_effect_is_named_once() {
    let Some(program) = program("notes") else { return };
    let output = output(&mut simulated(&program)).expect("it was just built");
    assert!(output.status.success(), "{}\n{}", output.status, printed(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "cachalot: compact has no effect: expandable segments have no budget\n\
         cachalot: garbage_collection_threshold has no effect: nothing is collected until a memory limit is set, by \
         `per_process_memory_fraction` or by a call\n"
    );
}

/// Returns the lines that a program adds to a log of a level, without the time and the process.
fn logged(command: &mut Command, level: &str, name: &str) -> Vec<String> {
    let file = scratch("log").join(name);
    let _ = std::fs::remove_file(&file);
    let output = output(command.env("CACHALOT_LOG", format!("{level}:{}", file.display()))).expect("it was just built");
    assert!(output.status.success(), "{}\n{}", output.status, printed(&output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "the lines are in the file");
    let written = std::fs::read_to_string(file).expect("the log is there");
    let lines = written.lines().map(|line| line.split_once("] ").expect("a line has a process"));
    lines
        .map(|(before, text)| {
            assert!(before.contains("Z cachalot["), "{before}");
            text.to_owned()
        })
        .collect()
}

#[test]
fn the_log_tells_of_allocators_and_of_requests_that_fail() {
    let Some(program) = program("log") else { return };
    let lines = logged(&mut simulated(&program), "info", "info");
    let created = format!("info: allocator created: cachalot {}, 1 device, settings `", env!("CARGO_PKG_VERSION"));
    assert!(lines.len() == 2 && lines[0].starts_with(&created) && lines[0].contains("policy:bfc"), "{lines:?}");
    assert!(lines[1].starts_with("error: device 0: Device out of memory. Tried to allocate 1 GiB"), "{lines:?}");
    assert_eq!(logged(&mut simulated(&program), "warning", "warning"), lines[1..]);
    assert_eq!(logged(&mut simulated(&program), "off", "off"), [""; 0]);
    // Without the variable, a status alone tells the program. A mistake is named once.
    let said =
        |command: &mut Command| output(command).map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(said(simulated(&program).env_remove("CACHALOT_LOG")).as_deref(), Some(""));
    let mistake = said(simulated(&program).env("CACHALOT_LOG", "all"));
    let expected = "cachalot: CACHALOT_LOG: all is no level: off, error, warning or info, and :FILE after it\n";
    assert_eq!(mistake.as_deref(), Some(expected));
}

/// Nothing else tells the program, so the lines come without the variable, too.
#[test]
fn the_log_names_each_overwritten_canary() {
    let Some(program) = program_with_driver("canary") else { return };
    let output = output(emulated(&program).env_remove("CACHALOT_LOG")).expect("it was just built");
    assert!(output.status.success(), "{}\n{}", output.status, printed(&output));
    let (addresses, lines) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let places =
        [" lies 0 bytes behind the end of the block of 4096 bytes at ", " lies 511 bytes behind the end of the block"];
    for (line, (address, place)) in lines.lines().zip(addresses.split_whitespace().zip(places)) {
        let expected = format!("cachalot: device 0: memory was overwritten: {address}{place}");
        assert!(line.starts_with(&expected), "{lines}");
    }
    assert_eq!(lines.lines().count(), 2, "{lines}");
}

#[test]
fn the_log_tells_of_parked_memory_and_of_plans() {
    let (Some(park), Some(planned)) = (program_with_driver("park"), program("planned")) else { return };
    let lines = logged(emulated(&park).arg(""), "info", "park");
    assert!(
        lines.iter().any(|line| line.contains(" is parked: ") && line.starts_with("info: device 0: tag ")),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.contains(" is awake: 0 bytes parked")), "{lines:?}");
    let lines = logged(&mut simulated(&planned), "info", "planned");
    let changes: Vec<_> = lines.iter().filter(|line| line.starts_with("info: device 0: ")).collect();
    let [served, given_up] = changes[..] else { panic!("{lines:?}") };
    assert!(served.contains("requests are served from plans with a peak of "), "{served}");
    assert!(given_up.contains("the plans are given up"), "{given_up}");
    // A test of this program that waits until other settings are active.
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    let lines = logged(command.args(["--exact", "tuned::a_capture_keeps_its_settings"]), "info", "tuned");
    let told: Vec<_> = lines.iter().filter(|line| line.starts_with("info: device 0: ")).collect();
    let [switched] = told[..] else { panic!("{lines:?}") };
    assert!(
        switched.contains("tune:auto has activated `") && switched.contains("bytes are predicted instead of"),
        "{switched}"
    );
}

#[test]
fn a_driver_that_shuts_down_is_not_called_again() {
    let Some(program) = program("shutdown") else { return };
    succeed(&mut emulated(&program));
}

/// Uses more simulated streams than heaps could ever exist at a time.
#[test]
fn streams_and_threads_come_and_go() {
    let Some(program) = program("streams") else { return };
    succeed(simulated(&program).arg("40000"));
    without_leaks(emulated(&program).arg("1000"), "streams");
    without_errors(simulated(&program).arg("300"));
}

/// Repeats often enough that one thread meets a stream destroyed by another thread.
#[test]
fn threads_do_not_see_each_others_streams_go() {
    let Some(program) = program("threads") else { return };
    succeed(simulated(&program).arg("1000"));
    without_leaks(emulated(&program).arg("20"), "threads");
}

#[test]
fn a_graph_without_requests_needs_no_pool() {
    let Some(program) = program("captures") else { return };
    succeed(&mut simulated(&program));
    without_leaks(&mut emulated(&program), "captures");
}

#[test]
fn streams_that_the_driver_is_asked_for_need_no_report() {
    let Some(program) = program("asked") else { return };
    let mut command = emulated(&program);
    // A strict driver gives no handle out again, and the program wants one again.
    command.env("CACHALOT_EMU_STRICT", "0");
    without_leaks(&mut command, "asked");
}

#[test]
fn a_driver_that_fails_to_identify_a_stream_is_no_mistake_of_the_program() {
    let Some(program) = program("unidentified") else { return };
    // A driver's own error, one for lack of memory, one that loses the context, and a handle of no
    // stream.
    let statuses = [(999, 320), (2, 210), (700, 350), (400, 148)];
    for function in ["cuStreamGetId", "cuStreamIsCapturing"] {
        for (code, status) in statuses {
            let plan = format!(r#"[{{"fn": "{function}", "code": {code}}}]"#);
            let mut command = emulated(&program);
            succeed(command.args([status.to_string(), code.to_string()]).env("CACHALOT_EMU_PLAN", plan));
        }
    }
}

#[test]
fn callbacks_may_call_back() {
    let Some(program) = program("callbacks") else { return };
    succeed(&mut simulated(&program));
    without_leaks(&mut emulated(&program), "callbacks");
    without_errors(&simulated(&program));
}

/// On simulated devices and on the emulated driver, whose mappings are real.
#[test]
fn pages_are_told_of_and_pinned_ones_stay() {
    let Some(program) = program("extents") else { return };
    for config in ["expandable_segments:True", "policy:stitched", "policy:stitched,completed_pages_only:True"] {
        succeed(simulated(&program).arg(config));
        without_leaks(emulated(&program).arg(config), "extents");
    }
}

#[test]
fn what_a_device_has_no_memory_for_lies_on_the_host() {
    let Some(program) = program_with_driver("spill") else { return };
    for policy in ["expandable_segments:True", "policy:stitched"] {
        let mut command = emulated(&program);
        command.env("CACHALOT_EMU_MEMORY", (256 << 20).to_string());
        without_leaks(command.arg(format!("{policy},spill:2.0")), "spill");
    }
}

/// Two devices, a captured graph, a forked child and an export use a block that lies on the host.
#[test]
fn a_block_on_the_host_is_used_by_all_who_use_blocks() {
    let Some(program) = program_with_driver("spill_shared") else { return };
    for (config, when) in
        [("expandable_segments:True", "first"), ("expandable_segments:True", "later"), ("policy:stitched", "later")]
    {
        without_leaks(emulated(&program).args([&format!("{config},spill:1.0"), when]), "spill_shared");
    }
}

/// What the host keeps for itself is an eighth of its memory, or of the smallest limit of a control
/// group of either version. The files say how much is left, and stay as they are.
#[test]
fn the_host_and_its_control_groups_bound_what_lies_there() {
    const MIB: u64 = 1 << 20;
    let Some(program) = program_with_driver("spill_bounds") else { return };
    let run = |name: &str, available: u64, files: &[(&str, String)]| {
        let system = scratch(&format!("spill_bounds_{name}"));
        let meminfo = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 800 << 10, available >> 10);
        for (file, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let file = system.join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::write(file, text).expect("written");
        }
        let mut command = emulated(&program);
        command.env("CACHALOT_SYSTEM", &system).env("CACHALOT_EMU_MEMORY", (256 * MIB).to_string());
        succeed(command.arg("expandable_segments:True,spill:0.0625G")).expect("it was just built")
    };
    let share = "which would have too little memory left for itself after more.";
    let is_refused = |said: &str| said.starts_with("0\n") && said.contains(share);
    // `spill` is 64 MiB, three pages of 20.
    let is_served = |said: &str| said.starts_with("60\n") && said.contains("and `spill` allows no more.");
    let groups = |most: u64, used: u64| {
        let file = |name: &'static str, text: String| (name, text);
        [
            (
                "v2",
                vec![
                    file("proc/self/cgroup", "0::/a/b\n".into()),
                    file("sys/fs/cgroup/a/memory.max", most.to_string()),
                    file("sys/fs/cgroup/a/memory.current", used.to_string()),
                ],
            ),
            (
                "v1",
                vec![
                    file("proc/self/cgroup", "4:memory:/a\n".into()),
                    file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", most.to_string()),
                    file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", used.to_string()),
                ],
            ),
        ]
    };
    // Of 800 MiB, 100 are the host's own.
    let host = [119, 120].map(|available| run("host", available * MIB, &[]));
    assert!(is_refused(&host[0]) && is_served(&host[1]), "{host:?}");
    // Of 160 MiB of a group, 20 are left to others.
    for left in [39, 40] {
        for (name, files) in groups(160 * MIB, (160 - left) * MIB) {
            let said = run(name, 800 * MIB, &files);
            assert!(if left == 40 { is_served(&said) } else { is_refused(&said) }, "{name} {left}: {said}");
        }
    }
}

/// The driver counts 512 MiB of files as used, as that of a GB10 does, and the system says that 800
/// MiB can be had.
#[test]
fn a_device_that_shares_the_hosts_memory_says_what_the_system_has() {
    let Some(program) = program("one_memory") else { return };
    let system = scratch("one_memory");
    let file = system.join("proc/meminfo");
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    std::fs::write(file, "MemTotal: 1048576 kB\nMemFree: 307200 kB\nMemAvailable: 819200 kB\n").expect("written");
    let run = |attributes: &str, plan: &str| {
        let mut command = emulated(&program);
        command.env("CACHALOT_SYSTEM", &system).env("CACHALOT_EMU_FILE_BYTES", (512 << 20).to_string());
        command.env("CACHALOT_EMU_ATTRIBUTES", attributes).env("CACHALOT_EMU_PLAN", plan);
        let output = output(command.arg("expandable_segments:True")).expect("it was just built");
        assert!(output.status.success(), "{command:?}\n{}\n{}", output.status, printed(&output));
        printed(&output)
    };
    let own = run("{}", "[]");
    assert!(own.contains(" 1022 MiB free of 1 GiB. ") && !own.contains("that of the host"), "{own}");
    assert!(own.ends_with("\nparked\nparked\n"), "{own}");
    let shared = run(r#"{"18":1}"#, "[]");
    let says = |text: &str, said: &str| assert!(text.contains(said), "{text}");
    says(&shared, " 800 MiB free of 1 GiB. ");
    says(&shared, "Its memory is that of the host: ");
    says(&shared, "the device and the host have one memory, so only files would keep contents elsewhere\nparked\n");
    // A Jetson board reports virtual memory, and refuses every page: blocks are in segments.
    let refused = run(r#"{"18":1}"#, r#"[{"fn": "cuMemCreate", "code": 2}]"#);
    says(&refused, " 800 MiB free of 1 GiB. ");
    says(&refused, "device 0 has no virtual memory, which ");
    std::fs::remove_dir_all(system).expect("removed");
}

/// On simulated devices and on the emulated driver, in the time of the clock.
#[test]
fn idle_memory_is_given_back_by_a_thread_of_the_library() {
    let Some(program) = program("reclaim") else { return };
    let [segments, pages] = ["reclaim:auto,reclaim_budget:1", "reclaim:auto,expandable_segments:True,reclaim_budget:1"];
    // Each run takes the seconds that memory must be idle for, so they wait side by side.
    std::thread::scope(|scope| {
        for (mut run, config) in
            [(simulated(&program), segments), (emulated(&program), segments), (emulated(&program), pages)]
        {
            scope.spawn(move || succeed(run.arg(config)));
        }
    });
}

/// The other process has a driver and its own context, and maps the same memory.
#[test]
fn a_pinned_block_is_shared_with_another_process() {
    let Some(program) = program_with_driver("export") else { return };
    for config in ["expandable_segments:True", "policy:stitched"] {
        let said = without_leaks(emulated(&program).arg(config), "export");
        assert!(said.is_some_and(|said| said.starts_with("export: well, ")), "{config}");
    }
    let said = without_leaks(emulated(&program).arg("--codes"), "export");
    let codes: Vec<_> = said.iter().flat_map(|said| said.lines()).filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(codes, ["1", "1", "1", "999", "999", "0", "1"], "as an H100 with driver 580.159.04");
}

/// Installs a copy of the emulated driver without some functions.
fn driver_without(folder: &str, hidden: &[&str]) -> PathBuf {
    cachalot_emulated_driver::install::install(&common::scratch(folder), hidden).expect("the emulated driver is built")
}

#[test]
fn an_iteration_that_repeats_is_served_from_a_plan() {
    let Some(program) = program("planned") else { return };
    succeed(&mut simulated(&program));
    without_leaks(&mut emulated(&program), "planned");
    without_errors(&simulated(&program));
}

#[test]
fn a_device_gets_its_context_when_it_is_first_allocated_from() {
    let Some(program) = program("open_later") else { return };
    without_leaks(&mut emulated(&program), "open_later");
    without_errors(&emulated(&program));
}

#[test]
fn devices_open_their_memory_to_peers_and_work_in_contexts_of_the_program() {
    let Some(program) = program("peers") else { return };
    without_leaks(&mut emulated(&program), "peers");
}

#[test]
fn a_driver_that_will_not_do_is_named_as_such() {
    let Some(program) = program("drivers") else { return };
    let expect = |driver: &Path, variables: &[(&str, &str)], status: &str| {
        let mut command = Command::new(&program);
        command.arg(status).env("CACHALOT_LIBCUDA", driver).envs(variables.iter().copied());
        succeed(&mut command);
    };
    expect(emulated_driver(), &[], "CACHALOT_OK");
    expect(Path::new("/nonexistent/libcuda.so.1"), &[], "CACHALOT_ERROR_NO_DRIVER");
    expect(&library_folder().join("libcachalot.so"), &[], "CACHALOT_ERROR_DRIVER_TOO_OLD");
    expect(emulated_driver(), &[("CACHALOT_EMU_DRIVER_VERSION", "11030")], "CACHALOT_ERROR_DRIVER_TOO_OLD");
    expect(&driver_without("no-events", &["cuEventRecord"]), &[], "CACHALOT_ERROR_DRIVER_TOO_OLD");
    for (code, status) in [(100, "NO_DRIVER"), (34, "NO_DRIVER"), (3, "NO_DRIVER")] {
        let plan = format!(r#"[{{"fn": "cuInit", "nth": 1, "code": {code}, "persistent": true}}]"#);
        expect(emulated_driver(), &[("CACHALOT_EMU_PLAN", &plan)], &format!("CACHALOT_ERROR_{status}"));
    }
    // Without virtual memory or stream numbers the allocator works.
    let optional = ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuStreamGetId", "cuStreamIsCapturing"];
    expect(&driver_without("fewer-functions", &optional), &[], "CACHALOT_OK");
}

#[test]
fn the_environments_settings_come_before_the_programs_own() {
    let Some(program) = program("environment") else { return };
    let said = |variables: &[(&str, &str)], own: &[&str]| {
        let mut command = Command::new(&program);
        command.env_remove("PYTORCH_ALLOC_CONF").env_remove("PYTORCH_CUDA_ALLOC_CONF");
        let said = succeed(command.args(own).envs(variables.iter().copied())).expect("it was just built");
        said.trim_end().to_owned()
    };
    let (old, new) = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF");
    assert_eq!(said(&[], &[]), "policy:caching");
    assert_eq!(said(&[], &["max_split_size_mb:64"]), "max_split_size_mb:64");
    assert_eq!(said(&[(old, "max_split_size_mb:32")], &[]), "max_split_size_mb:32");
    assert_eq!(said(&[(old, "max_split_size_mb:32"), (new, "max_split_size_mb:48")], &[]), "max_split_size_mb:48");
    assert_eq!(said(&[(old, "max_split_size_mb:32")], &["max_split_size_mb:64"]), "max_split_size_mb:64");
    let both = said(&[(old, "max_split_size_mb:32")], &["expandable_segments:True"]);
    assert_eq!(both, "max_split_size_mb:32,expandable_segments:True");
}
