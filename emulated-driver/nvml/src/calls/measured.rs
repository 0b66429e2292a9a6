//! What a device measures: its load, temperature, power and clocks.

use crate::code::{Answer, Code};
use crate::entry::{Subject, of_device};
use crate::pointers::Out;
use crate::structs::{Rates, Temperature1, version_of};

/// Microseconds over which the load is measured, as told to the caller.
const PERIOD_US: u32 = 167_000;

of_device! {
    nvmlDeviceGetUtilizationRates(rates: Out<Rates>) |its| {
        let load = unshared(&its)?.utilization;
        rates.write(Rates { gpu: load.gpu.0, memory: load.memory.0 })
    };
    nvmlDeviceGetEncoderUtilization(percent: Out<u32>, period_us: Out<u32>) |its| {
        percent.write(unshared(&its)?.utilization.encoder.0)?;
        period_us.write(PERIOD_US)
    };
    nvmlDeviceGetDecoderUtilization(percent: Out<u32>, period_us: Out<u32>) |its| {
        percent.write(unshared(&its)?.utilization.decoder.0)?;
        period_us.write(PERIOD_US)
    };
    nvmlDeviceGetTemperature(sensor: u32, degrees: Out<u32>) |its| {
        // The only sensor is that of the GPU.
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        degrees.write(its.whole()?.temperature as u32)
    };
    nvmlDeviceGetTemperatureV(temperature: Out<Temperature1>) |its| {
        let asked = temperature.read()?;
        if asked.version != version_of::<Temperature1>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if asked.sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        temperature.write(Temperature1 { degrees: its.whole()?.temperature, ..asked })
    };
    nvmlDeviceGetTemperatureThreshold(kind: u32, degrees: Out<u32>) |its| {
        its.whole()?;
        // Shutdown, slowdown, and the highest for memory and for the GPU.
        let known = [92, 89, 95, 87];
        degrees.write(*known.get(kind as usize).ok_or(Code::NOT_SUPPORTED)?)
    };
    nvmlDeviceGetFanSpeed(percent: Out<u32>) |its| percent.write(its.whole()?.fan.ok_or(Code::NOT_SUPPORTED)?);
    nvmlDeviceGetFanSpeed_v2(fan: u32, percent: Out<u32>) |its| {
        let speed = its.whole()?.fan.ok_or(Code::NOT_SUPPORTED)?;
        if fan == 0 { percent.write(speed) } else { Err(Code::INVALID_ARGUMENT) }
    };
    nvmlDeviceGetNumFans(count: Out<u32>) |its| count.write(its.whole()?.fan.is_some().into());
    nvmlDeviceGetPowerUsage(milliwatts: Out<u32>) |its| milliwatts.write(its.whole()?.power_watts * 1000);
    nvmlDeviceGetPowerManagementMode(on: Out<u32>) |its| its.whole().and_then(|_| on.write(1));
    nvmlDeviceGetPowerManagementLimit(milliwatts: Out<u32>) |its| limit(&its, &milliwatts);
    nvmlDeviceGetPowerManagementDefaultLimit(milliwatts: Out<u32>) |its| limit(&its, &milliwatts);
    nvmlDeviceGetEnforcedPowerLimit(milliwatts: Out<u32>) |its| limit(&its, &milliwatts);
    nvmlDeviceGetPowerManagementLimitConstraints(least: Out<u32>, most: Out<u32>) |its| {
        least.write(its.whole()?.power_limit_watts * 1000 / 4)?;
        limit(&its, &most)
    };
    nvmlDeviceGetTotalEnergyConsumption(millijoules: Out<u64>) |its| {
        millijoules.write(its.whole()?.energy_joules * 1000)
    };
    nvmlDeviceGetClockInfo(kind: u32, mhz: Out<u32>) |its| clock(its.whole()?.clocks, kind, &mhz);
    nvmlDeviceGetMaxClockInfo(kind: u32, mhz: Out<u32>) |its| clock(its.whole()?.max_clocks, kind, &mhz);
    nvmlDeviceGetApplicationsClock(kind: u32, mhz: Out<u32>) |its| clock(its.whole()?.max_clocks, kind, &mhz);
    nvmlDeviceGetClock(kind: u32, which: u32, mhz: Out<u32>) |its| {
        let device = its.whole()?;
        match which {
            // The present clock, those of applications, and the highest by a user.
            0 => clock(device.clocks, kind, &mhz),
            1..=3 => clock(device.max_clocks, kind, &mhz),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    nvmlDeviceGetPerformanceState(state: Out<u32>) |its| state.write(its.whole()?.performance_state);
    nvmlDeviceGetPowerState(state: Out<u32>) |its| state.write(its.whole()?.performance_state);
    nvmlDeviceGetCurrentClocksThrottleReasons(reasons: Out<u64>) |its| its.whole().and_then(|_| reasons.write(0));
    nvmlDeviceGetCurrentClocksEventReasons(reasons: Out<u64>) |its| its.whole().and_then(|_| reasons.write(0));
    nvmlDeviceGetPcieThroughput(counter: u32, kib_a_second: Out<u32>) |its| {
        its.whole()?;
        if counter < 2 { kib_a_second.write(0) } else { Err(Code::INVALID_ARGUMENT) }
    };
    nvmlDeviceGetPcieReplayCounter(count: Out<u32>) |its| its.whole().and_then(|_| count.write(0));
}

/// Returns the device, and refuses one that is shared by MIG, whose load NVML does not tell.
fn unshared<'a>(its: &Subject<'a>) -> Answer<&'a crate::machine::Device> {
    its.whole().and_then(|device| if device.instances.is_empty() { Ok(device) } else { Err(Code::NOT_SUPPORTED) })
}

/// Writes the limit of the power.
fn limit(its: &Subject<'_>, milliwatts: &Out<u32>) -> Answer<()> {
    milliwatts.write(its.whole()?.power_limit_watts * 1000)
}

/// Writes the clock of a kind.
fn clock(clocks: [u32; 4], kind: u32, mhz: &Out<u32>) -> Answer<()> {
    mhz.write(*clocks.get(kind as usize).ok_or(Code::INVALID_ARGUMENT)?)
}
