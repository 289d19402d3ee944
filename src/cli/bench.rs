//! `gemma bench`: how fast a model runs here, and how near to the speed of the memory.

use std::process::ExitCode;

use anyhow::bail;
use gemma_burn::bench::{BenchOptions, BenchReport, bench_plain};
use gemma_burn::config::GemmaConfig;
use gemma_burn::engine::ComputePath;
use gemma_burn::weights::{LoadOptions, load, synthetic};
use gemma_burn::{Device, Dtype, Gemma};
use serde_json::json;

use super::args::{LoadBar, LoraArgs, ModelArgs, PathArgs};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Random weights in this shape instead of a model: e2b or tiny
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["model", "lora"])]
    synthetic: Option<String>,
    #[command(flatten)]
    path: PathArgs,
    /// Tokens of the prompt: the context that decoding starts from
    #[arg(long, default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens to decode
    #[arg(long, default_value_t = 128)]
    gen_tokens: usize,
    /// Also time every kind of kernel alone (fused path)
    #[arg(long)]
    kernels: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.prompt_tokens == 0 || args.gen_tokens == 0 {
        bail!("--prompt-tokens and --gen-tokens must be 1 or more");
    }
    let device = args.model.device.open()?;
    let dtype = args.model.device.dtype(&device)?;
    let path = args.path.path(&device)?;
    let model = prepare(args, path, &device, dtype)?;
    let most = model.config().max_positions;
    if args.prompt_tokens + args.gen_tokens > most {
        bail!("{} + {} tokens are more than this model's context of {most}", args.prompt_tokens, args.gen_tokens);
    }
    let options =
        BenchOptions { prompt_tokens: args.prompt_tokens, gen_tokens: args.gen_tokens, kernels: args.kernels };
    let report = match path {
        ComputePath::Plain => bench_plain(&model, &device, &options)?,
        #[cfg(feature = "cube")]
        ComputePath::Fused { kv } => gemma_burn::bench::bench_fused(&model, &device, kv, &options)?,
    };
    if args.json {
        let mut object = serde_json::to_value(&report)?;
        object["device"] = json!(args.model.device.device);
        object["dtype"] = json!(dtype.to_string());
        object["model"] =
            json!(args.synthetic.clone().or(args.model.model.as_ref().map(|dir| dir.display().to_string())));
        println!("{object}");
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn prepare(args: &Args, path: ComputePath, device: &Device, dtype: Dtype) -> anyhow::Result<Gemma> {
    let (storage, per_layer) = (path.storage(), args.path.placement());
    if let Some(shape) = &args.synthetic {
        return Ok(synthetic(&GemmaConfig::preset(shape)?, device, dtype, storage, per_layer));
    }
    let bar = LoadBar::new();
    let progress = |done, total| bar.show(done, total);
    let lora = args.model.lora.options();
    let options = LoadOptions { dtype: Some(dtype), storage, per_layer, lora, progress: Some(&progress) };
    let loaded = load(args.model.dir()?, device, &options);
    bar.clear();
    let (model, loading) = loaded?;
    LoraArgs::tell(&loading);
    Ok(model)
}

fn print(r: &BenchReport) {
    println!(
        "prefill  {:>6} tokens  {:>10.2} ms  {:>10.1} tok/s",
        r.prompt_tokens, r.prefill_ms, r.prefill_tokens_per_second
    );
    let (ms, rate) = (r.decode_ms_per_token, r.decode_tokens_per_second);
    println!("decode   {:>6} tokens  {ms:>10.3} ms/token  {rate:>6.1} tok/s", r.gen_tokens);
    let (bytes, speed) = (r.bytes_per_token as f64 / 1e9, r.decode_gb_per_second);
    print!("memory   {bytes:.3} GB per token, {speed:.1} GB/s");
    match (r.read_bandwidth_gb_per_second, r.share_of_read_bandwidth) {
        (Some(peak), Some(share)) => println!(", {:.1} % of the {peak:.1} GB/s measured here", share * 100.0),
        _ => println!(),
    }
    println!("kv       {:.1} MB", r.kv_bytes as f64 / 1e6);
    if let Some(bytes) = r.device_bytes_in_use {
        println!("device   {:.3} GB in use", bytes as f64 / 1e9);
    }
    if let (Some(build), Some(host)) = (r.build_ms, r.host_us_per_token) {
        println!("host     {host:.1} us per token; kernels and graphs built in {:.2} s", build / 1e3);
    }
    for k in &r.kernels {
        let (mb, speed) = (k.weight_bytes as f64 / 1e6, k.gb_per_second);
        println!("{:<28} {:>4} launches {:>9.1} us {mb:>9.1} MB {speed:>8.1} GB/s", k.kernel, k.launches, k.us);
    }
}
