//! Metrics in the text form of `OpenMetrics` 1.0: of a snapshot, and of a living allocator.
//!
//! Every family has its type and help, and a unit unless it is an `info`. The text ends with
//! `# EOF`. A pool is named `0.0` as in a trace, a stream by its number in hexadecimal, and pinned
//! host memory is the device −1.
//!
//! Source of the form: the `OpenMetrics` specification, version 1.0.0, section 3 (text format).

mod figures;
mod text;

#[cfg(feature = "files")]
use crate::model::Snapshot;
use cachalot_core::{
    Allocator, DeviceIndex, DeviceMemory, Error, Lock, Segments, Statistic, StatisticKind, Stats, Storage, TagUse,
};
use figures::Figures;
use text::{Family, Kind};

pub use text::{MetricsSample, MetricsText};

/// The media type of the text, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the metrics of a snapshot at its end.
#[cfg(feature = "files")]
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
        devices.push((i64::from(device.0), allocator.stats(device)?.totals()));
    }
    let mut text = MetricsText::default();
    build_and_devices(&mut text, allocator)?;
    text.gauges(&figures);
    for (family, of) in families() {
        let values: Vec<(i64, i64)> = devices.iter().map(|(device, stats)| (*device, of(stats))).collect();
        text.by_device(&family, &values);
    }
    let mut limits = Vec::new();
    let mut readings = Vec::new();
    let mut dropped = Vec::new();
    for device in (0..allocator.device_count()).map(DeviceIndex) {
        let number = i64::from(device.0);
        limits.extend(allocator.settings(device)?.limit().map(|limit| (number, limit.cast_signed())));
        readings.push((number, allocator.stats(device)?.reading()));
        let history = allocator.trace(device)?.extent();
        dropped.extend((history.capacity > 0).then_some((number, history.dropped.cast_signed())));
    }
    text.by_device(&gauge("cachalot_limit_bytes", "bytes", "Most memory that may be held from the device."), &limits);
    if !dropped.is_empty() {
        let help = "First events that the recorded history no longer has.";
        text.by_device(&gauge("cachalot_dropped_events", "events", help), &dropped);
    }
    for statistic in Statistic::ALL {
        // A setting that is off has no figures.
        let in_use = readings.iter().filter(|(_, reading)| reading.is_in_use(statistic));
        let values: Vec<_> = in_use.map(|(device, of)| (*device, of.value(statistic).cast_signed())).collect();
        if !values.is_empty() {
            let kind = if statistic.kind == StatisticKind::Counter { Kind::Counter } else { Kind::Gauge };
            let name = &statistic.metric().to_string();
            text.by_device(&Family { name, kind, unit: statistic.unit, help: statistic.text }, &values);
        }
    }
    by_tag(&mut text, allocator)?;
    Ok(text.end())
}

/// The figure of a family, from what a tag holds. `None` leaves the tag out.
type OfTag = fn(&TagUse) -> Option<u64>;

/// Writes the families of tags.
fn by_tag<D: DeviceMemory, R: Lock, S: Storage>(
    text: &mut MetricsText,
    allocator: &Allocator<D, R, S>,
) -> Result<(), Error> {
    let mut tags = Vec::new();
    for device in (0..allocator.device_count()).map(DeviceIndex) {
        let mut last = None;
        let of_device = allocator.tags(device)?;
        while let Some(tag) = of_device.next(last) {
            // A tag whose last pool is gone since has no figures.
            if let Ok(held) = of_device.held(tag) {
                tags.push((i64::from(device.0), tag, held));
            }
            last = Some(tag);
        }
    }
    let families: [(Family<'_>, OfTag); 6] = [
        (gauge("cachalot_tag_charge_bytes", "bytes", "Memory held from the device by the pools of a tag."), |held| {
            Some(held.charge)
        }),
        (gauge("cachalot_tag_live_bytes", "bytes", "Memory of blocks in use, by tag."), |held| Some(held.live)),
        (gauge("cachalot_tag_max_bytes", "bytes", "Most memory that the pools of a tag may hold."), |held| {
            held.limits?.max
        }),
        (gauge("cachalot_tag_low_bytes", "bytes", "Memory of a tag that goes back for nobody else."), |held| {
            held.limits.map(|limits| limits.low)
        }),
        (
            counter("cachalot_tag_refused_requests", "requests", "Requests refused because of the tag's limit."),
            |held| held.limits.map(|_| held.refusals),
        ),
        (counter("cachalot_tag_given_bytes", "bytes", "Memory that went back because of limits of tags."), |held| {
            held.limits.map(|_| held.given)
        }),
    ];
    for (family, of) in families {
        let values: Vec<_> = tags.iter().filter_map(|(device, tag, held)| Some((*device, *tag, of(held)?))).collect();
        text.by_tag(&family, &values);
    }
    Ok(())
}

/// Writes the version of the library, and the active settings and the GPU of every device.
fn build_and_devices<D: DeviceMemory, R: Lock, S: Storage>(
    text: &mut MetricsText,
    allocator: &Allocator<D, R, S>,
) -> Result<(), Error> {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    text.infos("cachalot_build", "Version of cachalot.", &[version]);
    let mut devices = Vec::new();
    for device in (0..allocator.device_count()).map(DeviceIndex) {
        let config = allocator.settings(device)?.config();
        let mut labels = vec![
            ("device", device.0.to_string()),
            ("policy", config.policy_name().to_owned()),
            ("settings", config.to_string()),
        ];
        let uuid = allocator.device(device).and_then(Segments::uuid);
        labels.extend(uuid.map(|uuid| ("uuid", hyphenated(uuid))));
        devices.push(labels);
    }
    text.infos("cachalot_device", "Policy, active settings and UUID of the GPU.", &devices);
    Ok(())
}

/// Returns a UUID as `nvidia-smi -L` prints it after `GPU-` or `MIG-`.
fn hyphenated(uuid: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-")
}

/// The figure of a family, from the statistics of a device.
type OfStats = fn(&Stats) -> i64;

/// Returns the families of the statistics.
fn families() -> [(Family<'static>, OfStats); 9] {
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
        (
            counter("cachalot_out_of_memory_failures", "failures", "Requests that failed because memory ran out."),
            |stats| stats.ooms().cast_signed(),
        ),
    ]
}

/// Creates a family of present values.
const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Family<'static> {
    Family { name, kind: Kind::Gauge, unit, help }
}

/// Creates a family of sums since the allocator was created, or since its accumulated statistics
/// were reset.
const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Family<'static> {
    Family { name, kind: Kind::Counter, unit, help }
}
