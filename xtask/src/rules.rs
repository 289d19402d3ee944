//! Rules of the source that no compiler checks: who may know whom, how long a file is, what never gets in.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell::root;

/// The stages by rank: each may name only itself and stages of a lower rank.
const RANKS: [&[&str]; 9] = [
    &["error", "device"],
    &["config"],
    &["cache", "ops"],
    &["model"],
    &["fused"],
    &["weights", "tokenizer", "sampler"],
    &["engine", "parity", "training"],
    &["bench", "perplexity"],
    &["cli", "server"],
];

/// Folders, words that their files must not contain, and why.
const WORDS: [(&[&str], &str, &str); 4] = [
    (&["src/model/", "src/cache/", "src/ops/", "src/fused/"], "safetensors", "files are read in weights/"),
    (&["cube_kernels/"], "gemma", "kernels know shapes and types, never the model"),
    (&["src/cli/", "src/server/"], "Tensor", "front ends see events, never a tensor"),
    (
        &[
            "src/cache/",
            "src/cli/",
            "src/config/",
            "src/engine/",
            "src/model/",
            "src/parity/",
            "src/sampler/",
            "src/server/",
            "src/tokenizer/",
            "src/weights/",
        ],
        "cube_kernels",
        "kernels are called from fused/ and ops/ only",
    ),
];

/// The workspace's own variable, which the kernels' tests read too, is no mention of the model.
pub const REQUIRE_DEVICE: &str = "GEMMA_REQUIRE_DEVICE";

const LINES: usize = 400;
/// Files that may be longer, and why.
const LONG: [(&str, &str); 0] = [];

/// Unfinished or silenced code.
const UNFINISHED: [&str; 4] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!("), concat!("#[", "ignore")];

/// Checks every source file of the workspace.
pub fn run() -> Result<()> {
    let mut broken = Vec::new();
    for folder in ["src", "cube_kernels", "tests", "examples", "xtask"] {
        walk(&root().join(folder), &mut |path| {
            let name = path.strip_prefix(root())?.to_string_lossy().replace('\\', "/");
            let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
            broken.extend(check(&name, &text).into_iter().map(|why| format!("{name}: {why}")));
            Ok(())
        })?;
    }
    if !broken.is_empty() {
        bail!("{} broken rules\n{}", broken.len(), broken.join("\n"));
    }
    Ok(())
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, visit)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml" || e == "md") {
            visit(&path)?;
        }
    }
    Ok(())
}

/// What is wrong with one file; `name` is its path in the workspace.
fn check(name: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (folders, word, why) in WORDS {
        if folders.iter().any(|folder| name.starts_with(folder)) && has_word(&text.replace(REQUIRE_DEVICE, ""), word) {
            broken.push(format!("says `{word}`: {why}"));
        }
    }
    if !name.ends_with(".rs") {
        return broken;
    }
    let lines = text.lines().count();
    if lines > LINES && LONG.iter().all(|(long, _)| name != *long) {
        broken.push(format!("{lines} lines, {LINES} are allowed"));
    }
    broken.extend(UNFINISHED.iter().filter(|word| text.contains(**word)).map(|word| format!("contains `{word}`")));
    if name.starts_with("tests/") && name.matches('/').count() == 1 {
        broken.push("a second integration-test binary; add a module to tests/it instead".into());
    }
    broken.extend(layering(name, text));
    broken
}

/// Stages that a file of `src/STAGE/` names although they stand above it or beside it.
fn layering(name: &str, text: &str) -> Vec<String> {
    let rank = |stage: &str| RANKS.iter().position(|stages| stages.contains(&stage));
    let stage = name.strip_prefix("src/").map_or("", |rest| rest.split(['/', '.']).next().unwrap_or_default());
    let Some(own) = rank(stage) else { return vec![] };
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut broken: Vec<String> = named_modules(&code.join("\n"))
        .into_iter()
        .filter(|other| *other != stage && rank(other).is_some_and(|rank| rank >= own))
        .map(|other| format!("names `{other}`, which stands above or beside `{stage}`"))
        .collect();
    broken.sort();
    broken.dedup();
    broken
}

/// The first segments after `crate::` and `gemma_burn::`, also within braces.
fn named_modules(code: &str) -> Vec<&str> {
    let mut named = Vec::new();
    for root in ["crate::", "gemma_burn::"] {
        for (at, _) in code.match_indices(root) {
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                None => named.push(identifier(rest)),
                Some(list) => named.extend(first_segments(list)),
            }
        }
    }
    named
}

/// Of `a::b, c::{d, e}}…` the `a` and `c`.
fn first_segments(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.push(identifier(list[start..at].trim_start()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

fn identifier(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Whether a text contains a word: capitalised words as they are, others in any case and inside longer words.
fn has_word(text: &str, word: &str) -> bool {
    if word.starts_with(char::is_uppercase) {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word)
    } else {
        text.to_lowercase().contains(word)
    }
}

#[cfg(test)]
mod tests;
