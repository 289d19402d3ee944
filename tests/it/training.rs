//! Training: the loss falls, every parameter learns, an interrupted run is the run it would have been.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};
use gemma_burn::Dtype;
use gemma_burn::config::GemmaConfig;
use gemma_burn::model::Gemma;
use gemma_burn::training::{Schedule, Text, Trainer, TrainingOptions};
use gemma_burn::weights;
use tempfile::TempDir;

use crate::support::{FIXTURES, cpu, fixture, model, uncached};

const BOS: u32 = 2;

/// Chapters of a simple pattern; the second is shorter than a sequence.
fn pattern() -> Text {
    let counting = |from: u32, len: u32| std::iter::once(BOS).chain((0..len).map(move |i| 200 + (from + i) % 7));
    Text::new(counting(0, 90).chain(counting(3, 9)).chain(counting(5, 40)).collect(), BOS)
}

fn options() -> TrainingOptions {
    let schedule = Schedule { peak: 5e-3, warmup: 4, steps: 20, last: 0.1 };
    TrainingOptions { seed: 7, sequences: 3, len: 18, schedule, weight_decay: 0.0, clip: 1.0 }
}

fn fresh(options: TrainingOptions) -> Trainer {
    Trainer::new(&GemmaConfig::from_dir(fixture("tiny-e2b")).expect("the fixture has a config"), options, &cpu())
}

fn steps(trainer: &mut Trainer, count: usize) -> Vec<f32> {
    let text = pattern();
    let mut step = || {
        let rate = trainer.rate(0.0);
        trainer.train_step(&text, rate).into_scalar::<f32>()
    };
    (0..count).map(|_| step()).collect()
}

/// Every parameter's values, by path.
fn values(model: &Gemma) -> BTreeMap<String, Vec<f32>> {
    #[derive(Default)]
    struct Values(Vec<String>, BTreeMap<String, Vec<f32>>);
    impl ModuleVisitor for Values {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().cast(DType::F32).into_data().try_to_vec().expect("f32");
            self.1.insert(self.0.join("."), values);
        }
    }
    let mut values = Values::default();
    model.visit(&mut values);
    values.1
}

#[test]
fn loss_falls_and_every_parameter_learns() {
    let mut trainer = fresh(options());
    let before = values(trainer.model());
    let first = trainer.evaluate(&pattern());
    // Without decay, AdamW moves a parameter just where its gradient is not zero.
    steps(&mut trainer, 1);
    let after = values(trainer.model());
    assert!(before.len() > 100);
    for (path, old) in &before {
        assert!(after[path].iter().all(|x| x.is_finite()), "{path}");
        assert!(old != &after[path], "{path} has no gradient");
    }
    let losses = steps(&mut trainer, 19);
    let last = trainer.evaluate(&pattern());
    assert!(last < first / 2.0, "{first} before, {last} after; {losses:?}");
}

#[test]
fn evaluation_is_the_mean_over_every_token_alone() {
    let trainer = fresh(options());
    let (text, chapters) = (pattern(), [(0, 90), (3, 9), (5, 40)]);
    let (mut total, mut count) = (0.0, 0);
    for (from, len) in chapters {
        let tokens: Vec<u32> = (0..len).map(|i| 200 + (from + i) % 7).collect();
        for piece in tokens.chunks(18) {
            let inputs: Vec<u32> = std::iter::once(BOS).chain(piece.iter().copied()).take(piece.len()).collect();
            for (logits, &target) in uncached(trainer.model(), &inputs).iter().zip(piece) {
                let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
                total += sum.ln() - f64::from(logits[target as usize]);
                count += 1;
            }
        }
    }
    assert_eq!(count, text.predicted());
    let difference = (trainer.evaluate(&text) - total / count as f64).abs();
    assert!(difference < 1e-4, "{difference}");
}

fn saved(trainer: &Trainer, folder: &TempDir, name: &str) -> PathBuf {
    let dir = folder.path().join(name);
    trainer.save(&fixture("tiny-e2b"), &dir).expect("saved");
    dir
}

#[test]
fn resumed_run_equals_the_uninterrupted_one_bit_for_bit() {
    let folder = TempDir::new().expect("a folder");
    let mut whole = fresh(TrainingOptions { weight_decay: 0.1, ..options() });
    steps(&mut whole, 3);
    let stop = saved(&whole, &folder, "stop");
    let going_on = steps(&mut whole, 4);

    let mut resumed = Trainer::resume(&stop, &cpu()).expect("resumed");
    assert_eq!((resumed.steps(), resumed.options()), (3, whole.options()));
    assert_eq!(steps(&mut resumed, 4), going_on);
    let (a, b) = (saved(&whole, &folder, "whole"), saved(&resumed, &folder, "resumed"));
    for file in ["model.safetensors", "optimizer.safetensors", "training.json"] {
        let read = |dir: &Path| std::fs::read(dir.join(file)).expect(file);
        assert!(read(&a) == read(&b), "{file} differs");
    }
}

