//! The sentence that every report opens with: what was reserved and live at most, and what a
//! setting would have saved.

use super::bytes::{grouped, plural, show};
use cachalot_replay::recorded::differ;
use cachalot_replay::tune::{Answer, Better, Rescue, Stuck};
use serde::Serialize;

/// An answer as an object of `--json`.
#[derive(Serialize)]
pub(crate) struct Told {
    pub(crate) sentence: String,
    #[serde(flatten)]
    pub(crate) answer: Answer,
    saved_bytes: u64,
}

impl From<&Answer> for Told {
    fn from(answer: &Answer) -> Self {
        Self { sentence: sentence(answer), answer: answer.clone(), saved_bytes: answer.saved_bytes() }
    }
}

/// Returns the answer in a few sentences. A failed request comes first.
pub(crate) fn sentence(answer: &Answer) -> String {
    told(answer, rescue(answer))
}

/// Returns the answer after a sentence about the only failed request.
pub(crate) fn sentence_after_failure(answer: &Answer) -> String {
    told(answer, if answer.ooms == 1 { enough(answer) } else { rescue(answer) })
}

/// Returns the sentences of an answer after the first one.
fn told(answer: &Answer, first: Option<String>) -> String {
    if answer.cut_to_events == Some(1) {
        let idle = idle(answer).map_or_else(String::new, |idle| format!(" {idle}."));
        return format!("{}.{idle}", facts(answer));
    }
    // What would have served a failed request has the settings.
    let advice = if answer.rescues.is_empty() { format!("; {}", advice(answer)) } else { String::new() };
    let facts = Some(format!("{}{advice}", facts(answer)));
    let sentences = [first, facts, idle(answer), replayed(answer), stuck(&answer.fullest)];
    let sentences: Vec<String> = sentences.into_iter().flatten().collect();
    format!("{}.", sentences.join(". "))
}

/// Returns the clause on reserved and live memory.
pub(crate) fn facts(answer: &Answer) -> String {
    let Answer { peak_reserved_bytes: reserved, peak_live_bytes: live, .. } = *answer;
    if reserved == 0 {
        return "Nothing was reserved".to_owned();
    }
    let utilisation = live as f64 / reserved as f64 * 100.0;
    let (reserved, live) = (show(reserved), show(live));
    if answer.cut_to_events == Some(1) {
        return format!(
            "One event, the last, is no history (enabled='state' keeps no more): {reserved} were reserved, and {live} live"
        );
    }
    let of = match (answer.cut_to_events, answer.is_recorded) {
        _ if answer.range.is_some() => in_range(answer),
        (Some(events), true) => last(events),
        (Some(events), false) => format!("{}in a replay, ", last(events)),
        (None, true) => String::new(),
        (None, false) => "In the replay, ".to_owned(),
    };
    format!("{of}{reserved} were reserved at the peak, for at most {live} live (utilisation {utilisation:.1} %)")
}

/// Returns the start of a sentence on a part of a history.
fn in_range(answer: &Answer) -> String {
    answer.range.as_ref().map_or_else(String::new, |range| format!("In the range ({range}), "))
}

/// Returns the start of a sentence on a history that starts in the middle of the program.
pub(crate) fn last(events: u64) -> String {
    match events {
        1 => "Only the last event is in the history: in this, ".to_owned(),
        many => format!("Only the last {} events are in the history: in these, ", grouped(many)),
    }
}

/// Returns the clause on the setting that would have saved memory.
fn advice(answer: &Answer) -> String {
    if answer.replayed_bytes.is_none() {
        let why = answer.not_replayed.as_ref().map_or_else(String::new, |why| format!("{why}, so "));
        return format!("{why}no setting was tried");
    }
    let present = if answer.config.is_empty() { String::new() } else { format!(" instead of `{}`", answer.config) };
    let Some(better) = &answer.better else {
        return format!("no setting of PyTorch's allocator that was tried would have saved 2 % or more{present}");
    };
    let Better { config, needs_pytorch, peak_reserved_bytes: less, ooms } = better;
    let setting = if config.is_empty() { "the default settings".to_owned() } else { format!("`{config}`") };
    let needs = needs_pytorch.map_or(String::new(), |version| format!(" (PyTorch {version} or later)"));
    let setting = format!("{setting}{needs}{present}");
    if *ooms < answer.ooms && answer.tells_limit {
        let failed = plural(*ooms, "request");
        return format!("{setting} would have failed {failed} instead of {}, and held {}", answer.ooms, show(*less));
    }
    let (saved, compared) = (answer.saved_bytes(), answer.compared_bytes());
    let share = saved as f64 / compared.max(1) as f64 * 100.0;
    let of = if differs(answer) {
        format!("the {} that a replay with the recorded settings holds", show(compared))
    } else {
        "it".to_owned()
    };
    format!("{setting} would have saved {} of {of} ({share:.1} %)", show(saved))
}

