//! The engine: requests in, events out.

use gemma_burn::engine::{EngineOptions, Event, Finish, FinishReason, Prompt};
use gemma_burn::sampler::Sampling;
use gemma_burn::tokenizer::SpecialTokens;
use gemma_burn::{Dtype, Engine, Request};

use crate::support::{cpu, fixture, uncached};

fn engine_with(context: Option<usize>) -> Engine {
    let options = EngineOptions { dtype: Some(Dtype::F32), context, ..Default::default() };
    Engine::load_with(fixture("tiny-e2b"), &cpu(), &options).expect("the fixture loads")
}

fn greedy() -> Option<Sampling> {
    Some(Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, seed: Some(1) })
}

fn request(text: &str, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), sampling: greedy(), ..Request::from(text) }
}

/// Text, ids and ending of a whole generation.
fn collect(engine: &Engine, request: Request) -> (String, Vec<u32>, Finish) {
    let mut session = engine.session();
    let (mut text, mut ids, mut end) = (String::new(), vec![], None);
    for event in session.generate(request).expect("a good request") {
        let event = event.expect("an event");
        text += event.text();
        ids.push(event.id());
        if let Event::Done { finish, .. } = event {
            assert!(end.replace(finish).is_none(), "one end");
        }
    }
    (text, ids, end.expect("every generation ends"))
}

#[test]
fn greedy_takes_the_best_token_of_full_forward_passes() {
    let engine = engine_with(None);
    let (_, ids, finish) = collect(&engine, request("Hello, world!", 24));
    let prompt = engine.tokenizer().encode_prompt("Hello, world!", SpecialTokens::AsText).expect("ids");
    let all = [prompt.as_slice(), &ids].concat();
    let logits = uncached(engine.model(), &all);
    for (i, id) in ids.iter().enumerate() {
        let best = gemma_burn::parity::argmax(&logits[prompt.len() + i - 1]);
        assert_eq!(best as u32, *id, "token {i}");
    }
    assert_eq!((finish.usage.prompt_tokens, finish.usage.completion_tokens), (prompt.len(), ids.len()));
}

#[test]
fn streamed_text_equals_decoded_ids() {
    let engine = engine_with(None);
    for seed in 0..8 {
        let sampling =
            Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, seed: Some(seed) };
        let request = Request { sampling: Some(sampling), max_tokens: Some(40), ..Request::from("Hello") };
        let (text, mut ids, finish) = collect(&engine, request);
        if finish.finish_reason == FinishReason::Stop {
            ids.pop();
        }
        assert_eq!(text, engine.tokenizer().decode(&ids, true).expect("text"));
    }
}

#[test]
fn same_seed_gives_the_same_text() {
    let engine = engine_with(None);
    let run = |seed| {
        let sampling =
            Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, min_p: 0.0, repeat_penalty: 1.0, seed: Some(seed) };
        collect(&engine, Request { sampling: Some(sampling), max_tokens: Some(20), ..Request::from("Hello") }).1
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn stop_string_ends_the_text_before_it() {
    let engine = engine_with(None);
    let (whole, ..) = collect(&engine, request("Hello, world!", 24));
    let chars: Vec<char> = whole.chars().collect();
    let (from, to) = (chars.len() / 2, chars.len() / 2 + 3);
    let stop: String = chars[from..to].iter().collect();
    let want = whole.split(&stop).next().expect("a beginning");
    let (text, _, finish) = collect(&engine, Request { stop: vec![stop.clone()], ..request("Hello, world!", 24) });
    assert_eq!((text.as_str(), finish.finish_reason), (want, FinishReason::Stop));
    let never = Request { stop: vec![format!("{whole}~")], ..request("Hello, world!", 24) };
    assert_eq!(collect(&engine, never).0, whole, "what was held back comes at the end");
}

#[test]
fn a_session_continues_where_it_ended() {
    let engine = engine_with(None);
    let mut session = engine.session();
    let first: Vec<u32> =
        session.generate(request("Hello", 5)).expect("good").map(|e| e.expect("event").id()).collect();
    let used = session.tokens().len();
    let second: Vec<u32> =
        session.generate(request(" again", 5)).expect("good").map(|e| e.expect("event").id()).collect();
    let tokens = session.tokens().to_vec();
    assert_eq!(tokens.iter().filter(|&&id| id == 2).count(), 1, "one <bos>");
    assert_eq!(&tokens[used - first.len()..used], &first);
    let logits = uncached(engine.model(), &tokens);
    let start = tokens.len() - second.len();
    for (i, id) in second.iter().enumerate() {
        assert_eq!(gemma_burn::parity::argmax(&logits[start + i - 1]) as u32, *id, "token {i}");
    }
}

#[test]
fn generation_ends_where_the_context_does() {
    let engine = engine_with(Some(16));
    let (_, ids, finish) = collect(&engine, request("Hello, world!", 1000));
    assert_eq!(finish.finish_reason, FinishReason::Length);
    assert_eq!(finish.usage.prompt_tokens + ids.len(), 16);
}

#[test]
fn impossible_requests_are_refused_before_any_work() {
    let engine = engine_with(Some(16));
    let refused = |request: Request, part: &str| {
        let mut session = engine.session();
        let message = session.generate(request).map(|_| ()).expect_err("impossible").to_string();
        assert!(message.contains(part), "`{message}` does not say {part}");
        assert!(session.tokens().is_empty() && session.position() == 0);
    };
    refused(request("", 5), "empty");
    refused(request(&"word ".repeat(50), 5), "context is 16");
    refused(request("Hello", 0), "--max-tokens");
    refused(Request::new(Prompt::Ids(vec![2, 640])), "640");
    refused(Request { stop: vec![String::new()], ..request("Hello", 5) }, "stop");
    let hot = Sampling { temperature: -1.0, ..greedy().expect("sampling") };
    refused(Request { sampling: Some(hot), ..Request::from("Hello") }, "temperature");
}

#[test]
fn contexts_beyond_the_model_are_refused() {
    let options = EngineOptions { context: Some(1 << 20), ..Default::default() };
    let message =
        Engine::load_with(fixture("tiny-e2b"), &cpu(), &options).map(|_| ()).expect_err("too long").to_string();
    assert!(message.contains("1048576") && message.contains("4096"), "{message}");
}
