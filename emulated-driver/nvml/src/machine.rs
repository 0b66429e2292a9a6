//! The machine that NVML tells of: the emulated driver's devices with the changes of a description.

use crate::code::{Answer, Code};
use crate::description::{Board, Clocks, Description, Event, Kind, Listed, Rule, Slice, Utilization};
use crate::handle::Handle;
use crate::values::{BusId, Name, Version};
use cachalot_emulated_machine::processes::{self, FOLDER, Process};
use cachalot_emulated_machine::{identity, settings};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

/// Whether a rule for a name means a function of the library.
pub(crate) type Known = fn(&str) -> bool;

/// A machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) driver_version: String,
    /// 1000 × major + 10 × minor.
    pub(crate) cuda_version: u32,
    pub(crate) devices: Vec<Device>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) events: Vec<Event>,
    /// Where processes with the emulated driver tell what they hold.
    folder: Option<PathBuf>,
}

/// A device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) serial: Option<String>,
    pub(crate) bus_id: BusId,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    /// Memory in use by no listed process.
    used: u64,
    pub(crate) capability: (i32, i32),
    pub(crate) utilization: Utilization,
    pub(crate) temperature: i32,
    pub(crate) fan: Option<u32>,
    pub(crate) power_watts: u32,
    pub(crate) power_limit_watts: u32,
    pub(crate) energy_joules: u64,
    /// MHz, by `nvmlClockType_t`.
    pub(crate) clocks: [u32; 4],
    pub(crate) max_clocks: [u32; 4],
    pub(crate) performance_state: u32,
    /// Whether memory errors are corrected. `None`: the device cannot.
    pub(crate) ecc: Option<bool>,
    pub(crate) ecc_errors: u64,
    pub(crate) persistence: bool,
    pub(crate) compute_mode: u32,
    processes: Vec<Listed>,
    pub(crate) instances: Vec<MigDevice>,
}

/// An instance of MIG.
#[derive(Clone, Debug)]
pub(crate) struct MigDevice {
    pub(crate) profile: String,
    pub(crate) uuid: String,
    pub(crate) total: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

/// A process with memory of a device.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// The instance of MIG, by its place.
    pub(crate) instance: Option<usize>,
    pub(crate) utilization: Utilization,
}

/// Most processes of a device, and most instances of MIG: bounds for a file.
const MOST_PROCESSES: usize = 4096;
const MOST_INSTANCES: usize = 7;
/// The version of a driver for CUDA 13.0.
const DRIVER_VERSION: &str = "580.95.05";
/// Clocks of an idle GPU of the Hopper family, and the highest.
const CLOCKS: [u32; 4] = [345, 345, 2619, 765];
const MAX_CLOCKS: [u32; 4] = [1980, 1980, 2619, 1545];

impl Machine {
    /// Makes the machine of a description, with the settings of the environment for what the
    /// description leaves out.
    ///
    /// # Errors
    /// A line that names the mistake in the description or in a setting.
    pub(crate) fn new(description: Description, is_known: Known) -> Result<Self, String> {
        let described = description.devices.len();
        let without = if described == 0 { settings::number("DEVICES", settings::DEVICES)? as usize } else { described };
        let count = description.count.map_or(without, |count| count.0 as usize);
        if count < described || count > 64 {
            return Err(format!("count: {described} devices are described, and at most 64 are possible, not {count}"));
        }
        let defaults = Defaults::from_environment()?;
        let last = description.devices.last().cloned().unwrap_or_default();
        let boards = description.devices.into_iter().chain(std::iter::repeat(last)).take(count);
        let devices: Vec<_> =
            boards.enumerate().map(|(index, board)| defaults.device(index, board)).collect::<Result<_, _>>()?;
        check_names(&devices)?;
        for (number, rule) in description.errors.iter().enumerate() {
            check_rule(number, rule, count, is_known)?;
        }
        if let Some(number) = description.events.iter().position(|event| event.device >= count) {
            return Err(format!("events[{number}].device: there are {count} devices"));
        }
        let cuda_version = description.cuda_version.map(|Version(major, minor)| major * 1000 + minor * 10);
        Ok(Self {
            driver_version: description.driver_version.map_or_else(|| DRIVER_VERSION.to_owned(), |Name(text)| text),
            cuda_version: cuda_version.unwrap_or(defaults.cuda_version),
            devices,
            rules: description.errors,
            events: description.events,
            folder: settings::text(FOLDER).map(PathBuf::from),
        })
    }

