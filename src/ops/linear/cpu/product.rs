//! The two routes of a product: straight from the weight's memory, and through widened tiles.

use super::block::{Ahead, Bf16Rows, COLUMNS, F32Rows, Rows, Sums, TileRows, accumulate};
use super::panels::{Split, pack, padded};
use super::simd::Simd;
use super::weight::{Stored, Values, Weight};
use std::ops::Range;

/// Pairs of vectors along K per tile: x and w of one step of the inner loop fit in L1, a tile fits in L2 with its x.
pub(super) const TILE_LANES: usize = 512;
/// Rows of w per tile.
pub(super) const TILE_COLUMNS: usize = 32;
/// Rows of x that meet one tile before the next is widened.
pub(super) const TILE_X_ROWS: usize = 96;

/// Which way a product goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Each block of four rows of w is read once and meets all of x.
    Direct,
    /// w is widened to f32, a tile at a time.
    Tiled,
}

/// One product, prepared: everything that its tasks share.
pub(super) struct Product<'a> {
    pub x: Values<'a>,
    pub weight: Weight<'a>,
    pub split: Split,
    pub route: Route,
    /// `[M, padded K]`, by panels.
    pub packed: Shared,
    /// `[M, N]`
    pub y: Shared,
    /// Rows of w per task.
    pub task_columns: usize,
}

/// Memory that several threads write, each its own part.
#[derive(Clone, Copy)]
pub(super) struct Shared(pub *mut f32);
// SAFETY: the tasks of a product write disjoint places; see the users of `Product::packed` and `Product::y`.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

/// What a task computes.
#[derive(Clone, Copy)]
pub(super) enum Task {
    /// Lay out one panel of x.
    Pack(usize),
    /// Multiply with one range of w's rows.
    Multiply(usize),
}

/// One thread's buffers.
#[derive(Default)]
pub(super) struct Scratch {
    tile: Vec<f32>,
    sums: Vec<f32>,
}

/// # Safety
/// [`Simd`]'s conditions; `product` consistent; each task at most once, `Multiply` after all of `Pack`.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(product: &Product<'_>, task: Task, scratch: &mut Scratch) {
    match task {
        Task::Pack(panel) => {
            let k = product.weight.shape[1];
            let rows = product.split.rows(panel);
            let len = padded::<S>(k);
            // SAFETY: panels are disjoint, and together as long as the buffer.
            let out = unsafe { std::slice::from_raw_parts_mut(product.packed.0.add(rows.start * len), rows.len() * len) };
            pack::<S>(product.x, k, rows, product.weight.stored, out);
        }
        Task::Multiply(task) => {
            let first = task * product.task_columns;
            let columns = first..product.weight.shape[0].min(first + product.task_columns);
            unsafe {
                match (product.route, product.weight.stored) {
                    (Route::Direct, Stored::Bf16) => direct::<S, _>(product, columns, Bf16Rows),
                    (Route::Direct, Stored::F32) => direct::<S, _>(product, columns, F32Rows),
                    (Route::Tiled, _) => tiled::<S>(product, columns, scratch),
                }
            }
        }
    }
}

