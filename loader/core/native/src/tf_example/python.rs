//! What Python calls: many Examples at once, on threads and without the interpreter's lock.

use std::ops::Range;
use std::slice;
use std::sync::OnceLock;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::rows::{Feature, Form, Rows};
use crate::guard::guarded;
use crate::memory::Memory;
use crate::pool;

/// Stored bytes that a thread takes at a time; a record counts as many more.
const BLOCK_BYTES: usize = 128 << 10;
const RECORD_BYTES: usize = 64;

pub fn refused(why: impl Into<String>) -> PyErr {
    PyValueError::new_err(why.into())
}

/// Records of which the core has decoded those that it takes.
#[pyclass(frozen, module = "windrow.core._native")]
struct Examples {
    features: Vec<Feature>,
    /// Runs of records that are done together, and their rows.
    blocks: Vec<Range<usize>>,
    rows: Vec<Rows<'static>>,
    /// Keeps the records, which `rows` refers to.
    _records: Py<PyTuple>,
}

#[pymethods]
impl Examples {
    /// Decodes the `features` of `records`, a tuple; see `Form` for their forms.
    ///
    /// A feature is its name, its form, the bytes of an item in memory, and whether it is ragged and
    /// optional. With `exact`, records that have others are not taken.
    #[new]
    fn new(
        py: Python<'_>,
        records: &Bound<'_, PyTuple>,
        features: Vec<(String, String, usize, bool, bool)>,
        exact: bool,
    ) -> PyResult<Examples> {
        guarded(|| {
            let features = features_of(features)?;
            let held = records.clone();
            let records: Vec<&'static [u8]> = held.iter().map(|record| bytes_of(&record)).collect();
            let blocks = blocks(records.iter().map(|record| record.len()));
            let done: Vec<OnceLock<Rows<'static>>> =
                blocks.iter().map(|_| OnceLock::new()).collect();
            pool::each(py, blocks.len(), |block| {
                let rows = Rows::of(&records[blocks[block].clone()], &features, exact);
                let _ = done[block].set(rows);
            })?;
            let rows = done.into_iter().filter_map(OnceLock::into_inner).collect();
            Ok(Examples { features, blocks, rows, _records: held.unbind() })
        })
    }

    /// Whether each record was taken: a byte of 0 or 1.
    fn taken<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let taken: Vec<u8> = self.rows.iter().flat_map(|r| &r.taken).map(|&t| t.into()).collect();
        PyBytes::new(py, &taken)
    }

    /// The bytes of a feature's row in each record, int64; 0 where it was not taken.
    fn sizes<'py>(&self, py: Python<'py>, feature: usize) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            if feature >= self.features.len() {
                return Err(refused("no such feature"));
            }
            let sizes = |rows: &Rows<'_>| -> Vec<[u8; 8]> {
                let size = |row| rows.row(row, feature).len().to_ne_bytes();
                (0..rows.taken.len()).map(size).collect()
            };
            let sizes: Vec<[u8; 8]> = self.rows.iter().flat_map(sizes).collect();
            Ok(PyBytes::new(py, sizes.as_flattened()))
        })
    }

    /// Writes the rows of features, by number, to their arrays `outs`, one after another.
    ///
    /// `sizes`, int64, has the bytes of the row of each record in the array. Where the record was not
    /// taken, or its row has another size, the bytes are left as they are.
    fn fill(
        &self,
        py: Python<'_>,
        features: Vec<usize>,
        outs: Vec<Bound<'_, PyAny>>,
        sizes: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        guarded(|| {
            if features.iter().any(|&feature| feature >= self.features.len())
                || features.len() != outs.len()
                || features.len() != sizes.len()
            {
                return Err(refused("features, arrays and sizes do not go together"));
            }
            let outs: Vec<Memory> = outs.iter().map(Memory::writable).collect::<PyResult<_>>()?;
            let sizes: Vec<Memory> = sizes.iter().map(Memory::readable).collect::<PyResult<_>>()?;
            let mut columns = Vec::with_capacity(features.len());
            for ((feature, out), sizes) in features.into_iter().zip(&outs).zip(&sizes) {
                columns.push(self.column(feature, out, sizes)?);
            }
            pool::each(py, self.blocks.len(), |block| {
                for column in &columns {
                    self.fill_block(column, block);
                }
            })
        })
    }
}

