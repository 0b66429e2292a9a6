//! A record for `cachalot replay`: the events of a device, and the end of the program in a second
//! file.

use super::{ExportFailure, written_as_named};
use cachalot_replay::trace::{BadInput, Note, Trace};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes the events of a device. For `OUT.csv` and `OUT.csv.gz`, the end of the program goes into
/// a second file, `OUT.expected.json.gz`, without which a history that starts in the middle of a
/// program cannot be replayed.
pub(super) fn export(file: &Path, traces: &[Trace], output: &Path, device: Option<u32>) -> Result<(), ExportFailure> {
    let trace = choose(file, traces, device)?;
    super::super::announce_remarks(trace);
    written_as_named(output, |to| events(to, trace))?;
    if let (Some(end), Some(beside)) = (&trace.expected, beside(output)) {
        written_as_named(&beside, |to| serde_json::to_writer(to, end).map_err(io::Error::from))?;
    }
    Ok(())
}

/// Returns the record of a device. A record is of device 0, or is named after its device.
fn choose<'t>(file: &Path, traces: &'t [Trace], device: Option<u32>) -> Result<&'t Trace, ExportFailure> {
    let of = |trace: &Trace| trace.name.rsplit_once('#').map_or("0", |(_, device)| device).parse::<u32>().unwrap_or(0);
    let named: Vec<String> = traces.iter().map(|trace| of(trace).to_string()).collect();
    let what = match (traces, device) {
        ([], _) => "the snapshot has no events: pass a snapshot with a history".to_owned(),
        ([only], None) => return Ok(only),
        (_, None) => format!("several devices have events: choose by --device: {}", named.join(", ")),
        ([only], Some(wanted)) if !only.name.contains('#') => {
            let end = only.expected.iter().flat_map(|end| &end.segments).next();
            let found = end.map_or(0, |segment| segment.device);
            if found == wanted {
                return Ok(only);
            }
            format!("device {wanted} has no events: expected {found}")
        }
        (traces, Some(wanted)) => match traces.iter().find(|trace| of(trace) == wanted) {
            Some(trace) => return Ok(trace),
            None => format!("device {wanted} has no events: expected one of {}", named.join(", ")),
        },
    };
    Err(BadInput::whole(file, what).into())
}

/// Returns the name of the file with the end of the program.
fn beside(output: &Path) -> Option<PathBuf> {
    let name = output.file_name()?.to_str()?;
    let base = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".csv")?;
    Some(output.with_file_name(format!("{base}.expected.json.gz")))
}

fn events(to: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    let has_notes = trace.events.iter().any(|event| event.of.note != Note::None);
    writeln!(to, "action,addr,size,stream{}", if has_notes { ",note" } else { "" })?;
    for event in &trace.events {
        write!(to, "{},{:x},{},{:x}", event.action.letter(), event.addr, event.size, event.of.stream)?;
        match (has_notes, event.of.note) {
            (false, _) => writeln!(to)?,
            (true, Note::None) => writeln!(to, ",")?,
            (true, Note::Capture) => writeln!(to, ",capture")?,
        }
    }
    Ok(())
}
