//! The modules as ordinary Burn modules: what they give, for whom, and that they can be trained.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use gemma_burn::cache::KvCache;
use gemma_burn::config::GemmaConfig;
use gemma_burn::device;
use gemma_burn::model::{Gemma, Output};
use gemma_burn::training::token_losses;
use gemma_burn::weights::{LoadOptions, PerLayerPlacement, load};

use crate::support::{FIXTURES, cpu, fixture, ids, max_difference, model, prompt, rows, uncached};

#[test]
fn last_logits_equal_those_of_all_tokens() {
    for name in FIXTURES {
        let model = model(name);
        let tokens = prompt(29, 1);
        let all = uncached(&model, &tokens);
        let last = rows(model.forward(ids(&tokens), &mut KvCache::new(model.config()), Output::Last));
        assert_eq!(last.len(), 1);
        assert!(max_difference(&last[0], &all[28]) < 5e-4, "{name}");
    }
}

#[test]
fn sequences_of_a_batch_do_not_see_each_other() {
    let model = model("tiny-e2b");
    let (a, b) = (prompt(19, 2), prompt(19, 3));
    let both: Vec<i32> = a.iter().chain(&b).map(|&id| id as i32).collect();
    let both = Tensor::<2, Int>::from_data(TensorData::new(both, [2, 19]), (&cpu(), DType::I32));
    let logits = model.forward(both, &mut KvCache::new(model.config()), Output::All);
    for (i, tokens) in [a, b].iter().enumerate() {
        let got = rows(logits.clone().narrow(0, i, 1));
        let want = uncached(&model, tokens);
        assert!(got.iter().zip(&want).all(|(got, want)| max_difference(got, want) < 5e-4), "sequence {i}");
    }
}

#[test]
fn hidden_states_and_head_make_the_logits() {
    let model = model("tiny-e2b");
    let tokens = prompt(12, 4);
    let hidden = model.hidden(ids(&tokens), &mut KvCache::new(model.config()));
    assert_eq!(hidden.dims(), [1, 12, model.config().hidden_size]);
    assert_eq!(rows(model.logits(hidden)), uncached(&model, &tokens));
}

#[test]
fn placeholders_are_embedded_as_padding() {
    let model = model("tiny-e2b");
    let pad = model.config().pad_token_id;
    for &placeholder in &model.config().placeholder_ids {
        let with = uncached(&model, &[2, 130, placeholder, 131]);
        assert_eq!(with, uncached(&model, &[2, 130, pad, 131]));
        assert_ne!(with, uncached(&model, &[2, 130, 132, 131]));
    }
    assert_eq!(model.config().placeholder_ids.len(), 3);
}

#[test]
fn table_on_the_host_gives_the_same_logits() {
    let Ok(device) = device("ndarray") else {
        panic!("tests are built with ndarray");
    };
    let at = |per_layer| {
        let (model, _) =
            load(fixture("tiny-e2b"), &device, &LoadOptions { per_layer, ..Default::default() }).expect("it loads");
        let tokens: Vec<i32> = prompt(15, 5).iter().map(|&id| id as i32).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [1, 15]), (&device, DType::I32));
        let host = model.per_layer.as_ref().expect("E2B has per-layer inputs").embed_tokens_per_layer.host().is_some();
        assert_eq!(host, per_layer == PerLayerPlacement::Host);
        rows(model.forward(tokens, &mut KvCache::new(model.config()), Output::All))
    };
    assert_eq!(at(PerLayerPlacement::Host), at(PerLayerPlacement::Device));
}

/// Counts parameters, and those whose gradient is missing, all zero or not finite.
struct Gradients<'a> {
    gradients: &'a burn::tensor::Gradients,
    path: Vec<String>,
    count: usize,
    bad: Vec<String>,
}

impl ModuleVisitor for Gradients<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.count += 1;
        let largest = param.val().grad(self.gradients).map(|gradient| gradient.abs().max().into_scalar::<f32>());
        if largest.is_none_or(|g| !g.is_finite() || g == 0.0) {
            self.bad.push(format!("{}: {largest:?}", self.path.join(".")));
        }
    }
}

#[test]
fn gradients_reach_every_parameter() {
    let device: Device = cpu().autodiff();
    for name in FIXTURES {
        let config = GemmaConfig::from_dir(fixture(name)).expect("the fixture has a config");
        let model: Gemma = config.init(&device);
        let tokens: Vec<i32> = prompt(20, 6).iter().map(|&id| id as i32).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [1, 20]), (&device, DType::I32));
        let next = tokens.clone().narrow(1, 1, 19);
        let logits = model.forward(tokens.narrow(1, 0, 19), &mut KvCache::new(&config), Output::All);
        let gradients = token_losses(logits, next).mean().backward();
        let mut seen = Gradients { gradients: &gradients, path: vec![], count: 0, bad: vec![] };
        model.visit(&mut seen);
        assert!(seen.count > 50, "{name}");
        assert!(seen.bad.is_empty(), "{name}: {:?}", seen.bad);
    }
}
