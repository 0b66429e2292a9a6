//! Writes snapshots of an allocator in parts or to a file.

use crate::c::instance::Instance;
use crate::c::status::{CACHALOT_ERROR_STOPPED, Status};
use cachalot_cuda::own_files::quietly;
use cachalot_snapshot::{Format, Stack, Taken, metrics};
use std::io::{self, Write};
use std::path::Path;

/// Most bytes of a part of the metrics.
const MOST_PART: usize = 64 << 10;

/// The reason why a snapshot was not completed.
pub(crate) enum Error {
    /// The callback of the program asked to stop.
    Stopped,
    /// The file or the buffer could not be written.
    Io(io::Error),
}

/// Writer that passes each part to a function of the program. The function returns whether to
/// continue.
struct Parts<F>(F);

impl<F: FnMut(&[u8]) -> bool> Write for Parts<F> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if (self.0)(part) { Ok(part.len()) } else { Err(io::ErrorKind::Other.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The contents of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Segments, blocks and traces.
    Whole,
    /// Segments and blocks.
    WithoutEvents,
}

/// Takes a snapshot of all devices.
pub(crate) fn take(instance: &Instance, contents: Contents) -> Taken<impl Fn(u32) -> Stack> {
    let stack = |site| instance.stacks.get(site);
    match contents {
        Contents::Whole => Taken::of(&instance.allocator, stack),
        Contents::WithoutEvents => Taken::without_events(&instance.allocator, stack),
    }
}

/// Writes a snapshot in parts. Stops as soon as `write` returns false.
pub(crate) fn write(
    instance: &Instance,
    contents: Contents,
    format: Format,
    mut write: impl FnMut(&[u8]) -> bool,
) -> Result<(), Error> {
    let mut stopped = false;
    let mut parts = Parts(|part: &[u8]| {
        stopped = stopped || !write(part);
        !stopped
    });
    let written = take(instance, contents).write(&mut parts, format);
    if stopped { Err(Error::Stopped) } else { written.map_err(Error::Io) }
}

/// Writes the metrics of all devices in parts. Stops as soon as `write` returns false.
pub(crate) fn write_metrics(instance: &Instance, mut write: impl FnMut(&[u8]) -> bool) -> Result<(), Status> {
    let text = metrics::of_allocator(&instance.allocator)?;
    let stopped = || Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop");
    text.as_bytes().chunks(MOST_PART).try_for_each(|part| if write(part) { Ok(()) } else { Err(stopped()) })
}

/// Writes a snapshot to a file. Without a format, the file name implies it.
pub(crate) fn write_file(
    instance: &Instance,
    contents: Contents,
    path: &Path,
    format: Option<Format>,
) -> io::Result<()> {
    let taken = take(instance, contents);
    quietly(|| taken.write_file(path, format.unwrap_or_else(|| Format::of(path))))
}
