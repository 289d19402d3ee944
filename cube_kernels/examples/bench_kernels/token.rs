//! One whole token of a 35-layer model as a captured graph, with a stand-in for attention.

use cube_kernels::argmax::argmax;
use cube_kernels::embed::{Row, embed};
use cube_kernels::gemv::{Gemv, GemvConfig, Input, Output, Weight, gemv, partials_len};
use cube_kernels::ple_combine::{PleCombine, ple_combine};
use cube_kernels::{Buffer, state};
use cubecl::prelude::*;
use half::bf16;

use crate::device::Bench;
use crate::tune::Shape;

const E: usize = 1536;
const P: usize = 256;
const LAYERS: usize = 35;
const OWN_KV: usize = 15;
const VOCABULARY: usize = 262144;
const CONTEXT: usize = 512;
const EPS: f32 = 1e-6;

type Packed = Vector<u32, Const<4>>;

/// Reads `kv` once over all cubes, and q; writes as many numbers as attention would.
#[cube(launch_unchecked)]
fn attention_stand_in(kv: &[Packed], q: &[f32], out: &mut [f32], #[comptime] units: u32) {
    let unit = UNIT_POS as usize;
    let chunk = kv.len() / CUBE_COUNT as usize;
    let mut acc = q[unit];
    let mut i = unit;
    while i < chunk {
        let v = kv[CUBE_POS as usize * chunk + i];
        acc +=
            f32::reinterpret(v.extract(0usize) & 0x3fffffffu32) + f32::reinterpret(v.extract(3usize) & 0x3fffffffu32);
        i += comptime!(units as usize);
    }
    let at = CUBE_POS as usize * comptime!(units as usize) + unit;
    if at < out.len() {
        out[at] = acc;
    }
}

struct Layer {
    attention: Vec<Buffer<bf16>>,
    attention_rows: Vec<usize>,
    o: Buffer<bf16>,
    gate: Buffer<bf16>,
    up: Buffer<bf16>,
    down: Buffer<bf16>,
    ple_gate: Buffer<bf16>,
    ple_proj: Buffer<bf16>,
    kv: Buffer<bf16>,
    head_rows: usize,
    ffn: usize,
    norms: Vec<Buffer<f32>>,
}

impl Layer {
    fn new(b: &Bench, index: usize) -> Self {
        let dim = if index % 5 == 4 { 512 } else { 256 };
        let own = index < OWN_KV;
        let ffn = if own { 6144 } else { 12288 };
        let head_rows = 8 * dim;
        let attention_rows = if own { vec![head_rows, dim, dim] } else { vec![head_rows] };
        Self {
            attention: attention_rows.iter().map(|r| b.weight(r * E)).collect(),
            attention_rows,
            o: b.weight(E * head_rows),
            gate: b.weight(ffn * E),
            up: b.weight(ffn * E),
            down: b.weight(E * ffn),
            ple_gate: b.weight(P * E),
            ple_proj: b.weight(E * P),
            kv: b.weight(2 * CONTEXT * dim),
            head_rows,
            ffn,
            norms: (0..5).map(|_| b.vector(E)).collect(),
        }
    }

    fn weight_bytes(&self) -> usize {
        let attention: usize = self.attention.iter().map(Buffer::len).sum();
        2 * (attention
            + self.o.len()
            + self.gate.len()
            + self.up.len()
            + self.down.len()
            + self.ple_gate.len()
            + self.ple_proj.len())
    }
}

