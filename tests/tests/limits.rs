//! Limits the length of files, of functions and of the subjects of commits.
//!
//! A file or function that is longer than the limit is in a list with its length. The lists may
//! only shrink: an entry goes once its text is within the limit, and a length in the list is the
//! most that the text may have.

use super::sources;
use std::process::Command;

/// The most lines of a file of Rust.
const FILE_LINES: usize = 700;

/// The most lines of a function, from its name to its last brace.
const FUNCTION_LINES: usize = 70;

/// The most characters of a commit's subject.
const SUBJECT_CHARACTERS: usize = 60;

/// The last commit before the subjects were checked.
const BEFORE_SUBJECTS: &str = "953f9426f88db1606e9d4628640b0b2921bc660e";

/// The files and functions above the limit, with their lines: each is one flat list of cases.
const LONGER: [(&str, usize); 4] = [
    ("core/src/streams/deferred_frees/tests.rs: agrees_with_a_vector", 80),
    ("cuda-backend/src/tests/files.rs: run_model", 77),
    ("snapshot/src/pickle/read.rs: step", 71),
    ("tests/mutants/src/render.rs: once", 73),
];

/// Returns the name of the function that a line declares, and the indentation of the line.
fn declared(line: &str) -> Option<(&str, &str)> {
    let text = line.trim_start();
    let (before, after) = text.split_once("fn ")?;
    // Of `pub(in crate::arena)` the second word ends with a parenthesis.
    let is_before = |word: &str| {
        word.starts_with("pub")
            || word.ends_with(')')
            || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
    };
    let name = after.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().filter(|name| !name.is_empty())?;
    before.split_whitespace().all(is_before).then(|| (name, &line[..line.len() - text.len()]))
}

/// Returns the functions of a file, with their lines. `rustfmt` has formatted the file: the last
/// brace of a function has the indentation of the first line.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<_> = text.lines().collect();
    let measured = lines.iter().enumerate().filter_map(|(at, line)| {
        let (name, indentation) = declared(line)?;
        let is_end = |line: &&str| line.strip_prefix(indentation).is_some_and(|line| line.starts_with(['}', ';']));
        // A body in the first line, or a declaration without one, is short.
        let is_short = line.ends_with([';', '}']);
        let end = lines[at..].iter().position(is_end).filter(|_| !is_short)?;
        Some((name, end + 1))
    });
    measured.collect()
}

#[test]
fn files_and_functions_are_within_their_lines_or_in_the_list() {
    let (mut count, mut longer) = (0, Vec::new());
    for (path, text) in sources::below("") {
        let path = path.display().to_string();
        let functions = functions(&text);
        count += functions.len();
        let lines = text.lines().count();
        longer.extend((lines > FILE_LINES).then(|| (path.clone(), lines)));
        let long = functions.into_iter().filter(|&(_, lines)| lines > FUNCTION_LINES);
        longer.extend(long.map(|(name, lines)| (format!("{path}: {name}"), lines)));
    }
    assert!(count > 10_000, "{count} functions were found");
    longer.sort();
    let listed = LONGER.map(|(text, lines)| (text.to_owned(), lines)).to_vec();
    assert_eq!(longer, listed, "found and listed: split what is new, and write down what has become shorter");
}

#[test]
fn a_function_is_measured_from_its_name_to_its_last_brace() {
    let text = "/// A fn in words.\nfn a() {\n    let b = 1;\n}\npub(in crate::arena) unsafe fn c<T>(\n    d: T,\n) {\n    \
                fn e() {\n    }\n}\nfn short() {}\nmacro!{\n    fn f() {\n    }\n}\nfn declared();\nlet fn_of = g;\n";
    assert_eq!(functions(text), [("a", 3), ("c", 6), ("e", 2), ("f", 2)]);
}

#[test]
fn subjects_of_commits_are_short() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let since = format!("{BEFORE_SUBJECTS}..HEAD");
    let Some(subjects) = git(&["log", "--no-merges", "--format=%h %s", &since]) else {
        eprintln!("skipped: the subjects of commits (no history here)");
        return;
    };
    let length = |line: &str| line.split_once(' ').map_or(0, |(_, subject)| subject.chars().count());
    let long: Vec<_> = subjects.lines().filter(|line| length(line) > SUBJECT_CHARACTERS).collect();
    assert!(long.is_empty(), "subjects of more than {SUBJECT_CHARACTERS} characters:\n{}", long.join("\n"));
}
