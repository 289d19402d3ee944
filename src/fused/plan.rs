//! Which kernel runs for which layer, in order: the decode step as a list of launches.

use burn::module::Param;
use burn::tensor::Tensor;
use cube_kernels::attention::{Attention, AttentionBuffers, RopeTable};
use cube_kernels::embed::{Row, embed};
use cube_kernels::gemv::{Gemv, Input, Output, Weight, gemv};
use cube_kernels::ple_combine::{PleCombine, ple_combine};
use cube_kernels::{Buffer, Caps, Rejected, argmax};
use cubecl::client::Client;
use half::bf16;

use super::state::Buffers;
use super::weights::{matrix, vector};
use crate::Result;
use crate::config::LayerSpec;
use crate::model::{DecoderLayer, Gemma, PerLayerBlock, PerLayerInputs};

/// One kernel launch of the step.
pub(super) struct Launch {
    /// What it computes; the same for every layer.
    pub(super) label: &'static str,
    /// Bytes of weights that it reads.
    pub(super) weight_bytes: usize,
    run: Box<dyn Fn() -> Result<(), Rejected>>,
}

impl Launch {
    pub(super) fn run(&self) -> Result<()> {
        Ok((self.run)()?)
    }
}

/// The launches of one step.
pub(super) struct Plan {
    /// Up to the last write into the cache: all that an earlier token of a prompt needs.
    pub(super) store: Vec<Launch>,
    /// The other layers, the head, the choice of a token and the advance to the next position.
    pub(super) choose: Vec<Launch>,
}

/// Turns a model and its buffers into launches.
pub(super) struct Planner<'a> {
    pub(super) model: &'a Gemma,
    pub(super) buffers: &'a Buffers,
    pub(super) attention: &'a [Attention],
    pub(super) rope: RopeTable,
    pub(super) client: Client,
    pub(super) caps: Caps,
}

/// What waits to be added to the residual stream: the last block's output, its norm, a factor for the whole.
#[derive(Clone)]
struct Pending {
    norm: Buffer<f32>,
    scale: Option<Buffer<f32>>,
}

/// Weights of one launch with their heights.
type Weights = Vec<(Buffer<bf16>, usize)>;