/// Returns the sentence on failed requests, and on what would have served them.
pub(crate) fn rescue(answer: &Answer) -> Option<String> {
    if answer.ooms == 0 {
        return None;
    }
    let largest = show(answer.largest_failed_bytes);
    let failed = match answer.ooms {
        1 => format!("A request of {largest} failed"),
        many => format!("{many} requests failed, the largest of {largest}"),
    };
    if answer.replayed_bytes.is_none() {
        return Some(failed);
    }
    let Some(enough) = enough(answer) else {
        return Some(format!("{failed}; the record does not tell the memory of the device, so nothing was tried"));
    };
    let (first, rest) = enough.split_at(1);
    Some(format!("{failed}; {}{rest}", first.to_lowercase()))
}

/// Returns the sentence on what would have served the failed requests. `None` without a replay
/// under a limit.
fn enough(answer: &Answer) -> Option<String> {
    if answer.ooms == 0 || answer.replayed_bytes.is_none() || !answer.tells_limit {
        return None;
    }
    let ways: Vec<String> = answer.rescues.iter().map(way).collect();
    Some(match ways.as_slice() {
        [] => "Nothing that was tried would have been enough: the program has to use less memory".to_owned(),
        ways => format!("Enough would have been {}", ways.join(", or ")),
    })
}

/// Returns a change in words.
fn way(rescue: &Rescue) -> String {
    match rescue {
        Rescue::Limit { limit_bytes, instead_of_bytes, is_setting } => {
            let (least, present) = (show(*limit_bytes), show(*instead_of_bytes));
            if *is_setting {
                format!("a limit of {least} instead of {present}")
            } else {
                format!("{least} for this process, which had {present}")
            }
        }
        Rescue::Setting(better) => {
            let needs = better.needs_pytorch.map_or(String::new(), |version| format!(" (PyTorch {version} or later)"));
            format!("`{}`{needs}, with {} reserved", better.config, show(better.peak_reserved_bytes))
        }
        Rescue::OnePiece { config, peak_reserved_bytes } => {
            let reserved = show(*peak_reserved_bytes);
            format!("free memory in one piece (cachalot's `{config}`), with {reserved} reserved")
        }
    }
}

/// Returns the sentence on memory that nothing used when the history began.
fn idle(answer: &Answer) -> Option<String> {
    let bytes = answer.idle_before_bytes;
    // Some idle segments are in every cache.
    (answer.is_recorded && bytes as f64 > 0.02 * answer.peak_reserved_bytes as f64).then(|| {
        let share = share(bytes, answer.peak_reserved_bytes);
        let what = if answer.range.is_some() { "range" } else { "history" };
        format!(
            "{} of it ({share}) were idle already when the {what} began, and nothing in it used them: \
             `torch.cuda.empty_cache()` would have released them",
            show(bytes)
        )
    })
}

/// Returns whether the replay holds other memory than the recording, by more than a two-hundredth.
fn differs(answer: &Answer) -> bool {
    let replayed = answer.replayed_bytes.filter(|&bytes| answer.is_recorded && bytes > 0);
    replayed.is_some_and(|replayed| differ(answer.peak_reserved_bytes, replayed))
}

/// Returns the sentence on a replay that holds other memory than the recording, where no saving
/// names it.
fn replayed(answer: &Answer) -> Option<String> {
    let is_told = answer.ooms > 0 || answer.better.is_some() || !differs(answer);
    let replayed = answer.replayed_bytes.filter(|_| !is_told)?;
    let reason = match (answer.idle_before_bytes > 0, answer.cut_to_events) {
        (true, _) => ", because it starts without the idle memory",
        (false, None) if answer.range.is_none() => ", because it has other addresses",
        _ => "",
    };
    Some(format!("A replay with the recorded settings holds {} at the peak{reason}", show(replayed)))
}

/// Returns the sentence on free memory that could not go back to the device.
fn stuck(fullest: &Stuck) -> Option<String> {
    let Stuck { hole_bytes, hole_segments, .. } = *fullest;
    (hole_bytes > 0).then(|| {
        let (holes, segments) = (show(hole_bytes), plural(hole_segments, "segment"));
        format!("When the most was in use, {holes} were stuck in holes of {segments}")
    })
}

