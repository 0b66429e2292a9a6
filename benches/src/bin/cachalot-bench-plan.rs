//! Measures the results and the time of the planner: the tables of `tests/results/plan.md`.

use cachalot_benches::machine;
use cachalot_planner::exact::{Instance, Progress, Search};
use cachalot_planner::parallel::{Outcome, fits, minimise};
use cachalot_planner::{Chains, Problem, lower_bound, verify};
use cachalot_replay::plan::{Reading, load};
use cachalot_tests::figures::Table;
use cachalot_tests::planning::large::{MODELS, training_step};
use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measures the planner
#[derive(Parser)]
struct Args {
    /// Folder of the public instances
    #[arg(long)]
    data: PathBuf,
    /// Records of programs; sections and the whole record are planned
    traces: Vec<PathBuf>,
    /// Number of threads of the portfolio
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Seconds for the portfolio on each of the two open instances
    #[arg(long, default_value_t = 0)]
    open: u64,
    /// Folder for the tables, by default the terminal
    #[arg(long, short)]
    output: Option<PathBuf>,
}

/// Hard instances and requested capacities: the optimum for C, the result of `MiniMalloc` for the
/// others.
const HARD: [(&str, u64); 8] = [
    ("A", 1_048_576),
    ("C", 1_039_360),
    ("D", 1_048_576),
    ("E", 1_048_576),
    ("F", 1_048_576),
    ("H", 1_048_576),
    ("J", 1_048_576),
    ("K", 1_048_576),
];

/// Instances of TVM and TensorFlow Lite Micro.
const PROGRAMS: [&str; 6] = ["alloc_max", "deep_speech", "five", "input.12", "simple", "tflm_person_detection"];

/// Time limit of the portfolio for large problems.
const DEADLINE: Duration = Duration::from_secs(10);

fn main() {
    let args = Args::parse();
    let mut tables = vec![("hard", hard(&args)), ("programs", programs(&args))];
    tables.extend(["sections", "records"].into_iter().zip(records(&args)));
    tables.push(("steps", large(&args)));
    println!("the most memory that any problem up to here took, with everything else of this program: {}", memory());
    if args.open > 0 {
        tables.push(("open", open(&args)));
    }
    let written = machine::write(args.output.as_deref(), tables);
    written.unwrap_or_else(|error| panic!("the tables cannot be written: {error}"));
}

fn instance(args: &Args, name: &str) -> Problem {
    let file = args.data.join(name);
    let mut tasks = load(&file, &Reading::default()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    tasks.remove(0).problem
}

/// Returns the elapsed seconds, and the seconds of processor time.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64, f64) {
    let processor = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (start, before) = (Instant::now(), processor());
    let result = work();
    (result, start.elapsed().as_secs_f64(), processor() - before)
}

/// Finds the first run of the search that solves a problem. Returns the run's number, and the nodes
/// of all runs so far.
fn first(problem: &Problem, capacity: u64) -> (u64, u64) {
    let mut search = Search::new(Arc::new(Instance::of(Chains::of(problem)).expect("it is small")));
    for run in 0.. {
        search.begin(run, capacity);
        if search.advance(u64::MAX) == Progress::Fits {
            verify(problem, &search.plan().expect("it fits")).expect("a plan");
            return (run, search.nodes());
        }
    }
    unreachable!("some run solves it")
}

fn hard(args: &Args) -> Table {
    let mut rows =
        Table::new(["instance", "buffers", "capacity", "run", "nodes", "CPU, one thread", "wall, all threads", "CPU"]);
    let (mut alone, mut together, mut processor) = (0.0, 0.0, 0.0);
    for (name, capacity) in HARD {
        let problem = instance(args, &format!("{name}.1048576.csv"));
        let ((run, nodes), _, cpu) = timed(|| first(&problem, capacity));
        let ((outcome, _), wall, all) = timed(|| fits(&problem, capacity, args.threads, None, &mut |_, _, _| {}));
        check(&problem, &outcome);
        (alone, together, processor) = (alone + cpu, together + wall, processor + all);
        let buffers = problem.buffers.len().to_string();
        let numbers = [capacity.to_string(), run.to_string(), nodes.to_string()];
        rows.add_row([name.to_owned(), buffers].into_iter().chain(numbers).chain([cpu, wall, all].map(seconds)));
    }
    let sums = [alone, together, processor].map(seconds);
    rows.add_row(["all"].map(str::to_owned).into_iter().chain(std::iter::repeat_n(String::new(), 4)).chain(sums));
    rows
}

