//! A small model that is part of this library: 3.8 million parameters, trained by `examples/train_tiny`.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

macro_rules! embedded {
    ($($name:literal),*) => { [$(($name, include_bytes!(concat!("../demo/", $name)))),*] };
}

/// The files of its checkpoint folder.
const FILES: [(&str, &[u8]); 6] = embedded!(
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors"
);

/// The demo's checkpoint folder, as [`weights::load`](crate::weights::load) and
/// [`Engine::load`](crate::Engine::load) take it. The first call unpacks it (8 MB) into the user's cache folder.
///
/// # Errors
/// When nothing can be written there.
///
/// ```
/// use gemma_burn::config::GemmaConfig;
///
/// let config = GemmaConfig::from_dir(gemma_burn::demo::dir()?)?;
/// assert!(config.layers.iter().any(|layer| layer.kv.is_shared()));
/// # Ok::<(), gemma_burn::Error>(())
/// ```
pub fn dir() -> Result<PathBuf> {
    unpack(&dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("gemma-burn"))
}

/// The files below `cache`, in a folder that bears their hash and appears complete or not at all.
fn unpack(cache: &Path) -> Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    FILES.iter().for_each(|(_, bytes)| hash.write(bytes));
    let dir = cache.join(format!("demo-{:016x}", hash.finish()));
    if dir.is_dir() {
        return Ok(dir);
    }
    let fresh = cache.join(format!("demo-unpacking-{}", std::process::id()));
    std::fs::create_dir_all(&fresh).map_err(|e| Error::io(&fresh, e))?;
    for (name, bytes) in FILES {
        let file = fresh.join(name);
        std::fs::write(&file, bytes).map_err(|e| Error::io(&file, e))?;
    }
    match std::fs::rename(&fresh, &dir) {
        // Another process was faster: what it unpacked is the same.
        Err(_) if dir.is_dir() => std::fs::remove_dir_all(&fresh).map_err(|e| Error::io(&fresh, e))?,
        renamed => renamed.map_err(|e| Error::io(&dir, e))?,
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_files_are_the_embedded_ones_and_unpacked_once() {
        let cache = tempfile::TempDir::new().expect("a folder");
        let dir = unpack(cache.path()).expect("unpacked");
        for (name, bytes) in FILES {
            assert_eq!(std::fs::read(dir.join(name)).expect(name), bytes, "{name}");
        }
        let config = dir.join("config.json");
        let written = std::fs::metadata(&config).and_then(|m| m.modified()).expect("a time");
        assert_eq!(unpack(cache.path()).expect("found"), dir);
        assert_eq!(std::fs::metadata(&config).and_then(|m| m.modified()).expect("a time"), written);
        assert_eq!(std::fs::read_dir(cache.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn unpacking_where_nothing_can_be_written_names_the_place() {
        let cache = tempfile::TempDir::new().expect("a folder");
        let file = cache.path().join("file");
        std::fs::write(&file, "").expect("written");
        let message = unpack(&file).expect_err("a file is no folder").to_string();
        assert!(message.contains("file"), "{message}");
    }
}
