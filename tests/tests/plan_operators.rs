//! Accepted and refused forwards, after `MegEngine`'s `mem_reuse` tests.

use cachalot_planner::operators::{
    Device, Life, Lowered, Memory, Operator, Output, Place, Program, Refusal, Value, Wrong, lower,
};
use cachalot_planner::pushdown::Pushdown;
use cachalot_planner::{Algorithm, lower_bound, verify};

/// Builder of a program on one device, operator by operator.
struct Graph(Program);

impl Graph {
    fn new(alignment: u64, padding: u64) -> Self {
        Self(Program { devices: vec![Device { alignment, padding }], ..Program::default() })
    }

    fn value(&mut self, size: u64, life: Life) -> u32 {
        self.0.values.push(Value { size, device: 0, life });
        self.0.values.len() as u32 - 1
    }

    /// Appends an operator with one planned output.
    fn make(&mut self, size: u64, inputs: &[u32], memory: Memory) -> u32 {
        let value = self.value(size, Life::Planned);
        self.run(inputs, &[(value, memory)]);
        value
    }

    fn fresh(&mut self, size: u64, inputs: &[u32]) -> u32 {
        self.make(size, inputs, Memory::Fresh)
    }

    fn view(&mut self, size: u64, of: u32, offset: u64) -> u32 {
        self.make(size, &[of], Memory::View { of, offset })
    }

    fn over(&mut self, size: u64, target: u32, offset: u64) -> u32 {
        self.make(size, &[target], Memory::Over { target, offset })
    }

    fn run(&mut self, inputs: &[u32], outputs: &[(u32, Memory)]) {
        let outputs = outputs.iter().map(|&(value, memory)| Output { value, memory }).collect();
        self.0.operators.push(Operator { inputs: inputs.to_vec(), outputs });
    }

    fn lower(&self) -> Lowered {
        lower(&self.0, true).expect("a program that makes sense")
    }
}

/// Returns the peak, and the offset of each value, or `None` for a value outside the plan.
fn plan(lowered: &Lowered) -> (u64, Vec<Option<u64>>) {
    let problem = &lowered.problems[0];
    problem.check().expect("a problem");
    let plan = Pushdown.plan(problem, &mut ()).expect("nobody stops it");
    verify(problem, &plan).expect("a plan");
    assert_eq!(plan.peak, lower_bound(problem));
    let place = |place: &Place| match *place {
        Place::Buffer { buffer, offset } => Some(plan.offsets[buffer as usize] + offset),
        Place::Outside { .. } | Place::Nowhere => None,
    };
    (plan.peak, lowered.places.iter().map(place).collect())
}

fn reasons(lowered: &Lowered) -> Vec<Refusal> {
    lowered.refused.iter().map(|&(_, why)| why).collect()
}

const MIB: u64 = 1 << 20;
/// Size of a convolution's output with 32 channels, for 256 pictures of 64 × 64 numbers.
const LAYER: u64 = 256 * 32 * 64 * 64 * 4;

#[test]
fn pure_mlp_0_needs_two_layers() {
    let mut graph = Graph::new(1, 0);
    let mut value = graph.value(LAYER / 32, Life::Persistent);
    for _ in 0..7 {
        value = graph.fresh(LAYER, &[value]);
    }
    assert_eq!((LAYER, plan(&graph.lower()).0), (128 * MIB, 2 * LAYER));
}

#[test]
fn pure_mlp_1_copies_its_input_to_the_device() {
    let mut graph = Graph::new(1, 0);
    let host = graph.value(LAYER / 32, Life::External);
    let mut value = graph.fresh(LAYER / 32, &[host]);
    for _ in 0..3 {
        value = graph.fresh(LAYER, &[value]);
    }
    assert_eq!(plan(&graph.lower()).0, 2 * LAYER);
}

#[test]
fn sub_overwrite_lands_in_place() {
    let mut graph = Graph::new(1, 0);
    let source = graph.value(4000, Life::External);
    let x = graph.fresh(4000, &[source]);
    let first = graph.view(2000, x, 400);
    let second = graph.view(1000, first, 200);
    let third = graph.view(400, second, 80);
    let sum = graph.over(400, third, 0);
    let lowered = graph.lower();
    let (peak, places) = plan(&lowered);
    assert_eq!((peak, places[sum as usize]), (4000, Some(400 + 200 + 80)));
    assert_eq!((lowered.taken.len(), lowered.refused.len()), (4, 0));
}