fn check(problem: &Problem, outcome: &Outcome) {
    verify(problem, outcome.plan.as_ref().expect("there is a plan")).expect("a plan");
}

fn seconds(seconds: f64) -> String {
    if seconds < 0.01 { format!("{seconds:.5}") } else { format!("{seconds:.3}") }
}

const COLUMNS: [&str; 9] = ["problem", "buffers", "lower bound", "peak", "gap", "found by", "nodes", "wall", "CPU"];

/// Searches for the lowest peak of a problem, and adds a row with the result.
fn add(rows: &mut Table, name: &str, problem: &Problem, threads: usize, deadline: Duration) {
    let (outcome, wall, cpu) = timed(|| minimise(problem, threads, Some(deadline), &mut |_, _, _| {}));
    check(problem, &outcome);
    let plan = outcome.plan.as_ref().expect("there is a plan");
    let gap = 100.0 * (plan.peak as f64 / outcome.lower_bound as f64 - 1.0);
    let gap = if outcome.optimal { "optimal".to_owned() } else { format!("{gap:.3} %") };
    let [buffers, bound, peak] =
        [problem.buffers.len() as u64, outcome.lower_bound, plan.peak].map(|number| number.to_string());
    let nodes = outcome.nodes.to_string();
    let fields =
        [name.to_owned(), buffers, bound, peak, gap, outcome.algorithm.to_owned(), nodes, seconds(wall), seconds(cpu)];
    rows.add_row(fields);
}

fn programs(args: &Args) -> Table {
    let mut rows = Table::new(COLUMNS);
    for name in PROGRAMS {
        let problem = instance(args, &format!("{name}.csv"));
        assert_eq!(lower_bound(&problem), minimise(&problem, 1, Some(DEADLINE), &mut |_, _, _| {}).lower_bound);
        add(&mut rows, name, &problem, args.threads, DEADLINE);
    }
    rows
}

fn read(file: &Path, from: u64, to: u64) -> Problem {
    let reading = Reading { section: Some(from..to), ..Reading::default() };
    load(file, &reading).unwrap_or_else(|error| panic!("{}: {error}", file.display())).remove(0).problem
}

/// Returns the tables of sections of the records, and of the whole records.
fn records(args: &Args) -> [Table; 2] {
    let (mut short, mut long) = (Table::new(COLUMNS), Table::new(COLUMNS));
    for file in &args.traces {
        let name =
            file.file_name().and_then(|name| name.to_str()).and_then(|name| name.split('.').next()).unwrap_or("?");
        let whole = read(file, 0, 60_000);
        let middle = whole.buffers.len() as u64 / 2;
        add(&mut short, name, &read(file, middle, middle + 1000), args.threads, DEADLINE);
        add(&mut long, name, &whole, args.threads, DEADLINE);
    }
    [short, long]
}

fn large(args: &Args) -> Table {
    let mut rows = Table::new(COLUMNS);
    for model in MODELS {
        for buffers in [1000, 20_000, 60_000, 1_000_000] {
            let problem = training_step(model, buffers, 1);
            add(&mut rows, &format!("{model:?}"), &problem, args.threads, DEADLINE);
        }
    }
    rows
}

/// Returns the most memory that this process has had.
fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or(" unknown").trim().to_owned()
}

fn open(args: &Args) -> Table {
    let mut rows = Table::new(["instance", "lower bound", "best known", "peak", "found by", "nodes", "wall", "CPU"]);
    for (name, known) in [("D", 1_046_528_u64), ("J", 1_048_576)] {
        let problem = instance(args, &format!("{name}.1048576.csv"));
        let deadline = Some(Duration::from_secs(args.open));
        let (outcome, wall, cpu) = timed(|| minimise(&problem, args.threads, deadline, &mut |_, _, _| {}));
        check(&problem, &outcome);
        let peak = outcome.plan.as_ref().map_or(0, |plan| plan.peak);
        let numbers = [outcome.lower_bound, known, peak].map(|number| number.to_string());
        let rest = [outcome.algorithm.to_owned(), outcome.nodes.to_string(), seconds(wall), seconds(cpu)];
        rows.add_row([name.to_owned()].into_iter().chain(numbers).chain(rest));
    }
    rows
}
