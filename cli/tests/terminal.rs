//! Output for people: tables in terminals of any width, colours, help, completions, manual pages,
//! and the documented output.

use crate::common::{self, Finished, cachalot, cachalot_in, folder};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commands with tables, run in the root of the repository.
const TABLES: [&[&str]; 14] = [
    &["replay", "tests/traces/mlp_seed.csv.gz", "tests/traces/multistream_prefetch__expandable.csv.gz"],
    &["replay", "--check", "tests/traces/mlp_seed.csv.gz"],
    &["replay", "--policy=planned", "tests/traces/mlp_seed.csv.gz"],
    &["compare", "--repeat=1", "--config=expandable_segments:True", "tests/traces/mlp_seed.csv.gz"],
    &[
        "compare",
        "--repeat=1",
        "--policy=caching,bfc",
        "tests/traces/mlp_seed.csv.gz",
        "tests/traces/resnet50_amp.csv.gz",
    ],
    &["replay", "--passes=2", "tests/traces/mlp_seed.csv.gz"],
    &[
        "compare",
        "--repeat=1",
        "--passes=2",
        "--policy=caching,direct",
        "tests/traces/mlp_seed.csv.gz",
        "tests/traces/resnet50_amp.csv.gz",
    ],
    &["plan", "--algorithm=squeeze", "tests/traces/mlp_seed.csv.gz"],
    &["plan", "--algorithm=squeeze", "--capacity=1GB", "tests/traces/mlp_seed.csv.gz"],
    &["inspect", "tests/traces/mlp_seed__stacks.pickle.gz"],
    &["diff", "tests/traces/mlp_seed__stacks.pickle.gz", "tests/traces/multistream_prefetch__stacks.pickle.gz"],
    &["tune", "--trials=16", "tests/traces/mlp_seed.csv.gz"],
    &["tune", "--trials=16", "--for=time", "tests/traces/mlp_seed.csv.gz"],
    &["predict", "--batch-scale=2", "--limit=400MiB", "tests/traces/mlp_seed__stacks.pickle.gz"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs the command in the root of the repository, with environment variables.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    for name in ["COLUMNS", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied()).current_dir(root());
    common::finish(&mut command)
}

/// Returns the lines above each line of dashes: the titles of tables.
fn titles(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let rules = lines.iter().enumerate().filter(|(_, line)| line.starts_with('─')).map(|(at, _)| at);
    rules
        .map(|rule| {
            let start = lines[..rule].iter().rposition(|line| line.is_empty()).map_or(0, |empty| empty + 1);
            lines[start..rule].to_vec()
        })
        .collect()
}

#[test]
fn the_text_of_inspect_fits_the_terminal() {
    // Frames are the only lines that are not folded: without them, none is too long.
    let arguments = ["inspect", "--frames=0", "tests/traces/multistream_prefetch__stacks.pickle.gz"];
    let finished = run(&arguments, &[("COLUMNS", "80")]);
    let widest = finished.output.lines().max_by_key(|line| line.chars().count()).expect("lines");
    assert!(widest.chars().count() <= 80, "{widest}");
    assert!(finished.output.contains("recorded without a stack"), "{}", finished.output);
}

#[test]
fn every_table_fits_the_terminal_with_at_most_six_columns() {
    for arguments in TABLES {
        for width in [80, 140] {
            let finished = run(arguments, &[("COLUMNS", &width.to_string())]);
            // A table reaches from the titles to an empty line. `inspect` also prints lines outside
            // of tables.
            let mut in_table = false;
            let rows = finished.output.lines().filter(|line| {
                in_table = !line.is_empty() && (in_table || line.starts_with('─'));
                in_table
            });
            let titles = titles(&finished.output);
            let lines = rows.chain(titles.iter().flatten().copied());
            let widest = lines.map(|line| line.chars().count()).max().expect("a table");
            assert!(widest <= width, "{arguments:?} has {widest} of {width} columns:\n{}", finished.output);
        }
        // Without a terminal and without a width, lines have at most 100 columns.
        let same = run(arguments, &[("COLUMNS", "100")]);
        let fixed = run(arguments, &[]);
        if arguments[0] != "plan" {
            assert_eq!(fixed.output, same.output, "{arguments:?}");
        }
        for title in titles(&fixed.output) {
            // The last line of the titles has a word of each column but, at times, the first.
            let columns =
                title.last().map_or(0, |line| line.split("  ").filter(|cell| !cell.trim().is_empty()).count());
            assert!((2..=6).contains(&columns), "{arguments:?}: {title:?}");
        }
    }
}

#[test]
fn a_pipe_has_the_width_of_the_terminal_behind_it_and_a_file_has_not() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("a terminal of ours");
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).expect("a size");
    let name = ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("UTF-8");
    let messages = || fs::OpenOptions::new().write(true).open(&name).expect("the terminal");
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().expect("lines");
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        command.args(["inspect", "--frames=0", "tests/traces/multistream_prefetch__stacks.pickle.gz"]);
        command.env_remove("COLUMNS").current_dir(root()).stderr(messages());
        command
    };
    let piped = command().output().expect("it runs");
    let piped = String::from_utf8(piped.stdout).expect("UTF-8");
    assert!((60..=80).contains(&widest(&piped)), "{piped}");
    let path = folder("terminal_file").join("report.txt");
    assert!(command().stdout(fs::File::create(&path).expect("a file")).status().expect("it runs").success());
    let file = fs::read_to_string(path).expect("a report");
    assert!((81..=100).contains(&widest(&file)), "{file}");
}

