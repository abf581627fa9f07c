//! Reads chunks, verifies and decodes them, and drops what they hold.

use pyo3::prelude::*;

use std::sync::atomic::{AtomicU64, Ordering};

use super::chunk::Verify;
use super::damage::damaged;
use super::groups::spans;
use super::parallel::{Failure, Workspace, caught, each};
use super::python::{ArrayRecordFile, NOT_THERE, grain, raised};
use super::read::{Chunk, begin_of, decode};
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
        let wanted = spans(py, &files, (at, first, stop))?;
        let verify = Verify::data_if(verify_data);
        let total = AtomicU64::new(0);
        let work = |number: usize, space: &mut Workspace| {
            let (file, (chunk, begin, end)) = &wanted[number];
            let done = caught(|| {
                let found = check(&file.chunk(*chunk), verify, (*begin, *end), space)?;
                total.fetch_add(found, Ordering::Relaxed);
                Ok(())
            });
            done.map_err(|failure| (number, failure))
        };
        let stored = wanted.iter().map(|(file, (chunk, ..))| file.stored_bytes(*chunk)).sum();
        each(py, wanted.len(), grain(1, stored), work)?
            .map_err(|(number, failure)| raised(number, failure, &wanted[number].0.path))?;
        Ok(total.into_inner())
    })
}

/// Decodes a chunk; the bytes in memory of its records `[begin, end)`.
fn check(
    chunk: &Chunk<'_>,
    verify: Verify,
    (begin, end): (usize, usize),
    space: &mut Workspace,
) -> Result<u64, Failure> {
    let mut values = std::mem::take(&mut space.spare);
    let ends = decode(chunk, verify, space, &mut values);
    space.spare = values;
    let ends = ends?;
    match ends.get(end - 1) {
        Some(stop) if begin < end => Ok((stop - begin_of(&ends, begin)) as u64),
        _ => Ok(damaged(NOT_THERE)?),
    }
}

/// Registers the function of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(array_record_check, module)?)
}
