//! The CubeCL devices that tests run on.

use std::sync::{Mutex, PoisonError};

use gemma_burn::{Device, device};

/// Set to anything, the fused path is tested on software devices too, where its kernels take minutes to compile.
const SOFTWARE: &str = "SOFTWARE_FUSED";

fn is_software(device: &Device) -> bool {
    device.identity().is_some_and(|identity| identity.name.contains("llvmpipe"))
}

/// Runs `test` on each CubeCL device that this build and this machine have, one test at a time: while one thread records a
/// graph, CUDA forbids the others nearly everything. `GEMMA_REQUIRE_DEVICE` (a comma-separated list) makes an
/// absent one a failure; otherwise it is named as skipped.
pub fn each_device(test: impl Fn(Device)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let required = std::env::var("GEMMA_REQUIRE_DEVICE").unwrap_or_default();
    let open = |name: &str| match device(name) {
        Ok(device) if is_software(&device) && std::env::var_os(SOFTWARE).is_none() => {
            eprintln!("skipped: {name} is a software device; {SOFTWARE}=1 runs this there, for an hour");
            None
        }
        Ok(device) => Some(device),
        Err(why) if required.split(',').any(|r| r.trim() == name) => panic!("GEMMA_REQUIRE_DEVICE names {name}: {why}"),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    };
    ["cuda", "vulkan", "wgpu"].into_iter().filter_map(open).for_each(test);
}
