//! Processes of a group, killed at random, even while they hold the group's lock.
//!
//! Each member is the test program again, and runs [`member`]. In addition to the group, the
//! members keep a count of their own in another file: they add after a reservation and subtract
//! before they give back. So the count is never above the group's, and must never be above the
//! limit. The killer stops a member first and takes the member's bytes out of the count, since the
//! group may give the bytes away as soon as the member is dead.
//!
//! In the campaign with containers, four of the members are each the first process of its own
//! namespace of process ids and mounts, half of them with the `/proc` of the system around it, and
//! the limit changes meanwhile.

use super::containers;
use super::faults::{self, Point};
use super::set::set_limit;
use super::{Group, Uuid};
use crate::options::GroupOptions;
use crate::shared::map::{Shared, Words};
use fastrand::Rng;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const DEVICE: Uuid = Uuid([5; 16]);
const MEMBERS: usize = 8;
const CONTAINERS: usize = 4;
const LIMIT: u64 = 1 << 30;

/// The exit status of a member that killed itself as the first process of a container, which the
/// system does not kill by its own signal.
const DEAD: i32 = 137;

/// Environment variables of a member: the folder, the place, the seed.
const FOLDER: &str = "CACHALOT_TEST_MEMBER_FOLDER";
const PLACE: &str = "CACHALOT_TEST_MEMBER_PLACE";
const SEED: &str = "CACHALOT_TEST_MEMBER_SEED";

/// The count of the members, outside the group.
#[repr(C)]
struct Count {
    /// Bytes of all members.
    total: AtomicU64,
    /// Greatest total.
    greatest: AtomicU64,
    /// The limit that the total must not exceed, and the number of its changes.
    allowed: AtomicU64,
    changes: AtomicU64,
    /// Totals above the limit, and figures of the group in contradiction to the members.
    faults: AtomicU64,
    /// Operations so far, and operations at the end.
    operations: AtomicU64,
    target: AtomicU64,
    reserved: AtomicU64,
    refused: AtomicU64,
    /// Members killed with the lock in their hands.
    with_lock: AtomicU64,
    /// Locks passed on from a dead holder.
    recovered: AtomicU64,
    members: [Member; MEMBERS],
}

#[repr(C)]
struct Member {
    /// Bytes in the total.
    held: AtomicU64,
    /// 1 while the member changes the total and the member's bytes.
    busy: AtomicU64,
}

// SAFETY: atomic words.
unsafe impl Words for Count {}

impl Count {
    fn open(folder: &Path, is_new: bool) -> Shared<Self> {
        let path = folder.join("count");
        let file = OpenOptions::new().read(true).write(true).create(is_new).truncate(false).open(path).unwrap();
        file.set_len(Shared::<Self>::BYTES).unwrap();
        Shared::new(&file).unwrap()
    }

    /// Counts a reservation of a member.
    fn add(&self, place: usize, bytes: u64) {
        let member = &self.members[place];
        let changes = self.changes.load(SeqCst);
        member.busy.store(1, SeqCst);
        let total = self.total.fetch_add(bytes, SeqCst) + bytes;
        member.held.fetch_add(bytes, SeqCst);
        member.busy.store(0, SeqCst);
        self.greatest.fetch_max(total, SeqCst);
        let allowed = self.allowed.load(SeqCst);
        // Of a limit that changes meanwhile, nobody knows whether the total was before or after.
        self.expect(total <= if self.changes.load(SeqCst) == changes { allowed } else { LIMIT });
    }

    /// Takes bytes of a member out of the total.
    fn subtract(&self, place: usize, bytes: u64) {
        let member = &self.members[place];
        member.busy.store(1, SeqCst);
        self.total.fetch_sub(bytes, SeqCst);
        member.held.fetch_sub(bytes, SeqCst);
        member.busy.store(0, SeqCst);
    }

    /// Takes all bytes of a member out of the total.
    fn bury(&self, place: usize) {
        self.total.fetch_sub(self.members[place].held.swap(0, SeqCst), SeqCst);
    }