/// Runs the chain with the configurations that `best` has found and prints its time.
pub fn run(b: &Bench, best: &[(Shape, Option<GemvConfig>)]) {
    let layers = if b.quick { 6 } else { LAYERS };
    let vocabulary = if b.quick { 4096 } else { VOCABULARY };
    let config = |rows: &[usize], k: usize| best.iter().find(|s| s.0.0 == rows && s.0.1 == k).and_then(|s| s.1);
    let model: Vec<Layer> = (0..layers).map(|l| Layer::new(b, if b.quick { l * 6 } else { l })).collect();
    let (embedding, projection) = (b.weight(vocabulary * E), b.weight(LAYERS * P * E));
    let ple_table = b.weight(64 * LAYERS * P);
    let words = Buffer::from_slice(&b.client, &[0u32; state::LEN]);
    let ring = Buffer::from_slice(&b.client, &[0u32; 1024]);
    let ends = Buffer::from_slice(&b.client, &[u32::MAX]);
    let (context, ple) = (b.vector(LAYERS * P), b.vector(LAYERS * P));
    let h: Vec<_> = (0..2).map(|_| b.vector(E)).collect();
    let (block, ple_act, scale) = (b.vector(E), b.vector(P), Buffer::from_slice(&b.client, &[0.9f32]));
    let (norm, ple_norm) = (b.vector(E), b.vector(P));
    let q: Vec<_> = [2048, 2560, 4096, 5120].into_iter().map(|n| b.vector(n)).collect();
    let heads: Vec<_> = [2048, 4096].into_iter().map(|n| b.vector(n)).collect();
    let acts: Vec<_> = [6144, 12288].into_iter().map(|n| b.vector(n)).collect();
    let of = |buffers: &[Buffer<f32>], len: usize| buffers.iter().find(|x| x.len() == len).expect("sized").clone();
    let head_config = config(&[vocabulary], E);
    let partials = Buffer::<u32>::empty(&b.client, partials_len(vocabulary, E, head_config, &b.caps));

    fn plain(x: &Buffer<f32>) -> Input<'_> {
        Input::Plain { x, scale: 1.0 }
    }
    let run = |weights: &[(&Buffer<bf16>, usize)], k: usize, input: Input, output: Output| {
        let rows: Vec<usize> = weights.iter().map(|w| w.1).collect();
        let weights: Vec<_> = weights.iter().map(|&(data, rows)| Weight { data, rows }).collect();
        let config = config(&rows, k);
        gemv(&b.client, b.caps, &Gemv { weights: &weights, k, input, output, config }).expect("supported");
    };
    let step = |attention: bool| {
        let table = Row::Table { parts: &[&embedding], rows_per_part: vocabulary };
        embed(&b.client, b.caps, table, &words, &h[0], (E as f32).sqrt()).expect("embed");
        run(&[(&projection, LAYERS * P)], E, plain(&h[0]), Output::Rows { y: &context });
        let op = PleCombine {
            context: &context,
            weight: &ple_norm,
            row: Row::Table { parts: &[&ple_table], rows_per_part: 64 },
            state: &words,
            out: &ple,
            context_scale: (E as f32).powf(-0.5),
            row_scale: (P as f32).sqrt(),
            scale: 0.5f32.sqrt(),
            eps: EPS,
        };
        ple_combine(&b.client, b.caps, &op).expect("ple_combine");
        let mut now = 0;
        // Applies the last block's output to the stream and flips the buffers.
        for (l, layer) in model.iter().enumerate() {
            let rows: Vec<_> = layer.attention.iter().zip(layer.attention_rows.iter().copied()).collect();
            let q = of(&q, layer.attention_rows.iter().sum());
            let input = if l == 0 {
                Input::Norm { x: &h[0], weight: &norm, eps: EPS }
            } else {
                now = 1 - now;
                Input::Residual {
                    h: &h[1 - now],
                    y: &block,
                    post: &model[l - 1].norms[0],
                    layer_scale: Some(&scale),
                    pre: Some(&layer.norms[1]),
                    h_out: &h[now],
                    eps: EPS,
                }
            };
            run(&rows, E, input, Output::Rows { y: &q });
            let heads = of(&heads, layer.head_rows);
            if attention {
                let units = 256.min(b.caps.max_units);
                // SAFETY: indices stay below the lengths of `kv` and `out`; q has more than 256 elements.
                unsafe {
                    attention_stand_in::launch_unchecked(
                        &b.client,
                        CubeCount::Static(32, 1, 1),
                        CubeDim::new_1d(units),
                        BufferArg::from_raw_parts(layer.kv.handle().clone(), layer.kv.len() / 8),
                        BufferArg::from_raw_parts(q.handle().clone(), q.len()),
                        BufferArg::from_raw_parts(heads.handle().clone(), heads.len()),
                        units,
                    );
                }
            }
            run(&[(&layer.o, E)], layer.head_rows, plain(&heads), Output::Rows { y: &block });
            let mut residual = |post: usize, pre: Option<usize>| {
                now = 1 - now;
                Input::Residual {
                    h: &h[1 - now],
                    y: &block,
                    post: &layer.norms[post],
                    layer_scale: None,
                    pre: pre.map(|p| &layer.norms[p]),
                    h_out: &h[now],
                    eps: EPS,
                }
            };
            let act = of(&acts, layer.ffn);
            let pair = [(&layer.gate, layer.ffn), (&layer.up, layer.ffn)];
            run(&pair, E, residual(2, Some(3)), Output::GeluMul { y: &act });
            run(&[(&layer.down, E)], layer.ffn, plain(&act), Output::Rows { y: &block });
            let output = Output::GeluScale { y: &ple_act, factor: &ple, offset: l * P };
            run(&[(&layer.ple_gate, P)], E, residual(4, None), output);
            run(&[(&layer.ple_proj, E)], P, plain(&ple_act), Output::Rows { y: &block });
        }
        let input = Input::Residual {
            h: &h[now],
            y: &block,
            post: &norm,
            layer_scale: Some(&scale),
            pre: Some(&norm),
            h_out: &h[1 - now],
            eps: EPS,
        };
        let output = Output::Argmax { cap: Some(30.0), partials: &partials, logits: None };
        run(&[(&embedding, vocabulary)], E, input, output);
        argmax(&b.client, b.caps, &partials, &words, &ring, &ends).expect("argmax");
    };
    let layer_bytes: usize = model.iter().map(Layer::weight_bytes).sum();
    let bytes = layer_bytes + 2 * (embedding.len() + projection.len());
    for attention in [false, true] {
        let seconds = b.time(&b.graph(&|| step(attention)));
        println!(
            "token, {layers} layers, {}: {:.3} ms, {:.2} TB/s over {:.3} GB of weights",
            if attention { "attention stand-in" } else { "no attention" },
            seconds * 1e3,
            bytes as f64 / seconds / 1e12,
            bytes as f64 / 1e9
        );
    }
    println!("state {:?}", words.read_blocking(&b.client).expect("state"));
}
