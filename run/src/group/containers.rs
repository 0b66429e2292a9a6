//! Processes in namespaces as a container's, for tests.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Returns whether the system lets this process make namespaces, and says so in a line if not.
pub(super) fn are_allowed() -> bool {
    let made = spawn(Command::new("true").stdout(Stdio::null()), true).and_then(|mut child| child.wait());
    match made {
        Ok(status) if status.success() => true,
        _ => {
            println!("skipped: the system lets this process make no namespaces ({made:?})");
            false
        }
    }
}

/// Starts a command as the first process of its own namespace of process ids and mounts. With its
/// ids in `/proc`, or those of the system around it.
pub(super) fn spawn(command: &mut Command, sees_ids: bool) -> io::Result<Child> {
    let mount_ids = || mount(c"proc", c"/proc", c"proc", 0);
    if sees_ids {
        // SAFETY: the function makes one call of the system, and takes no lock.
        unsafe { command.pre_exec(mount_ids) };
    }
    let begin = || {
        // Of this thread and its children.
        // SAFETY: no memory is touched.
        if unsafe { libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // What the container mounts is its own.
        mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
        command.spawn()
    };
    std::thread::scope(|scope| scope.spawn(begin).join().expect("no panic"))
}

fn mount(what: &std::ffi::CStr, at: &std::ffi::CStr, kind: &std::ffi::CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the texts outlive the call, and there are no data.
    let code = unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