    fn expect(&self, is_right: bool) {
        if !is_right {
            self.faults.fetch_add(1, SeqCst);
        }
    }
}

fn options(random: &mut Rng) -> GroupOptions {
    let low = if random.u8(..4) == 0 { LIMIT / 64 } else { 0 };
    let max = (random.u8(..4) == 0).then_some(LIMIT / 2);
    GroupOptions { name: "members".to_owned(), low, max, weight: random.u32(1..1000) }
}

fn join(folder: &Path, random: &mut Rng, limit: Option<u64>) -> Group {
    Group::join_in(folder, &options(random), limit, DEVICE).unwrap()
}

/// Kills the calling process, with the lock in hand.
fn die(count: &Count, place: usize) -> ! {
    count.with_lock.fetch_add(1, SeqCst);
    count.bury(place);
    kill_self()
}

/// Ends the calling process at once.
fn kill_self() -> ! {
    // SAFETY: the signal ends the process.
    unsafe { libc::raise(libc::SIGKILL) };
    // SAFETY: the first process of a container ignores its own signals, and ends here, without its
    // handlers.
    unsafe { libc::_exit(DEAD) }
}

/// The life of a member. Run by the tests below in its own process, and empty without them.
#[test]
#[ignore = "runs in a process of other tests"]
fn member() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (place, seed) = (number(PLACE) as usize, number(SEED));
    let count = Count::open(&folder, false);
    let hooked = Count::open(&folder, false);
    let dice = std::sync::Mutex::new(Rng::with_seed(!seed));
    faults::set(Box::new(move |point| match point {
        Point::Recovered => drop(hooked.recovered.fetch_add(1, SeqCst)),
        Point::Locked | Point::Counted | Point::Swept => {
            if dice.lock().unwrap().u32(..20_000) == 0 {
                die(&hooked, place);
            }
        }
    }));
    let mut random = Rng::with_seed(seed);
    let mut group = join(&folder, &mut random, Some(LIMIT));
    let held = || count.members[place].held.load(SeqCst);
    while count.operations.fetch_add(1, SeqCst) < count.target.load(SeqCst) {
        match random.u16(..1000) {
            0..620 => {
                let bytes = 1 << random.u32(16..29);
                match group.reserve(bytes) {
                    Ok(()) => {
                        count.add(place, bytes);
                        count.reserved.fetch_add(1, SeqCst);
                    }
                    Err(_) => drop(count.refused.fetch_add(1, SeqCst)),
                }
            }
            620..980 => {
                let bytes = random.u64(0..=held());
                count.subtract(place, bytes);
                group.give_back(bytes);
            }
            980..990 => {
                let budget = group.budget().unwrap();
                count.expect(budget.held_by_this == held() && budget.held_by_all <= LIMIT);
            }
            990..998 => count.expect(group.owed() <= held()),
            _ => {
                count.subtract(place, held());
                drop(group);
                group = join(&folder, &mut random, None);
            }
        }
    }
    // The process ends with what it holds.
    count.subtract(place, held());
    std::mem::forget(group);
}

/// The figures of a run.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Outcome {
    operations: u64,
    reserved: u64,
    refused: u64,
    greatest: u64,
    killed: u64,
    with_lock: u64,
    recovered: u64,
    changes: u64,
    seconds: f64,
}

fn spawn(folder: &Path, place: usize, random: &mut Rng, containers: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "group::processes::member", "--ignored", "--nocapture"]);
    command.env(FOLDER, folder).env(PLACE, place.to_string()).env(SEED, random.u64(..).to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if place < containers {
        containers::spawn(&mut command, place.is_multiple_of(2)).unwrap()
    } else {
        command.spawn().unwrap()
    }
}

/// Waits for a change of a child, and returns the status of `waitpid`. `None`: no change yet.
fn poll(child: &Child, options: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let pid = unsafe { libc::waitpid(child.id() as i32, &raw mut status, options) };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    (pid != 0).then_some(status)
}

