//! The decode step as a chain of fused kernels on the model's own weights, captured once as a graph.
//!
//! Token, position and length live in device buffers, so one graph serves every position up to the context. Greedy
//! decoding stays on the device: each step chooses the token that the next one reads, and the host fetches tokens in
//! batches. Everything is computed in f32; keys and values are stored in bf16 or f32.

mod graph;
mod plan;
mod state;
mod weights;

use std::sync::Arc;

use burn::tensor::Bytes;
use cube_kernels::attention::RopeTable;
use cube_kernels::{Buffer, Caps, state as words};
use cubecl::client::Client;
use cubecl::prelude::CubeElement;

use crate::cache::KvCache;
use crate::config::GemmaConfig;
use crate::device::Dtype;
use crate::model::{Gemma, HostRows};
use crate::{Error, Result};
use graph::Sequence;
use plan::Planner;
use state::Buffers;
pub use state::RING;

/// How to build a [`FusedStep`].
#[derive(Debug, Clone)]
pub struct FusedOptions {
    /// Longest sequence in tokens; keys and values are allocated for it.
    pub context: usize,
    /// Format of keys and values.
    pub kv: Dtype,
    /// Tokens after which greedy decoding stands still, so that it may safely run ahead of the host.
    pub end_ids: Vec<u32>,
    /// Capture graphs where the runtime has them.
    pub graph: bool,
}

/// The decode step of one sequence.
///
/// It belongs to the thread that made it: launches, reads and replays must come from one stream.
pub struct FusedStep {
    client: Client,
    caps: Caps,
    buffers: Buffers,
    store: Sequence,
    choose: Sequence,
    host_rows: Option<Arc<dyn HostRows>>,
    position: usize,
    context: usize,
    vocab_size: usize,
    kv: Dtype,
}

impl FusedStep {
    /// Builds the step over the weights that `model` holds. Until it is back, no other thread may use a CUDA device: the
    /// driver forbids nearly everything while a graph is being recorded, and refuses the graph.
    ///
    /// # Errors
    /// A model that is not on a CubeCL device in bf16, shapes that a kernel rejects, a capture that fails.
    pub fn new(model: &Gemma, options: &FusedOptions) -> Result<Self> {
        let config = model.config();
        let client = weights::primitive(model.norm.weight.val())?.client;
        let caps = Caps::of(&client);
        let attention = state::attention(config, options.context, options.kv, &caps)?;
        let rope = rope_table(config, &client)?;
        let buffers = Buffers::new(config, &attention, &rope, &options.end_ids, &client, &caps);
        let planner = Planner { model, buffers: &buffers, attention: &attention, rope, client: client.clone(), caps };
        let plan = planner.plan()?;
        let table = model.per_layer.as_ref().map(|inputs| &inputs.embed_tokens_per_layer);
        let mut step = Self {
            store: Sequence::eager(plan.store),
            choose: Sequence::eager(plan.choose),
            host_rows: table.and_then(|table| table.host().cloned()),
            position: 0,
            context: options.context,
            vocab_size: config.vocab_size,
            kv: options.kv,
            client,
            caps,
            buffers,
        };
        if options.graph {
            step.write_state(0)?;
            step.store.capture(&step.client)?;
            step.choose.capture(&step.client)?;
            step.reset();
        }
        Ok(step)
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Longest sequence in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Format of keys and values.
    pub fn kv_dtype(&self) -> Dtype {
        self.kv
    }

    /// Whether a step is replayed as graphs.
    pub fn is_captured(&self) -> bool {
        self.store.is_captured() && self.choose.is_captured()
    }

    /// Whether greedy decoding can run ahead of the host: the per-layer table is on the device.
    pub fn runs_ahead(&self) -> bool {
        self.host_rows.is_none()
    }

    /// Forgets the sequence. Old keys stay in the buffers and out of view.
    pub fn reset(&mut self) {
        self.position = 0;
    }

    /// Takes in a prompt, one token at a time.
    ///
    /// # Errors
    /// A sequence longer than the context, a launch that fails.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<()> {
        let Some((last, earlier)) = ids.split_last() else { return Ok(()) };
        for &id in earlier {
            self.feed(id)?;
            self.store.run()?;
            self.position += 1;
        }
        self.step(*last)
    }

    /// Takes over the tokens that the plain path has seen.
    ///
    /// # Errors
    /// More tokens than the context holds, a format of keys that the import does not read.
    pub fn import(&mut self, cache: &KvCache) -> Result<()> {
        self.position = 0;
        self.ensure_room(cache.position())?;
        for (slot, kv) in self.buffers.kv.iter().enumerate() {
            if let Some(view) = cache.stored(slot) {
                state::import(&self.client, self.caps, kv, view)?;
            }
        }
        self.position = cache.position();
        Ok(())
    }

