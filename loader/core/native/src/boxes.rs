//! Boxes of arrays of any rank: which chunks they lie in, and copies of their cells to outputs.
//!
//! The same in NumPy, and what the numbers mean, is in `windrow/sources/boxes.py` and
//! `windrow/engine/box_cache.py`. Invariant: `Boxes` checked that every fragment lies in its output.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::guarded;
use crate::memory::{Axis, Copier, Memory};
use crate::planning::bytes;
use crate::pool;
use crate::zarr::Piece;

/// A box in more chunks than this is left to NumPy, which raises an error where memory ends.
const MOST_CHUNKS: i64 = 1 << 12;
/// With less than this, one thread is done before another one has begun.
const WORTH_THREADS_BYTES: usize = 512 << 10;
/// Bytes that a thread copies at a time.
const STEP_BYTES: usize = 128 << 10;

fn refused(why: impl Into<String>) -> PyErr {
    PyValueError::new_err(why.into())
}

/// A chunked array, by axis: cells of a chunk, cells of the first one before cell 0, and chunk numbers
/// from one chunk to the next.
struct Grid<'a> {
    chunk: &'a [i64],
    shift: &'a [i64],
    weights: &'a [i64],
}

/// Parts of boxes, each in one chunk; the numbers of all axes of a fragment lie together.
#[derive(Default)]
struct Fragments {
    boxes: Vec<i64>,
    chunks: Vec<i64>,
    first: Vec<i64>,
    /// The place in the core of the box.
    places: Vec<i64>,
    lengths: Vec<i64>,
}

impl Fragments {
    /// The fragments of boxes with the cells `[low, high)`; None for absurd numbers.
    fn of(low: &[i64], high: &[i64], grid: &Grid<'_>) -> Option<Fragments> {
        let rank = grid.chunk.len();
        let mut found = Fragments::default();
        let mut at = vec![0; rank];
        let (mut begin, mut end) = (vec![0; rank], vec![0; rank]);
        for (number, (low, high)) in low.chunks(rank).zip(high.chunks(rank)).enumerate() {
            if low.iter().zip(high).any(|(low, high)| high <= low) {
                continue;
            }
            let mut count = 1i64;
            for axis in 0..rank {
                let (chunk, shift) = (grid.chunk[axis], grid.shift[axis]);
                begin[axis] = low[axis].checked_add(shift).filter(|&cell| cell >= 0)? / chunk;
                end[axis] =
                    high[axis].checked_add(shift)?.checked_add(chunk)?.checked_sub(1)? / chunk;
                count = count.checked_mul(end[axis] - begin[axis])?;
            }
            if count > MOST_CHUNKS {
                return None;
            }
            at.copy_from_slice(&begin);
            loop {
                found.push(number as i64, &at, (low, high), grid)?;
                let Some(axis) = (0..rank).rev().find(|&axis| at[axis] + 1 < end[axis]) else {
                    break;
                };
                at[axis] += 1;
                at[axis + 1..].copy_from_slice(&begin[axis + 1..]);
            }
        }
        Some(found)
    }

    fn push(
        &mut self,
        number: i64,
        at: &[i64],
        (low, high): (&[i64], &[i64]),
        grid: &Grid<'_>,
    ) -> Option<()> {
        let mut chunk = 0i64;
        for (axis, &place) in at.iter().enumerate() {
            chunk = chunk.checked_add(place.checked_mul(grid.weights[axis])?)?;
            let corner = place * grid.chunk[axis] - grid.shift[axis];
            let start = low[axis].max(corner);
            self.first.push(start);
            self.places.push(start - low[axis]);
            self.lengths.push(high[axis].min(corner + grid.chunk[axis]) - start);
        }
        self.boxes.push(number);
        self.chunks.push(chunk);
        Some(())
    }
}

/// The fragments of boxes with the cells `[low, high)`, `(boxes, rank)`, of an array in chunks.
///
/// Returns the bytes of int64 by fragment: box and chunk, and, along each axis, the first cell, its
/// place in the box and the number of cells. None leaves them to NumPy.
#[pyfunction]
fn plan_boxes<'py>(
    py: Python<'py>,
    low: &Bound<'py, PyAny>,
    high: &Bound<'py, PyAny>,
    chunk: &Bound<'py, PyAny>,
    shift: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
) -> PyResult<Option<[Bound<'py, PyBytes>; 5]>> {
    guarded(|| {
        let given = numbers([low, high, chunk, shift, weights])?;
        let [low, high, chunk, shift, weights] = int64(&given)?;
        let (rank, sizes) = (chunk.len(), [chunk.len(), shift.len(), weights.len()]);
        let is_sound = rank > 0 && sizes == [rank; 3] && low.len() == high.len();
        if !is_sound || low.len() % rank != 0 || chunk.iter().any(|&cells| cells < 1) {
            return Err(refused("the numbers of axes differ"));
        }
        let Some(found) = Fragments::of(low, high, &Grid { chunk, shift, weights }) else {
            return Ok(None);
        };
        let Fragments { boxes, chunks, first, places, lengths } = &found;
        Ok(Some([boxes, chunks, first, places, lengths].map(|column| bytes(py, column))))
    })
}

