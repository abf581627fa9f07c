//! One local Zarr array, and its chunks decoded into memory.

use std::io::Write;
use std::ops::Range;

use crate::codecs::{Chain, fit};
use crate::memory::{Axis, Copier};
use crate::pool::{Found, Scratch};
use crate::zarr::files::{self, Shards, Stored};
use crate::zarr::open_files::OpenFiles;
use crate::zarr::scatter::Run;

/// One more read of a file costs about as much as reading these bytes with another read.
const READ_BYTES: usize = 4 << 10;

/// Cells of one chunk and where they go.
pub struct Piece {
    /// The first cell, in the chunk.
    pub first: Vec<usize>,
    /// Cells along each axis.
    pub shape: Vec<usize>,
    pub to: *mut u8,
    /// Bytes from one cell to the next along each axis.
    pub strides: Vec<isize>,
}

/// A local array, as its metadata describe it.
pub struct Array {
    /// The beginning of the paths of stored objects; None if all chunks are given.
    pub base: Option<Vec<u8>>,
    pub separator: u8,
    pub shape: Vec<usize>,
    pub chunk: Vec<usize>,
    /// Chunks along each axis of one stored object.
    pub per_object: Vec<usize>,
    pub shards: Option<Shards>,
    /// Files of chunks that are not encoded, of which single rows are read.
    pub files: OpenFiles,
    pub chain: Chain,
    pub chunk_bytes: usize,
    pub itemsize: usize,
    /// Bytes of one number whose order is reversed in storage; 1 if it is not.
    pub swap: usize,
    pub bools: bool,
    /// The value of cells that are not stored, as it is delivered.
    pub fill: Vec<u8>,
    /// Bytes from one cell of a decoded chunk to the next, along each axis of the array.
    pub strides: Vec<usize>,
}

impl Array {
    /// Bytes from one cell of a decoded chunk to the next, along each axis of the array.
    pub fn strides_of(chunk: &[usize], axes: &[usize], itemsize: usize) -> Vec<usize> {
        let mut strides = vec![0; chunk.len()];
        let mut step = itemsize;
        for &axis in axes.iter().rev() {
            strides[axis] = step;
            step *= chunk[axis];
        }
        strides
    }

    /// Chunks along an axis.
    pub fn count(&self, axis: usize) -> usize {
        self.shape[axis].div_ceil(self.chunk[axis])
    }

    /// The number of the chunk at `at`, in C order.
    pub fn number(&self, at: &[usize]) -> usize {
        (0..at.len()).fold(0, |number, axis| number * self.count(axis) + at[axis])
    }

    /// Cells of the chunk at `at` that lie in the array, along an axis.
    pub fn cells(&self, axis: usize, at: usize) -> usize {
        self.chunk[axis].min(self.shape[axis] - at * self.chunk[axis])
    }

    /// A copy of cells of a decoded chunk, or of the fill value; of the last axes, as many as given.
    pub fn copier(&self, found: &Found, shape: &[usize], strides: &[isize]) -> Copier {
        let from = &self.strides[self.strides.len() - shape.len()..];
        let axes = (0..shape.len()).map(|k| match found {
            Found::Stored => Axis { count: shape[k], from: from[k], to: strides[k] },
            Found::Missing => Axis { count: shape[k], from: 0, to: strides[k] },
        });
        let swap = if let Found::Stored = found { self.swap } else { 1 };
        Copier::new(&axes.collect::<Vec<Axis>>(), self.itemsize, swap)
    }

    /// The place of a cell in a decoded chunk, in bytes.
    pub fn offset(&self, first: &[usize]) -> usize {
        first.iter().zip(&self.strides).map(|(n, step)| n * step).sum()
    }

    fn path(&self, at: &[usize], path: &mut Vec<u8>) -> Result<u64, String> {
        path.clear();
        path.extend_from_slice(self.base.as_ref().ok_or("its bytes are not given")?);
        let mut number = 0;
        for (axis, (k, per)) in at.iter().zip(&self.per_object).enumerate() {
            if axis > 0 {
                path.push(self.separator);
            }
            write!(path, "{}", k / per).map_err(|error| error.to_string())?;
            number = number * self.count(axis).div_ceil(*per) as u64 + (k / per) as u64;
        }
        Ok(number)
    }

    fn within(&self, at: &[usize]) -> usize {
        at.iter().zip(&self.per_object).fold(0, |number, (k, per)| number * per + k % per)
    }

