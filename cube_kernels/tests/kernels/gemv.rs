use cube_kernels::argmax::argmax_reference;
use cube_kernels::gemv::{
    Gemv, GemvConfig, GemvReference, Input, InputReference, Output, OutputReference, Weight, gemv, gemv_reference,
    partials_len,
};
use cube_kernels::{Buffer, Caps};
use cubecl::client::Client;
use half::bf16;

use crate::support::{Numbers, assert_close, each_device, unwritten};

const EPS: f32 = 1e-6;
const TOLERANCE: f64 = 2e-5;

/// One problem: some weights with the same K, and vectors of K elements.
struct Problem {
    k: usize,
    rows: Vec<usize>,
    weights: Vec<bf16>,
    vectors: Vec<Vec<f32>>,
}

impl Problem {
    fn new(rows: &[usize], k: usize) -> Self {
        let mut numbers = Numbers::new((k + rows[0]) as u64);
        let all: usize = rows.iter().sum();
        Self {
            k,
            rows: rows.to_vec(),
            weights: numbers.bf16s(all * k),
            vectors: (0..4).map(|_| numbers.f32s(k)).collect(),
        }
    }

    fn outputs(&self) -> usize {
        self.rows.iter().sum()
    }

    fn upload(&self, client: &Client) -> (Vec<Buffer<bf16>>, Vec<Buffer<f32>>) {
        let mut rest = self.weights.as_slice();
        let weights = self.rows.iter().map(|rows| {
            let (own, others) = rest.split_at(rows * self.k);
            rest = others;
            Buffer::from_slice(client, own)
        });
        (weights.collect(), self.vectors.iter().map(|v| Buffer::from_slice(client, v)).collect())
    }

    fn launch(
        &self,
        client: &Client,
        caps: Caps,
        weights: &[Buffer<bf16>],
        input: Input,
        output: Output,
        config: Option<GemvConfig>,
    ) {
        let weights: Vec<_> = weights.iter().zip(&self.rows).map(|(data, &rows)| Weight { data, rows }).collect();
        gemv(client, caps, &Gemv { weights: &weights, k: self.k, input, output, config }).unwrap();
    }

    fn want(&self, input: InputReference, output: OutputReference) -> GemvReference {
        gemv_reference(&self.weights, self.k, &input, &output)
    }
}

/// Smallest, tiny-model, ragged and real shapes.
const SHAPES: &[(&[usize], usize)] = &[
    (&[1], 8),
    (&[3], 16),
    (&[80], 96),
    (&[96], 80),
    (&[96], 160),
    (&[33], 264),
    (&[64, 16, 16], 96),
    (&[40, 24], 48),
    (&[2048, 256, 256], 1536),
    (&[1536], 2048),
    (&[512], 6144),
    (&[100], 12288),
    (&[256], 1536),
    (&[1536], 256),
];

#[test]
fn gemv_plain_matches_reference() {
    each_device(|client, caps| {
        for &(rows, k) in SHAPES {
            let p = Problem::new(rows, k);
            let (weights, v) = p.upload(client);
            let y = unwritten(client, p.outputs());
            p.launch(client, caps, &weights, Input::Plain { x: &v[0], scale: 0.5 }, Output::Rows { y: &y }, None);
            let want = p.want(InputReference::Plain { x: &p.vectors[0], scale: 0.5 }, OutputReference::Rows);
            assert_close(&format!("{rows:?} x {k}"), &y.read_blocking(client).unwrap(), &want.y, TOLERANCE);
        }
    });
}

#[test]
fn gemv_norm_matches_reference() {
    each_device(|client, caps| {
        for &(rows, k) in SHAPES {
            let p = Problem::new(rows, k);
            let (weights, v) = p.upload(client);
            let y = unwritten(client, p.outputs());
            let input = Input::Norm { x: &v[0], weight: &v[1], eps: EPS };
            p.launch(client, caps, &weights, input, Output::Rows { y: &y }, None);
            let input = InputReference::Norm { x: &p.vectors[0], weight: &p.vectors[1], eps: EPS };
            let want = p.want(input, OutputReference::Rows);
            assert_close(&format!("{rows:?} x {k}"), &y.read_blocking(client).unwrap(), &want.y, TOLERANCE);
        }
    });
}

