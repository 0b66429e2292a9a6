//! Measures the heuristics on large invented programs:
//! `cargo run --release -p cachalot-tests --example plan_large [FOLDER]`. With a folder, the
//! program also writes the problems, in the format of `cachalot plan`.

use cachalot_planner::{HEURISTICS, Problem, lower_bound, verify};
use cachalot_tests::planning::large::{MODELS, training_step};
use std::fmt::Write as _;
use std::time::Instant;

fn main() {
    let folder = std::env::args().nth(1);
    for (model, buffers) in MODELS.into_iter().flat_map(|model| [20_000, 60_000].map(|buffers| (model, buffers))) {
        let problem = training_step(model, buffers, 1);
        problem.check().expect("a problem");
        let bound = lower_bound(&problem);
        if let Some(folder) = &folder {
            let file = format!("{folder}/{model:?}-{buffers}.csv").to_lowercase();
            std::fs::write(&file, table(&problem)).expect("the folder takes files");
        }
        println!("{model:?}, {} buffers, bound {bound}", problem.buffers.len());
        for algorithm in HEURISTICS.iter().filter(|algorithm| !SLOW.contains(&algorithm.name())) {
            let start = Instant::now();
            let plan = algorithm.plan(&problem, &mut ()).expect("nobody stops it");
            let seconds = start.elapsed().as_secs_f64();
            verify(&problem, &plan).expect("a plan");
            let above = (plan.peak as f64 / bound as f64 - 1.0) * 100.0;
            println!("  {:18} +{above:.3} %  {seconds:.2} s", algorithm.name());
        }
    }
}

/// Algorithms that take minutes on the large programs.
const SLOW: [&str; 2] = ["hill-climb", "interval-move"];

fn table(problem: &Problem) -> String {
    let mut table = String::from("id,lower,upper,size,alignment\n");
    for (number, buffer) in problem.buffers.iter().enumerate() {
        writeln!(table, "{number},{},{},{},{}", buffer.start, buffer.end, buffer.size, buffer.alignment)
            .expect("text grows");
    }
    table
}
