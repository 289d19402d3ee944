//! What a kernel may assume about the device it is compiled for.

use cubecl::client::Client;
use cubecl::ir::features::Plane;

/// Lanes that work together where a device has no plane operations (or no single plane size).
const LANES_WITHOUT_PLANES: u32 = 16;

/// The first NVIDIA architecture whose kernels can wait for the launch ahead.
const PROGRAMMATIC_LAUNCH: u32 = 90;

/// Facts of one device, passed to kernels at compile time: the same source becomes another kernel on another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caps {
    /// Units that reduce together: the plane size if `plane_ops`, else a logical group that reduces in shared memory.
    pub lanes: u32,
    /// Plane operations exist and every plane has exactly `lanes` units.
    pub plane_ops: bool,
    /// Most units of one cube.
    pub max_units: u32,
    /// Shared memory of one cube, in bytes.
    pub shared_bytes: u32,
    /// Buffers that one kernel can bind.
    pub max_bindings: u32,
    /// Multiprocessors, where the runtime tells.
    pub sm_count: Option<u32>,
    /// `sync_storage` makes one cube's writes visible to another (false in WGSL and on the CPU runtime).
    pub device_scope: bool,
    /// Kernels can start before the one ahead has ended: see [`crate::overlap`].
    pub overlaps: bool,
}

impl Caps {
    /// Reads the facts from the device behind `client`.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let max_units = hardware.max_units_per_cube.max(1);
        // CubeCL advertises no plane operations on software devices, where they work and barriers are slow to compile.
        let software = properties.identity.name.contains("llvmpipe");
        let plane_ops = (software || properties.features.plane.contains(Plane::Ops))
            && hardware.plane_size_min == hardware.plane_size_max
            && hardware.plane_size_max > 1;
        let lanes =
            if plane_ops { hardware.plane_size_max } else { power_of_two_at_most(max_units.min(LANES_WITHOUT_PLANES)) };
        Self {
            lanes,
            plane_ops,
            max_units,
            shared_bytes: hardware.max_shared_memory_size as u32,
            max_bindings: hardware.max_bindings,
            sm_count: hardware.num_streaming_multiprocessors,
            device_scope: properties.features.device_memory_scope,
            overlaps: cfg!(feature = "cuda")
                && properties
                    .identity
                    .fingerprint
                    .strip_prefix("ptx_sm")
                    .and_then(|arch| arch.parse::<u32>().ok())
                    .is_some_and(|arch| arch >= PROGRAMMATIC_LAUNCH),
        }
    }

    /// The same device with its plane operations left unused: the route of devices that have none.
    pub fn without_planes(self) -> Self {
        Self { plane_ops: false, ..self }
    }

    /// Groups of `lanes` units that fit one cube.
    pub fn max_planes(&self) -> u32 {
        (self.max_units / self.lanes).max(1)
    }
}

fn power_of_two_at_most(n: u32) -> u32 {
    1 << n.max(1).ilog2()
}
