//! A checkpoint's tensors as ranges of memory-mapped files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::{Dtype as FileDtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::{Error, Result};

pub(super) const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// One mapped file.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) map: Mmap,
}

/// One tensor as it stands in its file.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) shard: Arc<Shard>,
    pub(super) range: Range<usize>,
    pub(super) dtype: FileDtype,
    pub(super) shape: Vec<usize>,
}

impl Entry {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.shard.map[self.range.clone()]
    }
}

/// The tensors of a checkpoint folder, by the names in its files.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) tensors: BTreeMap<String, Entry>,
    /// The file to name when something is missing: the single file or the index.
    pub(super) file: PathBuf,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Maps `model.safetensors`, or what `model.safetensors.index.json` names. Only headers are read.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        if index.is_file() {
            return Self::open_sharded(dir, index);
        }
        if !single.is_file() {
            let reason = format!("there is neither {SINGLE} nor {INDEX}; give a folder with downloaded weights");
            return Err(Error::weights(dir, reason));
        }
        Ok(Self { tensors: map_file(&single)?, file: single })
    }

    /// The index decides what is read: tensors that it does not name stay unread.
    fn open_sharded(dir: &Path, index: PathBuf) -> Result<Self> {
        let json = std::fs::read(&index).map_err(|e| Error::io(&index, e))?;
        let Index { weight_map } = serde_json::from_slice(&json)
            .map_err(|e| Error::weights(&index, format!("not a safetensors index: {e}")))?;
        let mut shards = BTreeMap::new();
        for name in weight_map.values().collect::<BTreeSet<_>>() {
            let path = dir.join(name);
            if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) || !path.is_file() {
                let reason = format!("names the shard {name}, which is not in the folder; download it again");
                return Err(Error::weights(&index, reason));
            }
            shards.insert(name.clone(), map_file(&path)?);
        }
        let mut tensors = BTreeMap::new();
        for (tensor, shard) in weight_map {
            let entry = shards.get_mut(&shard).and_then(|shard| shard.remove(&tensor)).ok_or_else(|| {
                Error::weights(&index, format!("says that {tensor} is in {shard}, but that file has no such tensor"))
            })?;
            tensors.insert(tensor, entry);
        }
        Ok(Self { tensors, file: index })
    }
}

/// The tensors of one file.
pub(super) fn map_file(path: &Path) -> Result<BTreeMap<String, Entry>> {
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let size = file.metadata().map_err(|e| Error::io(path, e))?.len();
    if size == 0 {
        return Err(Error::weights(path, "the file is empty; download it again"));
    }
    // SAFETY: the file is opened for reading; whoever changes it while it is in use breaks every mapped reader.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
    let shard = Arc::new(Shard { path: path.to_owned(), map });
    SafeTensors::deserialize(&shard.map).map_err(|e| Error::weights(path, describe(e, size)))?;
    let (header, metadata) =
        SafeTensors::read_metadata(&shard.map).map_err(|e| Error::weights(path, describe(e, size)))?;
    let start = size_of::<u64>() + header;
    let entries = metadata.tensors().into_iter().map(|(name, info)| {
        let (from, to) = info.data_offsets;
        let entry = Entry {
            shard: shard.clone(),
            range: start + from..start + to,
            dtype: info.dtype,
            shape: info.shape.clone(),
        };
        (name, entry)
    });
    Ok(entries.collect())
}

fn describe(error: SafeTensorError, size: u64) -> String {
    use SafeTensorError::*;
    match error {
        HeaderTooSmall => format!("the file has only {size} bytes; download it again"),
        HeaderTooLarge | InvalidHeaderLength => {
            format!("its header claims to be longer than the file ({size} bytes); it is damaged or no safetensors file")
        }
        MetadataIncompleteBuffer => {
            format!("the file has {size} bytes, not as many as its header says; the download is incomplete")
        }
        other => format!("not a safetensors file: {other}"),
    }
}