#[test]
fn a_writable_forward_shares_one_address_only_when_wanted() {
    let mut graph = Graph::new(1, 0);
    let source = graph.value(800, Life::External);
    let x = graph.fresh(800, &[source]);
    let doubled = graph.over(800, x, 0);
    let subtensor = graph.over(800, doubled, 0);
    let (peak, places) = plan(&graph.lower());
    assert_eq!(
        (peak, places[doubled as usize], places[subtensor as usize]),
        (800, places[x as usize], places[x as usize])
    );
    let apart = lower(&graph.0, false).expect("a program");
    let (peak, places) = plan(&apart);
    assert_eq!(peak, 1600);
    assert_ne!(places[doubled as usize], places[subtensor as usize]);
    assert_eq!(reasons(&apart), [Refusal::NotWanted; 2]);
}

#[test]
fn memory_of_the_device_is_reused_if_it_is_temporary() {
    for (life, refused) in [(Life::Persistent, Refusal::Persistent), (Life::External, Refusal::External)] {
        let mut graph = Graph::new(1, 0);
        let x = graph.value(800, life);
        graph.over(800, x, 0);
        let lowered = graph.lower();
        assert_eq!((plan(&lowered).0, reasons(&lowered)), (800, vec![refused]));
        assert_eq!(lowered.places[x as usize], Place::Outside { value: x, offset: 0 });
    }
    let mut graph = Graph::new(1, 0);
    let x = graph.fresh(800, &[]);
    let y = graph.over(800, x, 0);
    let (peak, places) = plan(&graph.lower());
    assert_eq!((peak, places[y as usize]), (800, places[x as usize]));
}

#[test]
fn a_value_that_is_still_needed_is_not_changed() {
    let mut graph = Graph::new(1, 0);
    let x = graph.fresh(100, &[]);
    let part = graph.view(50, x, 0);
    graph.over(100, x, 0);
    graph.fresh(1, &[part]);
    let kept = graph.value(100, Life::Kept);
    graph.run(&[], &[(kept, Memory::Fresh)]);
    graph.over(100, kept, 0);
    assert_eq!(
        reasons(&graph.lower()),
        [Refusal::ReadLater { value: part, operator: 3 }, Refusal::Kept { value: kept }]
    );
}

#[test]
fn another_input_in_the_same_memory_is_not_changed() {
    let mut graph = Graph::new(1, 0);
    let x = graph.fresh(100, &[]);
    let [low, high] = [0, 50].map(|offset| graph.view(50, x, offset));
    // The two halves do not meet, so one may be written while the other is read; the whole meets
    // both.
    graph.make(50, &[low, high], Memory::Over { target: low, offset: 0 });
    assert_eq!(reasons(&graph.lower()), []);
    let mut graph = Graph::new(1, 0);
    let x = graph.fresh(100, &[]);
    let low = graph.view(50, x, 0);
    graph.make(100, &[low, x], Memory::Over { target: x, offset: 0 });
    assert_eq!(reasons(&graph.lower()), [Refusal::ReadMeanwhile { value: low }]);
}

#[test]
fn the_larger_of_two_outputs_is_written() {
    let mut graph = Graph::new(1, 0);
    let x = graph.fresh(100, &[]);
    let [small, large] = [40, 60].map(|size| graph.value(size, Life::Planned));
    let over = |offset| Memory::Over { target: x, offset };
    graph.run(&[x], &[(small, over(60)), (large, over(0))]);
    let lowered = graph.lower();
    assert_eq!((lowered.refused[0].0.value, reasons(&lowered)), (small, vec![Refusal::Taken]));
    assert_eq!(lowered.taken[0].value, large);
}

