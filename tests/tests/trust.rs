//! Generates the tables of `docs/TRUST.md` from the files of `tests/results/`, and checks that no
//! line is older than the code by more than a release.
//!
//! To rewrite the tables: `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house trust`.

use crate::sources;
use cachalot_tests::figures::{Table, grouped};
use cachalot_tests::generated;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const BEGIN: &str = "<!-- The tables are generated: see tests/tests/trust.rs. -->\n";
const END: &str = "<!-- End of the generated tables. -->\n";

/// A line of the table: what a file of results shows.
struct Claim {
    sentence: &'static str,
    /// Name of the file in `tests/results/`, without its ending.
    results: &'static str,
    command: &'static str,
    /// Returns the figure, of the cells of the file.
    figure: fn(&Cells) -> String,
}

const CLAIMS: [Claim; 7] = [
    Claim {
        sentence: "Every short program keeps the seven theorems: order, loss, memory, parked, sum, answers, model",
        results: "exhaustive",
        command: "tests/exhaustive.sh",
        figure: |cells| {
            // The table of the planted defects counts programs, too.
            let searches: Vec<_> = cells.rows.iter().filter(|row| row.contains_key("states")).collect();
            let sum = |name: &str| grouped(searches.iter().map(|row| number(&row[name])).sum());
            let found = searches.iter().filter(|row| row["found"] != "0").count();
            let (states, programs, settings) = (sum("states"), sum("programs run"), searches.len());
            format!("{states} states, {programs} programs, {settings} settings: {found} against a theorem")
        },
    },
    Claim {
        sentence: "The search finds twelve planted defects, after those of other allocators",
        results: "exhaustive",
        command: "tests/exhaustive.sh",
        figure: |cells| {
            let planted = cells.column("theorem broken").count();
            let found = cells.column("theorem broken").filter(|&theorem| theorem != "none").count();
            format!("{found} of {planted}")
        },
    },
    Claim {
        sentence: "The arithmetic of rounding, classes, bins, keys, pages and ranges is right up to 2^64 (z3)",
        results: "arithmetic",
        command: "tests/arithmetic.sh proofs",
        figure: |cells| {
            let not_proven = cells.column("proven").filter(|&proven| proven != "yes").count();
            format!(
                "{} proofs of {} claims, {not_proven} open",
                grouped(cells.sum("proofs")),
                cells.column("proven").count()
            )
        },
    },
    Claim {
        sentence: "The functions of the code are their definitions, one size after the other",
        results: "arithmetic",
        command: "tests/arithmetic.sh sizes",
        figure: |cells| format!("{} values, {} wrong", grouped(cells.sum("sizes")), cells.sum("wrong")),
    },
    Claim {
        sentence: "Every driver call fails in turn: no crash, hang, overlap, wrong byte or unexplained leak",
        results: "sweep",
        command: "cachalot-stress sweep --occurrences all",
        figure: |cells| {
            let of_all = |name: &str| {
                let rows =
                    cells.rows.iter().filter(|row| row.get("function").is_some_and(|function| function == "all"));
                rows.filter_map(|row| row.get(name)).map(|value| number(value)).sum::<u64>()
            };
            format!("{} cases, {} wrong", grouped(of_all("cases")), of_all("wrong"))
        },
    },
    Claim {
        sentence: "The tests notice changes of the code: every change of the core, the CUDA backend, the C interface and the reader of snapshots",
        results: "mutants",
        command: "tests/mutants.sh CRATE",
        figure: |cells| {
            let noticed = cells.sum("by the campaign") + cells.sum("by a test since") + cells.sum("by another judge");
            let [of, first] = ["with an effect", "by the campaign"].map(|name| grouped(cells.sum(name)));
            format!("{} of {of} with an effect noticed, {first} of them by the campaigns", grouped(noticed))
        },
    },
    Claim {
        sentence: "The quick tests take the branches of the core, and the page lists each direction that they do not take",
        results: "coverage",
        command: "tests/coverage.py",
        figure: |cells| {
            let all = cells.rows.iter().find(|row| row.values().any(|value| value == "all")).expect("a row of all");
            format!(
                "{} % of lines, {} % of {} directions",
                all["% run"],
                all["% taken"],
                grouped(number(&all["directions"]))
            )
        },
    },
];

