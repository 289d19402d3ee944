//! LoRA adapters: what PEFT computes with them, what training does to them, and what does not fit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::module::{LoraAdapter, Module};
use burn::tensor::{DType, Tensor};
use gemma_burn::model::{Gemma, LoraConfig};
use gemma_burn::weights::{LoadOptions, LoadReport, LoraOptions, Place, load, save, save_lora};
use gemma_burn::{Dtype, Result};
use safetensors::tensor::{SafeTensors, TensorView, serialize_to_file};
use tempfile::TempDir;

use crate::cli::{good, refused};
use crate::finetune::{Training, finetune, loss, sequences};
use crate::support::{cpu, fixture, max_difference, model, prompt, uncached};

const ADAPTERS: [&str; 2] = ["all", "pattern"];

fn adapter(name: &str) -> std::path::PathBuf {
    fixture("lora").join(name)
}

fn load_lora(dir: &Path, keep: bool) -> Result<(Gemma, LoadReport)> {
    let lora = Some(LoraOptions { dir, keep });
    load(fixture("tiny-e2b"), &cpu(), &LoadOptions { dtype: Some(Dtype::F32), lora, ..Default::default() })
}

/// A tensor of a safetensors file, as f32 or i32 bits.
fn words(file: &Path, name: &str) -> Vec<[u8; 4]> {
    let bytes = fs::read(file).expect("the file");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    tensors.tensor(name).expect("the tensor").data().as_chunks().0.to_vec()
}

/// The ids of the reference and, by position, the logits that PEFT gives for them.
fn reference(name: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let file = fixture("lora").join("reference.safetensors");
    let ids: Vec<u32> = words(&file, "ids").into_iter().map(u32::from_le_bytes).collect();
    let logits: Vec<f32> = words(&file, &format!("{name}.logits")).into_iter().map(f32::from_le_bytes).collect();
    let rows = logits.chunks(logits.len() / ids.len()).map(<[f32]>::to_vec).collect();
    (ids, rows)
}

fn worst(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| max_difference(a, b)).fold(0.0, f32::max)
}

#[test]
fn kept_adapters_give_the_logits_of_peft() {
    for name in ADAPTERS {
        let (ids, want) = reference(name);
        let (kept, report) = load_lora(&adapter(name), true).expect("it fits");
        assert!(worst(&uncached(&kept, &ids), &want) < 1e-3, "{name}: {}", worst(&uncached(&kept, &ids), &want));
        assert!(worst(&uncached(&model("tiny-e2b"), &ids), &want) > 1.0, "{name}: the adapter does something");
        let lora = report.lora.expect("there is an adapter");
        assert!(lora.kept && lora.skipped.is_empty());
        let on: Vec<String> =
            kept.projections().into_iter().filter(|(_, p)| p.weight.adapter().is_some()).map(|(n, _)| n).collect();
        assert_eq!(on.len(), lora.applied.len(), "{name}");
        let (rank, scale, count) = if name == "all" { (2, 0.5, 43) } else { (3, 1.0 / 3f64.sqrt(), 15) };
        assert_eq!((lora.rank, lora.scale, lora.applied.len()), (rank, scale, count), "{name}");
    }
}

/// The adapted matrices in f32, by the way through Burn's own composition of a parameter and its adapter.
fn composed(kept: &Gemma) -> BTreeMap<String, Tensor<2>> {
    let adapted = kept.projections().into_iter().filter(|(_, p)| p.weight.adapter().is_some());
    adapted.map(|(name, p)| (name, p.weight.val())).collect()
}

fn values(matrix: Tensor<2>) -> Vec<f32> {
    matrix.cast(DType::F32).into_data().try_to_vec().expect("f32")
}

#[test]
fn merged_weights_are_the_sum_rounded_once() {
    for name in ADAPTERS {
        let (kept, _) = load_lora(&adapter(name), true).expect("it fits");
        let (merged, report) = load_lora(&adapter(name), false).expect("it fits");
        let composed = composed(&kept);
        let mut rounded = 0;
        for (name, projection) in merged.projections() {
            let weight = projection.weight.val();
            assert_eq!(weight.dtype(), DType::BF16, "{name}");
            assert!(projection.weight.adapter().is_none());
            let Some(sum) = composed.get(&name) else { continue };
            for (got, want) in values(weight).into_iter().zip(values(sum.clone())) {
                // Half an ulp of bf16, and a little for sums that lie between two values.
                assert!((got - want).abs() <= want.abs() / 256.0 * 1.01 + 1e-6, "{name}: {got} {want}");
                rounded += usize::from(got == half::bf16::from_f32(want).to_f32());
            }
        }
        let all: usize = composed.values().map(|sum| sum.shape().num_elements()).sum();
        assert!(rounded * 1000 > all * 999, "{name}: {rounded} of {all} are the nearest bf16");
        let copied: Vec<_> = report.applied.iter().filter(|a| a.place == Place::Device && a.shape.len() == 2).collect();
        assert_eq!(copied.len(), composed.len(), "{name}: only adapted matrices are copied");
        assert!(copied.iter().all(|a| composed.contains_key(a.name.strip_suffix(".weight").expect("a weight"))));
    }
}

