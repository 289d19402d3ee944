//! Stop strings, found across the borders of tokens.

use crate::{Error, Result};

/// What a piece of text leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Text that is certain not to belong to a stop string.
    pub emit: String,
    /// Whether a stop string is complete: nothing follows.
    pub stopped: bool,
}

/// Watches text that arrives in pieces and ends it before the first stop string.
///
/// The stop string that is complete first wins; of several that end at the same character, the longest. The outcome
/// does not depend on how the text is cut into pieces.
///
/// ```
/// use gemma_burn::engine::stop::StopStrings;
///
/// let mut stop = StopStrings::new(vec!["\nUser:".into()])?;
/// assert_eq!(stop.push("Hello.\nUs").emit, "Hello.");
/// assert!(stop.push("er: and").stopped);
/// # Ok::<(), gemma_burn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// Watches for any of `strings`; an empty one is refused.
    pub fn new(strings: Vec<String>) -> Result<Self> {
        if strings.iter().any(String::is_empty) {
            return Err(Error::Request("--stop is empty, but must be text to stop at".into()));
        }
        let patterns = strings.into_iter().map(Pattern::new).collect();
        Ok(Self { patterns, held: String::new(), stopped: false })
    }

    /// Whether there is nothing to stop at.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Takes the next piece of text. Holds back only an end that may still become a stop string.
    pub fn push(&mut self, text: &str) -> Step {
        if self.stopped {
            return Step { emit: String::new(), stopped: true };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (i, byte) in text.bytes().enumerate() {
            let complete = self.patterns.iter_mut().filter_map(|pattern| pattern.advance(byte)).max();
            if let Some(len) = complete {
                self.stopped = true;
                self.held.truncate(before + i + 1 - len);
                return Step { emit: std::mem::take(&mut self.held), stopped: true };
            }
        }
        let held = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        // A match begins with the first byte of a character, so the cut lies between characters.
        let kept = self.held.split_off(self.held.len() - held);
        Step { emit: std::mem::replace(&mut self.held, kept), stopped: false }
    }

    /// Gives out what was held back, once the text has ended without a stop string.
    pub fn flush(&mut self) -> String {
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
        std::mem::take(&mut self.held)
    }
}

/// One stop string as a Knuth-Morris-Pratt automaton: each byte of the text costs the same, however long the string.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each length, the longest shorter start of the string that the start of that length ends with.
    fallback: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(string: String) -> Self {
        let bytes = string.into_bytes();
        let mut fallback = vec![0, 0];
        for i in 1..bytes.len() {
            fallback.push(extend(&bytes, &fallback, fallback[i], bytes[i]));
        }
        Self { bytes, fallback, matched: 0 }
    }

    /// Takes a byte of the text; the length of the string if it is complete now.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        self.matched = extend(&self.bytes, &self.fallback, self.matched, byte);
        (self.matched == self.bytes.len()).then_some(self.matched)
    }
}

/// How many first bytes of the string the text ends with after `byte`, if it was `matched` before.
fn extend(bytes: &[u8], fallback: &[usize], mut matched: usize, byte: u8) -> usize {
    while bytes[matched] != byte {
        if matched == 0 {
            return 0;
        }
        matched = fallback[matched];
    }
    matched + 1
}