    /// Feeds one token: its keys and values are stored, the next token is chosen. Does not wait.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn step(&mut self, id: u32) -> Result<()> {
        self.feed(id)?;
        self.advance()
    }

    /// Decodes `count` tokens greedily behind the one chosen last, without the host; fewer if an end token comes up. Does
    /// not wait.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill), and a per-layer table that is on the host.
    pub fn run_ahead(&mut self, count: usize) -> Result<()> {
        if !self.runs_ahead() {
            return Err(Error::Fused("the per-layer table is on the host: every token needs it".into()));
        }
        self.ensure_room(count)?;
        (0..count).try_for_each(|_| self.advance())
    }

    /// Waits for the device and returns the tokens chosen since the last one was fed, oldest first: at most
    /// [`RING`], the newest.
    ///
    /// # Errors
    /// Logits that are not finite, a launch that failed.
    pub fn read_tokens_blocking(&mut self) -> Result<Vec<u32>> {
        let failed = |e: String| Error::Fused(format!("reading tokens: {e}"));
        let state = self.buffers.state.read_blocking(&self.client).map_err(failed)?;
        if state[words::ERROR] != 0 {
            return Err(Error::NonFinite(format!("logits before position {} are not finite", state[words::POSITION])));
        }
        let ring = self.buffers.ring.read_blocking(&self.client).map_err(failed)?;
        self.position = state[words::POSITION] as usize;
        let end = state[words::STEP] as usize;
        Ok((end.saturating_sub(RING)..end).map(|i| ring[i % RING]).collect())
    }

    /// Waits for the device and returns the logits behind the last token.
    ///
    /// # Errors
    /// A launch that failed.
    pub fn read_logits_blocking(&self) -> Result<Vec<f32>> {
        self.buffers.logits.read_blocking(&self.client).map_err(|e| Error::Fused(format!("reading logits: {e}")))
    }

    /// Bytes of keys and values on the device.
    pub fn kv_bytes(&self) -> usize {
        self.buffers.kv.iter().map(|kv| (kv.k.len() + kv.v.len()) * size_of::<u32>()).sum()
    }

    /// Bytes of weights that one token reads.
    pub fn weight_bytes(&self) -> usize {
        self.launches().map(|launch| launch.weight_bytes).sum()
    }

    /// Times every kind of kernel alone: label, launches per token, microseconds for all of them, bytes of weights.
    ///
    /// The sequence is forgotten: kernels run on whatever the buffers hold.
    ///
    /// # Errors
    /// A capture or a launch that fails.
    pub fn time_kernels(&mut self) -> Result<Vec<(&'static str, usize, f64, usize)>> {
        let mut kinds: Vec<(&'static str, Vec<&plan::Launch>)> = Vec::new();
        for launch in self.launches() {
            match kinds.iter_mut().find(|(label, _)| *label == launch.label) {
                Some((_, same)) => same.push(launch),
                None => kinds.push((launch.label, vec![launch])),
            }
        }
        let rows = kinds.into_iter().map(|(label, launches)| {
            // Advancing the position over and over would leave the context.
            write(&self.client, &self.buffers.state, &[0u32; words::LEN]);
            let us = graph::time(&self.client, &launches)?;
            Ok((label, launches.len(), us, launches.iter().map(|launch| launch.weight_bytes).sum()))
        });
        let rows = rows.collect();
        self.reset();
        rows
    }

    fn launches(&self) -> impl Iterator<Item = &plan::Launch> {
        self.store.launches().iter().chain(self.choose.launches())
    }

    fn advance(&mut self) -> Result<()> {
        self.store.run()?;
        self.choose.run()?;
        self.position += 1;
        Ok(())
    }

    /// Puts a token and the position where the kernels read them.
    fn feed(&mut self, id: u32) -> Result<()> {
        self.ensure_room(1)?;
        if id as usize >= self.vocab_size {
            return Err(Error::Request(format!(
                "token id {id} is out of range: the model knows 0 to {}",
                self.vocab_size - 1
            )));
        }
        self.write_state(id)
    }

    fn write_state(&mut self, id: u32) -> Result<()> {
        let mut state = [0u32; words::LEN];
        state[words::POSITION] = self.position as u32;
        state[words::TOKEN] = id;
        write(&self.client, &self.buffers.state, &state);
        if let Some(rows) = &self.host_rows {
            let mut row = Vec::with_capacity(self.buffers.row.len());
            rows.read_packed(id, &mut row);
            write(&self.client, &self.buffers.row, &row);
        }
        Ok(())
    }

    fn ensure_room(&self, tokens: usize) -> Result<()> {
        if self.position + tokens > self.context {
            let (position, context) = (self.position, self.context);
            return Err(Error::Request(format!(
                "{tokens} more tokens after {position} do not fit the context of {context}"
            )));
        }
        Ok(())
    }
}

fn write<T: CubeElement>(client: &Client, buffer: &Buffer<T>, values: &[T]) {
    client.write(buffer.handle(), Bytes::from_bytes_vec(T::as_bytes(values).to_vec()));
}

/// Frequencies of the first layer's kind, then those of the other kind.
fn rope_table(config: &GemmaConfig, client: &Client) -> Result<RopeTable> {
    let kinds = || config.layers.iter().map(|layer| (layer.rope, layer.head_dim));
    let first = kinds().next().expect("a model has layers");
    let mut frequencies = first.0.frequencies(first.1);
    let len = frequencies.len();
    if let Some((rope, head_dim)) = kinds().find(|kind| *kind != first) {
        frequencies.extend(rope.frequencies(head_dim));
    }
    Ok(RopeTable::new(Buffer::from_slice(client, &frequencies), len)?)
}
