//! Reads the events of memory in traces of `torch.profiler`, which Kineto writes as Chrome's JSON.
//!
//! With `profile_memory=True` a trace has an event `[memory]` for each block that was allocated or
//! freed: the address, the rounded size, and the bytes allocated and reserved then. It has no
//! segments and no streams. The JSON is read in parts: a trace may have hundreds of megabytes, and
//! only the events of memory are kept.

use super::error::describe_io;
use super::kind::record_instead;
use super::rebuilt::{Before, Call, Did, rebuilt};
use super::{BadInput, Place, Trace};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;
use std::path::Path;

/// Says what a trace does not have.
const REMARK: &str = "a trace of torch.profiler has neither streams nor segments: every block counts with its rounded size, \
                      on one stream, and the peak of reserved memory is the one that the trace states";

/// Name of the events of memory.
const MEMORY: &str = "[memory]";

/// The device type of the host in `c10::DeviceType`.
const HOST: i64 = 0;

/// Reads a record for every device with events.
///
/// # Errors
/// If the JSON is invalid, or has no events of a device's memory.
pub(super) fn read(file: &Path, name: &str, reader: Box<dyn BufRead + '_>) -> Result<Vec<Trace>, BadInput> {
    let mut found = Found::default();
    let mut json = serde_json::Deserializer::from_reader(reader);
    let read = Top(&mut found).deserialize(&mut json);
    read.map_err(|error| BadInput::whole(file, describe(&error)))?;
    if found.devices.is_empty() {
        let what = if found.has_host_memory {
            concat!("this profile has events of the host's memory only, and none of a GPU's: ", record_instead!())
        } else {
            concat!("this profile has no events of memory: profile with profile_memory=True, or ", record_instead!())
        };
        return Err(BadInput::whole(file, what));
    }
    let several = found.devices.len() > 1;
    let traces = found.devices.into_iter().map(|(device, events)| {
        let name = if several { format!("{name}#{device}") } else { name.to_owned() };
        of_device(file, name, device, events)
    });
    Ok(traces.collect())
}

fn describe(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Eof => "the profile ends early: the file is truncated".to_owned(),
        serde_json::error::Category::Io => describe_io(&std::io::Error::new(
            error.io_error_kind().unwrap_or(std::io::ErrorKind::Other),
            error.to_string(),
        )),
        _ => format!("not a trace of torch.profiler: {error}"),
    }
}

/// Returns the record of a device.
fn of_device(file: &Path, name: String, device: i64, mut events: Vec<MemoryEvent>) -> Trace {
    // The file has the events thread by thread.
    events.sort_by(|one, other| one.time.total_cmp(&other.time));
    let first = &events[0];
    let before = Before {
        allocated_bytes: u64::try_from(i128::from(first.allocated) - i128::from(first.bytes)).unwrap_or(0),
        reserved_bytes: first.reserved,
    };
    let call = |event: &MemoryEvent| Call {
        did: if event.bytes < 0 { Did::Free } else { Did::Alloc },
        addr: event.addr,
        size: event.bytes.unsigned_abs(),
        stream: 0,
        place: Place::Event(event.number),
    };
    let gaps = events
        .windows(2)
        .filter(|pair| i128::from(pair[0].allocated) + i128::from(pair[1].bytes) != i128::from(pair[1].allocated))
        .count();
    let stated_peak_bytes = events.iter().map(|event| event.reserved).max().filter(|&bytes| bytes > 0);
    let mut made = rebuilt(&events.iter().map(call).collect::<Vec<_>>(), before);
    let mut remarks = vec![REMARK.to_owned()];
    if gaps > 0 {
        remarks.push(format!("at {gaps} events the stated sums differ from the events before: some are missing"));
    }
    if made.start.as_ref().is_some_and(|start| start.assumed > 0) {
        remarks.push("what was allocated before the profile and is not freed in it counts as one block".to_owned());
    }
    made.remarks.splice(0..0, remarks);
    Trace { stated_peak_bytes, ..Trace::of_calls(file, name, device, made) }
}

/// An event of memory.
struct MemoryEvent {
    /// Microseconds from the profile's own start.
    time: f64,
    /// Number of the event among all events of the file.
    number: u32,
    addr: u64,
    /// The size of the block, negative for a free.
    bytes: i64,
    /// Bytes of all blocks after the event.
    allocated: u64,
    /// Bytes held from the device after the event.
    reserved: u64,
}

