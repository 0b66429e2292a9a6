//! Memory of `cuMemAlloc` in another process: handles that the processes pass on.
//!
//! A handle names the allocation, wherever inside the allocation the address is. An open gives the
//! start of the allocation, as a real driver does: a program that passes on an address inside must
//! pass on the distance, too. An offer ends with the memory. Memory that is open elsewhere when its
//! owner frees it may be used again while the other process still sees it: CUDA leaves this case
//! open.

use crate::backing::handed;
use crate::call::Call;
use crate::state::blocks::{self, BlockKind};
use crate::state::{contexts, devices, regions};
use crate::tables::memory::Region;
use crate::tables::shared::{Offer, Opened};
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use crate::values::structs::IpcMemory;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the one valid value.
const FLAGS: u32 = 1;

/// `cuIpcGetMemHandle`: the same handle each time.
pub(crate) fn cuIpcGetMemHandle(call: &mut Call, handle: Out<IpcMemory>, address: u64) -> Answer<()> {
    call.answer(handle, |call| {
        let state = &mut *call.state;
        let block = blocks::containing(state, address).filter(|block| block.kind == BlockKind::Plain);
        let block = block.ok_or(Code::INVALID_VALUE)?;
        if let Some(offer) = state.shared.offers.get(&block.id) {
            return Ok(offer.handle);
        }
        let region = state.memory.regions.get(&block.mapping.0).ok_or(Code::INVALID_VALUE)?;
        let memory = handed::Handed {
            device: region.device,
            extents: region.extents.clone(),
            offset: block.start - block.mapping.0,
            bytes: block.range.1,
        };
        let (handle, description) = handed::offer(&memory, region.file(&state.devices))?;
        state.shared.offers.insert(block.id, Offer { handle, _description: description });
        Ok(handle)
    })
}

/// `cuIpcOpenMemHandle_v2`: the same address for the same handle, until as many closes.
pub(crate) fn cuIpcOpenMemHandle_v2(call: &mut Call, address: Out<u64>, handle: IpcMemory, flags: u32) -> Answer<()> {
    call.answer(address, |call| {
        if flags != FLAGS {
            return Err(Code::INVALID_VALUE);
        }
        let (context, state) = (call.context, &mut *call.state);
        if state.shared.offers.values().any(|offer| offer.handle == handle) {
            // A process has its own memory already.
            return Err(Code::INVALID_CONTEXT);
        }
        let open = state.shared.opened.iter_mut().find(|(_, opened)| opened.handle == handle);
        if let Some((&address, opened)) = open.filter(|(_, opened)| opened.context == context) {
            opened.opens += 1;
            return Ok(address);
        }
        let (memory, file) = handed::open(&handle).ok_or(Code::INVALID_VALUE)?;
        let device = devices::index(state, memory.device as i32)?;
        let whole = memory.extents.iter().map(|extent| extent.bytes).sum();
        let region = Region { imported: Some(file), ..Region::new(context, device, whole, memory.extents) };
        let address = regions::add_imported(state, region, memory.offset, memory.bytes)?;
        state.shared.opened.insert(address, Opened { handle, context, opens: 1 });
        call.made("memory of another process", address);
        Ok(address)
    })
}

/// `cuIpcCloseMemHandle`: the last close waits for the work of the context, and unmaps.
pub(crate) fn cuIpcCloseMemHandle(call: &mut Call, address: u64) -> Answer<()> {
    let opened = call.state.shared.opened.get_mut(&address).ok_or(Code::INVALID_VALUE)?;
    opened.opens -= 1;
    if opened.opens > 0 {
        return Ok(());
    }
    let context = opened.context;
    call.state.shared.opened.remove(&address);
    let Some(allocation) = call.state.memory.allocations.remove(&address) else { return Ok(()) };
    if call.state.config.free_waits {
        let marks = contexts::ends(&call.state, context);
        call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    }
    regions::give_back(&mut call.state, address, allocation);
    Ok(())
}
