//! Stored measurements (xtask/tables/*.json) and markdown tables.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::shell::root;

/// A row that a newer one of the same key replaces.
pub trait Keyed {
    fn key(&self) -> Vec<String>;
}

fn file(name: &str) -> PathBuf {
    root().join("xtask/tables").join(name)
}

/// The stored rows, none if there is no such file yet.
pub fn read<T: DeserializeOwned>(name: &str) -> Result<Vec<T>> {
    match std::fs::read_to_string(file(name)) {
        Ok(text) => serde_json::from_str(&text).with_context(|| file(name).display().to_string()),
        Err(_) => Ok(vec![]),
    }
}

/// Stores rows, each in place of the one with its key.
pub fn store<T: Keyed + Serialize + DeserializeOwned>(name: &str, new: Vec<T>) -> Result<()> {
    let rows = merge(read(name)?, new);
    std::fs::create_dir_all(root().join("xtask/tables"))?;
    let text = serde_json::to_string_pretty(&rows)? + "\n";
    std::fs::write(file(name), text).with_context(|| file(name).display().to_string())
}

fn merge<T: Keyed>(mut rows: Vec<T>, new: Vec<T>) -> Vec<T> {
    for row in new {
        match rows.iter_mut().find(|old| old.key() == row.key()) {
            Some(old) => *old = row,
            None => rows.push(row),
        }
    }
    rows
}

/// A markdown table.
pub fn markdown<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let line = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let head = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(N));
    head + &rows.iter().map(|row| line(row)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::{Keyed, markdown, merge};

    impl Keyed for (&str, u32) {
        fn key(&self) -> Vec<String> {
            vec![self.0.into()]
        }
    }

    #[test]
    fn merge_replaces_rows_of_the_same_key_in_place() {
        assert_eq!(merge(vec![("a", 1), ("b", 2)], vec![("c", 3), ("a", 4)]), [("a", 4), ("b", 2), ("c", 3)]);
    }

    #[test]
    fn markdown_has_head_rule_and_rows() {
        let table = markdown(["x", "y"], &[["1".into(), "a|b".into()]]);
        assert_eq!(table, "| x | y |\n| --- | --- |\n| 1 | a\\|b |\n");
    }
}
