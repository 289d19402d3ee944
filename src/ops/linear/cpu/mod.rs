//! The product on plain memory, for whatever instruction set the machine has.
//!
//! No tensor in here: slices and pointers, so that each instruction set can be tested and measured by itself.

mod dot;
mod product;
mod simd;
mod tile;
mod weight;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use weight::{Stored, Weight};

use product::{CHAINS, Output, Product};
use rayon::prelude::*;
use simd::{Portable, Simd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Up to so many rows of x, w is multiplied without a tile between.
const FEW_ROWS: usize = 16;
/// The bytes of w that a thread takes at a time then.
const TASK_BYTES: usize = 512 << 10;
/// With more rows, the tiles that a thread takes at a time, to use x in L2 as often.
const TASK_BLOCKS: usize = 8;
/// Below so many products, waking other threads costs more than it brings.
const ALONE: usize = 1 << 17;

/// An instruction set that the products are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// x86-64 with AVX-512F, and AVX2 and FMA for few rows.
    Avx512,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// aarch64.
    Neon,
    /// Any target.
    Portable,
}

impl Isa {
    /// Those that this machine can run, the best first.
    pub fn available() -> Vec<Self> {
        [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable].into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The best that this machine can run.
    pub fn best() -> Self {
        [Self::Avx512, Self::Avx2, Self::Neon].into_iter().find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f") && Self::Avx2.is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Portable => true,
            #[allow(unreachable_patterns, reason = "which patterns are left depends on the target")]
            _ => false,
        }
    }

    fn vector(self) -> Vector {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Vector::of::<x86::Avx512>(run_avx512),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Vector::of::<x86::Avx2>(run_avx2),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Vector::of::<neon::Neon>(run_neon),
            _ => Vector::of::<Portable>(product::run::<Portable, Portable>),
        }
    }
}

/// The entry of one instruction set.
struct Vector {
    columns: usize,
    run: unsafe fn(&Product<'_>, usize, &mut Vec<f32>),
}

impl Vector {
    fn of<S: Simd>(run: unsafe fn(&Product<'_>, usize, &mut Vec<f32>)) -> Self {
        Self { columns: tile::columns::<S>(), run }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn run_avx512(product: &Product<'_>, task: usize, tile: &mut Vec<f32>) {
    unsafe { product::run::<x86::Avx512, x86::Avx2>(product, task, tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2(product: &Product<'_>, task: usize, tile: &mut Vec<f32>) {
    unsafe { product::run::<x86::Avx2, x86::Avx2>(product, task, tile) }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn run_neon(product: &Product<'_>, task: usize, tile: &mut Vec<f32>) {
    unsafe { product::run::<neon::Neon, neon::Neon>(product, task, tile) }
}

/// `y[m, n] = sum over k of x[m, k] * w[n, k]`, in f32.
///
/// The bits of a row of y depend on that row of x only: not on M, not on the number of threads, not on whether w is
/// stored as bf16 or as the same values in f32, and not on the instruction set, but that the portable version rounds
/// each product.
///
/// # Panics
/// When the lengths do not fit, or when the machine lacks `isa`.
pub fn multiply(isa: Isa, x: &[f32], weight: Weight<'_>, y: &mut [f32]) {
    let [n, k] = weight.shape;
    if n == 0 || y.is_empty() {
        assert!(y.is_empty(), "y has {} values for a weight without rows", y.len());
        return;
    }
    let m = y.len() / n;
    assert!(y.len() == m * n && x.len() == m * k, "x {} and y {} do not fit a weight [{n}, {k}]", x.len(), y.len());
    assert!(isa.is_available(), "this machine has no {isa:?}");
    if k == 0 {
        return y.fill(0.0);
    }
    let vector = isa.vector();
    let few = m <= FEW_ROWS && weight.rows_are_dense();
    let chained = if few { Vec::new() } else { chained(x, m, k) };
    let (x, block, most) = if few {
        (x, dot::COLUMNS, TASK_BYTES / (dot::COLUMNS * k * weight.stored.bytes()))
    } else {
        (&chained[..], vector.columns, TASK_BLOCKS)
    };
    let share = n.div_ceil(block).div_ceil(4 * rayon::current_num_threads());
    let task_columns = block * most.min(share).max(1);
    let product = Product { x, weight, y: Output(y.as_mut_ptr()), m, few, task_columns };
    parallel(n.div_ceil(task_columns), m * n * k, |next| {
        let mut tile = Vec::new();
        while let Some(task) = next() {
            // SAFETY: the machine has the instruction set, the lengths fit (both checked above), and each task comes
            // once.
            unsafe { (vector.run)(&product, task, &mut tile) }
        }
    });
}

/// x in the order in which the route for many rows reads it.
fn chained(x: &[f32], m: usize, k: usize) -> Vec<f32> {
    let mut out = vec![0.0; m * k.next_multiple_of(CHAINS)];
    let rows = x.par_chunks_exact(k).zip(out.par_chunks_exact_mut(k.next_multiple_of(CHAINS)));
    rows.for_each(|(x, out)| product::chained(x, out));
    out
}

/// Runs `work` on this thread and on rayon's; each takes the numbers below `tasks` from the same counter.
fn parallel(tasks: usize, products: usize, work: impl Fn(&dyn Fn() -> Option<usize>) + Sync) {
    let counter = AtomicUsize::new(0);
    let next = || {
        let i = counter.fetch_add(1, Ordering::Relaxed);
        (i < tasks).then_some(i)
    };
    let helpers = if products < ALONE { 0 } else { rayon::current_num_threads().min(tasks).saturating_sub(1) };
    if helpers == 0 {
        return work(&next);
    }
    // This thread works too: a wait for sleeping threads costs as much as a small product.
    rayon::in_place_scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|_| work(&next));
        }
        work(&next);
    });
}
