//! What the driver answers where its documentation leaves it open: one table, kept equal to what driver 580 answered on
//! an H200 (`driver-probe` asks both). `CACHALOT_EMU_ANSWERS` and `emu_answer` change an entry.

use crate::code::{Answer, Code};
use std::collections::BTreeMap;

/// Name, default code, and the case.
const DEFAULTS: &[(&str, u32)] = &[
    // cuMemAlloc of 0 bytes.
    ("alloc_zero", 1),
    // cuMemFree of the null address.
    ("free_null", 0),
    // cuMemFree of an address that was never handed out, or was freed already.
    ("free_unknown", 1),
    // cuMemFree inside an allocation.
    ("free_interior", 1),
    // cuMemFree while another context than the allocation's is current.
    ("free_other_context", 0),
    // cuMemFree of an address that cuMemMap mapped.
    ("free_mapped", 1),
    // cuMemRelease of a handle that is not alive.
    ("release_unknown", 1),
    // cuMemMap over something mapped, or outside every reservation.
    ("map_taken", 1),
    // cuMemMap of another size than the handle's, or from inside it.
    ("map_part", 801),
    // cuMemUnmap of a range that is not inside a reservation.
    ("unmap_unreserved", 1),
    // cuMemUnmap of a part of a mapping.
    ("unmap_partial", 1),
    // cuMemUnmap of a range with nothing mapped in part of it; what is mapped there is unmapped.
    ("unmap_gap", 0),
    // cuMemSetAccess for a part of a mapping.
    ("access_partial", 1),
    // cuMemSetAccess for a range with nothing mapped in part of it.
    ("access_gap", 1),
    // cuMemAddressFree of a range with mappings in it.
    ("address_free_mapped", 1),
    // cuMemAddressFree with another base or size than reserved.
    ("address_free_unknown", 1),
    // cuMemAddressReserve of a size that is a multiple of 4 KiB but not of the granularity.
    ("reserve_unaligned", 1),
    // cuEventQuery and cuEventSynchronize of an event recorded in a capture under way, which it breaks.
    ("query_captured_event", 907),
    // cuEventQuery, cuEventSynchronize and cuStreamWaitEvent of an event recorded in a capture that is over or broken.
    ("query_stale_event", 1),
    // Any call with a stream handle that is not alive.
    ("stream_unknown", 400),
    // Any call with an event handle that is not alive.
    ("event_unknown", 400),
    // cuStreamBeginCapture on a stream that captures.
    ("begin_twice", 401),
    // cuStreamEndCapture on a stream that does not capture.
    ("end_idle", 401),
    // cuStreamBeginCapture on the legacy stream.
    ("begin_legacy", 900),
    // cuStreamSynchronize, cuStreamQuery and cuStreamGetId of a capturing stream, and cuCtxSynchronize of its context.
    ("wait_capturing", 900),
    // cuStreamWaitEvent on the legacy stream for an event recorded in a capture.
    ("legacy_wait_captured", 906),
    // cuGetProcAddress_v2 of a symbol that is not there, or is newer than asked for.
    ("proc_absent", 0),
    // cuDeviceCanAccessPeer between two devices: 1 for yes.
    ("can_access_peer", 1),
];

/// The table in force.
#[derive(Debug)]
pub(crate) struct Answers(BTreeMap<String, u32>);

impl Answers {
    /// The defaults with `changes` made.
    ///
    /// # Panics
    /// On a change to an entry that does not exist.
    pub(crate) fn new(changes: &BTreeMap<String, u32>) -> Self {
        let defaults = DEFAULTS.iter().map(|&(name, code)| (name.to_owned(), code)).collect();
        let mut answers = Self(defaults);
        for (name, &code) in changes {
            assert!(answers.set(name, code), "CACHALOT_EMU_ANSWERS has no {name:?}");
        }
        answers
    }

    /// Changes an entry; whether there is one of this name.
    pub(crate) fn set(&mut self, name: &str, code: u32) -> bool {
        self.0.get_mut(name).is_some_and(|entry| {
            *entry = code;
            true
        })
    }

    /// The number of an entry.
    ///
    /// # Panics
    /// On a name that is not in the table, which is a mistake in this crate.
    pub(crate) fn number(&self, name: &str) -> u32 {
        *self.0.get(name).unwrap_or_else(|| panic!("no answer {name:?}"))
    }

    /// The entry as an outcome: go on, or answer its code.
    ///
    /// # Errors
    /// The entry's code, unless it is `SUCCESS`.
    pub(crate) fn outcome(&self, name: &str) -> Answer<()> {
        match Code(self.number(name)) {
            Code::SUCCESS => Ok(()),
            code => Err(code),
        }
    }
}