    /// Decodes the chunk at `at` into `out`, which has its bytes, or into `scratch.decoded`.
    ///
    /// `given` has its stored bytes, None if it is not stored; else they are read from the array's folder.
    /// Only the bytes `parts` are wanted, which lie in it: of a file that is not encoded no others are
    /// read, and of a compressed chunk those after them may not be decoded.
    pub fn decode(
        &self,
        at: &[usize],
        given: Option<Option<&[u8]>>,
        parts: &[Range<usize>],
        out: Option<&mut [u8]>,
        scratch: &mut Scratch,
    ) -> Result<Found, String> {
        let Scratch { stored: memory, decoded, between, path, tools, .. } = scratch;
        let data = match given {
            Some(given) => {
                let Some(data) = given else { return Ok(Found::Missing) };
                self.refuse_size(data.len())?;
                data
            }
            None => {
                let Some(stored) = self.stored(at, path)? else { return Ok(Found::Missing) };
                if self.chain.is_plain() {
                    let out = self.room(out, decoded)?;
                    for part in parts {
                        stored.read(&mut out[part.clone()], part.start)?;
                        self.refuse_others(&out[part.clone()])?;
                    }
                    return Ok(Found::Stored);
                }
                stored.all(memory)?
            }
        };
        let out = self.room(out, decoded)?;
        let wanted = parts.iter().map(|part| part.end).max().unwrap_or(0);
        self.chain.decode(data, out, wanted, between, tools)?;
        self.refuse_others(&out[..wanted])?;
        Ok(Found::Stored)
    }

