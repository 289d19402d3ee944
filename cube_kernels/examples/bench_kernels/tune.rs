use std::time::Instant;

use cube_kernels::Buffer;
use cube_kernels::gemv::{Gemv, GemvConfig, Input, Output, Weight, gemv, partials_len};
use half::bf16;

use crate::device::Bench;

const EPS: f32 = 1e-6;
/// Weight bytes to stream per graph: many times any cache.
const STREAMED: usize = 800_000_000;

/// What a shape is used for; decides its prologue and epilogue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Use {
    /// Residual and norm, plain rows.
    NormRows,
    /// Plain in, plain out.
    Plain,
    /// Residual and norm, pairs.
    GateUp,
    /// Residual, gelu times a factor.
    PleGate,
    /// Residual and norm, argmax.
    Head,
}

/// Rows of each weight, K, use.
pub type Shape = (&'static [usize], usize, Use);

pub const SHAPES: &[Shape] = &[
    (&[2048], 1536, Use::NormRows),
    (&[4096], 1536, Use::NormRows),
    (&[2048, 256, 256], 1536, Use::NormRows),
    (&[4096, 512, 512], 1536, Use::NormRows),
    (&[1536], 2048, Use::Plain),
    (&[1536], 4096, Use::Plain),
    (&[6144, 6144], 1536, Use::GateUp),
    (&[12288, 12288], 1536, Use::GateUp),
    (&[1536], 6144, Use::Plain),
    (&[1536], 12288, Use::Plain),
    (&[256], 1536, Use::PleGate),
    (&[1536], 256, Use::Plain),
    (&[8960], 1536, Use::Plain),
    (&[262144], 1536, Use::Head),
];

/// Launches one shape on `weights` with fresh-looking inputs.
pub fn launch(b: &Bench, shape: Shape, weights: &[Buffer<bf16>], v: &ShapeBuffers, config: Option<GemvConfig>) -> bool {
    let (rows, k, usage) = shape;
    let weights: Vec<_> = weights.iter().zip(rows).map(|(data, &rows)| Weight { data, rows }).collect();
    let residual = |pre| Input::Residual {
        h: &v.inputs[0],
        y: &v.inputs[1],
        post: &v.inputs[2],
        layer_scale: None,
        pre,
        h_out: &v.inputs[4],
        eps: EPS,
    };
    let input = match usage {
        Use::Plain => Input::Plain { x: &v.inputs[0], scale: 1.0 },
        Use::PleGate => residual(None),
        _ => residual(Some(&v.inputs[3])),
    };
    let partials = v.partials(b, rows[0], k, config);
    let output = match usage {
        Use::GateUp => Output::GeluMul { y: &v.out },
        Use::PleGate => Output::GeluScale { y: &v.out, factor: &v.factor, offset: 256 },
        Use::Head => Output::Argmax { cap: Some(30.0), partials: &partials, logits: None },
        _ => Output::Rows { y: &v.out },
    };
    gemv(&b.client, b.caps, &Gemv { weights: &weights, k, input, output, config }).is_ok()
}

pub struct ShapeBuffers {
    pub inputs: Vec<Buffer<f32>>,
    pub out: Buffer<f32>,
    pub factor: Buffer<f32>,
    partials: Buffer<u32>,
}

impl ShapeBuffers {
    pub fn new(b: &Bench, shape: Shape) -> Self {
        let (rows, k, usage) = shape;
        let outputs = if usage == Use::GateUp { rows[0] } else { rows.iter().sum() };
        Self {
            inputs: (0..5).map(|_| b.vector(k)).collect(),
            out: b.vector(outputs),
            factor: b.vector(35 * 256),
            partials: Buffer::empty(&b.client, 2 * rows[0]),
        }
    }

    fn partials(&self, b: &Bench, rows: usize, k: usize, config: Option<GemvConfig>) -> Buffer<u32> {
        let len = partials_len(rows, k, config, &b.caps);
        let spare = (self.partials.len() - len) as u64 * 4;
        Buffer::new(self.partials.handle().clone().offset_end(spare), len).expect("one pair per row at most")
    }
}

fn candidates(shape: Shape, b: &Bench) -> Vec<GemvConfig> {
    let (rows, k, usage) = shape;
    let rows: usize = rows.iter().sum();
    let sms = b.caps.sm_count.unwrap_or(16) as usize;
    let k_vec = (k / 8) as u32;
    let mut found = Vec::new();
    for split in [1, 2, 3, 4, 6, 8, 12, 16] {
        let loads = k_vec.div_ceil(split * b.caps.lanes);
        if loads > 8 || (split > 1 && !k_vec.is_multiple_of(split * b.caps.lanes)) {
            continue;
        }
        for planes in [4, 6, 8, 12, 16] {
            if !u32::is_multiple_of(planes, split) || planes > b.caps.max_planes() {
                continue;
            }
            for ahead in [1u32, 2, 3, 4] {
                if (usage == Use::GateUp && ahead % 2 == 1) || ahead * loads > 16 {
                    continue;
                }
                let per_block = (planes / split * ahead) as usize;
                let mut blocks: Vec<usize> = Vec::new();
                // One to eight cubes per multiprocessor in one wave, or small cubes in many waves.
                for waves in [1usize, 2, 3, 4, 6, 8] {
                    blocks.push(rows.div_ceil(per_block * sms * waves));
                }
                blocks.extend([2, 4]);
                blocks.sort();
                blocks.dedup();
                for n in blocks.into_iter().filter(|&n| (1..=64).contains(&n)) {
                    let config = GemvConfig::new(split, planes, ahead, n as u32);
                    // Fewer cubes than half the device cannot win.
                    if rows.div_ceil(config.rows_per_cube()) * 2 >= sms {
                        found.push(config);
                    }
                }
            }
        }
    }
    // In an order that visits all corners early: tuning stops when its time is over.
    found
        .sort_by_key(|c| (c.split * 31 + c.planes * 97 + c.ahead * 193 + c.blocks * 389).wrapping_mul(2654435761) >> 7);
    found
}

/// Times every shape; returns the best configuration of each.
pub fn run(b: &Bench, tune_seconds: f64) -> Vec<(Shape, Option<GemvConfig>)> {
    println!("{:<28} {:<10} {:<24} {:>8} {:>8}", "weights x K", "use", "split/planes/ahead/blocks", "us", "GB/s");
    let mut best = Vec::new();
    for &shape in SHAPES {
        let (rows, k, usage) = shape;
        let all: usize = rows.iter().sum();
        let bytes = all * k * 2;
        let copies = if b.quick { 1 } else { (STREAMED / bytes).clamp(2, 120) };
        let weights: Vec<Vec<Buffer<bf16>>> =
            (0..copies).map(|_| rows.iter().map(|r| b.weight(r * k)).collect()).collect();
        let buffers = ShapeBuffers::new(b, shape);
        let measure = |config: Option<GemvConfig>| -> Option<f64> {
            if !launch(b, shape, &weights[0], &buffers, config) {
                return None;
            }
            let graph = b.graph(&|| weights.iter().for_each(|w| assert!(launch(b, shape, w, &buffers, config))));
            Some(b.time(&graph) / copies as f64)
        };
        let mut results: Vec<(f64, Option<GemvConfig>)> = measure(None).map(|t| (t, None)).into_iter().collect();
        let start = Instant::now();
        for config in candidates(shape, b) {
            if start.elapsed().as_secs_f64() > tune_seconds {
                break;
            }
            results.extend(measure(Some(config)).map(|t| (t, Some(config))));
        }
        results.sort_by(|x, y| x.0.total_cmp(&y.0));
        for (seconds, config) in results.iter().take(6) {
            let name = config.map_or("table".into(), |c| format!("{}/{}/{}/{}", c.split, c.planes, c.ahead, c.blocks));
            let shape = format!("{rows:?} x {k}");
            let us = seconds * 1e6;
            println!(
                "{shape:<28} {:<10} {name:<24} {us:>8.2} {:>8.0}",
                format!("{usage:?}"),
                bytes as f64 / seconds / 1e9
            );
        }
        if results.len() > 1 {
            let table = results.iter().find(|r| r.1.is_none()).map_or(0.0, |r| r.0 * 1e6);
            println!("{:<28} table {table:.2} us, {} configurations", "", results.len());
        }
        best.push((shape, results.first().and_then(|r| r.1)));
    }
    best
}
