//! The limits of control groups on the memory of a device, as the files of a group's folder have
//! them (`dmem`): any folder with such files stands for a group.

use crate::code::{Answer, Code};
use crate::entry::of_device;
use crate::machine::Device;
use crate::pointers::{Out, Text};
use crate::structs::{GetLimits, SetLimits};
use crate::values::BusId;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`.
const NO_LIMIT: u64 = u64::MAX;

of_device! {
    nvmlDeviceGetMemoryLimits_v1(limits: Out<GetLimits>) |its| {
        let (device, asked) = (its.whole()?, limits.read()?);
        let folder = folder_of(&asked.namespace)?;
        // A group without files has the limits of the nearest group around it that has some.
        let group = folder.ancestors().find(|folder| folder.join("dmem.current").is_file()).ok_or(Code::NOT_FOUND)?;
        let read = |file: &str| bytes_of(group, file, device);
        let (soft, hard) = (read("dmem.min").unwrap_or(0), read("dmem.max").unwrap_or(NO_LIMIT));
        limits.write(GetLimits { soft, hard, used: read("dmem.current").ok_or(Code::NOT_FOUND)?, ..asked })
    };
    nvmlDeviceSetMemoryLimits_v1(limits: Out<SetLimits>) |its| {
        let (device, SetLimits { namespace, soft, hard }) = (its.whole()?, limits.read()?);
        if soft > hard || [soft, hard].iter().any(|&bytes| bytes != NO_LIMIT && bytes > device.total) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let folder = folder_of(&namespace)?;
        if !folder.join("dmem.max").is_file() {
            return Err(Code::NOT_FOUND);
        }
        set(folder, "dmem.min", device, soft)?;
        set(folder, "dmem.max", device, hard)
    };
}

/// Returns the folder of a group.
fn folder_of(namespace: &Text) -> Answer<&Path> {
    let folder = Path::new(namespace.read()?);
    if folder.is_dir() { Ok(folder) } else { Err(Code::OPERATING_SYSTEM) }
}

/// Returns the name of a device's memory in the files.
fn region(device: &Device) -> String {
    let BusId(domain, bus, slot) = device.bus_id;
    format!("nvidia/{domain:04x}:{bus:02x}:{slot:02x}.0/vidmem")
}

/// Returns the bytes of a device in a file of a group. `None`: no such line, or no limit.
fn bytes_of(group: &Path, file: &str, device: &Device) -> Option<u64> {
    let (text, region) = (fs::read_to_string(group.join(file)).ok()?, region(device));
    text.lines().find_map(|line| line.strip_prefix(&region)?.trim().parse().ok())
}

/// Sets the bytes of a device in a file of a group.
fn set(group: &Path, file: &str, device: &Device, bytes: u64) -> Answer<()> {
    let (path, region) = (group.join(file), region(device));
    let code = |error: io::Error| match error.kind() {
        ErrorKind::PermissionDenied => Code::NO_PERMISSION,
        _ => Code::OPERATING_SYSTEM,
    };
    let before = fs::read_to_string(&path).map_err(code)?;
    let others = before.lines().filter(|line| !line.starts_with(&region));
    let bytes = if bytes == NO_LIMIT { "max".to_owned() } else { bytes.to_string() };
    let own = format!("{region} {bytes}");
    let text: String = others.chain([own.as_str()]).flat_map(|line| [line, "\n"]).collect();
    fs::write(path, text).map_err(code)
}
