//! Loading: every kind of file, every tensor accounted for, nothing accepted that does not fit.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use gemma_burn::Dtype;
use gemma_burn::model::Gemma;
use gemma_burn::weights::{LoadOptions, LoadReport, Place, load};
use safetensors::tensor::{Dtype as FileDtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{cpu, fixture, model, prompt, uncached};

type Tensors = HashMap<String, (FileDtype, Vec<usize>, Vec<u8>)>;

/// The tensors of a fixture, whatever files they are in.
fn tensors(dir: &Path) -> Tensors {
    let files = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    let mut all = Tensors::new();
    for file in files {
        let bytes = fs::read(file).expect("a file");
        for (name, view) in SafeTensors::deserialize(&bytes).expect("safetensors").tensors() {
            all.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
    }
    all
}

/// A folder with a fixture's small files and these tensors in one file.
fn folder(name: &str, tensors: &Tensors) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    fs::copy(fixture(name).join("config.json"), dir.path().join("config.json")).expect("copied");
    write(&dir.path().join("model.safetensors"), tensors);
    dir
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("serialized")).expect("written");
}

fn try_load(dir: &Path) -> gemma_burn::Result<(Gemma, LoadReport)> {
    load(dir, &cpu(), &LoadOptions { dtype: Some(Dtype::F32), ..Default::default() })
}

fn same_logits(a: &Gemma, b: &Gemma) -> bool {
    let tokens = prompt(20, 9);
    uncached(a, &tokens) == uncached(b, &tokens)
}

fn refused(dir: &Path, parts: &[&str]) {
    let message = try_load(dir).map(|_| ()).expect_err("the checkpoint is bad").to_string();
    for part in parts {
        assert!(message.contains(part), "`{message}` does not say {part}");
    }
    assert_eq!(message.lines().count(), 1, "`{message}` is not one line");
}

#[test]
fn every_tensor_is_applied_or_skipped_with_a_reason() {
    let (model, report) = try_load(&fixture("tiny-e2b")).expect("it loads");
    let in_files = tensors(&fixture("tiny-e2b")).len();
    assert_eq!(report.applied.len() + report.skipped.len(), in_files);
    let shared = model.config().layers.iter().filter(|layer| layer.kv.is_shared()).count();
    assert_eq!(report.skipped.len(), 3 * shared, "k_proj, v_proj and k_norm of each sharing layer");
    assert!(report.missing.is_empty() && report.unknown.is_empty());
    assert!(report.bytes_at(Place::Mapped) > report.bytes_at(Place::DeviceWidened), "matrices are the file itself");
}

#[test]
fn prefixes_and_spare_tensors_change_nothing() {
    let plain = model("tiny-e2b");
    let original = tensors(&fixture("tiny-e2b"));
    for prefix in ["model.", "language_model.model."] {
        let mut renamed: Tensors =
            original.iter().map(|(name, t)| (name.replace("model.language_model.", prefix), t.clone())).collect();
        let embed = renamed[&format!("{prefix}embed_tokens.weight")].clone();
        renamed.insert("lm_head.weight".into(), embed);
        renamed.insert("model.vision_tower.patch.weight".into(), (FileDtype::I64, vec![1], vec![0; 8]));
        renamed.insert("model.embed_audio.projection.weight".into(), (FileDtype::F16, vec![1], vec![0; 2]));
        let dir = folder("tiny-e2b", &renamed);
        let (loaded, report) = try_load(dir.path()).expect("it loads");
        assert!(same_logits(&plain, &loaded), "{prefix}");
        let reasons: Vec<_> = report.skipped.iter().map(|(_, reason)| *reason).collect();
        assert!(
            reasons.contains(&"the head is tied to embed_tokens") && reasons.contains(&"not part of the text model")
        );
    }
}

#[test]
fn keys_of_sharing_layers_may_be_absent_or_not_a_number() {
    let plain = model("tiny-e2b");
    let shared = |name: &str| {
        let layer: Option<usize> = name.split("layers.").nth(1).and_then(|rest| rest.split('.').next()?.parse().ok());
        let own = ["k_proj", "v_proj", "k_norm"].iter().any(|part| name.contains(part));
        own && layer.is_some_and(|layer| plain.config().layers[layer].kv.is_shared())
    };
    let mut absent = tensors(&fixture("tiny-e2b"));
    let before = absent.len();
    absent.retain(|name, _| !shared(name));
    assert!(absent.len() < before);
    assert!(same_logits(&plain, &try_load(folder("tiny-e2b", &absent).path()).expect("it loads").0));

    let mut poisoned = tensors(&fixture("tiny-e2b"));
    for (_, (_, _, data)) in poisoned.iter_mut().filter(|(name, _)| shared(name)) {
        data.fill(0xff);
    }
    assert!(same_logits(&plain, &try_load(folder("tiny-e2b", &poisoned).path()).expect("it loads").0));
}

