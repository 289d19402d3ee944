//! What other programs build on: hidden states, embeddings, rules of their own.

use burn::module::Module;
use burn::tensor::DType;
use gemma_burn::cache::KvCache;
use gemma_burn::engine::EngineOptions;
use gemma_burn::sampler::{Choose, Sampling, filters};
use gemma_burn::{Dtype, Engine, Request, Result};

use crate::classifier::{Classifier, train_step};
use crate::mirostat::{Mirostat, surprises};
use crate::support::{cpu, fixture, ids, model, prompt, rows};

fn engine() -> Engine {
    let options = EngineOptions { dtype: Some(Dtype::F32), ..Default::default() };
    Engine::load_with(fixture("tiny-e2b"), &cpu(), &options).expect("the fixture loads")
}

fn generated(engine: &Engine, request: Request, rule: impl Choose) -> Result<Vec<u32>> {
    engine.session().generate_with(request, rule)?.map(|event| Ok(event?.id())).collect()
}

#[test]
fn embeddings_are_scaled_rows_of_the_table() {
    let model = model("tiny-e2b");
    let tokens = prompt(6, 1);
    let embeds = rows(model.embed(ids(&tokens)));
    let table: Vec<f32> = model.embed_tokens.weight.val().cast(DType::F32).into_data().try_to_vec().expect("f32");
    let width = model.config().hidden_size;
    for (id, row) in tokens.iter().zip(&embeds) {
        let want: Vec<f32> = table[*id as usize * width..][..width].iter().map(|x| x * (width as f32).sqrt()).collect();
        assert_eq!(row, &want);
    }
}

#[test]
fn an_application_trains_a_head_on_a_frozen_model() {
    let device = cpu();
    device.seed(1);
    let examples = [(prompt(9, 1), 0), (prompt(14, 2), 1), (prompt(5, 3), 0)];
    let start = Classifier::new(model("tiny-e2b"), 2, &device);
    let head = |c: &Classifier| c.head.weight.val().into_data();
    let hidden = |c: &Classifier| c.gemma.hidden(ids(&examples[0].0), &mut KvCache::new(c.gemma.config())).into_data();
    let (before, states) = (head(&start), hidden(&start));
    let mut losses = vec![];
    let mut classifier = start;
    for _ in 0..3 {
        let loss;
        (classifier, loss) = train_step(classifier, &examples, 1e-3, &device);
        losses.push(loss);
    }
    losses.push(classifier.loss(&examples, &device).into_scalar::<f32>());
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
    assert_ne!(head(&classifier), before);
    assert_eq!(hidden(&classifier), states, "Gemma is as it was");
    let params = classifier.head.num_params();
    assert_eq!(params, 2 * classifier.gemma.config().hidden_size + 2);
}

/// Always the best token, by a rule.
struct Best;

impl Choose for Best {
    fn choose(&mut self, logits: &[f32], _: &[u32]) -> Result<u32> {
        Ok(filters::argmax(logits).expect("there are logits"))
    }
}

/// A token that no model has.
struct Beyond;

impl Choose for Beyond {
    fn choose(&mut self, logits: &[f32], _: &[u32]) -> Result<u32> {
        Ok(logits.len() as u32)
    }
}

#[test]
fn a_rule_takes_the_place_of_the_sampler() {
    let engine = engine();
    let request = |sampling| Request { max_tokens: Some(12), sampling: Some(sampling), ..Request::from("Hello") };
    let hot = Sampling { temperature: 3.0, seed: Some(1), ..Sampling::greedy() };
    let by_rule = generated(&engine, request(hot.clone()), Best).expect("generated");
    let mut session = engine.session();
    let greedy = session.generate(request(Sampling::greedy())).expect("good").map(|e| e.expect("an event").id());
    assert_eq!(by_rule, greedy.collect::<Vec<_>>());
    let error = generated(&engine, request(hot), Beyond).expect_err("no such token").to_string();
    assert!(error.contains("640"), "{error}");
}

#[test]
fn mirostat_keeps_the_surprise_near_its_target() {
    let engine = engine();
    let mean = |target: f32| {
        let mut seen = vec![];
        let mut rule = Mirostat::new(target, 0.2, 7).expect("good settings");
        let watched = |logits: &[f32], id: u32| surprises(logits)[id as usize];
        struct Watch<'a>(&'a mut Mirostat, &'a mut Vec<f32>, fn(&[f32], u32) -> f32);
        impl Choose for Watch<'_> {
            fn choose(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
                let before = self.0.limit();
                let id = self.0.choose(logits, history)?;
                let surprise = (self.2)(logits, id);
                assert!(surprise <= before || filters::argmax(logits) == Some(id));
                self.1.push(surprise);
                Ok(id)
            }
        }
        let request = Request { max_tokens: Some(150), ..Request::from("Hello") };
        generated(&engine, request, Watch(&mut rule, &mut seen, watched)).expect("generated");
        seen.iter().sum::<f32>() / seen.len() as f32
    };
    let (low, high) = (mean(2.0), mean(3.0));
    assert!((low - 2.0).abs() < 0.25 && (high - 3.0).abs() < 0.25, "{low} {high}");
}
