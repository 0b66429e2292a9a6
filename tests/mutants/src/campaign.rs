//! A campaign: every change is taken, and the tests that reach it run until one notices it.

use crate::change::{Change, State};
use crate::tests::{self, End, Test};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Tests that take longer run once the others have judged, in seconds.
const SLOW: f64 = 0.5;

/// What a campaign runs: the files beside the list are the programs.
#[derive(Serialize, Deserialize)]
pub(crate) struct List {
    pub(crate) changes: Vec<Change>,
    /// The names of the programs, in the order in which they judge a change.
    pub(crate) programs: Vec<String>,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// A test failed.
    Noticed,
    /// A test ran ten times as long as without the change.
    TooLong,
    /// Every test that reaches the change passed.
    Survived,
    /// No test of the program reaches the change.
    NotReached,
}

impl Outcome {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Noticed, "noticed"),
        (Self::TooLong, "timeout"),
        (Self::Survived, "survived"),
        (Self::NotReached, "not reached"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(outcome, _)| *outcome == self).expect("all are listed").1
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, of)| *of == name).map(|(outcome, _)| *outcome)
    }

    pub(crate) fn is_noticed(self) -> bool {
        matches!(self, Self::Noticed | Self::TooLong)
    }
}

/// The name of a file of a campaign, and the error of it.
fn told(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

/// Reads a file that a campaign wrote.
pub(crate) fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, String> {
    let text = std::fs::read(path).map_err(|error| told(path, error))?;
    serde_json::from_slice(&text).map_err(|error| told(path, error))
}

/// Writes a file of a campaign.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_vec(value).map_err(|error| told(path, error))?;
    std::fs::write(path, text).map_err(|error| told(path, error))
}

/// Calls a function for each index, with so many threads.
fn side_by_side(jobs: usize, count: usize, each: impl Fn(usize) -> Result<(), String> + Sync) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= count {
                            return Ok(());
                        }
                        each(index)?;
                    }
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

/// A step of a campaign: the quick or the slow tests of a program.
pub(crate) struct Pass {
    program: String,
    is_slow: bool,
}

impl Pass {
    /// Returns the steps of a campaign: quick tests judge first, whatever their program.
    pub(crate) fn all(list: &List) -> Vec<Self> {
        let of = |is_slow| list.programs.iter().map(move |program| Self { program: program.clone(), is_slow });
        of(false).chain(of(true)).collect()
    }

    fn name(&self) -> String {
        format!("{}.{}", self.program, if self.is_slow { "slow" } else { "quick" })
    }

    /// Returns the tests of the pass, the fastest first, with what each reaches. They are measured by the first call.
    fn tests(&self, folder: &Path, jobs: usize) -> Result<Vec<Test>, String> {
        let path = folder.join(format!("{}.json", self.name()));
        if path.exists() {
            return read(&path);
        }
        let program = folder.join(&self.program);
        let slow_path = folder.join(format!("{}.names.json", self.program));
        let names: Vec<String> = if self.is_slow { read(&slow_path)? } else { tests::names(&program)? };
        let limit = if self.is_slow { tests::LONGEST } else { Duration::from_secs_f64(SLOW) };
        let (found, slow) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        side_by_side(jobs, names.len(), |index| {
            let name = &names[index];
            match tests::timed(&program, name, limit)? {
                (End::Passed, seconds) => {
                    let reaches = tests::reached(folder, &self.program, name)?;
                    let test = Test { program: self.program.clone(), name: name.clone(), seconds, reaches };
                    found.lock().expect("no thread panics").push(test);
                }
                (End::TooLong, _) => slow.lock().expect("no thread panics").push(name.clone()),
                (End::Failed, _) => eprintln!("left out, since it fails without a change: {name}"),
            }
            Ok(())
        })?;
        let mut tests = found.into_inner().expect("no thread panics");
        tests.retain(|test| !test.reaches.is_empty());
        tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        if !self.is_slow {
            write(&slow_path, &slow.into_inner().expect("no thread panics"))?;
        }
        write(&path, &tests)?;
        Ok(tests)
    }

    /// Reads the outcomes.
    pub(crate) fn outcomes(&self, folder: &Path) -> HashMap<String, Outcome> {
        let text = std::fs::read_to_string(folder.join(format!("{}.tsv", self.name()))).unwrap_or_default();
        let lines = text.lines().filter_map(|line| {
            let mut fields = line.split('\t');
            let (outcome, _, _, name) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            Some((name.to_owned(), Outcome::named(outcome)?))
        });
        lines.collect()
    }
}

/// How a campaign runs.
pub(crate) struct Pace {
    /// How many changes are judged side by side.
    pub(crate) jobs: usize,
    /// When to stop.
    pub(crate) limit: Option<Duration>,
    /// Whether slow tests are left out.
    pub(crate) is_quick: bool,
}

/// Takes every change that no pass before noticed, and writes a line for each. Goes on where an earlier call stopped.
pub(crate) fn run(folder: &Path, pace: &Pace) -> Result<(), String> {
    let begun = Instant::now();
    let is_over = || pace.limit.is_some_and(|limit| begun.elapsed() > limit);
    let list: List = read(&folder.join("list.json"))?;
    let mut noticed: HashSet<String> = HashSet::new();
    for pass in Pass::all(&list) {
        if is_over() || pace.is_quick && pass.is_slow {
            break;
        }
        let tests = pass.tests(folder, pace.jobs)?;
        let done = pass.outcomes(folder);
        let is_open = |&number: &usize| {
            let (change, name) = (&list.changes[number - 1], list.changes[number - 1].name());
            change.state == State::Built && !noticed.contains(&name) && !done.contains_key(&name)
        };
        let open: Vec<usize> = (1..=list.changes.len()).filter(is_open).collect();
        let path = folder.join(format!("{}.tsv", pass.name()));
        let file = File::options().append(true).create(true).open(&path).map_err(|error| told(&path, error))?;
        let file = Mutex::new(file);
        eprintln!("{}: {} tests, {} changes", pass.name(), tests.len(), open.len());
        side_by_side(pace.jobs, open.len(), |index| {
            if is_over() {
                return Ok(());
            }
            let number = open[index];
            let started = Instant::now();
            let (outcome, test) = judged(folder, &tests, number)?;
            let seconds = started.elapsed().as_secs_f64();
            let name = list.changes[number - 1].name();
            // A line is written whole, or a further call judges the change again.
            let line = format!("{}\t{test}\t{seconds:.2}\t{name}\n", outcome.name());
            file.lock().expect("no thread panics").write_all(line.as_bytes()).map_err(|error| told(&path, error))
        })?;
        let all = pass.outcomes(folder).into_iter();
        noticed.extend(all.filter(|(_, outcome)| outcome.is_noticed()).map(|(name, _)| name));
    }
    Ok(())
}

/// Runs the tests that reach a change until one notices it.
fn judged<'a>(folder: &Path, tests: &'a [Test], number: usize) -> Result<(Outcome, &'a str), String> {
    let mut outcome = Outcome::NotReached;
    for test in tests.iter().filter(|test| test.reaches.contains(&number)) {
        outcome = Outcome::Survived;
        let limit = Duration::from_secs_f64(10.0 * test.seconds + 2.0);
        let end = tests::run(&folder.join(&test.program), &test.name, ("MUTANT", &number.to_string()), limit);
        match end.map_err(|error| told(&folder.join(&test.program), error))? {
            End::Passed => {}
            End::Failed => return Ok((Outcome::Noticed, &test.name)),
            End::TooLong => return Ok((Outcome::TooLong, &test.name)),
        }
    }
    Ok((outcome, ""))
}
