//! Files of sockets: names, dead owners, strangers, and numbers that the program has closed.

use super::{Fake, Setup, answer_on};
use crate::control::client::{FindError, find_in, sleepers_in};
use crate::control::socket::{SocketName, is_admitted};
use crate::shared::process::{Identity, namespace};
use proptest::prelude::*;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

proptest! {
    #[test]
    fn a_file_has_one_name(text in "[0-9]{1,3}-[0-9]{1,3}-[0-9a-fA-F]{1,3}-[0-9]{1,3}.sock") {
        if let Some(name) = SocketName::parse(&text) {
            prop_assert_eq!(name.to_file(), text);
        }
    }

    #[test]
    fn any_name_of_a_file_is_survived(text in ".{0,40}") {
        prop_assert_eq!(SocketName::parse(&text), None);
    }
}

#[test]
fn sockets_of_the_dead_go_and_all_others_stay() {
    let setup = Setup::new();
    let folder = setup.dir.path().join("control");
    let own = Identity::of_caller().unwrap();
    let here = namespace().unwrap();
    let name = |identity: Identity, namespace: u64| {
        let Identity { pid, start, image } = identity;
        format!("{pid}-{start}-{image:x}-{namespace}.sock")
    };
    // An earlier owner of the id, an earlier program of the process, and a process that has ended.
    let dead = [
        name(Identity { start: own.start - 1, ..own }, here),
        name(Identity { image: own.image ^ 4096, ..own }, here),
        name(Identity { pid: u32::MAX >> 1, ..own }, here),
    ];
    // A container that has ended, and one in which somebody listens.
    let dead = dead.into_iter().chain([name(own, here + 1)]).collect::<Vec<_>>();
    let listening = name(Identity { pid: u32::MAX >> 1, ..own }, here + 1);
    let _listens = UnixListener::bind(folder.join(&listening)).unwrap();
    let others = ["note.txt".to_owned(), "1.sock".to_owned()];
    for file in dead.iter().chain(&others) {
        drop(UnixListener::bind(folder.join(file)).unwrap());
    }
    let found = sleepers_in(setup.dir.path()).unwrap();
    assert_eq!(found.iter().map(crate::control::client::Sleeper::pid).collect::<Vec<_>>(), [own.pid]);
    assert!(dead.iter().all(|file| !folder.join(file).exists()));
    assert!(others.iter().chain([&listening]).all(|file| folder.join(file).exists()));
    assert!(found[0].status().is_ok());
}

#[test]
fn a_folder_without_sockets_is_empty_and_an_open_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(sleepers_in(dir.path()).unwrap().is_empty());
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "a look makes no folder");
    let missing = find_in(dir.path(), "server").unwrap_err();
    assert!(missing.to_string().contains("`server`") && missing.to_string().contains("cachalot run"), "{missing}");
    let folder = dir.path().join("control");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let fake: &'static Fake = Box::leak(Box::default());
    for error in [
        sleepers_in(dir.path()).unwrap_err().to_string(),
        crate::control::Server::start_in(dir.path(), None, fake).unwrap_err().to_string(),
    ] {
        assert!(error.contains("0700"), "{error}");
    }
}

#[test]
fn a_long_path_has_room_for_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a".repeat(200));
    fs::create_dir(&folder).unwrap();
    let fake: &'static Fake = Box::leak(Box::default());
    let _server = crate::control::Server::start_in(&folder, Some("far"), fake).unwrap();
    assert_eq!(sleepers_in(&folder).unwrap()[0].status().unwrap().name, "far");
}

#[test]
fn a_process_is_found_by_id_name_program_and_file() {
    let setup = Setup::new();
    let folder = setup.dir.path();
    let own = std::process::id();
    let program = setup.sleeper().status().unwrap().program;
    let file = std::env::current_exe().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    for sought in [own.to_string(), "server".to_owned(), program, file] {
        assert_eq!(find_in(folder, &sought).unwrap().pid(), own, "{sought}");
    }
    for sought in ["serve", "Server", "", "another", "+1", "0"] {
        let missing = find_in(folder, sought).unwrap_err();
        assert!(matches!(missing, FindError::Missing { .. }), "{sought}");
        assert!(missing.to_string().contains(&format!("server ({own})")), "{missing}");
    }
}

#[test]
fn only_the_user_and_root_are_admitted() {
    assert!(is_admitted(1000, 1000) && is_admitted(0, 1000) && is_admitted(0, 0));
    assert!(!is_admitted(1001, 1000) && !is_admitted(1000, 0));
}

/// Another user connects, although the files are open to the user. Needs root.
#[test]
fn another_user_is_refused() {
    let setup = Setup::new();
    let file = setup.file();
    for path in [setup.dir.path(), file.parent().unwrap(), &file] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let address = rustix::net::SocketAddrUnix::new(&file).unwrap();
    let (mut answers, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: the child calls the system only, and ends without running destructors.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        // SAFETY: the function has no preconditions, and the child has a single thread.
        let is_other = unsafe { libc::setresuid(65_534, 65_534, 65_534) } == 0;
        let socket = rustix::net::socket(family, kind, None);
        let mut answer = [0_u8; 4096];
        let got = socket.and_then(|socket| {
            rustix::net::connect(&socket, &address)?;
            rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::empty())
        });
        let length = got.map_or(0, |(count, _)| count);
        let told = if is_other { &answer[..length] } else { b"no root" };
        let _ = rustix::net::send(&writer, told, rustix::net::SendFlags::NOSIGNAL);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let answer = answer_on(&mut answers);
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if answer == "no root" {
        println!("skipped: another user (not root)");
        return;
    }
    assert!(answer.contains("\"kind\":\"denied\"") && answer.contains("user 65534"), "{answer}");
}

/// A program that becomes a daemon closes every number, and may get the numbers again.
#[test]
fn a_number_that_the_program_has_closed_is_left_to_the_program() {
    let setup = Setup::new();
    let number = setup.server.listener.socket().unwrap().as_raw_fd();
    let own = File::open(setup.dir.path()).unwrap();
    // SAFETY: the number becomes a copy of `own`, as in a program that closes files not its own.
    assert_eq!(unsafe { libc::dup2(own.as_raw_fd(), number) }, number);
    assert!(setup.server.listener.socket().is_none());
    let file = setup.file();
    drop(setup.server);
    assert!(!file.exists());
    // SAFETY: the number is the program's, and no other value owns the number.
    let copy = unsafe { File::from_raw_fd(number) };
    assert_eq!(copy.metadata().unwrap().ino(), own.metadata().unwrap().ino());
}
