use super::kernel::Epilogue;
use crate::Caps;

/// Most 16-byte loads one lane may need for one row: beyond it x no longer fits the registers.
const MAX_LOADS: u32 = 16;
/// Loads per lane and row that the fallback aims at.
const GOOD_LOADS: u32 = 6;

/// How a GEMV is laid out on the device. Any valid one gives the same sums up to rounding; the speed differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemvConfig {
    /// Planes that share one row.
    pub split: u32,
    /// Planes of one cube; a multiple of `split`.
    pub planes: u32,
    /// Rows requested before the first is used. Even where rows come in pairs.
    pub ahead: u32,
    /// Each group of `split` planes computes `ahead · blocks` rows, one after another.
    pub blocks: u32,
}

impl GemvConfig {
    /// The fields in the order of the tables.
    pub const fn new(split: u32, planes: u32, ahead: u32, blocks: u32) -> Self {
        Self { split, planes, ahead, blocks }
    }

    /// Rows that one cube reads.
    pub fn rows_per_cube(&self) -> usize {
        (self.planes / self.split * self.ahead * self.blocks) as usize
    }

    /// The configuration for `rows` weight rows of `k` elements: a measured one where there is one, else a valid one.
    pub(super) fn choose(rows: usize, k: usize, epilogue: Epilogue, caps: &Caps) -> Self {
        let pairs = epilogue == Epilogue::GeluMul;
        MEASURED
            .iter()
            .filter(|m| m.0 == rows && m.1 == k && m.2 == pairs && caps.plane_ops && caps.lanes == MEASURED_LANES)
            .map(|m| m.3)
            .find(|c| c.planes <= caps.max_planes())
            .unwrap_or_else(|| Self::fallback(rows, k, pairs, caps))
    }

    fn fallback(rows: usize, k: usize, pairs: bool, caps: &Caps) -> Self {
        let most = caps.max_planes();
        let split = (k as u32 / 8).div_ceil(caps.lanes * GOOD_LOADS).clamp(1, most);
        let groups = (8 / split).clamp(1, most / split);
        let ahead = if pairs || rows > 4096 { 2 } else { 1 };
        // Enough cubes to fill a device, but not more work per cube than its reductions are worth.
        let cubes = caps.sm_count.unwrap_or(32) as usize * 4;
        let blocks = rows.div_ceil(cubes * (groups * ahead) as usize).clamp(1, 4) as u32;
        Self { split, planes: split * groups, ahead, blocks }
    }

    /// Why this cannot run, if so.
    pub(super) fn problem(&self, k: usize, epilogue: Epilogue, caps: &Caps) -> Option<String> {
        let Self { split, planes, ahead, blocks } = *self;
        if split == 0 || planes == 0 || ahead == 0 || blocks == 0 || !planes.is_multiple_of(split) {
            return Some(format!("{self:?}: all fields at least 1, planes a multiple of split"));
        }
        if planes > caps.max_planes() {
            return Some(format!(
                "{planes} planes of {} lanes, the device has {} units per cube",
                caps.lanes, caps.max_units
            ));
        }
        if epilogue == Epilogue::GeluMul && !ahead.is_multiple_of(2) {
            return Some(format!("{self:?}: row pairs need an even `ahead`"));
        }
        let loads = (k as u32 / 8).div_ceil(split * caps.lanes);
        if loads > MAX_LOADS {
            return Some(format!("K = {k} needs {loads} loads per lane at split {split}, at most {MAX_LOADS}"));
        }
        None
    }
}

/// Plane size of the device that [`MEASURED`] comes from.
const MEASURED_LANES: u32 = 32;

/// Best of each shape on an H200: weight rows, K, whether rows come in pairs, configuration. Found by `bench_kernels --tune`,
/// then one shape after the other within the whole chain of a token, where launches overlap.
const MEASURED: &[(usize, usize, bool, GemvConfig)] = &[
    (2048, 1536, false, GemvConfig::new(6, 6, 2, 2)),
    (4096, 1536, false, GemvConfig::new(3, 6, 2, 2)),
    (2560, 1536, false, GemvConfig::new(2, 6, 1, 2)),
    (5120, 1536, false, GemvConfig::new(3, 6, 2, 2)),
    (1536, 2048, false, GemvConfig::new(4, 4, 1, 2)),
    (1536, 4096, false, GemvConfig::new(8, 8, 2, 1)),
    (12288, 1536, true, GemvConfig::new(1, 6, 2, 2)),
    (24576, 1536, true, GemvConfig::new(1, 4, 2, 2)),
    (1536, 6144, false, GemvConfig::new(8, 8, 2, 1)),
    (1536, 12288, false, GemvConfig::new(16, 16, 2, 1)),
    (256, 1536, false, GemvConfig::new(6, 6, 3, 1)),
    (1536, 256, false, GemvConfig::new(1, 4, 2, 1)),
    (8960, 1536, false, GemvConfig::new(6, 12, 1, 2)),
    (262144, 1536, false, GemvConfig::new(1, 4, 2, 4)),
];
