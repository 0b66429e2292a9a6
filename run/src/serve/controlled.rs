//! The process as other processes see it: parked, woken and asked over the socket.

use crate::charge::DeviceCharge;
use crate::control::{ControlRefusal, Controlled, RefusalKind, Remainder, RemainderKind, SleepState, Status};
use crate::ledger::Kind;
use crate::serve::process::Process;
use crate::serve::program_memory::ProgramSums;
use crate::shared::time::milliseconds;
use cachalot_core::ParkReport;
use cachalot_cuda::CuResult;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

impl Controlled for Process {
    fn park(&self, timeout: Duration) -> Result<Status, ControlRefusal> {
        Self::park(self, timeout).map(|()| self.status())
    }

    fn wake(&self, timeout: Duration) -> Result<Status, ControlRefusal> {
        self.wake_within(timeout).map(|()| self.status()).map_err(|code| {
            let (kind, text) = match code {
                CuResult::OUT_OF_MEMORY => {
                    (RefusalKind::NoDeviceMemory, "the device does not have the memory".to_owned())
                }
                CuResult(code) => (RefusalKind::Driver, format!("the driver answers {code}")),
            };
            ControlRefusal::new(kind, text)
        })
    }

    fn snapshot(&self, file: &Path) -> Result<Status, ControlRefusal> {
        self.recorder.save(&self.contexts.all(), file).map(|()| self.status())
    }

    fn trim(&self, keep: u64) -> Result<Status, ControlRefusal> {
        let given = self.give_cache(keep);
        Ok(Status { given_bytes: Some(given), ..self.status() })
    }

    fn status(&self) -> Status {
        let group = self.options.group.as_ref().map(|group| group.name.clone());
        let Some((state, time, figures)) = self.sleep() else {
            let device_bytes = self.counts().held_bytes;
            return Status { group, device_bytes, stays_awake: true, ..Status::default() };
        };
        let memory = self.parkable();
        let charges = self.charge.all();
        Status {
            group,
            state,
            idle_ms: self.idle_time().map(milliseconds),
            awake_ms: if state == SleepState::Awake { milliseconds(time) } else { 0 },
            parked_bytes: memory.parked,
            device_bytes: memory.mapped + memory.ordinary,
            remaining: remaining(
                &charges,
                self.counts().held_bytes,
                &self.served_parkable(),
                self.program_sums(),
                state,
            ),
            devices: charges.iter().filter_map(|charge| charge.ledger()).map(|book| book.view().device).collect(),
            last_park: (figures.parks > 0).then_some(figures.last_park),
            last_wake: (figures.wakes > 0).then_some(figures.last_wake),
            parks: figures.parks,
            wakes: figures.wakes,
            last_error: figures.failure,
            ..Status::default()
        }
    }
}

/// Returns the memory that a park leaves on the devices, by reason. `held`: bytes that the
/// allocators hold.
fn remaining(
    charges: &[Arc<DeviceCharge>],
    held: u64,
    memory: &ParkReport,
    program: ProgramSums,
    state: SleepState,
) -> Vec<Remainder> {
    let mut by_kind = BTreeMap::new();
    for charge in charges {
        for object in charge.ledger().map(|book| book.view().objects).into_iter().flatten() {
            for kind in object.kinds {
                *by_kind.entry(kind.kind).or_insert(0) += kind.bytes;
            }
        }
    }
    // The book has the allocators' own pages, and separately what a park moves of the program's
    // memory and the rest of it.
    if let Some(pages) = by_kind.get_mut(&Kind::Pages) {
        *pages = pages.saturating_sub(held + program.awake + program.shared);
    }
    let booked = by_kind.into_iter().filter_map(|(kind, bytes)| Some((reason_of(kind)?, bytes)));
    // What a parked process keeps awake besides pinned pages is what the options say.
    let kept = if state == SleepState::Parked { memory.mapped.saturating_sub(memory.pinned) } else { 0 };
    let own = [
        (RemainderKind::Exported, program.shared),
        (RemainderKind::Pinned, memory.pinned),
        (RemainderKind::Plain, memory.ordinary),
        (RemainderKind::KeptAwake, kept),
    ];
    let mut sums = BTreeMap::new();
    booked.chain(own).for_each(|(what, bytes)| *sums.entry(what).or_insert(0) += bytes);
    sums.into_iter().filter(|&(_, bytes)| bytes > 0).map(|(what, bytes)| Remainder { what, bytes }).collect()
}

/// Returns why memory of a kind stays on the device. `None`: it does not, or is no memory of a
/// device.
fn reason_of(kind: Kind) -> Option<RemainderKind> {
    match kind {
        Kind::Segment | Kind::Served | Kind::Host | Kind::Spilled => None,
        Kind::Plain => Some(RemainderKind::Plain),
        Kind::Pages => Some(RemainderKind::Virtual),
        Kind::Pool => Some(RemainderKind::Pool),
        Kind::Array => Some(RemainderKind::Arrays),
        Kind::Managed => Some(RemainderKind::Managed),
        Kind::Context => Some(RemainderKind::Context),
        Kind::Module => Some(RemainderKind::Module),
        Kind::Graph => Some(RemainderKind::Graph),
        Kind::Other => Some(RemainderKind::Other),
    }
}
