//! The threads that answer the requests of other processes.
//!
//! A thread reads all requests and answers `status` at once. A park, a wake, a snapshot and a trim
//! go to a second thread, one after another, so the first thread answers during a long park. The
//! second thread starts at the first of them. The program's signals reach neither of them, and no
//! answer raises a signal.

use super::protocol::{self, Action, Answer, ControlRefusal, MOST_REQUEST, RefusalKind, Request};
use super::socket::{self, Listener};
use super::status::{Status, plain};
use crate::shared::folder;
use crate::shared::process;
use crate::shared::threads::without_signals;
use cachalot_cuda::BackgroundWork;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of the stack of the reading thread.
const STACK: usize = 256 << 10;

/// Bytes of the stack of the thread for parks and wakes, which calls the driver.
const TASK_STACK: usize = 2 << 20;

/// Most connections without a complete request, and most waiting tasks.
const MOST: usize = 64;

/// How long a connection may take to send its request.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long the server rests after a failure, for instance if the program has too many open files.
const REST: Duration = Duration::from_millis(100);

/// A task that waited longer than its time is still started within this time.
const SLACK: Duration = Duration::from_millis(100);

/// Greatest number of characters of the name of a process.
pub const MOST_NAME: usize = 64;

/// A process that can be parked.
///
/// The functions are called on threads of the server, with no lock held. `park` and `wake` are
/// called on one thread, never two at once, and may call the driver. `status` may be called
/// meanwhile, must answer soon, and calls no driver. A panic becomes a refusal.
pub trait Controlled: Sync {
    /// Moves the memory to the host, and returns the state after the park. A parked process stays
    /// as before.
    ///
    /// # Errors
    /// The memory cannot be moved, or the program's work did not end within `timeout`. The process
    /// is awake.
    fn park(&self, timeout: Duration) -> Result<Status, ControlRefusal>;

    /// Moves the memory back to the device, and returns the state after the wake. A process awake
    /// stays as before.
    ///
    /// # Errors
    /// The device has not enough free memory within `timeout`, or a driver call fails. The process
    /// is parked.
    fn wake(&self, timeout: Duration) -> Result<Status, ControlRefusal>;

    /// Writes the latest events and all blocks to a file, and returns the state.
    ///
    /// # Errors
    /// No events are recorded, or the file cannot be written.
    fn snapshot(&self, file: &Path) -> Result<Status, ControlRefusal>;

    /// Gives cached memory back to the driver until at most `keep` bytes of served memory are held
    /// on each device, and returns the state with the bytes that went back.
    ///
    /// # Errors
    /// A reason why the memory cannot go back.
    fn trim(&self, keep: u64) -> Result<Status, ControlRefusal>;

    /// Returns the state.
    fn status(&self) -> Status;
}

/// The answering threads of a process. The drop ends the threads and removes the socket, as the
/// exit of the process does.
#[derive(Debug)]
pub struct Server {
    pub(super) listener: Arc<Listener>,
}

impl Server {
    /// Starts to answer in the folder of the calling user. `name`: the name of
    /// `cachalot run --name`; without a name, the process has the program's. Calls no driver.
    ///
    /// # Errors
    /// The user's folder cannot be used, the process answers already, or the system refuses a
    /// socket or a thread.
    pub fn start(name: Option<&str>, controlled: &'static dyn Controlled) -> io::Result<Self> {
        Self::start_in(&folder::of_user()?, name, controlled)
    }

    /// Starts to answer in a folder. See [`Server::start`].
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_in(folder: &Path, name: Option<&str>, controlled: &'static dyn Controlled) -> io::Result<Self> {
        Self::start_with(folder, name, controlled, PATIENCE)
    }

    /// Starts to answer. `patience`: how long a connection may take to send its request.
    pub(super) fn start_with(
        folder: &Path,
        name: Option<&str>,
        controlled: &'static dyn Controlled,
        patience: Duration,
    ) -> io::Result<Self> {
        let listener = Arc::new(Listener::new(folder)?);
        let pid = std::process::id();
        let program = plain(&process::program(pid), MOST_NAME);
        let name = name.map(|name| plain(name, MOST_NAME)).filter(|name| !name.is_empty());
        let subject = Subject { name: name.unwrap_or_else(|| program.clone()), program, pid, controlled };
        let desk = Desk { listener: Arc::clone(&listener), subject: Arc::new(subject), tasks: None, patience };
        start_thread("cachalot-control", STACK, move || desk.run())?;
        Ok(Self { listener })
    }
}

