//! Problems and plans as JSON: the feature `serde` of the planner.

use cachalot_planner::{Buffer, Colocation, Overwrite, Plan, Problem, solve};
use std::time::Duration;

#[test]
fn a_problem_and_its_plan_survive_json() {
    let buffer = |start, end, size, fixed| Buffer { start, end, size, alignment: 256, fixed };
    let problem = Problem {
        buffers: vec![
            buffer(0, 3, 4096, None),
            buffer(2, 5, 4096, None),
            buffer(5, 6, 2048, None),
            buffer(0, 6, 256, Some(8192)),
        ],
        overwrites: vec![Overwrite { writer: 1, target: 0, offset: 0 }],
        colocations: vec![Colocation { first: 0, second: 2 }],
    };
    let json = serde_json::to_string(&problem).expect("a problem has a form");
    assert_eq!(serde_json::from_str::<Problem>(&json).expect(&json), problem);
    let plan = solve(&problem, Duration::from_secs(10)).expect("a valid problem").plan.expect("a small problem");
    let json = serde_json::to_string(&plan).expect("a plan has a form");
    assert_eq!(serde_json::from_str::<Plan>(&json).expect(&json), plan);
}

#[test]
fn a_problem_may_leave_out_what_has_a_default_and_nothing_else() {
    let read = serde_json::from_str::<Problem>;
    let buffer = Buffer { start: 0, end: 3, size: 4096, alignment: 1, fixed: None };
    let shortest = r#"{"buffers": [{"start": 0, "end": 3, "size": 4096}]}"#;
    assert_eq!(read(shortest).expect(shortest), Problem { buffers: vec![buffer], ..Problem::default() });
    for (wrong, complaint) in [
        (r#"{"buffers": [{"start": 0, "end": 3}]}"#, "missing field `size`"),
        (r#"{"buffers": [{"start": 0, "end": 3, "size": 1, "offset": 0}]}"#, "unknown field `offset`"),
        (r#"{"buffer": []}"#, "unknown field `buffer`"),
    ] {
        let error = read(wrong).expect_err(wrong).to_string();
        assert!(error.starts_with(complaint), "{error}");
    }
}
