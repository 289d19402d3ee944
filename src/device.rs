//! Devices by name, and the number formats that suit each.

use burn::tensor::{DType, Device, DeviceType, FloatDType};

use crate::{Error, Result};

/// What a device name may begin with, best first, and the feature that builds it.
const KINDS: [(&str, &str); 8] = [
    ("cuda", "cuda"),
    ("rocm", "rocm"),
    ("metal", "metal"),
    ("vulkan", "vulkan"),
    ("wgpu", "wgpu"),
    ("cpu", "flex"),
    ("ndarray", "ndarray"),
    ("cubecl-cpu", "cpu"),
];

/// Part of a device's memory that weights may take: the rest is for keys, values and the driver.
#[cfg(feature = "cube")]
const USABLE_SHARE: f64 = 0.8;

/// The format that the plain path computes in. Norms, softmax and sampling are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    Bf16,
}

impl Dtype {
    /// As Burn names it.
    pub fn float(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
        }
    }
}

impl std::str::FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            other => Err(Error::Request(format!("dtype `{other}` is unknown; use f32 or bf16"))),
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// Opens a device by name: `cpu`, `cuda:0`, `vulkan`, … (`:N` picks one of several). CubeCL keeps what it compiles from then on
/// in `target/environment` of the workspace around the current folder, or in the user's cache folder.
///
/// # Errors
/// An unknown name, a device whose feature was not built, or one that this machine does not have.
pub fn device(name: &str) -> Result<Device> {
    let (kind, index) = match name.split_once(':') {
        None => (name, 0),
        Some((kind, index)) => {
            let index = index.parse().map_err(|_| Error::device(name, "the part after `:` is not a number"))?;
            (kind, index)
        }
    };
    let Some((_, feature)) = KINDS.iter().find(|(known, _)| *known == kind) else {
        let known = KINDS.map(|(known, _)| known).join(", ");
        return Err(Error::device(name, format!("unknown; known are {known} (with `:N` for the N-th)")));
    };
    let Some(devices) = present(kind) else {
        let reason = format!(
            "this build lacks the feature `{feature}`; build with `--features {feature}`, or use one of: {}",
            built().join(", ")
        );
        return Err(Error::device(name, reason));
    };
    let count = devices.len();
    let device = devices.into_iter().nth(index).ok_or_else(|| {
        let reason = match count {
            0 => format!("this machine has none (or its driver is missing); built are: {}", built().join(", ")),
            count => format!("this machine has {count}, counted from 0"),
        };
        Error::device(name, reason)
    })?;
    refuse_broken(name, device)
}

/// Refuses the one combination that is known to crash in the driver.
fn refuse_broken(#[allow(unused)] name: &str, device: Device) -> Result<Device> {
    // CubeCL 0.11.3 makes invalid SPIR-V of shared memory where a driver has no explicit layout for it, as Mesa's
    // software renderer has not.
    #[cfg(feature = "vulkan")]
    if is_software(&device) {
        let reason = "CubeCL's SPIR-V crashes in this software renderer; build with `--features wgpu` and without \
                      `vulkan`, and use the device `wgpu`";
        return Err(Error::device(name, reason));
    }
    Ok(device)
}

/// The best device that this build knows and this machine has, with its name. Software renderers do not count.
///
/// # Errors
/// No device at all, which a build with `flex` or `ndarray` cannot meet.
pub fn best_device() -> Result<(&'static str, Device)> {
    KINDS
        .iter()
        .find_map(|(kind, _)| {
            let device = present(kind)?.into_iter().find(|device| !is_software(device))?;
            Some((*kind, device))
        })
        .ok_or_else(|| {
            Error::device("default", "this machine has none of the devices in this build; build with `flex`")
        })
}

/// The device of that name, or where none is named the best one, with its name.
///
/// # Errors
/// As [`device`] and [`best_device`].
pub fn device_or_best(name: Option<&str>) -> Result<(String, Device)> {
    match name {
        Some(name) => Ok((name.to_owned(), device(name)?)),
        None => best_device().map(|(name, device)| (name.to_owned(), device)),
    }
}

