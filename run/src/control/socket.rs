//! The sockets of a user: where they are, how their files are named, and who may connect.
//!
//! ```text
//! /dev/shm/cachalot-1000/control/4711-2405526-7ffd4a1c2b30-4026531836.sock
//! └── folder of the user ┘        pid  start   stack        namespace of process ids
//! ```
//!
//! The name is the identity of the process, so a socket of a dead process is known without a
//! connection, even if another process has the id by now. The file of a living process is never
//! removed by others.

use crate::shared::folder;
use crate::shared::process::{self, Identity};
use crate::shared::removal::{remove_at_exit, remove_now};
use cachalot_cuda::own_files::{OwnFile, out_of_the_way};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of the sockets in the folder of the user's files.
const FOLDER: &str = "control";

/// The end of the name of every socket's file.
const SUFFIX: &str = ".sock";

/// Connections that the system keeps for the server's next look.
const BACKLOG: i32 = 64;

/// The folder of the sockets of a user.
#[derive(Debug)]
pub(super) struct Sockets {
    path: PathBuf,
    opened: OwnedFd,
}

/// The socket of a process, by the name of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketName {
    pub(super) owner: Identity,
    namespace: u64,
}

impl Sockets {
    /// Opens the folder of sockets in the folder of a user, and creates a missing folder.
    ///
    /// # Errors
    /// The folder cannot be created, belongs to another user, or is open to more users.
    pub(super) fn make(of_user: &Path) -> io::Result<Self> {
        Self::open(folder::private(of_user.join(FOLDER))?)
    }

    /// Opens the folder of sockets in the folder of a user. `None`: the folder is missing.
    ///
    /// # Errors
    /// The folder belongs to another user, or is open to more users.
    pub(super) fn find(of_user: &Path) -> io::Result<Option<Self>> {
        let path = of_user.join(FOLDER);
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        Self::make(of_user).map(Some)
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Self { path, opened: out_of_the_way(opened) })
    }

    /// Returns the address of a file in the folder. The address is short, however long the path of
    /// the folder is: the system takes at most 107 bytes.
    fn address(&self, file: &str) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new(format!("{}/{file}", process::open_file(self.opened.as_fd())))?)
    }

    /// Returns the sockets of the living processes in the caller's namespace, in the order of
    /// process ids. Files of dead processes are removed.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn living(&self) -> io::Result<Vec<SocketName>> {
        let here = process::namespace()?;
        let mut living = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().and_then(SocketName::parse) else { continue };
            let is_here = name.namespace == here;
            // Process ids of another container say nothing here. Whether somebody listens does.
            let is_dead = if is_here { !name.owner.is_alive() } else { self.is_deaf(&name) };
            if is_dead {
                let _ = fs::remove_file(entry.path());
            } else if is_here {
                living.push(name);
            }
        }
        living.sort_by_key(|name| name.owner.pid);
        Ok(living)
    }

    /// Returns whether nobody has a socket open.
    fn is_deaf(&self, name: &SocketName) -> bool {
        self.connect(name, Duration::from_millis(1))
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Connects to a socket. A server that does not look is waited for until `wait` has passed.
    ///
    /// # Errors
    /// The process has no socket any more, or the time is over ([`io::ErrorKind::WouldBlock`]).
    pub(super) fn connect(&self, name: &SocketName, wait: Duration) -> io::Result<UnixStream> {
        let socket = new_socket()?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(wait))?;
        rustix::net::connect(&socket, &self.address(&name.to_file())?)?;
        Ok(UnixStream::from(socket))
    }
}

impl SocketName {
    /// Returns the name of the calling process's socket.
    fn of_caller() -> io::Result<Self> {
        Ok(Self { owner: Identity::of_caller()?, namespace: process::namespace()? })
    }

    /// Returns the name of the file.
    pub(super) fn to_file(self) -> String {
        let Self { owner: Identity { pid, start, image }, namespace } = self;
        format!("{pid}-{start}-{image:x}-{namespace}{SUFFIX}")
    }

    /// Reads the name of a file. `None`: the file is no socket of a process.
    pub(super) fn parse(file: &str) -> Option<Self> {
        let mut parts = file.strip_suffix(SUFFIX)?.split('-');
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let image = u64::from_str_radix(parts.next()?, 16).ok()?;
        let name = Self { owner: Identity { pid, start, image }, namespace: parts.next()?.parse().ok()? };
        // A second form of a number would be a second name of the process.
        (name.to_file() == file).then_some(name)
    }
}

