//! Compares answers with expected answers.
//!
//! A file of expected answers has the lines of a run. A line may end in a remark in brackets.
//! `[real: x]` is a second accepted answer. Empty lines and lines that start with `#` are skipped,
//! except for the remark of a group about a single device: missing answers of the group then count
//! as not asked.

use std::collections::{BTreeMap, BTreeSet};

/// Prefix of a remark with a second answer.
const SECOND: &str = "real: ";
/// Remark of a group that has more questions for a second device.
pub(crate) const ONE_DEVICE: &str = "one device only: nothing more to ask";

/// Returns the answers in a text by question: the first answer, and the optional second answer.
fn answers(text: &str) -> BTreeMap<&str, (&str, Option<&str>)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line| {
        let (question, answer): (&str, &str) = str::split_once(line, " = ")?;
        let (answer, remark) = answer.split_once("  [").unwrap_or((answer, ""));
        let second = remark.trim_end_matches(']').strip_prefix(SECOND);
        Some((question, (answer.trim(), second)))
    };
    lines.filter_map(split).collect()
}

/// The result of a comparison.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Comparison {
    /// Number of expected answers.
    agree: usize,
    /// Lines with the second answer, where the emulated driver differs from a real driver on
    /// purpose.
    second: Vec<String>,
    /// Questions not asked, for lack of a second device.
    not_asked: Vec<String>,
    /// Differences, a line for each question.
    pub(crate) differences: Vec<String>,
}

impl Comparison {
    /// Compares the lines of a run with the expected lines.
    pub(crate) fn new(expected: &str, found: &str) -> Self {
        // Groups whose remark says that more questions need a second device.
        let short: BTreeSet<&str> = found
            .lines()
            .filter_map(|line| line.trim().strip_prefix("# ")?.strip_suffix(ONE_DEVICE)?.strip_suffix(' '))
            .collect();
        let (expected, found) = (answers(expected), answers(found));
        let questions: BTreeSet<&str> = expected.keys().chain(found.keys()).copied().collect();
        let mut comparison = Self::default();
        for question in questions {
            let (first, second) = expected.get(question).copied().unwrap_or(("nothing", None));
            let (answer, _) = found.get(question).copied().unwrap_or(("nothing", None));
            let group = question.split(' ').next().unwrap_or_default();
            if answer == first {
                comparison.agree += 1;
            } else if second == Some(answer) {
                comparison.second.push(format!("{question}: {answer} for {first}"));
            } else if !found.contains_key(question) && short.contains(group) {
                comparison.not_asked.push(question.to_owned());
            } else {
                comparison.differences.push(format!("{question}: expected {first}, answered {answer}"));
            }
        }
        comparison
    }

    /// Returns the agreements, and the reasons for all exceptions, as remarks for the reader.
    pub(crate) fn remarks(&self) -> String {
        let Self { agree, second, not_asked, differences } = self;
        let mut text = format!(
            "# {agree} answers as expected, {} differ on purpose, {} not asked, {} differ\n",
            second.len(),
            not_asked.len(),
            differences.len()
        );
        text.extend(second.iter().map(|line| format!("# on purpose: {line}\n")));
        text.extend(not_asked.iter().map(|question| format!("# not asked: one device: {question}\n")));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Comparison;

    /// Returns the differences.
    fn differences(expected: &str, found: &str) -> Vec<String> {
        Comparison::new(expected, found).differences
    }

    #[test]
    fn remarks_are_ignored_and_differences_told() {
        let expected = "# a remark\na = 1  [a word]\nb = 2 x\n\nc = 3\n";
        assert_eq!(differences(expected, "a = 1\nb = 2 x\n# d\nc = 3"), Vec::<String>::new());
        let wanted =
            ["a: expected 1, answered 2", "c: expected 3, answered nothing", "d: expected nothing, answered 4"];
        assert_eq!(differences(expected, "a = 2\nb = 2 x\nd = 4"), wanted);
    }

    #[test]
    fn a_second_answer_agrees_too() {
        let expected = "a = yes  [real: no]\n";
        assert_eq!((differences(expected, "a = yes").len(), differences(expected, "a = no").len()), (0, 0));
        assert_eq!(differences(expected, "a = 7"), ["a: expected yes, answered 7"]);
        assert_eq!(Comparison::new(expected, "a = no").second, ["a: no for yes"]);
    }

    #[test]
    fn what_one_device_cannot_answer_is_no_difference() {
        let expected = "peer a = 1\npeer b = 2\nother c = 3\n";
        let remark = "# peer one device only: nothing more to ask";
        let found = Comparison::new(expected, &format!("peer a = 1\n{remark}\nother c = 3"));
        assert_eq!((found.agree, found.not_asked, found.differences), (2, vec!["peer b".to_owned()], vec![]));
        // An answer may not be missing without the remark or in another group, and may not be
        // wrong.
        assert_eq!(differences(expected, "peer a = 1\nother c = 3"), ["peer b: expected 2, answered nothing"]);
        let wanted = ["other c: expected 3, answered nothing", "peer a: expected 1, answered 7"];
        assert_eq!(differences(expected, &format!("peer a = 7\n{remark}")), wanted);
    }
}