#[test]
fn wide_tables_have_every_column_once_and_a_line_for_each_row() {
    for (arguments, columns) in TABLES.iter().zip([12, 16, 20, 14, 14, 15, 17, 7, 8, 17, 5, 10, 10, 7]) {
        let finished = run(&[*arguments, &["--wide"]].concat(), &[("COLUMNS", "80")]);
        let titles = titles(&finished.output);
        let first = titles.first().expect("a table");
        assert_eq!(first.len(), 1, "{arguments:?}: {first:?}");
        let mut names: Vec<&str> = first[0].split("  ").map(str::trim).filter(|name| !name.is_empty()).collect();
        assert_eq!(names.len(), columns, "{arguments:?}: {names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), columns, "{arguments:?}: a name twice in {names:?}");
    }
}

#[test]
fn only_a_terminal_is_coloured_unless_it_is_asked_for() {
    let arguments = ["compare", "--repeat=1", "--policy=caching,bfc", "tests/traces/mlp_seed.csv.gz"];
    let coloured = |options: &[&str], variables: &[(&str, &str)]| {
        run(&[&arguments, options].concat(), variables).output.contains('\x1b')
    };
    assert!(!coloured(&[], &[]));
    assert!(coloured(&["--color=always"], &[]));
    assert!(coloured(&["--color=always"], &[("NO_COLOR", "1")]), "the option goes before the variable");
    assert!(!coloured(&["--color=never"], &[("CLICOLOR_FORCE", "1")]));
    let finished = run(&["--color=sometimes", "man"], &[]);
    assert!(finished.status == 2 && finished.errors.contains("auto, always, never"), "{}", finished.errors);
}

#[test]
fn help_is_wrapped_and_has_examples() {
    let commands = [
        "replay",
        "compare",
        "tune",
        "predict",
        "plan",
        "inspect",
        "view",
        "diff",
        "export",
        "snapshot",
        "completions",
        "man",
    ];
    for command in commands {
        let finished = run(&[command, "--help"], &[("COLUMNS", "80")]);
        assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{command}");
        let wide: Vec<_> = finished.output.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{command}: {wide:?}");
        let (_, examples) = finished.output.split_once("Examples:\n").expect(command);
        assert!(examples.contains(&format!("cachalot {command}")), "{examples}");
    }
}

#[test]
fn the_version_has_its_commit_where_git_knows_it() {
    let version = run(&["--version"], &[]).output;
    assert!(version.starts_with(&format!("cachalot {}", env!("CARGO_PKG_VERSION"))), "{version}");
    let mut git = Command::new("git");
    let tracked = git.args(["ls-files", "--error-unmatch", "Cargo.toml"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    if tracked.output().is_ok_and(|output| output.status.success()) {
        let commit = version.split_once("(commit ").expect("a commit").1;
        let digits = commit.bytes().take_while(u8::is_ascii_hexdigit).count();
        assert!(digits >= 10, "{version}");
    }
}

#[test]
fn shells_and_man_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let finished = run(&["completions", shell], &[]);
        assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{shell}");
        for word in ["compare", "inspect", "capacity", "wide"] {
            assert!(finished.output.contains(word), "{word} for {shell}");
        }
    }
    let page = run(&["man", "compare"], &[]);
    assert_eq!((page.status, page.errors.as_str()), (0, ""));
    assert!(page.output.contains(".SH NAME") && page.output.contains("expandable_segments"), "{}", page.output);
    for kept in [
        ".TH cachalot-compare 1  \"cachalot 0.1.0\"",
        "\n.nf\npeak reserved   bytes held",
        ".SH EXAMPLES\n.nf\n  cachalot ",
    ] {
        assert!(page.output.contains(kept), "{kept}: {}", page.output);
    }
    assert!(!page.output.contains(".nf\n."), "{}", page.output);
    let unknown = run(&["man", "compere"], &[]);
    assert_eq!((unknown.status, unknown.output.as_str()), (2, ""));
    assert!(unknown.errors.starts_with(
        "there is no command `compere`: expected one of run, emulate, park, wake, trim, status, top, group, ledger, replay, compare, tune, predict, plan, "
    ));
    let place = folder("manual");
    assert_eq!(cachalot_in(&place, ["man", "--into", "."]).status, 0);
    for name in ["cachalot", "cachalot-replay", "cachalot-plan", "cachalot-man"] {
        assert!(place.join(format!("{name}.1")).exists(), "{name}.1");
    }
    assert!(!place.join("cachalot-help.1").exists(), "the command for help needs no page");
    let made = place.join("made/for/them");
    assert_eq!(cachalot(["man".into(), "--into".into(), made.clone()]).status, 0);
    assert!(made.join("cachalot-view.1").exists());
    let nowhere = cachalot(["man".into(), "--into".into(), place.join("cachalot.1")]);
    assert!(nowhere.status == 2 && nowhere.errors.contains("cachalot.1: "), "{}", nowhere.errors);
}

/// The page with the documented output.
const PAGE: &str = "docs/command.md";

/// Returns width and arguments of a documented command, the first line of a fenced block after the
/// prompt.
fn documented(block: &str) -> Option<(usize, Vec<String>)> {
    let command = block.lines().next()?.strip_prefix("$ ")?;
    let mut words = command.split_whitespace();
    let width = words.next()?.strip_prefix("COLUMNS=")?.parse().ok()?;
    (words.next()? == "cachalot").then(|| (width, words.map(str::to_owned).collect()))
}

/// Removes measured seconds from the output: at the ends of lines, with three digits after the
/// point.
fn without_seconds(text: &str) -> String {
    let line = |line: &str| {
        let is_measured = line.rsplit_once(' ').is_some_and(|(_, word)| {
            let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            word.split_once('.').is_some_and(|(whole, part)| digits(whole) && digits(part) && part.len() == 3)
        });
        if is_measured {
            line.rsplit_once(' ').map_or(String::new(), |(rest, _)| rest.trim_end().to_owned())
        } else {
            line.to_owned()
        }
    };
    text.trim_end().lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_documented_output_is_that_of_the_command() {
    let file = root().join(PAGE);
    let page = fs::read_to_string(&file).expect(PAGE);
    let mut parts: Vec<String> = page.split("```").map(str::to_owned).collect();
    let mut checked = 0;
    for part in parts.iter_mut().skip(1).step_by(2) {
        let Some((language, block)) = part.split_once('\n') else { continue };
        let Some((width, arguments)) = documented(block).filter(|_| language == "text") else { continue };
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let finished = run(&arguments, &[("COLUMNS", &width.to_string())]);
        assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{arguments:?}");
        let (command, output) = block.split_once('\n').expect("output behind the command");
        if without_seconds(output) != without_seconds(&finished.output) {
            assert!(
                std::env::var_os("CACHALOT_WRITE_DOCS").is_some(),
                "{PAGE} is out of date (CACHALOT_WRITE_DOCS=1 writes it): {command}\n{}",
                finished.output
            );
            *part = format!("{language}\n{command}\n{}\n", finished.output.trim_end());
        }
        checked += 1;
    }
    assert!(checked >= 6, "{checked} blocks of {PAGE} are checked");
    if std::env::var_os("CACHALOT_WRITE_DOCS").is_some() {
        fs::write(&file, parts.join("```")).expect("the page can be written");
    }
}

/// The pictures of the pages, and the commands for drawing.
const PICTURES: [(&str, &[&str]); 2] = [
    (
        "docs/pictures/compare.svg",
        &[
            "compare",
            "--repeat=1",
            "--policy=caching,bfc,buddy,slab",
            "--config=policy:caching,expandable_segments:True",
            "tests/traces/gnn_graphs.csv.gz",
            "--plot",
        ],
    ),
    ("docs/pictures/plan.svg", &["plan", "--algorithm=squeeze", "tests/traces/mlp_seed.csv.gz", "--plot"]),
];

#[test]
fn the_documented_pictures_are_those_of_the_command() {
    let place = folder("pictures");
    for (name, command) in PICTURES {
        let drawn = place.join("drawn.svg");
        let finished = run(&[command, &[drawn.to_str().expect("UTF-8")]].concat(), &[]);
        assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{name}");
        let drawn = fs::read_to_string(drawn).expect("a picture");
        if std::env::var_os("CACHALOT_WRITE_DOCS").is_some() {
            fs::write(root().join(name), &drawn).expect("the picture can be written");
        }
        let documented = fs::read_to_string(root().join(name)).expect(name);
        assert!(documented == drawn, "{name} is out of date: CACHALOT_WRITE_DOCS=1 draws it");
    }
}