    /// Returns the device of a handle, and the place of the instance.
    pub(crate) fn device(&self, handle: Handle) -> Answer<(&Device, Option<usize>)> {
        let (index, instance) = handle.parts().ok_or(Code::INVALID_ARGUMENT)?;
        let device = self.devices.get(index).ok_or(Code::INVALID_ARGUMENT)?;
        if instance.is_some_and(|instance| instance >= device.instances.len()) {
            return Err(Code::INVALID_ARGUMENT);
        }
        Ok((device, instance))
    }

    /// Returns the handle of the device, or instance, for which `is` returns true.
    pub(crate) fn find(&self, is: impl Fn(&Device, Option<&MigDevice>) -> bool) -> Answer<Handle> {
        let of_device = |device: &Device| {
            let instances = device.instances.iter().enumerate();
            let all = instances.map(|(place, instance)| (Some(place), Some(instance)));
            std::iter::once((None, None))
                .chain(all)
                .find(|(_, instance)| is(device, *instance))
                .map(|(place, _)| Handle::new(device.index, place))
        };
        self.devices.iter().find_map(of_device).ok_or(Code::NOT_FOUND)
    }

    /// Returns the processes with memory of a device: those of the description, then those that run
    /// on the emulated driver.
    pub(crate) fn holders(&self, device: &Device) -> Vec<Holder> {
        let described = device.processes.iter().map(|process| Holder {
            pid: process.pid,
            bytes: process.memory.0,
            kind: process.kind,
            instance: process.mig,
            utilization: process.utilization,
        });
        let living = self.folder.as_deref().map(processes::living).unwrap_or_default();
        let emulated = living.into_iter().filter_map(|Process { pid, bytes }| {
            let bytes = bytes.get(device.index).copied().filter(|&bytes| bytes > 0)?;
            Some(Holder { pid, bytes, kind: Kind::Compute, instance: None, utilization: Utilization::default() })
        });
        described.chain(emulated).collect()
    }

    /// Returns the bytes in use of a device, or of one of its instances.
    pub(crate) fn used(&self, device: &Device, instance: Option<usize>) -> u64 {
        let holders = self.holders(device).into_iter();
        let held = holders.filter(|holder| instance.is_none() || holder.instance == instance);
        let own = if instance.is_none() { device.used } else { 0 };
        let most = instance.map_or(device.total - device.reserved, |place| device.instances[place].total);
        held.fold(own, |sum, holder| sum.saturating_add(holder.bytes)).min(most)
    }

    /// Returns the name of a process of the description.
    pub(crate) fn name_of(&self, pid: u32) -> Option<&str> {
        let mut processes = self.devices.iter().flat_map(|device| &device.processes);
        processes.find(|process| process.pid == pid)?.name.as_ref().map(|Name(text)| text.as_str())
    }
}

/// What devices have without a description: the settings of the emulated driver.
struct Defaults {
    memory: u64,
    capability: (i32, i32),
    cuda_version: u32,
}

impl Defaults {
    fn from_environment() -> Result<Self, String> {
        let attributes = settings::numbers("ATTRIBUTES")?;
        let attribute =
            |number: i32, default| attributes.get(&number.to_string()).map_or(default, |&value| value as i32);
        let major = attribute(settings::CAPABILITY_MAJOR, settings::MAJOR);
        Ok(Self {
            memory: settings::number("MEMORY", settings::MEMORY)?,
            capability: (major, attribute(settings::CAPABILITY_MINOR, 0)),
            cuda_version: settings::number("DRIVER_VERSION", settings::DRIVER_VERSION)? as u32,
        })
    }

