//! The metrics of a living allocator: equal to its statistics under every policy, and read by
//! Prometheus' parser.
//!
//! `CACHALOT_READERS` names a folder with the parser, created by `scripts/setup/readers.sh`.

use crate::common::subject::Subject;
use crate::common::{output, root, scratch, skip};
use cachalot::c::capi::cachalot_write_metrics;
use cachalot::c::status::{CACHALOT_ERROR_STOPPED, CACHALOT_OK};
use cachalot::config::PLANNED;
use cachalot::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use cachalot::prelude::*;
use cachalot::simulated::SimulatedDevice;
use cachalot::{DeviceResult, PoolOptions, Route, RoutePurpose, Statistic, StatisticKind, Tag, TagLimits, TuneStage};
use cachalot::{Growable, HeapLock, metrics};
use std::ffi::{CString, c_char, c_int, c_void};
use std::num::NonZeroU64;
use std::process::Command;
use std::ptr::null_mut;

const MIB: u64 = 1 << 20;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Returns every policy, and expandable segments.
fn policies() -> impl Iterator<Item = String> {
    let named = cachalot::POLICIES.names().filter(|&policy| policy != PLANNED).map(|policy| format!("policy:{policy}"));
    named.chain(["expandable_segments:True".to_owned()])
}

/// Returns an allocator with a past: blocks on two streams and in a private pool, pending blocks,
/// and requests that failed.
fn busy(policy: &str) -> SimulatedAllocator {
    let config = cachalot::parse(policy).expect(policy);
    let devices = [SimulatedDevice::new(512 * MIB), SimulatedDevice::new(512 * MIB)];
    let allocator = Allocator::new(devices, &config).expect(policy);
    allocator.settings(DEVICE).expect("a device").set_limit(Some(300 * MIB));
    let streams = [StreamId::DEFAULT, StreamId(7)];
    let blocks: Vec<_> = (0..40_u64)
        .map(|number| {
            let bytes = 700 + number * number * 3000;
            allocator.malloc(DEVICE, bytes, streams[number as usize % 2]).expect("there is memory")
        })
        .collect();
    // Earlier than the pending frees: a failing request waits for them.
    assert!(allocator.malloc(DEVICE, 400 * MIB, StreamId::DEFAULT).is_err());
    for (number, &block) in blocks.iter().enumerate() {
        if number % 5 == 0 {
            allocator.record_stream(block, streams[(number + 1) % 2]).expect("a block");
        }
        if number % 3 == 0 {
            allocator.free(block).expect("a block");
        }
    }
    allocator
}

/// Returns the value of a sample without labels but the device.
fn value(text: &str, name: &str, device: u32) -> i64 {
    let start = format!("cachalot_{name}{{device=\"{device}\"}} ");
    let found: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&start)).collect();
    assert_eq!(found.len(), 1, "{start}\n{text}");
    found[0].parse().expect("a number")
}

/// Returns the sum of a family of pools and streams.
fn sum(text: &str, name: &str, device: u32) -> i64 {
    let start = format!("cachalot_{name}{{device=\"{device}\",");
    let samples = text.lines().filter(|line| line.starts_with(&start));
    samples.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<i64>().ok()).expect(line)).sum()
}

#[test]
fn metrics_are_the_statistics_under_every_policy() {
    for policy in &policies().collect::<Vec<_>>() {
        let allocator = busy(policy);
        let text = metrics(&allocator).expect("metrics");
        let stats = allocator.stats(DEVICE).expect("a device").totals();
        let pending = stats.active_bytes().current - stats.allocated_bytes().current;
        for (name, wanted) in [
            ("reserved_bytes", stats.reserved_bytes().current),
            ("allocated_bytes", stats.allocated_bytes().current),
            ("pending_bytes", pending),
            ("allocated_blocks", stats.allocations().current),
            ("peak_reserved_bytes", stats.reserved_bytes().peak),
            ("peak_allocated_bytes", stats.allocated_bytes().peak),
            ("served_blocks_total", 40),
            ("freed_blocks_total", 14),
            ("served_bytes_total", stats.allocated_bytes().allocated),
            ("device_allocations_total", stats.device_allocs() as i64),
            ("device_frees_total", stats.device_frees() as i64),
            ("allocation_retries_total", stats.alloc_retries() as i64),
            ("out_of_memory_failures_total", 1),
            ("limit_bytes", 300 * MIB as i64),
            ("leaked_bytes", 0),
        ] {
            assert_eq!(value(&text, name, 0), wanted, "`{policy}` {name}");
        }
        assert!(pending > 0 || policy == "policy:direct", "`{policy}`");
        for name in ["reserved_bytes", "allocated_bytes", "pending_bytes"] {
            assert_eq!(sum(&text, &format!("pool_{name}"), 0), value(&text, name, 0), "`{policy}` {name}");
        }
        let free = value(&text, "free_bytes", 0);
        let held = ["allocated_bytes", "pending_bytes"].map(|name| value(&text, name, 0)).iter().sum::<i64>();
        assert_eq!(held + free, value(&text, "reserved_bytes", 0), "`{policy}`");
        // A device that was never used has its zeros.
        assert_eq!(value(&text, "reserved_bytes", 1), 0);
        assert!(!text.contains("limit_bytes{device=\"1\"}"), "{text}");
        assert!(text.ends_with("\n# EOF\n"), "{text}");
    }
}

