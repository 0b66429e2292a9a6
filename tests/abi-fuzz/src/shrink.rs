//! Shortens a case with a finding: leaves operations out as long as a finding of the kind stays.

use crate::campaign::{Outcome, Setting, judge};
use crate::case::Case;

/// Returns the kind of a finding, such as `FINDING contents`.
fn kind(line: &str) -> String {
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Returns the number of the operation in a finding.
fn operation(line: &str) -> Option<u64> {
    let origin = line.split_whitespace().skip_while(|word| *word != "at").nth(1)?;
    origin.trim_end_matches(':').split_once(':')?.1.parse().ok()
}

/// Returns the left-out ranges of operations, with adjacent ranges joined.
fn joined(mut skip: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    skip.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (first, last) in skip {
        match joined.last_mut() {
            Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// Returns the shortest case found within `runs` runs, and the finding. `None` if the case has no
/// finding.
pub(crate) fn shrink(case: &Case, setting: &Setting, mut runs: u32) -> Option<(Case, String)> {
    let mut best = case.clone();
    let Outcome::Found(mut line) = judge(&best, setting) else { return None };
    let wanted = kind(&line);
    let total = best.ops / u64::from(best.threads);
    // What comes behind the finding has no part in it.
    if let Some(op) = operation(&line).filter(|_| best.threads == 1) {
        best.skip = joined([&best.skip[..], &[(op + 1, total)]].concat());
    }
    let mut length = total.div_ceil(2).max(1);
    loop {
        let mut changed = false;
        let mut first = 0;
        while first < total && runs > 0 {
            let last = (first + length - 1).min(total);
            if !(first..=last).all(|op| best.skips(op)) {
                let mut shorter = best.clone();
                shorter.skip.push((first, last));
                shorter.skip = joined(shorter.skip);
                runs -= 1;
                if let Outcome::Found(found) = judge(&shorter, setting)
                    && kind(&found) == wanted
                {
                    (best, line, changed) = (shorter, found, true);
                }
            }
            first += length;
        }
        if runs == 0 || (length == 1 && !changed) {
            return Some((best, line));
        }
        length = if length > 1 { length.div_ceil(2) } else { 1 };
    }
}
