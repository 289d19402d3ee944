//! Agreement with the reference dumps, and what deliberate mistakes do to it.

use std::collections::BTreeMap;

use burn::tensor::{DType, Tensor, TensorData, activation::gelu};
use gemma_burn::config::{GemmaConfig, KvSource};
use gemma_burn::model::Gemma;
use gemma_burn::parity::{Array, Plain, Reference, Report, Subject, Tolerance, run};
use gemma_burn::weights::{LoadOptions, load_with};
use gemma_burn::{Dtype, Result};

use crate::support::{FIXTURES, cpu, fixture, model};

fn reference(name: &str) -> Reference {
    Reference::open(&fixture(name).join("reference")).expect("the fixture has a dump")
}

fn compare(name: &str, model: &Gemma) -> Report {
    run(&mut Plain::new(model, &cpu()), &reference(name), &Tolerance::F32).expect("the dump fits the model")
}

#[test]
fn f32_is_within_every_tolerance() {
    for name in FIXTURES {
        let report = compare(name, &model(name));
        assert!(report.pass, "{name}: {:?} {:?}", report.first_divergent, report.summary);
        assert_eq!(report.not_shown, 0, "{name}: the plain path shows every tensor of a dump");
        assert_eq!(report.summary.greedy_equal, report.summary.greedy_total);
        assert!(report.prompts.iter().all(|p| p.greedy_total >= 24), "{name}: at least 24 greedy tokens per prompt");
    }
}

#[test]
fn bf16_is_within_its_own_tolerances() {
    for name in FIXTURES {
        let model = model(name).with_dtype(Dtype::Bf16.float());
        let report =
            run(&mut Plain::new(&model, &cpu()), &reference(name), &Tolerance::BF16).expect("the dump fits the model");
        assert!(report.pass, "{name}: {:?} {:?}", report.first_divergent, report.summary);
        let strict = run(&mut Plain::new(&model, &cpu()), &reference(name), &Tolerance::F32).expect("it runs");
        assert!(!strict.pass, "{name}: bf16 is not f32");
    }
}

/// A fixture's model whose configuration was falsified before its weights were loaded.
fn mistaken(name: &str, falsify: impl FnOnce(&mut GemmaConfig)) -> Gemma {
    let mut config = GemmaConfig::from_dir(fixture(name)).expect("the fixture has a config");
    falsify(&mut config);
    let options = LoadOptions { dtype: Some(Dtype::F32), ..Default::default() };
    load_with(&config, &fixture(name), &cpu(), &options).expect("shapes are as they were").0
}

fn assert_caught(what: &str, model: &Gemma) {
    let report = compare("tiny-e2b", model);
    assert!(!report.pass, "{what} went unnoticed: {:?}", report.summary);
    assert!(report.first_divergent.is_some(), "{what}: no tensor was named");
}

#[test]
fn falsified_settings_are_caught() {
    let sliding = |config: &mut GemmaConfig, change: fn(usize) -> usize| {
        config.layers.iter_mut().for_each(|layer| layer.window = layer.window.map(change));
    };
    assert_caught("a window one too wide", &mistaken("tiny-e2b", |c| sliding(c, |w| w + 1)));
    assert_caught("a window one too narrow", &mistaken("tiny-e2b", |c| sliding(c, |w| w - 1)));
    assert_caught("eps 1e-5", &mistaken("tiny-e2b", |c| c.rms_norm_eps = 1e-5));
    assert_caught("no soft-cap", &mistaken("tiny-e2b", |c| c.softcap = None));
    assert_caught(
        "every pair turning",
        &mistaken("tiny-e2b", |c| {
            c.layers.iter_mut().for_each(|layer| layer.rope.turning = layer.head_dim / 2);
        }),
    );
    assert_caught(
        "the wrong donor layer",
        &mistaken("tiny-e2b", |c| {
            let wrong = c.layers.iter().position(|layer| layer.window.is_some()).expect("there are sliding layers");
            let shared = c.layers.iter_mut().filter(|layer| layer.window.is_some() && layer.kv.is_shared());
            shared.for_each(|layer| layer.kv = KvSource::Shared(wrong));
        }),
    );
}

#[test]
fn per_layer_inputs_without_their_scale_are_caught() {
    let mut model = model("tiny-e2b");
    let inputs = model.per_layer.as_mut().expect("E2B has per-layer inputs");
    let grow = |t: Tensor<1>| t * std::f32::consts::SQRT_2;
    inputs.per_layer_projection_norm.weight = inputs.per_layer_projection_norm.weight.clone().map(grow);
    let table = inputs.embed_tokens_per_layer.weight.take().expect("the table is a parameter on the CPU");
    let table = table.map(|t| t.cast(DType::F32) * std::f32::consts::SQRT_2);
    inputs.embed_tokens_per_layer.weight = Some(table);
    let report = compare("tiny-e2b", &model);
    assert!(!report.pass);
    assert!(report.first_divergent.is_some_and(|name| name.ends_with(".ple")), "only the tensor itself shows this");
}

/// Shows the first layer's feed-forward as it would be with another activation.
struct OtherActivation<'a> {
    plain: Plain<'a>,
    model: &'a Gemma,
    activation: fn(Tensor<3>) -> Tensor<3>,
}

impl Subject for OtherActivation<'_> {
    fn prompt(&mut self, ids: &[u32], wanted: &[String]) -> Result<BTreeMap<String, Array>> {
        let mut shown = self.plain.prompt(ids, wanted)?;
        if let (Some(embeds), Some(attention), true) =
            (shown.get("embeds"), shown.get("attn.0"), shown.contains_key("mlp.0"))
        {
            let tensor = |a: &Array| {
                let shape = [1, a.values.len() / a.width, a.width];
                Tensor::<3>::from_data(TensorData::new(a.values.clone(), shape), (&cpu(), DType::F32))
            };
            let layer = &self.model.layers[0];
            let x = tensor(embeds) + layer.post_attention_layernorm.forward(tensor(attention));
            let h = layer.pre_feedforward_layernorm.forward(x);
            let gate = (self.activation)(layer.mlp.gate_proj.forward(h.clone()));
            let out = layer.mlp.down_proj.forward(gate * layer.mlp.up_proj.forward(h));
            shown.insert("mlp.0".to_owned(), Array::from_tensor(&out)?);
        }
        Ok(shown)
    }

    fn step(&mut self, id: u32) -> Result<Vec<f32>> {
        self.plain.step(id)
    }
}

#[test]
fn the_exact_gelu_is_caught() {
    let model = model("tiny-e2b");
    let compare_with = |activation: fn(Tensor<3>) -> Tensor<3>| {
        let device = cpu();
        let mut subject = OtherActivation { plain: Plain::new(&model, &device), model: &model, activation };
        run(&mut subject, &reference("tiny-e2b"), &Tolerance::F32).expect("it runs")
    };
    let right = compare_with(gemma_burn::model::gelu_tanh);
    assert!(right.pass, "the same route with the right activation agrees: {:?}", right.first_divergent);
    let wrong = compare_with(gelu);
    assert!(wrong.first_divergent.is_some_and(|name| name.ends_with("mlp.0")));
}

#[test]
fn a_dump_of_another_model_is_refused() {
    let model = model("tiny-e2b");
    let other = reference("tiny-31b");
    let error = run(&mut Plain::new(&model, &cpu()), &other, &Tolerance::F32);
    let shapes_differ = error.as_ref().is_err_and(|e| e.to_string().contains("another model"));
    assert!(shapes_differ || error.is_ok_and(|report| !report.pass));
}