    /// Makes a device.
    fn device(&self, index: usize, board: Board) -> Result<Device, String> {
        let total = board.memory.map_or(self.memory, |size| size.0);
        let reserved = board.reserved.map_or(0, |size| size.0);
        if reserved > total {
            return Err(format!("devices[{index}].reserved: {reserved} bytes are more than the memory, {total}"));
        }
        check_parts(index, &board)?;
        let name = board.name.map_or_else(|| identity::name(index), |Name(text)| text);
        let uuid = board.uuid.map_or_else(|| uuid("GPU", identity::uuid(index)), |Name(text)| text);
        let instances = board.mig.into_iter().enumerate().map(|(place, slice)| instance(index, place, slice));
        let capability = board.compute_capability;
        Ok(Device {
            index,
            name,
            uuid,
            serial: board.serial.map(|Name(text)| text),
            bus_id: board.bus_id.unwrap_or(BusId(0, identity::bus(index), 0)),
            total,
            reserved,
            used: board.used.map_or(0, |size| size.0),
            capability: capability.map_or(self.capability, |Version(major, minor)| (major as i32, minor as i32)),
            utilization: board.utilization,
            temperature: board.temperature.map_or(35, |degrees| degrees.0 as i32),
            fan: board.fan.map(|percent| percent.0),
            power_watts: board.power_watts.map_or(70, |watts| watts.0 as u32),
            power_limit_watts: board.power_limit_watts.map_or(700, |watts| watts.0 as u32),
            energy_joules: board.energy_joules.map_or(0, |joules| joules.0 as u64),
            clocks: clocks(board.clocks, CLOCKS),
            max_clocks: clocks(board.max_clocks, MAX_CLOCKS),
            performance_state: board.performance_state.map_or(0, |state| state.0 as u32),
            ecc: board.ecc,
            ecc_errors: board.ecc_errors.map_or(0, |errors| errors.0 as u64),
            persistence: board.persistence,
            compute_mode: board.compute_mode.map_or(0, |mode| mode.0 as u32),
            processes: board.processes,
            instances: instances.collect(),
        })
    }
}

/// Makes an instance of MIG.
fn instance(device: usize, place: usize, slice: Slice) -> MigDevice {
    let mut bytes = identity::uuid(device);
    bytes[13] = b'a' + place as u8;
    MigDevice {
        profile: slice.profile.0,
        uuid: slice.uuid.map_or_else(|| uuid("MIG", bytes), |Name(text)| text),
        total: slice.memory.0,
        gpu_instance: slice.gpu_instance.unwrap_or(place as u32 + 1),
        compute_instance: slice.compute_instance,
    }
}

/// Returns the clocks of a description, with those of `defaults` for the others.
fn clocks(of: Clocks, defaults: [u32; 4]) -> [u32; 4] {
    let of = [of.graphics, of.sm, of.memory, of.video];
    std::array::from_fn(|kind| of[kind].map_or(defaults[kind], |clock| clock.0 as u32))
}

/// Formats a UUID as NVML does.
fn uuid(kind: &str, bytes: [u8; 16]) -> String {
    let mut text = format!("{kind}-");
    for (place, byte) in bytes.iter().enumerate() {
        let dash = if [4, 6, 8, 10].contains(&place) { "-" } else { "" };
        write!(text, "{dash}{byte:02x}").expect("a text takes all");
    }
    text
}

/// Checks how many processes and instances a device has, and that its processes run in instances
/// that it has.
fn check_parts(index: usize, board: &Board) -> Result<(), String> {
    let (processes, instances) = (board.processes.len(), board.mig.len());
    if processes > MOST_PROCESSES {
        return Err(format!("devices[{index}].processes: {processes} are more than {MOST_PROCESSES}"));
    }
    if instances > MOST_INSTANCES {
        return Err(format!("devices[{index}].mig: {instances} are more than {MOST_INSTANCES}"));
    }
    let outside = |process: &Listed| process.mig.is_some_and(|place| place >= instances);
    match board.processes.iter().position(outside) {
        Some(number) => Err(format!("devices[{index}].processes[{number}].mig: the device has {instances} instances")),
        None => Ok(()),
    }
}

