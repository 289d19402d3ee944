//! The fused step as a subject: it shows logits, one token at a time.

use std::collections::BTreeMap;

use super::{Array, Subject};
use crate::Result;
use crate::fused::FusedStep;

impl Subject for FusedStep {
    fn prompt(&mut self, ids: &[u32], wanted: &[String]) -> Result<BTreeMap<String, Array>> {
        self.reset();
        let mut logits = Array { width: 1, values: vec![] };
        for &id in ids {
            let row = Subject::step(self, id)?;
            logits.width = row.len();
            logits.values.extend(row);
        }
        let name = "logits".to_owned();
        Ok(if wanted.contains(&name) { BTreeMap::from([(name, logits)]) } else { BTreeMap::new() })
    }

    fn step(&mut self, id: u32) -> Result<Vec<f32>> {
        FusedStep::step(self, id)?;
        self.read_logits_blocking()
    }
}
