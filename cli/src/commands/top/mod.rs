//! `cachalot top`: who holds the devices' memory now.

mod gather;
mod keys;
mod metrics;
mod smi;

use super::bytes::show;
use super::table::{Look, Table};
use super::{BAD_INPUT, SCHEMA, book, print};
use cachalot_run::group::watch::GroupView;
use gather::{Answers, DeviceMemory, Home, ProcessMemory, SleepView, Teller};
use keys::{Keys, Wish};
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const LONG_ABOUT: &str = "\
Show who holds the devices' memory now, and why: each process of the user that
has a book, by shared object and kind, compared with the driver's own figure

With --all, root sees the processes and groups of all users, also in containers,
by the ids that they have outside; what is parked is told for root's own.

A process has a book if it was started by cachalot run. The driver's figure
comes from nvidia-smi, or is the last one that a process received. What neither
a book nor nvidia-smi names is unexplained. A process that can be parked reports
its state, and the bytes that it has on the host.

On a terminal the table is shown again every second. The keys m, n, p and i sort
the processes by memory, name, process id and idle time, and q quits.

--json prints an object with schema, devices (each with its processes and their
books), groups; sizes in bytes. --metrics prints the same figures as OpenMetrics
text, for a scrape or a file that Prometheus' node exporter collects.

Exits with 2 if the process has no book and is in no group, and no group has the
name.";

const EXAMPLES: &str = "\
Examples:
  cachalot top
  cachalot top --once 4711
  cachalot top --sort idle team
  cachalot top --json
  sudo cachalot top --all";

/// Clears a terminal from its upper left corner.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Show who holds the devices' memory now, by process, shared object and kind
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct TopArgs {
    /// Print a JSON object instead of text, once
    #[arg(long)]
    json: bool,
    /// Print metrics for Prometheus instead of text, once
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
    #[command(flatten)]
    look: Look,
    /// The processes and groups of all users, in every container. Needs root
    #[arg(long)]
    all: bool,
    /// Print the table once, as without a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two tables
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// The order of the processes
    #[arg(long, value_name = "ORDER", value_enum, default_value_t = Order::Memory)]
    sort: Order,
    #[arg(value_name = "PID|NAME", help = "Only this process and its group, or the members of this group")]
    process: Option<String>,
}

/// An order of processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Order {
    /// The most memory first
    Memory,
    /// By the name
    Name,
    /// By the process id
    Pid,
    /// The longest idle first
    Idle,
}

impl Order {
    /// Returns the order of a key.
    fn of_key(key: char) -> Option<Self> {
        [(Self::Memory, 'm'), (Self::Name, 'n'), (Self::Pid, 'p'), (Self::Idle, 'i')]
            .into_iter()
            .find_map(|(order, letter)| (letter == key).then_some(order))
    }

    fn sort(self, processes: &mut [&ProcessMemory]) {
        match self {
            Self::Memory => processes.sort_by_key(|process| Reverse(process.held())),
            Self::Name => processes.sort_by(|one, other| one.program.cmp(&other.program)),
            Self::Pid => processes.sort_by_key(|process| process.pid),
            Self::Idle => processes.sort_by_key(|process| Reverse(process.idle_ms())),
        }
    }
}

/// The last line of a table that is shown again.
const FOOTER: &str = "q quits; m, n, p, i sort by memory, name, process id, idle time";

/// The output of `--json`.
#[derive(Serialize)]
struct TopLine<'a> {
    schema: u32,
    #[serde(flatten)]
    moment: &'a Answers,
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> ExitCode {
    let is_live = !args.json && !args.metrics && !args.once && io::stdout().is_terminal();
    let keys = if is_live { Keys::new() } else { None };
    let mut order = args.sort;
    loop {
        let moment = match now(args.all, args.process.as_deref()) {
            Ok(moment) => moment,
            Err(error) => {
                complain!("{error}");
                return ExitCode::from(BAD_INPUT);
            }
        };
        let written = if args.json {
            let line = TopLine { schema: SCHEMA, moment: &moment };
            serde_json::to_string(&line).map_err(io::Error::from).and_then(print)
        } else if args.metrics {
            print(metrics::of(&moment).trim_end())
        } else {
            let (clear, footer) = if is_live { (CLEAR, keys.as_ref().map(|_| FOOTER)) } else { ("", None) };
            let footer = footer.map_or(String::new(), |footer| format!("\n\n{footer}"));
            print(format!("{clear}{}{footer}", text(&moment, &args.look, order).trim_end()))
        };
        if !is_live || written.is_err() {
            return super::end(0, &written);
        }
        let interval = Duration::from_secs(args.interval);
        let Some(keys) = &keys else {
            thread::sleep(interval);
            continue;
        };
        match keys.wait(interval) {
            Wish::Quit => return ExitCode::SUCCESS,
            Wish::Show => {}
            Wish::Sort(key) => order = Order::of_key(key).unwrap_or(order),
        }
    }
}

