//! Values by number (`nvmlDeviceGetFieldValues`): those that other functions tell, too.

use crate::code::{Answer, Code};
use crate::entry::{Subject, of_device};
use crate::pointers::Out;
use crate::structs::Field;
use std::ffi::c_int;
use std::time::{SystemTime, UNIX_EPOCH};

/// `NVML_VALUE_TYPE_UNSIGNED_INT` and `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`.
const UNSIGNED: u32 = 1;
const UNSIGNED_LONG_LONG: u32 = 3;
/// Most fields of a call, a bound for the loop.
const MOST: c_int = 4096;

of_device! {
    nvmlDeviceGetFieldValues(count: c_int, fields: Out<Field>) |its| {
        if !(1..=MOST).contains(&count) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let time_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as i64);
        (0..count as usize).try_for_each(|index| {
            let place = fields.nth(index);
            let asked = place.read()?;
            let (code, (value_type, value)) =
                value(&its, asked.id).map_or_else(|code| (code.0, (UNSIGNED, 0)), |found| (0, found));
            place.write(Field { time_us, latency_us: 0, value_type, code, value, ..asked })
        })
    };
}

/// Returns the type and the value of a field.
fn value(its: &Subject<'_>, id: u32) -> Answer<(u32, u64)> {
    let device = its.whole()?;
    match id {
        // NVML_FI_DEV_ECC_CURRENT, _PENDING
        1 | 2 => device.ecc.map(|on| (UNSIGNED, on.into())).ok_or(Code::NOT_SUPPORTED),
        // NVML_FI_DEV_MEMORY_TEMP
        82 => Ok((UNSIGNED, device.temperature.max(0) as u64)),
        // NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
        83 => Ok((UNSIGNED_LONG_LONG, device.energy_joules * 1000)),
        // NVML_FI_DEV_POWER_AVERAGE, _INSTANT
        185 | 186 => Ok((UNSIGNED, u64::from(device.power_watts) * 1000)),
        _ => Err(Code::NOT_SUPPORTED),
    }
}
