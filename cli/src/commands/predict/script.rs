//! `cachalot predict script.py`: hands a script to the Python package, which runs it without a GPU.

use super::super::BAD_INPUT;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The variable that names the interpreter.
const INTERPRETER: &str = "CACHALOT_PYTHON";

/// The module of the package.
const MODULE: &str = "cachalot_gpu.predict";

/// Runs the Python package in place of this process if the command line predicts a script: what
/// comes after the script are the script's own arguments. Returns `None` for every other command
/// line.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let (command, arguments) = arguments.split_first()?;
    let is_script = |argument: &&OsString| Path::new(argument).extension().is_some_and(|ending| ending == "py");
    let before = arguments.iter().take_while(|argument| *argument != "--help" && *argument != "-h");
    if command != "predict" || !before.into_iter().any(|argument| is_script(&argument)) {
        return None;
    }
    let python = interpreter();
    let shown = python.display();
    let find = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{}') is None)", "cachalot_gpu");
    let found = Command::new(&python).args(["-c", &find]).stderr(Stdio::null()).status();
    let complaint = match found {
        Ok(status) if status.success() => {
            let error = Command::new(&python).args(["-m", MODULE]).args(arguments).exec();
            format!("`{shown}` cannot be executed: {error}")
        }
        Ok(_) => format!(
            "`{shown}` does not find the package cachalot-gpu, which runs a script without a GPU: install it next to \
             the script's PyTorch (pip install cachalot-gpu), or let {INTERPRETER} name the interpreter that has it"
        ),
        Err(error) => format!("`{shown}` cannot be executed: {error}; {INTERPRETER} names another interpreter"),
    };
    complain!("{complaint}");
    Some(ExitCode::from(BAD_INPUT))
}

/// Returns the interpreter: the one that the variable names, else that of the environment into
/// which pip installed this command, else `python3`.
fn interpreter() -> PathBuf {
    if let Some(named) = std::env::var_os(INTERPRETER).filter(|named| !named.is_empty()) {
        return named.into();
    }
    let beside = std::env::current_exe().ok().map(|command| command.with_file_name("python3"));
    beside.filter(|python| python.is_file()).unwrap_or_else(|| "python3".into())
}
