//! Figures of the devices' memory: of books, of groups, of the driver, and of processes behind a
//! socket.

use super::smi;
use cachalot_run::control::client::{sleepers_in, statuses};
use cachalot_run::control::{SleepState, Status};
use cachalot_run::everyone::Everyone;
use cachalot_run::group::watch::{GroupView, groups};
use cachalot_run::ledger::view::{BookView, difference};
use cachalot_run::ledger::{Kind, publish};
use cachalot_run::shared::folder;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// Greatest number of letters of a program with its arguments.
const MOST_LETTERS: usize = 1000;

/// All answers of a moment.
#[derive(Serialize)]
pub(super) struct Answers {
    pub(super) devices: Vec<DeviceMemory>,
    pub(super) groups: Vec<GroupView>,
    /// Whether all users are asked for.
    #[serde(skip)]
    pub(super) all: bool,
}

/// The source of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Teller {
    NvidiaSmi,
    /// A process with a book, the last time that it asked the driver.
    Process,
}

/// The memory of a device.
#[derive(Serialize)]
pub(super) struct DeviceMemory {
    pub(super) device: String,
    /// The number of the device, as `nvidia-smi` has it. `None`: not known.
    pub(super) index: Option<u32>,
    /// The driver's own figures of the device. `None`: neither `nvidia-smi` nor a process with a
    /// book has reported the figures.
    pub(super) used: Option<u64>,
    pub(super) total: Option<u64>,
    pub(super) source: Option<Teller>,
    /// Bytes in the books of all processes.
    pub(super) booked: u64,
    /// Used bytes, less the books, and less processes without a book.
    pub(super) unexplained: Option<i64>,
    pub(super) processes: Vec<ProcessMemory>,
}

/// The memory of a process on a device.
#[derive(Serialize)]
pub(super) struct ProcessMemory {
    pub(super) pid: u32,
    /// The name of `cachalot run --name`, or the program's.
    pub(super) program: String,
    /// The program and its arguments, as the system has them. `None`: the process has ended, or is
    /// hidden.
    pub(super) command: Option<String>,
    /// Whose process it is, where all users are asked for.
    #[serde(flatten)]
    pub(super) home: Option<Home>,
    /// The driver's figure for the process, if `nvidia-smi` reports it.
    pub(super) used: Option<u64>,
    /// `None`: the process has no book.
    pub(super) book: Option<BookView>,
    /// `None`: the process cannot be parked, or does not answer.
    pub(super) sleep: Option<SleepView>,
}

/// The user and the container of a process.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Home {
    pub(super) user: u32,
    /// The namespace of process ids, if it is not the reader's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<u64>,
}

impl Home {
    /// Looks at a process. `None`: it has ended.
    fn of(pid: u32) -> Option<Self> {
        let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let namespace = |process: &str| Some(std::fs::metadata(format!("/proc/{process}/ns/pid")).ok()?.ino());
        let own = namespace("self");
        Some(Self { user, container: namespace(&pid.to_string()).filter(|&other| Some(other) != own) })
    }
}

/// The place of a process's memory.
#[derive(Clone, Copy, Serialize)]
pub(super) struct SleepView {
    pub(super) state: SleepState,
    pub(super) parked_bytes: u64,
    pub(super) idle_ms: Option<u64>,
}