/// Every statistic is a family, or is left out with its setting off. No two families share a name.
#[test]
fn metrics_have_every_statistic_in_use() {
    for (policy, off) in [
        ("", &["reclaim", "tune", "planned"][..]),
        ("expandable_segments:True,reclaim:auto", &["tune", "planned"]),
        ("tune:auto", &["reclaim", "planned"]),
        ("policy:planned", &["reclaim", "tune"]),
    ] {
        let allocator = busy(policy);
        allocator.tuning(DEVICE).expect("a device").update_report(|report| report.stage = TuneStage::Recording);
        let text = metrics(&allocator).expect("metrics");
        let reading = allocator.stats(DEVICE).expect("a device").reading();
        for statistic in Statistic::ALL {
            let total = if statistic.kind == StatisticKind::Counter { "_total" } else { "" };
            let sample = format!("{}{total}{{device=\"0\"}} {}\n", statistic.metric(), reading.value(statistic));
            assert_eq!(text.contains(&sample), !off.contains(&statistic.group()), "`{policy}` {sample}");
        }
        let mut families: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let written = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), written, "`{policy}`");
    }
}

/// A simulated device with a UUID.
struct Named(SimulatedDevice);

impl Forwarder for Named {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.0)
    }
}

impl ForwardSegments for Named {
    fn uuid(&self) -> Option<[u8; 16]> {
        Some(*b"\x01cachalot-uuid-\xff")
    }
}

impl ForwardStreamOrder for Named {}
impl ForwardHost for Named {}

/// The version, and for each device the active settings. A GPU has a UUID, and no other device has.
#[test]
fn metrics_name_the_version_the_settings_and_the_gpu() {
    let version = concat!("cachalot_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n");
    let allocator = busy("policy:stitched");
    let text = metrics(&allocator).expect("metrics");
    assert!(text.contains(version), "{text}");
    for device in ["0", "1"] {
        let labels = format!("device=\"{device}\",policy=\"stitched\",settings=\"policy:stitched\"");
        assert!(text.contains(&format!("cachalot_device_info{{{labels}}} 1\n")), "{text}");
    }
    let allocator = Allocator::<_, HeapLock, Growable>::new([Named(SimulatedDevice::new(MIB))], &Config::new());
    let allocator = allocator.expect("the configuration is valid");
    allocator.configure(&Config::parse("roundup_power2_divisions:[256:1,>:4],max_split_size_mb:64").expect("settings"));
    let text = metrics(&allocator).expect("metrics");
    let settings = allocator.settings(DEVICE).expect("a device").config().to_string();
    let uuid = "01636163-6861-6c6f-742d-757569642dff";
    let labels = format!("device=\"0\",policy=\"caching\",settings=\"{settings}\",uuid=\"{uuid}\"");
    assert!(settings.contains("max_split_size_mb:64"), "{settings}");
    assert!(text.contains(&format!("cachalot_device_info{{{labels}}} 1\n")), "{text}");
}

