//! `cachalot top`: who holds the devices' memory now.

mod gather;
mod smi;

use super::bytes::show;
use super::table::{Look, Table};
use super::{BAD_INPUT, SCHEMA, book, print};
use cachalot_run::group::watch::GroupView;
use gather::{Answers, DeviceMemory, ProcessMemory, SleepView, Teller};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const LONG_ABOUT: &str = "\
Show who holds the devices' memory now, like nvidia-smi with reasons: each
process of the user that has a book, by shared object and kind, beside the
driver's own figure

A process has a book if it was started by cachalot run. The driver's figure is
of nvidia-smi, or the last one that a process was told. What neither a book nor
nvidia-smi names is unexplained. A process that can be parked tells its state,
and the bytes that it has on the host.

On a terminal the table is shown again every second, until Ctrl-C.

--json prints an object with schema, devices (each with its processes and their
books), groups; sizes in bytes.

Exits with 2 if the process has no book and is in no group.";

const EXAMPLES: &str = "\
Examples:
  cachalot top
  cachalot top --once 4711
  cachalot top --json";

/// Clears a terminal from its upper left corner.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Show who holds the devices' memory now, by process, shared object and kind
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Print a JSON object instead of text, once
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    /// Print the table once, as without a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two tables
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    #[arg(value_name = "PID|NAME", help = "Only this process, and its group")]
    process: Option<String>,
}

/// The output of `--json`.
#[derive(Serialize)]
struct TopLine<'a> {
    schema: u32,
    #[serde(flatten)]
    moment: &'a Answers,
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> ExitCode {
    let is_live = !args.json && !args.once && io::stdout().is_terminal();
    loop {
        let moment = match now(args.process.as_deref()) {
            Ok(moment) => moment,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(BAD_INPUT);
            }
        };
        let written = if args.json {
            let line = TopLine { schema: SCHEMA, moment: &moment };
            serde_json::to_string(&line).map_err(io::Error::from).and_then(print)
        } else {
            let clear = if is_live { CLEAR } else { "" };
            print(format!("{clear}{}", text(&moment, &args.look).trim_end()))
        };
        if !is_live || written.is_err() {
            return super::end(0, &written);
        }
        thread::sleep(Duration::from_secs(args.interval));
    }
}

/// Reads what is told now, on one process or on all.
fn now(process: Option<&str>) -> Result<Answers, String> {
    let mut moment = Answers::now().map_err(|error| error.to_string())?;
    match process {
        Some(process) if !moment.keep(process) => {
            Err(format!("process {process} has no book, and is in no group: start it with `cachalot run`"))
        }
        _ => Ok(moment),
    }
}

fn text(moment: &Answers, look: &Look) -> String {
    let mut text = String::new();
    for device in &moment.devices {
        let _ = writeln!(text, "{}", look.fold(&sentence(device), 2));
    }
    for group in &moment.groups {
        let _ = writeln!(text, "{}", look.fold(&membership(group), 2));
    }
    if text.is_empty() {
        return "No process of this user has a book, and no group has a member: start programs by `cachalot run` to see them here.".to_owned();
    }
    let mut table = Table::new(&book::COLUMNS);
    for device in &moment.devices {
        rows(&mut table, device, moment.devices.len() > 1);
    }
    if !table.is_empty() {
        let _ = write!(text, "\n{}", table.render(look));
    }
    text
}

/// Returns the sentence on a device.
fn sentence(device: &DeviceMemory) -> String {
    let DeviceMemory { device: name, booked, .. } = device;
    let booked = show(*booked);
    let (Some(used), Some(total), Some(unexplained)) = (device.used, device.total, device.unexplained) else {
        return format!("{name}: {booked} booked; nobody told the driver's figure.");
    };
    let source = match device.source {
        Some(Teller::Process) => ", as a process was told last",
        _ => "",
    };
    let unexplained = book::signed(unexplained);
    format!("{name}: {} of {} used{source}; {booked} booked, {unexplained} unexplained.", show(used), show(total))
}

/// Returns the sentence on a group.
fn membership(group: &GroupView) -> String {
    let held = group.members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.held));
    let limit = group.limit.map_or("no limit".to_owned(), |limit| format!("a limit of {}", show(limit)));
    let mut text = format!("Group {} on {}: {limit}, {} held", group.name, group.device, show(held));
    for (at, member) in group.members.iter().enumerate() {
        let mark = if at == 0 { ':' } else { ',' };
        let _ = write!(text, "{mark} {} by {} ({})", show(member.held), member.program, member.pid);
        if member.low > 0 {
            let _ = write!(text, " with {} kept", show(member.low));
        }
        if let Some(max) = member.max {
            let _ = write!(text, " of at most {}", show(max));
        }
        if member.want > 0 {
            let _ = write!(text, ", refused {}", show(member.want));
        }
    }
    text + "."
}

/// Returns where the memory of a process is, as the end of the process's name.
fn asleep(sleep: SleepView) -> String {
    match sleep.parked_bytes {
        0 => format!(", {}", sleep.state),
        bytes => format!(", {} {}", sleep.state, show(bytes)),
    }
}

/// Adds the rows of a device's processes, the greatest first.
fn rows(table: &mut Table, device: &DeviceMemory, is_named: bool) {
    let mut processes: Vec<&ProcessMemory> = device.processes.iter().collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.held()));
    let suffix = if is_named { format!(" on {}", device.device) } else { String::new() };
    for process in processes {
        let missing = if process.book.is_none() { ", without a book" } else { "" };
        let sleep = process.sleep.map_or(String::new(), asleep);
        let name = format!("{} ({}){missing}{sleep}{suffix}", process.program, process.pid);
        table.row(vec![name, show(process.held())]);
        let Some(view) = &process.book else { continue };
        book::rows(table, view);
        if let Some(used) = process.used {
            let rest = cachalot_run::ledger::view::difference(used, view.booked);
            table.row(vec!["  unexplained".to_owned(), book::signed(rest)]);
        }
        for line in book::left_out(view) {
            table.row(vec![format!("  {line}")]);
        }
    }
    if let Some(bytes) = device.unexplained {
        table.row(vec![format!("unexplained{suffix}"), book::signed(bytes)]);
    }
}