/// An array to be filled with the rows of a feature.
struct Column<'a> {
    feature: usize,
    out: &'a Memory,
    sizes: &'a [i64],
    /// Where the first row of each block goes.
    begins: Vec<usize>,
}

impl Examples {
    /// The column, after a check that all its rows lie in `out`.
    fn column<'a>(
        &self,
        feature: usize,
        out: &'a Memory,
        sizes: &'a Memory,
    ) -> PyResult<Column<'a>> {
        let sizes = sizes.int64().ok_or_else(|| refused("sizes are int64"))?;
        if sizes.len() != self.blocks.last().map_or(0, |block| block.end) {
            return Err(refused("each record has a size"));
        }
        let (mut begins, mut total) = (Vec::with_capacity(self.blocks.len()), 0_usize);
        for block in &self.blocks {
            begins.push(total);
            for &size in &sizes[block.clone()] {
                let size = usize::try_from(size).map_err(|_| refused("a negative size"))?;
                total = total.checked_add(size).ok_or_else(|| refused("sizes are too large"))?;
            }
        }
        if total != out.bytes() || !out.is_contiguous() {
            return Err(refused("the array has to have the bytes of all rows, in C order"));
        }
        Ok(Column { feature, out, sizes, begins })
    }

    fn fill_block(&self, column: &Column<'_>, block: usize) {
        let mut at = column.begins[block];
        let rows = &self.rows[block];
        for (record, &size) in column.sizes[self.blocks[block].clone()].iter().enumerate() {
            let row = rows.row(record, column.feature);
            if rows.taken[record] && row.len() == size as usize {
                // SAFETY: `column` has added up the same sizes and found them within the array. The
                // rows of other records and features lie elsewhere, so no other thread writes here.
                let to =
                    unsafe { slice::from_raw_parts_mut(column.out.pointer().add(at), row.len()) };
                to.copy_from_slice(row);
            }
            at += size as usize;
        }
    }
}

fn features_of(features: Vec<(String, String, usize, bool, bool)>) -> PyResult<Vec<Feature>> {
    if features.is_empty() {
        return Err(refused("one feature or more is wanted"));
    }
    let feature = |(name, form, item_bytes, ragged, optional): (String, String, _, _, _)| {
        let form = Form::named(&form).ok_or_else(|| refused(format!("no form {form:?}")))?;
        Ok(Feature { name, form, item_bytes, ragged, optional })
    };
    features.into_iter().map(feature).collect()
}

/// The content of a record; what is not bytes has a field that no Example has, so nobody takes it.
fn bytes_of(record: &Bound<'_, PyAny>) -> &'static [u8] {
    let Ok(record) = record.cast::<PyBytes>() else { return &[0] };
    let bytes = record.as_bytes();
    // SAFETY: `bytes` never change, and `Examples` keeps the tuple of them as long as it uses them.
    unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
}

/// Runs of records of these sizes that have about `BLOCK_BYTES`.
pub fn blocks(sizes: impl ExactSizeIterator<Item = usize>) -> Vec<Range<usize>> {
    let (mut found, mut begin, mut bytes) = (Vec::new(), 0, 0);
    let records = sizes.len();
    for (number, size) in sizes.enumerate() {
        bytes += size + RECORD_BYTES;
        if bytes >= BLOCK_BYTES || number + 1 == records {
            found.push(begin..number + 1);
            (begin, bytes) = (number + 1, 0);
        }
    }
    found
}

/// Registers the class of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Examples>()
}
