//! Checks the page of promises: each quotation stands in its document, and each test that is named
//! stands in its file.

use super::sources;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A row of the page.
struct Row {
    /// The document, relative to the project.
    document: String,
    /// The quotation.
    quotation: String,
    /// The tests: file and name.
    tests: Vec<(String, String)>,
    /// The policies, or the reason why no test holds the promise.
    policies: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the words of a document, each with one blank before: without the stars and the dashes in
/// the comments of a header. The document `include/cachalot.h` is this header with those of its
/// topics.
fn words(path: &str) -> String {
    let is_header = Path::new(path).extension().is_some_and(|extension| extension == "h");
    let mut text = read(path);
    if path == "include/cachalot.h" {
        // The promises of a topic are in its header.
        let topics = std::fs::read_dir(Path::new(ROOT).join("include/cachalot")).expect("there are headers by topic");
        let topics = topics.map(|entry| entry.expect("an entry").path());
        let of_c = topics.filter(|topic| topic.extension().is_some_and(|extension| extension == "h"));
        text.extend(of_c.map(|topic| std::fs::read_to_string(topic).expect("a header is text")));
    }
    let lines = text.lines().map(|line| {
        let comment = line.strip_prefix(" *").filter(|_| is_header);
        comment.map_or(line, |rest| rest.trim_start().strip_prefix("- ").unwrap_or(rest))
    });
    lines.flat_map(str::split_whitespace).fold(String::new(), |text, word| text + " " + word)
}

/// Returns the tests in a cell: each in backticks, `file::name`.
fn tests_in(cell: &str) -> Vec<(String, String)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    let parted = quoted.map(|test| test.split_once("::").unwrap_or_else(|| panic!("`{test}` is no `file::name`")));
    parted.map(|(file, name)| (file.to_owned(), name.to_owned())).collect()
}

/// Reads the page. A heading of the second level links to the document of the rows below.
fn rows(page: &str) -> Vec<Row> {
    let mut document = None;
    let mut rows = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let (_, link) = heading.split_once("](").expect("a heading links to its document");
            let link = link.strip_suffix(')').expect("a link ends");
            document = Some(link.strip_prefix("../").map_or_else(|| format!("docs/{link}"), str::to_owned));
        }
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else { continue };
        let cells: Vec<_> = cells.split(" | ").collect();
        let &[quotation, tests, policies] = &cells[..] else { panic!("a row has three cells: {line}") };
        if quotation == "promise" {
            continue;
        }
        rows.push(Row {
            document: document.clone().expect("a table has a document"),
            quotation: quotation.to_owned(),
            tests: tests_in(tests),
            policies: policies.to_owned(),
        });
    }
    rows
}

#[test]
fn every_promise_stands_in_its_document_and_has_its_tests() {
    let rows = rows(&read("docs/promises.md"));
    assert!(rows.len() > 100, "{} rows", rows.len());
    let documents = ["include/cachalot.h", "docs/run.md", "docs/groups.md", "docs/sleep.md"];
    let mut wrong = Vec::new();
    for document in documents {
        let text = words(document);
        let of_document: Vec<_> = rows.iter().filter(|row| row.document == document).collect();
        assert!(of_document.len() > 10, "{document}: {} rows", of_document.len());
        for row in of_document.iter().filter(|row| !text.contains(&row.quotation)) {
            wrong.push(format!("{document} does not say: {}", row.quotation));
        }
    }
    for row in &rows {
        assert!(documents.contains(&row.document.as_str()), "{}", row.document);
        let says_why = row.policies.starts_with("not held");
        assert_eq!(row.tests.is_empty(), says_why, "a test or a reason: {}", row.quotation);
        for (file, name) in &row.tests {
            let text = sources::below(file).next().map(|(_, text)| text).unwrap_or_default();
            // The parser of the names of tests also reads the arguments of macros.
            if !super::test_names::tests_of(&text).contains(name) {
                wrong.push(format!("{file} has no test {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_row_of_the_page_is_read_with_its_document_and_tests() {
    let page = "## [cachalot.h](../include/cachalot.h)\n\n| promise | held by | policies |\n|---|---|---|\n\
                | It `works`. | `a/b.rs::c`, `d.rs::e` | all |\n## [run.md](run.md)\n| Soon. | — | not held: why |\n";
    let rows = rows(page);
    let read: Vec<_> =
        rows.iter().map(|row| (row.document.as_str(), row.quotation.as_str(), row.tests.len())).collect();
    assert_eq!(read, [("include/cachalot.h", "It `works`.", 2), ("docs/run.md", "Soon.", 0)]);
    assert_eq!(rows[0].tests[1], ("d.rs".to_owned(), "e".to_owned()));
}
