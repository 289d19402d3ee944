//! Low-rank adapters (LoRA) over a frozen model: new ones to train, and all projections by name.

use burn::module::{LoraAdapter, Module, Param, Reparameterizer};
use burn::tensor::{DType, Device, Distribution, Tensor};

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
        assert!(!model.has_adapters(), "the model has adapters already");
        model.with_adapters(|path, shape, device| {
            let module = path.strip_suffix(".weight")?.rsplit('.').next()?;
            let &[rows, columns] = shape else { return None };
            self.targets.iter().any(|target| target == module).then(|| {
                let bound = 1.0 / (columns as f64).sqrt();
                let uniform = Distribution::Uniform(-bound, bound);
                LoraAdapter {
                    a: Param::from_tensor(Tensor::zeros([rows, self.rank], (device, DType::F32))),
                    b: Param::from_tensor(Tensor::random([self.rank, columns], uniform, (device, DType::F32))),
                    scale: self.alpha / self.rank as f64,
                }
            })
        })
    }
}

/// Asks for an adapter by the parameter's path, shape and device.
struct Adapt<F>(F);

impl<F: FnMut(&str, &[usize], &Device) -> Option<LoraAdapter>> Reparameterizer for Adapt<F> {
    type Reparam = LoraAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
        let shape: [usize; D] = param.lazy_shape().dims();
        let adapter = (self.0)(path, &shape, &param.lazy_device());
        (param.set_require_grad(false), adapter)
    }
}

impl Gemma {
    /// Everything frozen, and beside each parameter the adapter that `adapter` gives for its path, shape and device.
    pub(crate) fn with_adapters(self, adapter: impl FnMut(&str, &[usize], &Device) -> Option<LoraAdapter>) -> Self {
        self.apply_reparameterization(Adapt(adapter))
    }

    /// Whether any projection has an adapter beside its weights.
    pub fn has_adapters(&self) -> bool {
        self.projections().iter().any(|(_, projection)| projection.weight.adapter().is_some())
    }

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