/// What each tag holds, and the limits of those that have some.
#[test]
fn metrics_have_the_tags() {
    let allocator = busy("");
    let text = metrics(&allocator).expect("metrics");
    assert!(!text.contains("cachalot_tag_"), "without tags there is no family of tags: {text}");
    for number in [5, 6] {
        let pool = allocator.pools(DEVICE).expect("a pool").create(PoolOptions::default()).expect("a pool");
        let tag = NonZeroU64::new(number).map(Tag).expect("not 0");
        allocator.parking(DEVICE).expect("a device").tag_pool(pool, Some(tag)).expect("a pool");
        if number == 6 {
            let limits = TagLimits { max: Some(60 * MIB), low: 20 * MIB, ..TagLimits::NONE };
            allocator.tags(DEVICE).unwrap().limit(tag, Some(limits)).expect("limits");
        }
        allocator.pools(DEVICE).expect("a pool").begin_route(pool, Route::All, RoutePurpose::Requests).expect("a pool");
        allocator.malloc(DEVICE, 40 * MIB, StreamId::DEFAULT).expect("there is memory");
        assert_eq!(allocator.malloc(DEVICE, 40 * MIB, StreamId(9)).is_err(), number == 6);
        allocator.pools(DEVICE).expect("a route").end_route(pool, RoutePurpose::Requests).expect("a route");
    }
    let text = metrics(&allocator).expect("metrics");
    let of_tags: Vec<_> = text.lines().filter(|line| line.starts_with("cachalot_tag_")).collect();
    let labels = |tag: u64| format!("device=\"0\",tag=\"{tag}\"");
    let [charge, charge_6] = [(5, 80), (6, 40)].map(|(tag, mib)| format!("{{{}}} {}", labels(tag), mib * MIB));
    let wanted = [
        format!("cachalot_tag_charge_bytes{charge}"),
        format!("cachalot_tag_charge_bytes{charge_6}"),
        format!("cachalot_tag_live_bytes{charge}"),
        format!("cachalot_tag_live_bytes{charge_6}"),
        format!("cachalot_tag_max_bytes{{{}}} {}", labels(6), 60 * MIB),
        format!("cachalot_tag_low_bytes{{{}}} {}", labels(6), 20 * MIB),
        format!("cachalot_tag_refused_requests_total{{{}}} 1", labels(6)),
        format!("cachalot_tag_given_bytes_total{{{}}} 0", labels(6)),
    ];
    assert_eq!(of_tags, wanted);
}

#[test]
fn prometheus_reads_the_metrics() {
    let Some(readers) = std::env::var_os("CACHALOT_READERS") else {
        skip("Prometheus' parser on our metrics", "CACHALOT_READERS is not set: scripts/setup/readers.sh");
        return;
    };
    let text = metrics(&busy("")).expect("metrics");
    let file = scratch("metrics").join("metrics.txt");
    std::fs::write(&file, &text).expect("the test's folder can be written");
    let mut command = Command::new("python3");
    command.arg(root().join("cli/tests/readers/metrics_text.py")).arg(&file).env("PYTHONPATH", readers);
    let Some(output) = output(&mut command) else {
        skip("Prometheus' parser on our metrics", "no python3");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let families = text.lines().filter(|line| line.starts_with("# TYPE")).count();
    assert_eq!(read.as_object().map(serde_json::Map::len), Some(families));
    let device = &read["cachalot_device"];
    assert_eq!((&device["type"], &device["samples"][1]["labels"]["device"]), (&"info".into(), &"1".into()));
    let served = &read["cachalot_served_blocks"];
    assert_eq!((&served["type"], &served["unit"]), (&"counter".into(), &"blocks".into()));
    assert_eq!(served["samples"][0]["value"], 40.0);
}

/// Gathers parts of a text, and stops after as many as the first number says.
unsafe extern "C" fn gather(userdata: *mut c_void, text: *const c_char, bytes: usize) -> c_int {
    // SAFETY: the caller's pair, without another user during the call.
    let (left, whole) = unsafe { &mut *userdata.cast::<(usize, Vec<u8>)>() };
    // SAFETY: the text has the passed length.
    whole.extend_from_slice(unsafe { std::slice::from_raw_parts(text.cast(), bytes) });
    *left = left.saturating_sub(1);
    c_int::from(*left == 0)
}

#[test]
fn the_c_function_has_the_text_of_the_rust_function() {
    let subject = Subject::plain();
    let metrics_of = |parts: usize| {
        let mut gathered = (parts, Vec::new());
        // SAFETY: the callback takes the pair, which outlives the call.
        let status = unsafe { cachalot_write_metrics(subject.0, Some(gather), (&raw mut gathered).cast()) };
        (status, CString::new(gathered.1).expect("no NUL").into_string().expect("text"))
    };
    let (status, text) = metrics_of(usize::MAX);
    assert_eq!(status, CACHALOT_OK);
    assert_eq!(value(&text, "reserved_bytes", 0), 0);
    assert!(!text.contains("uuid="), "a simulated device has none");
    let block = subject.malloc(5000, null_mut());
    let text = metrics_of(usize::MAX).1;
    assert_eq!(value(&text, "reserved_bytes", 0), 2 * MIB as i64);
    assert_eq!(value(&text, "allocated_bytes", 0), 5120);
    assert_eq!(metrics_of(1).0, CACHALOT_ERROR_STOPPED);
    subject.free(block);
}
