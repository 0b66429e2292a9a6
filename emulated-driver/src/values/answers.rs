//! Answers of the driver in cases left open by the documentation. The table equals the answers of
//! driver 580 on an H200 (`driver-probe` asks both). `CACHALOT_EMU_ANSWERS` and `emu_answer` change
//! an entry.

use crate::values::code::{Answer, Code};
use std::collections::BTreeMap;

/// Name and default code of each case.
const DEFAULTS: &[(&str, u32)] = &[
    // cuMemAlloc of 0 bytes.
    ("alloc_zero", 1),
    // cuMemFree of the null address.
    ("free_null", 0),
    // cuMemFree of an address never returned by an allocation, or freed already.
    ("free_unknown", 1),
    // cuMemFree inside an allocation.
    ("free_interior", 1),
    // cuMemFree while another context than the allocation's is current.
    ("free_other_context", 0),
    // cuMemFree of an address inside a mapping of cuMemMap.
    ("free_mapped", 1),
    // cuMemRelease of a dead handle.
    ("release_unknown", 1),
    // cuMemMap over something mapped, or outside every reservation.
    ("map_taken", 1),
    // cuMemMap of another size than the handle's, or from inside the handle's memory.
    ("map_part", 801),
    // cuMemUnmap of a range outside every reservation.
    ("unmap_unreserved", 1),
    // cuMemUnmap of a part of a mapping.
    ("unmap_partial", 1),
    // cuMemUnmap of a range with a gap. The mappings in the range are unmapped.
    ("unmap_gap", 0),
    // cuMemSetAccess for a part of a mapping.
    ("access_partial", 1),
    // cuMemSetAccess for a range with a gap.
    ("access_gap", 1),
    // cuMemExportToShareableHandle of a dead handle. No real driver was asked this.
    ("export_unknown", 1),
    // cuMemExportToShareableHandle of memory created without a type of handle.
    ("export_untyped", 1),
    // cuMemImportFromShareableHandle of a descriptor that is not open, or of another kind.
    ("import_unknown", 999),
    // cuMemAddressFree of a range with mappings.
    ("address_free_mapped", 1),
    // cuMemAddressFree with another base or size than reserved.
    ("address_free_unknown", 1),
    // cuMemAddressReserve of a multiple of 4 KiB below the granularity.
    ("reserve_unaligned", 1),
    // cuEventQuery and cuEventSynchronize of an event recorded in a running capture, which
    // breaks the capture.
    ("query_captured_event", 907),
    // cuEventQuery, cuEventSynchronize and cuStreamWaitEvent of an event recorded in an ended or
    // broken capture.
    ("query_stale_event", 1),
    // Any call with a dead stream handle.
    ("stream_unknown", 400),
    // Any call with a dead event handle.
    ("event_unknown", 400),
    // cuStreamBeginCapture on a capturing stream.
    ("begin_twice", 401),
    // cuStreamEndCapture on a stream without a capture.
    ("end_idle", 401),
    // cuStreamBeginCapture on the legacy stream.
    ("begin_legacy", 900),
    // cuStreamSynchronize, cuStreamQuery and cuStreamGetId of a capturing stream, and
    // cuCtxSynchronize of the stream's context.
    ("wait_capturing", 900),
    // cuStreamWaitEvent on the legacy stream for an event recorded in a capture.
    ("legacy_wait_captured", 906),
    // cuGetProcAddress_v2 of an absent symbol, or of a symbol newer than the requested version.
    ("proc_absent", 0),
    // cuDeviceCanAccessPeer between two devices: 1 for yes.
    ("can_access_peer", 1),
];

/// The active answers.
#[derive(Debug)]
pub(crate) struct Answers(BTreeMap<String, u32>);

impl Answers {
    /// Returns the defaults with `changes` applied.
    ///
    /// # Panics
    /// On a change of an unknown entry.
    pub(crate) fn new(changes: &BTreeMap<String, u32>) -> Self {
        let defaults = DEFAULTS.iter().map(|&(name, code)| (name.to_owned(), code)).collect();
        let mut answers = Self(defaults);
        for (name, &code) in changes {
            assert!(answers.set(name, code), "CACHALOT_EMU_ANSWERS has no {name:?}");
        }
        answers
    }

    /// Changes an entry. Returns false for an unknown name.
    pub(crate) fn set(&mut self, name: &str, code: u32) -> bool {
        self.0.get_mut(name).is_some_and(|entry| {
            *entry = code;
            true
        })
    }

    /// Returns the number of an entry.
    ///
    /// # Panics
    /// On an unknown name, which is a mistake in the crate.
    pub(crate) fn number(&self, name: &str) -> u32 {
        *self.0.get(name).unwrap_or_else(|| panic!("no answer {name:?}"))
    }

    /// Returns the entry as an outcome: success, or the code as an error.
    ///
    /// # Errors
    /// The entry's code, unless the code is `SUCCESS`.
    pub(crate) fn outcome(&self, name: &str) -> Answer<()> {
        match Code(self.number(name)) {
            Code::SUCCESS => Ok(()),
            code => Err(code),
        }
    }
}
