//! The snapshot that replayed programs end in, as a file for torch's tools.

use crate::replay::End;
use cachalot_core::DeviceIndex;
use cachalot_snapshot::{Format, Stack, Taken};
use std::io;
use std::path::Path;

/// Writes the ends of the programs of one record, each as a device: as JSON if the file's name ends in `.json`, else as a pickle.
///
/// # Errors
/// Those of the file system.
pub fn write(ends: Vec<End>, file: &Path) -> io::Result<()> {
    let (mut segments, mut traces, mut config) = (Vec::new(), Vec::new(), None);
    for (device, end) in (0..).map(DeviceIndex).zip(ends) {
        segments.extend(end.segments.into_iter().map(|mut segment| {
            segment.device = device;
            segment
        }));
        traces.push(end.events);
        config.get_or_insert(end.config);
    }
    // By device first: programs of several devices may have had the same addresses.
    segments.sort_by_key(|segment| (segment.device, segment.address));
    Taken::new(segments, traces, &config.unwrap_or_default(), |_| Stack::default()).write_file(file, Format::of(file))
}
