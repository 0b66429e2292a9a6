//! A process alone, and several members of a group within a process.

use super::layout::{State, Terms};
use super::set::set_limit;
use super::{Budget, Group, GroupError, SleepNews, Turn, Uuid, YieldCause, watch};
use crate::options::GroupOptions;
use crate::shared::map::Shared;
use crate::shared::process::{self, Identity};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tempfile::TempDir;

const GIB: u64 = 1 << 30;
const DEVICE: Uuid = Uuid([7; 16]);

fn options(name: &str) -> GroupOptions {
    GroupOptions { name: name.to_owned(), low: 0, max: None, weight: 100 }
}

fn join(dir: &TempDir, options: &GroupOptions, limit: Option<u64>) -> Result<Group, GroupError> {
    Group::join_in(dir.path(), options, limit, DEVICE)
}

#[test]
fn a_process_alone_keeps_its_limit() {
    let group = Group::alone(Some(10));
    group.reserve(6).unwrap();
    let refusal = group.reserve(5).unwrap_err();
    assert_eq!(refusal.available, 4);
    assert_eq!(refusal.to_string(), "5 B more do not fit: this process holds 6 B of its limit of 10 B");
    assert_eq!(group.budget(), Some(Budget { limit: 10, held_by_all: 6, held_by_this: 6, available: 4 }));
    group.give_back(6);
    group.reserve(10).unwrap();
    assert_eq!(group.owed(), 0);
}

#[test]
fn a_process_without_a_limit_is_counted_until_the_numbers_end() {
    let group = Group::alone(None);
    group.reserve(u64::MAX).unwrap();
    assert!(group.reserve(1).is_err());
    assert_eq!(group.budget(), None);
}

#[test]
fn threads_of_a_process_alone_never_exceed_its_limit() {
    let group = Group::alone(Some(100));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let group = &group;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..10_000 {
                    let bytes = random.u64(1..40);
                    if group.reserve(bytes).is_ok() {
                        assert!(group.budget().unwrap().held_by_all <= 100);
                        group.give_back(bytes);
                    }
                }
            });
        }
    });
    assert_eq!(group.budget().unwrap().held_by_all, 0);
}

#[test]
fn members_share_a_limit_and_a_refusal_names_them() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &options("train"), Some(10 * GIB)).unwrap();
    let two = join(&dir, &options("train"), None).unwrap();
    one.reserve(6 * GIB).unwrap();
    two.reserve(3 * GIB).unwrap();
    let refusal = two.reserve(2 * GIB).unwrap_err();
    assert_eq!(refusal.available, GIB);
    assert_eq!(refusal.holders().iter().map(|holder| holder.held).collect::<Vec<_>>(), [6 * GIB, 3 * GIB]);
    let text = refusal.to_string();
    let pid = std::process::id();
    assert!(text.starts_with("2 GiB more do not fit: group `train` holds 9 GiB of its limit of 10 GiB: 6 GiB by"));
    assert!(text.contains(&format!("process {pid} (")), "{text}");
    let budget = Budget { limit: 10 * GIB, held_by_all: 9 * GIB, held_by_this: 3 * GIB, available: GIB };
    assert_eq!(two.budget(), Some(budget));
    one.give_back(6 * GIB);
    two.reserve(7 * GIB).unwrap();
}

#[test]
fn groups_and_devices_are_apart() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &options("a"), Some(10)).unwrap();
    let two = join(&dir, &options("b"), Some(20)).unwrap();
    let other = Group::join_in(dir.path(), &options("a"), Some(30), Uuid([8; 16])).unwrap();
    one.reserve(10).unwrap();
    two.reserve(20).unwrap();
    other.reserve(30).unwrap();
}

#[test]
fn another_limit_than_the_groups_is_refused_with_both() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &options("a"), Some(GIB)).unwrap();
    let error = join(&dir, &options("a"), Some(2 * GIB)).unwrap_err().to_string();
    assert!(error.contains("a limit of 1 GiB") && error.contains("names 2 GiB"), "{error}");
    drop(one);
    // Nobody is in the group, so the next process decides.
    let two = join(&dir, &options("a"), Some(2 * GIB)).unwrap();
    assert_eq!(two.budget().unwrap().limit, 2 * GIB);
}

#[test]
fn a_group_without_a_limit_gets_the_first_that_fits() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &options("a"), None).unwrap();
    one.reserve(8).unwrap();
    assert_eq!(one.budget(), None);
    assert!(matches!(join(&dir, &options("a"), Some(7)), Err(GroupError::OtherLimit { holds: None, .. })));
    let two = join(&dir, &options("a"), Some(10)).unwrap();
    assert_eq!(one.budget().unwrap().available, 2);
    assert!(two.reserve(3).is_err());
}

