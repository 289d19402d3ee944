//! Configurations without a checkpoint, for measurements on random weights.

use std::path::Path;

use super::GemmaConfig;
use crate::{Error, Result};

const PRESETS: [(&str, &str); 2] = [("e2b", include_str!("e2b.json")), ("tiny", include_str!("tiny.json"))];

impl GemmaConfig {
    /// The configuration of a known shape: `e2b` (the real one) or `tiny` (E2B's structure at toy size).
    ///
    /// # Errors
    /// A name that is not known.
    pub fn preset(name: &str) -> Result<Self> {
        let Some((_, json)) = PRESETS.iter().find(|(known, _)| *known == name) else {
            let known = PRESETS.map(|(known, _)| known).join(", ");
            return Err(Error::Request(format!("there is no preset `{name}`; known are {known}")));
        };
        Self::from_json(json, Path::new(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2b_has_its_weights() {
        let config = GemmaConfig::preset("e2b").expect("a preset");
        let per_token = 2 * config.matrix_elements_per_token();
        assert!((4.4e9..4.7e9).contains(&(per_token as f64)), "{per_token} bytes per token");
    }

    #[test]
    fn unknown_presets_are_named() {
        assert!(GemmaConfig::preset("e3b").is_err_and(|e| e.to_string().contains("e2b, tiny")));
    }
}