/// Kinds of the ledger, and the sentence that their runs show.
const KINDS: [(&str, &str); 7] = [
    (
        "stress on a GPU",
        "Kernels write every block and check every block before the free, beside parks, ranges, captures and streams that come and go",
    ),
    ("programs over the C interface", "Random programs over every function of `cachalot.h`, with every byte checked"),
    (
        "worlds of threads",
        "Programs of 2 to 8 threads on the core, whose turns a seed decides and repeats: each use, park and wake checked (`tests/worlds`)",
    ),
    ("every short program", "The search of `tests/exhaustive`, run again"),
    ("proofs of the arithmetic", "The proofs of `tests/arithmetic`, run again"),
    ("every size", "Every size below a bound, run again"),
    ("changes of the code", "Small changes, one at a time; a finding is a change that no test notices, not judged yet"),
];

/// The tables of a page of results: the list above the first table, and the rows of all tables.
struct Cells {
    head: Table,
    rows: Vec<BTreeMap<String, String>>,
}

impl Cells {
    fn read(name: &str) -> Self {
        let mut cells = Self { head: Table::list(), rows: Vec::new() };
        for (path, text) in sources::texts(&format!("tests/results/{name}"), &["csv"]) {
            let table = Table::read(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if path.ends_with("head.csv") {
                cells.head = table;
            } else {
                let row = |row: &Vec<String>| table.header.iter().cloned().zip(row.iter().cloned()).collect();
                cells.rows.extend(table.rows.iter().map(row));
            }
        }
        cells
    }

    /// Returns what the list says of `name`, up to the first of `ends`.
    fn said(&self, name: &str, ends: [char; 2]) -> &str {
        let line = self.head.rows.iter().find(|line| line[0] == name);
        line.and_then(|line| line[1].split(ends).next()).unwrap_or_default().trim()
    }

    fn date(&self) -> &str {
        self.said("date", [';', ','])
    }

    fn column<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.rows.iter().filter_map(move |row| row.get(name).map(String::as_str))
    }

    fn sum(&self, name: &str) -> u64 {
        self.column(name).map(number).sum()
    }
}

/// Reads a number.
fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

/// The runs of a kind in the ledger, added.
#[derive(Default, PartialEq, Eq, Debug)]
struct Sum {
    runs: u64,
    operations: u64,
    checks: u64,
    faults: u64,
    findings: u64,
    first: String,
    last: String,
    commits: Vec<String>,
    machines: Vec<String>,
}

impl Sum {
    /// Adds a line of the ledger.
    fn add(&mut self, line: &csv::StringRecord) {
        let numbers = [7, 8, 9, 10].map(|at| number(&line[at]));
        self.runs += 1;
        for (sum, number) in
            [&mut self.operations, &mut self.checks, &mut self.faults, &mut self.findings].into_iter().zip(numbers)
        {
            *sum += number;
        }
        let date = line[0].to_owned();
        self.first =
            if self.first.is_empty() { date.clone() } else { date.clone().min(std::mem::take(&mut self.first)) };
        self.last = date.max(std::mem::take(&mut self.last));
        for (known, new) in [(&mut self.commits, &line[1]), (&mut self.machines, &line[2])] {
            if !known.iter().any(|one| one == new) {
                known.push(new.to_owned());
            }
        }
    }
}

/// Adds the lines of a ledger, by kind.
fn sums(ledger: &str) -> BTreeMap<String, Sum> {
    let mut sums = BTreeMap::<_, Sum>::new();
    for line in csv::Reader::from_reader(ledger.as_bytes()).records() {
        let line = line.expect("as many fields as the header");
        sums.entry(line[3].to_owned()).or_default().add(&line);
    }
    sums
}

fn ledger() -> BTreeMap<String, Sum> {
    sums(&fs::read_to_string(Path::new(ROOT).join("tests/results/ledger.csv")).expect("the ledger is there"))
}

