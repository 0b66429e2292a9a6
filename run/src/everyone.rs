//! What root sees: the groups and the books of all users, in every container of the host.
//!
//! The files of a process are in a folder of its own user and its own mounts. So the folders are
//! found by the processes: each of `cachalot run` has its options in its environment, and its files
//! below `/proc/PID/root`. Nothing is written or removed there. A link of a container leads to
//! where it leads inside of the container, so no path comes out of it.

use crate::group::watch::{GroupView, groups_of};
use crate::ledger::publish;
use crate::ledger::view::BookView;
use crate::options;
use crate::shared::folder;
use crate::shared::process::open_file;
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The groups and the books of all users. Process ids are the reader's where they are known.
#[derive(Default, Debug)]
pub struct Everyone {
    /// The groups, each with its user.
    pub groups: Vec<GroupView>,
    /// The books.
    pub books: Vec<BookView>,
}

impl Everyone {
    /// Reads the files of all processes of `cachalot run` that the caller may look into: root may
    /// look into all.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn now() -> io::Result<Self> {
        let all: Vec<Running> =
            fs::read_dir("/proc")?.flatten().filter_map(|entry| Running::of(&entry.path())).collect();
        let ids: HashMap<(u64, u32), u32> = all.iter().map(|one| ((one.namespace, one.pid_there), one.pid)).collect();
        let id = |namespace: u64, pid: u32| ids.get(&(namespace, pid)).copied();
        let (mut known, mut everyone) = (HashSet::new(), Self::default());
        for (running, folder) in all.iter().flat_map(|one| one.folders().into_iter().map(move |folder| (one, folder))) {
            let Ok(found) = fstat(&folder) else { continue };
            let is_others = found.st_uid != running.user || found.st_mode & 0o077 != 0;
            if is_others || !known.insert((found.st_dev, found.st_ino)) {
                continue;
            }
            let path = open_file(folder.as_fd());
            // A folder may be removed meanwhile.
            for mut group in groups_of(Path::new(&path), running.user).unwrap_or_default() {
                group.user = Some(running.user);
                for member in &mut group.members {
                    member.pid = member.container.and_then(|at| id(at, member.pid)).unwrap_or(member.pid);
                }
                everyone.groups.push(group);
            }
            for (namespace, mut book) in publish::of_other(Path::new(&path), running.user).unwrap_or_default() {
                book.pid = id(namespace, book.pid).unwrap_or(book.pid);
                everyone.books.push(book);
            }
        }
        everyone
            .groups
            .sort_by(|one, other| (one.user, &one.name, &one.device).cmp(&(other.user, &other.name, &other.device)));
        everyone.books.sort_by(|one, other| (one.pid, &one.device).cmp(&(other.pid, &other.device)));
        Ok(everyone)
    }
}

/// A process of `cachalot run`.
struct Running {
    pid: u32,
    /// Its effective user.
    user: u32,
    /// Its namespace of process ids, and its id there.
    namespace: u64,
    pid_there: u32,
    /// What it has in place of `/`.
    root: OwnedFd,
    /// The folders that its environment names: of the user's files, and of the session.
    named: Option<Vec<u8>>,
    session: Option<Vec<u8>>,
}

impl Running {
    /// Looks at a process by its folder in `/proc`. `None`: the process is of another kind, or has
    /// ended.
    fn of(folder: &Path) -> Option<Self> {
        let pid = folder.file_name()?.to_str()?.parse().ok()?;
        let environment = fs::read(folder.join("environ")).ok()?;
        let value = |name: &str| {
            let variables = environment.split(|&byte| byte == 0);
            let mut values = variables.filter_map(|text| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            values.next().filter(|value| !value.is_empty()).map(<[u8]>::to_vec)
        };
        value(options::VARIABLE)?;
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let words =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_ascii_whitespace);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Some(Self {
            pid,
            // The real user comes first.
            user: words("Uid:")?.nth(1)?.parse().ok()?,
            namespace: fs::metadata(folder.join("ns/pid")).ok()?.ino(),
            // The ids from the reader's namespace to the process's own.
            pid_there: words("NSpid:").and_then(Iterator::last).map_or(Some(pid), |id| id.parse().ok())?,
            root: rustix::fs::open(folder.join("root"), flags, Mode::empty()).ok()?,
            named: value(folder::VARIABLE),
            session: value("XDG_RUNTIME_DIR"),
        })
    }

    /// Opens the folders that may have the files of the process. See [`folder::of_user`].
    fn folders(&self) -> Vec<OwnedFd> {
        if let Some(named) = &self.named {
            return self.open(Path::new(OsStr::from_bytes(named))).into_iter().collect();
        }
        let Some(memory) = self.open(Path::new("/dev/shm")) else {
            let session = self.session.as_ref().map(|session| Path::new(OsStr::from_bytes(session)).join("cachalot"));
            return session.and_then(|session| self.open(&session)).into_iter().collect();
        };
        // The number of a user in the name is the container's.
        let entries = fs::read_dir(open_file(memory.as_fd())).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name()).filter(|name| name.as_bytes().starts_with(b"cachalot-"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        names.filter_map(|name| openat(&memory, name, flags, Mode::empty()).ok()).collect()
    }

    /// Opens a folder as the process itself would, by an absolute path.
    fn open(&self, path: &Path) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS).ok()
    }
}
