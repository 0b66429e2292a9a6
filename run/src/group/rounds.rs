//! Programs in a group that park each other, in a simulated time: how long any of them waits.
//!
//! The programs are those of `run/gpu/programs/shifts.cu`: in each round a program touches its
//! memory, frees some blocks and requests others, and pauses. A park or a wake takes its time by
//! its bytes.

use super::turns::{Contender, SLICE, Turn, due, turn};

/// Milliseconds between two looks.
const STEP: u64 = 5;

/// The shortest time awake, in milliseconds.
const LEAST: u64 = 300;

/// MiB a millisecond that a park or a wake moves, where the host pins memory for other programs,
/// too.
const RATE: u64 = 3;

/// MiB of all programs together, at most.
const LIMIT: u64 = 20_480;

/// MiB of a program, of which it requests half in each round.
const MOST: u64 = 6_144;

struct Program {
    random: fastrand::Rng,
    blocks: Vec<u64>,
    told: Contender,
    /// Bytes on the host.
    parked: u64,
    /// The end of a park (true) or a wake.
    moves_until: Option<(u64, bool)>,
    /// The end of the pause.
    pauses_until: u64,
    rounds: usize,
}

/// The longest wait of any program for its turn, and the numbers of rounds of the programs with the
/// fewest and the most.
#[derive(Debug)]
struct Longest {
    wait: u64,
    least_rounds: usize,
    most_rounds: usize,
}

impl Program {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            blocks: Vec::new(),
            told: Contender { awake_since: 1, awake_at_least: LEAST, ..Contender::default() },
            parked: 0,
            moves_until: None,
            pauses_until: 0,
            rounds: 0,
        }
    }

    fn size(&self) -> u64 {
        self.blocks.iter().sum()
    }
}

/// Runs `count` programs for `end` milliseconds.
fn run(count: usize, end: u64, seed: u64) -> Longest {
    let mut programs: Vec<Program> = (0..count).map(|at| Program::new(seed * 1_000 + at as u64)).collect();
    let mut longest = Longest { wait: 0, least_rounds: 0, most_rounds: 0 };
    for now in (STEP..end).step_by(STEP as usize) {
        for at in 0..count {
            // Others see what a program has told last.
            let told: Vec<Contender> = programs.iter().map(|program| program.told).collect();
            let program = &mut programs[at];
            if let Some((until, parks)) = program.moves_until {
                if now < until {
                    continue;
                }
                program.moves_until = None;
                if parks {
                    program.parked = program.told.held;
                    (program.told.held, program.told.awake_since) = (0, 0);
                } else {
                    program.told.awake_since = now;
                    end_wait(program, now, &mut longest);
                }
                continue;
            }
            if program.told.awake_since != 0 && due(LIMIT, &told, now) == Some(at) {
                program.moves_until = Some((now + program.told.held / RATE, true));
                continue;
            }
            if now < program.pauses_until {
                if program.told.idle_since == 0 {
                    program.told.idle_since = now;
                }
                continue;
            }
            program.told.idle_since = 0;
            step(program, at, told, now, &mut longest);
        }
    }
    let rounds = || programs.iter().map(|program| program.rounds);
    (longest.least_rounds, longest.most_rounds) =
        (rounds().min().unwrap_or_default(), rounds().max().unwrap_or_default());
    longest
}

/// Goes on with the round of a program that is not parking, waking or pausing.
fn step(program: &mut Program, at: usize, mut told: Vec<Contender>, now: u64, longest: &mut Longest) {
    if program.told.awake_since == 0 {
        let parked = program.parked;
        if waits(program, at, &mut told, parked, now) {
            (program.told.held, program.parked) = (parked, 0);
            // On the way to the device.
            program.told.awake_since = now;
            program.moves_until = Some((now + parked / RATE, false));
        }
        return;
    }
    while program.size() < MOST / 2 {
        // The same request until it is served.
        let mut again = program.random.clone();
        let bytes = 1 << again.u64(0..9);
        told[at] = program.told;
        let held: u64 = told.iter().map(|member| member.held).sum();
        if held + bytes > LIMIT && !waits(program, at, &mut told, bytes, now) {
            return;
        }
        program.random = again;
        program.blocks.push(bytes);
        program.told.held += bytes;
        end_wait(program, now, longest);
    }
    program.rounds += 1;
    let random = &mut program.random;
    program.blocks.retain(|_| random.u64(0..4) != 0);
    program.told.held = program.blocks.iter().sum();
    program.pauses_until = now + program.random.u64(0..1_000);
}

/// Starts or continues a wait. Returns whether the program is served.
fn waits(program: &mut Program, at: usize, told: &mut [Contender], bytes: u64, now: u64) -> bool {
    program.told.needs = program.told.held + bytes;
    if program.told.waits_since == 0 {
        program.told.waits_since = now;
    }
    told[at] = program.told;
    turn(LIMIT, told, at) == Turn::Served
}

/// Ends the wait of a program, if it waits.
fn end_wait(program: &mut Program, now: u64, longest: &mut Longest) {
    if program.told.waits_since != 0 {
        longest.wait = longest.wait.max(now - program.told.waits_since);
        program.told.waits_since = 0;
    }
}

#[test]
fn every_program_gets_its_turn_within_the_bound() {
    let count = 10;
    // Those before it each work for a slice, and are parked and woken.
    let bound = (count as u64 - 1) * (SLICE * LEAST + 2 * MOST / RATE);
    for seed in 0..3 {
        let longest = run(count, 200_000, seed);
        assert!(longest.wait <= bound, "seed {seed}: {longest:?}, bound {bound}");
        assert!(2 * longest.least_rounds >= longest.most_rounds, "seed {seed}: {longest:?}");
    }
}
