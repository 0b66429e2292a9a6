//! The program to start: the path, whether the loader would take the library into the program, and
//! the start itself.

use super::processor::PROCESSOR;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, ReadCache, elf};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit status for an unexecutable program, as of `env` and of the shells.
const NOT_EXECUTABLE: u8 = 126;

/// Exit status for a missing program, as of `env` and of the shells.
const NO_PROGRAM: u8 = 127;

/// Greatest number of interpreters from a script to a program, as in the kernel.
const MAX_SCRIPTS: usize = 5;

/// A program that the system can start, and the command that starts it.
pub(in crate::commands) struct Startable {
    /// The file
    pub path: PathBuf,
    /// The command, to which more of the environment may be added
    pub command: Command,
}

impl Startable {
    /// Finds the program that the first word names. The other words are the program's arguments.
    ///
    /// # Errors
    /// The exit status for a program that is missing or not executable, after a line for the user.
    pub(in crate::commands) fn find(words: &[OsString]) -> Result<Startable, ExitCode> {
        let (name, arguments) = words.split_first().expect("clap requires one");
        let Some(path) = find(Path::new(name)) else {
            complain!("{}: no such program", Path::new(name).display());
            return Err(ExitCode::from(NO_PROGRAM));
        };
        if !is_executable(&path) {
            complain!("{}: the file is not executable", path.display());
            return Err(ExitCode::from(NOT_EXECUTABLE));
        }
        let mut command = Command::new(&path);
        command.arg0(name).args(arguments);
        Ok(Startable { path, command })
    }

    /// Checks that the loader takes the library into the program.
    ///
    /// # Errors
    /// A line about a program to which the loader would take no library.
    pub(in crate::commands) fn check(&self) -> Result<(), String> {
        check(&self.path, &self.command.get_args().collect::<Vec<_>>())
    }

    /// Becomes the program. Returns only if the system does not start it, with the exit status.
    pub(in crate::commands) fn start(mut self) -> ExitCode {
        let error = self.command.exec();
        complain!("{}: {error}", self.path.display());
        ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NO_PROGRAM } else { NOT_EXECUTABLE })
    }
}

/// Finds a program as the shell does: by the path if the name has a slash, else in `PATH`.
fn find(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        return name.exists().then(|| name.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_executable(path))
}

/// Checks that the loader takes the library into a program. Follows the first line of scripts.
/// `arguments`: those of the program, for a dynamic loader that is started by its name: bundles of
/// programs with their libraries do so.
///
/// # Errors
/// A line about a program to which the loader would take no library.
fn check(program: &Path, arguments: &[&OsStr]) -> Result<(), String> {
    if let Some(named) = named_to_loader(program, arguments) {
        check_privileges(named)?;
        return check_loader(named);
    }
    let mut program = program.to_owned();
    for _ in 0..MAX_SCRIPTS {
        check_privileges(&program)?;
        match interpreter(&program).map_err(|error| format!("{}: {error}", program.display()))? {
            Some(next) => program = next,
            None => return check_loader(&program),
        }
    }
    Err(format!("{}: more than {MAX_SCRIPTS} interpreters", program.display()))
}

/// Options of the dynamic loader with a value.
const WITH_VALUE: [&str; 7] = [
    "--library-path",
    "--inhibit-rpath",
    "--audit",
    "--preload",
    "--argv0",
    "--glibc-hwcaps-prepend",
    "--glibc-hwcaps-mask",
];

/// Returns the program that a dynamic loader is to start. `None`: the program is no loader, or is
/// to start none.
fn named_to_loader<'a>(program: &Path, arguments: &[&'a OsStr]) -> Option<&'a Path> {
    let file = program.file_name()?.as_bytes();
    if !file.starts_with(PROCESSOR.loader.as_bytes()) {
        return None;
    }
    let mut words = arguments.iter().copied();
    loop {
        let word = words.next()?;
        if !word.as_bytes().starts_with(b"--") {
            return Some(Path::new(word));
        }
        if WITH_VALUE.iter().any(|option| word == *option) {
            words.next()?;
        }
    }
}