/// Reads what is told now, on one process or on all.
fn now(all: bool, process: Option<&str>) -> Result<Answers, String> {
    if all && !rustix::process::geteuid().is_root() {
        return Err("--all: only root may look into the processes of others".to_owned());
    }
    let mut moment = Answers::now(all).map_err(|error| error.to_string())?;
    match process {
        Some(process) if !moment.keep(process) => Err(format!(
            "process {process} has no book, and is in no group, and no group has the name: start programs with `cachalot run`"
        )),
        _ => Ok(moment),
    }
}

fn text(moment: &Answers, look: &Look, order: Order) -> String {
    let mut text = String::new();
    for device in &moment.devices {
        let _ = writeln!(text, "{}", look.fold(&sentence(device), 2));
    }
    for group in &moment.groups {
        let device = moment.devices.iter().find(|device| device.device == group.device);
        let device = device.map_or(group.device.clone(), named);
        let _ = writeln!(text, "{}", look.fold(&membership(group, &device), 2));
    }
    if text.is_empty() {
        let whose = if moment.all { "any" } else { "this" };
        return format!(
            "No process of {whose} user has a book, and no group has a member: start programs by `cachalot run` to see them here."
        );
    }
    let mut table = Table::new(&book::COLUMNS);
    for device in &moment.devices {
        rows(&mut table, device, moment.devices.len() > 1, order);
    }
    if !table.is_empty() {
        let _ = write!(text, "\n{}", table.render(look));
    }
    text
}

/// Returns the sentence on a device.
fn sentence(device: &DeviceMemory) -> String {
    let (name, booked) = (whole_name(device), show(device.booked));
    let (Some(used), Some(total), Some(unexplained)) = (device.used, device.total, device.unexplained) else {
        return format!("{name}: {booked} booked; the driver's figure is unknown.");
    };
    let source = match device.source {
        Some(Teller::Process) => ", as last reported to a process",
        _ => "",
    };
    let unexplained = book::signed(unexplained);
    format!("{name}: {} of {} used{source}; {booked} booked, {unexplained} unexplained.", show(used), show(total))
}

/// Returns the short name of a device: its number, if it is known.
fn named(device: &DeviceMemory) -> String {
    device.index.map_or_else(|| device.device.clone(), |index| format!("GPU {index}"))
}

/// Returns the number and the identity of a device.
fn whole_name(device: &DeviceMemory) -> String {
    device.index.map_or_else(|| device.device.clone(), |index| format!("GPU {index} ({})", device.device))
}

/// Returns the sentence on a group.
fn membership(group: &GroupView, device: &str) -> String {
    let held = group.members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.held));
    let limit = group.limit.map_or("no limit".to_owned(), |limit| format!("a limit of {}", show(limit)));
    let user = group.user.map_or(String::new(), |user| format!(" of user {user}"));
    let mut text = format!("Group {}{user} on {device}: {limit}, {} held", group.name, show(held));
    for (at, member) in group.members.iter().enumerate() {
        let mark = if at == 0 { ':' } else { ',' };
        let place = if member.container.is_some() { " in a container" } else { "" };
        let _ = write!(text, "{mark} {} by {} ({}{place})", show(member.held), member.program, member.pid);
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

/// Returns whose process it is, as a part of the process's name.
fn housed(home: Home) -> String {
    let place = if home.container.is_some() { " in a container" } else { "" };
    format!(", user {}{place}", home.user)
}

/// Greatest number of letters of a program's arguments in a row.
const MOST_ARGUMENTS: usize = 60;

/// Returns the name of a process in a row. Several processes of a name are told apart by their
/// arguments.
fn name_in(process: &ProcessMemory, all: &[ProcessMemory]) -> String {
    let is_shared = all.iter().filter(|other| other.program == process.program).count() > 1;
    let arguments = process.command.as_deref().filter(|_| is_shared).and_then(|line| line.split_once(' '));
    let Some((_, arguments)) = arguments else { return format!("{} ({})", process.program, process.pid) };
    let cut: String = arguments.chars().take(MOST_ARGUMENTS).collect();
    let mark = if cut.len() < arguments.len() { "…" } else { "" };
    format!("{} ({}: {cut}{mark})", process.program, process.pid)
}

/// Adds the rows of a device's processes.
fn rows(table: &mut Table, device: &DeviceMemory, is_named: bool, order: Order) {
    let mut processes: Vec<&ProcessMemory> = device.processes.iter().collect();
    order.sort(&mut processes);
    let suffix = if is_named { format!(" on {}", named(device)) } else { String::new() };
    for process in processes {
        let missing = if process.book.is_none() { ", without a book" } else { "" };
        let sleep = process.sleep.map_or(String::new(), asleep);
        let home = process.home.map_or(String::new(), housed);
        let name = format!("{}{home}{missing}{sleep}{suffix}", name_in(process, &device.processes));
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