#[test]
fn a_view_goes_where_its_input_is_and_no_further() {
    let mut graph = Graph::new(1, 0);
    graph.0.devices.push(Device { alignment: 64, padding: 0 });
    let weight = graph.value(100, Life::Persistent);
    let host = graph.value(100, Life::External);
    let part = graph.view(10, weight, 90);
    graph.view(10, host, 0);
    let elsewhere = graph.view(10, weight, 0);
    graph.0.values[elsewhere as usize].device = 1;
    graph.view(0, weight, 0);
    let lowered = graph.lower();
    assert_eq!(lowered.places[part as usize], Place::Outside { value: weight, offset: 90 });
    assert_eq!(reasons(&lowered), [Refusal::External, Refusal::OtherDevice, Refusal::NoBytes]);
    assert_eq!(lowered.problems.iter().map(|problem| problem.buffers.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn an_update_keeps_views_of_the_old_content_apart() {
    let program = |read_after: bool| {
        let mut graph = Graph::new(1, 0);
        let weight = graph.value(100, Life::Persistent);
        let view = graph.view(50, weight, 0);
        graph.fresh(10, &[view]);
        let new = graph.make(100, &[weight], Memory::Update { of: weight });
        if read_after {
            graph.fresh(10, &[view]);
        }
        (graph.lower(), weight, view, new)
    };
    let (lowered, weight, view, new) = program(false);
    assert_eq!(reasons(&lowered), []);
    assert_eq!(
        [view, new].map(|value| lowered.places[value as usize]),
        [Place::Outside { value: weight, offset: 0 }; 2]
    );
    let (lowered, _, view, _) = program(true);
    assert_eq!(reasons(&lowered), [Refusal::Updated { operator: 2 }]);
    assert!(matches!(lowered.places[view as usize], Place::Buffer { .. }));
}

#[test]
fn sizes_are_padded_and_values_live_until_they_are_read() {
    let mut graph = Graph::new(256, 32);
    let x = graph.fresh(100, &[]);
    let y = graph.fresh(100, &[x]);
    let never_read = graph.fresh(7, &[y]);
    let kept = graph.value(9, Life::Kept);
    graph.run(&[x], &[(kept, Memory::Fresh)]);
    let lowered = graph.lower();
    let problem = &lowered.problems[0];
    let life = |value: u32| match lowered.places[value as usize] {
        Place::Buffer { buffer, .. } => {
            let buffer = &problem.buffers[buffer as usize];
            assert_eq!(buffer.alignment, 256);
            (buffer.start, buffer.end, buffer.size)
        }
        _ => panic!("{value} has no buffer"),
    };
    assert_eq!(life(x), (0, 4, 132));
    assert_eq!(life(y), (1, 3, 132));
    assert_eq!(life(never_read), (2, 3, 39));
    assert_eq!(life(kept), (3, u64::MAX, 41));
}

/// Appends operators to a graph with one value.
type Grow<'a> = &'a dyn Fn(&mut Graph, u32);

#[test]
fn what_makes_no_sense_is_refused() {
    let wrong = |grow: Grow<'_>| {
        let mut graph = Graph::new(1, 0);
        let x = graph.fresh(100, &[]);
        grow(&mut graph, x);
        lower(&graph.0, true).expect_err("it makes no sense")
    };
    let cases: [(Grow<'_>, Wrong); 9] = [
        (&|graph, _| graph.run(&[7], &[]), Wrong::NoSuchValue { operator: 1, value: 7 }),
        (&|graph, x| graph.run(&[x], &[(9, Memory::Fresh)]), Wrong::NoSuchValue { operator: 1, value: 9 }),
        (&|graph, x| graph.run(&[x], &[(x, Memory::Fresh)]), Wrong::MadeTwice { operator: 1, value: 0 }),
        (
            &|graph, _| {
                let late = graph.value(1, Life::Planned);
                graph.run(&[late], &[(late, Memory::Fresh)]);
            },
            Wrong::ReadTooEarly { operator: 1, value: 1 },
        ),
        (
            &|graph, x| {
                graph.make(1, &[], Memory::View { of: x, offset: 0 });
            },
            Wrong::NoInput { operator: 1, value: 0 },
        ),
        (
            &|graph, x| {
                graph.view(51, x, 50);
            },
            Wrong::Outside { operator: 1, value: 1, input: 0 },
        ),
        (
            &|graph, x| {
                graph.over(1, x, u64::MAX);
            },
            Wrong::Outside { operator: 1, value: 1, input: 0 },
        ),
        (
            &|graph, x| {
                graph.make(100, &[x], Memory::Update { of: x });
                graph.fresh(1, &[x]);
            },
            Wrong::Lost { operator: 1, value: 0, reader: 2 },
        ),
        (&|graph, _| graph.0.values[0].device = 3, Wrong::NoSuchDevice { value: 0, device: 3 }),
    ];
    for (grow, expected) in cases {
        assert_eq!(wrong(grow), expected);
    }
}
