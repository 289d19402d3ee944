//! Ids against Python's `tokenizers` and against a plain merge loop, streams against one-shot decoding, bad files.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use gemma_burn::Error;
use gemma_burn::tokenizer::SpecialTokens::{AsText, Parse};
use gemma_burn::tokenizer::{DecodeStream, Tokenizer};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{FIXTURES, fixture};

const VOCAB: usize = 640;

fn tokenizer() -> Tokenizer {
    Tokenizer::from_dir(&fixture("tiny-e2b"), VOCAB).expect("the fixture's tokenizer loads")
}

fn json_of_fixture() -> Value {
    let text = std::fs::read(fixture("tiny-e2b").join("tokenizer.json")).expect("the fixture is there");
    serde_json::from_slice(&text).expect("the fixture is JSON")
}

/// The fixture's tokenizer after a change to its file.
fn changed(change: impl FnOnce(&mut Value)) -> gemma_burn::Result<Tokenizer> {
    let mut json = json_of_fixture();
    change(&mut json);
    from_text(json.to_string().as_bytes())
}

fn from_text(text: &[u8]) -> gemma_burn::Result<Tokenizer> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("tokenizer.json"), text).expect("a file in it");
    Tokenizer::from_dir(dir.path(), VOCAB)
}

fn message(result: gemma_burn::Result<Tokenizer>) -> String {
    let message = result.expect_err("the file is bad").to_string();
    assert!(
        message.contains("tokenizer.json") && !message.contains('\n'),
        "{message:?} is one line and names the file"
    );
    message
}

/// Byte pair encoding as the textbook has it: merge the best pair, the leftmost of equals, until there is none.
struct PlainBpe {
    vocab: HashMap<String, u32>,
    ranks: HashMap<(String, String), usize>,
    added: Vec<(String, u32)>,
}

