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

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn stop(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().map(|&string| string.to_owned()).collect()).expect("none is empty")
    }

    /// Everything that comes out of `pieces`, and whether a stop string ended it.
    fn run<'a>(stop: &mut StopStrings, pieces: impl IntoIterator<Item = &'a str>) -> (String, bool) {
        let mut out = String::new();
        let mut stopped = false;
        for piece in pieces {
            let step = stop.push(piece);
            assert!(!stopped || step.emit.is_empty());
            out += &step.emit;
            stopped |= step.stopped;
            assert_eq!(stopped, step.stopped);
        }
        out += &stop.flush();
        (out, stopped)
    }

    /// What the whole text leads to: the stop string that ends first, of several the longest.
    fn search(text: &str, strings: &[String]) -> (String, bool) {
        let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
        let longest = |end: usize| strings.iter().filter(|&s| text[..end].ends_with(s.as_str())).map(String::len).max();
        match ends.filter_map(|end| longest(end).map(|len| end - len)).next() {
            Some(start) => (text[..start].to_owned(), true),
            None => (text.to_owned(), false),
        }
    }

    #[test]
    fn stop_string_across_pieces_is_found_and_not_emitted() {
        assert_eq!(run(&mut stop(&["END"]), ["on", "e E", "N", "D two"]), ("one ".into(), true));
        assert_eq!(run(&mut stop(&["END"]), ["END"]), (String::new(), true));
        assert_eq!(run(&mut stop(&[]), ["a", "b"]), ("ab".into(), false));
    }

    #[test]
    fn only_what_may_become_a_stop_string_is_held_back() {
        let mut stop = stop(&["<end>", "aab"]);
        assert_eq!(stop.push("text <e").emit, "text ");
        assert_eq!(stop.push("x aa").emit, "<ex ");
        assert_eq!(stop.push("a").emit, "a");
        assert_eq!(stop.push("a").emit, "a");
        assert_eq!(stop.push("b"), Step { emit: String::new(), stopped: true });
        assert_eq!(stop.push("more"), Step { emit: String::new(), stopped: true });
    }

    #[test]
    fn held_back_text_comes_out_at_the_end() {
        let mut stop = stop(&["\n\nUser"]);
        assert_eq!(stop.push("bye\n\nUse").emit, "bye");
        assert_eq!(stop.flush(), "\n\nUse");
        assert_eq!(stop.flush(), "");
    }

    #[test]
    fn stop_string_that_is_complete_first_wins() {
        assert_eq!(run(&mut stop(&["abcd", "bc"]), ["xabcd"]), ("xa".into(), true));
        assert_eq!(run(&mut stop(&["c", "abc", "bc"]), ["xabcd"]), ("x".into(), true));
    }

    #[test]
    fn empty_stop_string_is_refused() {
        let error = StopStrings::new(vec!["a".into(), String::new()]).unwrap_err();
        assert!(error.to_string().contains("--stop is empty"));
    }

    proptest! {
        #[test]
        fn any_split_gives_what_a_search_in_the_whole_text_gives(
            pieces in vec("[abé🙂]{0,4}", 0..12), strings in vec("[abé🙂]{1,4}", 0..4),
        ) {
            let mut stop = StopStrings::new(strings.clone()).unwrap();
            let found = run(&mut stop, pieces.iter().map(String::as_str));
            prop_assert_eq!(found, search(&pieces.concat(), &strings));
        }
    }
}