/// Checks that no two devices or instances have one UUID, and no two devices one place on the bus.
fn check_names(devices: &[Device]) -> Result<(), String> {
    let (mut uuids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for device in devices {
        let its = std::iter::once(&device.uuid).chain(device.instances.iter().map(|instance| &instance.uuid));
        for uuid in its {
            if !uuids.insert(uuid) {
                return Err(format!("devices[{}]: another device has the UUID {uuid}, too", device.index));
            }
        }
        let BusId(domain, bus, slot) = device.bus_id;
        if !places.insert((domain, bus, slot)) {
            return Err(format!("devices[{}]: another device has the same bus_id", device.index));
        }
    }
    Ok(())
}

/// Checks the function and the device of a rule.
fn check_rule(number: usize, rule: &Rule, devices: usize, is_known: Known) -> Result<(), String> {
    if rule.device.is_some_and(|device| device >= devices) {
        return Err(format!("errors[{number}].device: there are {devices} devices"));
    }
    if !is_known(&rule.function) {
        return Err(format!("errors[{number}].function: the library has no function {}", rule.function));
    }
    Ok(())
}

/// Returns whether a rule for `wanted` means the function `name`: it has the name, perhaps with a
/// version at its end.
pub(crate) fn is_named(wanted: &str, name: &str) -> bool {
    wanted == "*"
        || name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || (rest.len() == 3 && rest.starts_with("_v")))
}

#[cfg(test)]
mod tests {
    use super::{Machine, is_named, uuid};
    use crate::description::read;
    use cachalot_emulated_machine::identity;

    /// Returns the machine of a text, or the message.
    fn machine(text: &str) -> Result<Machine, String> {
        read(text.as_bytes()).and_then(|description| Machine::new(description, |name| name == "*"))
    }

    #[test]
    fn a_uuid_has_the_bytes_that_the_driver_gives() {
        assert_eq!(uuid("GPU", identity::uuid(1)), "GPU-63616368-616c-6f74-2d65-6d752d303001");
    }

    #[test]
    fn devices_after_the_last_described_one_are_like_it() {
        let all = machine(r#"{"count":3,"devices":[{"name":"A","memory":"1GiB"},{"name":"B","memory":"2GiB"}]}"#);
        let all = all.expect("a machine").devices;
        let seen: Vec<_> = all.iter().map(|device| (device.name.as_str(), device.total >> 30)).collect();
        assert_eq!(seen, [("A", 1), ("B", 2), ("B", 2)]);
        assert_ne!(all[1].uuid, all[2].uuid);
    }

    #[test]
    fn contradictions_are_refused_with_their_place() {
        for (text, said) in [
            (r#"{"count":1,"devices":[{},{}]}"#, "count: 2 devices"),
            (r#"{"count":2,"devices":[{"uuid":"GPU-1"}]}"#, "devices[1]: another device has the UUID GPU-1"),
            (r#"{"count":2,"devices":[{"bus_id":"1:0"}]}"#, "devices[1]: another device has the same bus_id"),
            (r#"{"devices":[{"memory":1,"reserved":2}]}"#, "devices[0].reserved: 2 bytes"),
            (r#"{"devices":[{"processes":[{"pid":1,"mig":0}]}]}"#, "devices[0].processes[0].mig: the device has 0"),
            (r#"{"devices":[{}],"errors":[{"function":"*","device":1,"code":3}]}"#, "errors[0].device: there are 1"),
            (r#"{"errors":[{"function":"nvmlX","code":3}]}"#, "errors[0].function: the library has no function nvmlX"),
            (r#"{"devices":[{}],"events":[{"device":1,"kind":"xid"}]}"#, "events[0].device: there are 1 devices"),
        ] {
            let found = machine(text).expect_err(text);
            assert!(found.contains(said), "{text}: {found}");
        }
    }

    #[test]
    fn a_rule_means_every_version_of_its_function() {
        assert!(is_named("nvmlInit", "nvmlInit_v2") && is_named("nvmlInit_v2", "nvmlInit_v2") && is_named("*", "x"));
        assert!(!is_named("nvmlInit_v2", "nvmlInit") && !is_named("nvmlInit", "nvmlInitWithFlags"));
    }
}