fn numbers<const N: usize>(given: [&Bound<'_, PyAny>; N]) -> PyResult<[Memory; N]> {
    let found: PyResult<Vec<Memory>> = given.into_iter().map(Memory::readable).collect();
    found?.try_into().map_err(|_| refused("numbers are missing"))
}

fn int64<const N: usize>(given: &[Memory; N]) -> PyResult<[&[i64]; N]> {
    let found: Option<Vec<&[i64]>> = given.iter().map(Memory::int64).collect();
    let found = found.ok_or_else(|| refused("the numbers are not int64"))?;
    found.try_into().map_err(|_| refused("numbers are missing"))
}

/// A fragment of a box: its cells in the array, and where its first one goes.
struct Part {
    first: Vec<usize>,
    lengths: Vec<usize>,
    to: *mut u8,
    output: usize,
}

/// Fragments of boxes and where they go; plain numbers, so any thread may drop it.
pub struct Placed {
    parts: Vec<Part>,
    /// Fragments of wanted chunk `k` are `order[bounds[k]..bounds[k + 1]]`.
    order: Vec<usize>,
    bounds: Vec<usize>,
    /// Bytes from one cell to the next along each axis, by output.
    strides: Vec<Vec<isize>>,
    itemsize: usize,
}

// SAFETY: the pointers are to memory that `Boxes` holds; fragments are disjoint cells of it.
unsafe impl Send for Placed {}
// SAFETY: as above.
unsafe impl Sync for Placed {}

/// The columns of `BoxFragments`, and the field of each cut.
struct Columns<'a> {
    fields: &'a [i64],
    records: &'a [i64],
    cuts: &'a [i64],
    first: &'a [i64],
    targets: &'a [i64],
    lengths: &'a [i64],
}

impl Columns<'_> {
    fn placed(&self, outputs: &[Memory], which: &[i64], chunks: usize) -> Result<Placed, String> {
        let count = self.records.len();
        let shapes: Vec<Vec<usize>> = outputs.iter().map(Memory::shape).collect();
        let itemsize = outputs.first().map_or(0, Memory::itemsize);
        let axes = shapes.first().map_or(0, Vec::len);
        let cells = [self.first.len(), self.targets.len(), self.lengths.len()];
        if axes < 2
            || shapes.iter().any(|shape| shape.len() != axes)
            || outputs.iter().any(|output| output.itemsize() != itemsize)
            || cells != [count * (axes - 1); 3]
            || [self.cuts.len(), which.len()] != [count; 2]
        {
            return Err("the numbers of axes or fragments differ".to_owned());
        }
        let strides: Vec<Vec<isize>> = outputs.iter().map(Memory::strides).collect();
        let part = |k: usize| {
            let output =
                usize::try_from(*self.fields.get(usize::try_from(self.cuts[k]).ok()?)?).ok()?;
            let (shape, steps) = (shapes.get(output)?, &strides[output]);
            let record =
                usize::try_from(self.records[k]).ok().filter(|&record| record < shape[0])?;
            let mut shift = record as isize * steps[0];
            let (mut first, mut lengths) = (Vec::with_capacity(axes), Vec::with_capacity(axes));
            for axis in 1..axes {
                let at = k * (axes - 1) + axis - 1;
                let target = usize::try_from(self.targets[at]).ok()?;
                let length = usize::try_from(self.lengths[at]).ok()?;
                target.checked_add(length).filter(|&stop| stop <= shape[axis])?;
                first.push(usize::try_from(self.first[at]).ok()?);
                lengths.push(length);
                shift += target as isize * steps[axis];
            }
            let to = outputs[output].pointer().wrapping_offset(shift);
            Some(Part { first, lengths, to, output })
        };
        let parts: Option<Vec<Part>> = (0..count).map(part).collect();
        let parts = parts.ok_or("a fragment does not lie in its output")?;
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&k| which[k]);
        if order.last().is_some_and(|&k| which[k] >= chunks as i64 || which[order[0]] < 0) {
            return Err("there is no such chunk".to_owned());
        }
        let bounds =
            (0..=chunks as i64).map(|k| order.partition_point(|&at| which[at] < k)).collect();
        let strides = strides.into_iter().map(|steps| steps[1..].to_vec()).collect();
        Ok(Placed { parts, order, bounds, strides, itemsize })
    }
}

