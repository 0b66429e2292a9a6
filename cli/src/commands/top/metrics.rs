//! The figures of `cachalot top`, as metrics.

use super::gather::{Answers, DeviceMemory, ProcessMemory};
use cachalot_run::group::watch::{GroupView, MemberView};
use cachalot_snapshot::metrics::{MetricsSample, MetricsText};

type MetricSample = MetricsSample<'static>;

/// Families of devices: name, help, figure.
type OfDevice = (&'static str, &'static str, fn(&DeviceMemory) -> Option<i64>);

const DEVICES: [OfDevice; 4] = [
    ("cachalot_run_device_used_bytes", "Memory in use, as the driver reports it.", |device| signed(device.used)),
    ("cachalot_run_device_memory_bytes", "All memory of the device.", |device| signed(device.total)),
    ("cachalot_run_device_booked_bytes", "Memory in the books of all processes.", |device| signed(Some(device.booked))),
    ("cachalot_run_device_unexplained_bytes", "Used memory that no book and no process has.", |device| {
        device.unexplained
    }),
];

/// Families of processes: name, unit, help, figure.
type OfProcess = (&'static str, &'static str, &'static str, fn(&ProcessMemory) -> Option<u64>);

const PROCESSES: [OfProcess; 4] = [
    ("cachalot_run_process_held_bytes", "bytes", "Memory of a device held by a process.", |process| {
        Some(process.held())
    }),
    (
        "cachalot_run_process_spilled_bytes",
        "bytes",
        "Memory of the host that serves a process, or is kept for it, in place of the device's.",
        ProcessMemory::spilled,
    ),
    ("cachalot_run_process_parked_bytes", "bytes", "Memory of a process that is parked.", |process| {
        process.sleep.map(|sleep| sleep.parked_bytes)
    }),
    ("cachalot_run_process_idle_seconds", "seconds", "Time since the last submission of work.", |process| {
        process.idle_ms().map(|idle| idle / 1000)
    }),
];

/// Families of members of groups: name, help, figure.
type OfMember = (&'static str, &'static str, fn(&MemberView) -> Option<u64>);

const MEMBERS: [OfMember; 3] = [
    ("cachalot_run_member_held_bytes", "Memory that counts for a member of a group.", |member| Some(member.held)),
    ("cachalot_run_member_kept_bytes", "Memory kept for a member of a group.", |member| Some(member.low)),
    ("cachalot_run_member_refused_bytes", "The last refused request of a member, until one succeeds.", |member| {
        Some(member.want)
    }),
];

/// Returns the metrics of a moment.
pub(super) fn of(moment: &Answers) -> String {
    let mut text = MetricsText::default();
    for (name, help, of) in DEVICES {
        let samples: Vec<MetricSample> =
            moment.devices.iter().filter_map(|device| Some((labels(moment, &device.device), of(device)?))).collect();
        text.labelled(name, "bytes", help, &samples);
    }
    let processes = || moment.devices.iter().flat_map(|device| device.processes.iter().map(move |one| (device, one)));
    for (name, unit, help, of) in PROCESSES {
        let samples: Vec<MetricSample> = processes()
            .filter_map(|(device, process)| Some((labels_of(moment, device, process), signed(of(process))?)))
            .collect();
        text.labelled(name, unit, help, &samples);
    }
    let samples: Vec<MetricSample> =
        processes().flat_map(|(device, process)| objects(moment, device, process)).collect();
    text.labelled("cachalot_run_object_bytes", "bytes", "Memory by the shared object that asked for it.", &samples);
    let limits = |group: &GroupView| {
        let group_label = ("group", group.name.clone());
        Some((with(labels(moment, &group.device), [group_label]), signed(group.limit)?))
    };
    let samples: Vec<MetricSample> = moment.groups.iter().filter_map(limits).collect();
    text.labelled("cachalot_run_group_limit_bytes", "bytes", "Most memory of the members of a group.", &samples);
    for (name, help, of) in MEMBERS {
        let members = moment.groups.iter().flat_map(|group| group.members.iter().map(move |member| (group, member)));
        let sample = |(group, member): (&GroupView, &MemberView)| {
            let own =
                [("group", group.name.clone()), ("pid", member.pid.to_string()), ("program", member.program.clone())];
            Some((with(labels(moment, &group.device), own), signed(of(member))?))
        };
        let samples: Vec<MetricSample> = members.filter_map(sample).collect();
        text.labelled(name, "bytes", help, &samples);
    }
    text.end()
}

/// Returns the samples of the objects in a process's book.
fn objects<'a>(
    moment: &Answers,
    device: &DeviceMemory,
    process: &'a ProcessMemory,
) -> impl Iterator<Item = MetricSample> + 'a {
    let of_process = labels_of(moment, device, process);
    process.book.iter().flat_map(|book| &book.objects).flat_map(move |object| {
        let of_process = of_process.clone();
        object.kinds.iter().filter_map(move |kind| {
            let own = [("object", object.name.clone()), ("kind", kind.kind.name().to_owned())];
            Some((with(of_process.clone(), own), signed(Some(kind.bytes))?))
        })
    })
}

/// Returns the labels of a device: the identity as the other metrics have it, and the number, if it
/// is known.
fn labels(moment: &Answers, device: &str) -> Vec<(&'static str, String)> {
    let uuid = device.split_once('-').map_or(device, |(_, uuid)| uuid).to_owned();
    let index = moment.devices.iter().find(|known| known.device == device).and_then(|known| known.index);
    let index = index.map(|index| ("gpu", index.to_string()));
    [("uuid", uuid)].into_iter().chain(index).collect()
}

/// Returns the labels of a process on a device.
fn labels_of(moment: &Answers, device: &DeviceMemory, process: &ProcessMemory) -> Vec<(&'static str, String)> {
    let own = [("pid", process.pid.to_string()), ("program", process.program.clone())];
    with(labels(moment, &device.device), own)
}

fn with<const N: usize>(
    mut labels: Vec<(&'static str, String)>,
    more: [(&'static str, String); N],
) -> Vec<(&'static str, String)> {
    labels.extend(more);
    labels
}

/// Returns a figure as the text has it.
fn signed(value: Option<u64>) -> Option<i64> {
    value.map(|value| i64::try_from(value).unwrap_or(i64::MAX))
}