impl Planner<'_> {
    pub(super) fn plan(&self) -> Result<Plan> {
        let mut store = self.embed()?;
        let mut choose = Vec::new();
        let mut stream = Stream { turn: 0, pending: None };
        let owners = self.model.config().first_shared();
        for (i, layer) in self.model.layers.iter().enumerate() {
            let stage = if i < owners { &mut store } else { &mut choose };
            stage.push(self.project_qkv(i, layer, &mut stream)?);
            stage.push(self.attend(i, layer)?);
            let stage = if i + 1 < owners { &mut store } else { &mut choose };
            self.after_attention(i, layer, &mut stream, stage)?;
        }
        choose.extend(self.head(&mut stream)?);
        Ok(Plan { store, choose })
    }

    fn embed(&self) -> Result<Vec<Launch>> {
        let (config, b) = (self.model.config(), self.buffers);
        let (client, caps) = (self.client.clone(), self.caps);
        let table = matrix(&self.model.embed_tokens.weight)?;
        let (rows, scale) = (config.vocab_size, (config.hidden_size as f32).sqrt());
        let (state, h) = (b.state.clone(), b.h[0].clone());
        let mut launches = vec![Launch {
            label: "embed",
            weight_bytes: config.hidden_size * 2,
            run: Box::new(move || {
                let row = Row::Table { parts: &[&table], rows_per_part: rows };
                embed(&client, caps, row, &state, &h, scale)
            }),
        }];
        if let Some(inputs) = &self.model.per_layer {
            self.per_layer_inputs(inputs, &mut launches)?;
        }
        let (client, caps, rope) = (self.client.clone(), self.caps, self.rope.clone());
        let (state, out) = (b.state.clone(), b.rope.clone());
        launches.push(Launch {
            label: "rope",
            weight_bytes: 0,
            run: Box::new(move || rope.launch(&client, caps, &state, &out)),
        });
        Ok(launches)
    }

    fn per_layer_inputs(&self, inputs: &PerLayerInputs, launches: &mut Vec<Launch>) -> Result<()> {
        let (config, b) = (self.model.config(), self.buffers);
        let hidden = config.hidden_size;
        let weights = self.weights(&[&inputs.per_layer_model_projection.weight])?;
        let (x, y) = (b.h[0].clone(), b.context.clone());
        launches.push(self.gemv("per_layer_model_projection", weights, hidden, move |op| {
            op(Input::Plain { x: &x, scale: 1.0 }, Output::Rows { y: &y })
        }));
        let table = inputs.embed_tokens_per_layer.weight.as_ref().map(matrix).transpose()?;
        let weight = vector(&inputs.per_layer_projection_norm.weight)?;
        let (client, caps, eps) = (self.client.clone(), self.caps, config.rms_norm_eps as f32);
        let (context, state, row, out) = (b.context.clone(), b.state.clone(), b.row.clone(), b.per_layer.clone());
        let rows = config.per_layer.map_or(0, |spec| spec.vocab_size);
        let dim = weight.len();
        launches.push(Launch {
            label: "per_layer_combine",
            weight_bytes: out.len() * 2,
            run: Box::new(move || {
                let parts: Vec<&Buffer<bf16>> = table.iter().collect();
                let row = match parts.is_empty() {
                    true => Row::Uploaded(&row),
                    false => Row::Table { parts: &parts, rows_per_part: rows },
                };
                let op = PleCombine {
                    context: &context,
                    weight: &weight,
                    row,
                    state: &state,
                    out: &out,
                    context_scale: (hidden as f32).powf(-0.5),
                    row_scale: (dim as f32).sqrt(),
                    scale: std::f32::consts::FRAC_1_SQRT_2,
                    eps,
                };
                ple_combine(&client, caps, &op)
            }),
        });
        Ok(())
    }

    fn after_attention(
        &self,
        i: usize,
        layer: &DecoderLayer,
        stream: &mut Stream,
        launches: &mut Vec<Launch>,
    ) -> Result<()> {
        let config = self.model.config();
        let (spec, hidden) = (&config.layers[i], config.hidden_size);
        let b = self.buffers;
        let weights = self.weights(&[&layer.self_attn.o_proj.weight])?;
        let width = spec.heads * spec.head_dim;
        let x = cut(&b.attended, width)?;
        let y = b.y.clone();
        launches.push(
            self.gemv("o", weights, width, move |op| op(Input::Plain { x: &x, scale: 1.0 }, Output::Rows { y: &y })),
        );
        stream.pending = Some(Pending { norm: vector(&layer.post_attention_layernorm.weight)?, scale: None });

        let weights = self.weights(&[&layer.mlp.gate_proj.weight, &layer.mlp.up_proj.weight])?;
        let pre = vector(&layer.pre_feedforward_layernorm.weight)?;
        let act = cut(&b.activations, spec.ffn)?;
        let input = self.input(stream, Some(pre));
        let y = act.clone();
        launches.push(self.gemv("gate_up", weights, hidden, move |op| op(input.as_input(), Output::GeluMul { y: &y })));
        let weights = self.weights(&[&layer.mlp.down_proj.weight])?;
        let y = b.y.clone();
        launches.push(self.gemv("down", weights, spec.ffn, move |op| {
            op(Input::Plain { x: &act, scale: 1.0 }, Output::Rows { y: &y })
        }));
        let scalar = vector(&layer.layer_scalar)?;
        let norm = vector(&layer.post_feedforward_layernorm.weight)?;
        stream.pending = Some(Pending { norm, scale: layer.per_layer.is_none().then(|| scalar.clone()) });

        if let Some(block) = &layer.per_layer {
            self.per_layer_block(i, block, stream, launches)?;
            let norm = vector(&block.post_per_layer_input_norm.weight)?;
            stream.pending = Some(Pending { norm, scale: Some(scalar) });
        }
        Ok(())
    }

    fn project_qkv(&self, i: usize, layer: &DecoderLayer, stream: &mut Stream) -> Result<Launch> {
        let spec: &LayerSpec = &self.model.config().layers[i];
        let attn = &layer.self_attn;
        let mut params = vec![&attn.q_proj.weight];
        params.extend(attn.k_proj.iter().chain(&attn.v_proj).map(|p| &p.weight));
        let weights = self.weights(&params)?;
        let y = cut(&self.buffers.qkv, weights.iter().map(|(_, rows)| rows).sum())?;
        let input = self.input(stream, Some(vector(&layer.input_layernorm.weight)?));
        let label = if spec.kv.is_shared() { "q" } else { "qkv" };
        Ok(self.gemv(label, weights, self.model.config().hidden_size, move |op| {
            op(input.as_input(), Output::Rows { y: &y })
        }))
    }

    fn attend(&self, i: usize, layer: &DecoderLayer) -> Result<Launch> {
        let (config, b) = (self.model.config(), self.buffers);
        let spec = &config.layers[i];
        let attention = self.attention[i];
        let q_norm = vector(&layer.self_attn.q_norm.weight)?;
        let k_norm = layer.self_attn.k_norm.as_ref().map_or_else(|| Ok(q_norm.clone()), |norm| vector(&norm.weight))?;
        let (q_width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let v_at = if spec.k_eq_v { q_width } else { q_width + kv_width };
        let first = &config.layers[0];
        let rope_at =
            if (spec.rope, spec.head_dim) == (first.rope, first.head_dim) { 0 } else { self.rope.second_at() };
        let kv = b.kv[spec.kv.slot()].clone();
        let (client, eps, scratch) = (self.client.clone(), config.rms_norm_eps as f32, b.scratch.clone());
        let (qkv, rope, state) = (b.qkv.clone(), b.rope.clone(), b.state.clone());
        let out = cut(&b.attended, q_width)?;
        Ok(Launch {
            label: if spec.window.is_some() { "attention sliding" } else { "attention full" },
            weight_bytes: 0,
            run: Box::new(move || {
                let io = AttentionBuffers {
                    qkv: &qkv,
                    q_at: 0,
                    k_at: q_width,
                    v_at,
                    q_norm: &q_norm,
                    k_norm: &k_norm,
                    rope: &rope,
                    rope_at,
                    state: &state,
                    k_cache: &kv.k,
                    v_cache: &kv.v,
                    scratch: &scratch,
                    out: &out,
                    eps,
                };
                attention.launch(&client, &io)
            }),
        })
    }

    fn per_layer_block(
        &self,
        i: usize,
        block: &PerLayerBlock,
        stream: &mut Stream,
        launches: &mut Vec<Launch>,
    ) -> Result<()> {
        let b = self.buffers;
        let hidden = self.model.config().hidden_size;
        let weights = self.weights(&[&block.per_layer_input_gate.weight])?;
        let dim = weights[0].1;
        let (gate, factor) = (cut(&b.activations, dim)?, b.per_layer.clone());
        let input = self.input(stream, None);
        let y = gate.clone();
        launches.push(self.gemv("per_layer_gate", weights, hidden, move |op| {
            op(input.as_input(), Output::GeluScale { y: &y, factor: &factor, offset: i * dim })
        }));
        let weights = self.weights(&[&block.per_layer_projection.weight])?;
        let y = b.y.clone();
        launches.push(self.gemv("per_layer_projection", weights, dim, move |op| {
            op(Input::Plain { x: &gate, scale: 1.0 }, Output::Rows { y: &y })
        }));
        Ok(())
    }

    fn head(&self, stream: &mut Stream) -> Result<Vec<Launch>> {
        let (config, b) = (self.model.config(), self.buffers);
        let head = self.model.lm_head.as_ref().map_or(&self.model.embed_tokens.weight, |head| &head.weight);
        let weights = self.weights(&[head])?;
        let input = self.input(stream, Some(vector(&self.model.norm.weight)?));
        let cap = config.softcap.map(|cap| cap as f32);
        let (partials, logits) = (b.partials.clone(), b.logits.clone());
        let head = self.gemv("lm_head", weights, config.hidden_size, move |op| {
            op(input.as_input(), Output::Argmax { cap, partials: &partials, logits: Some(&logits) })
        });
        let (client, caps) = (self.client.clone(), self.caps);
        let (partials, state, ring, ends) = (b.partials.clone(), b.state.clone(), b.ring.clone(), b.ends.clone());
        let choose = Launch {
            label: "argmax",
            weight_bytes: 0,
            run: Box::new(move || argmax::argmax(&client, caps, &partials, &state, &ring, &ends)),
        };
        Ok(vec![head, choose])
    }

    fn weights(&self, params: &[&Param<Tensor<2>>]) -> Result<Weights> {
        params.iter().map(|param| Ok((matrix(param)?, param.lazy_shape()[0]))).collect()
    }

    /// A GEMV over `weights`; `io` hands its input and output to the callback that launches.
    fn gemv(
        &self,
        label: &'static str,
        weights: Weights,
        k: usize,
        io: impl Fn(&dyn Fn(Input, Output) -> Result<(), Rejected>) -> Result<(), Rejected> + 'static,
    ) -> Launch {
        let (client, caps) = (self.client.clone(), self.caps);
        let weight_bytes = weights.iter().map(|(data, _)| data.len() * 2).sum();
        let run = move || {
            let weights: Vec<Weight> = weights.iter().map(|(data, rows)| Weight { data, rows: *rows }).collect();
            io(&|input, output| gemv(&client, caps, &Gemv { weights: &weights, k, input, output, config: None }))
        };
        Launch { label, weight_bytes, run: Box::new(run) }
    }

    /// What the next block reads: the residual stream with what is pending, normalized by `pre`. The updated stream goes
    /// to the other buffer.
    fn input(&self, stream: &mut Stream, pre: Option<Buffer<f32>>) -> StreamInput {
        let b = self.buffers;
        let h = b.h[stream.turn].clone();
        let update = stream.pending.take().map(|pending| {
            stream.turn = 1 - stream.turn;
            (pending, b.y.clone(), b.h[stream.turn].clone())
        });
        StreamInput { h, update, pre, eps: self.model.config().rms_norm_eps as f32 }
    }
}

/// The residual stream while the plan is made.
struct Stream {
    turn: usize,
    pending: Option<Pending>,
}

/// Owned parts of an [`Input`] from the residual stream.
struct StreamInput {
    h: Buffer<f32>,
    update: Option<(Pending, Buffer<f32>, Buffer<f32>)>,
    pre: Option<Buffer<f32>>,
    eps: f32,
}

impl StreamInput {
    fn as_input(&self) -> Input<'_> {
        match (&self.update, &self.pre) {
            (Some((pending, y, h_out)), pre) => Input::Residual {
                h: &self.h,
                y,
                post: &pending.norm,
                layer_scale: pending.scale.as_ref(),
                pre: pre.as_ref(),
                h_out,
                eps: self.eps,
            },
            (None, Some(weight)) => Input::Norm { x: &self.h, weight, eps: self.eps },
            (None, None) => Input::Plain { x: &self.h, scale: 1.0 },
        }
    }
}

/// The first `len` elements of a shared buffer.
fn cut(buffer: &Buffer<f32>, len: usize) -> Result<Buffer<f32>> {
    Ok(Buffer::new(buffer.handle().clone(), len)?)
}