/// Waits for a change of a child.
fn wait(child: &Child, options: i32) -> i32 {
    poll(child, options).expect("the call waits")
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: the child is not reaped, so its id is no other process's.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Returns whether a status is of a killed process.
fn is_killed(status: i32) -> bool {
    let by_signal = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
    by_signal || libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == DEAD
}

/// Stops a member, takes the member's bytes out of the total, and kills the member. Returns the
/// status of the member's end.
fn kill(count: &Count, child: &Child, place: usize) -> i32 {
    loop {
        signal(child, libc::SIGSTOP);
        let status = wait(child, libc::WUNTRACED);
        if !libc::WIFSTOPPED(status) {
            return status;
        }
        if count.members[place].busy.load(SeqCst) == 0 {
            break;
        }
        signal(child, libc::SIGCONT);
    }
    count.bury(place);
    signal(child, libc::SIGKILL);
    wait(child, 0)
}

/// Changes the limit of the group while the members run. The count is held to a higher limit before
/// the group has it, and to a lower one once the group holds no more.
struct Changer {
    limit: u64,
    is_reached: bool,
}

impl Changer {
    fn change(&mut self, count: &Count, folder: &Path, watcher: &Group, random: &mut Rng) {
        let allow = |limit| {
            count.changes.fetch_add(1, SeqCst);
            count.allowed.store(limit, SeqCst);
            count.changes.fetch_add(1, SeqCst);
        };
        let limit = LIMIT / 4 * random.u64(2..=4);
        if self.is_reached && limit != self.limit {
            if limit > self.limit {
                allow(limit);
            }
            set_limit(folder, "members", DEVICE, Some(limit)).unwrap();
            (self.is_reached, self.limit) = (limit > self.limit, limit);
        }
        if !self.is_reached && watcher.budget().unwrap().held_by_all <= self.limit {
            allow(self.limit);
            self.is_reached = true;
        }
    }
}

/// Runs eight members for a number of operations, kills them at random, and checks the end. With
/// containers, the limit changes, too.
fn campaign(operations: u64, seed: u64, containers: usize) -> Outcome {
    println!("seed {seed}");
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = place.path();
    let mut random = Rng::with_seed(seed);
    let count = Count::open(folder, true);
    count.target.store(operations, SeqCst);
    count.allowed.store(LIMIT, SeqCst);
    let mut changer = Changer { limit: LIMIT, is_reached: true };
    // A member that holds nothing keeps the group while all others are dead.
    let watcher = Group::join_in(folder, &plain(), Some(LIMIT), DEVICE).unwrap();
    let begin = Instant::now();
    let mut children: Vec<Child> = (0..MEMBERS).map(|at| spawn(folder, at, &mut random, containers)).collect();
    let mut killed = 0;
    while count.operations.load(SeqCst) < operations {
        std::thread::sleep(Duration::from_micros(random.u64(..20_000)));
        let victim = random.usize(..MEMBERS);
        for (at, child) in children.iter_mut().enumerate() {
            // A member that killed itself has left the total already.
            let ended = if at == victim { Some(kill(&count, child, at)) } else { poll(child, libc::WNOHANG) };
            let Some(status) = ended else { continue };
            let is_over = count.operations.load(SeqCst) >= operations;
            assert!(is_killed(status) || is_over, "seed {seed}: a member ended with {status:#x}");
            killed += u64::from(is_killed(status));
            count.bury(at);
            *child = spawn(folder, at, &mut random, containers);
        }
        if containers > 0 {
            changer.change(&count, folder, &watcher, &mut random);
        }
        assert_eq!(count.faults.load(SeqCst), 0, "seed {seed}");
        assert!(begin.elapsed() < Duration::from_secs(3600), "the members hang");
    }
    // Some members are killed with what they hold, and the others end by themselves.
    for (at, child) in children.iter().enumerate() {
        let status = if random.bool() { kill(&count, child, at) } else { wait(child, 0) };
        killed += u64::from(is_killed(status));
        count.bury(at);
    }
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(count.faults.load(SeqCst), 0, "seed {seed}");
    assert_eq!(count.total.load(SeqCst), 0, "seed {seed}");
    set_limit(folder, "members", DEVICE, Some(LIMIT)).unwrap();
    // Nothing leaked: one process can hold everything.
    let budget = watcher.budget().unwrap();
    assert_eq!((budget.held_by_all, budget.available), (0, LIMIT), "seed {seed}");
    watcher.reserve(LIMIT).unwrap();
    let read = |word: &AtomicU64| word.load(SeqCst);
    Outcome {
        operations: read(&count.operations),
        reserved: read(&count.reserved),
        refused: read(&count.refused),
        greatest: read(&count.greatest),
        killed,
        with_lock: read(&count.with_lock),
        recovered: read(&count.recovered),
        changes: read(&count.changes) / 2,
        seconds,
    }
}

#[test]
fn members_killed_at_random_keep_the_limit_and_leak_nothing() {
    let outcome = campaign(30_000, fastrand::u64(..), 0);
    println!("{outcome:?}");
    assert!(outcome.killed > 0 && outcome.refused > 0 && outcome.greatest > LIMIT / 2, "{outcome:?}");
}

#[test]
fn members_of_containers_keep_a_limit_that_changes() {
    if containers::are_allowed() {
        let outcome = campaign(100_000, fastrand::u64(..), CONTAINERS);
        println!("{outcome:?}");
        assert!(outcome.killed > 0 && outcome.refused > 0 && outcome.changes > 0, "{outcome:?}");
    }
}

#[test]
#[ignore = "a campaign of minutes: tests/groups.sh runs it"]
fn ten_million_operations() {
    large_campaign(0);
}

#[test]
#[ignore = "a campaign of minutes: tests/groups.sh runs it"]
fn ten_million_operations_in_containers() {
    if containers::are_allowed() {
        large_campaign(CONTAINERS);
    }
}

/// Runs a campaign of the size and the seed in the environment.
fn large_campaign(containers: usize) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let operations = number("CACHALOT_GROUP_OPERATIONS").unwrap_or(10_000_000);
    let seed = number("CACHALOT_GROUP_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{:#?}", campaign(operations, seed, containers));
}