/// Returns what is known without a history. Idle memory can be released, and is not stuck.
pub(crate) fn sentence_at_end(end: &Stuck) -> String {
    let Stuck { reserved_bytes: reserved, in_use_bytes, hole_bytes, hole_segments, idle_bytes, kept_bytes, .. } = *end;
    if reserved == 0 {
        return "Nothing is reserved at the end.".to_owned();
    }
    let mut text = format!("{} are reserved at the end, and {} of it in use", show(reserved), show(in_use_bytes));
    if hole_bytes > 0 {
        let segments = plural(hole_segments, "segment");
        text =
            format!("{text}; {} ({}) are stuck in holes of {segments}", show(hole_bytes), share(hole_bytes, reserved));
    }
    if idle_bytes > 0 {
        text = format!("{text}; {} ({}) are idle, and can be released", show(idle_bytes), share(idle_bytes, reserved));
    }
    if kept_bytes > 0 {
        let (kept, share) = (show(kept_bytes), share(kept_bytes, reserved));
        text = format!("{text}; {kept} ({share}) are free in private pools, as those of CUDA graphs, which keep them");
    }
    text + "."
}

fn share(bytes: u64, of: u64) -> String {
    format!("{:.0} %", bytes as f64 / of.max(1) as f64 * 100.0)
}

#[cfg(test)]
mod tests {
    use super::{sentence, sentence_after_failure, sentence_at_end};
    use cachalot_replay::tune::{Answer, Better, Rescue, Stuck};

    const GIB: u64 = 1 << 30;

    fn answer(better: Option<Better>) -> Answer {
        Answer {
            is_recorded: true,
            config: String::new(),
            peak_reserved_bytes: 20 * GIB,
            peak_live_bytes: 5 * GIB,
            replayed_bytes: Some(20 * GIB),
            not_replayed: None,
            idle_before_bytes: 0,
            fullest: Stuck { hole_bytes: GIB, hole_segments: 1, ..Stuck::default() },
            better,
            ooms: 0,
            largest_failed_bytes: 0,
            cut_to_events: None,
            rescues: Vec::new(),
            range: None,
            tells_limit: true,
        }
    }

    fn better(config: &str, needs_pytorch: Option<&'static str>, ooms: u64) -> Better {
        Better { config: config.to_owned(), needs_pytorch, peak_reserved_bytes: 11 * GIB, ooms }
    }

    #[test]
    fn the_peaks_of_a_cut_history_are_those_of_its_events() {
        let cut = Answer { cut_to_events: Some(1200), ..answer(None) };
        let facts = "Only the last 1,200 events are in the history: in these, 20.00 GiB were reserved at the peak, for at most \
                     5.00 GiB live (utilisation 25.0 %)";
        assert!(sentence(&cut).starts_with(facts), "{}", sentence(&cut));
        let of_replay = sentence(&Answer { is_recorded: false, ..cut });
        assert!(of_replay.contains(" in these, in a replay, 20.00 GiB were reserved"), "{of_replay}");
    }

    #[test]
    fn a_range_is_named_and_its_idle_memory_too() {
        let cut = Answer { cut_to_events: Some(1), idle_before_bytes: 10 * GIB, ..answer(None) };
        let text = sentence(&cut.in_range(Some("events 3 to 4 of 9".to_owned())));
        assert!(text.starts_with("In the range (events 3 to 4 of 9), 20.00 GiB were reserved at the peak, "), "{text}");
        assert!(text.contains("10.00 GiB of it (50 %) were idle already when the range began, "), "{text}");
    }

    #[test]
    fn one_event_is_no_history() {
        let one = Answer { cut_to_events: Some(1), idle_before_bytes: 10 * GIB, ..answer(None) };
        let expected = "One event, the last, is no history (enabled='state' keeps no more): 20.00 GiB were reserved, and 5.00 \
                        GiB live. 10.00 GiB of it (50 %) were idle already when the history began, and nothing in it used \
                        them: `torch.cuda.empty_cache()` would have released them.";
        assert_eq!(sentence(&one), expected);
    }