impl PlainBpe {
    fn new() -> Self {
        let json = json_of_fixture();
        let merges = Vec::<(String, String)>::deserialize(&json["model"]["merges"]).expect("merges are pairs");
        let added = json["added_tokens"].as_array().expect("a list");
        let added =
            added.iter().map(|token| (token["content"].as_str().unwrap().into(), token["id"].as_u64().unwrap() as u32));
        Self {
            vocab: HashMap::deserialize(&json["model"]["vocab"]).expect("tokens with ids"),
            ranks: merges.into_iter().enumerate().map(|(rank, pair)| (pair, rank)).collect(),
            added: added.collect(),
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let mut parts: Vec<String> = Vec::new();
        for c in text.replace(' ', "▁").chars().map(String::from) {
            if self.vocab.contains_key(&c) {
                parts.push(c);
            } else {
                parts.extend(c.bytes().map(|byte| format!("<0x{byte:02X}>")));
            }
        }
        loop {
            let rank = |i: usize| self.ranks.get(&(parts[i].clone(), parts[i + 1].clone())).map(|&rank| (rank, i));
            let Some((_, i)) = (0..parts.len().saturating_sub(1)).filter_map(rank).min() else { break };
            let right = parts.remove(i + 1);
            parts[i] += &right;
        }
        parts.iter().map(|part| self.vocab[part]).collect()
    }

    fn encode_parsed(&self, text: &str) -> Vec<u32> {
        let first = self.added.iter().filter_map(|(token, id)| text.find(token.as_str()).map(|at| (at, token, *id)));
        let Some((at, token, id)) = first.min_by_key(|&(at, token, _)| (at, usize::MAX - token.len())) else {
            return self.encode(text);
        };
        [self.encode(&text[..at]), vec![id], self.encode_parsed(&text[at + token.len()..])].concat()
    }
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_with_bos: Vec<u32>,
    ids_as_text: Vec<u32>,
    decoded: String,
}

#[test]
fn ids_and_text_equal_those_of_python() {
    let tokenizer = tokenizer();
    let text = std::fs::read(fixture("tokenizer_cases.json")).expect("the cases are there");
    for case in serde_json::from_slice::<Vec<Case>>(&text).expect("the cases are JSON") {
        assert_eq!(tokenizer.encode(&case.text, Parse).unwrap(), case.ids, "{:?}", case.text);
        assert_eq!(tokenizer.encode(&case.text, AsText).unwrap(), case.ids_as_text, "{:?}", case.text);
        assert_eq!(tokenizer.decode(&case.ids, false).unwrap(), case.decoded, "{:?}", case.text);
        // The file's post-processor doubles the <bos> of a text that begins with one; a prompt has one.
        let once = if case.text.starts_with("<bos>") { &case.ids } else { &case.ids_with_bos };
        assert_eq!(&tokenizer.encode_prompt(&case.text, Parse).unwrap(), once, "{:?}", case.text);
    }
}

#[test]
fn generated_text_equals_that_of_the_reference() {
    for name in FIXTURES {
        let tokenizer = Tokenizer::from_dir(&fixture(name), VOCAB).unwrap();
        let text = std::fs::read(fixture(name).join("reference/reference.json")).expect("the reference is there");
        let reference: Value = serde_json::from_slice(&text).expect("the reference is JSON");
        for (prompt, expected) in reference["prompts"].as_object().expect("prompts") {
            let Some(text) = expected["greedy_text"].as_str() else { continue };
            let ids = Vec::<u32>::deserialize(&expected["greedy"]).expect("ids");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{name}, {prompt}");
            assert_eq!(streamed(&tokenizer, &ids, false), text, "{name}, {prompt}");
        }
    }
}

#[test]
fn typed_control_tokens_stay_text_and_survive_the_round_trip() {
    let tokenizer = tokenizer();
    let control: Vec<u32> = PlainBpe::new().added.iter().map(|(_, id)| *id).collect();
    for (token, id) in PlainBpe::new().added {
        let typed = format!("a {token}{token} b");
        let ids = tokenizer.encode(&typed, AsText).unwrap();
        assert!(ids.iter().all(|id| !control.contains(id)), "{token}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), typed);
        assert_eq!(tokenizer.encode(&token, Parse).unwrap(), [id]);
    }
}

#[test]
fn added_tokens_that_are_not_special_stay_text_too() {
    let add = |json: &mut Value| {
        let mut token = json["added_tokens"][0].clone();
        (token["id"], token["content"], token["special"]) = (json!(12), json!("<unused7>"), json!(false));
        json["added_tokens"].as_array_mut().unwrap().push(token);
    };
    let tokenizer = changed(add).unwrap();
    assert_eq!(tokenizer.encode("<unused7>", Parse).unwrap(), [12]);
    assert_eq!(tokenizer.encode("<unused7>", AsText).unwrap(), PlainBpe::new().encode("<unused7>"));
}

#[test]
fn prompts_begin_with_exactly_one_bos() {
    let with_post_processor = tokenizer();
    let without = changed(|json| json["post_processor"] = Value::Null).unwrap();
    for tokenizer in [with_post_processor, without] {
        let hi = tokenizer.encode("hi", Parse).unwrap();
        let prompt = [vec![tokenizer.bos_id()], hi.clone()].concat();
        assert!(!hi.contains(&tokenizer.bos_id()));
        for text in ["hi", "<bos>hi", "<bos><bos>hi"] {
            assert_eq!(tokenizer.encode_prompt(text, Parse).unwrap(), prompt, "{text}");
        }
        let typed = tokenizer.encode_prompt("<bos>hi", AsText).unwrap();
        assert_eq!(typed, [vec![2], PlainBpe::new().encode("<bos>hi")].concat());
        assert_eq!(tokenizer.encode_prompt("", AsText).unwrap(), [2]);
    }
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let text = "a long enough text";
    let cut = changed(|json| {
        json["truncation"] = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<pad>"});
    });
    assert_eq!(cut.unwrap().encode(text, Parse).unwrap(), tokenizer().encode(text, Parse).unwrap());
}

#[test]
fn merges_written_as_lines_mean_the_same() {
    let lines = changed(|json| {
        for merge in json["model"]["merges"].as_array_mut().unwrap() {
            *merge = json!(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
        }
    });
    let text = "The quick brown fox\n\n    jumps";
    assert_eq!(lines.unwrap().encode(text, AsText).unwrap(), PlainBpe::new().encode(text));
}

#[test]
fn ids_outside_the_vocabulary_are_an_error_that_names_them() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.token(640), None);
    assert_eq!(
        (tokenizer.token(2), tokenizer.id("<bos>"), tokenizer.vocab_size()),
        (Some("<bos>".into()), Some(2), VOCAB)
    );
    let one_shot = tokenizer.decode(&[107, 640], false).unwrap_err().to_string();
    let stream = DecodeStream::new(&tokenizer, false).push(640).unwrap_err().to_string();
    assert!(one_shot.contains("640") && stream.contains("640"), "{one_shot} / {stream}");
}

#[test]
fn bad_files_give_one_line_that_says_why() {
    let missing = Tokenizer::from_dir(Path::new("no/such/folder"), VOCAB);
    assert!(message(missing).contains("no such file"));
    let whole = json_of_fixture().to_string();
    for damaged in ["", "{", "[1, 2]", "{\"model\": {}}", &whole[..whole.len() / 2]] {
        assert!(message(from_text(damaged.as_bytes())).contains("fetch it again"), "{damaged:.20}");
    }
    assert!(message(from_text(b"\xff\xfe")).contains("damaged"));
    assert!(message(changed(|json| json["model"]["type"] = json!("WordPiece"))).contains("WordPiece"));
    let regex = json!({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""});
    for decoder in [Value::Null, json!({"type": "ByteLevel"}), regex] {
        assert!(message(changed(|json| json["decoder"] = decoder)).contains("`decoder`"));
    }
    let typeable = message(changed(|json| json["model"]["ignore_merges"] = json!(true)));
    assert!(typeable.contains("typed as plain text"), "{typeable}");
    let no_bos = message(changed(|json| {
        json["added_tokens"].as_array_mut().unwrap().retain(|token| token["content"] != "<bos>");
        json["model"]["vocab"].as_object_mut().unwrap().remove("<bos>");
    }));
    assert!(no_bos.contains("<bos>"), "{no_bos}");
    let disagreeing = message(changed(|json| json["added_tokens"][0]["id"] = json!(9)));
    assert!(disagreeing.contains("<pad>"), "{disagreeing}");
}

#[test]
fn tokenizer_of_another_vocabulary_is_refused_with_both_numbers() {
    let of = |vocab_size| message(Tokenizer::from_dir(&fixture("tiny-e2b"), vocab_size));
    let small = of(500);
    assert!(small.contains("500 tokens") && small.contains("another model"), "{small}");
    let large = of(262_144);
    assert!(large.contains("640 tokens") && large.contains("262144"), "{large}");
    let added = message(changed(|json| json["added_tokens"][23]["id"] = json!(258_884)));
    assert!(added.contains("258884") && added.contains("640"), "{added}");
    // Rounded up for the sake of matrix shapes.
    assert!(Tokenizer::from_dir(&fixture("tiny-e2b"), 704).is_ok());
}

/// Joined pieces of a stream, each of which is whole characters by its type.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = DecodeStream::new(tokenizer, skip_special);
    let mut pieces: Vec<Option<String>> = ids.iter().map(|&id| stream.push(id).expect("the id is known")).collect();
    pieces.push(stream.flush().expect("nothing can fail"));
    let pieces: Vec<String> = pieces.into_iter().flatten().collect();
    assert!(pieces.iter().all(|piece| !piece.is_empty()));
    pieces.concat()
}