#[test]
fn a_limit_changes_while_members_run() {
    let dir = TempDir::new().unwrap();
    let set = |limit| set_limit(dir.path(), "a", DEVICE, limit);
    assert!(matches!(set(Some(1)), Err(GroupError::Missing(_))));
    let one = join(&dir, &options("a"), Some(100)).unwrap();
    let two = join(&dir, &GroupOptions { low: 10, ..options("a") }, Some(100)).unwrap();
    one.reserve(60).unwrap();
    two.reserve(20).unwrap();
    set(Some(200)).unwrap();
    two.reserve(100).unwrap();
    assert_eq!((one.owed(), two.owed()), (0, 0));
    // Nobody is refused, and who is above a share of 75 gives the 30 that are held too much.
    set(Some(150)).unwrap();
    assert_eq!((one.owed(), two.owed()), (0, 30));
    assert!(one.reserve(1).is_err());
    assert_eq!(one.budget().unwrap().limit, 150);
    two.give_back(31);
    one.reserve(1).unwrap();
    // Programs still name the limit of their command line.
    let three = join(&dir, &options("a"), Some(100)).unwrap();
    assert!(matches!(join(&dir, &options("a"), Some(150)), Err(GroupError::OtherLimit { holds: Some(100), .. })));
    assert!(three.reserve(1).is_err());
    // A limit that was set stays with a file that is made again.
    fs::remove_file(file_of(&dir)).unwrap();
    assert_eq!((one.owed(), three.owed(), two.owed()), (0, 0, 0));
    assert_eq!((one.budget().unwrap().limit, three.budget().unwrap().held_by_all), (150, 150));
    assert!(matches!(set(Some(9)), Err(GroupError::LimitBelowLow { limit: 9, low: 10, .. })));
    set(None).unwrap();
    three.reserve(1000).unwrap();
    assert_eq!((one.owed(), two.owed(), one.budget()), (0, 0, None));
}

#[test]
fn bytes_below_low_are_kept_and_max_holds() {
    let dir = TempDir::new().unwrap();
    let kept = join(&dir, &GroupOptions { low: 4, ..options("a") }, Some(10)).unwrap();
    let capped = join(&dir, &GroupOptions { max: Some(5), ..options("a") }, None).unwrap();
    let free = join(&dir, &options("a"), None).unwrap();
    let text = capped.reserve(6).unwrap_err().to_string();
    assert!(text.contains("`max` of 5 B"), "{text}");
    free.reserve(6).unwrap();
    let text = free.reserve(1).unwrap_err().to_string();
    assert!(text.contains("for which 4 B more are kept"), "{text}");
    kept.reserve(4).unwrap();
    assert_eq!(capped.budget().unwrap().limit, 5);
    let error = join(&dir, &GroupOptions { low: 7, ..options("a") }, None).unwrap_err();
    assert!(matches!(error, GroupError::Low { low: 7, others: 4, limit: 10, .. }), "{error}");
}

#[test]
fn who_is_above_its_share_owes_until_the_refused_succeeds() {
    let dir = TempDir::new().unwrap();
    let heavy = join(&dir, &GroupOptions { weight: 300, ..options("a") }, Some(100)).unwrap();
    let light = join(&dir, &options("a"), None).unwrap();
    light.reserve(60).unwrap();
    heavy.reserve(40).unwrap();
    assert_eq!((light.owed(), heavy.owed()), (0, 0));
    heavy.reserve(20).unwrap_err();
    assert_eq!((light.owed(), heavy.owed()), (20, 0));
    light.give_back(15);
    assert_eq!(light.owed(), 5);
    light.give_back(5);
    assert_eq!(light.owed(), 0);
    heavy.reserve(20).unwrap();
    assert_eq!(light.owed(), 0);
}

#[test]
fn a_wish_ends_when_its_process_leaves() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &options("a"), Some(10)).unwrap();
    let two = join(&dir, &options("a"), None).unwrap();
    one.reserve(10).unwrap();
    two.reserve(4).unwrap_err();
    assert_eq!(one.owed(), 4);
    drop(two);
    assert_eq!(one.owed(), 0);
}

#[test]
fn the_last_to_leave_removes_the_file() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &options("a"), Some(10)).unwrap();
    let two = join(&dir, &options("a"), None).unwrap();
    let count = || fs::read_dir(dir.path()).unwrap().count();
    drop(one);
    assert_eq!(count(), 1);
    drop(two);
    assert_eq!(count(), 0);
}

