//! The processes with memory of a device.

use crate::code::{Answer, Code};
use crate::description::Kind;
use crate::entry::{Subject, of_device};
use crate::machine::Holder;
use crate::pointers::Out;
use crate::structs::{ProcessInfo1, ProcessInfo2, ProcessSample};
use std::time::{SystemTime, UNIX_EPOCH};

/// The instance of a process that runs in none.
const NO_INSTANCE: u32 = u32::MAX;

of_device! {
    nvmlDeviceGetComputeRunningProcesses(count: Out<u32>, list: Out<ProcessInfo1>) |its| first(&its, Kind::Compute, &count, &list);
    nvmlDeviceGetComputeRunningProcesses_v2(count: Out<u32>, list: Out<ProcessInfo2>) |its| second(&its, Kind::Compute, &count, &list);
    nvmlDeviceGetComputeRunningProcesses_v3(count: Out<u32>, list: Out<ProcessInfo2>) |its| second(&its, Kind::Compute, &count, &list);
    nvmlDeviceGetGraphicsRunningProcesses(count: Out<u32>, list: Out<ProcessInfo1>) |its| first(&its, Kind::Graphics, &count, &list);
    nvmlDeviceGetGraphicsRunningProcesses_v2(count: Out<u32>, list: Out<ProcessInfo2>) |its| second(&its, Kind::Graphics, &count, &list);
    nvmlDeviceGetGraphicsRunningProcesses_v3(count: Out<u32>, list: Out<ProcessInfo2>) |its| second(&its, Kind::Graphics, &count, &list);
    nvmlDeviceGetMPSComputeRunningProcesses(count: Out<u32>, list: Out<ProcessInfo1>) |its| first(&its, Kind::Mps, &count, &list);
    nvmlDeviceGetMPSComputeRunningProcesses_v2(count: Out<u32>, list: Out<ProcessInfo2>) |its| second(&its, Kind::Mps, &count, &list);
    nvmlDeviceGetMPSComputeRunningProcesses_v3(count: Out<u32>, list: Out<ProcessInfo2>) |its| second(&its, Kind::Mps, &count, &list);
    nvmlDeviceGetProcessUtilization(list: Out<ProcessSample>, count: Out<u32>, since_us: u64) |its| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
        let holders = its.machine.holders(its.whole()?);
        let samples: Vec<_> = holders.iter().filter(|_| now > since_us).map(|holder| sample(holder, now)).collect();
        if samples.is_empty() {
            count.write(0)?;
            return Err(Code::NOT_FOUND);
        }
        list.write_counted(&count, &samples)
    };
}

/// Returns the processes of a kind on a device, or in one of its instances.
fn of_kind(its: &Subject<'_>, kind: Kind) -> Vec<Holder> {
    let all = its.machine.holders(its.device).into_iter();
    all.filter(|holder| holder.kind == kind && (its.place.is_none() || holder.instance == its.place)).collect()
}

/// Writes processes as in NVML's first version.
fn first(its: &Subject<'_>, kind: Kind, count: &Out<u32>, list: &Out<ProcessInfo1>) -> Answer<()> {
    let processes = of_kind(its, kind);
    let all: Vec<_> = processes.iter().map(|holder| ProcessInfo1 { pid: holder.pid, used: holder.bytes }).collect();
    list.write_counted(count, &all)
}

/// Writes processes with their instances of MIG.
fn second(its: &Subject<'_>, kind: Kind, count: &Out<u32>, list: &Out<ProcessInfo2>) -> Answer<()> {
    let with_instance = |holder: &Holder| {
        let instance = holder.instance.map(|place| &its.device.instances[place]);
        ProcessInfo2 {
            pid: holder.pid,
            used: holder.bytes,
            gpu_instance: instance.map_or(NO_INSTANCE, |instance| instance.gpu_instance),
            compute_instance: instance.map_or(NO_INSTANCE, |instance| instance.compute_instance),
        }
    };
    let all: Vec<_> = of_kind(its, kind).iter().map(with_instance).collect();
    list.write_counted(count, &all)
}

/// Returns what a process uses of the device's time.
fn sample(holder: &Holder, time_us: u64) -> ProcessSample {
    let load = holder.utilization;
    ProcessSample {
        pid: holder.pid,
        time_us,
        sm: load.gpu.0,
        memory: load.memory.0,
        encoder: load.encoder.0,
        decoder: load.decoder.0,
    }
}