/// Runs a member to the death at a point.
fn die_at(folder: &Path, point: &str, in_container: bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "group::processes::victim", "--ignored", "--nocapture"]);
    command.env(FOLDER, folder).env(PLACE, point).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = if in_container { containers::spawn(&mut command, true) } else { command.spawn() };
    let output = child.unwrap().wait_with_output().unwrap();
    let status = std::os::unix::process::ExitStatusExt::into_raw(output.status);
    assert!(is_killed(status), "{status:#x} {}", String::from_utf8_lossy(&output.stderr));
}

fn plain() -> GroupOptions {
    GroupOptions { name: "members".to_owned(), low: 0, max: None, weight: 1 }
}

/// Holds 100 bytes, and dies at a point of the next reservation.
#[test]
#[ignore = "runs in a process of other tests"]
fn victim() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let group = Group::join_in(&folder, &plain(), None, DEVICE).unwrap();
    group.reserve(100).unwrap();
    let point = std::env::var(PLACE).unwrap();
    if point == "Swept" {
        die_at(&folder, "Locked", false);
    }
    faults::set(Box::new(move |reached| {
        if format!("{reached:?}") == point {
            kill_self();
        }
    }));
    // Refused, so that the dead are looked for.
    group.reserve(LIMIT).unwrap_err();
    group.reserve(1).unwrap();
    panic!("the point was not reached");
}

#[test]
fn a_lock_of_a_dead_process_passes_on_and_its_bytes_come_back() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let group = Group::join_in(place.path(), &plain(), Some(LIMIT), DEVICE).unwrap();
    let containers = if containers::are_allowed() { &[false, true][..] } else { &[false] };
    for (&in_container, point) in
        containers.iter().flat_map(|at| ["Locked", "Counted", "Swept"].map(|point| (at, point)))
    {
        die_at(place.path(), point, in_container);
        group.reserve(LIMIT).unwrap();
        assert_eq!(group.budget().unwrap().held_by_all, LIMIT, "{point}");
        group.give_back(LIMIT);
    }
}