#[test]
fn names_and_terms_are_checked() {
    let dir = TempDir::new().unwrap();
    for name in ["", "../a", "a b", ".hidden", &"a".repeat(65)] {
        assert!(matches!(join(&dir, &options(name), None), Err(GroupError::Name(_))), "{name}");
    }
    let terms = [
        GroupOptions { weight: 0, ..options("a") },
        GroupOptions { low: 2, max: Some(1), ..options("a") },
        GroupOptions { low: 11, ..options("a") },
    ];
    for options in terms {
        assert!(matches!(join(&dir, &options, Some(10)), Err(GroupError::Terms(_))), "{options:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_file_of_another_kind_is_refused_and_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(format!("group-a-{DEVICE}"));
    for bytes in [0, 100, super::table::BYTES as usize] {
        fs::write(&path, vec![0xff; bytes]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = join(&dir, &options("a"), Some(10)).unwrap_err();
        assert!(matches!(error, GroupError::File(..)), "{error}");
        assert_eq!(watch::groups(dir.path()).unwrap(), []);
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = join(&dir, &options("a"), Some(10)).unwrap_err().to_string();
    assert!(error.contains("0600"), "{error}");
}

#[test]
fn one_of_members_that_are_always_busy_yields_to_a_third() {
    let dir = TempDir::new().unwrap();
    let members =
        [10, 20].map(|seconds| (join(&dir, &options("busy"), Some(10)).unwrap(), Duration::from_secs(seconds)));
    members.iter().for_each(|(member, _)| member.reserve(5).unwrap());
    let third = join(&dir, &options("busy"), None).unwrap();
    let yields = |(member, awake): &(Group, Duration)| {
        // Each look is the member's own latest news, and later than those of the other.
        std::thread::sleep(Duration::from_millis(2));
        let awake_at_least = Duration::from_millis(300);
        member.yields(SleepNews { awake: Some(*awake), idle: Duration::ZERO, awake_at_least, pressed: 0 }).is_some()
    };
    assert_eq!([0, 1].map(|at| yields(&members[at])), [false; 2], "nobody waits");
    assert_eq!(third.turn(4), Turn::Waits);
    let answers: Vec<bool> = (0..6).map(|look| yields(&members[look % 2])).collect();
    assert_eq!(answers, [false, true, false, true, false, true], "the one that has been awake for longer");
}

#[test]
fn the_longest_idle_member_yields_to_what_the_control_group_wants() {
    let dir = TempDir::new().unwrap();
    let members =
        [30, 20, 40].map(|seconds| (join(&dir, &options("idle"), None).unwrap(), Duration::from_secs(seconds)));
    members.iter().for_each(|(member, _)| member.reserve(5).unwrap());
    let tell = |at: usize, awake, pressed| {
        let (member, idle) = &members[at];
        member.yields(SleepNews { awake, idle: *idle, awake_at_least: Duration::from_secs(1), pressed })
    };
    let awake = Some(Duration::from_secs(90));
    // The third is in another control group.
    let all = |pressed| [(0, pressed), (1, pressed), (2, 0)].map(|(at, pressed)| tell(at, awake, pressed));
    assert_eq!((all(0), all(7)), ([None; 3], [Some(YieldCause::ControlGroup), None, None]));
    assert_eq!((tell(0, None, 7), tell(1, awake, 7)), (None, Some(YieldCause::ControlGroup)), "the first is parked");
}

#[test]
fn a_watcher_reads_members_and_their_figures() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &GroupOptions { low: 3, max: Some(9), weight: 5, ..options("a-b") }, Some(10)).unwrap();
    one.reserve(4).unwrap();
    one.reserve(6).unwrap_err();
    let groups = watch::groups(dir.path()).unwrap();
    assert_eq!(groups.len(), 1);
    assert_eq!((&*groups[0].name, &*groups[0].device, groups[0].limit), ("a-b", &*DEVICE.to_string(), Some(10)));
    let member = &groups[0].members[0];
    assert_eq!(member.pid, std::process::id());
    assert_eq!((member.held, member.low, member.max, member.weight, member.want), (4, 3, Some(9), 5, 6));
}

#[test]
fn threads_of_members_never_exceed_the_limit() {
    let dir = TempDir::new().unwrap();
    let limit = 1000;
    let members: Vec<_> = (0..4).map(|_| join(&dir, &options("a"), Some(limit)).unwrap()).collect();
    std::thread::scope(|scope| {
        for (seed, member) in members.iter().enumerate() {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed as u64);
                let mut mine = 0;
                for _ in 0..2000 {
                    let bytes = random.u64(1..400);
                    if member.reserve(bytes).is_ok() {
                        mine += bytes;
                        assert!(member.budget().unwrap().held_by_all <= limit);
                    } else {
                        let back = random.u64(0..=mine);
                        member.give_back(back);
                        mine -= back;
                    }
                }
                member.give_back(mine);
            });
        }
    });
    assert_eq!(members[0].budget().unwrap().held_by_all, 0);
}

