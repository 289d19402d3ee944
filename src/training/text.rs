//! Token files and what is cut from them: sequences that begin with `<bos>`, with a mask over their padding.

use std::ops::Range;
use std::path::Path;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::{Error, Result};

/// A text as token ids, in chapters that each begin with `<bos>`.
#[derive(Debug, Clone)]
pub struct Text {
    bos: u32,
    tokens: Vec<u32>,
    /// Each chapter without its `<bos>`.
    chapters: Vec<Range<usize>>,
}

/// Sequences of one length: inputs, what comes next, and which of those count.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Tokens per sequence.
    pub len: usize,
    inputs: Vec<i32>,
    targets: Vec<i32>,
    mask: Vec<f32>,
}

impl Batch {
    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.inputs.len() / self.len.max(1)
    }

    /// Targets that count.
    pub fn counted(&self) -> usize {
        self.mask.iter().filter(|m| **m > 0.0).count()
    }

    /// Inputs, targets and mask on a device, each `[B, T]`; the mask is 1 where the target counts and 0 elsewhere.
    pub fn tensors(&self, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>, Tensor<2>) {
        let shape = [self.sequences(), self.len];
        let ids = |ids: &Vec<i32>| Tensor::from_data(TensorData::new(ids.clone(), shape), (device, DType::I32));
        let mask = Tensor::from_data(TensorData::new(self.mask.clone(), shape), (device, DType::F32));
        (ids(&self.inputs), ids(&self.targets), mask)
    }

    /// Adds `<bos>` and `tokens` but the last as inputs, `tokens` as targets, and padding.
    fn push(&mut self, bos: u32, tokens: &[u32]) {
        let padding = self.len - tokens.len();
        let inputs = std::iter::once(bos).chain(tokens.iter().copied()).take(tokens.len());
        self.inputs.extend(inputs.map(|id| id as i32).chain(std::iter::repeat_n(0, padding)));
        self.targets.extend(tokens.iter().map(|&id| id as i32).chain(std::iter::repeat_n(0, padding)));
        self.mask.extend(std::iter::repeat_n(1.0, tokens.len()).chain(std::iter::repeat_n(0.0, padding)));
    }
}

impl Text {
    /// Reads ids stored as little-endian u16.
    ///
    /// # Errors
    /// An unreadable file, one that does not begin with `bos` or holds nothing else, or an id that is not below
    /// `vocab_size`.
    pub fn read(path: impl AsRef<Path>, bos: u32, vocab_size: usize) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let (pairs, rest) = bytes.as_chunks();
        let tokens: Vec<u32> = pairs.iter().map(|pair| u16::from_le_bytes(*pair).into()).collect();
        let unknown = tokens.iter().find(|id| **id as usize >= vocab_size);
        if let Some(id) = unknown {
            return Err(Error::tokens(path, format!("holds the id {id}, but the model has {vocab_size}")));
        }
        let begins = tokens.first() == Some(&bos) && rest.is_empty();
        match Self::new(tokens, bos) {
            text if begins && text.predicted() > 0 => Ok(text),
            _ => Err(Error::tokens(path, format!("no token ids as u16 that begin with <bos> ({bos})"))),
        }
    }

    /// A text whose chapters are what stands between the `bos` in `tokens`. A chapter without a token is left out.
    pub fn new(tokens: Vec<u32>, bos: u32) -> Self {
        let starts = tokens.iter().enumerate().filter(|(_, id)| **id == bos).map(|(at, _)| at + 1);
        let ends = tokens.iter().enumerate().skip(1).filter(|(_, id)| **id == bos).map(|(at, _)| at);
        let chapters = starts.zip(ends.chain([tokens.len()])).map(|(from, to)| from..to).filter(|c| !c.is_empty());
        Self { bos, chapters: chapters.collect(), tokens }
    }

    /// Tokens to be predicted: all but the `<bos>`.
    pub fn predicted(&self) -> usize {
        self.chapters.iter().map(Range::len).sum()
    }

    /// The sequences of one training step: each from a place drawn from all tokens alike, and within one chapter.
    ///
    /// # Panics
    /// When there is no token to predict.
    pub fn batch(&self, seed: u64, step: usize, sequences: usize, len: usize) -> Batch {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        rng.set_stream(step as u64);
        let total = self.predicted() as u64;
        let mut batch = Batch { len, ..Batch::default() };
        for _ in 0..sequences {
            let mut place = (rng.next_u64() % total) as usize;
            let inside = |chapter: &&Range<usize>| {
                let hit = place < chapter.len();
                place -= if hit { 0 } else { chapter.len() };
                hit
            };
            let chapter = self.chapters.iter().find(inside).expect("the place is below the total");
            let start = (chapter.start + place).min(chapter.end.saturating_sub(len).max(chapter.start));
            batch.push(self.bos, &self.tokens[start..chapter.end.min(start + len)]);
        }
        batch
    }

    /// All of the text once: every token is a target exactly once. The last batch is filled up with padding, because a
    /// GPU looks for its fastest kernels anew for each shape.
    pub fn batches(&self, sequences: usize, len: usize) -> Vec<Batch> {
        let pieces: Vec<&[u32]> = self.chapters.iter().flat_map(|c| self.tokens[c.clone()].chunks(len)).collect();
        let batch = |pieces: &[&[u32]]| {
            let mut batch = Batch { len, ..Batch::default() };
            let padding = std::iter::repeat_n(&[][..], sequences - pieces.len());
            pieces.iter().copied().chain(padding).for_each(|piece| batch.push(self.bos, piece));
            batch
        };
        pieces.chunks(sequences).map(batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Text {
        Text::new([&[2][..], &(10..30).collect::<Vec<_>>(), &[2, 40, 41, 2]].concat(), 2)
    }

    #[test]
    fn evaluation_predicts_every_token_once() {
        let text = text();
        let batches = text.batches(3, 8);
        let counted = |b: &Batch| b.targets.iter().zip(&b.mask).filter(|(_, m)| **m > 0.0).map(|(t, _)| *t).collect();
        let targets: Vec<i32> = batches.iter().flat_map::<Vec<i32>, _>(counted).collect();
        assert_eq!(targets, (10..30).chain(40..42).collect::<Vec<_>>());
        assert_eq!(text.predicted(), 22);
        assert_eq!(batches.iter().map(Batch::counted).sum::<usize>(), 22);
        assert_eq!(batches[0].inputs[..9], [2, 10, 11, 12, 13, 14, 15, 16, 2]);
        assert!(batches.iter().all(|b| b.sequences() == 3), "{batches:?}");
    }

    #[test]
    fn training_sequences_stay_in_a_chapter_and_follow_from_seed_and_step() {
        let text = text();
        let batch = text.batch(1, 3, 64, 8);
        assert_eq!(batch, text.batch(1, 3, 64, 8));
        assert_ne!(batch, text.batch(1, 4, 64, 8));
        assert_ne!(batch, text.batch(2, 3, 64, 8));
        for i in (0..64).map(|i| i * 8) {
            assert_eq!(batch.inputs[i], 2);
            let full = batch.mask[i..i + 8].iter().all(|m| *m == 1.0);
            let last = if full { 7 } else { 1 };
            assert_eq!(batch.inputs[i + 1..=i + last], batch.targets[i..i + last]);
            assert_eq!(full, batch.targets[i] < 40, "the short chapter is padded");
            assert_eq!(batch.targets[i + last] - batch.targets[i], last as i32, "tokens follow each other");
        }
    }
}
