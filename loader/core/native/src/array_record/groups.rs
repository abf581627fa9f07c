//! Chunks that are read while Python does other work, and records out of them.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::chunk::Verify;
use super::decoded::Decoded;
use super::file::RecordFile;
use super::parallel::{Failure, caught};
use super::python::{ArrayRecordFile, Damages, NOT_THERE, bytes_objects, numbers, raised};
use crate::guard::guarded;
use crate::memory::Memory;
use crate::pool::{self, Found, Scratch, Tasks, Work};

/// Records of a chunk in memory; a sequence of `bytes`, each made when it is asked for.
#[pyclass(frozen, sequence, module = "windrow.core._native")]
struct RecordGroup {
    decoded: Decoded,
    begin: usize,
    end: usize,
}

#[pymethods]
impl RecordGroup {
    fn __len__(&self) -> usize {
        self.end - self.begin
    }

    fn __getitem__<'py>(&self, py: Python<'py>, inside: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.record(inside).map(|record| PyBytes::new(py, record)).ok_or_else(no_record)
    }
}

impl RecordGroup {
    fn record(&self, inside: usize) -> Option<&[u8]> {
        let inside = self.begin.checked_add(inside).filter(|&inside| inside < self.end)?;
        self.decoded.record(inside)
    }
}

fn no_record() -> PyErr {
    PyIndexError::new_err("the group has no such record")
}

/// Records `[begin, end)` of a chunk that are wanted.
struct Wanted {
    file: Arc<RecordFile>,
    chunk: usize,
    begin: usize,
    end: usize,
}

/// The chunks of one call, and what became of each.
struct Reads {
    wanted: Vec<Wanted>,
    verify: Verify,
    found: Vec<Mutex<Option<Result<Decoded, Failure>>>>,
}

impl Tasks for Arc<Reads> {
    fn run(&self, task: usize, scratch: &mut Scratch) -> Result<Found, String> {
        let Wanted { file, chunk, .. } = &self.wanted[task];
        let space = &mut scratch.records;
        let found = caught(|| Decoded::read(&file.chunk(*chunk), self.verify, space));
        *self.found[task].lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        Ok(Found::Stored)
    }
}

/// Chunks that are being read. When it is dropped, those that were not begun are left out.
#[pyclass(frozen, module = "windrow.core._native")]
struct GroupReading {
    work: Arc<Work>,
    reads: Arc<Reads>,
}

#[pymethods]
impl GroupReading {
    /// Whether all reads have ended, by errors too.
    fn done(&self) -> bool {
        self.work.is_done()
    }

    /// Waits until all reads have ended, or for `timeout` seconds; returns whether they have.
    ///
    /// With `help` this thread reads too.
    #[pyo3(signature = (timeout=None, *, help=false))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, help: bool) -> PyResult<bool> {
        self.work.wait_from_python(py, timeout, help)
    }

    /// The groups that were read, which can be had once; `None` for those that are damaged.
    ///
    /// And for each of these its number, and the reason. Raises `OSError`.
    fn taken(&self) -> PyResult<(Vec<Option<RecordGroup>>, Damages)> {
        let (mut groups, mut damages) = (Vec::with_capacity(self.reads.wanted.len()), Vec::new());
        for (number, (wanted, found)) in self.reads.wanted.iter().zip(&self.reads.found).enumerate()
        {
            let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
            let found = found.ok_or_else(|| PyRuntimeError::new_err("a group was not read"))?;
            let &Wanted { begin, end, .. } = wanted;
            let why = match found {
                Ok(decoded) if decoded.count() >= end => {
                    groups.push(Some(RecordGroup { decoded, begin, end }));
                    continue;
                }
                Ok(_) => NOT_THERE.to_owned(),
                Err(Failure::Damage(damage)) => damage.0,
                Err(failure) => return Err(raised(number, failure, &wanted.file.path)),
            };
            groups.push(None);
            damages.push((number, why));
        }
        Ok((groups, damages))
    }
}

