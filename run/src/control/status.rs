//! The state of a process's sleep, for other processes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a process: bytes, milliseconds and counts.
///
/// An implementation of [`Controlled`](super::Controlled) leaves out `pid`, `name` and `program`:
/// the server writes these fields. A reader passes over unknown fields, so later versions may add
/// fields.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The process id.
    pub pid: u32,
    /// The name of `cachalot run --name`, or the program.
    pub name: String,
    /// The program's name at the start of the server, as `ps` and `cachalot top` print the name.
    pub program: String,
    /// The group of the process. `None`: the process is in no group.
    pub group: Option<String>,
    /// Whether the memory is on the device.
    pub state: SleepState,
    /// Milliseconds since the last submission of work. `None`: no work was submitted yet.
    pub idle_ms: Option<u64>,
    /// Milliseconds awake since the last wake, or since the start. 0 while parked.
    pub awake_ms: u64,
    /// Bytes of the program's memory that are on the host or in files.
    pub parked_bytes: u64,
    /// Bytes of the program's memory on the device, served or mapped by the program, that the
    /// library holds.
    pub device_bytes: u64,
    /// Device memory that a park leaves on the device, by reason.
    pub remaining: Vec<Remainder>,
    /// The devices in use, as `nvidia-smi -L` prints the identities.
    pub devices: Vec<String>,
    /// The last complete park. `None`: the process was never parked.
    pub last_park: Option<Transfer>,
    /// The last complete wake. `None`: the process was never woken.
    pub last_wake: Option<Transfer>,
    /// Number of complete parks.
    pub parks: u64,
    /// Number of complete wakes.
    pub wakes: u64,
    /// The last failure of a park or a wake. `None`: no failure yet.
    pub last_error: Option<String>,
    /// Bytes that went back to the driver, in the answer to a trim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_bytes: Option<u64>,
    /// Whether no park moves the memory of the process: it writes snapshots and gives memory back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stays_awake: bool,
}

/// The state of a process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SleepState {
    /// On the device.
    #[default]
    Awake,
    /// On the way to the host.
    Parking,
    /// On the host, or in files.
    Parked,
    /// On the way back to the device.
    Waking,
}

/// Device memory that a park leaves on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Remainder {
    /// The reason.
    pub what: RemainderKind,
    /// Bytes.
    pub bytes: u64,
}

/// Why memory stays on the device while the process is parked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RemainderKind {
    /// Contexts, and memory of the driver's own.
    Context,
    /// Modules, libraries and kernels.
    Module,
    /// Memory of graphs.
    Graph,
    /// Managed memory.
    Managed,
    /// Memory that other processes have opened, or may open.
    Exported,
    /// Memory pinned on the device, or registered with another library.
    Pinned,
    /// Physical memory that the program maps itself (`cuMemCreate`), and that a park cannot create
    /// again.
    Virtual,
    /// Arrays and textures.
    Arrays,
    /// Memory of the driver's pools (`cuMemAllocAsync`), passed on.
    Pool,
    /// Requests answered by the driver, and not served.
    Plain,
    /// Memory that the user keeps awake.
    KeptAwake,
    /// The driver's figure, less the sum of the books.
    Unexplained,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

/// A complete park or wake.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// Milliseconds from the first step to the last.
    pub ms: u64,
    /// Bytes moved.
    pub bytes: u64,
}

impl Status {
    /// Greatest number of characters of a text, for instance of an error.
    const MOST_TEXT: usize = 1000;

    /// Makes the texts fit for a terminal and for a line of the protocol: a control character
    /// becomes `U+FFFD`, and the end of a long text is cut off.
    pub(super) fn clean(mut self) -> Self {
        let texts = [&mut self.name, &mut self.program].into_iter();
        let optional = [&mut self.group, &mut self.last_error].into_iter().flatten();
        for text in texts.chain(optional).chain(&mut self.devices) {
            *text = plain(text, Self::MOST_TEXT);
        }
        self
    }
}

/// Returns the first `most` characters of a text, without control characters.
pub(super) fn plain(text: &str, most: usize) -> String {
    text.chars().take(most).map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

impl SleepState {
    /// Returns the state's name in JSON and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Awake => "awake",
            Self::Parking => "parking",
            Self::Parked => "parked",
            Self::Waking => "waking",
        }
    }
}

impl RemainderKind {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Context,
        Self::Module,
        Self::Graph,
        Self::Managed,
        Self::Exported,
        Self::Pinned,
        Self::Virtual,
        Self::Arrays,
        Self::Pool,
        Self::Plain,
        Self::KeptAwake,
        Self::Unexplained,
        Self::Other,
    ];

    /// Returns the reason's name in JSON and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Module => "module",
            Self::Graph => "graph",
            Self::Managed => "managed",
            Self::Exported => "exported",
            Self::Pinned => "pinned",
            Self::Virtual => "virtual",
            Self::Arrays => "arrays",
            Self::Pool => "pool",
            Self::Plain => "plain",
            Self::KeptAwake => "kept_awake",
            Self::Unexplained => "unexplained",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for SleepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for RemainderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
