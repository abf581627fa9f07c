//! A table of work: which chunks the rows of a read batch lie in, and where in these.
//!
//! The same in NumPy, and what the numbers mean, is in `windrow/engine/chunk_cache.py`.

use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::guarded;
use crate::memory::Memory;

/// A record in more chunks than this is left to NumPy, which raises an error where memory ends.
const MOST_CHUNKS: i64 = 64;

/// Division by one number many times, by a multiplication each.
struct Divisor {
    by: u64,
    inverse: u64,
}

impl Divisor {
    fn new(by: u64) -> Divisor {
        Divisor { by, inverse: u64::MAX / by }
    }

    /// The quotient and the rest.
    fn split(&self, number: u64) -> (u64, u64) {
        // The inverse is too small by at most 1 of 2**64, so the quotient by at most 1.
        let product = u128::from(number) * u128::from(self.inverse);
        let quotient = (product >> 64) as u64;
        let rest = number - quotient * self.by;
        if rest < self.by { (quotient, rest) } else { (quotient + 1, rest - self.by) }
    }
}

/// Parts of records, each in one chunk, in the order of the records.
#[derive(Default)]
struct Fragments {
    chunks: Vec<i64>,
    sources: Vec<i64>,
    /// These are empty where each record is one row.
    records: Vec<i64>,
    targets: Vec<i64>,
    lengths: Vec<i64>,
}

impl Fragments {
    /// The fragments of single rows, or of runs of `size` rows, that begin at the rows `first`.
    ///
    /// None for absurd numbers.
    fn of(first: &[i64], size: Option<i64>, chunk_rows: i64) -> Option<Fragments> {
        let (low, high) = first.iter().fold((0, 0), |(l, h), &row| (row.min(l), row.max(h)));
        let rows = size.unwrap_or(1);
        let is_sound = low >= 0 && rows >= 1 && chunk_rows >= 1 && rows / chunk_rows < MOST_CHUNKS;
        if !is_sound || high.checked_add(rows)?.checked_add(chunk_rows).is_none() {
            return None;
        }
        let by = Divisor::new(chunk_rows as u64);
        let mut found = Fragments::default();
        if size.is_none() {
            let places = first.iter().map(|&row| by.split(row as u64));
            (found.chunks, found.sources) =
                places.map(|(chunk, source)| (chunk as i64, source as i64)).unzip();
        } else {
            for (record, &start) in first.iter().enumerate() {
                found.cut(record as i64, start, start + rows, 0, &by);
            }
        }
        Some(found)
    }

    /// The fragments of runs of `sizes` rows, that go to the rows from `targets` on.
    ///
    /// None for absurd numbers.
    fn of_runs(
        first: &[i64],
        sizes: &[i64],
        targets: &[i64],
        chunk_rows: i64,
    ) -> Option<Fragments> {
        if chunk_rows < 1 || sizes.len() != first.len() || targets.len() != first.len() {
            return None;
        }
        let by = Divisor::new(chunk_rows as u64);
        let mut found = Fragments::default();
        for (record, ((&start, &size), &target)) in first.iter().zip(sizes).zip(targets).enumerate()
        {
            let stop = start.checked_add(size)?;
            if start < 0 || size < 0 || target < 0 || size / chunk_rows >= MOST_CHUNKS {
                return None;
            }
            stop.checked_add(chunk_rows)?;
            target.checked_add(size)?;
            found.cut(record as i64, start, stop, target, &by);
        }
        Some(found)
    }

    /// Adds the rows `[start, stop)` of one record, cut where chunks begin, from `target` on.
    fn cut(&mut self, record: i64, start: i64, stop: i64, target: i64, by: &Divisor) {
        let (chunk, source) = by.split(start as u64);
        let (mut chunk, mut source, mut row) = (chunk as i64, source as i64, start);
        while row < stop {
            let length = (by.by as i64 - source).min(stop - row);
            self.chunks.push(chunk);
            self.sources.push(source);
            self.records.push(record);
            self.targets.push(target + row - start);
            self.lengths.push(length);
            (chunk, source, row) = (chunk + 1, 0, row + length);
        }
    }

    /// The rows that are wanted of each of `count` chunks, once these are numbered.
    fn rows(&self, count: usize) -> Vec<i64> {
        let mut rows = vec![0; count];
        for (k, &chunk) in self.chunks.iter().enumerate() {
            rows[chunk as usize] += self.lengths.get(k).copied().unwrap_or(1);
        }
        rows
    }

    /// The distinct chunks in order, and replaces each chunk by its place among them.
    fn number(&mut self) -> Vec<i64> {
        let Some(low) = self.chunks.iter().copied().min() else { return Vec::new() };
        let high = self.chunks.iter().copied().max().unwrap_or(low);
        let span = (high - low) as usize + 1;
        if span / 4 > self.chunks.len() {
            let mut distinct = self.chunks.clone();
            distinct.sort_unstable();
            distinct.dedup();
            for chunk in &mut self.chunks {
                *chunk = distinct.partition_point(|other| other < chunk) as i64;
            }
            return distinct;
        }
        let mut places = vec![-1; span];
        for chunk in &self.chunks {
            places[(chunk - low) as usize] = 0;
        }
        let mut distinct = Vec::new();
        for (chunk, place) in (low..).zip(&mut places).filter(|(_, place)| **place == 0) {
            *place = distinct.len() as i64;
            distinct.push(chunk);
        }
        for chunk in &mut self.chunks {
            *chunk = places[(*chunk - low) as usize];
        }
        distinct
    }
}

/// The bytes of numbers.
pub fn bytes<'py>(py: Python<'py>, numbers: &[i64]) -> Bound<'py, PyBytes> {
    // SAFETY: the numbers lie in a row, and any byte of them may be read.
    let bytes = unsafe { slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) };
    PyBytes::new(py, bytes)
}