/// Returns the file of a group.
fn file_of(dir: &TempDir) -> std::path::PathBuf {
    let mut entries = fs::read_dir(dir.path()).unwrap();
    entries.next().expect("a file").unwrap().path()
}

/// Opens the table of a group, as a member with a program of its own way does.
fn table_of(dir: &TempDir) -> Shared<State> {
    Shared::new(&fs::OpenOptions::new().read(true).write(true).open(file_of(dir)).unwrap()).unwrap()
}

#[test]
fn a_file_of_another_version_serves_again_once_nobody_lives() {
    let dir = TempDir::new().unwrap();
    for change in ["form", "length"] {
        let member = join(&dir, &options("left"), Some(100)).unwrap();
        member.reserve(60).unwrap();
        let (path, table) = (file_of(&dir), table_of(&dir));
        match change {
            "form" => drop(table.form.fetch_sub(1, Relaxed)),
            _ => fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(super::table::BYTES + 4096).unwrap(),
        }
        let refused = join(&dir, &options("left"), Some(50)).unwrap_err().to_string();
        assert!(refused.contains("another version"), "{change}: {refused}");
        // The entry of a process that has ended without a word.
        table.entries[0].start.store(1, Relaxed);
        forget_all_but_the_file(member, &dir);
        let next = join(&dir, &options("left"), Some(50)).unwrap();
        assert_eq!(next.budget().unwrap().held_by_all, 0, "{change}");
        next.reserve(50).unwrap();
        drop(next);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{change}");
    }
}

#[test]
fn a_watcher_removes_the_file_of_a_group_whose_members_were_killed() {
    let dir = TempDir::new().unwrap();
    let member = join(&dir, &options("killed"), Some(100)).unwrap();
    assert_eq!(watch::groups(dir.path()).unwrap().len(), 1);
    table_of(&dir).entries[0].start.store(1, Relaxed);
    forget_all_but_the_file(member, &dir);
    // The mark of a member that has just started.
    let open = fs::OpenOptions::new().read(true).write(true).open(file_of(&dir)).unwrap();
    crate::shared::marks::hold(&open, 1).unwrap();
    assert_eq!(watch::groups(dir.path()).unwrap(), []);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    drop(open);
    assert_eq!(watch::groups(dir.path()).unwrap(), []);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Ends a membership as a kill does: the system closes the file, and nobody removes it.
fn forget_all_but_the_file(member: Group, dir: &TempDir) {
    let (path, kept) = (file_of(dir), dir.path().join("kept"));
    fs::hard_link(&path, &kept).unwrap();
    let table = table_of(dir);
    let pid = table.entries[0].pid.load(Relaxed);
    drop(member);
    table.gone.store(0, Relaxed);
    table.entries[0].pid.store(pid, Relaxed);
    fs::rename(kept, path).unwrap();
}

#[test]
fn a_group_whose_file_is_removed_keeps_its_limit() {
    let dir = TempDir::new().unwrap();
    let one = join(&dir, &options("logout"), Some(100)).unwrap();
    one.reserve(80).unwrap();
    fs::remove_file(file_of(&dir)).unwrap();
    let two = join(&dir, &options("logout"), Some(100)).unwrap();
    // The maintenance thread of each member asks now and then.
    assert_eq!(one.owed(), 0);
    assert_eq!(one.budget().unwrap().held_by_all, 80);
    assert_eq!(two.reserve(30).unwrap_err().available, 20);
    two.reserve(20).unwrap();
    one.give_back(80);
    two.reserve(80).unwrap();
    // Nobody can make the file again: the limit holds all the same.
    fs::remove_file(file_of(&dir)).unwrap();
    fs::remove_dir(dir.path()).unwrap();
    fs::write(dir.path(), "no folder").unwrap();
    let refused = two.reserve(1).unwrap_err().to_string();
    assert!(refused.contains("was removed, and cannot be made again"), "{refused}");
    drop((one, two));
    fs::remove_file(dir.path()).unwrap();
    fs::create_dir(dir.path()).unwrap();
}

#[test]
fn the_share_of_a_program_before_an_exec_is_free_without_random_addresses() {
    let dir = TempDir::new().unwrap();
    let other = join(&dir, &options("exec"), Some(100)).unwrap();
    let table = table_of(&dir);
    let terms = Terms { low: 0, max: u64::MAX, weight: 100 };
    // The same process, start and stack, and a file that the system has closed.
    table.used.store(2, Relaxed);
    table.entries[1].take(Identity::of_caller().unwrap(), process::namespace().unwrap(), "before", terms);
    table.entries[1].held.store(60, Relaxed);
    let after = join(&dir, &options("exec"), Some(100)).unwrap();
    after.reserve(100).unwrap();
    drop((other, after));
}