impl Answers {
    /// Reads all books and groups of the user, or of `all` users and containers, and asks
    /// `nvidia-smi` and all processes of the user with a socket.
    ///
    /// # Errors
    /// The user's folder or `/proc` cannot be used.
    pub(super) fn now(all: bool) -> io::Result<Self> {
        let folder = folder::of_user()?;
        let (devices, processes) = smi::ask();
        let Everyone { books, groups } = if all {
            Everyone::now()?
        } else {
            Everyone { books: publish::in_folder(&folder)?, groups: groups(&folder)? }
        };
        let mut answers = Self::of(books, groups, &devices, &processes);
        if all {
            answers.all = true;
            let processes = answers.devices.iter_mut().flat_map(|device| &mut device.processes);
            processes.for_each(|process| process.home = Home::of(process.pid));
        }
        let told: Vec<Status> =
            statuses(&sleepers_in(&folder)?).into_iter().flatten().filter(|told| !told.stays_awake).collect();
        for process in answers.devices.iter_mut().flat_map(|device| &mut device.processes) {
            process.sleep = told.iter().find(|told| told.pid == process.pid).map(|told| SleepView {
                state: told.state,
                parked_bytes: told.parked_bytes,
                idle_ms: told.idle_ms,
            });
        }
        Ok(answers)
    }

    fn of(mut books: Vec<BookView>, groups: Vec<GroupView>, known: &[smi::Device], processes: &[smi::Process]) -> Self {
        let told = known.iter().map(|device| device.uuid.clone());
        let names: BTreeSet<String> = told.chain(books.iter().map(|book| book.device.clone())).collect();
        let devices = names.into_iter().map(|device| {
            let here: Vec<_> = books.extract_if(.., |book| book.device == device).collect();
            let told = known.iter().find(|known| known.uuid == device);
            let processes = processes.iter().filter(|process| process.device == device);
            DeviceMemory::of(device.clone(), here, told, processes.cloned().collect())
        });
        Self { devices: devices.collect(), groups, all: false }
    }

    /// Keeps the answers on the processes of an id or a name, or on the members of a group. Returns
    /// whether any is left.
    pub(super) fn keep(&mut self, sought: &str) -> bool {
        let members = self.groups.iter().filter(|group| group.name == sought).flat_map(|group| &group.members);
        let members: BTreeSet<u32> = members.map(|member| member.pid).collect();
        let is_it = |pid: u32, name: &str| {
            members.contains(&pid) || sought.parse().map_or(name == sought, |named: u32| named == pid)
        };
        for device in &mut self.devices {
            device.processes.retain(|process| is_it(process.pid, &process.program));
        }
        self.devices.retain(|device| !device.processes.is_empty());
        self.groups.retain(|group| group.members.iter().any(|member| is_it(member.pid, &member.program)));
        !self.devices.is_empty() || !self.groups.is_empty()
    }
}

impl DeviceMemory {
    fn of(device: String, books: Vec<BookView>, told: Option<&smi::Device>, mut others: Vec<smi::Process>) -> Self {
        let booked = books.iter().fold(0_u64, |sum, book| sum.saturating_add(book.booked));
        // A process asks the driver now and then: the last answer counts.
        let last = books.iter().filter_map(|book| book.driver).max_by_key(|driver| driver.when);
        let (used, total, source) = match (told.and_then(|told| told.memory), last) {
            (Some(told), _) => (Some(told.used), Some(told.total), Some(Teller::NvidiaSmi)),
            (None, Some(last)) => (Some(last.used), Some(last.total), Some(Teller::Process)),
            (None, None) => (None, None, None),
        };
        let mut processes: Vec<_> = books
            .into_iter()
            .map(|book| {
                let at = others.iter().position(|other| other.pid == book.pid);
                let used = at.map(|at| others.remove(at).used);
                let (pid, program) = (book.pid, book.program.clone());
                ProcessMemory { pid, program, command: command(pid), home: None, used, book: Some(book), sleep: None }
            })
            .collect();
        let bookless = others.iter().fold(0_u64, |sum, other| sum.saturating_add(other.used));
        processes.extend(others.into_iter().map(|other| ProcessMemory {
            pid: other.pid,
            program: program(other.pid),
            command: command(other.pid),
            home: None,
            used: Some(other.used),
            book: None,
            sleep: None,
        }));
        let unexplained = used.map(|used| difference(used, booked.saturating_add(bookless)));
        let index = told.map(|told| told.index);
        Self { device, index, used, total, source, booked, unexplained, processes }
    }
}

