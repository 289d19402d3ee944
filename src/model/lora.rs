//! Low-rank adapters (LoRA) over a frozen model: new ones to train, and all projections by name.

use burn::module::{LoraAdapter, Module, Param, Reparameterizer};
use burn::tensor::{DType, Distribution, Tensor};

use super::{Gemma, Projection};

/// The projections of attention and feed-forward: what is adapted unless the caller chooses.
pub const LORA_TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Adapters to begin a training with.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use gemma_burn::config::GemmaConfig;
/// use gemma_burn::model::LoraConfig;
///
/// let device = gemma_burn::device("cpu")?;
/// let model = GemmaConfig::preset("tiny")?.init(&device);
/// let model = LoraConfig { targets: vec!["q_proj".into(), "v_proj".into()], ..LoraConfig::new(8) }.init(model);
/// assert!(model.layers[0].self_attn.q_proj.weight.adapter().is_some());
/// assert!(model.layers[0].mlp.down_proj.weight.adapter().is_none());
/// # }
/// # Ok::<(), gemma_burn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Columns of B and rows of A.
    pub rank: usize,
    /// The product of B and A counts `alpha / rank` times.
    pub alpha: f64,
    /// Last segments of the names of the projections to adapt.
    pub targets: Vec<String>,
}

impl LoraConfig {
    /// [`LORA_TARGETS`] with `alpha` twice the rank.
    pub fn new(rank: usize) -> Self {
        Self { rank, alpha: 2.0 * rank as f64, targets: LORA_TARGETS.map(str::to_owned).into() }
    }

    /// The model with new adapters in f32 and everything else frozen. A is uniform within `1 / sqrt(in)` and B zero, so that
    /// the model says what it said before.
    ///
    /// # Panics
    /// When the rank is 0, or the model has adapters already: those are trained further as they are.
    pub fn init(&self, model: Gemma) -> Gemma {
        assert!(self.rank > 0, "an adapter of rank 0 adapts nothing");
        let has_none = model.projections().iter().all(|(_, projection)| projection.weight.adapter().is_none());
        assert!(has_none, "the model has adapters already");
        model.apply_reparameterization(Fresh(self))
    }
}

struct Fresh<'a>(&'a LoraConfig);

impl Reparameterizer for Fresh<'_> {
    type Reparam = LoraAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
        let module = path.strip_suffix(".weight").and_then(|path| path.rsplit('.').next());
        let wanted = D == 2 && module.is_some_and(|module| self.0.targets.iter().any(|target| target == module));
        let adapter = wanted.then(|| {
            let (rank, shape, device) = (self.0.rank, param.lazy_shape(), param.lazy_device());
            let bound = 1.0 / (shape[1] as f64).sqrt();
            let uniform = Distribution::Uniform(-bound, bound);
            LoraAdapter {
                a: Param::from_tensor(Tensor::zeros([shape[0], rank], (&device, DType::F32))),
                b: Param::from_tensor(Tensor::random([rank, shape[1]], uniform, (&device, DType::F32))),
                scale: self.0.alpha / rank as f64,
            }
        });
        (param.set_require_grad(false), adapter)
    }
}

impl Gemma {
    /// Every projection with its name in a checkpoint, below the text model: `layers.0.self_attn.q_proj`, ….
    pub fn projections(&self) -> Vec<(String, &Projection)> {
        let mut all = vec![];
        if let Some(inputs) = &self.per_layer {
            all.push(("per_layer_model_projection".to_owned(), &inputs.per_layer_model_projection));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let (attention, mlp) = (&layer.self_attn, &layer.mlp);
            let mut named = vec![
                ("self_attn.q_proj", Some(&attention.q_proj)),
                ("self_attn.k_proj", attention.k_proj.as_ref()),
                ("self_attn.v_proj", attention.v_proj.as_ref()),
                ("self_attn.o_proj", Some(&attention.o_proj)),
                ("mlp.gate_proj", Some(&mlp.gate_proj)),
                ("mlp.up_proj", Some(&mlp.up_proj)),
                ("mlp.down_proj", Some(&mlp.down_proj)),
            ];
            if let Some(block) = &layer.per_layer {
                named.push(("per_layer_input_gate", Some(&block.per_layer_input_gate)));
                named.push(("per_layer_projection", Some(&block.per_layer_projection)));
            }
            all.extend(named.into_iter().filter_map(|(name, p)| Some((format!("layers.{i}.{name}"), p?))));
        }
        all.extend(self.lm_head.as_ref().map(|head| ("lm_head".to_owned(), head)));
        all
    }
}
