//! Comparing answers with those written down.
//!
//! A file of expected answers has the lines of a run. A line may end in a remark in brackets: where the answer is
//! known from. Empty lines and lines that begin with `#` are passed over.

use std::collections::BTreeMap;

/// The answers in a text, by question.
pub(crate) fn answers(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line: &str| {
        let (question, answer) = line.split_once(" = ")?;
        let answer = answer.split_once("  [").map_or(answer, |(answer, _)| answer);
        Some((question.to_owned(), answer.trim().to_owned()))
    };
    lines.filter_map(split).collect()
}

/// What differs, one line a question.
pub(crate) fn differences(expected: &str, found: &str) -> Vec<String> {
    let (expected, found) = (answers(expected), answers(found));
    let missing = "nothing".to_owned();
    let questions: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let pairs = questions.into_iter().map(|question| {
        (question, expected.get(question).unwrap_or(&missing), found.get(question).unwrap_or(&missing))
    });
    let different = pairs.filter(|(_, expected, found)| expected != found);
    different.map(|(question, expected, found)| format!("{question}: expected {expected}, answered {found}")).collect()
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn remarks_are_ignored_and_differences_told() {
        let expected = "# a remark\na = 1  [documented]\nb = 2 x\n\nc = 3\n";
        assert_eq!(differences(expected, "a = 1\nb = 2 x\n# d\nc = 3"), Vec::<String>::new());
        let wanted =
            ["a: expected 1, answered 2", "c: expected 3, answered nothing", "d: expected nothing, answered 4"];
        assert_eq!(differences(expected, "a = 2\nb = 2 x\nd = 4"), wanted);
    }
}