/// The distinct chunks, the rows that are wanted of each, and the bytes of int64 by fragment:
/// which chunk, the first row in it, and of runs also record, target and length.
type Planned<'py> = (Vec<i64>, Vec<i64>, Vec<Bound<'py, PyBytes>>);

/// The chunks of single rows, or of runs of `size` rows that begin at the rows `first`.
///
/// None leaves them to NumPy.
///
/// Keeps the interpreter's lock: it takes some microseconds, and to get the lock back takes longer.
#[pyfunction]
#[pyo3(signature = (first, size, chunk_rows))]
fn plan_rows<'py>(
    py: Python<'py>,
    first: &Bound<'py, PyAny>,
    size: Option<i64>,
    chunk_rows: i64,
) -> PyResult<Option<Planned<'py>>> {
    guarded(|| {
        let memory = Memory::readable(first)?;
        let first = memory.int64().ok_or_else(|| PyValueError::new_err("rows must be int64"))?;
        Ok(Fragments::of(first, size, chunk_rows).map(|found| planned(py, found, size.is_some())))
    })
}

/// The same of runs of `sizes` rows, which go to the rows from `targets` on.
#[pyfunction]
fn plan_runs<'py>(
    py: Python<'py>,
    first: &Bound<'py, PyAny>,
    sizes: &Bound<'py, PyAny>,
    targets: &Bound<'py, PyAny>,
    chunk_rows: i64,
) -> PyResult<Option<Planned<'py>>> {
    guarded(|| {
        let memory = [first, sizes, targets].map(Memory::readable);
        let [first, sizes, targets] = memory;
        let (first, sizes, targets) = (first?, sizes?, targets?);
        let [Some(first), Some(sizes), Some(targets)] =
            [&first, &sizes, &targets].map(Memory::int64)
        else {
            return Err(PyValueError::new_err("rows must be int64"));
        };
        let found = Fragments::of_runs(first, sizes, targets, chunk_rows);
        Ok(found.map(|found| planned(py, found, true)))
    })
}

/// Fragments as Python takes them; `has_runs` says that records are not one row each.
fn planned(py: Python<'_>, mut found: Fragments, has_runs: bool) -> Planned<'_> {
    let distinct = found.number();
    let rows = found.rows(distinct.len());
    let mut columns = vec![bytes(py, &found.chunks), bytes(py, &found.sources)];
    if has_runs {
        columns.extend([&found.records, &found.targets, &found.lengths].map(|c| bytes(py, c)));
    }
    (distinct, rows, columns)
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(plan_rows, module)?)?;
    module.add_function(wrap_pyfunction!(plan_runs, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_where_chunks_begin() {
        let found = Fragments::of(&[8, 3], Some(4), 5).unwrap();
        assert_eq!(found.records, [0, 0, 1, 1]);
        assert_eq!(found.chunks, [1, 2, 0, 1]);
        assert_eq!(found.sources, [3, 0, 3, 0]);
        assert_eq!(found.targets, [0, 2, 0, 2]);
        assert_eq!(found.lengths, [2, 2, 2, 2]);
    }

    #[test]
    fn runs_of_many_sizes_go_to_their_targets() {
        let found = Fragments::of_runs(&[8, 3, 6], &[4, 0, 2], &[10, 7, 0], 5).unwrap();
        assert_eq!(found.records, [0, 0, 2]);
        assert_eq!(found.chunks, [1, 2, 1]);
        assert_eq!(found.sources, [3, 0, 1]);
        assert_eq!(found.targets, [10, 12, 0]);
        assert_eq!(found.lengths, [2, 2, 2]);
        for (first, size, target) in [(-1, 1, 0), (0, -1, 0), (0, 1, -1), (i64::MAX, 1, 0)] {
            assert!(Fragments::of_runs(&[first], &[size], &[target], 5).is_none());
        }
        assert!(Fragments::of_runs(&[0], &[64], &[0], 1).is_none());
        assert!(Fragments::of_runs(&[0, 1], &[1], &[0, 1], 1).is_none());
        assert!(Fragments::of_runs(&[], &[], &[], 0).is_none());
    }

    #[test]
    fn chunks_are_numbered_in_order() {
        for far in [9, 9_000_000_000] {
            let mut found = Fragments { chunks: vec![far, 2, 7, 2], ..Fragments::default() };
            assert_eq!(found.number(), [2, 7, far]);
            assert_eq!(found.chunks, [2, 0, 1, 0]);
        }
        assert!(Fragments::default().number().is_empty());
    }

    #[test]
    fn absurd_numbers_are_left_out() {
        assert!(Fragments::of(&[-1], None, 5).is_none());
        assert!(Fragments::of(&[i64::MAX], None, 5).is_none());
        assert!(Fragments::of(&[0], Some(64), 1).is_none());
        assert!(Fragments::of(&[0], Some(0), 1).is_none());
        assert!(Fragments::of(&[0], None, 0).is_none());
        assert!(Fragments::of(&[], None, i64::MAX - 1).is_some());
        assert!(Fragments::of(&[i64::MAX - 6], None, 5).is_some());
    }

    #[test]
    fn quotients_are_exact() {
        for by in [1, 2, 3, 7, 240, 1 << 20, (1 << 20) + 1, i64::MAX as u64 - 1, i64::MAX as u64] {
            let divisor = Divisor::new(by);
            let near = [0, 1, 2, by - 1, by, by + 1, 5 * (by / 5), i64::MAX as u64];
            for number in near.into_iter().chain((0..9).map(|k| i64::MAX as u64 / 9 * k)) {
                assert_eq!(divisor.split(number), (number / by, number % by));
            }
        }
    }
}
