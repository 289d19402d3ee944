use super::{LINES, UNFINISHED, check, run};

#[track_caller]
fn broken(name: &str, text: &str, why: &str) {
    let found = check(name, text);
    assert!(found.iter().any(|f| f.contains(why)), "{name} with {text:?}: {found:?} lacks {why:?}");
}

#[track_caller]
fn fine(name: &str, text: &str) {
    assert_eq!(check(name, text), Vec::<String>::new(), "{name} with {text:?}");
}

#[test]
fn this_workspace_keeps_its_rules() {
    run().unwrap();
}

#[test]
fn layering_is_caught_in_every_form_of_use() {
    for code in [
        "use crate::weights::load;",
        "use crate::{Error, cache::KvCache, weights::{a, b}};",
        "use crate::{\n    cache::{KvCache, Slot},\n    weights,\n};",
        "fn f() { crate::weights::load() }",
    ] {
        broken("src/model/mod.rs", code, "names `weights`");
    }
    broken("src/model/head.rs", "use crate::tokenizer::Tokenizer;", "names `tokenizer`");
    broken("src/model/head.rs", "use crate::sampler::argmax;", "names `sampler`");
    broken("src/cache/mod.rs", "use crate::ops::attention;", "names `ops`");
    broken("src/engine/mod.rs", "use crate::parity::Trace;", "names `parity`");
    broken("src/error.rs", "use crate::config::GemmaConfig;", "names `config`");
}

#[test]
fn layering_allows_what_stands_below() {
    fine("src/model/mod.rs", "use crate::{Error, cache::{KvCache, weights_like}, ops};\nuse crate::model::step::Step;");
    fine("src/fused/mod.rs", "use crate::model::Gemma;");
    fine("src/cli/generate.rs", "use gemma_burn::{Engine, weights::load};");
    fine(
        "src/model/mod.rs",
        "// see crate::weights for the names\n#[cfg(test)]\nmod tests { use crate::weights::load; }",
    );
}

#[test]
fn forbidden_words_are_caught() {
    broken("src/model/head.rs", "use safetensors::View;", "says `safetensors`");
    broken("cube_kernels/src/gemv/mod.rs", "//! For Gemma 4.", "says `gemma`");
    broken("cube_kernels/Cargo.toml", "description = \"for gemma\"", "says `gemma`");
    broken("src/cli/generate.rs", "use burn::Tensor;", "says `Tensor`");
    broken("src/server/router.rs", "fn f(x: Tensor<2>) {}", "says `Tensor`");
    broken("src/model/attention.rs", "cube_kernels::gemv(x);", "says `cube_kernels`");
    fine("cube_kernels/tests/kernels/main.rs", "std::env::var(\"GEMMA_REQUIRE_DEVICE\")");
    fine("src/ops/attention.rs", "use cube_kernels::flash;");
    fine("src/cli/inspect.rs", "let tensors = report.applied();\nlet t = TensorInfo;");
}

#[test]
fn long_files_and_unfinished_code_are_caught() {
    broken("src/model/mod.rs", &"//\n".repeat(LINES + 1), "401 lines");
    fine("src/model/mod.rs", &"//\n".repeat(LINES));
    for word in UNFINISHED {
        broken("tests/it/model.rs", &format!("    {word}"), "contains");
    }
}

#[test]
fn second_integration_test_binary_is_caught() {
    broken("tests/more.rs", "", "second integration-test binary");
    fine("tests/it/more.rs", "");
}