#[test]
fn gemv_residual_updates_the_stream_and_matches_reference() {
    each_device(|client, caps| {
        let scale = Buffer::from_slice(client, &[0.375f32]);
        let shapes: [(&[usize], usize); 6] =
            [(&[1], 8), (&[96], 80), (&[33], 264), (&[64, 16, 16], 96), (&[256], 1536), (&[2048, 256, 256], 1536)];
        for (i, (rows, k)) in shapes.into_iter().enumerate() {
            // Both options at once for every shape, all four ways for the smallest.
            let ways = [(true, true), (false, true), (false, false), (true, false)];
            for (has_scale, has_pre) in ways.into_iter().take(if i < 2 { 4 } else { 1 }) {
                let p = Problem::new(rows, k);
                let (weights, v) = p.upload(client);
                let (y, h_out) = (unwritten(client, p.outputs()), unwritten(client, k));
                let input = Input::Residual {
                    h: &v[0],
                    y: &v[1],
                    post: &v[2],
                    layer_scale: has_scale.then_some(&scale),
                    pre: has_pre.then_some(&v[3]),
                    h_out: &h_out,
                    eps: EPS,
                };
                p.launch(client, caps, &weights, input, Output::Rows { y: &y }, None);
                let input = InputReference::Residual {
                    h: &p.vectors[0],
                    y: &p.vectors[1],
                    post: &p.vectors[2],
                    layer_scale: if has_scale { 0.375 } else { 1.0 },
                    pre: has_pre.then_some(p.vectors[3].as_slice()),
                    eps: EPS,
                };
                let want = p.want(input, OutputReference::Rows);
                let what = format!("{rows:?} x {k}, scale {has_scale}, pre {has_pre}");
                assert_close(&what, &h_out.read_blocking(client).unwrap(), &want.h, 1e-6);
                assert_close(&what, &y.read_blocking(client).unwrap(), &want.y, TOLERANCE);
            }
        }
    });
}

#[test]
fn gemv_gelu_mul_pairs_rows_of_two_weights() {
    each_device(|client, caps| {
        for (rows, k) in [(1, 8), (7, 24), (160, 96), (6144, 96), (768, 1536)] {
            let p = Problem::new(&[rows, rows], k);
            let (weights, v) = p.upload(client);
            let y = unwritten(client, rows);
            let input = Input::Plain { x: &v[0], scale: 0.1 };
            p.launch(client, caps, &weights, input, Output::GeluMul { y: &y }, None);
            let want = p.want(InputReference::Plain { x: &p.vectors[0], scale: 0.1 }, OutputReference::GeluMul);
            assert_close(&format!("{rows} x {k}"), &y.read_blocking(client).unwrap(), &want.y, TOLERANCE);
        }
    });
}

#[test]
fn gemv_gelu_scale_reads_factors_at_an_offset() {
    each_device(|client, caps| {
        for (rows, k) in [(2, 8), (16, 96), (256, 1536)] {
            let p = Problem::new(&[rows], k);
            let (weights, v) = p.upload(client);
            let factors = Numbers::new(9).f32s(3 * rows);
            let (factor, y) = (Buffer::from_slice(client, &factors), unwritten(client, rows));
            let output = Output::GeluScale { y: &y, factor: &factor, offset: rows };
            p.launch(client, caps, &weights, Input::Plain { x: &v[0], scale: 1.0 }, output, None);
            let output = OutputReference::GeluScale { factor: &factors[rows..] };
            let want = p.want(InputReference::Plain { x: &p.vectors[0], scale: 1.0 }, output);
            assert_close(&format!("{rows} x {k}"), &y.read_blocking(client).unwrap(), &want.y, TOLERANCE);
        }
    });
}

/// Launches the head and reduces its partials on the host: the row, or `None` if a partial is marked broken.
fn largest(client: &Client, caps: Caps, p: &Problem, cap: Option<f32>, logits: Option<&Buffer<f32>>) -> Option<u32> {
    let (weights, v) = p.upload(client);
    let partials = Buffer::from_slice(client, &vec![7u32; partials_len(p.outputs(), p.k, None, &caps)]);
    let output = Output::Argmax { cap, partials: &partials, logits };
    p.launch(client, caps, &weights, Input::Plain { x: &v[0], scale: 1.0 }, output, None);
    let words = partials.read_blocking(client).unwrap();
    let broken = words.chunks(2).any(|w| w[1] == u32::MAX);
    let best = words
        .chunks(2)
        .map(|w| (f32::from_bits(w[0]), w[1]))
        .reduce(|a, b| if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) { b } else { a });
    best.filter(|_| !broken).map(|b| b.1)
}

#[test]
fn gemv_argmax_finds_the_largest_soft_capped_logit() {
    each_device(|client, caps| {
        for (rows, k) in [(1, 8), (3, 16), (517, 96), (4096, 1536)] {
            let p = Problem::new(&[rows], k);
            for cap in [Some(30.0), None] {
                let logits = unwritten(client, rows);
                let row = largest(client, caps, &p, cap, Some(&logits));
                let input = InputReference::Plain { x: &p.vectors[0], scale: 1.0 };
                let output = cap.map_or(OutputReference::Rows, |cap| OutputReference::Softcap { cap });
                let logits = logits.read_blocking(client).unwrap();
                assert_close(&format!("{rows} x {k}"), &logits, &p.want(input, output).y, TOLERANCE);
                assert_eq!(row, argmax_reference(&logits));
                assert_eq!(largest(client, caps, &p, cap, None), row);
            }
        }
    });
}