    #[test]
    fn a_sentence_has_the_figures_and_the_setting() {
        let facts = "20.00 GiB were reserved at the peak, for at most 5.00 GiB live (utilisation 25.0 %)";
        let stuck = "When the most was in use, 1.00 GiB were stuck in holes of 1 segment.";
        let plain = answer(Some(better("expandable_segments:True", None, 0)));
        let saved = "would have saved 9.00 GiB of it (45.0 %).";
        assert_eq!(sentence(&plain), format!("{facts}; `expandable_segments:True` {saved} {stuck}"));
        let late = answer(Some(better("large_segment_size_mb:12", Some("2.11"), 0)));
        let needs = "`large_segment_size_mb:12` (PyTorch 2.11 or later)";
        assert_eq!(sentence(&late), format!("{facts}; {needs} {saved} {stuck}"));
        let default = Answer { config: "max_split_size_mb:32".to_owned(), ..answer(Some(better("", None, 0))) };
        let instead = "the default settings instead of `max_split_size_mb:32`";
        assert_eq!(sentence(&default), format!("{facts}; {instead} {saved} {stuck}"));
        let none = Answer { fullest: Stuck::default(), ..answer(None) };
        let no = "no setting of PyTorch's allocator that was tried would have saved 2 % or more.";
        assert_eq!(sentence(&none), format!("{facts}; {no}"));
        let other = Answer { replayed_bytes: Some(19 * GIB), ..none };
        assert!(sentence(&other).contains("A replay with the recorded settings holds 19.00 GiB at the peak, "));
    }

    #[test]
    fn a_history_that_was_not_replayed_says_why() {
        let why = "the history cannot be replayed (event 7: free of 100, which is not allocated)".to_owned();
        let not = Answer { replayed_bytes: None, not_replayed: Some(why.clone()), ..answer(None) };
        assert!(sentence(&not).contains(&format!("; {why}, so no setting was tried.")), "{}", sentence(&not));
    }

    #[test]
    fn what_would_have_served_a_request_comes_in_order() {
        let setting = better("expandable_segments:True", None, 0);
        let limit = Rescue::Limit { limit_bytes: 22 * GIB, instead_of_bytes: 21 * GIB, is_setting: true };
        let in_one_piece = Rescue::OnePiece { config: "policy:stitched", peak_reserved_bytes: GIB };
        let failed = Answer {
            ooms: 1,
            largest_failed_bytes: 3 * GIB,
            rescues: vec![limit, Rescue::Setting(setting.clone()), in_one_piece],
            ..answer(Some(setting))
        };
        let text = sentence(&failed);
        let way = "A request of 3.00 GiB failed; enough would have been a limit of 22.00 GiB instead of 21.00 GiB, \
                   or `expandable_segments:True`, with 11.00 GiB reserved, or free memory in one piece (cachalot's \
                   `policy:stitched`), with 1.00 GiB reserved.";
        assert!(text.starts_with(way) && !text.contains("would have saved"), "{text}");
        let after = sentence_after_failure(&failed);
        assert!(after.starts_with("Enough would have been a limit of 22.00 GiB instead of "), "{after}");
        let unknown = Answer { tells_limit: false, rescues: Vec::new(), ..failed.clone() };
        let first =
            "A request of 3.00 GiB failed; the record does not tell the memory of the device, so nothing was tried. ";
        assert!(sentence(&unknown).starts_with(first) && !sentence(&unknown).contains("would have failed"));
        let lost = Answer { rescues: Vec::new(), ooms: 2, ..failed };
        assert!(sentence(&lost).contains("2 requests failed, the largest of 3.00 GiB; nothing that was tried "));
    }

    #[test]
    fn without_a_history_the_end_is_described() {
        let end = Stuck {
            reserved_bytes: 2 * GIB,
            in_use_bytes: GIB,
            hole_bytes: GIB / 2,
            hole_segments: 1,
            idle_bytes: GIB / 2,
            idle_segments: 3,
            kept_bytes: 0,
        };
        assert_eq!(
            sentence_at_end(&end),
            "2.00 GiB are reserved at the end, and 1.00 GiB of it in use; 512.00 MiB (25 %) are stuck in holes of 1 \
             segment; 512.00 MiB (25 %) are idle, and can be released."
        );
        assert_eq!(sentence_at_end(&Stuck::default()), "Nothing is reserved at the end.");
        let kept = Stuck { reserved_bytes: GIB, kept_bytes: GIB / 4, in_use_bytes: GIB / 4 * 3, ..Stuck::default() };
        assert_eq!(
            sentence_at_end(&kept),
            "1.00 GiB are reserved at the end, and 768.00 MiB of it in use; 256.00 MiB (25 %) are free in private pools, \
             as those of CUDA graphs, which keep them."
        );
    }
}
