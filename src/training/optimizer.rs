//! AdamW for a whole model, with the gradient's norm clipped over all parameters together.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use burn_optim::{AdamW, AdamWConfig, AdamWState, DynOptimizer, DynState, Optimizer, StateSink, StateSource};

use crate::model::Gemma;

/// Decays of the running averages: a short memory of the squares, as language models are trained.
const BETAS: (f32, f32) = (0.9, 0.95);
const EPSILON: f32 = 1e-8;
/// Ends of the names in the stored state.
const MOMENTS: [&str; 2] = ["momentum.moment_1", "momentum.moment_2"];

/// Burn's AdamW for every parameter of a model. Matrices decay, norm weights and scalars do not.
pub(super) struct ClippedAdamW {
    matrices: AdamW,
    vectors: AdamW,
    /// Longest gradient of the whole model that is taken as it is; longer ones are shortened to this.
    clip: f64,
    /// By the parameter's path.
    states: BTreeMap<String, DynState>,
}

impl ClippedAdamW {
    /// An optimizer that has seen nothing.
    pub(super) fn new(weight_decay: f64, clip: f64) -> Self {
        let config = AdamWConfig::new().with_beta_1(BETAS.0).with_beta_2(BETAS.1).with_epsilon(EPSILON);
        Self {
            matrices: config.clone().with_weight_decay(weight_decay as f32).build(),
            vectors: config.with_weight_decay(0.0).build(),
            clip,
            states: BTreeMap::new(),
        }
    }

    /// One step from a model on an autodiff device and its gradients to a model on the plain device.
    pub(super) fn step(&mut self, rate: f64, model: Gemma, mut gradients: Gradients) -> Gemma {
        let norm = gradient_norm(&model, &gradients);
        let scale = norm.clamp_min(self.clip).recip() * self.clip;
        model.map(&mut Update { optimizer: self, rate, scale, gradients: &mut gradients, path: vec![] })
    }

    /// The moments by name, to be stored.
    pub(super) fn state(&self) -> BTreeMap<String, TensorData> {
        let mut sink = StateSink::default();
        for (path, state) in &self.states {
            self.matrices.state_flatten(path, state, &mut sink);
        }
        sink.tensors.into_iter().collect()
    }

    /// Takes up the moments after `steps` steps; `None` where one of a pair is missing.
    pub(super) fn with_state(
        mut self,
        tensors: BTreeMap<String, TensorData>,
        steps: usize,
        device: &Device,
    ) -> Option<Self> {
        let ranks: BTreeMap<String, usize> = tensors
            .iter()
            .filter_map(|(name, data)| Some((name.strip_suffix(MOMENTS[0])?.trim_end_matches('.').into(), data.rank())))
            .collect();
        let times = ranks.keys().map(|path| (format!("{path}.momentum.time"), steps.into())).collect();
        let mut source = StateSource::new(times);
        tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
        for (path, rank) in ranks {
            let state = self.matrices.state_unflatten(rank, &path, &mut source, device)?;
            self.states.insert(path, state);
        }
        Some(self)
    }
}

/// The Euclidean length of all gradients together, `[1]` on the plain device.
fn gradient_norm(model: &Gemma, gradients: &Gradients) -> Tensor<1> {
    struct Squares<'a>(&'a Gradients, Vec<Tensor<1>>);
    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.extend(param.val().grad(self.0).map(|gradient| gradient.square().sum()));
        }
    }
    let mut squares = Squares(gradients, vec![]);
    model.visit(&mut squares);
    Tensor::cat(squares.1, 0).sum().sqrt()
}

struct Update<'a> {
    optimizer: &'a mut ClippedAdamW,
    rate: f64,
    scale: Tensor<1>,
    gradients: &'a mut Gradients,
    path: Vec<String>,
}

impl ModuleMapper for Update<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let tensor = param.into_value();
        let gradient = tensor.grad_remove(self.gradients);
        let tensor = tensor.inner();
        let Some(gradient) = gradient else { return Param::initialized(id, tensor) };
        let gradient = gradient * self.scale.clone().unsqueeze();
        let path = self.path.join(".");
        let state = self.optimizer.states.remove(&path).map(|state| state.downcast::<AdamWState<D>>());
        let adamw = if D == 1 { &self.optimizer.vectors } else { &self.optimizer.matrices };
        let (tensor, state) = adamw.step(self.rate, tensor, gradient, state);
        self.optimizer.states.extend(state.map(|state| (path, DynState::create(state, D))));
        Param::initialized(id, tensor)
    }
}