impl ProcessMemory {
    /// Returns the number of milliseconds without a submission, if the process reports it.
    pub(super) fn idle_ms(&self) -> Option<u64> {
        self.sleep.and_then(|sleep| sleep.idle_ms)
    }

    /// Returns the bytes held by the process: the driver's figure, or the book's.
    pub(super) fn held(&self) -> u64 {
        self.used.or(self.book.as_ref().map(|book| book.booked)).unwrap_or(0)
    }

    /// Returns the bytes of the host that serve the process in place of the device's, by its book.
    pub(super) fn spilled(&self) -> Option<u64> {
        let kinds = self.book.as_ref()?.objects.iter().flat_map(|object| &object.kinds);
        Some(kinds.filter(|kind| kind.kind == Kind::Spilled).map(|kind| kind.bytes).sum())
    }
}

/// Returns the program's name of a process without a book.
fn program(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    plain(&name)
}

/// Returns the program's file and arguments of a process.
fn command(pid: u32) -> Option<String> {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = text.split(|&byte| byte == 0).filter(|word| !word.is_empty()).map(plain);
    let line = words.collect::<Vec<_>>().join(" ");
    Some(line.chars().take(MOST_LETTERS).collect()).filter(|line: &String| !line.is_empty())
}

/// Returns a text for a terminal, which would obey control characters.
fn plain(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.trim_end().chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::{Answers, Teller, smi};
    use cachalot_run::ledger::view::{BookView, DriverView};

    fn book(pid: u32, booked: u64, driver: Option<(u64, u64)>) -> BookView {
        BookView {
            pid,
            program: "a".to_owned(),
            device: "GPU-1".to_owned(),
            driver: driver.map(|(used, when)| DriverView { used, total: 100, when }),
            booked,
            unexplained: None,
            objects: Vec::new(),
            dropped: 0,
            dropped_bytes: 0,
            unknown_frees: 0,
            unnamed: 0,
            stacks: Vec::new(),
            dropped_stacks: 0,
        }
    }

    #[test]
    fn the_last_figure_of_a_process_counts_where_nobody_else_tells() {
        let books = vec![book(1, 30, Some((50, 2))), book(2, 40, Some((90, 3))), book(3, 5, None)];
        let moment = Answers::of(books, Vec::new(), &[], &[]);
        let device = &moment.devices[0];
        assert!(device.source == Some(Teller::Process));
        assert_eq!((device.used, device.booked, device.unexplained), (Some(90), 75, Some(15)));
        let moment = Answers::of(vec![book(1, 30, None)], Vec::new(), &[], &[]);
        assert_eq!((moment.devices[0].used, moment.devices[0].unexplained), (None, None));
    }

    #[test]
    fn processes_without_a_book_are_explained_by_the_driver() {
        let device = |name: &str, used| {
            let memory = Some(smi::Memory { used, total: 100 });
            smi::Device { index: 0, uuid: name.to_owned(), memory }
        };
        let process = |pid, used| smi::Process { device: "GPU-1".to_owned(), pid, used };
        let books = vec![book(1, 30, Some((50, 2)))];
        let devices = [device("GPU-1", 90), device("GPU-2", 0)];
        let mut moment = Answers::of(books, Vec::new(), &devices, &[process(1, 35), process(u32::MAX, 50)]);
        assert_eq!(moment.devices.len(), 2);
        let one = &moment.devices[0];
        assert!(one.source == Some(Teller::NvidiaSmi));
        assert_eq!((one.used, one.booked, one.unexplained), (Some(90), 30, Some(10)));
        assert_eq!(one.processes.iter().map(super::ProcessMemory::held).collect::<Vec<_>>(), [35, 50]);
        assert!(one.processes[1].book.is_none());
        assert!(!moment.keep("7") && !moment.keep("a"));
    }
}
