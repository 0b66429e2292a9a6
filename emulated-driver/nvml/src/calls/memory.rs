//! The memory of a device, or of an instance.

use crate::code::Code;
use crate::entry::{Subject, of_device};
use crate::pointers::Out;
use crate::structs::{Bar1Memory, Memory, Memory2, version_of};

of_device! {
    nvmlDeviceGetMemoryInfo(memory: Out<Memory>) |its| {
        let Memory2 { total, reserved, free, used, .. } = memory_of(&its);
        memory.write(Memory { total, free, used: used + reserved })
    };
    nvmlDeviceGetMemoryInfo_v2(memory: Out<Memory2>) |its| {
        if memory.read()?.version != version_of::<Memory2>(2) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        memory.write(memory_of(&its))
    };
    nvmlDeviceGetBAR1MemoryInfo(memory: Out<Bar1Memory>) |its| {
        let total = its.whole()?.total;
        memory.write(Bar1Memory { total, free: total, used: 0 })
    };
}

/// Returns the memory of a device or of an instance. An instance has none that is reserved.
fn memory_of(its: &Subject<'_>) -> Memory2 {
    let (total, reserved) = its.instance().map_or((its.device.total, its.device.reserved), |its| (its.total, 0));
    let used = its.machine.used(its.device, its.place);
    Memory2 { version: version_of::<Memory2>(2), total, reserved, free: total - reserved - used, used }
}