/// Names of the device kinds in this build, best first.
pub fn built() -> Vec<&'static str> {
    KINDS.iter().map(|(kind, _)| *kind).filter(|kind| filter(kind).is_some()).collect()
}

/// The format that the plain path computes in on `device`, unless the caller chooses.
pub fn default_dtype(device: &Device) -> Dtype {
    if is_cpu(device) || !device.supports_dtype(FloatDType::BF16) { Dtype::F32 } else { Dtype::Bf16 }
}

/// The format in which `device` can hold weights that its own tensor operations read.
pub(crate) fn storage_dtype(device: &Device) -> DType {
    if device.supports_dtype(FloatDType::BF16) { DType::BF16 } else { DType::F32 }
}

/// Whether tensors of `device` live in this process's memory, so that a mapped file can be a tensor.
pub(crate) fn is_host_memory(#[allow(unused)] device: &Device) -> bool {
    #[cfg(feature = "flex")]
    if *device == Device::flex() {
        return true;
    }
    false
}

/// Whether `device` has room for one buffer of `bytes` when everything together takes `all` bytes. A device that does not
/// tell its memory has none.
pub(crate) fn has_room(
    #[allow(unused)] device: &Device,
    #[allow(unused)] bytes: usize,
    #[allow(unused)] all: usize,
) -> bool {
    #[cfg(feature = "cube")]
    if let burn::backend::DispatchDevice::Cube(cube) = device.as_dispatch() {
        let client = cube.client();
        let memory = &client.properties().memory;
        let usable = memory.max_memory().map(|most| most as f64 * USABLE_SHARE);
        return bytes as u64 <= memory.max_page_size && usable.is_some_and(|usable| (all as f64) < usable);
    }
    false
}

fn is_cpu(device: &Device) -> bool {
    ["cpu", "ndarray", "cubecl-cpu"].iter().any(|kind| present(kind).is_some_and(|all| all.contains(device)))
}

fn is_software(#[allow(unused)] device: &Device) -> bool {
    #[cfg(any(feature = "vulkan", feature = "wgpu", feature = "metal"))]
    {
        use burn::backend::{CubeDevice, DispatchDevice, WgpuDeviceKind};
        if let DispatchDevice::Cube(CubeDevice::Wgpu(wgpu)) = device.as_dispatch() {
            return matches!(wgpu.kind, WgpuDeviceKind::Cpu);
        }
    }
    false
}

/// The devices of a kind that this machine has; `None` where the kind is not built.
fn present(kind: &str) -> Option<Vec<Device>> {
    let filter = filter(kind)?;
    #[cfg(feature = "cube")]
    keep_kernels();
    Some(Device::enumerate(filter).into_vec())
}

/// Has CubeCL keep compiled kernels on disk, beside what it measured: compiling those of one model takes seconds. A program
/// that wants it otherwise sets CubeCL's configuration first.
#[cfg(feature = "cube")]
fn keep_kernels() {
    use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        config.compilation.cache = true;
        // Refused where the program has set one already.
        CubeClRuntimeConfig::try_set(config);
    });
}

fn filter(kind: &str) -> Option<DeviceType> {
    match kind {
        #[cfg(feature = "cuda")]
        "cuda" => Some(DeviceType::Cuda),
        #[cfg(feature = "rocm")]
        "rocm" => Some(DeviceType::Rocm),
        #[cfg(feature = "metal")]
        "metal" => Some(DeviceType::Metal),
        #[cfg(feature = "vulkan")]
        "vulkan" => Some(DeviceType::Vulkan),
        #[cfg(feature = "wgpu")]
        "wgpu" => Some(DeviceType::Wgpu),
        #[cfg(feature = "flex")]
        "cpu" => Some(DeviceType::Flex),
        #[cfg(feature = "ndarray")]
        "ndarray" => Some(DeviceType::NdArray),
        #[cfg(feature = "cpu")]
        "cubecl-cpu" => Some(DeviceType::Cpu),
        _ => None,
    }
}
