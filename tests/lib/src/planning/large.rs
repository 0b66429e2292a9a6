//! Large problems that look like programs: training steps of a transformer, dense or with experts,
//! in micro-batches.
//!
//! ```text
//! forward   layer 0   layer 1 …          what the backward pass needs lives until its layer's turn there: nested lives;
//! backward  … layer 1   layer 0          everything else for a few steps: chains; weight gradients until the optimiser
//! ```

use cachalot_planner::{Buffer, Problem};
use fastrand::Rng;

/// Kind of the layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// All layers are alike.
    Dense,
    /// The sequence length differs in every micro-batch.
    Varying,
    /// Every other layer sends each token to some experts. The number of tokens per expert is
    /// random.
    Experts,
    /// One micro-batch, with as many expert layers as necessary: a single nest of lives of every
    /// length.
    Deep,
}

/// All kinds.
pub const MODELS: [Model; 4] = [Model::Dense, Model::Varying, Model::Experts, Model::Deep];

/// Generates a training step of about `buffers` buffers. Deterministic: equal arguments give equal
/// problems.
pub fn training_step(model: Model, buffers: usize, seed: u64) -> Problem {
    let mut step = Step { rng: Rng::with_seed(seed), now: 0, buffers: Vec::with_capacity(buffers + 1000) };
    let layers = match model {
        Model::Deep => buffers / DEEP_LAYER,
        _ => 12 + step.rng.usize(..21),
    };
    // Weight gradients are added up in place over the micro-batches: made once, kept to the end.
    let weights: Vec<usize> = (0..layers).map(|_| step.open(4 * HIDDEN * HIDDEN * 2)).collect();
    loop {
        let tokens = match model {
            Model::Dense => 2048,
            Model::Varying | Model::Experts | Model::Deep => 64 * (8 + step.rng.u64(..57)),
        };
        step.micro_batch(model, layers, tokens);
        if model == Model::Deep || step.buffers.len() >= buffers {
            break;
        }
    }
    weights.into_iter().for_each(|weight| step.close(weight));
    Problem { buffers: step.buffers, ..Problem::default() }
}

/// Width of a token, in elements of two bytes.
const HIDDEN: u64 = 1024;
/// Average number of buffers in a layer of the deep model, forward and backward together.
const DEEP_LAYER: usize = 52;
/// End of a buffer that is not yet ended.
const OPEN: u64 = u64::MAX;

struct Step {
    rng: Rng,
    now: u64,
    buffers: Vec<Buffer>,
}

impl Step {
    /// Begins a buffer now.
    fn open(&mut self, size: u64) -> usize {
        self.now += 1;
        let size = size.next_multiple_of(512);
        self.buffers.push(Buffer { start: self.now, end: OPEN, size, alignment: 512, fixed: None });
        self.buffers.len() - 1
    }

    /// Ends a buffer now.
    fn close(&mut self, buffer: usize) {
        self.now += 1;
        self.buffers[buffer].end = self.now;
    }

    fn micro_batch(&mut self, model: Model, layers: usize, tokens: u64) {
        let mut saved = Vec::new();
        let mut hidden = self.open(tokens * HIDDEN * 2);
        for layer in 0..layers {
            let mut own = vec![hidden];
            hidden = if matches!(model, Model::Experts | Model::Deep) && layer % 2 == 1 {
                self.experts(tokens, &mut own)
            } else {
                self.dense(tokens, &mut own)
            };
            saved.push(own);
        }
        let logits = self.open(tokens * 32_000 * 2);
        let loss = self.open(4);
        let mut gradient = self.open(tokens * HIDDEN * 2);
        self.close(loss);
        self.close(logits);
        self.close(hidden);
        while let Some(own) = saved.pop() {
            gradient = self.backward(own, gradient);
        }
        self.close(gradient);
    }

    /// Runs attention and two projections. Appends to `own` the buffers for the backward pass, and
    /// returns the output of the layer.
    fn dense(&mut self, tokens: u64, own: &mut Vec<usize>) -> usize {
        let narrow = tokens * HIDDEN * 2;
        for size in [narrow, tokens * 8, 3 * narrow] {
            own.push(self.open(size));
        }
        let scratch = self.open(tokens * 16 * 4);
        own.push(self.open(narrow));
        let workspace = self.open(self.rng.clone().u64(1..64) << 14);
        own.push(self.open(tokens * 16 * 4));
        self.close(scratch);
        self.close(workspace);
        let projected = self.open(narrow);
        own.push(self.open(narrow));
        self.close(projected);
        for size in [narrow, 4 * narrow, 4 * narrow] {
            own.push(self.open(size));
        }
        let mask = self.open(tokens * HIDDEN);
        let sum = self.open(narrow);
        own.push(mask);
        let output = self.open(narrow);
        self.close(sum);
        output
    }

    /// Runs every expert on its share of the tokens.
    fn experts(&mut self, tokens: u64, own: &mut Vec<usize>) -> usize {
        let narrow = tokens * HIDDEN * 2;
        own.push(self.open(tokens * 8 * 4));
        let permuted = self.open(2 * narrow);
        let mut left = 2 * tokens;
        for expert in 0..8 {
            let share = if expert == 7 { left } else { self.rng.u64(..=left / 2) };
            left -= share;
            if share == 0 {
                continue;
            }
            let input = self.open(share * HIDDEN * 2);
            own.push(self.open(share * HIDDEN * 8));
            let gate = self.open(share * HIDDEN * 8);
            own.push(self.open(share * HIDDEN * 2));
            self.close(gate);
            self.close(input);
        }
        let output = self.open(narrow);
        self.close(permuted);
        output
    }

    /// Consumes the saved buffers, the last first, each with a short-lived gradient.
    fn backward(&mut self, mut own: Vec<usize>, gradient: usize) -> usize {
        let mut gradient = gradient;
        while let Some(saved) = own.pop() {
            let size = self.buffers[saved].size;
            let next = self.open(size);
            if self.rng.u8(..3) == 0 {
                let partial = self.open(HIDDEN * HIDDEN * 2);
                let scratch = self.open(self.rng.clone().u64(1..256) << 12);
                self.close(partial);
                self.close(scratch);
            }
            self.close(gradient);
            self.close(saved);
            gradient = next;
        }
        gradient
    }
}
