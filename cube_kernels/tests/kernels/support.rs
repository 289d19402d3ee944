//! Devices to test on, deterministic data, and the comparison.
//!
//! Every device that the build has and the machine shows is used; the others are named as skipped. `GEMMA_REQUIRE_DEVICE`
//! (a comma-separated list of `cuda`, `vulkan`, `wgpu`) turns a skip into a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use cube_kernels::{Buffer, Caps};
use cubecl::Device;
use cubecl::client::Client;
use half::bf16;

/// Processors that play GPU: they take 10 s to compile an attention kernel, so tests of it run a few of each kind there.
pub fn is_software(client: &Client) -> bool {
    client.properties().identity.name.contains("llvmpipe")
}

/// Runs `test` on every device, once with its plane operations and once as if it had none.
pub fn each_device(test: impl Fn(&Client, Caps)) {
    // One test at a time: on CUDA no thread may allocate while another captures a graph.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    watch_log();
    for (name, client) in devices() {
        let caps = Caps::of(client);
        println!("{name}: {caps:?}");
        test(client, caps);
        if let Some(other) = other_caps(client, caps) {
            println!("{name}: {other:?}");
            test(client, other);
        }
        assert!(!TASK_FAILED.load(Ordering::SeqCst), "CubeCL logged `Task failed` on {name}");
    }
}

/// The plane path where the device does not advertise its planes (software devices), the path without them elsewhere.
fn other_caps(client: &Client, caps: Caps) -> Option<Caps> {
    let hardware = &client.properties().hardware;
    if caps.plane_ops {
        Some(caps.without_planes())
    } else {
        let lanes = hardware.plane_size_min;
        (lanes == hardware.plane_size_max && lanes > 1).then_some(Caps { lanes, plane_ops: true, ..caps })
    }
}

fn devices() -> &'static [(&'static str, Client)] {
    static DEVICES: OnceLock<Vec<(&'static str, Client)>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let required = std::env::var("GEMMA_REQUIRE_DEVICE").unwrap_or_default();
        let mut found = Vec::new();
        let openers =
            [("cuda", open_cuda as fn() -> Result<Client, String>), ("vulkan", open_vulkan), ("wgpu", open_wgpu)];
        for (name, open) in openers {
            match catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| Err("opening it panicked".into())) {
                Ok(client) => found.push((name, client)),
                Err(why) if required.split(',').any(|r| r.trim() == name) => {
                    panic!("GEMMA_REQUIRE_DEVICE names {name}: {why}")
                }
                Err(why) => eprintln!("skipped: {name}: {why}"),
            }
        }
        found
    })
}

fn open_cuda() -> Result<Client, String> {
    if !cfg!(feature = "cuda") {
        return Err("not in this build".into());
    }
    Ok(Device::cuda(0).map_err(|e| e.to_string())?.client())
}

#[cfg(not(feature = "vulkan"))]
fn open_vulkan() -> Result<Client, String> {
    Err("not in this build".into())
}

/// SPIR-V on a GPU. CubeCL 0.11.3 declares shared memory as a pointer to a pointer where a driver has no explicit layout
/// for it (`cubecl-spirv/src/ops/memory.rs`); Mesa's software device is one, and crashes.
#[cfg(feature = "vulkan")]
fn open_vulkan() -> Result<Client, String> {
    let client = Device::vulkan(Default::default()).map_err(|e| e.to_string())?.client();
    match is_software(&client) {
        true => Err("the software device crashes on CubeCL's SPIR-V; test it with `wgpu`".into()),
        false => Ok(client),
    }
}

#[cfg(not(feature = "wgpu"))]
fn open_wgpu() -> Result<Client, String> {
    Err("not in this build".into())
}

/// Whatever compiler the build has: WGSL unless `vulkan` or `metal` is in it, and then it is no device of its own.
#[cfg(feature = "wgpu")]
fn open_wgpu() -> Result<Client, String> {
    if cfg!(feature = "vulkan") {
        return Err("with `vulkan` in the build it is the same device".into());
    }
    Ok(Device::wgpu(Default::default()).map_err(|e| e.to_string())?.client())
}

static TASK_FAILED: AtomicBool = AtomicBool::new(false);

/// CubeCL reports a panic on its device thread in the log and carries on.
struct Watch;

impl log::Log for Watch {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.level() <= log::Level::Warn
    }
    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            let text = record.args().to_string();
            eprintln!("{}: {text}", record.level());
            if text.contains("Task failed") {
                TASK_FAILED.store(true, Ordering::SeqCst);
            }
        }
    }
    fn flush(&self) {}
}

fn watch_log() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::set_logger(&Watch).expect("no other logger in this binary");
        log::set_max_level(log::LevelFilter::Warn);
    });
}

/// Deterministic numbers in [-1, 1).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn f32s(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
    pub fn bf16s(&mut self, n: usize) -> Vec<bf16> {
        (0..n).map(|_| bf16::from_f32(self.next())).collect()
    }
}

/// Fails unless every element is within `tolerance · (1 + largest |want|)`.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let error = (g as f64 - w).abs();
        assert!(error <= tolerance * (1.0 + largest), "{what}[{i}]: got {g}, expected {w}, largest {largest}");
    }
}

/// A buffer filled with a value that no result has, so that a missing store shows.
pub fn unwritten(client: &Client, len: usize) -> Buffer<f32> {
    Buffer::from_slice(client, &vec![-7.75e20f32; len])
}
