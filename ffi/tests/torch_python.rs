//! Python stacks of recorded events, in the installed Python. `CACHALOT_PYTHON` names another
//! program than `python3`.

use crate::common::{WARNINGS, emulated, library_path, output, root, scratch, skip, succeed};
use std::path::Path;
use std::process::Command;

#[test]
fn events_have_the_python_frames_of_their_thread() {
    let python = std::env::var_os("CACHALOT_PYTHON").unwrap_or_else(|| "python3".into());
    let is_new = "import sys; sys.exit(sys.version_info < (3, 9))";
    if !output(Command::new(&python).args(["-c", is_new])).is_some_and(|output| output.status.success()) {
        return skip("Python stacks", "no python3 of version 3.9 or later; CACHALOT_PYTHON can name one");
    }
    let sources = root().join("tests/c_abi/torch");
    let capsule = scratch("torch").join("capsule.so");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-fPIC", "-shared"]).args(WARNINGS).arg("-I").arg(root().join("include"));
    command.arg(sources.join("capsule.c")).arg("-o").arg(&capsule);
    command.arg("-L").arg(library_path()).arg("-lcachalot").arg(format!("-Wl,-rpath,{}", library_path().display()));
    if succeed(&mut command).is_none() {
        return skip("Python stacks", "no C compiler");
    }
    let mut command = emulated(Path::new(&python));
    command.arg(sources.join("stacks.py")).arg(library_path().join("libcachalot.so")).arg(capsule);
    succeed(&mut command).expect("it was there before");
}
