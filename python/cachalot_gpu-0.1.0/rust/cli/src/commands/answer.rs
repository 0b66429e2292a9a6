//! The sentence that a report opens with: how much memory is stuck, and which setting would help.

use super::bytes::{plural, show};
use cachalot_replay::tune::{Answer, Better, Stuck};
use serde::Serialize;

/// An answer as an object of `--json`.
#[derive(Serialize)]
pub(crate) struct Told {
    pub(crate) sentence: String,
    pub(crate) stuck: Stuck,
    pub(crate) better: Option<Better>,
}

impl From<&Answer> for Told {
    fn from(answer: &Answer) -> Self {
        Self { sentence: sentence(answer), stuck: answer.peak, better: answer.better.clone() }
    }
}

/// Returns the answer in a sentence. When the peak was reached, no free block was of use to the
/// request, so all free memory counts as stuck.
pub(crate) fn sentence(answer: &Answer) -> String {
    let Stuck { hole_bytes, hole_segments, idle_bytes, idle_segments, .. } = answer.peak;
    let all = (hole_bytes + idle_bytes, hole_segments + idle_segments);
    let stuck = stuck(answer.peak.reserved_bytes, all.0, &plural(all.1, "segment"), "at the peak");
    let idle = if idle_segments == 0 { String::new() } else { format!(", {idle_segments} of them idle") };
    format!("{stuck}{idle}; {}.", advice(answer.better.as_ref()))
}

/// Returns the clause on the setting that would have held less.
pub(crate) fn advice(better: Option<&Better>) -> String {
    let Some(better) = better else {
        return "no setting of PyTorch's allocator that was tried would have held 2 % less".to_owned();
    };
    let Better { config, ooms, instead_of_ooms, .. } = better;
    let (less, present) = (show(better.reserved_bytes), show(better.instead_of_bytes));
    if ooms < instead_of_ooms {
        return format!("`{config}` would have failed {ooms} requests instead of {instead_of_ooms}, and held {less}");
    }
    format!("`{config}` would have held {less} instead of {present}")
}

/// Returns what is known without a history. Idle segments can be released, and are not stuck.
pub(crate) fn sentence_at_end(end: &Stuck) -> String {
    let stuck = stuck(end.reserved_bytes, end.hole_bytes, &plural(end.hole_segments, "segment"), "at the end");
    match end.idle_segments {
        0 => format!("{stuck}."),
        some => format!("{stuck}{}.", releasable(end.reserved_bytes, end.idle_bytes, &plural(some, "segment"))),
    }
}

/// Returns the clause on wholly free memory, in so many `segments`, that can be released.
pub(crate) fn releasable(reserved: u64, bytes: u64, segments: &str) -> String {
    format!(", and {} ({}) in {segments} can be released", share(bytes, reserved), show(bytes))
}

/// Returns the clause on free memory, in so many `segments`, that cannot be used.
pub(crate) fn stuck(reserved: u64, bytes: u64, segments: &str, when: &str) -> String {
    match (reserved, bytes) {
        (0, _) => format!("Nothing is reserved {when}"),
        (_, 0) => format!("Nothing of what is reserved {when} is free but stuck"),
        _ => {
            let (share, all) = (share(bytes, reserved), show(bytes));
            format!("{share} of what is reserved {when} is free but stuck: {all} in {segments}")
        }
    }
}

fn share(bytes: u64, of: u64) -> String {
    format!("{:.0} %", bytes as f64 / of.max(1) as f64 * 100.0)
}

#[cfg(test)]
mod tests {
    use super::{sentence, sentence_at_end};
    use cachalot_replay::tune::{Answer, Better, Stuck};

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_sentence_has_the_evidence_and_the_setting() {
        let stuck = Stuck { reserved_bytes: 20 * GIB, hole_bytes: 8 * GIB, hole_segments: 38, ..Stuck::default() };
        let config = "expandable_segments:True".to_owned();
        let better =
            Some(Better { config, reserved_bytes: 11 * GIB, instead_of_bytes: 20 * GIB, ooms: 0, instead_of_ooms: 0 });
        assert_eq!(
            sentence(&Answer { peak: stuck, better: better.clone() }),
            "40 % of what is reserved at the peak is free but stuck: 8.00 GiB in 38 segments; \
             `expandable_segments:True` would have held 11.00 GiB instead of 20.00 GiB."
        );
        let idle = Stuck { idle_bytes: 5 * GIB, idle_segments: 2, ..stuck };
        let text = sentence(&Answer { peak: idle, better: better.clone() });
        assert!(text.starts_with("65 % of what is reserved at the peak is free but stuck: 13.00 GiB in 40 segments, "));
        assert!(text.contains("40 segments, 2 of them idle; `expandable"), "{text}");
        let failing = better.map(|better| Better { instead_of_ooms: 6, ..better });
        let fewer = sentence(&Answer { peak: stuck, better: failing });
        assert!(fewer.ends_with("True` would have failed 0 requests instead of 6, and held 11.00 GiB."), "{fewer}");
        let none = sentence(&Answer { peak: Stuck { hole_bytes: 0, hole_segments: 0, ..stuck }, better: None });
        assert!(
            none.starts_with("Nothing of what is reserved at the peak is free but stuck; no setting of "),
            "{none}"
        );
        assert!(none.ends_with(" that was tried would have held 2 % less."));
    }

    #[test]
    fn without_a_history_there_is_the_first_half() {
        let end = Stuck { reserved_bytes: 2 * GIB, hole_bytes: GIB, hole_segments: 1, ..Stuck::default() };
        let text = "50 % of what is reserved at the end is free but stuck: 1.00 GiB in 1 segment";
        assert_eq!(sentence_at_end(&end), format!("{text}."));
        let idle = sentence_at_end(&Stuck { idle_bytes: GIB / 2, idle_segments: 3, ..end });
        assert_eq!(idle, format!("{text}, and 25 % (512.00 MiB) in 3 segments can be released."));
        assert_eq!(sentence_at_end(&Stuck::default()), "Nothing is reserved at the end.");
    }
}
