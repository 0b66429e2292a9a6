//! The end of the process: idle threads end, and the leak report is written if asked for.

use crate::process::latch;
use crate::state::driver::driver;
use crate::state::{report, threads};
use crate::values::config::Manner;
use std::io::Write;
use std::path::Path;

/// Ends the driver at the exit of the process. The handler for `atexit`.
pub(crate) extern "C" fn at_exit() {
    if latch::is_ready() {
        let how = end();
        latch::tear_down(how);
    }
}

/// Writes the leak report if asked for, and ends the idle threads.
/// Returns the manner of the teardown.
fn end() -> Manner {
    threads::end_all(driver());
    let mut state = driver().state.lock();
    if let Some(holdings) = state.holdings.take() {
        holdings.end();
    }
    if let Some(place) = state.config.leaks.clone() {
        let text = report::to_json(&mut state).to_string();
        if place == "stderr" {
            eprintln!("{text}");
        } else if let Err(why) = cachalot_atomic_file::write(Path::new(&place), |to| to.write_all(text.as_bytes())) {
            eprintln!("CACHALOT_EMU_LEAKS: {place}: {why}");
        }
    }
    state.config.teardown
}