/// Builds the tables.
fn tables() -> String {
    let mut text = "\n| shown | figure | command | machine | date | commit |\n|---|---|---|---|---|---|\n".to_owned();
    for Claim { sentence, results, command, figure } in &CLAIMS {
        let cells = Cells::read(results);
        let (machine, date) = (cells.said("machine", [';', ':']), cells.date());
        let commit = cells.said("commit", [';', ',']);
        let _ = writeln!(
            text,
            "| [{sentence}](../tests/results/{results}.md) | {} | `{command}` | {machine} | {date} | {commit} |",
            figure(&cells)
        );
    }
    text += "\n### Campaigns, added up\n\n\
             | shown | runs | operations | checks | runs with faults | findings | dates | commits | machines |\n\
             |---|---|---|---|---|---|---|---|---|\n";
    let ledger = ledger();
    for (kind, sentence) in KINDS {
        let Some(sum) = ledger.get(kind) else { continue };
        let numbers = [sum.runs, sum.operations, sum.checks, sum.faults, sum.findings].map(grouped);
        let (commits, machines) = (sum.commits.join(", "), sum.machines.join("; "));
        let Sum { first, last, .. } = sum;
        let dates = if first == last { first.clone() } else { format!("{first} to {last}") };
        let _ = writeln!(text, "| {sentence} | {} | {dates} | {commits} | {machines} |", numbers.join(" | "));
    }
    text + "\n"
}

/// Returns the dates of the releases in a changelog, the newest first.
fn releases(changelog: &str) -> Vec<&str> {
    let heads = changelog.lines().filter_map(|line| line.strip_prefix("## ["));
    heads.filter_map(|head| head.split_once("] - ")).map(|(_, date)| date.trim()).collect()
}

/// Returns whether two releases have come since `date`: the results are then those of code before
/// the last release but one.
fn is_stale(date: &str, releases: &[&str]) -> bool {
    releases.iter().filter(|&&release| release > date).count() > 1
}

#[test]
fn the_page_has_the_figures_of_the_results() {
    generated::assert_part_current(&Path::new(ROOT).join("docs/TRUST.md"), BEGIN, END, &tables());
}

#[test]
fn no_line_is_older_than_the_code_by_more_than_a_release() {
    let changelog = fs::read_to_string(Path::new(ROOT).join("CHANGELOG.md")).expect("the changelog is there");
    let releases = releases(&changelog);
    let of_files = CLAIMS.iter().map(|claim| (claim.sentence, Cells::read(claim.results).date().to_owned()));
    let of_kinds = ledger().into_iter().map(|(kind, sum)| {
        let sentence = KINDS.iter().find(|(known, _)| *known == kind);
        (sentence.unwrap_or_else(|| panic!("`{kind}` is no kind of the page")).1, sum.last)
    });
    for (sentence, date) in of_files.chain(of_kinds) {
        let digits = date.bytes().filter(u8::is_ascii_digit).count();
        assert!(date.len() == 10 && digits == 8, "{sentence}: `{date}` is no date");
        assert!(!is_stale(&date, &releases), "{sentence}: of {date}, and two releases have come since. Run it again");
    }
}

#[test]
fn a_line_lasts_for_one_release_and_no_longer() {
    let changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2027-03-01\n\n## [0.2.0] - 2027-02-01\n\n## [0.1.0] - 2027-01-01\n";
    let releases = releases(changelog);
    assert_eq!(releases, ["2027-03-01", "2027-02-01", "2027-01-01"]);
    let stale = ["2026-12-31", "2027-01-31", "2027-02-01", "2027-03-02"].map(|date| is_stale(date, &releases));
    assert_eq!(stale, [true, true, false, false]);
    assert!(!is_stale("2026-12-31", &[]));
}

#[test]
fn runs_of_a_kind_are_added() {
    let ledger = "date,commit,machine,kind,configuration,seeds,seconds,operations,checks,faults,findings\n\
                  2026-02-02,a,\"x, 1\",k,c,1,2,3,4,5,6\n2026-01-01,b,\"x, 1\",k,c,1,2,10,20,30,40\n2026-01-01,b,y,l,c,1,2,1,1,1,1\n";
    let sums = sums(ledger);
    let expected = Sum {
        runs: 2,
        operations: 13,
        checks: 24,
        faults: 35,
        findings: 46,
        first: "2026-01-01".to_owned(),
        last: "2026-02-02".to_owned(),
        commits: vec!["a".to_owned(), "b".to_owned()],
        machines: vec!["x, 1".to_owned()],
    };
    assert_eq!((sums.len(), &sums["k"]), (2, &expected));
}