impl Server {
    /// Returns whether the socket has no name any more.
    pub fn is_out_of_reach(&self) -> bool {
        self.listener.is_removed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listener.stop();
    }
}

/// Starts a thread for the library, without the program's signals.
fn start_thread(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let start = || thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(run);
    without_signals(start).map(drop)
}

/// The process that is asked.
struct Subject {
    name: String,
    program: String,
    pid: u32,
    controlled: &'static dyn Controlled,
}

impl Subject {
    /// Calls a function of the program's side, and completes the answer.
    fn ask(&self, call: impl FnOnce(&dyn Controlled) -> Answer) -> Answer {
        // Once exit has started, the driver may be gone.
        let Some(_work) = BackgroundWork::begin() else { return self.refuse(RefusalKind::Busy, "the process ends") };
        let answer = catch_unwind(AssertUnwindSafe(|| call(self.controlled)));
        let answer = answer.unwrap_or_else(|_| {
            let text = format!("{}: a defect of the library: the request panicked", self.shown());
            Err(ControlRefusal::new(RefusalKind::Internal, text))
        });
        let (pid, name, program) = (self.pid, self.name.clone(), self.program.clone());
        answer.map(|status| Status { pid, name, program, ..status })
    }

    fn refuse(&self, kind: RefusalKind, reason: &str) -> Answer {
        Err(ControlRefusal::new(kind, format!("{}: {reason}", self.shown())))
    }

    fn shown(&self) -> String {
        format!("process {} ({})", self.pid, self.name)
    }
}

/// A connection without a complete request.
struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    until: Instant,
}

/// The data that a connection has sent.
enum Received {
    /// A part of a request.
    Part,
    /// A request, without the line break.
    Whole(Vec<u8>),
    /// More bytes than a request has.
    TooLong,
    /// The far end has gone without a request.
    Nothing,
}

impl Connection {
    /// Reads without waiting. The end of the stream ends the last line.
    fn receive(&mut self) -> Received {
        let mut part = [0; 1024];
        loop {
            match (&self.stream).read(&mut part) {
                Ok(0) if self.received.is_empty() => return Received::Nothing,
                Ok(0) => return Received::Whole(std::mem::take(&mut self.received)),
                Ok(count) => self.received.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Part,
                Err(_) => return Received::Nothing,
            }
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                self.received.truncate(end);
                return Received::Whole(std::mem::take(&mut self.received));
            }
            if self.received.len() >= MOST_REQUEST {
                return Received::TooLong;
            }
        }
    }
}

/// A park or a wake that waits for its turn.
struct Task {
    request: Request,
    stream: UnixStream,
    asked: Instant,
}

/// The state of the reading thread.
struct Desk {
    listener: Arc<Listener>,
    subject: Arc<Subject>,
    /// The way to the thread for parks and wakes. `None` until the first of them.
    tasks: Option<SyncSender<Task>>,
    patience: Duration,
}

impl Desk {
    /// Answers until the server stops, or the program closes the socket.
    fn run(mut self) {
        let mut open: Vec<Connection> = Vec::new();
        loop {
            let ready = match self.wait(&open) {
                Ok(ready) => ready,
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(_) => {
                    thread::sleep(REST);
                    continue;
                }
            };
            let now = Instant::now();
            let mut waiting = Vec::with_capacity(open.len() + 1);
            for (mut connection, is_ready) in open.into_iter().zip(ready.connections) {
                match if is_ready { connection.receive() } else { Received::Part } {
                    Received::Whole(line) => self.take(connection.stream, &line),
                    Received::TooLong => {
                        let reason = format!("a request has at most {MOST_REQUEST} bytes, with the line break");
                        self.refuse(&connection.stream, RefusalKind::BadRequest, &reason);
                    }
                    Received::Part if connection.until <= now => {
                        let reason = format!("no whole line came within {} ms", self.patience.as_millis());
                        self.refuse(&connection.stream, RefusalKind::BadRequest, &reason);
                    }
                    Received::Part => waiting.push(connection),
                    Received::Nothing => {}
                }
            }
            open = waiting;
            if ready.listener {
                match self.listener.accept() {
                    Ok(stream) => open.extend(stream.and_then(|stream| self.admit(stream))),
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                    // Too many open files, or no memory: the connection waits in the system.
                    Err(_) => thread::sleep(REST),
                }
            }
        }
        self.listener.stop();
    }

