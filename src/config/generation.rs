//! generation_config.json: where to stop and how to sample unless the caller says otherwise.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// `<eos>`, `<turn|>` and `<|tool_response>`: where Gemma 4 ends its turn, for checkpoints that do not say.
const BUILT_IN_END_IDS: [u32; 3] = [1, 106, 50];

/// The part of generation_config.json that this engine honours. The names are HF's, and so are the values of absent
/// keys (`GenerationConfig._get_default_generation_params` of transformers 5.17).
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationConfig {
    /// Whether tokens are drawn; otherwise the most probable one is taken.
    pub do_sample: bool,
    /// Divides the logits.
    pub temperature: f32,
    /// How many of the most probable tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// The probability that the kept tokens reach together.
    pub top_p: f32,
    /// The least probability of a kept token, relative to the most probable one.
    pub min_p: f32,
    /// Makes tokens that have occurred less likely.
    pub repetition_penalty: f32,
    /// Tokens that end generation: one id or a list in the file, empty if it names none.
    pub eos_token_id: Vec<u32>,
    /// Tokens that must never be generated.
    pub suppress_tokens: Vec<u32>,
    /// The token that begins every sequence.
    pub bos_token_id: Option<u32>,
    /// The token that fills up shorter sequences.
    pub pad_token_id: Option<u32>,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            do_sample: false,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            eos_token_id: Vec::new(),
            suppress_tokens: Vec::new(),
            bos_token_id: None,
            pad_token_id: None,
        }
    }
}

impl GenerationConfig {
    /// Reads `dir/generation_config.json`. Without that file everything has its default; a damaged file or an
    /// impossible value is an error.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let file = dir.join("generation_config.json");
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(Error::io(&file, e)),
        };
        let values = serde_json::from_slice::<Map<String, Value>>(&text).map_err(|e| Error::io(&file, damaged(&e)))?;
        Keys { file: &file, values }.read()
    }
}

/// The ids that end generation: those of generation_config.json, else `config_eos` of config.json, else Gemma 4's own.
pub fn end_ids(generation: &GenerationConfig, config_eos: &[u32]) -> Vec<u32> {
    let sources = [generation.eos_token_id.as_slice(), config_eos, &BUILT_IN_END_IDS];
    sources.into_iter().find(|ids| !ids.is_empty()).unwrap_or_default().to_vec()
}

struct Keys<'a> {
    file: &'a Path,
    values: Map<String, Value>,
}

impl Keys<'_> {
    fn read(&self) -> Result<GenerationConfig> {
        let default = GenerationConfig::default();
        Ok(GenerationConfig {
            do_sample: self.get("do_sample", "true or false", Value::as_bool)?.unwrap_or(default.do_sample),
            temperature: self
                .number("temperature", "a number from 0", |x| (0.0..=f32::MAX).contains(&x))?
                .unwrap_or(default.temperature),
            top_k: self.get("top_k", "a whole number from 0", whole)?.unwrap_or(default.top_k),
            top_p: self.number("top_p", "a number from 0 to 1", probability)?.unwrap_or(default.top_p),
            min_p: self.number("min_p", "a number from 0 to 1", probability)?.unwrap_or(default.min_p),
            repetition_penalty: self
                .number("repetition_penalty", "a number from 0.01 to 100", |x| (0.01..=100.0).contains(&x))?
                .unwrap_or(default.repetition_penalty),
            eos_token_id: self.get("eos_token_id", "a token id or a list of them", ids)?.unwrap_or_default(),
            suppress_tokens: self.get("suppress_tokens", "a list of token ids", ids)?.unwrap_or_default(),
            bos_token_id: self.get("bos_token_id", "a token id", id)?,
            pad_token_id: self.get("pad_token_id", "a token id", id)?,
        })
    }

    /// The value of `key`; `None` where it is absent or null.
    fn get<T>(&self, key: &str, expected: &str, parse: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.values.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| Error::config(self.file, key, value, expected))
    }

    fn number(&self, key: &str, expected: &str, allowed: impl Fn(f32) -> bool) -> Result<Option<f32>> {
        self.get(key, expected, |value| value.as_f64().map(|x| x as f32).filter(|&x| allowed(x)))
    }
}

