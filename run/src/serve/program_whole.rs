//! Memory that the program maps by itself, from several pieces back to one handle.
//!
//! A few calls of the driver take one handle, or answer for the memory behind one handle: exports,
//! bindings to multicast objects, handles of address ranges, and calls for a part of a mapping.
//! Memory that has woken in pieces is parked and woken once before such a call, and every later
//! wake creates the memory whole.

use crate::control::{ControlRefusal, RefusalKind};
use crate::serve::process::Process;
use cachalot_cuda::CuResult;
use cachalot_cuda::log;
use std::time::{Duration, Instant};

/// How long a pause lasts while another thread parks or wakes.
const PAUSE: Duration = Duration::from_micros(200);

impl Process {
    /// Has the memory of tokens whole from now on. Memory in pieces is parked and woken, which
    /// waits for all work up to the time that a wake may take. The thread is inside no call that
    /// uses memory.
    ///
    /// # Errors
    /// The code for the caller, where the memory cannot be parked or woken now. One line is told
    /// then.
    pub(super) fn make_whole(&self, tokens: &[u64]) -> Result<(), CuResult> {
        let Some(sleeping) = self.sleeping.as_ref().filter(|_| !tokens.is_empty()) else { return Ok(()) };
        self.program.keep_whole(tokens);
        let end = Instant::now() + sleeping.wake_patience();
        let parked = loop {
            // A wake that started before the memory was to be whole may have brought it back in
            // pieces.
            drop(self.enter()?);
            if !self.program.is_any_divided(tokens) {
                return Ok(());
            }
            match self.park_for_whole(end.saturating_duration_since(Instant::now())) {
                Err(refusal) if refusal.kind == RefusalKind::Busy && Instant::now() < end => std::thread::sleep(PAUSE),
                parked => break parked,
            }
        };
        if let Err(refusal) = parked {
            log::warning(format_args!("memory that woke in pieces is needed whole, and a call fails: {refusal}"));
            return Err(code_of(refusal.kind));
        }
        drop(self.enter()?);
        // The driver may have kept a piece.
        if self.program.is_any_divided(tokens) { Err(CuResult::UNKNOWN) } else { Ok(()) }
    }

    /// Parks the memory, unless a stream captures: work of a capture ends with the capture only.
    fn park_for_whole(&self, patience: Duration) -> Result<(), ControlRefusal> {
        if self.frees.is_capturing() {
            return Err(ControlRefusal::new(RefusalKind::Capturing, "a stream captures a graph"));
        }
        self.park(patience)
    }
}

/// Returns the driver's code for a refusal to park.
fn code_of(kind: RefusalKind) -> CuResult {
    match kind {
        RefusalKind::Capturing => CuResult::STREAM_CAPTURE_UNSUPPORTED,
        RefusalKind::NeverIdle | RefusalKind::Busy => CuResult::NOT_READY,
        RefusalKind::NoHostMemory | RefusalKind::NoFileSpace | RefusalKind::NoDeviceMemory => CuResult::OUT_OF_MEMORY,
        _ => CuResult::NOT_SUPPORTED,
    }
}