    /// Waits for a connection, a part of a request, or the end of a connection's time.
    fn wait(&self, open: &[Connection]) -> io::Result<Ready> {
        let Some(socket) = self.listener.socket() else { return Err(io::ErrorKind::InvalidInput.into()) };
        // Other connections wait in the system.
        let is_full = open.len() >= MOST;
        let own = PollFd::from_borrowed_fd(socket, if is_full { PollFlags::empty() } else { PollFlags::IN });
        let others = open.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN));
        let mut watched: Vec<_> = std::iter::once(own).chain(others).collect();
        let left = open.iter().map(|connection| connection.until.saturating_duration_since(Instant::now())).min();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut watched, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = watched.iter().map(|one| !one.revents().is_empty());
        Ok(Ready { listener: ready.next().unwrap_or(false), connections: ready.collect() })
    }

    /// Checks who has connected.
    fn admit(&self, stream: UnixStream) -> Option<Connection> {
        let own = folder::user();
        match socket::peer(&stream) {
            Ok(user) if socket::is_admitted(user, own) => {
                Some(Connection { stream, received: Vec::new(), until: Instant::now() + self.patience })
            }
            Ok(user) => {
                let reason = format!("belongs to user {own}, and the request comes from user {user}");
                self.refuse(&stream, RefusalKind::Denied, &reason);
                None
            }
            Err(_) => None,
        }
    }

    fn refuse(&self, stream: &UnixStream, kind: RefusalKind, reason: &str) {
        send(stream, self.subject.refuse(kind, reason));
    }

    /// Answers a request, or passes the request on to the thread for parks and wakes.
    fn take(&mut self, stream: UnixStream, line: &[u8]) {
        let request = match Request::of_line(line) {
            Ok(request) => request,
            Err(refusal) => return self.refuse(&stream, refusal.kind, &refusal.text),
        };
        if request.action == Action::Status {
            return send(&stream, self.subject.ask(|controlled| Ok(controlled.status())));
        }
        let task = Task { request, stream, asked: Instant::now() };
        let tasks = match self.tasks() {
            Ok(tasks) => tasks,
            Err(error) => {
                let reason = format!("no thread for the request: {error}");
                return self.refuse(&task.stream, RefusalKind::Internal, &reason);
            }
        };
        if let Err(TrySendError::Full(task) | TrySendError::Disconnected(task)) = tasks.try_send(task) {
            self.refuse(&task.stream, RefusalKind::Busy, &format!("{MOST} requests wait already"));
        }
    }

    /// Returns the way to the thread for parks and wakes, and starts a missing thread.
    fn tasks(&mut self) -> io::Result<&SyncSender<Task>> {
        let tasks = if let Some(tasks) = self.tasks.take() {
            tasks
        } else {
            let (tasks, received) = sync_channel(MOST);
            let subject = Arc::clone(&self.subject);
            start_thread("cachalot-park", TASK_STACK, move || work(&subject, &received))?;
            tasks
        };
        Ok(self.tasks.insert(tasks))
    }
}

/// The result of a wait.
struct Ready {
    listener: bool,
    connections: Vec<bool>,
}

/// Parks and wakes as asked, until the reading thread ends.
fn work(subject: &Subject, tasks: &Receiver<Task>) {
    while let Ok(Task { request, stream, asked }) = tasks.recv() {
        // A user who has given up no longer wants the effect.
        if is_gone(&stream) {
            continue;
        }
        let (waited, timeout) = (asked.elapsed(), request.timeout());
        let answer = if waited > timeout.max(SLACK) {
            let reason = format!("other requests took the whole time of {} ms", timeout.as_millis());
            subject.refuse(RefusalKind::Busy, &reason)
        } else {
            let left = timeout.saturating_sub(waited);
            subject.ask(|controlled| match request.action {
                Action::Park => controlled.park(left),
                Action::Wake => controlled.wake(left),
                Action::Snapshot => controlled.snapshot(request.file.as_deref().unwrap_or(Path::new(""))),
                Action::Trim => controlled.trim(request.keep()),
                Action::Status => Ok(controlled.status()),
            })
        };
        send(&stream, answer);
    }
}

/// Returns whether the far end has closed the connection. A far end that only ends its writing
/// still waits for the answer.
fn is_gone(stream: &UnixStream) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&now)).is_ok() && watched[0].revents().contains(PollFlags::HUP)
}

/// Sends an answer without waiting: the greatest answer fits into the buffer of a new connection.
/// The answer to a far end that is gone is left out.
fn send(stream: &UnixStream, answer: Answer) {
    let line = protocol::answer_line(answer);
    let mut rest = &line[..];
    while !rest.is_empty() {
        match rustix::net::send(stream, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