/// The socket on which a process is asked.
#[derive(Debug)]
pub(super) struct Listener {
    /// `None` once another owner has the number.
    socket: Option<OwnedFd>,
    /// The system's numbers of the socket.
    inode: (u64, u64),
    /// The folder of the file, which is found from everywhere, also after a change of the root.
    folder: OwnFile,
    path: PathBuf,
    /// The process of the socket. A forked child has another id.
    pid: u32,
}

impl Listener {
    /// Creates the socket of the calling process, with the mode 0600.
    ///
    /// # Errors
    /// The folder cannot be used, or the process has a socket already
    /// ([`io::ErrorKind::AddrInUse`]).
    pub(super) fn new(of_user: &Path) -> io::Result<Self> {
        let sockets = Sockets::make(of_user)?;
        // The files of dead processes go now and then, and not only when a user looks.
        sockets.living()?;
        let name = SocketName::of_caller()?;
        let file = name.to_file();
        let socket = new_socket()?;
        let path = sockets.path.join(&file);
        match rustix::net::bind(&socket, &sockets.address(&file)?) {
            // Without random addresses, the program before an `exec` has the name, too. Nobody
            // listens there any more.
            Err(Errno::ADDRINUSE) if sockets.is_deaf(&name) => {
                fs::remove_file(&path)?;
                rustix::net::bind(&socket, &sockets.address(&file)?)?;
            }
            bound => bound?,
        }
        remove_at_exit(path.clone());
        let folder = OwnFile::new(sockets.opened.into())?;
        let mut listener = Self { socket: None, inode: (0, 0), folder, path, pid: name.owner.pid };
        // Nobody connects before `listen`, so the mode holds from the first connection on.
        rustix::fs::chmodat(listener.folder.get()?, &file, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        rustix::fs::fcntl_setfl(&socket, OFlags::NONBLOCK)?;
        rustix::net::listen(&socket, BACKLOG)?;
        listener.inode = inode(socket.as_fd()).ok_or(io::ErrorKind::InvalidData)?;
        listener.socket = Some(socket);
        Ok(listener)
    }

    /// Returns the socket, or `None` if the program has closed the socket: programs that become
    /// daemons close every number, and the number may belong to a file of the program by now.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        let socket = self.socket.as_ref()?.as_fd();
        (inode(socket) == Some(self.inode)).then_some(socket)
    }

    /// Returns whether the file was removed, so that nobody finds the socket.
    pub(super) fn is_removed(&self) -> bool {
        let file = self.path.file_name().unwrap_or_default();
        let found = self.folder.get().map(|folder| rustix::fs::statat(folder, file, AtFlags::SYMLINK_NOFOLLOW));
        found.is_ok_and(|found| found.is_err_and(|error| error == Errno::NOENT))
    }

    /// Takes the next connection. `None`: no connection waits.
    ///
    /// # Errors
    /// The system refuses, or the socket was stopped ([`io::ErrorKind::InvalidInput`]).
    pub(super) fn accept(&self) -> io::Result<Option<UnixStream>> {
        let Some(socket) = self.socket() else { return Err(io::ErrorKind::InvalidInput.into()) };
        match rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(connection) => Ok(Some(UnixStream::from(out_of_the_way(connection)))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the file and ends the server's wait. A forked child leaves its parent's socket
    /// alone.
    pub(super) fn stop(&self) {
        if self.pid != std::process::id() {
            return;
        }
        remove_now(&self.path);
        if let Some(socket) = self.socket() {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
        if self.socket().is_none()
            && let Some(socket) = self.socket.take()
        {
            // The program has closed the socket: the number is not the library's to close.
            let _ = socket.into_raw_fd();
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(out_of_the_way(socket))
}

/// Returns the system's numbers of an open file. `None`: the number is closed.
fn inode(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let found = rustix::fs::fstat(fd).ok()?;
    Some((found.st_dev, found.st_ino))
}

/// Returns the user at the far end of a connection, as the user was when connecting.
///
/// # Errors
/// The connection is none of this system's.
pub(super) fn peer(connection: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let socket = connection.as_raw_fd();
    // A process of another namespace has the id 0 here, which the safe function of `rustix`
    // excludes. SAFETY: the system writes at most `length` bytes to `found`, and both outlive the
    // call.
    let code = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast::<libc::c_void>(),
            &raw mut length,
        )
    };
    if code == 0 { Ok(found.uid) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether a user may ask a process of user `own`: the user, and root.
pub(super) fn is_admitted(user: u32, own: u32) -> bool {
    user == own || user == 0
}
