//! Reads chunks, verifies and decodes them, and drops what they hold.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use std::sync::atomic::{AtomicU64, Ordering};

use super::chunk::Verify;
use super::damage::damaged;
use super::parallel::{Failure, Workspace, caught, each};
use super::python::{ArrayRecordFile, numbers, raised, threads};
use super::read::Prepared;
use crate::guard::guarded;

/// Checks the chunks of records `[first, stop)`; returns the bytes of these records in memory.
///
/// `at`, `first` and `stop` are int64 of the same length: for each chunk the number of its file in
/// `files`, and positions of records in it. Raises `ChunkError` with the number of a chunk in the call.
#[pyfunction]
fn array_record_check(
    py: Python<'_>,
    files: Vec<Py<ArrayRecordFile>>,
    at: &Bound<'_, PyAny>,
    first: &Bound<'_, PyAny>,
    stop: &Bound<'_, PyAny>,
    verify_data: bool,
) -> PyResult<u64> {
    guarded(|| {
        let files: Vec<&ArrayRecordFile> = files.iter().map(Py::get).collect();
        let (at, first) = (numbers(py, at)?, numbers(py, first)?);
        let stop = numbers(py, stop)?;
        if at.len() != first.len() || at.len() != stop.len() {
            return Err(PyValueError::new_err("each chunk has a file, a first record and a last"));
        }
        let mut wanted = Vec::with_capacity(at.len());
        for ((&at, &first), &stop) in at.iter().zip(&first).zip(&stop) {
            let file = usize::try_from(at).ok().and_then(|at| files.get(at).copied());
            let place = file.and_then(|file| Some((file, file.span(first, stop)?)));
            wanted.push(place.ok_or_else(|| PyIndexError::new_err("no such records"))?);
        }
        let verify = if verify_data { Verify::All } else { Verify::Headers };
        let total = AtomicU64::new(0);
        let work = |number: usize, space: &mut Workspace| {
            let (file, (chunk, begin, end)) = wanted[number];
            let done = caught(|| {
                let chunk = Prepared::new(&file.chunk(chunk), verify, space)?;
                total.fetch_add(check(&chunk, (begin, end), space)?, Ordering::Relaxed);
                Ok(())
            });
            done.map_err(|failure| (number, failure))
        };
        let stored = wanted.iter().map(|(file, (chunk, ..))| file.stored_bytes(*chunk)).sum();
        py.detach(|| each(wanted.len(), 1, threads(stored), work))
            .map_err(|(number, failure)| raised(number, failure, wanted[number].0.path()))?;
        Ok(total.into_inner())
    })
}

/// Decodes a chunk; the bytes in memory of its records `[begin, end)`.
fn check(
    chunk: &Prepared<'_>,
    (begin, end): (usize, usize),
    space: &mut Workspace,
) -> Result<u64, Failure> {
    chunk.decode(space)?;
    let start = chunk.bounds(begin).map(|(start, _)| start);
    let stop = chunk.bounds(end - 1).map(|(_, stop)| stop);
    match start.zip(stop) {
        Some((start, stop)) => Ok((stop - start) as u64),
        None => Ok(damaged("it has not the records that the index counts")?),
    }
}

/// Registers the function of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(array_record_check, module)?)
}
