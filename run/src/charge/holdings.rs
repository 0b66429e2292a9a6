//! The memory that the driver has given to the process, by kind and name.

use super::DeviceCharge;
use crate::ledger::Kind;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::CuContext;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that the driver has given to the process, by kind and by address or handle. Charged and
/// booked until the driver has it back.
#[derive(Default, Debug)]
pub struct Holdings(Mutex<HashMap<(Kind, u64), Holding>>);

/// Memory of a device, as a call of the driver gives it.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The device's charge.
    pub charge: Arc<DeviceCharge>,
    /// The kind in the book.
    pub kind: Kind,
    /// The bytes taken from the device.
    pub bytes: u64,
    /// The context that the memory goes with, null for memory of a device.
    pub context: CuContext,
}

impl Holding {
    /// Reserves the bytes: of the limit of the device, or of the memory of the host that `spill`
    /// allows.
    fn reserve(&self) -> Result<(), CuResult> {
        if self.kind == Kind::Spilled { self.charge.host.reserve(self.bytes) } else { self.charge.reserve(self.bytes) }
    }

    /// Gives the bytes back.
    fn give_back(&self) {
        if self.kind == Kind::Spilled {
            self.charge.host.give_back(self.bytes);
        } else {
            self.charge.give_back(self.bytes);
        }
    }
}

impl Holdings {
    /// Makes a call of the driver for memory, and charges the bytes under the name that `name`
    /// finds in the answer: an address or a handle.
    ///
    /// # Errors
    /// That of the call, or what `refused` makes of a refusal by the limit, and the call is not
    /// made.
    pub fn take<T, E>(
        &self,
        memory: Holding,
        call: impl FnOnce() -> Result<T, E>,
        name: impl FnOnce(&T) -> u64,
        refused: impl FnOnce(CuResult) -> E,
    ) -> Result<T, E> {
        let Holding { ref charge, kind, bytes, .. } = memory;
        let moving = charge.moves.begin();
        memory.reserve().map_err(refused)?;
        let taken = call().inspect_err(|_| memory.give_back())?;
        drop(moving);
        let name = name(&taken);
        if name == 0 {
            memory.give_back();
            return Ok(taken);
        }
        charge.book(kind, bytes, name);
        if let Some(before) = self.lock().insert((kind, name), memory) {
            // The memory with this name went with its context, which nobody told.
            before.give_back();
        }
        Ok(taken)
    }

    /// Charges memory that the driver has already, also beyond the limit, and books it.
    pub fn add(&self, memory: Holding, name: u64) {
        memory.charge.force(memory.bytes);
        memory.charge.book(memory.kind, memory.bytes, name);
        if let Some(before) = self.lock().insert((memory.kind, name), memory) {
            before.give_back();
        }
    }

    /// Charges memory whose bytes change: the `bytes` of the moment replace those of before.
    pub fn set(&self, charge: &Arc<DeviceCharge>, kind: Kind, name: u64, bytes: u64) {
        let memory = Holding { charge: Arc::clone(charge), kind, bytes, context: CuContext::NULL };
        let before = {
            let mut holdings = self.lock();
            let before =
                if bytes == 0 { holdings.remove(&(kind, name)) } else { holdings.insert((kind, name), memory) };
            before.map_or(0, |before| before.bytes)
        };
        if bytes == before {
            return;
        }
        if bytes > before {
            charge.force(bytes - before);
        } else {
            charge.give_back(before - bytes);
        }
        if bytes == 0 {
            charge.unbook(kind, name);
        } else {
            charge.book(kind, bytes, name);
        }
    }

    /// Returns whether memory is charged.
    pub fn has(&self, kind: Kind, name: u64) -> bool {
        self.lock().contains_key(&(kind, name))
    }

    /// Makes a call of the driver to free the memory named `name`, of any of `kinds`, and ends the
    /// charge of charged memory. Returns whether the memory was charged.
    ///
    /// # Errors
    /// That of the call. The driver may still hold the memory, which stays charged.
    pub fn give<E>(&self, kinds: &[Kind], name: u64, call: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
        // Taken out before the call: another thread may get the address at once.
        let taken = {
            let mut holdings = self.lock();
            kinds.iter().find_map(|&kind| holdings.remove(&(kind, name)))
        };
        let Some(memory) = taken else { return call().map(|()| false) };
        let Holding { ref charge, kind, bytes, .. } = memory;
        charge.unbook(kind, name);
        let moving = charge.moves.begin();
        let freed = call();
        if freed.is_ok() {
            memory.give_back();
        }
        drop(moving);
        if let Err(error) = freed {
            charge.book(kind, bytes, name);
            self.lock().insert((kind, name), memory);
            return Err(error);
        }
        Ok(true)
    }

    /// Gives back what is charged for memory that has gone with its context. Returns the addresses.
    /// Calls no driver.
    pub fn forget(&self, context: CuContext) -> Vec<u64> {
        let gone: Vec<_> = self.lock().extract_if(|_, memory| memory.context == context).collect();
        for ((kind, name), memory) in &gone {
            memory.charge.unbook(*kind, *name);
            memory.give_back();
        }
        gone.into_iter().map(|((_, name), _)| name).collect()
    }

    /// Locks the memory.
    fn lock(&self) -> MutexGuard<'_, HashMap<(Kind, u64), Holding>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