/// A copy of a checkpoint with its weights widened to f32.
fn widened(name: &str) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    for file in ["config.json", "tokenizer.json", "generation_config.json"] {
        fs::copy(fixture(name).join(file), dir.path().join(file)).expect("copied");
    }
    let bytes = fs::read(fixture(name).join("model.safetensors")).expect("weights");
    let tensors: Vec<_> = SafeTensors::deserialize(&bytes).expect("safetensors").tensors();
    let wide: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, t)| {
            let halves = t.data().as_chunks().0.iter();
            let bytes = halves.flat_map(|h| half::bf16::from_le_bytes(*h).to_f32().to_le_bytes()).collect();
            (name, t.shape().to_vec(), bytes)
        })
        .collect();
    write_tensors(&dir.path().join("model.safetensors"), &wide);
    dir
}

fn write_tensors(file: &Path, tensors: &[(String, Vec<usize>, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).expect("a tensor"))
    });
    serialize_to_file(views, None, file).expect("written");
}

#[test]
fn merged_equals_kept_where_nothing_is_rounded() {
    let base = widened("tiny-e2b");
    for name in ADAPTERS {
        let (ids, want) = reference(name);
        let lora = Some(LoraOptions { dir: &adapter(name), keep: false });
        let options = LoadOptions { dtype: Some(Dtype::F32), lora, ..Default::default() };
        let merged = load(base.path(), &cpu(), &options).expect("it fits").0;
        assert!(worst(&uncached(&merged, &ids), &want) < 1e-3, "{name}");
    }
}

#[test]
fn merged_weights_are_the_same_on_every_device() {
    let device = gemma_burn::device("ndarray").expect("tests are built with ndarray");
    let lora = Some(LoraOptions { dir: &adapter("all"), keep: false });
    let (wide, report) =
        load(fixture("tiny-e2b"), &device, &LoadOptions { lora, ..Default::default() }).expect("it fits");
    assert!(
        report.applied.iter().any(|a| a.place == Place::DeviceWidened && a.shape.len() == 2),
        "ndarray has no bf16"
    );
    let (merged, _) = load_lora(&adapter("all"), false).expect("it fits");
    for ((name, a), (_, b)) in wide.projections().into_iter().zip(merged.projections()) {
        assert_eq!(values(a.weight.val()), values(b.weight.val()), "{name}");
    }
}

fn adapters(model: &Gemma) -> Vec<(String, &LoraAdapter)> {
    model.projections().into_iter().filter_map(|(name, p)| Some((name, p.weight.adapter()?))).collect()
}

#[test]
fn a_new_adapter_changes_nothing_and_its_gradients_come_in_order() {
    let device = cpu();
    device.seed(3);
    let tokens = prompt(24, 7);
    for name in ["tiny-e2b", "tiny-31b"] {
        let base = model(name);
        let before = uncached(&base, &tokens);
        let fresh = LoraConfig::new(4).init(base);
        assert_eq!(worst(&uncached(&fresh, &tokens), &before), 0.0, "B is zero");

        let train = |model: Gemma, steps| {
            let training = Training { steps, accumulate: 1, learning_rate: 1e-2 };
            finetune(model, &device, std::slice::from_ref(&tokens), &training, |_, _| ()).expect("finite")
        };
        for (steps, a_moves) in [(0, false), (2, true)] {
            let model = train(fresh.clone(), steps).train();
            let gradients = loss(&model, &tokens, &device.clone().autodiff()).backward();
            let largest = |t: Tensor<2>| t.grad(&gradients).map(|g| g.abs().max().into_scalar::<f32>());
            let all = adapters(&model);
            assert_eq!(all.len(), if name == "tiny-e2b" { 43 } else { 47 }, "{name}");
            for (projection, adapter) in all {
                let (b, a) = (largest(adapter.a.val()), largest(adapter.b.val()));
                assert!(b.is_some_and(|g| g.is_finite() && g > 0.0), "{name} {projection}: B {b:?}");
                assert!(a.is_some_and(|g| g.is_finite() && (g > 0.0) == a_moves), "{name} {projection}: A {a:?}");
            }
            let frozen = model.projections().into_iter().all(|(_, p)| p.weight.base().grad(&gradients).is_none());
            assert!(frozen && model.embed_tokens.weight.val().grad(&gradients).is_none());
            assert!(model.norm.weight.val().grad(&gradients).is_none());
        }
    }
}

