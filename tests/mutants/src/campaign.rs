//! A campaign: every change is taken, and the tests with a way to the change run until a test
//! fails.

use crate::change::{Change, State};
use crate::tests::{self, End, Program, Test};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The longest quick test, in seconds. Slow tests run after the quick tests have judged.
const SLOW: f64 = 0.5;

/// The list of a campaign. The programs lie beside the file.
#[derive(Serialize, Deserialize)]
pub(crate) struct List {
    pub(crate) changes: Vec<Change>,
    /// The programs, in the order in which they judge a change.
    pub(crate) programs: Vec<Program>,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// A test failed.
    Noticed,
    /// A test ran ten times as long as without the change.
    TooLong,
    /// Every test with a way to the change passed.
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

/// Names a file of a campaign and the error.
fn told(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

/// Reads a file of a campaign.
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
    program: Program,
    is_slow: bool,
}

impl Pass {
    /// Returns the steps of a campaign: quick tests judge first, whatever their program.
    pub(crate) fn all(list: &List) -> Vec<Self> {
        let of = |is_slow| list.programs.iter().map(move |program| Self { program: program.clone(), is_slow });
        of(false).chain(of(true)).collect()
    }

    fn name(&self) -> String {
        format!("{}.{}", self.program.name, if self.is_slow { "slow" } else { "quick" })
    }

    /// Returns the tests of the pass, the fastest first, with the changes reached. The first call
    /// measures the tests.
    fn tests(&self, folder: &Path, jobs: usize) -> Result<Vec<Test>, String> {
        let path = folder.join(format!("{}.json", self.name()));
        if path.exists() {
            return read(&path);
        }
        let slow_path = folder.join(format!("{}.names.json", self.program.name));
        let names: Vec<String> = if self.is_slow { read(&slow_path)? } else { self.program.names(folder)? };
        let limit = if self.is_slow { tests::LONGEST } else { Duration::from_secs_f64(SLOW) };
        let (found, slow) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        side_by_side(jobs, names.len(), |index| {
            let name = &names[index];
            match self.program.timed(folder, name, limit)? {
                (End::Passed, seconds) => {
                    let reaches = self.program.reached(folder, name)?;
                    let test = Test { name: name.clone(), seconds, reaches };
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
    /// A folder that each test finds empty.
    pub(crate) alone: Option<PathBuf>,
}

/// Takes every change, and writes a line for each and each pass. Goes on where an earlier call
/// stopped.
pub(crate) fn run(folder: &Path, pace: &Pace) -> Result<(), String> {
    let begun = Instant::now();
    let is_over = || pace.limit.is_some_and(|limit| begun.elapsed() > limit);
    let mut list: List = read(&folder.join("list.json"))?;
    list.programs.iter_mut().for_each(|program| program.alone.clone_from(&pace.alone));
    let passes = Pass::all(&list);
    let is_noticed = |name: &str, known: &[HashMap<String, Outcome>]| {
        known.iter().any(|of| of.get(name).is_some_and(|outcome| outcome.is_noticed()))
    };
    for is_slow in [false, true] {
        if is_over() || pace.is_quick && is_slow {
            break;
        }
        let known: Vec<_> = passes.iter().map(|pass| pass.outcomes(folder)).collect();
        let judges = passes.iter().zip(&known).filter(|(pass, _)| pass.is_slow == is_slow);
        let judges = judges.map(|(pass, known)| Judge::new(pass, folder, known, pace.jobs));
        let judges = judges.collect::<Result<Vec<_>, _>>()?;
        let is_open = |&number: &usize| {
            let (change, name) = (&list.changes[number - 1], list.changes[number - 1].name());
            let is_judged = judges.iter().all(|judge| judge.known.contains_key(&name));
            change.state == State::Built && !is_noticed(&name, &known) && !is_judged
        };
        let mut open: Vec<usize> = (1..=list.changes.len()).filter(is_open).collect();
        // What is done when the time is over is a sample of all files.
        open.sort_by_key(|&number| (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        eprintln!("{} changes, {} tests", open.len(), judges.iter().map(|judge| judge.tests.len()).sum::<usize>());
        side_by_side(pace.jobs, open.len(), |index| {
            for judge in &judges {
                if is_over() || judge.judges(&list.changes[open[index] - 1], open[index])?.is_noticed() {
                    break;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The tests of a pass, and the file of results.
struct Judge<'a> {
    folder: &'a Path,
    program: &'a Program,
    tests: Vec<Test>,
    file: Mutex<File>,
    /// The outcomes of earlier calls.
    known: &'a HashMap<String, Outcome>,
    /// The latest tests with a failure, by the changed file. Each runs before all further tests.
    noticing: Mutex<HashMap<String, Vec<usize>>>,
}

impl<'a> Judge<'a> {
    fn new(pass: &'a Pass, folder: &'a Path, known: &'a HashMap<String, Outcome>, jobs: usize) -> Result<Self, String> {
        let tests = pass.tests(folder, jobs)?;
        let path = folder.join(format!("{}.tsv", pass.name()));
        let file = File::options().append(true).create(true).open(&path).map_err(|error| told(&path, error))?;
        Ok(Self { folder, program: &pass.program, tests, file: Mutex::new(file), known, noticing: Mutex::default() })
    }

    /// Runs the tests with a way to a change until a test fails, and writes the line.
    fn judges(&self, change: &Change, number: usize) -> Result<Outcome, String> {
        let name = change.name();
        if let Some(&outcome) = self.known.get(&name) {
            return Ok(outcome);
        }
        let begun = Instant::now();
        let first = self.noticing.lock().expect("no thread panics").get(&change.file).cloned().unwrap_or_default();
        let others = (0..self.tests.len()).filter(|index| !first.contains(index));
        let mut outcome = Outcome::NotReached;
        let mut noticed_by = "";
        for index in first.iter().copied().chain(others) {
            let test = &self.tests[index];
            if !test.reaches.contains(&number) {
                continue;
            }
            outcome = Outcome::Survived;
            let limit = Duration::from_secs_f64(10.0 * test.seconds + 2.0);
            let end = self.program.run(self.folder, &test.name, ("MUTANT", &number.to_string()), limit)?;
            outcome = match end {
                End::Passed => continue,
                End::Failed => Outcome::Noticed,
                End::TooLong => Outcome::TooLong,
            };
            noticed_by = &test.name;
            if outcome == Outcome::TooLong {
                break;
            }
            let mut noticing = self.noticing.lock().expect("no thread panics");
            let last = noticing.entry(change.file.clone()).or_default();
            last.retain(|&known| known != index);
            last.insert(0, index);
            last.truncate(4);
            break;
        }
        let seconds = begun.elapsed().as_secs_f64();
        // A line is written whole, or another call judges the change again.
        let line = format!("{}\t{noticed_by}\t{seconds:.2}\t{name}\n", outcome.name());
        let written = self.file.lock().expect("no thread panics").write_all(line.as_bytes());
        written.map_err(|error| told(self.folder, error))?;
        Ok(outcome)
    }
}
