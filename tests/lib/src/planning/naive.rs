//! A naive version of the planner's rules, computed pair by pair and step by step.

use cachalot_planner::{Buffer, Plan, Problem};

/// For each buffer, computes the strictest alignment among the colocated buffers and itself.
pub fn alignments(problem: &Problem) -> Vec<u64> {
    let mut alignments: Vec<u64> = problem.buffers.iter().map(|buffer| buffer.alignment).collect();
    // Each round goes at least one pair further.
    for _ in &problem.colocations {
        for pair in &problem.colocations {
            let (first, second) = (pair.first as usize, pair.second as usize);
            let strictest = alignments[first].max(alignments[second]);
            (alignments[first], alignments[second]) = (strictest, strictest);
        }
    }
    alignments
}

/// For each buffer, finds the target and the offset inside, by the rules of `Overwrite`.
pub fn targets(problem: &Problem) -> Vec<Option<(usize, u64)>> {
    let colocated = |buffer| {
        problem.colocations.iter().any(|pair| [pair.first, pair.second].map(|it| it as usize).contains(&buffer))
    };
    let mut targets: Vec<Option<(usize, u64)>> = vec![None; problem.buffers.len()];
    for pair in &problem.overwrites {
        let (writer, target) = (pair.writer as usize, pair.target as usize);
        let [source, dest] = [writer, target].map(|buffer| problem.buffers[buffer]);
        let mut above = Some(target);
        while let Some(buffer) = above.filter(|&buffer| buffer != writer) {
            above = targets[buffer].map(|(target, _)| target);
        }
        let in_a_circle = above.is_some();
        let placed = source.fixed.is_some() || colocated(writer);
        if source.start != dest.end - 1 || placed || targets[writer].is_some() || in_a_circle {
            continue;
        }
        let rival = targets.iter().position(|place| place.is_some_and(|(other, _)| other == target));
        match rival {
            Some(rival) if source.size <= problem.buffers[rival].size => continue,
            Some(rival) => targets[rival] = None,
            None => {}
        }
        targets[writer] = Some((target, pair.offset));
    }
    targets
}

/// Checks whether a plan is valid.
pub fn is_plan(problem: &Problem, plan: &Plan) -> bool {
    let (targets, alignments) = (targets(problem), alignments(problem));
    let (buffers, offsets) = (&problem.buffers, &plan.offsets);
    let shares = |one: usize, other: usize| {
        let meets = |one: (u64, u64), other: (u64, u64)| one.0 < other.1 && other.0 < one.1;
        let life = |buffer: usize| (buffers[buffer].start, buffers[buffer].end);
        let bytes = |buffer: usize| (offsets[buffer], offsets[buffer] + buffers[buffer].size);
        meets(life(one), life(other)) && meets(bytes(one), bytes(other))
    };
    // Whether `one` is written over `other`, or over another that is.
    let covers = |one: usize, other: usize| {
        let mut at = targets[one];
        while let Some((target, _)) = at {
            if target == other {
                return true;
            }
            at = targets[target];
        }
        false
    };
    let all = 0..buffers.len();
    let in_place = all.clone().all(|number| {
        let (offset, own) = (offsets[number], &buffers[number]);
        match targets[number] {
            Some((target, inside)) => offset == offsets[target] + inside,
            None => offset % alignments[number] == 0 && own.fixed.is_none_or(|fixed| fixed == offset),
        }
    });
    let together = problem.colocations.iter().all(|pair| offsets[pair.first as usize] == offsets[pair.second as usize]);
    let apart =
        all.clone().all(|one| (0..one).all(|other| !shares(one, other) || covers(one, other) || covers(other, one)));
    let end = |number: usize| offsets[number] + buffers[number].size;
    let peak = all.filter(|&number| targets[number].is_none()).map(end).max();
    in_place && together && apart && peak == Some(plan.peak)
}

/// Computes the largest number of bytes live at once. Bytes that are being overwritten count once.
pub fn load(problem: &Problem) -> u64 {
    let targets = targets(problem);
    let since = |number: usize, buffer: &Buffer| match targets[number] {
        Some((target, _)) => problem.buffers[target].end,
        None => buffer.start,
    };
    let lives = |step: u64| {
        let numbered = problem.buffers.iter().enumerate();
        numbered.filter(move |(number, buffer)| since(*number, buffer) <= step && step < buffer.end)
    };
    let steps = problem.buffers.iter().flat_map(|buffer| [buffer.start, buffer.end]);
    steps.map(|step| lives(step).map(|(_, buffer)| buffer.size).sum()).max().unwrap_or(0)
}
