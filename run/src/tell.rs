//! Messages for the program's user, on the standard error.

use cachalot_cuda::own_files::quietly;
use core::fmt;
use std::io::Write;

/// Writes a message. A message that cannot be written is left out: the request that it is about goes
/// on, and the macros of the standard library would panic.
pub(crate) fn tell(message: fmt::Arguments<'_>) {
    // At once, so that the messages of several threads and processes stay whole.
    let line = format!("cachalot: {message}\n");
    let _ = quietly(|| std::io::stderr().write_all(line.as_bytes()));
}
