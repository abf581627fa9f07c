//! Encodes columns as Examples, in the one way in which Windrow writes them.

use std::ops::Range;
use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::message::{FIRST, Kind, SECOND};
use super::python::{blocks, refused};
use crate::guard::guarded;
use crate::memory::Memory;
use crate::pool;

/// Blocks that are encoded before their records become objects.
const BLOCKS: usize = 16;

/// The values of a feature, rows one after another.
struct Column<'a> {
    kind: Kind,
    /// The field of the name in an entry.
    name: Vec<u8>,
    data: &'a [u8],
    /// Where rows begin and end in `data`.
    bounds: &'a [i64],
}

/// Serialises one Example per row of some columns, as a list.
///
/// A column is its feature's name, the tag of its list, its values as bytes, float32 or int64, and
/// the bounds of its rows there, int64, in bytes: one more than rows.
#[pyfunction]
fn encode_examples<'py>(
    py: Python<'py>,
    columns: Vec<(String, u8, Bound<'py, PyAny>, Bound<'py, PyAny>)>,
) -> PyResult<Bound<'py, PyList>> {
    guarded(|| {
        let mut memory = Vec::with_capacity(columns.len());
        for (_, _, data, bounds) in &columns {
            memory.push((Memory::readable(data)?, Memory::readable(bounds)?));
        }
        let mut found = Vec::with_capacity(columns.len());
        for ((name, tag, _, _), (data, bounds)) in columns.iter().zip(&memory) {
            found.push(Column::new(name, *tag, data, bounds)?);
        }
        let rows = found.first().map_or(0, |column| column.bounds.len() - 1);
        if found.iter().any(|column| column.bounds.len() - 1 != rows) {
            return Err(refused("columns have different lengths"));
        }
        let size = |row| found.iter().map(|column| column.row(row).len()).sum();
        let blocks = blocks((0..rows).map(size));
        let out = PyList::empty(py);
        for some in blocks.chunks(BLOCKS) {
            let done: Vec<OnceLock<Block>> = some.iter().map(|_| OnceLock::new()).collect();
            pool::each(py, some.len(), |block| {
                let _ = done[block].set(Block::of(&found, some[block].clone()));
            })?;
            for block in done.into_iter().filter_map(OnceLock::into_inner) {
                for record in block.records() {
                    out.append(PyBytes::new(py, record))?;
                }
            }
        }
        Ok(out)
    })
}

impl<'a> Column<'a> {
    fn new(name: &str, tag: u8, data: &'a Memory, bounds: &'a Memory) -> PyResult<Column<'a>> {
        let kind = Kind::of(tag).ok_or_else(|| refused(format!("no list has the tag {tag}")))?;
        let width = match kind {
            Kind::Bytes => 1,
            Kind::Floats => 4,
            Kind::Ints => 8,
        };
        let data = data.content();
        let bounds = bounds.int64().ok_or_else(|| refused("bounds are int64"))?;
        let ascend = bounds.windows(2).all(|pair| pair[0] <= pair[1]);
        let (Some(&first), Some(&last)) = (bounds.first(), bounds.last()) else {
            return Err(refused("bounds have an end"));
        };
        let inside = first >= 0 && usize::try_from(last).is_ok_and(|last| last <= data.len());
        if !ascend || !inside || bounds.iter().any(|bound| bound % width != 0) {
            return Err(refused("bounds have to ascend within the data, in whole values"));
        }
        let mut field = Vec::with_capacity(name.len() + 6);
        push_head(&mut field, FIRST, name.len());
        field.extend_from_slice(name.as_bytes());
        Ok(Column { kind, name: field, data, bounds })
    }

    fn row(&self, row: usize) -> &'a [u8] {
        &self.data[self.bounds[row] as usize..self.bounds[row + 1] as usize]
    }
}

/// The bytes that each message in an entry has, the innermost first.
struct Sizes {
    values: usize,
    list: usize,
    feature: usize,
    entry: usize,
}

impl Sizes {
    fn of(column: &Column<'_>, row: &[u8]) -> Sizes {
        let values = match column.kind {
            Kind::Ints => ints(row).map(size_of_varint).sum(),
            Kind::Bytes | Kind::Floats => row.len(),
        };
        // A list without numbers has no field for them.
        let list = if values > 0 || column.kind == Kind::Bytes { framed(values) } else { 0 };
        let feature = framed(list);
        Sizes { values, list, feature, entry: column.name.len() + framed(feature) }
    }
}

/// Consecutive records.
struct Block {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Block {
    fn of(columns: &[Column<'_>], rows: Range<usize>) -> Block {
        let mut block = Block { bytes: Vec::new(), ends: Vec::with_capacity(rows.len()) };
        let mut sizes = Vec::with_capacity(columns.len());
        for row in rows {
            sizes.clear();
            sizes.extend(columns.iter().map(|column| Sizes::of(column, column.row(row))));
            let features = sizes.iter().map(|size| framed(size.entry)).sum();
            block.bytes.reserve(framed(features));
            push_head(&mut block.bytes, FIRST, features);
            for (column, sizes) in columns.iter().zip(&sizes) {
                block.push(column, sizes, column.row(row));
            }
            block.ends.push(block.bytes.len());
        }
        block
    }

    fn push(&mut self, column: &Column<'_>, sizes: &Sizes, row: &[u8]) {
        let bytes = &mut self.bytes;
        push_head(bytes, FIRST, sizes.entry);
        bytes.extend_from_slice(&column.name);
        push_head(bytes, SECOND, sizes.feature);
        push_head(bytes, column.kind.tag(), sizes.list);
        if sizes.list > 0 {
            push_head(bytes, FIRST, sizes.values);
        }
        match column.kind {
            Kind::Ints => ints(row).for_each(|number| push_varint(bytes, number)),
            Kind::Bytes | Kind::Floats => bytes.extend_from_slice(row),
        }
    }

    fn records(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(&0).chain(&self.ends);
        begins.zip(&self.ends).map(|(&begin, &end)| &self.bytes[begin..end])
    }
}

fn ints(row: &[u8]) -> impl Iterator<Item = u64> {
    row.chunks_exact(8).map(|number| u64::from_ne_bytes(number.try_into().unwrap_or_default()))
}

fn size_of_varint(number: u64) -> usize {
    (70 - (number | 1).leading_zeros() as usize) / 7
}

/// The bytes of a field that has a length and this many bytes.
fn framed(size: usize) -> usize {
    1 + size_of_varint(size as u64) + size
}

fn push_head(bytes: &mut Vec<u8>, tag: u8, size: usize) {
    bytes.push(tag);
    push_varint(bytes, size as u64);
}

#[inline]
fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Registers the function of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(encode_examples, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_varints_are_those_written() {
        for bits in 0..64 {
            for number in [(1_u64 << bits) - 1, 1 << bits, u64::MAX >> bits] {
                let mut bytes = Vec::new();
                push_varint(&mut bytes, number);
                assert_eq!(bytes.len(), size_of_varint(number), "{number}");
            }
        }
    }
}