#[test]
fn gemv_argmax_of_equals_takes_the_lowest_row() {
    each_device(|client, caps| {
        let mut p = Problem::new(&[3000], 64);
        let row: Vec<bf16> = p.vectors[0].iter().map(|&v| bf16::from_f32(v * 4.0)).collect();
        for at in [2999, 700, 1500] {
            p.weights[at * 64..][..64].copy_from_slice(&row);
        }
        assert_eq!(largest(client, caps, &p, Some(30.0), None), Some(700));
    });
}

#[test]
fn gemv_argmax_marks_values_that_are_not_finite() {
    each_device(|client, caps| {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut p = Problem::new(&[300], 64);
            p.weights[123 * 64 + 5] = bf16::from_f32(bad);
            assert_eq!(largest(client, caps, &p, Some(30.0), None), None);
        }
    });
}

#[test]
fn gemv_result_does_not_depend_on_the_layout_beyond_rounding() {
    each_device(|client, caps| {
        let p = Problem::new(&[90, 90], 384);
        let (weights, v) = p.upload(client);
        let input = InputReference::Norm { x: &p.vectors[0], weight: &p.vectors[1], eps: EPS };
        let want = p.want(input, OutputReference::GeluMul);
        for (split, planes, ahead, blocks) in
            [(1, 1, 2, 1), (1, 4, 2, 3), (2, 2, 4, 2), (2, 8, 2, 9), (3, 6, 4, 1), (4, 4, 6, 5), (8, 8, 2, 2)]
        {
            let config = GemvConfig::new(split, planes, ahead, blocks);
            if planes > caps.max_planes() {
                continue;
            }
            let y = unwritten(client, 90);
            let input = Input::Norm { x: &v[0], weight: &v[1], eps: EPS };
            p.launch(client, caps, &weights, input, Output::GeluMul { y: &y }, Some(config));
            assert_close(&format!("{config:?}"), &y.read_blocking(client).unwrap(), &want.y, TOLERANCE);
        }
    });
}

#[test]
fn gemv_captured_replays_with_new_input() {
    each_device(|client, caps| {
        let p = Problem::new(&[64], 96);
        let (weights, v) = p.upload(client);
        let (y, h_out) = (unwritten(client, 64), unwritten(client, 96));
        let step = || {
            let input = Input::Residual {
                h: &v[0],
                y: &v[1],
                post: &v[2],
                layer_scale: None,
                pre: Some(&v[3]),
                h_out: &h_out,
                eps: EPS,
            };
            p.launch(client, caps, &weights, input, Output::Rows { y: &y }, None);
        };
        client.graph_prepare().unwrap();
        step();
        y.read_blocking(client).unwrap();
        client.start_capture().unwrap();
        step();
        let graph = client.stop_capture().unwrap();
        let other = Numbers::new(77).f32s(96);
        v[1].write(client, other.clone());
        // SAFETY: every buffer of the graph is alive here.
        unsafe { graph.replay() }.unwrap();
        let input = InputReference::Residual {
            h: &p.vectors[0],
            y: &other,
            post: &p.vectors[2],
            layer_scale: 1.0,
            pre: Some(&p.vectors[3]),
            eps: EPS,
        };
        assert_close("replay", &y.read_blocking(client).unwrap(), &p.want(input, OutputReference::Rows).y, TOLERANCE);
    });
}

#[test]
fn gemv_refuses_what_it_cannot_do() {
    each_device(|client, caps| {
        let data = Buffer::from_slice(client, &Numbers::new(1).bf16s(12 * 20));
        let (x, y) = (unwritten(client, 12), unwritten(client, 20));
        let launch = |k, rows, output, config| {
            let weights = [Weight { data: &data, rows }];
            gemv(
                client,
                caps,
                &Gemv { weights: &weights, k, input: Input::Plain { x: &x, scale: 1.0 }, output, config },
            )
            .unwrap_err()
            .to_string()
        };
        let rows = Output::Rows { y: &y };
        assert!(launch(12, 20, rows, None).contains("K = 12, expected a multiple of 8"));
        assert!(launch(16, 20, rows, None).contains("weight 0 has 240 elements, expected [20, 16]"));
        assert!(launch(24, 10, rows, None).contains("x has 12 elements, expected 24"));
        assert!(launch(24, 10, Output::GeluMul { y: &y }, None).contains("two weights of equal height"));
        assert!(launch(24, 10, rows, Some(GemvConfig::new(2, 3, 1, 1))).contains("planes a multiple of split"));
    });
}