#[test]
fn damaged_runs_are_not_resumed() {
    let folder = TempDir::new().expect("a folder");
    let dir = saved(&fresh(options()), &folder, "run");
    let refused = |part: &str| {
        let message = Trainer::resume(&dir, &cpu()).map(|_| ()).expect_err("damaged").to_string();
        assert!(message.contains(part), "`{message}` does not say {part}");
    };
    std::fs::write(dir.join("optimizer.safetensors"), b"").expect("written");
    refused("optimizer.safetensors");
    std::fs::write(dir.join("training.json"), b"{}").expect("written");
    refused("not the state of a training run");
    std::fs::remove_file(dir.join("training.json")).expect("removed");
    refused("training.json");
}

#[test]
fn clipping_shortens_the_gradient_of_the_whole_model() {
    let folder = TempDir::new().expect("a folder");
    // After one step the first moments are a tenth of the gradient.
    let gradient = |clip: f64, name: &str| {
        let mut trainer = fresh(TrainingOptions { clip, ..options() });
        let start = saved(&trainer, &folder, "start");
        trainer = Trainer::resume(&start, &cpu()).expect("resumed");
        steps(&mut trainer, 1);
        let file = saved(&trainer, &folder, name).join("optimizer.safetensors");
        let bytes = std::fs::read(file).expect("a file");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let squares =
            tensors.tensors().into_iter().filter(|(name, _)| name.ends_with("moment_1")).flat_map(|(_, t)| {
                let values = t.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")));
                values.map(|x| f64::from(x).powi(2)).collect::<Vec<_>>()
            });
        squares.sum::<f64>().sqrt() * 10.0
    };
    let whole = gradient(1e9, "whole");
    assert!(whole > 0.1, "{whole}");
    let short = gradient(0.01, "short");
    assert!((short / 0.01 - 1.0).abs() < 1e-3, "{short}");
}

#[test]
fn saved_checkpoint_holds_the_tensors_that_were_loaded() {
    for name in FIXTURES {
        let folder = TempDir::new().expect("a folder");
        let original = model(name);
        weights::save(&original, &fixture(name), folder.path(), Dtype::Bf16).expect("saved");
        let options = weights::LoadOptions { dtype: Some(Dtype::F32), ..Default::default() };
        let (again, report) = weights::load(folder.path(), &cpu(), &options).expect("it loads");
        assert!(report.skipped.is_empty(), "{name}: nothing is written that no layer reads");
        assert!(values(&original) == values(&again), "{name}");
        for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
            let read = |dir: &Path| std::fs::read(dir.join(file)).expect(file);
            assert_eq!(read(&fixture(name)), read(folder.path()), "{name}: {file}");
        }
    }
}

#[test]
fn model_with_its_table_on_the_host_is_not_saved() {
    let device = gemma_burn::device("ndarray").expect("tests are built with ndarray");
    let options = weights::LoadOptions { per_layer: weights::PerLayerPlacement::Host, ..Default::default() };
    let (model, _) = weights::load(fixture("tiny-e2b"), &device, &options).expect("it loads");
    let folder = TempDir::new().expect("a folder");
    let message = weights::save(&model, &fixture("tiny-e2b"), folder.path(), Dtype::Bf16).expect_err("refused");
    assert!(message.to_string().contains("per-layer table is on the host"), "{message}");
}

#[test]
fn token_files_that_do_not_fit_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("text.tokens");
    let read = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("written");
        Text::read(&file, BOS, 640).map(|text| text.predicted()).map_err(|error| error.to_string())
    };
    assert_eq!(read(&[2, 0, 200, 0, 201, 0, 2, 0, 1, 2]), Ok(3));
    assert!(read(&[2, 0, 200, 3]).is_err_and(|e| e.contains("text.tokens") && e.contains("968") && e.contains("640")));
    assert!(read(&[200, 0]).is_err_and(|e| e.contains("<bos>")));
    assert!(read(&[2, 0, 200]).is_err_and(|e| e.contains("u16")));
    assert!(read(&[]).is_err_and(|e| e.contains("<bos>")));
    assert!(read(&[2, 0, 2, 0]).is_err_and(|e| e.contains("<bos>")));
}
