//! What is put to the test: anything that turns tokens into activations.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::Array;
use crate::cache::KvCache;
use crate::device::Dtype;
use crate::model::{Gemma, Output, Probe, Tap, ids_tensor};
use crate::{Error, Result};

/// A way to run the model.
pub trait Subject {
    /// Starts a new conversation with `ids` and gives, for all positions, the tensors it can show among `wanted`.
    fn prompt(&mut self, ids: &[u32], wanted: &[String]) -> Result<BTreeMap<String, Array>>;
    /// Feeds one more token; the logits behind it.
    fn step(&mut self, id: u32) -> Result<Vec<f32>>;
}

/// The Burn modules.
pub struct Plain<'a> {
    model: &'a Gemma,
    device: &'a Device,
    cache: KvCache,
}

impl<'a> Plain<'a> {
    /// A model with an empty cache.
    pub fn new(model: &'a Gemma, device: &'a Device) -> Self {
        Self { model, device, cache: KvCache::new(model.config()) }
    }

    /// The same with a cache that keeps keys and values in `format`, as the fused path does.
    pub fn kept_in(model: &'a Gemma, device: &'a Device, format: Dtype) -> Self {
        Self { model, device, cache: KvCache::kept_in(model.config(), format) }
    }
}

/// Keeps the activations that a comparison needs.
struct Keep<'a> {
    wanted: &'a [String],
    kept: BTreeMap<String, Array>,
    failure: Option<Error>,
}

impl Tap for Keep<'_> {
    fn record(&mut self, at: Probe, x: &Tensor<3>) {
        let name = at.to_string();
        if !self.wanted.contains(&name) {
            return;
        }
        match Array::from_tensor(x) {
            Ok(array) => drop(self.kept.insert(name, array)),
            Err(error) => self.failure = Some(error),
        }
    }
}

impl Subject for Plain<'_> {
    fn prompt(&mut self, ids: &[u32], wanted: &[String]) -> Result<BTreeMap<String, Array>> {
        self.cache.reset();
        let mut keep = Keep { wanted, kept: BTreeMap::new(), failure: None };
        self.model.forward_tapped(ids_tensor(ids, self.device), &mut self.cache, Output::All, &mut keep);
        match keep.failure {
            Some(error) => Err(error),
            None => Ok(keep.kept),
        }
    }

    fn step(&mut self, id: u32) -> Result<Vec<f32>> {
        let logits = self.model.forward(ids_tensor(&[id], self.device), &mut self.cache, Output::Last);
        Ok(Array::from_tensor(&logits)?.values)
    }
}