#[test]
fn a_group_counts_its_members_in_other_containers_until_they_end() {
    if !containers::are_allowed() {
        return;
    }
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let group = Group::join_in(place.path(), &plain(), Some(LIMIT), DEVICE).unwrap();
    let mut members: Vec<Child> = [true, false].map(|sees_ids| sleep_in(place.path(), Some(sees_ids))).into();
    assert_eq!(group.budget().unwrap().held_by_all, 2 * 4096);
    let seen = &super::watch::groups(place.path()).unwrap()[0].members;
    // Both have the same id in their containers, and one does not know which.
    let told: Vec<_> =
        seen.iter().map(|member| (member.pid, member.container.map(|container| container != 0))).collect();
    assert_eq!(told[1..], [(1, Some(true)), (1, Some(false))]);
    assert_eq!(group.reserve(LIMIT).unwrap_err().available, LIMIT - 2 * 4096);
    while let Some(mut member) = members.pop() {
        member.kill().unwrap();
        member.wait().unwrap();
        group.reserve(LIMIT - members.len() as u64 * 4096).unwrap();
        group.give_back(LIMIT - members.len() as u64 * 4096);
    }
}

#[test]
fn a_forked_child_is_no_member() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let group = Group::join_in(place.path(), &plain(), Some(LIMIT), DEVICE).unwrap();
    group.reserve(100).unwrap();
    // SAFETY: the child calls what takes no lock of this process, and ends without its handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = group.reserve(1).is_err();
        group.give_back(50);
        let is_right = refused && group.owed() == 0;
        drop(group);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(group.budget().unwrap().held_by_all, 100);
    assert!(group.reserve(1).is_ok());
}

/// Sleeps until killed, as a member with a place.
#[test]
#[ignore = "runs in a process of other tests"]
fn sleeper() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let group = Group::join_in(&folder, &plain(), None, DEVICE).unwrap();
    group.reserve(4096).unwrap();
    println!("joined");
    std::thread::sleep(Duration::from_secs(3600));
}

/// Starts a sleeper, in a container with its own `/proc` or with the system's, and waits until it
/// is a member.
fn sleep_in(folder: &Path, container: Option<bool>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "group::processes::sleeper", "--ignored", "--nocapture"]);
    command.env(FOLDER, folder).stdout(Stdio::piped());
    let child = match container {
        Some(sees_ids) => containers::spawn(&mut command, sees_ids),
        None => command.spawn(),
    };
    let mut child = child.unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.map_while(Result::ok).any(|line| line.contains("joined")));
    child
}

/// Measures a call, in nanoseconds: the median of rounds.
fn nanoseconds(mut call: impl FnMut()) -> u64 {
    let mut rounds: Vec<u64> = (0..21)
        .map(|_| {
            let begin = Instant::now();
            (0..200).for_each(|_| call());
            begin.elapsed().as_nanos() as u64 / 200
        })
        .collect();
    rounds.sort_unstable();
    rounds[10]
}

#[test]
#[ignore = "measures: tests/groups.sh runs it"]
fn what_a_reservation_costs() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let alone = Group::alone(Some(LIMIT));
    let pair = |group: &Group| {
        nanoseconds(|| {
            group.reserve(4096).unwrap();
            group.give_back(4096);
        })
    };
    println!("alone: reserve and give_back {} ns", pair(&alone));
    let group = Group::join_in(place.path(), &plain(), Some(LIMIT), DEVICE).unwrap();
    let mut others: Vec<Child> = Vec::new();
    for members in [1, 8] {
        while others.len() + 1 < members {
            others.push(sleep_in(place.path(), None));
        }
        let refused = nanoseconds(|| drop(group.reserve(LIMIT + 1).unwrap_err()));
        println!("{members} members: reserve and give_back {} ns", pair(&group));
        println!("{members} members: budget {} ns", nanoseconds(|| assert!(group.budget().is_some())));
        println!("{members} members: owed {} ns", nanoseconds(|| assert_eq!(group.owed(), 0)));
        println!("{members} members: refused {refused} ns");
        assert!(refused < 100_000_000, "no lock is waited for");
    }
    for child in &mut others {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