#[test]
fn one_file_and_shards_hold_the_same_model() {
    for name in crate::support::FIXTURES {
        let all = tensors(&fixture(name));
        let single = folder(name, &all);
        let sharded = folder(name, &all);
        fs::remove_file(sharded.path().join("model.safetensors")).expect("removed");
        let mut names: Vec<&String> = all.keys().collect();
        names.sort();
        let mut map = serde_json::Map::new();
        for (i, part) in names.chunks(names.len().div_ceil(3)).enumerate() {
            let file = format!("model-{i}.safetensors");
            let part: Tensors = part.iter().map(|&n| (n.clone(), all[n].clone())).collect();
            map.extend(part.keys().map(|n| (n.clone(), json!(file))));
            write(&sharded.path().join(&file), &part);
        }
        // A file that the index does not name is not read.
        fs::write(sharded.path().join("stale.safetensors"), b"no weights at all").expect("written");
        write_index(sharded.path(), &json!({ "weight_map": map }));
        let (one, many) = (try_load(single.path()), try_load(sharded.path()));
        assert!(same_logits(&one.expect("one file").0, &many.expect("shards").0), "{name}");
    }
}

fn write_index(dir: &Path, index: &Value) -> PathBuf {
    let path = dir.join("model.safetensors.index.json");
    fs::write(&path, index.to_string()).expect("written");
    path
}

#[test]
fn f32_files_load_as_they_are() {
    let widened: Tensors = tensors(&fixture("tiny-e2b"))
        .into_iter()
        .map(|(name, (_, shape, data))| {
            let data = data.chunks(2).flat_map(|pair| [0, 0, pair[0], pair[1]]).collect();
            (name, (FileDtype::F32, shape, data))
        })
        .collect();
    let (loaded, _) = try_load(folder("tiny-e2b", &widened).path()).expect("it loads");
    let tokens = prompt(20, 9);
    let (a, b) = (uncached(&model("tiny-e2b"), &tokens), uncached(&loaded, &tokens));
    let worst = a.iter().zip(&b).map(|(a, b)| crate::support::max_difference(a, b)).fold(0.0, f32::max);
    assert!(worst < 5e-4, "{worst}");
}

#[test]
fn damaged_files_are_refused_in_one_line() {
    let all = tensors(&fixture("tiny-e2b"));
    let weights = |dir: &TempDir| dir.path().join("model.safetensors");
    let dir = folder("tiny-e2b", &all);
    let whole = fs::read(weights(&dir)).expect("a file");

    fs::write(weights(&dir), &whole[..whole.len() / 2]).expect("written");
    refused(dir.path(), &["model.safetensors", "incomplete"]);
    fs::write(weights(&dir), &whole[..5]).expect("written");
    refused(dir.path(), &["model.safetensors", "5 bytes"]);
    fs::write(weights(&dir), b"").expect("written");
    refused(dir.path(), &["model.safetensors", "empty"]);
    let mut long_header = whole.clone();
    long_header[..8].copy_from_slice(&(whole.len() as u64 * 2).to_le_bytes());
    fs::write(weights(&dir), &long_header).expect("written");
    refused(dir.path(), &["model.safetensors", "header"]);
    fs::write(weights(&dir), vec![b'x'; 4096]).expect("written");
    refused(dir.path(), &["model.safetensors"]);
    fs::remove_file(weights(&dir)).expect("removed");
    refused(dir.path(), &["neither model.safetensors nor model.safetensors.index.json"]);
}

#[test]
fn damaged_indexes_are_refused_in_one_line() {
    let dir = folder("tiny-e2b", &tensors(&fixture("tiny-e2b")));
    write_index(dir.path(), &json!({ "weight_map": { "model.norm.weight": "model-9.safetensors" } }));
    refused(dir.path(), &["index.json", "model-9.safetensors", "not in the folder"]);
    write_index(dir.path(), &json!({ "weight_map": { "model.norm.weight": "../model.safetensors" } }));
    refused(dir.path(), &["../model.safetensors"]);
    write_index(dir.path(), &json!({ "weight_map": { "model.no_such.weight": "model.safetensors" } }));
    refused(dir.path(), &["model.no_such.weight", "no such tensor"]);
    write_index(dir.path(), &json!({ "files": [] }));
    refused(dir.path(), &["not a safetensors index"]);
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let all = tensors(&fixture("tiny-e2b"));
    let up = "model.language_model.layers.1.mlp.up_proj.weight";
    let changed = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = all.clone();
        change(&mut tensors);
        folder("tiny-e2b", &tensors)
    };
    refused(changed(&|t| drop(t.remove(up))).path(), &["missing", "layers.1.mlp.up_proj.weight"]);
    refused(
        changed(&|t| drop(t.insert("model.extra.weight".into(), t[up].clone()))).path(),
        &["unknown", "model.extra.weight"],
    );
    refused(changed(&|t| t.get_mut(up).expect("it is there").1.reverse()).path(), &[up, "shape", "expected"]);
    refused(changed(&|t| t.get_mut(up).expect("it is there").0 = FileDtype::F16).path(), &["up_proj", "F16", "BF16"]);
    let twice = changed(&|t| drop(t.insert(up.replace("model.language_model.", "model."), t[up].clone())));
    refused(twice.path(), &[up, "both"]);
}
