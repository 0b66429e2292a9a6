//! Snapshots of an allocator, handed out in parts.

use crate::instance::Instance;
use cachalot_snapshot::{Format, Stack, Taken};
use std::io::{self, Write};
use std::path::Path;

/// Why a snapshot could not be written.
pub(crate) enum Error {
    /// The program asked to stop.
    Stopped,
    /// It could not be written.
    Io(io::Error),
}

/// Hands what is written to a function of the program, which says whether to go on.
struct Parts<F>(F);

impl<F: FnMut(&[u8]) -> bool> Write for Parts<F> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if (self.0)(part) { Ok(part.len()) } else { Err(io::ErrorKind::Other.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Looks at everything.
fn take(instance: &Instance) -> Taken<impl Fn(u32) -> Stack> {
    Taken::of(&instance.allocator, |site| instance.stacks.get(site))
}

/// Writes a snapshot in parts. `write` says whether to go on.
pub(crate) fn write(instance: &Instance, format: Format, mut write: impl FnMut(&[u8]) -> bool) -> Result<(), Error> {
    let mut stopped = false;
    let mut parts = Parts(|part: &[u8]| {
        stopped = stopped || !write(part);
        !stopped
    });
    let written = take(instance).write(&mut parts, format);
    if stopped { Err(Error::Stopped) } else { written.map_err(Error::Io) }
}

/// Writes a snapshot to a file, in the format that its name asks for.
pub(crate) fn write_file(instance: &Instance, path: &Path) -> io::Result<()> {
    take(instance).write_file(path, Format::of(path))
}