#[test]
fn training_lowers_the_loss_and_leaves_the_base_alone() {
    let device = cpu();
    device.seed(1);
    let text: Vec<u32> = prompt(80, 11)[1..].to_vec();
    let pieces = sequences(&text, 2, 20);
    assert_eq!((pieces.len(), pieces[0].len(), pieces[3].len()), (4, 21, 20));
    let start = LoraConfig::new(8).init(model("tiny-e2b"));
    let mut losses = vec![];
    let training = Training { steps: 8, accumulate: 4, learning_rate: 5e-3 };
    let trained = finetune(start, &device, &pieces, &training, |_, loss| losses.push(loss)).expect("finite");
    assert_eq!(losses.len(), 8);
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
    assert!(losses[7] < losses[0] - 1.0, "{losses:?}");
    for ((name, base), (_, now)) in model("tiny-e2b").projections().into_iter().zip(trained.projections()) {
        assert_eq!(base.weight.val().into_data(), now.weight.base().into_data(), "{name}");
    }

    let dir = TempDir::new().expect("a folder");
    let error = save(&trained, &fixture("tiny-e2b"), dir.path(), Dtype::F32).expect_err("not a plain model");
    assert!(error.to_string().contains("save_lora"), "{error}");
    save_lora(&trained, &fixture("tiny-e2b"), dir.path()).expect("saved");
    let tokens = prompt(16, 12);
    let (again, report) = load_lora(dir.path(), true).expect("it fits");
    assert_eq!(report.lora.expect("an adapter").scale, 2.0);
    assert_eq!(uncached(&again, &tokens), uncached(&trained, &tokens));
}

#[test]
fn a_loaded_adapter_is_trained_further() {
    let device = cpu();
    let (kept, _) = load_lora(&adapter("all"), true).expect("it fits");
    let mut losses = vec![];
    let training = Training { steps: 4, accumulate: 1, learning_rate: 2e-3 };
    let tokens = prompt(30, 21);
    let trained = finetune(kept.clone(), &device, &[tokens], &training, |_, loss| losses.push(loss)).expect("finite");
    assert!(losses[3] < losses[0], "{losses:?}");
    for ((name, before), (_, after)) in kept.projections().into_iter().zip(trained.projections()) {
        let (before, after) = (&before.weight, &after.weight);
        assert_eq!(before.base().into_data(), after.base().into_data(), "{name}");
        let Some(start) = before.adapter() else { continue };
        let end = after.adapter().expect("it is still there");
        assert_ne!(start.a.val().into_data(), end.a.val().into_data(), "{name}");
        assert_ne!(start.b.val().into_data(), end.b.val().into_data(), "{name}");
    }
}

#[test]
fn a_mean_of_sequences_is_the_sum_of_their_parts() {
    let device = cpu();
    device.seed(2);
    let pieces = sequences(&prompt(41, 5)[1..], 2, 20);
    let start = LoraConfig { targets: vec!["down_proj".into()], ..LoraConfig::new(2) }.init(model("tiny-e2b"));
    let mut seen = vec![];
    let training = Training { steps: 1, accumulate: 2, learning_rate: 0.0 };
    finetune(start.clone(), &device, &pieces, &training, |_, loss| seen.push(loss)).expect("finite");
    let each = pieces.iter().map(|piece| loss(&start, piece, &device).into_scalar::<f32>());
    assert!((seen[0] - each.sum::<f32>() / 2.0).abs() < 1e-4);
}

/// A copy of the fixture's adapter `all` to be spoilt.
struct Spoilt {
    dir: TempDir,
    tensors: Vec<(String, Vec<usize>, Vec<u8>)>,
}

impl Spoilt {
    fn new() -> Self {
        let dir = TempDir::new().expect("a folder");
        fs::copy(adapter("all").join("adapter_config.json"), dir.path().join("adapter_config.json")).expect("copied");
        let bytes = fs::read(adapter("all").join("adapter_model.safetensors")).expect("the adapter");
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors").tensors();
        let mut tensors: Vec<_> =
            tensors.into_iter().map(|(n, t)| (n, t.shape().to_vec(), t.data().to_vec())).collect();
        tensors.sort();
        Self { dir, tensors }
    }

    fn load(&self) -> Result<(Gemma, LoadReport)> {
        write_tensors(&self.dir.path().join("adapter_model.safetensors"), &self.tensors);
        load_lora(self.dir.path(), false)
    }

    fn refused(&self, parts: &[&str]) {
        let message = self.load().map(|_| ()).expect_err("it does not fit").to_string();
        parts.iter().for_each(|part| assert!(message.contains(part), "`{message}` does not say {part}"));
    }

