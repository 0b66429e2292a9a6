//! Requests and answers: every value survives a line, and every line is survived.

use crate::control::protocol::{MOST_ANSWER, answer_line, read_answer};
use crate::control::{
    Action, ControlRefusal, RefusalKind, Remainder, RemainderKind, Request, SleepState, Status, Transfer,
};
use proptest::prelude::*;
use proptest::sample::select;
use std::time::Duration;

fn action() -> impl Strategy<Value = Action> {
    select(vec![Action::Park, Action::Wake, Action::Trim, Action::Status])
}

#[test]
fn a_snapshot_alone_has_a_file() {
    let request = Request::snapshot("/tmp/a b.pickle".into());
    assert_eq!(Request::of_line(&request.to_line()), Ok(request));
    for wrong in [
        r#"{"request":"snapshot"}"#,
        r#"{"request":"snapshot","file":"a.pickle"}"#,
        r#"{"request":"park","file":"/tmp/a.pickle"}"#,
    ] {
        let refused = Request::of_line(wrong.as_bytes()).unwrap_err();
        assert!(refused.kind == RefusalKind::BadRequest && refused.text.contains("`file`"), "{refused}");
    }
}

#[test]
fn a_trim_alone_says_what_stays() {
    let request = Request::trim(7);
    assert_eq!(Request::of_line(&request.to_line()), Ok(request));
    assert!(Request::of_line(br#"{"request":"trim"}"#).is_ok());
    let refused = Request::of_line(br#"{"request":"park","keep":7}"#).unwrap_err();
    assert!(refused.kind == RefusalKind::BadRequest && refused.text.contains("`keep`"), "{refused}");
}

fn status() -> impl Strategy<Value = Status> {
    let states = select(vec![SleepState::Awake, SleepState::Parking, SleepState::Parked, SleepState::Waking]);
    let kinds = select(RemainderKind::ALL.to_vec());
    let remaining = (kinds, any::<u64>()).prop_map(|(what, bytes)| Remainder { what, bytes });
    let transfer = || prop::option::of((any::<u64>(), any::<u64>()).prop_map(|(ms, bytes)| Transfer { ms, bytes }));
    let texts = (".{0,80}", ".{0,20}", prop::option::of(".{0,20}"), prop::option::of(".{0,200}"));
    let figures = (any::<[u64; 5]>(), prop::option::of(any::<u64>()), transfer(), transfer());
    let lists = (prop::collection::vec(remaining, 0..5), prop::collection::vec("[ -~]{0,40}", 0..3));
    (any::<u32>(), states, texts, figures, lists).prop_map(|(pid, state, texts, figures, (remaining, devices))| {
        let (name, program, group, last_error) = texts;
        let ([awake_ms, parked_bytes, device_bytes, parks, wakes], idle_ms, last_park, last_wake) = figures;
        let about = Status { pid, name, program, group, state, idle_ms, awake_ms, ..Status::default() };
        let memory = Status { parked_bytes, device_bytes, remaining, devices, ..about };
        Status { last_park, last_wake, parks, wakes, last_error, ..memory }
    })
}

/// Returns whether the only line break is at the end.
fn is_a_line(bytes: &[u8]) -> bool {
    bytes.iter().position(|&byte| byte == b'\n') == bytes.len().checked_sub(1)
}

proptest! {
    #[test]
    fn a_request_survives_its_line(action in action(), ms in 0..=86_400_000_u64) {
        let request = Request::new(action, Duration::from_millis(ms));
        let line = request.to_line();
        prop_assert!(is_a_line(&line));
        prop_assert_eq!(Request::of_line(&line).unwrap(), request);
    }

    #[test]
    fn an_answer_survives_its_line(
        status in status(),
        kind in select(RefusalKind::ALL.to_vec()),
        text in ".{0,300}",
    ) {
        let line = answer_line(Ok(status.clone()));
        prop_assert!(line.len() <= MOST_ANSWER && is_a_line(&line));
        let read = read_answer(&line).unwrap().unwrap();
        prop_assert_eq!(&read, &status.clone().clean());
        prop_assert!(!read.name.chars().any(char::is_control), "no terminal obeys a name");
        let refused = ControlRefusal::new(kind, text.as_str());
        let read = read_answer(&answer_line(Err(refused))).unwrap().unwrap_err();
        prop_assert_eq!(read.kind, kind);
        prop_assert_eq!(read.text.chars().count(), text.chars().count());
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(refused) = Request::of_line(&bytes) {
            prop_assert_eq!(refused.kind, RefusalKind::BadRequest);
        }
        let _ = read_answer(&bytes);
    }

    /// A line with a changed byte is refused, or is another request or answer.
    #[test]
    fn a_damaged_line_is_survived(action in action(), status in status(), at in any::<prop::sample::Index>(), to: u8) {
        let mut line = Request::new(action, Duration::from_secs(1)).to_line();
        let place = at.index(line.len());
        line[place] = to;
        if let Err(refused) = Request::of_line(&line) {
            prop_assert_eq!(refused.kind, RefusalKind::BadRequest);
        }
        let mut line = answer_line(Ok(status));
        let place = at.index(line.len());
        line[place] = to;
        let _ = read_answer(&line);
    }
}

#[test]
fn a_short_request_has_the_default_time() {
    let request = Request::of_line(b"{\"request\":\"wake\"}").unwrap();
    assert_eq!(request, Request::new(Action::Wake, Duration::from_secs(30)));
    let long = Request::new(Action::Park, Duration::MAX);
    assert_eq!(long.timeout(), Duration::from_secs(86_400));
}

#[test]
fn answers_of_later_versions_are_read_or_named() {
    let text =
        br#"{"schema":1,"ok":{"pid":7,"state":"parked","remaining":[{"what":"tomorrow","bytes":3}],"more":{"a":1}}}"#;
    let status = read_answer(text).unwrap().unwrap();
    assert_eq!((status.pid, status.state), (7, SleepState::Parked));
    assert_eq!(status.remaining, [Remainder { what: RemainderKind::Other, bytes: 3 }]);
    let refused = read_answer(br#"{"schema":1,"error":{"kind":"tired","text":"no"}}"#).unwrap().unwrap_err();
    assert_eq!((refused.kind, refused.text.as_str()), (RefusalKind::Other, "no"));
    for (line, named) in [
        (&br#"{"schema":2,"asleep":true}"#[..], "schema 2"),
        (br#"{"schema":1}"#, "exactly one"),
        (br#"{"schema":1,"ok":{},"error":{"kind":"busy","text":""}}"#, "exactly one"),
        (b"", "no answer"),
    ] {
        let error = read_answer(line).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn an_answer_beyond_the_length_of_a_line_is_a_refusal() {
    let remaining = vec![Remainder { what: RemainderKind::Unexplained, bytes: u64::MAX }; 2000];
    let line = answer_line(Ok(Status { remaining, ..Status::default() }));
    assert!(line.len() < MOST_ANSWER);
    assert_eq!(read_answer(&line).unwrap().unwrap_err().kind, RefusalKind::Internal);
}

#[test]
fn names_of_kinds_are_those_of_the_json() {
    for kind in RemainderKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
    for state in [SleepState::Awake, SleepState::Parking, SleepState::Parked, SleepState::Waking] {
        assert_eq!(serde_json::to_value(state).unwrap(), state.name());
    }
}
