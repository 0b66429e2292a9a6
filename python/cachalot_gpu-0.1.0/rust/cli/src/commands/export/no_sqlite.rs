//! The export to a database in builds without the feature `sqlite`.

use cachalot_snapshot::Snapshot;
use std::io;
use std::path::Path;

/// Says what to build.
pub(super) fn write(_: &Path, _: &Snapshot, _: &str) -> io::Result<()> {
    Err(io::Error::other("this build has no SQLite: build the command with its feature `sqlite`"))
}
