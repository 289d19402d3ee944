//! Random weights on the device, for measurements without a checkpoint.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, Distribution, Tensor};

use super::{PerLayerPlacement, Storage};
use crate::config::GemmaConfig;
use crate::device::{Dtype, has_room, storage_dtype};
use crate::model::{Gemma, HostRows, PerLayerTable};

/// Rows drawn before a matrix repeats itself: enough that no cache holds them.
const DRAWN_ROWS: usize = 4096;

/// A model of a configuration's shape with random weights, matrices in bf16 (or what `storage` makes of it) and activations in
/// `dtype`.
pub fn synthetic(
    config: &GemmaConfig,
    device: &Device,
    dtype: Dtype,
    storage: Storage,
    per_layer: PerLayerPlacement,
) -> Gemma {
    let weights = match storage {
        Storage::AsFile => DType::BF16,
        Storage::Computable => storage_dtype(device),
    };
    let mut model = config.init(device);
    let width = config.layers.len() * config.per_layer.map_or(0, |spec| spec.dim);
    let table = config.per_layer.map_or(0, |spec| spec.vocab_size * width * weights.size());
    let on_device = match per_layer {
        PerLayerPlacement::Device => true,
        PerLayerPlacement::Host => false,
        PerLayerPlacement::Auto => has_room(device, table, table + config.matrix_elements_per_token() * weights.size()),
    };
    if let (Some(inputs), false) = (&mut model.per_layer, on_device) {
        inputs.embed_tokens_per_layer = PerLayerTable::on_host(Arc::new(RandomRows { width }));
    }
    model.map(&mut Draw { device: device.clone(), weights }).with_dtype(dtype.float())
}

struct Draw {
    device: Device,
    weights: DType,
}

impl ModuleMapper for Draw {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape: [usize; D] = param.lazy_shape().dims();
        if D == 1 {
            return Param::initialized(ParamId::new(), Tensor::ones(shape, (&self.device, DType::F32)));
        }
        let (rows, columns) = (shape[0], shape[D - 1]);
        let drawn = rows.min(DRAWN_ROWS);
        let mut block = shape;
        block[0] = drawn;
        let spread = Distribution::Normal(0.0, 1.0 / (columns as f64).sqrt());
        let block = Tensor::<D>::random(block, spread, (&self.device, DType::F32)).cast(self.weights);
        let tensor = if rows == drawn { block } else { block.repeat_dim(0, rows.div_ceil(drawn)).narrow(0, 0, rows) };
        Param::initialized(ParamId::new(), tensor)
    }
}

/// Rows made up as they are read.
#[derive(Debug)]
struct RandomRows {
    width: usize,
}

impl RandomRows {
    fn values(&self, id: u32) -> impl Iterator<Item = f32> {
        let mut state = id.wrapping_mul(2_654_435_761).wrapping_add(1);
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        })
        .take(self.width)
    }
}

impl HostRows for RandomRows {
    fn read(&self, id: u32, into: &mut Vec<f32>) {
        into.extend(self.values(id).map(|x| half::bf16::from_f32(x).to_f32()));
    }

    fn read_packed(&self, id: u32, into: &mut Vec<u32>) {
        let bits: Vec<u32> = self.values(id).map(|x| half::bf16::from_f32(x).to_bits().into()).collect();
        into.extend(bits.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 16));
    }

    fn bytes(&self) -> usize {
        0
    }
}
