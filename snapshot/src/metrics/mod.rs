//! Metrics in the text form of `OpenMetrics` 1.0: of a snapshot, and of a living allocator.
//!
//! Every family has its type, unit and help. The text ends with `# EOF`. A pool is named
//! `0.0` as in a trace, a stream by its number in hexadecimal, and pinned host memory is the
//! device −1.
//!
//! Source of the form: the `OpenMetrics` specification, version 1.0.0, section 3 (text format).

mod figures;
mod text;

use crate::model::Snapshot;
use cachalot_core::{
    Allocator, DeviceIndex, DeviceMemory, Error, Lock, ReclaimStats, Stats, Storage, TuneReport, TuneStage,
};
use figures::Figures;
use text::{Family, Kind, MetricsText};

/// The media type of the text, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the metrics of a snapshot at its end.
pub fn of_snapshot(snapshot: &Snapshot) -> String {
    let mut figures = Figures::default();
    for segment in snapshot.segments.iter().chain(snapshot.host_segments.iter().flatten()) {
        figures.add_segment(segment);
    }
    let mut text = MetricsText::default();
    text.gauges(&figures);
    let events = (0..).zip(&snapshot.device_traces).filter(|(_, trace)| !trace.is_empty());
    let events: Vec<(i64, i64)> = events.map(|(device, trace)| (device, trace.len() as i64)).collect();
    let recorded = Family {
        name: "cachalot_recorded_events",
        kind: Kind::Gauge,
        unit: "events",
        help: "Events in the recorded history of the snapshot.",
    };
    text.by_device(&recorded, &events);
    text.end()
}

/// Returns the metrics of every device of an allocator. Sums over blocks are of one reading of the
/// heaps, one heap after another; peaks and totals are read afterwards. Never calls the device.
///
/// # Errors
/// None of a device that the allocator has.
pub fn of_allocator<D: DeviceMemory, R: Lock, S: Storage>(allocator: &Allocator<D, R, S>) -> Result<String, Error> {
    let mut figures = Figures::default();
    for segment in allocator.snapshot() {
        figures.add_taken(&segment);
    }
    let mut devices = Vec::new();
    for device in (0..allocator.device_count()).map(DeviceIndex) {
        figures.devices.entry(device.0.into()).or_default();
        devices.push((i64::from(device.0), allocator.stats(device)?));
    }
    let mut text = MetricsText::default();
    text.gauges(&figures);
    for (family, of) in families() {
        let values: Vec<(i64, i64)> = devices.iter().map(|(device, stats)| (*device, of(stats))).collect();
        text.by_device(&family, &values);
    }
    let (mut limits, mut leaked) = (Vec::new(), Vec::new());
    for device in (0..allocator.device_count()).map(DeviceIndex) {
        if let Some(limit) = allocator.limit(device)? {
            limits.push((i64::from(device.0), limit.cast_signed()));
        }
        leaked.push((i64::from(device.0), allocator.leaked_bytes(device)?.cast_signed()));
    }
    for (family, of) in reclaim_families() {
        let mut values = Vec::new();
        for device in (0..allocator.device_count()).map(DeviceIndex) {
            // Only where the setting is on.
            if allocator.config(device)?.reclaim().is_some() {
                values.push((i64::from(device.0), of(&allocator.pages(device)?.reclaim_stats()?).cast_signed()));
            }
        }
        text.by_device(&family, &values);
    }
    text.by_device(&gauge("cachalot_limit_bytes", "bytes", "Most memory that may be held from the device."), &limits);
    text.by_device(&gauge("cachalot_leaked_bytes", "bytes", "Memory whose release failed."), &leaked);
    let mut tuned = Vec::new();
    for device in (0..allocator.device_count()).map(DeviceIndex) {
        let report = allocator.tuning(device)?.report()?;
        // Devices that are not tuned have no figures.
        tuned.extend((report.stage != TuneStage::Off).then_some((i64::from(device.0), report)));
    }
    for (family, of) in tuning().into_iter().filter(|_| !tuned.is_empty()) {
        let values: Vec<(i64, i64)> =
            tuned.iter().map(|(device, report)| (*device, of(report).cast_signed())).collect();
        text.by_device(&family, &values);
    }
    Ok(text.end())
}

/// The figure of a family, from the statistics of a device.
type OfStats = fn(&Stats) -> i64;

