//! Writes the snapshot at the end of replayed programs, as a file for torch's tools.

use crate::replay::End;
use cachalot_core::DeviceIndex;
use cachalot_snapshot::{Format, Stack, Taken};
use std::io;
use std::path::Path;

/// Writes the ends of a record's programs, each as a device: as JSON for the extension `.json`,
/// otherwise as a pickle.
///
/// # Errors
/// The errors of the file system.
pub fn write(ends: Vec<End>, file: &Path) -> io::Result<()> {
    let (mut segments, mut traces, mut pools, mut config) = (Vec::new(), Vec::new(), Vec::new(), None);
    for (device, end) in (0..).map(DeviceIndex).zip(ends) {
        segments.extend(end.segments.into_iter().map(|mut segment| {
            segment.device = device;
            segment
        }));
        traces.push(end.events);
        pools.push(end.pools);
        config.get_or_insert(end.config);
    }
    // By device first, because programs of several devices may have used the same addresses.
    segments.sort_by_key(|segment| (segment.device, segment.address));
    let taken = Taken::new(segments, traces, &config.unwrap_or_default(), |_| Stack::default());
    taken.with_pools(pools).write_file(file, Format::of(file))
}
