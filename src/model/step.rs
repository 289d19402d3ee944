//! What all layers of one forward pass share, made once per step.

use burn::tensor::{Device, FloatDType, Tensor};

use super::mask::causal_mask;
use super::rope::Rope;
use super::tap::Tap;
use crate::cache::KvView;
use crate::config::{GemmaConfig, LayerSpec, RopeSpec};

/// Facts of one forward pass over `len` new tokens: rotary tables, masks, and the keys and values that later layers share.
pub struct Step<'a> {
    pub(super) tap: &'a mut dyn Tap,
    dtype: FloatDType,
    device: Device,
    /// Position of the first query.
    position: usize,
    /// Queries: all new tokens, or only the last one.
    queries: usize,
    ropes: Vec<(RopeSpec, usize, Rope)>,
    masks: Vec<(Option<usize>, usize, Option<Tensor<2>>)>,
    views: Vec<Option<KvView>>,
}

impl<'a> Step<'a> {
    pub(super) fn new(
        config: &GemmaConfig,
        position: usize,
        queries: usize,
        dtype: FloatDType,
        device: Device,
        tap: &'a mut dyn Tap,
    ) -> Self {
        let views = vec![None; config.slots().count()];
        Self { tap, dtype, device, position, queries, ropes: vec![], masks: vec![], views }
    }

    /// From here on only the last of the new tokens asks; keys and values of all of them stay in view.
    pub(super) fn keep_last(&mut self) {
        self.position += self.queries - 1;
        self.queries = 1;
        self.ropes.clear();
        self.masks.clear();
    }

    /// The rotary tables of a layer's kind at this step's positions.
    pub(super) fn rope(&mut self, spec: &LayerSpec) -> Rope {
        let found = self.ropes.iter().find(|(rope, dim, _)| *rope == spec.rope && *dim == spec.head_dim);
        if let Some((_, _, rope)) = found {
            return rope.clone();
        }
        let rope = Rope::new(&spec.rope, spec.head_dim, self.position, self.queries, self.dtype, &self.device);
        self.ropes.push((spec.rope, spec.head_dim, rope.clone()));
        rope
    }

    /// The additive mask `[T, S]` of a layer over `keys` keys that end with the step's last token.
    pub(super) fn mask(&mut self, window: Option<usize>, keys: usize) -> Option<Tensor<2>> {
        if let Some((_, _, mask)) = self.masks.iter().find(|(w, k, _)| *w == window && *k == keys) {
            return mask.clone();
        }
        let mask = causal_mask(self.position, self.queries, keys, window, self.dtype, &self.device);
        self.masks.push((window, keys, mask.clone()));
        mask
    }

    /// Keeps what an owning layer attends to for the layers that share it.
    pub(super) fn share(&mut self, slot: usize, view: KvView) {
        self.views[slot] = Some(view);
    }

    /// What the layer attends to: its slot's view, cut to the window where only one query is left to ask.
    pub(super) fn view(&self, spec: &LayerSpec) -> KvView {
        let view = self.views[spec.kv.slot()].as_ref().expect("owning layers come before those that share");
        match spec.window {
            Some(window) if self.queries == 1 && view.len() > window => view.last(window),
            _ => view.clone(),
        }
    }
}