fn damaged(e: &serde_json::Error) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, format!("not a JSON object ({e}): fetch the file again, or remove it"))
}

fn probability(x: f32) -> bool {
    (0.0..=1.0).contains(&x)
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| n.try_into().ok())
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| n.try_into().ok())
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    match value {
        Value::Array(items) => items.iter().map(id).collect(),
        single => id(single).map(|id| vec![id]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::Sampling;

    fn from_text(text: &str) -> Result<GenerationConfig> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join("generation_config.json"), text).expect("a file in it");
        GenerationConfig::from_dir(dir.path())
    }

    #[test]
    fn values_of_the_file_are_taken() {
        let config = from_text(
            r#"{"do_sample": true, "temperature": 0.5, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 106, 50],
                "bos_token_id": 2, "pad_token_id": 0, "suppress_tokens": [258883, 258882], "transformers_version": "5"}"#,
        );
        let expected = GenerationConfig {
            do_sample: true,
            temperature: 0.5,
            top_k: 64,
            top_p: 0.95,
            eos_token_id: vec![1, 106, 50],
            suppress_tokens: vec![258_883, 258_882],
            bos_token_id: Some(2),
            pad_token_id: Some(0),
            ..GenerationConfig::default()
        };
        let config = config.unwrap();
        assert_eq!(config, expected);
        let sampling = Sampling { temperature: 0.5, top_k: 64, top_p: 0.95, ..Sampling::greedy() };
        assert_eq!(config.sampling(), sampling);
    }

    #[test]
    fn absent_file_and_absent_or_null_keys_give_the_defaults() {
        let absent = GenerationConfig::from_dir(Path::new("no/such/folder")).unwrap();
        assert_eq!(absent, GenerationConfig::default());
        assert_eq!(from_text(r#"{"top_k": null, "eos_token_id": null}"#).unwrap(), absent);
        assert_eq!(absent.sampling(), Sampling::greedy());
        let drawing = from_text(r#"{"do_sample": true}"#).unwrap().sampling();
        assert_eq!((drawing.temperature, drawing.top_k, drawing.top_p), (1.0, 50, 1.0));
    }

    #[test]
    fn settings_for_drawing_do_not_matter_without_do_sample() {
        let config =
            from_text(r#"{"do_sample": false, "temperature": 0.7, "top_k": 5, "repetition_penalty": 1.2}"#).unwrap();
        assert_eq!(config.sampling(), Sampling { repeat_penalty: 1.2, ..Sampling::greedy() });
    }

    #[test]
    fn end_ids_come_from_the_first_source_that_has_any() {
        let from = |text: &str| from_text(text).unwrap();
        assert_eq!(end_ids(&from(r#"{"eos_token_id": [1, 106]}"#), &[7]), [1, 106]);
        assert_eq!(end_ids(&from(r#"{"eos_token_id": 1}"#), &[7]), [1]);
        assert_eq!(end_ids(&from("{}"), &[1, 106]), [1, 106]);
        assert_eq!(end_ids(&from(r#"{"eos_token_id": []}"#), &[]), [1, 106, 50]);
    }

    #[test]
    fn damaged_file_and_impossible_values_give_one_line_that_says_where() {
        let bad = [
            ("", "not a JSON object"),
            ("[1]", "not a JSON object"),
            (r#"{"do_sample": tr"#, "not a JSON object"),
            (r#"{"do_sample": 1}"#, "`do_sample` is 1"),
            (r#"{"temperature": -1}"#, "`temperature` is -1"),
            (r#"{"temperature": 1e300}"#, "`temperature` is 1e+300"),
            (r#"{"top_k": 2.5}"#, "`top_k` is 2.5"),
            (r#"{"top_p": 1.1}"#, "`top_p` is 1.1"),
            (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` is 0"),
            (r#"{"eos_token_id": "<eos>"}"#, r#"`eos_token_id` is "<eos>""#),
            (r#"{"suppress_tokens": [1, -2]}"#, "`suppress_tokens` is [1,-2]"),
        ];
        for (text, expected) in bad {
            let message = from_text(text).unwrap_err().to_string();
            let says_where = message.contains("generation_config.json") && message.contains(expected);
            assert!(says_where && !message.contains('\n'), "{text}: {message}");
        }
    }
}