/// Returns the families of the statistics.
fn families() -> [(Family, OfStats); 9] {
    [
        (gauge("cachalot_peak_reserved_bytes", "bytes", "Most memory held from the device."), |stats| {
            stats.reserved_bytes().peak
        }),
        (gauge("cachalot_peak_allocated_bytes", "bytes", "Most memory of blocks in use."), |stats| {
            stats.allocated_bytes().peak
        }),
        (counter("cachalot_served_blocks", "blocks", "Blocks handed to the program."), |stats| {
            stats.allocations().allocated
        }),
        (counter("cachalot_freed_blocks", "blocks", "Blocks freed by the program."), |stats| stats.allocations().freed),
        (counter("cachalot_served_bytes", "bytes", "Bytes of the blocks handed to the program."), |stats| {
            stats.allocated_bytes().allocated
        }),
        (
            counter("cachalot_device_allocations", "allocations", "Calls that obtained memory from the device."),
            |stats| stats.device_allocs().cast_signed(),
        ),
        (counter("cachalot_device_frees", "frees", "Calls that gave memory back to the device."), |stats| {
            stats.device_frees().cast_signed()
        }),
        (counter("cachalot_allocation_retries", "retries", "Requests that emptied the cache first."), |stats| {
            stats.alloc_retries().cast_signed()
        }),
        (counter("cachalot_out_of_memory_failures", "failures", "Requests that failed for want of memory."), |stats| {
            stats.ooms().cast_signed()
        }),
    ]
}

/// The figure of a family, from what `tune:auto` has done on a device.
type OfTuning = fn(&TuneReport) -> u64;

/// Returns the families of `tune:auto`.
fn tuning() -> [(Family, OfTuning); 6] {
    [
        (counter("cachalot_tune_searches", "searches", "Searches for settings that ended."), |tuned| tuned.searches),
        (counter("cachalot_tune_switches", "switches", "Settings that came into force."), |tuned| tuned.switches),
        (counter("cachalot_tune_reversals", "reversals", "Settings that were taken back."), |tuned| tuned.taken_back),
        (gauge("cachalot_tune_before_bytes", "bytes", "Peak of reserved memory before the latest switch."), |tuned| {
            tuned.before_bytes
        }),
        (gauge("cachalot_tune_after_bytes", "bytes", "Peak of reserved memory in the latest trial."), |tuned| {
            tuned.after_bytes
        }),
        (gauge("cachalot_tune_retired_bytes", "bytes", "Segments that wait for the device to go back."), |tuned| {
            tuned.retired_bytes
        }),
    ]
}

/// The figure of a family, from what `reclaim:auto` has done on a device.
type OfReclaim = fn(&ReclaimStats) -> u64;

/// Returns the families of `reclaim:auto`.
fn reclaim_families() -> [(Family, OfReclaim); 8] {
    [
        (counter("cachalot_reclaimed_bytes", "bytes", "Idle memory given back to the device."), |stats| {
            stats.given_back
        }),
        (
            counter(
                "cachalot_reclaimed_obtained_again_bytes",
                "bytes",
                "Memory obtained in place of memory given back.",
            ),
            |stats| stats.obtained_again,
        ),
        (
            counter("cachalot_reclaimed_too_early_units", "units", "Segments and pages that had better been kept."),
            |stats| stats.too_early_units,
        ),
        (
            counter("cachalot_reclaim_driver_microseconds", "microseconds", "Time of the calls that gave memory back."),
            |stats| stats.driver_us,
        ),
        (gauge("cachalot_idle_bytes", "bytes", "Idle memory at the latest look."), |stats| stats.idle),
        (
            gauge("cachalot_idle_needed_soon_bytes", "bytes", "Idle memory that is expected to be needed soon."),
            |stats| stats.needed_soon,
        ),
        (gauge("cachalot_idle_busy_bytes", "bytes", "Idle memory that waits for the device's work."), |stats| {
            stats.busy
        }),
        (gauge("cachalot_idle_unpaid_bytes", "bytes", "Idle memory that waits for budget."), |stats| stats.unpaid),
    ]
}

/// Creates a family of present values.
const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, unit, help }
}

/// Creates a family of sums since the allocator was created, or since its accumulated statistics
/// were reset.
const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, unit, help }
}
