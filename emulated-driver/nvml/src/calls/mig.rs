//! The instances of a device that MIG divides.

use crate::code::Answer;
use crate::code::Code;
use crate::entry::{Subject, of_device};
use crate::handle::Handle;
use crate::machine::MigDevice;
use crate::pointers::Out;
use crate::structs::InstanceAttributes;

/// Most instances of a device that can be divided.
const MOST: u32 = 7;
/// The least major compute capability of devices that can be divided.
const LEAST_CAPABILITY: i32 = 8;

of_device! {
    nvmlDeviceGetMigMode(current: Out<u32>, pending: Out<u32>) |its| {
        let device = its.whole()?;
        if device.capability.0 < LEAST_CAPABILITY {
            return Err(Code::NOT_SUPPORTED);
        }
        let on = u32::from(!device.instances.is_empty());
        current.write(on)?;
        pending.write(on)
    };
    nvmlDeviceIsMigDeviceHandle(is: Out<u32>) |its| is.write(its.place.is_some().into());
    nvmlDeviceGetMaxMigDeviceCount(count: Out<u32>) |its| {
        count.write(if its.whole()?.capability.0 < LEAST_CAPABILITY { 0 } else { MOST })
    };
    nvmlDeviceGetMigDeviceHandleByIndex(index: u32, instance: Out<Handle>) |its| {
        let device = its.whole()?;
        let index = index as usize;
        if index >= MOST as usize {
            return Err(Code::INVALID_ARGUMENT);
        }
        device.instances.get(index).ok_or(Code::NOT_FOUND)?;
        instance.write(Handle::new(device.index, Some(index)))
    };
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Out<Handle>) |its| {
        instance_of(&its)?;
        device.write(Handle::new(its.device.index, None))
    };
    nvmlDeviceGetGpuInstanceId(id: Out<u32>) |its| id.write(instance_of(&its)?.gpu_instance);
    nvmlDeviceGetComputeInstanceId(id: Out<u32>) |its| id.write(instance_of(&its)?.compute_instance);
    nvmlDeviceGetAttributes(attributes: Out<InstanceAttributes>) |its| attributes.write(attributes_of(&its)?);
    nvmlDeviceGetAttributes_v2(attributes: Out<InstanceAttributes>) |its| attributes.write(attributes_of(&its)?);
}

/// Returns the instance of a call that only instances answer.
fn instance_of<'a>(its: &Subject<'a>) -> Answer<&'a MigDevice> {
    its.instance().ok_or(Code::INVALID_ARGUMENT)
}

/// Returns the parts of an instance: those that its profile names (`1g.10gb` has one slice).
fn attributes_of(its: &Subject<'_>) -> Answer<InstanceAttributes> {
    let instance = its.instance().ok_or(Code::NOT_SUPPORTED)?;
    let slices = instance.profile.split_once('g').and_then(|(number, _)| number.parse().ok()).unwrap_or(1);
    Ok(InstanceAttributes {
        multiprocessors: slices,
        copy_engines: slices,
        gpu_slices: slices,
        compute_slices: slices,
        memory_mib: instance.total >> 20,
        ..InstanceAttributes::default()
    })
}