impl Drop for GroupReading {
    fn drop(&mut self) {
        // Those that were begun write to memory of their own.
        self.work.leave_out();
    }
}

/// Starts reading the chunks of records `[first, stop)`.
///
/// `at`, `first` and `stop` are int64 of the same length: for each chunk the number of its file in
/// `files`, and positions of records in it. With `inline` the thread that waits reads them.
#[pyfunction]
#[pyo3(signature = (files, at, first, stop, verify_data, *, inline=false))]
fn array_record_start(
    py: Python<'_>,
    files: Vec<Py<ArrayRecordFile>>,
    at: &Bound<'_, PyAny>,
    first: &Bound<'_, PyAny>,
    stop: &Bound<'_, PyAny>,
    verify_data: bool,
    inline: bool,
) -> PyResult<GroupReading> {
    guarded(|| {
        let wanted = spans(py, &files, (at, first, stop))?;
        let wanted: Vec<Wanted> = wanted
            .into_iter()
            .map(|(file, (chunk, begin, end))| Wanted { file, chunk, begin, end })
            .collect();
        let found = wanted.iter().map(|_| Mutex::new(None)).collect();
        let (count, verify) = (wanted.len(), Verify::data_if(verify_data));
        let reads = Arc::new(Reads { wanted, verify, found });
        let work = Arc::new(Work::new(Box::new(Arc::clone(&reads)), count, 1));
        if !inline {
            pool::submit(&work)?;
        }
        Ok(GroupReading { work, reads })
    })
}

/// A file, a chunk of it, and the first and the last of some records there.
pub type Span = (Arc<RecordFile>, (usize, usize, usize));

/// Where the records `[first, stop)` of files are, each in one chunk.
pub fn spans(
    py: Python<'_>,
    files: &[Py<ArrayRecordFile>],
    (at, first, stop): (&Bound<'_, PyAny>, &Bound<'_, PyAny>, &Bound<'_, PyAny>),
) -> PyResult<Vec<Span>> {
    let (at, first) = (numbers(py, at)?, numbers(py, first)?);
    let stop = numbers(py, stop)?;
    if at.len() != first.len() || at.len() != stop.len() {
        return Err(PyValueError::new_err("each chunk has a file, a first record and a last"));
    }
    let span = |((&at, &first), &stop)| {
        let file = usize::try_from(at).ok().and_then(|at| files.get(at))?.get();
        Some((file.shared(), file.span(first, stop)?))
    };
    let found: Option<Vec<Span>> = at.iter().zip(&first).zip(&stop).map(span).collect();
    found.ok_or_else(|| PyIndexError::new_err("no such records"))
}

/// A list of the records `inside[k]` of the groups `groups[which[k]]`, both int64.
#[pyfunction]
fn array_record_take<'py>(
    py: Python<'py>,
    groups: &Bound<'py, PyList>,
    which: &Bound<'py, PyAny>,
    inside: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    guarded(|| {
        let (which, inside) = (Memory::readable(which)?, Memory::readable(inside)?);
        let places = which.int64().zip(inside.int64());
        let places = places.filter(|(which, inside)| which.len() == inside.len());
        let (which, inside) =
            places.ok_or_else(|| PyValueError::new_err("each record has a group and a number"))?;
        let mut held = Vec::with_capacity(which.len());
        for &which in which {
            let which = usize::try_from(which).map_err(|_| no_record())?;
            held.push(groups.get_item(which)?.cast_into::<RecordGroup>()?);
        }
        let groups = held.iter().map(Bound::get);
        let records: Option<Vec<&[u8]>> = groups
            .zip(inside)
            .map(|(group, &inside)| group.record(usize::try_from(inside).ok()?))
            .collect();
        PyList::new(py, bytes_objects(py, &records.ok_or_else(no_record)?)?)
    })
}

/// Registers what this module has for Python.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RecordGroup>()?;
    module.add_class::<GroupReading>()?;
    module.add_function(wrap_pyfunction!(array_record_start, module)?)?;
    module.add_function(wrap_pyfunction!(array_record_take, module)?)
}
