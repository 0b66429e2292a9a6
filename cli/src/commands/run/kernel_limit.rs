//! The option `--control-group`: a limit that the kernel keeps for a control group, in place of the
//! library's own count.

use crate::commands::bytes;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file of a control group that takes the id of a process to move there.
const MEMBERS: &str = "cgroup.procs";

/// Limits a control group to `bytes` of each device, and moves this process there: the program that
/// it becomes, and every child, is a member. The folder is made if it does not exist.
///
/// # Errors
/// The obstacle, as a line for the user. This process is in its old group then.
pub(super) fn keep(folder: &Path, bytes: u64) -> Result<(), String> {
    let folder = std::path::absolute(folder).map_err(|error| format!("--control-group: {error}"))?;
    let refused = |reason: String| format!("--control-group: {}: {reason}", folder.display());
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(refused(error.to_string())),
        _ => {}
    }
    let set = cachalot_run::set_limit_of_group(&folder, bytes);
    set.map_err(|code| refused(format!("no limit of {}: {}", bytes::show(bytes), reason(code))))?;
    let members: PathBuf = folder.join(MEMBERS);
    fs::write(&members, std::process::id().to_string()).map_err(|error| refused(format!("{MEMBERS}: {error}")))
}

/// Describes a code of the driver's management library.
fn reason(code: Option<u32>) -> String {
    match code {
        None => "libnvidia-ml.so.1 of driver 615 or later is needed".to_owned(),
        Some(3) => "the driver or the GPU has no limits of control groups".to_owned(),
        Some(4) => "only root may set it".to_owned(),
        Some(6) => "the group has no files dmem.*: its parent's cgroup.subtree_control needs +dmem".to_owned(),
        Some(code) => format!("libnvidia-ml.so.1 refuses with code {code}"),
    }
}