#[test]
fn streams_give_whole_characters_and_do_not_stall_on_bad_bytes() {
    let tokenizer = tokenizer();
    let byte = |byte: u8| tokenizer.id(&format!("<0x{byte:02X}>")).expect("every byte has a token");
    let mut stream = tokenizer.stream();
    let mut push = |id| stream.push(id).unwrap();
    for part in &"🙂".as_bytes()[..3] {
        assert_eq!(push(byte(*part)), None);
    }
    assert_eq!(push(byte(0x82)), None, "one bad byte later would still spoil it");
    assert_eq!(push(tokenizer.id("▁").unwrap()).as_deref(), Some("🙂 "));
    assert_eq!(push(byte(0xE6)), None);
    assert_eq!(push(byte(b'a')).as_deref(), Some("\u{FFFD}\u{FFFD}"));
    assert_eq!(push(byte(b'b')).as_deref(), Some("\u{FFFD}"), "the row is spoilt, nothing waits any more");
    assert_eq!(push(105), None, "a control token is not text");
    assert_eq!(push(byte(0xC3)).as_deref(), Some("\u{FFFD}"), "and does not end the row");
    assert_eq!(stream.flush().unwrap(), None);
}

#[test]
fn streams_cost_the_same_per_token_after_much_text() {
    let tokenizer = tokenizer();
    let bytes = "é".bytes().map(|byte| tokenizer.id(&format!("<0x{byte:02X}>")).unwrap());
    let ids: Vec<u32> = bytes.cycle().take(400_000).collect();
    let started = Instant::now();
    assert_eq!(streamed(&tokenizer, &ids, true).len(), 400_000);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn a_million_bytes_without_newline_encode_in_two_seconds() {
    let tokenizer = tokenizer();
    let texts = [
        ("The quick brown fox jumps over the lazy dog. ".repeat(22_300), 2),
        // One merge queue over everything: the time may be longer, but not quadratic.
        ("a".repeat(1_000_000), 10),
        (" ".repeat(1_000_000), 10),
    ];
    for (text, seconds) in texts {
        let encode = |special| {
            let started = Instant::now();
            let ids = tokenizer.encode(&text, special).unwrap();
            (started.elapsed(), ids)
        };
        // The better of two: other tests run at the same time.
        let (first, second) = (encode(AsText), encode(Parse));
        assert_eq!(first.1, second.1);
        let best = first.0.min(second.0);
        assert!(best < Duration::from_secs(seconds), "{best:?}: {text:.20}");
        assert_eq!(tokenizer.decode(&first.1, true).unwrap(), text);
    }
}

/// Ids as a model may give them: text, bytes in rows (good characters and bad ones), control tokens.
fn any_ids() -> impl Strategy<Value = Vec<u32>> {
    let bytes_of = |c: char| c.to_string().bytes().map(|byte| 107 + u32::from(byte)).collect::<Vec<u32>>();
    let piece = prop_oneof![
        3 => vec(0u32..640, 0..4),
        3 => vec(107u32..363, 1..4),
        3 => any::<char>().prop_map(bytes_of),
        1 => any::<char>().prop_map(move |c| bytes_of(c)[1..].to_vec()),
        1 => Just(vec![105u32, 364, 452]),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// Text with everything that tokenizers stumble over.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ \n\t]{1,5}",
        "[a-eA-C.,]{1,6}",
        "\\PC{1,4}",
        "(<bos>|<eos>|<pad>|<\\|turn>|<turn\\|>|<\\|image\\|>|<\\|\"\\|>|<unused3>|<0x0A>|<|>|\\||▁)",
        Just("e the and ing ".to_owned()),
    ];
    vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn joined_stream_equals_one_shot_decoding(ids in any_ids(), skip_special: bool) {
        let tokenizer = tokenizer();
        prop_assert_eq!(streamed(&tokenizer, &ids, skip_special), tokenizer.decode(&ids, skip_special).unwrap());
    }

    #[test]
    fn joined_stream_follows_a_decoder_that_strips_the_beginning(ids in any_ids(), start in 0usize..4) {
        let strip = |json: &mut Value| {
            let step = json!({"type": "Strip", "content": " ", "start": start, "stop": 0});
            json["decoder"]["decoders"].as_array_mut().unwrap().push(step);
        };
        let tokenizer = changed(strip).unwrap();
        let space = tokenizer.id("▁").unwrap();
        let ids = [vec![space, space], ids].concat();
        prop_assert_eq!(streamed(&tokenizer, &ids, true), tokenizer.decode(&ids, true).unwrap());
    }

    #[test]
    fn ids_equal_those_of_a_plain_merge_loop(text in any_text()) {
        let (tokenizer, plain) = (tokenizer(), PlainBpe::new());
        prop_assert_eq!(tokenizer.encode(&text, AsText).unwrap(), plain.encode(&text));
        prop_assert_eq!(tokenizer.encode(&text, Parse).unwrap(), plain.encode_parsed(&text));
    }

    #[test]
    fn text_survives_the_round_trip(text in any_text()) {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(&text, AsText).unwrap();
        // The vocabulary has no other sign for a space.
        prop_assert_eq!(tokenizer.decode(&ids, true).unwrap(), text.replace('▁', " "));
    }
}

#[test]
fn errors_of_the_file_are_tokenizer_errors() {
    assert!(matches!(from_text(b"{}"), Err(Error::Tokenizer { .. })));
}