    /// Memory for a decoded chunk: `out`, or else `decoded`.
    fn room<'a>(
        &self,
        out: Option<&'a mut [u8]>,
        decoded: &'a mut Vec<u8>,
    ) -> Result<&'a mut [u8], String> {
        if let Some(out) = out {
            return Ok(out);
        }
        fit(decoded, self.chunk_bytes)?;
        Ok(&mut decoded[..self.chunk_bytes])
    }

    /// Refuses bytes that are not bools: Python would take them for true and return them as they are.
    fn refuse_others(&self, values: &[u8]) -> Result<(), String> {
        let most = if self.bools { values.iter().copied().max() } else { None };
        match most {
            Some(most @ 2..) => Err(format!("one of its bytes is {most}, which is not a bool")),
            _ => Ok(()),
        }
    }

    /// The stored bytes of the chunk at `at`, of a size that a chunk can have.
    fn stored(&self, at: &[usize], path: &mut Vec<u8>) -> Result<Option<Stored>, String> {
        let number = self.path(at, path)?;
        let found = match &self.shards {
            None if self.chain.is_plain() => Stored::kept(&self.files, number, path)?,
            None => Stored::whole(path)?,
            Some(shards) => shards.find(number, self.within(at), path)?,
        };
        if let Some(stored) = &found {
            self.refuse_size(stored.bytes)?;
        }
        Ok(found)
    }

    fn refuse_size(&self, size: usize) -> Result<(), String> {
        if self.chain.stored_bytes().is_some_and(|wanted| wanted != size) {
            return Err(format!("it has {size} bytes, which is not the size of a chunk"));
        }
        if size > files::most_stored_bytes(self.chunk_bytes) {
            return Err(format!("it has {size} bytes, far more than a chunk can have"));
        }
        Ok(())
    }

    /// The bytes of a decoded chunk from the first to the last cell of pieces that lie in it.
    pub fn part(&self, pieces: &[Piece]) -> Range<usize> {
        let ends = pieces.iter().filter(|piece| !piece.shape.contains(&0)).map(|piece| {
            let last = piece.first.iter().zip(&piece.shape).map(|(first, size)| first + size - 1);
            let last: Vec<usize> = last.collect();
            (self.offset(&piece.first), self.offset(&last) + self.itemsize)
        });
        let (start, stop) = ends.fold((self.chunk_bytes, 0), |found, piece| {
            (found.0.min(piece.0), found.1.max(piece.1))
        });
        start.min(stop)..stop.min(self.chunk_bytes)
    }

    /// The bytes that runs of its rows need of a chunk. If it is not encoded, these are each run's own,
    /// or all where that costs less.
    pub fn parts<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> Vec<Range<usize>> {
        let (row, rows) = (self.strides[0], self.chunk[0]);
        if !self.chain.is_plain() {
            let stop = runs.map(Run::stop).max().unwrap_or(0).min(rows);
            let is_in_order = row * rows == self.chunk_bytes;
            let part = 0..if is_in_order { stop * row } else { self.chunk_bytes };
            return Vec::from([part]);
        }
        let mut cost = 0;
        let mut parts = Vec::new();
        for run in runs {
            let part = run.source as usize * row..run.stop().min(rows) * row;
            cost += part.len() + READ_BYTES;
            if row * rows != self.chunk_bytes || cost >= self.chunk_bytes || part.is_empty() {
                parts.clear();
                parts.push(0..self.chunk_bytes);
                return parts;
            }
            parts.push(part);
        }
        parts
    }

    /// Whether a piece is a whole chunk whose bytes are the values as they are wanted.
    pub fn is_whole(&self, piece: &Piece) -> bool {
        piece.shape == self.chunk
            && self.copier(&Found::Stored, &piece.shape, &piece.strides).run().is_some()
    }

    /// Copies pieces of a chunk, or the fill value, to where they go.
    ///
    /// # Safety
    /// Each piece must lie in the chunk, and its cells must be writable by this thread alone.
    pub unsafe fn put(&self, pieces: &[Piece], found: &Found, decoded: &[u8]) {
        for piece in pieces {
            if piece.shape.contains(&0) {
                continue;
            }
            let from = match found {
                Found::Missing => &self.fill[..],
                Found::Stored => &decoded[self.offset(&piece.first)..],
            };
            let copier = self.copier(found, &piece.shape, &piece.strides);
            // SAFETY: as the caller says.
            unsafe { copier.copy(from.as_ptr(), piece.to) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codecs::Codec;

    /// An array of chunks of 8 rows of `row_bytes` each, whose axes are stored in this order.
    fn array(row_bytes: usize, axes: &[usize]) -> Array {
        let chunk = vec![8, row_bytes];
        Array {
            base: None,
            separator: b'/',
            shape: vec![30, row_bytes],
            per_object: vec![1, 1],
            shards: None,
            files: OpenFiles::default(),
            chain: Chain::new(&[], 8 * row_bytes).unwrap(),
            chunk_bytes: 8 * row_bytes,
            itemsize: 1,
            swap: 1,
            bools: false,
            fill: vec![0],
            strides: Array::strides_of(&chunk, axes, 1),
            chunk,
        }
    }

    fn run(source: u32, count: u32) -> Run {
        Run { source, count, target: 0 }
    }

    /// The parts as `(start, stop)`, of an array with these rows and this order of axes.
    fn parts(row_bytes: usize, axes: &[usize], runs: &[Run]) -> Vec<(usize, usize)> {
        let found = array(row_bytes, axes).parts(runs.iter());
        found.into_iter().map(|part| (part.start, part.end)).collect()
    }

    const ROW: usize = 2 * READ_BYTES;
    const WHOLE: (usize, usize) = (0, 8 * ROW);

    #[test]
    fn runs_of_large_rows_are_parts_of_their_own() {
        let found = parts(ROW, &[0, 1], &[run(1, 1), run(3, 2)]);
        assert_eq!(found, [(ROW, 2 * ROW), (3 * ROW, 5 * ROW)]);
        assert_eq!(parts(ROW, &[0, 1], &[]), []);
    }

    #[test]
    fn a_whole_chunk_is_read_where_that_costs_no_more() {
        // Each run costs its row and half a row more: five cost 7.5 rows, six 9 of 8.
        let runs: Vec<Run> = (0..6).map(|k| run(k, 1)).collect();
        assert_eq!(parts(ROW, &[0, 1], &runs[..5]).len(), 5);
        assert_eq!(parts(ROW, &[0, 1], &runs), [WHOLE]);
        assert_eq!(parts(ROW, &[0, 1], &[run(0, 8)]), [WHOLE]);
        assert_eq!(parts(10, &[0, 1], &[run(2, 1)]), [(0, 80)]);
    }

    #[test]
    fn rows_that_do_not_lie_together_take_the_whole_chunk() {
        assert_eq!(parts(ROW, &[1, 0], &[run(1, 1)]), [WHOLE]);
    }

    #[test]
    fn a_compressed_chunk_is_wanted_from_its_beginning() {
        let parts = |axes: &[usize], runs: &[Run]| {
            let mut array = array(ROW, axes);
            array.chain = Chain::new(&[Codec::Zstd], array.chunk_bytes).unwrap();
            let found = array.parts(runs.iter());
            found.into_iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(parts(&[0, 1], &[run(3, 2), run(1, 1)]), [(0, 5 * ROW)]);
        assert_eq!(parts(&[1, 0], &[run(0, 1)]), [WHOLE]);
    }

    #[test]
    fn no_part_lies_outside_of_the_chunk() {
        assert_eq!(parts(ROW, &[0, 1], &[run(7, u32::MAX)]), [(7 * ROW, 8 * ROW)]);
        for outside in [run(8, 1), run(9, 1), run(u32::MAX, u32::MAX), run(1, 0)] {
            assert_eq!(parts(ROW, &[0, 1], &[outside]), [WHOLE]);
        }
    }
}