/// Refuses a program with the rights of another user. For privileged programs the loader ignores
/// the environment.
fn check_privileges(program: &Path) -> Result<(), String> {
    let metadata = program.metadata().map_err(|error| format!("{}: {error}", program.display()))?;
    let owner = metadata.mode() & 0o4000 != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    let group = metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != rustix::process::getegid().as_raw();
    let capable = rustix::fs::getxattr(program, "security.capability", &mut [0_u8; 64][..]).is_ok();
    if owner || group || capable {
        let how = if capable { "has capabilities" } else { "is setuid or setgid" };
        return Err(format!(
            "{}: the program {how}, so the loader ignores LD_PRELOAD and LD_LIBRARY_PATH",
            program.display()
        ));
    }
    Ok(())
}

/// Returns the interpreter of a script, or `None` for any file but a script: the program in the
/// first line, or the shell for a text without one, as `env` and the shells start it.
fn interpreter(program: &Path) -> io::Result<Option<PathBuf>> {
    let mut line = Vec::new();
    // The kernel reads no more of a script.
    BufReader::new(File::open(program)?.take(256)).read_until(b'\n', &mut line)?;
    let Some(words) = line.strip_prefix(b"#!") else {
        let is_text = !line.starts_with(b"\x7fELF") && !line.contains(&0);
        return Ok(is_text.then(|| "/bin/sh".into()));
    };
    let mut words = words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let Some(first) = words.next().map(Path::new) else { return Ok(None) };
    // `env` starts the program that its arguments name.
    let named = words.find(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='));
    let through_env = first.file_name().is_some_and(|name| name == "env");
    Ok(named.filter(|_| through_env).and_then(|name| find(Path::new(name))).or_else(|| Some(first.to_owned())))
}

/// Returns whether the system may start a file.
fn is_executable(program: &Path) -> bool {
    program.is_file() && rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Checks that an executable file names a dynamic loader of glibc.
fn check_loader(program: &Path) -> Result<(), String> {
    let refuse = |reason: &str| format!("{}: {reason}", program.display());
    let file = File::open(program).map_err(|error| refuse(&error.to_string()))?;
    let data = &ReadCache::new(file);
    let Ok(header) = FileHeader64::<LittleEndian>::parse(data) else {
        return Err(refuse(&format!("the file is not a program for {}", PROCESSOR.name)));
    };
    if header.e_machine(LittleEndian) != PROCESSOR.machine {
        return Err(refuse(&format!("the program is for another architecture, not for {}", PROCESSOR.name)));
    }
    let headers = header.program_headers(LittleEndian, data).map_err(|error| refuse(&error.to_string()))?;
    let named = headers.iter().find(|header| header.p_type(LittleEndian) == elf::PT_INTERP);
    let Some(named) = named else {
        return Err(refuse(
            "the program is linked statically, so no loader runs: if it starts another program, put `cachalot run` before that one",
        ));
    };
    let name = named.data(LittleEndian, data).map_err(|()| refuse("the name of the loader is outside of the file"))?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let path = Path::new(OsStr::from_bytes(name));
    if path.file_name().is_some_and(|file| file.as_bytes().starts_with(b"ld-musl")) {
        return Err(refuse("the program uses musl, and the library needs glibc"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{PROCESSOR, named_to_loader};
    use std::ffi::OsStr;
    use std::path::Path;

    #[test]
    fn a_loader_names_its_program_after_its_options() {
        let named = |program: &str, line: &str| {
            let words: Vec<&OsStr> = line.split(' ').map(OsStr::new).collect();
            named_to_loader(Path::new(program), &words).map(Path::to_owned)
        };
        let loader = format!("/lib64/{}2", PROCESSOR.loader);
        let loader = loader.as_str();
        assert_eq!(named(loader, "./a --list").as_deref(), Some(Path::new("./a")));
        assert_eq!(named(loader, "--inhibit-cache --library-path /a:/b ./a").as_deref(), Some(Path::new("./a")));
        assert_eq!(named(loader, "--version"), None);
        assert_eq!(named("/bin/ls", "./a"), None);
    }
}
