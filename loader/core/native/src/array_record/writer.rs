//! What Python calls to write a file: records are compressed and hashed on the core's threads.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::codecs::Codec;
use super::damage::Found;
use super::encode::{Chunks, Packing, Press};
use super::parallel::{Failure, caught, each};
use super::python::file_error;
use super::write::Growing;
use crate::guard::guarded;
use crate::pool::cores;

/// Bytes of records that a thread takes at a time, in whole groups.
const PORTION_BYTES: usize = 1 << 16;
/// Groups are held until each core has one, but no more than so many times the held bytes.
const HELD_TIMES: usize = 8;
/// Fewer bytes of records are compressed by the calling thread alone.
const ALONE_BYTES: usize = 1 << 15;

/// Writes an ArrayRecord file. Each method raises `OSError` if the file cannot be written.
#[pyclass(module = "windrow.core._native")]
struct ArrayRecordFileWriter {
    path: PathBuf,
    /// None once it is closed, abandoned, or could not be written.
    file: Option<File>,
    growing: Growing,
    group: usize,
    packing: Packing,
    options: String,
    /// Records that are not written yet, and when to write them.
    held: Vec<Py<PyBytes>>,
    held_bytes: usize,
    most_held_bytes: usize,
    /// What threads use again.
    presses: Mutex<Vec<Press>>,
    portions: Vec<Mutex<Chunks>>,
}

#[pymethods]
impl ArrayRecordFileWriter {
    /// Writes a file anew.
    ///
    /// `group` is the records of a chunk; `codec` is "", "zstd" or "snappy"; `options` is what the
    /// index says of the writer; `held_bytes` of records are compressed together.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the settings of a file")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        group: usize,
        codec: &str,
        level: i32,
        window_log: u32,
        options: String,
        held_bytes: usize,
    ) -> PyResult<Self> {
        let codec = match codec {
            "" => Codec::Plain,
            "zstd" => Codec::Zstd,
            "snappy" => Codec::Snappy,
            _ => return Err(PyValueError::new_err(format!("no codec is called {codec:?}"))),
        };
        if group == 0 {
            return Err(PyValueError::new_err("a group has a record at least"));
        }
        let packing = Packing { codec, level, window_log };
        let press = Press::new(packing).map_err(refused)?;
        let growing = Growing::new().map_err(refused)?;
        let file = py.detach(|| File::create(&path)).map_err(|error| file_error(&path, &error))?;
        Ok(Self {
            path,
            file: Some(file),
            growing,
            group,
            packing,
            options,
            held: Vec::new(),
            held_bytes: 0,
            most_held_bytes: held_bytes,
            presses: Mutex::new(vec![press]),
            portions: Vec::new(),
        })
    }

    /// Adds records, in their order.
    fn write(&mut self, py: Python<'_>, records: Vec<Py<PyBytes>>) -> PyResult<()> {
        guarded(|| {
            self.held_bytes +=
                records.iter().map(|record| record.as_bytes(py).len()).sum::<usize>();
            self.held.extend(records);
            let groups = self.held.len() / self.group;
            let for_all = self.held_bytes / HELD_TIMES >= self.most_held_bytes;
            let is_enough = groups >= cores() || groups >= 1 && for_all;
            if self.held_bytes < self.most_held_bytes || !is_enough {
                return Ok(());
            }
            self.write_groups(py, groups * self.group)
        })
    }

    /// Writes the held records and the index, which makes it a whole file.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            self.write_groups(py, self.held.len())?;
            self.growing.add_end(&self.options, self.packing).map_err(refused)?;
            self.flush(py)?;
            self.file = None;
            Ok(())
        })
    }

    /// Leaves the file as it is, unfinished.
    fn abandon(&mut self) {
        self.file = None;
        self.held.clear();
    }
}

impl ArrayRecordFileWriter {
    fn write_groups(&mut self, py: Python<'_>, stop: usize) -> PyResult<()> {
        let held = &self.held[..stop];
        // The objects are held until they are written, and nobody changes bytes.
        let records: Vec<&[u8]> = held.iter().map(|record| record.as_bytes(py)).collect();
        let (group, packing, presses) = (self.group, self.packing, &self.presses);
        let (growing, spare) = (&mut self.growing, &mut self.portions);
        let portions = portions(&records, group);
        if spare.len() < portions.len() {
            spare.resize_with(portions.len(), Mutex::default);
        }
        let work = |number: usize, _: &mut _| {
            caught(|| {
                let mut press = pressed(presses, packing)?;
                let mut chunks = locked(&spare[number]);
                chunks.clear();
                for records in portions[number].chunks(group) {
                    press.add(records, &mut chunks)?;
                }
                locked(presses).push(press);
                Ok(())
            })
        };
        let bytes: usize = records.iter().map(|record| record.len()).sum();
        let grain = if bytes < ALONE_BYTES { portions.len().max(1) } else { 1 };
        each(py, portions.len(), grain, work)?
            .map_err(|failure: Failure| refused(format!("{failure:?}")))?;
        let made = &spare[..portions.len()];
        py.detach(|| made.iter().for_each(|chunks| growing.add(&locked(chunks))));
        self.held_bytes -= records.iter().map(|record| record.len()).sum::<usize>();
        drop(records);
        self.held.drain(..stop);
        self.flush(py)
    }

    /// Writes the bytes that are made.
    fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(file) = &mut self.file else {
            return Err(PyValueError::new_err("the file is closed"));
        };
        let bytes = &mut self.growing.bytes;
        let written = py.detach(|| file.write_all(bytes));
        bytes.clear();
        written.map_err(|error| {
            self.file = None;
            file_error(&self.path, &error)
        })
    }
}

/// Runs of whole groups; the last group may be short.
fn portions<'a, 'b>(records: &'a [&'b [u8]], group: usize) -> Vec<&'a [&'b [u8]]> {
    let (mut found, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (number, some) in records.chunks(group).enumerate() {
        bytes += some.iter().map(|record| record.len()).sum::<usize>();
        let stop = number * group + some.len();
        if bytes >= PORTION_BYTES || stop == records.len() {
            found.push(&records[begin..stop]);
            (begin, bytes) = (stop, 0);
        }
    }
    found
}

fn pressed(presses: &Mutex<Vec<Press>>, packing: Packing) -> Found<Press> {
    let kept = locked(presses).pop();
    kept.map_or_else(|| Press::new(packing), Ok)
}

fn locked<T>(one: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(why: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(why.to_string())
}

/// Registers the class of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArrayRecordFileWriter>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_whole_groups() {
        let (large, small) = (vec![0; 40_000], vec![0; 10]);
        let records: Vec<&[u8]> =
            (0..11).map(|at| if at < 6 { &large[..] } else { &small[..] }).collect();
        for (group, expected) in
            [(1, vec![2, 2, 2, 5]), (2, vec![2, 2, 2, 5]), (3, vec![3, 3, 5]), (20, vec![11])]
        {
            let found: Vec<usize> =
                portions(&records, group).iter().map(|some| some.len()).collect();
            assert_eq!(found, expected, "{group}");
        }
        assert!(portions(&[], 3).is_empty());
    }
}