impl Placed {
    /// The cells of wanted chunk `k` and where they go, seen from the chunk's first cell `corner`.
    ///
    /// An error if cells outside of a chunk of this `shape` are wanted.
    pub fn pieces(
        &self,
        k: usize,
        corner: &[usize],
        shape: &[usize],
    ) -> Result<Vec<Piece>, String> {
        let bounds = self.bounds.get(k).zip(self.bounds.get(k + 1)).ok_or("no such chunk")?;
        let piece = |&at: &usize| {
            let part = &self.parts[at];
            let first = self.inside(part, corner, shape)?;
            let strides = self.strides[part.output].clone();
            Some(Piece { first, shape: part.lengths.clone(), to: part.to, strides })
        };
        let found: Option<Vec<Piece>> =
            self.order[*bounds.0..*bounds.1].iter().map(piece).collect();
        found.ok_or("cells outside of the chunk are wanted".to_owned())
    }

    /// Whether outputs have values of this size and this number of axes.
    pub fn fits(&self, itemsize: usize, rank: usize) -> bool {
        self.itemsize == itemsize && self.strides.iter().all(|steps| steps.len() == rank)
    }

    /// The first cell of a part in a chunk; None if not all of its cells are there.
    fn inside(&self, part: &Part, corner: &[usize], shape: &[usize]) -> Option<Vec<usize>> {
        let axes = part.first.iter().zip(&part.lengths).zip(corner.iter().zip(shape));
        let found = axes.map(|((&first, &length), (&corner, &cells))| {
            let first = first.checked_sub(corner)?;
            first.checked_add(length).filter(|&stop| stop <= cells).map(|_| first)
        });
        found.collect()
    }
}

/// Fragments of boxes, each in one chunk, and the outputs that their cells go to.
#[pyclass(frozen)]
pub struct Boxes {
    pub placed: Arc<Placed>,
    _outputs: Vec<Memory>,
}

#[pymethods]
impl Boxes {
    /// Places fragments, the columns of `BoxFragments`, in `outputs`, one array of records per field.
    ///
    /// Fragment `k` lies in chunk `which[k]` of the `chunks` that are wanted; `fields` has the field of
    /// each cut. No cell of an output has two fragments.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "called from Python, by their places")]
    fn new(
        outputs: Vec<Bound<'_, PyAny>>,
        fields: &Bound<'_, PyAny>,
        records: &Bound<'_, PyAny>,
        cuts: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        targets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        which: &Bound<'_, PyAny>,
        chunks: usize,
    ) -> PyResult<Boxes> {
        guarded(|| {
            let outputs: PyResult<Vec<Memory>> = outputs.iter().map(Memory::writable).collect();
            let outputs = outputs?;
            let given = numbers([fields, records, cuts, first, targets, lengths, which])?;
            let [fields, records, cuts, first, targets, lengths, which] = int64(&given)?;
            let columns = Columns { fields, records, cuts, first, targets, lengths };
            let placed = columns.placed(&outputs, which, chunks).map_err(refused)?;
            Ok(Boxes { placed: Arc::new(placed), _outputs: outputs })
        })
    }

    /// Copies fragments out of slots `(slots, *chunk)` to the outputs, on all cores.
    ///
    /// The chunk that fragment `k` lies in is in slot `slots[k]`. A slot's first cell is its chunk's
    /// first cell in the array, whose chunks have `sizes` and begin `shift` cells before cell 0.
    fn gather(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        sizes: Vec<usize>,
        shift: Vec<usize>,
        slots: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        guarded(|| {
            let (memory, numbers) = (Memory::readable(memory)?, Memory::readable(slots)?);
            let slots = numbers.int64().ok_or_else(|| refused("the slots are not int64"))?;
            let copies = self.copies(&memory, &sizes, &shift, slots).map_err(refused)?;
            let total: usize = copies.iter().map(|copy| copy.bytes).sum();
            let mut tasks = vec![0];
            let mut bytes = 0;
            for (k, copy) in copies.iter().enumerate() {
                bytes += copy.bytes;
                if bytes >= STEP_BYTES || k + 1 == copies.len() {
                    tasks.push(k + 1);
                    bytes = 0;
                }
            }
            let run = |copies: &[Copy]| {
                for copy in copies {
                    // SAFETY: `copies` checked that it lies in its slot, and `new` in its output.
                    unsafe { copy.copier.copy(copy.from, copy.to) }
                }
            };
            if total < STEP_BYTES {
                run(&copies); // to get the interpreter's lock back may take longer
                return Ok(());
            }
            let count = tasks.len() - 1;
            let step = if total < WORTH_THREADS_BYTES { count } else { 1 };
            pool::each_with(py, (count, step), |task, _| {
                run(&copies[tasks[task]..tasks[task + 1]]);
            })
        })
    }
}