/// What a trace has.
#[derive(Default)]
struct Found {
    /// The events of each device, in the order of the file.
    devices: BTreeMap<i64, Vec<MemoryEvent>>,
    has_host_memory: bool,
    /// Number of all events so far.
    count: u32,
}

impl Found {
    fn add(&mut self, entry: &Entry) {
        self.count += 1;
        if !entry.is_memory {
            return;
        }
        let Arguments { device_type, device, addr, bytes, allocated, reserved } = entry.arguments;
        if device_type.0.map_or(device.0.is_some_and(|device| device < 0), |kind| kind == HOST) {
            self.has_host_memory = true;
            return;
        }
        let (Some(addr), Some(bytes), Some(time)) = (addr.0, bytes.0, entry.time) else { return };
        if bytes != 0 {
            let event = MemoryEvent {
                time,
                number: self.count - 1,
                addr: addr.cast_unsigned(),
                bytes,
                allocated: allocated.0.unwrap_or(0).max(0).cast_unsigned(),
                reserved: reserved.0.unwrap_or(0).max(0).cast_unsigned(),
            };
            self.devices.entry(device.0.unwrap_or(0)).or_default().push(event);
        }
    }
}

/// Reads the first level: an object with the key `traceEvents`, or the list of events alone.
struct Top<'f>(&'f mut Found);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" {
                map.next_value_seed(Top(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(entry) = list.next_element::<Entry>()? {
            self.0.add(&entry);
        }
        Ok(())
    }
}

/// An event of any kind.
#[derive(Default)]
struct Entry {
    is_memory: bool,
    time: Option<f64>,
    arguments: Arguments,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
                let mut entry = Entry::default();
                // The name comes before the arguments, so those of other events are skipped.
                let mut is_other = false;
                while let Some(key) = map.next_key::<Key>()? {
                    match key {
                        Key::Name => {
                            entry.is_memory = map.next_value::<IsMemory>()?.0;
                            is_other = !entry.is_memory;
                        }
                        Key::Time => entry.time = map.next_value::<Float>()?.0,
                        Key::Arguments if !is_other => entry.arguments = map.next_value()?,
                        Key::Arguments | Key::Other => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(entry)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A key of an event.
#[derive(serde::Deserialize)]
#[serde(field_identifier)]
enum Key {
    #[serde(rename = "name")]
    Name,
    #[serde(rename = "ts")]
    Time,
    #[serde(rename = "args")]
    Arguments,
    #[serde(other)]
    Other,
}

/// The arguments of an event of memory.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Arguments {
    #[serde(rename = "Device Type")]
    device_type: Int,
    #[serde(rename = "Device Id")]
    device: Int,
    #[serde(rename = "Addr")]
    addr: Int,
    #[serde(rename = "Bytes")]
    bytes: Int,
    #[serde(rename = "Total Allocated")]
    allocated: Int,
    #[serde(rename = "Total Reserved")]
    reserved: Int,
}

/// Declares a type that is read from one kind of value, and is empty for all others.
macro_rules! lenient {
    ($(#[$doc:meta])* $name:ident($value:ty): $($visit:ident($of:ty) => $read:expr),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        struct $name($value);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Any;
                impl<'de> Visitor<'de> for Any {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("any value")
                    }

                    $(fn $visit<E>(self, value: $of) -> Result<$name, E> {
                        let read: fn($of) -> $value = $read;
                        Ok($name(read(value)))
                    })+

                    fn visit_bool<E>(self, _: bool) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_unit<E>(self) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<$name, A::Error> {
                        while list.next_element::<IgnoredAny>()?.is_some() {}
                        Ok($name::default())
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        Ok($name::default())
                    }
                }
                deserializer.deserialize_any(Any)
            }
        }
    };
}

lenient! {
    /// A whole number of 64 bits: one without a sign has the same bits.
    Int(Option<i64>):
    visit_i64(i64) => Some,
    visit_u64(u64) => |value| Some(value.cast_signed()),
    visit_f64(f64) => |_| None,
    visit_str(&str) => |text| text.parse().ok()
}

lenient! {
    /// A time, which old traces have as a text.
    Float(Option<f64>):
    visit_i64(i64) => |value| Some(value as f64),
    visit_u64(u64) => |value| Some(value as f64),
    visit_f64(f64) => Some,
    visit_str(&str) => |text| text.parse().ok()
}

lenient! {
    /// Whether a name is that of an event of memory.
    IsMemory(bool):
    visit_i64(i64) => |_| false,
    visit_u64(u64) => |_| false,
    visit_f64(f64) => |_| false,
    visit_str(&str) => |name| name == MEMORY
}