/// # Safety
/// See [`run`]; the weight's rows are dense.
#[inline(always)]
unsafe fn direct<S: Simd, W: Rows<S>>(
    product: &Product<'_>,
    columns: Range<usize>,
    source: impl Fn([*const u8; COLUMNS]) -> W,
) {
    let [_, k] = product.weight.shape;
    let pairs = k / (2 * S::LANES);
    let row_bytes = k * product.weight.stored.bytes();
    let panels = product.split.panels;
    let mut tail = vec![0.0f32; if k % (2 * S::LANES) == 0 { 0 } else { 2 * COLUMNS * S::LANES }];
    for column in columns.clone().step_by(COLUMNS) {
        let block = column..columns.end.min(column + COLUMNS);
        let w = source(std::array::from_fn(|c| product.weight.at((column + c).min(block.end - 1), 0)));
        if !tail.is_empty() {
            fill_tile::<S>(&product.weight, block.clone(), pairs, 1, &mut tail);
        }
        // What the next block needs is asked for while this one is computed, evenly over the panels.
        let next = (block.end < columns.end).then(|| product.weight.at(block.end, 0));
        for panel in 0..panels {
            let ahead = next.map(|next| Ahead {
                at: next.wrapping_add(COLUMNS * row_bytes * panel / panels),
                step: 2 * COLUMNS * S::LANES * product.weight.stored.bytes() / panels,
            });
            let rows = product.split.rows(panel);
            unsafe {
                match rows.len() {
                    1 => direct_panel::<S, W, 1>(product, rows.start, w, pairs, &tail, block.clone(), ahead),
                    2 => direct_panel::<S, W, 2>(product, rows.start, w, pairs, &tail, block.clone(), ahead),
                    3 => direct_panel::<S, W, 3>(product, rows.start, w, pairs, &tail, block.clone(), ahead),
                    _ => direct_panel::<S, W, 4>(product, rows.start, w, pairs, &tail, block.clone(), ahead),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn direct_panel<S: Simd, W: Rows<S>, const R: usize>(
    product: &Product<'_>,
    row: usize,
    w: W,
    pairs: usize,
    tail: &[f32],
    block: Range<usize>,
    ahead: Option<Ahead>,
) {
    unsafe {
        let x = product.packed.0.add(row * padded::<S>(product.weight.shape[1])).cast_const();
        let mut sums: Sums<S, R> = [[S::zero(); COLUMNS]; R];
        match ahead {
            Some(_) => accumulate::<S, W, R>(x, w, pairs, &mut sums, ahead),
            None => accumulate::<S, W, R>(x, w, pairs, &mut sums, None),
        }
        if !tail.is_empty() {
            let x = x.add(pairs * 2 * R * S::LANES);
            accumulate::<S, _, R>(x, TileRows(tail.as_ptr()), 1, &mut sums, None);
        }
        write::<S, R>(product, row, &sums, block);
    }
}

/// Adds up the lanes and stores the results.
#[inline(always)]
unsafe fn write<S: Simd, const R: usize>(product: &Product<'_>, row: usize, sums: &Sums<S, R>, block: Range<usize>) {
    for (r, sums) in sums.iter().enumerate() {
        unsafe {
            let values = S::sums(*sums);
            let out = product.y.0.add((row + r) * product.weight.shape[0] + block.start);
            if block.len() == COLUMNS {
                out.cast::<[f32; COLUMNS]>().write(values);
            } else {
                std::ptr::copy_nonoverlapping(values.as_ptr(), out, block.len());
            }
        }
    }
}

/// Widens `pairs` pairs of vectors of up to four rows from pair `first` on, with zeros past the row's end.
#[inline(always)]
fn fill_tile<S: Simd>(weight: &Weight<'_>, block: Range<usize>, first: usize, pairs: usize, out: &mut [f32]) {
    let [_, k] = weight.shape;
    let width = 2 * S::LANES;
    for c in 0..COLUMNS {
        let row = (block.start + c).min(block.end - 1);
        for i in 0..pairs {
            let from = (first + i) * width;
            let place = out[2 * i * COLUMNS * S::LANES..].as_mut_ptr();
            let halves = [place.wrapping_add(c * S::LANES), place.wrapping_add((COLUMNS + c) * S::LANES)];
            if from + width <= k && weight.rows_are_dense() {
                let p = weight.at(row, from);
                // SAFETY: the row holds `width` values from here, and the tile all of this pair.
                unsafe {
                    let (a, b) = match weight.stored {
                        Stored::Bf16 => S::widen(p),
                        Stored::F32 => (S::load(p), S::load(p.wrapping_add(S::LANES * 4))),
                    };
                    S::store(halves[0], a);
                    S::store(halves[1], b);
                }
            } else {
                for j in 0..width {
                    let (half, lane) = match weight.stored {
                        Stored::Bf16 => (j % 2, j / 2),
                        Stored::F32 => (j / S::LANES, j % S::LANES),
                    };
                    let value = if from + j < k { weight.get(row, from + j) } else { 0.0 };
                    // SAFETY: as above.
                    unsafe { halves[half].add(lane).write(value) }
                }
            }
        }
    }
}

/// # Safety
/// See [`run`].
#[inline(always)]
unsafe fn tiled<S: Simd>(product: &Product<'_>, columns: Range<usize>, scratch: &mut Scratch) {
    let pairs = padded::<S>(product.weight.shape[1]) / (2 * S::LANES);
    let step = (TILE_LANES / (2 * S::LANES)).min(pairs.max(1));
    let block_len = step * 2 * COLUMNS * S::LANES;
    let blocks = columns.len().div_ceil(COLUMNS);
    let panels_at_once = (TILE_X_ROWS / S::TILE_ROWS).min(product.split.panels).max(1);
    let sums_len = COLUMNS * S::TILE_ROWS * S::LANES;
    scratch.tile.resize(blocks * block_len, 0.0);
    scratch.sums.resize(panels_at_once * blocks * sums_len, 0.0);
    for first_panel in (0..product.split.panels).step_by(panels_at_once) {
        let panels = first_panel..product.split.panels.min(first_panel + panels_at_once);
        for first in (0..pairs).step_by(step) {
            let count = step.min(pairs - first);
            for b in 0..blocks {
                let block = block_of(&columns, b);
                fill_tile::<S>(&product.weight, block, first, count, &mut scratch.tile[b * block_len..][..block_len]);
            }
            let part = Part { first, count, start: first == 0, end: first + count == pairs };
            for panel in panels.clone() {
                let rows = product.split.rows(panel);
                for b in 0..blocks {
                    let block = block_of(&columns, b);
                    let w = TileRows(scratch.tile[b * block_len..].as_ptr());
                    let sums = scratch.sums[((panel - panels.start) * blocks + b) * sums_len..][..sums_len].as_mut_ptr();
                    unsafe {
                        match rows.len() {
                            1 => tile_panel::<S, 1>(product, rows.start, w, part, sums, block),
                            2 => tile_panel::<S, 2>(product, rows.start, w, part, sums, block),
                            3 => tile_panel::<S, 3>(product, rows.start, w, part, sums, block),
                            _ => tile_panel::<S, 4>(product, rows.start, w, part, sums, block),
                        }
                    }
                }
            }
        }
    }
}

fn block_of(columns: &Range<usize>, block: usize) -> Range<usize> {
    let start = columns.start + block * COLUMNS;
    start..columns.end.min(start + COLUMNS)
}

/// A stretch of K.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    count: usize,
    start: bool,
    end: bool,
}

#[inline(always)]
unsafe fn tile_panel<S: Simd, const R: usize>(
    product: &Product<'_>,
    row: usize,
    w: TileRows,
    part: Part,
    kept: *mut f32,
    block: Range<usize>,
) {
    unsafe {
        let x = product.packed.0.add(row * padded::<S>(product.weight.shape[1])).cast_const();
        let x = x.add(part.first * 2 * R * S::LANES);
        let mut sums: Sums<S, R> = [[S::zero(); COLUMNS]; R];
        if !part.start {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(kept.add((r * COLUMNS + c) * S::LANES).cast_const().cast());
                }
            }
        }
        accumulate::<S, _, R>(x, w, part.count, &mut sums, None);
        if part.end {
            write::<S, R>(product, row, &sums, block);
        } else {
            for (r, sums) in sums.iter().enumerate() {
                for (c, sum) in sums.iter().enumerate() {
                    S::store(kept.add((r * COLUMNS + c) * S::LANES), *sum);
                }
            }
        }
    }
}