/// A copy of one fragment.
struct Copy {
    copier: Copier,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
}

// SAFETY: it writes to the cells of one fragment, which no other copy has, and its caller holds the memory.
unsafe impl Sync for Copy {}

impl Boxes {
    fn copies(
        &self,
        memory: &Memory,
        sizes: &[usize],
        shift: &[usize],
        slots: &[i64],
    ) -> Result<Vec<Copy>, String> {
        let (placed, shape, steps) = (&*self.placed, memory.shape(), memory.strides());
        let rank = shape.len().saturating_sub(1);
        let is_right = placed.fits(memory.itemsize(), rank)
            && [sizes.len(), shift.len()] == [rank; 2]
            && slots.len() == placed.parts.len()
            && !sizes.contains(&0);
        if !is_right {
            return Err("the slots have other axes or values than the outputs".to_owned());
        }
        let copy = |(part, &slot): (&Part, &i64)| {
            let slot = usize::try_from(slot).ok().filter(|&slot| slot < shape[0])?;
            let corner = (0..rank).map(|axis| {
                let cell = part.first[axis].checked_add(shift[axis])?;
                Some((cell - cell % sizes[axis]).saturating_sub(shift[axis]))
            });
            let corner: Option<Vec<usize>> = corner.collect();
            let first = placed.inside(part, &corner?, &shape[1..])?;
            let from = first.iter().zip(&steps[1..]).map(|(&first, step)| first as isize * step);
            let shift = slot as isize * steps[0] + from.sum::<isize>();
            let strides = &placed.strides[part.output];
            let axes = (0..rank).map(|axis| Axis {
                count: part.lengths[axis],
                from: steps[axis + 1] as usize,
                to: strides[axis],
            });
            let copier = Copier::new(&axes.collect::<Vec<Axis>>(), placed.itemsize, 1);
            let from = memory.pointer().wrapping_offset(shift).cast_const();
            let bytes = part.lengths.iter().product::<usize>() * placed.itemsize;
            Some(Copy { copier, from, to: part.to, bytes })
        };
        let found: Option<Vec<Copy>> = placed.parts.iter().zip(slots).map(copy).collect();
        found.ok_or("a fragment does not lie in its slot".to_owned())
    }
}

/// Registers the names of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Boxes>()?;
    module.add_function(wrap_pyfunction!(plan_boxes, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(low: &[i64], high: &[i64]) -> Option<Fragments> {
        Fragments::of(low, high, &Grid { chunk: &[4, 5], shift: &[1, 0], weights: &[10, 1] })
    }

    #[test]
    fn boxes_are_cut_where_chunks_begin() {
        let found = of(&[2, 3, 0, 0], &[5, 6, 1, 5]).unwrap();
        assert_eq!(found.boxes, [0, 0, 0, 0, 1]);
        assert_eq!(found.chunks, [0, 1, 10, 11, 0]);
        assert_eq!(found.first, [2, 3, 2, 5, 3, 3, 3, 5, 0, 0]);
        assert_eq!(found.places, [0, 0, 0, 2, 1, 0, 1, 2, 0, 0]);
        assert_eq!(found.lengths, [1, 2, 1, 1, 2, 2, 2, 1, 1, 5]);
    }

    #[test]
    fn empty_boxes_have_no_fragments() {
        assert!(of(&[2, 3], &[2, 6]).unwrap().boxes.is_empty());
        assert!(of(&[], &[]).unwrap().boxes.is_empty());
    }

    #[test]
    fn absurd_numbers_are_left_out() {
        assert!(of(&[-2, 0], &[5, 5]).is_none());
        assert!(of(&[0, 0], &[i64::MAX, 5]).is_none());
        assert!(of(&[0, 0], &[4 * MOST_CHUNKS + 4, 5]).is_none());
        assert!(of(&[i64::MAX - 9, 0], &[i64::MAX - 5, 5]).is_none());
    }
}