    /// Replaces a setting and expects it to be refused by its name.
    fn refused_setting(key: &str, value: &str) {
        let spoilt = Self::new();
        let file = spoilt.dir.path().join("adapter_config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
        config[key] = serde_json::from_str(value).expect("a value");
        fs::write(&file, config.to_string()).expect("written");
        spoilt.refused(&["adapter_config.json", &format!("`{key}`"), value]);
    }
}

#[test]
fn settings_that_change_the_meaning_are_refused() {
    for (key, value) in [
        ("peft_type", "\"IA3\""),
        ("r", "0"),
        ("lora_alpha", "\"many\""),
        ("bias", "\"all\""),
        ("use_dora", "true"),
        ("modules_to_save", "[\"lm_head\"]"),
        ("rank_pattern", "{\"q_proj\":4}"),
        ("alpha_pattern", "{\"q_proj\":4}"),
        ("init_lora_weights", "\"pissa\""),
        ("target_modules", "[]"),
        ("something_new", "3"),
    ] {
        Spoilt::refused_setting(key, value);
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    const Q: &str = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight";
    let at =
        |spoilt: &Spoilt, key: &str| spoilt.tensors.iter().position(|(name, ..)| name == key).expect("it is there");

    let mut wrong = Spoilt::new();
    let i = at(&wrong, Q);
    wrong.tensors[i].1 = vec![4, 48];
    wrong.refused(&["adapter_model.safetensors", Q, "[4, 48]", "[2, 96]"]);

    let mut half = Spoilt::new();
    half.tensors.remove(i);
    half.refused(&["adapter_model.safetensors", Q, "missing"]);

    let renamed = |from: &str, to: &str, parts: &[&str]| {
        let mut spoilt = Spoilt::new();
        spoilt.tensors.iter_mut().for_each(|(name, ..)| *name = name.replace(from, to));
        spoilt.refused(&[&[to], parts].concat());
    };
    renamed("layers.0.", "layers.70.", &["fits no projection", "layers.70.mlp.down_proj.lora_A"]);
    renamed("base_model.model.model.", "base_model.", &["unknown tensor base_model.", "base_model.model."]);
    renamed("q_proj", "r_proj", &["target_modules", "lora_A"]);
    let mut more = Spoilt::new();
    more.tensors.push((Q.replace("lora_A.weight", "lora_magnitude_vector"), vec![1], vec![0; 4]));
    more.refused(&["unknown tensor", "lora_magnitude_vector"]);

    let empty = Spoilt { tensors: vec![], ..Spoilt::new() };
    empty.refused(&["adapter_model.safetensors", "nothing would be adapted"]);
    let none = TempDir::new().expect("a folder");
    let message = load_lora(none.path(), false).map(|_| ()).expect_err("no adapter").to_string();
    assert!(message.contains("adapter_config.json"), "{message}");
}

#[test]
fn text_only_names_load_and_shared_keys_and_values_are_skipped() {
    let (ids, _) = reference("all");
    let want = uncached(&load_lora(&adapter("all"), false).expect("it fits").0, &ids);
    let mut other = Spoilt::new();
    other.tensors.iter_mut().for_each(|(name, ..)| *name = name.replace("model.language_model.", "model."));
    for factor in ["lora_A", "lora_B"] {
        let key = format!("base_model.model.model.layers.5.self_attn.k_proj.{factor}.weight");
        other.tensors.push((key, vec![2, 2], vec![0; 16]));
    }
    let (model, report) = other.load().expect("it fits");
    assert_eq!(uncached(&model, &ids), want);
    let skipped = report.lora.expect("an adapter").skipped;
    assert_eq!(skipped.len(), 2);
    assert!(skipped.iter().all(|(name, reason)| name.contains("layers.5") && reason.contains("another layer")));
}

#[test]
fn commands_take_adapters() {
    let (model, lora) = (fixture("tiny-e2b").display().to_string(), adapter("all").display().to_string());
    let base =
        ["generate", "--model", &model, "--device", "cpu", "-p", "Hello, world!", "-n", "12", "--temperature", "0"];
    let plain = good(&base);
    let merged = good(&[&base[..], &["--lora", &lora]].concat());
    let kept = good(&[&base[..], &["--lora", &lora, "--lora-keep"]].concat());
    assert!(plain != merged && plain != kept);
    refused(&[&base[..], &["--lora", "no/such"]].concat(), &["no/such"]);
    refused(&[&base[..], &["--lora-keep"]].concat(), &["--lora"]);
    let path = ["--lora", &lora, "--lora-keep", "--path", "fused"];
    refused(&[&base[..], &path].concat(), &["fused", "--lora-keep", "--path plain"]);
}
