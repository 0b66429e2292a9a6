//! The text of metrics.

use super::figures::{DeviceFigures, Figures, PlaceFigures};
use cachalot_core::Tag;
use std::fmt::Write as _;

/// The kind of a family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A present value.
    Gauge,
    /// A sum that only grows.
    Counter,
    /// Labels without a value.
    Info,
}

/// Metrics of one name.
pub(super) struct Family<'a> {
    /// The name, which ends with the unit, if there is one.
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    pub(super) unit: &'static str,
    /// A sentence.
    pub(super) help: &'static str,
}

/// The text of metrics, as it is written family by family.
///
/// ```
/// let mut text = cachalot_snapshot::metrics::MetricsText::default();
/// text.labelled("held_bytes", "bytes", "Memory held.", &[(vec![("name", "a".to_owned())], 7)]);
/// assert!(text.end().ends_with("held_bytes{name=\"a\"} 7\n# EOF\n"));
/// ```
#[derive(Default, Debug)]
pub struct MetricsText(String);

/// Names and values of labels, and a value.
pub type MetricsSample<'a> = (Vec<(&'a str, String)>, i64);

/// The families of a device: name, unit, help, figure.
type OfDevice = (&'static str, &'static str, &'static str, fn(&DeviceFigures) -> u64);

const DEVICE_FAMILIES: [OfDevice; 9] = [
    ("cachalot_reserved_bytes", "bytes", "Memory held from the device.", |device| device.reserved),
    ("cachalot_allocated_bytes", "bytes", "Memory of blocks in use.", |device| device.allocated),
    ("cachalot_pending_bytes", "bytes", "Memory freed by the program, still used by streams.", |device| device.pending),
    ("cachalot_requested_bytes", "bytes", "Bytes requested for the blocks in use.", |device| device.requested),
    ("cachalot_free_bytes", "bytes", "Memory of free blocks in the cache.", |device| device.free),
    ("cachalot_largest_free_bytes", "bytes", "Memory of the largest free block.", |device| device.largest_free),
    ("cachalot_releasable_bytes", "bytes", "Memory of wholly free segments.", |device| device.releasable),
    ("cachalot_held_segments", "segments", "Segments held from the device.", |device| device.segments),
    ("cachalot_allocated_blocks", "blocks", "Blocks in use.", |device| device.blocks),
];

/// The families of a pool and stream: name, help, figure. All are bytes.
type OfPlace = (&'static str, &'static str, fn(&PlaceFigures) -> u64);

const PLACE_FAMILIES: [OfPlace; 3] = [
    ("cachalot_pool_reserved_bytes", "Memory held from the device, by pool and stream.", |place| place.reserved),
    ("cachalot_pool_allocated_bytes", "Memory of blocks in use, by pool and stream.", |place| place.allocated),
    ("cachalot_pool_pending_bytes", "Memory still used by streams, by pool and stream.", |place| place.pending),
];

impl MetricsText {
    /// Writes the gauges of all figures.
    pub(super) fn gauges(&mut self, figures: &Figures) {
        for (name, unit, help, of) in DEVICE_FAMILIES {
            let values: Vec<(i64, i64)> =
                figures.devices.iter().map(|(&device, figures)| (device, of(figures).cast_signed())).collect();
            self.by_device(&Family { name, kind: Kind::Gauge, unit, help }, &values);
        }
        for (name, help, of) in PLACE_FAMILIES {
            self.head(&Family { name, kind: Kind::Gauge, unit: "bytes", help });
            for (device, figures) in &figures.devices {
                for (((first, second), stream), place) in &figures.places {
                    let labels = format!("device=\"{device}\",pool=\"{first}.{second}\",stream=\"{stream:x}\"");
                    self.line(format_args!("{name}{{{labels}}} {}", of(place)));
                }
            }
        }
    }

    /// Writes a family with a value for each device.
    pub(super) fn by_device(&mut self, family: &Family<'_>, values: &[(i64, i64)]) {
        self.head(family);
        let suffix = if family.kind == Kind::Counter { "_total" } else { "" };
        for (device, value) in values {
            self.line(format_args!("{}{suffix}{{device=\"{device}\"}} {value}", family.name));
        }
    }

    /// Writes a family with a value for each tag of each device. Writes nothing without values.
    pub(super) fn by_tag(&mut self, family: &Family<'_>, values: &[(i64, Tag, u64)]) {
        if values.is_empty() {
            return;
        }
        self.head(family);
        let suffix = if family.kind == Kind::Counter { "_total" } else { "" };
        for (device, Tag(tag), value) in values {
            self.line(format_args!("{}{suffix}{{device=\"{device}\",tag=\"{tag}\"}} {value}", family.name));
        }
    }

    /// Writes a family of gauges with labels. Writes nothing without samples. `name` ends with
    /// `unit`.
    pub fn labelled(
        &mut self,
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        samples: &[MetricsSample<'_>],
    ) {
        if samples.is_empty() {
            return;
        }
        self.head(&Family { name, kind: Kind::Gauge, unit, help });
        for (labels, value) in samples {
            self.line(format_args!("{name}{{{}}} {value}", labels_of(labels)));
        }
    }

    /// Writes a family of labels, with one set of names and values for each sample.
    pub(super) fn infos(&mut self, name: &str, help: &'static str, samples: &[Vec<(&str, String)>]) {
        self.head(&Family { name, kind: Kind::Info, unit: "", help });
        for sample in samples {
            self.line(format_args!("{name}_info{{{}}} 1", labels_of(sample)));
        }
    }

    /// Writes the last line, and returns the text.
    #[must_use]
    pub fn end(mut self) -> String {
        self.line(format_args!("# EOF"));
        self.0
    }

    fn head(&mut self, family: &Family<'_>) {
        let Family { name, kind, unit, help } = *family;
        debug_assert!(name.ends_with(unit) && !name.ends_with("_total"), "{name} is no name of a family of {unit}");
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Info => "info",
        };
        self.line(format_args!("# TYPE {name} {kind}"));
        if !unit.is_empty() {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
        self.line(format_args!("# HELP {name} {help}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A string takes every line.
        let _ = writeln!(self.0, "{line}");
    }
}

/// Returns labels with their values.
fn labels_of(labels: &[(&str, String)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
    labels.join(",")
}

/// Returns the value of a label with the escapes of `OpenMetrics`.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let mut text = MetricsText::default();
        text.infos("of_test", "A test.", &[vec![("a", "\\ \" \n n".to_owned()), ("b", String::new())]]);
        let wanted =
            "# TYPE of_test info\n# HELP of_test A test.\nof_test_info{a=\"\\\\ \\\" \\n n\",b=\"\"} 1\n# EOF\n";
        assert_eq!(text.end(), wanted);
    }
}
