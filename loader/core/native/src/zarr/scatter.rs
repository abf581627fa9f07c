//! Rows of chunks that are copied to rows of outputs.

use crate::memory::{Copier, scatter};
use crate::pool::Found;
use crate::zarr::array::Array;

/// A run of rows of a chunk that goes to consecutive rows of a batch.
#[derive(Clone, Copy)]
pub struct Run {
    pub source: u32,
    pub count: u32,
    pub target: u64,
}

/// Where the rows of some chunks go in one output; plain numbers, so any thread may drop it.
pub struct Scattering {
    pub to: *mut u8,
    /// Bytes from one cell to the next, along each axis of a row block.
    pub strides: Vec<isize>,
    pub runs: Vec<Run>,
    /// Runs of chunk `k` are `[bounds[k], bounds[k + 1])`.
    pub bounds: Vec<usize>,
}

impl Run {
    /// The row of the chunk after the last one.
    pub fn stop(&self) -> usize {
        self.source as usize + self.count as usize
    }

    fn is_followed_by(&self, next: &Run) -> bool {
        self.source + self.count == next.source
            && self.target + u64::from(self.count) == next.target
    }
}

// SAFETY: `to` is memory that a `Batch` holds; tasks write to disjoint rows of it.
unsafe impl Send for Scattering {}
// SAFETY: as above.
unsafe impl Sync for Scattering {}

impl Scattering {
    /// The runs of the chunk with number `chunk` in the output.
    pub fn of_chunk(&self, chunk: usize) -> Result<&[Run], String> {
        let bounds = self.bounds.get(chunk).zip(self.bounds.get(chunk + 1));
        bounds.map(|(first, stop)| &self.runs[*first..*stop]).ok_or("no such chunk".to_owned())
    }

    /// Copies the rows of the chunk at `at` that belong in the output.
    pub fn copy(
        &self,
        array: &Array,
        at: &[usize],
        found: &Found,
        decoded: &[u8],
        chunk: usize,
    ) -> Result<(), String> {
        let (runs, rows) = (self.of_chunk(chunk)?, array.cells(0, at[0]));
        if runs.iter().any(|run| run.stop() > rows) {
            return Err("rows outside of the chunk are wanted".to_owned());
        }
        let (shape, shift) = column(array, at, &self.strides);
        let row = Row {
            copier: array.copier(found, &shape[1..], &self.strides[1..]),
            from: if let Found::Stored = found { array.strides[0] } else { 0 },
            to: self.strides[0],
        };
        let source = if let Found::Stored = found { decoded } else { &array.fill[..] };
        for run in runs {
            // SAFETY: the rows lie in the chunk, and in the output by `Columns::run`.
            unsafe {
                let to = self.to.offset(run.target as isize * row.to + shift);
                row.copy(source.as_ptr().add(run.source as usize * row.from), to, run.count);
            }
        }
        Ok(())
    }
}

pub struct Columns<'a> {
    pub which: &'a [i64],
    pub sources: &'a [i64],
    pub targets: &'a [i64],
    pub lengths: Option<&'a [i64]>,
}

impl Columns<'_> {
    /// The runs by chunk, and the bounds of each chunk.
    pub fn sorted(&self, chunks: usize, rows: usize) -> Result<(Vec<Run>, Vec<usize>), String> {
        let count = self.which.len();
        let lengths = self.lengths.map_or(count, <[i64]>::len);
        if [self.sources.len(), self.targets.len(), lengths] != [count; 3] {
            return Err("the numbers are not of one length".to_owned());
        }
        let mut bounds = vec![0; chunks + 2];
        for &chunk in self.which {
            let chunk = usize::try_from(chunk).ok().filter(|&chunk| chunk < chunks);
            bounds[chunk.ok_or("there is no such chunk")? + 2] += 1;
        }
        for k in 2..bounds.len() {
            bounds[k] += bounds[k - 1];
        }
        let mut runs = vec![Run { source: 0, count: 0, target: 0 }; count];
        for k in 0..count {
            let at = &mut bounds[self.which[k] as usize + 1];
            runs[*at] = self.run(k, rows)?;
            *at += 1;
        }
        bounds.pop();
        Ok(joined(&runs, &bounds))
    }

    fn run(&self, k: usize, rows: usize) -> Result<Run, String> {
        let wrong = || format!("row {} is outside of the output of {rows} rows", self.targets[k]);
        let count = u32::try_from(self.lengths.map_or(1, |lengths| lengths[k]));
        let count = count.map_err(|_| "a negative number of rows")?;
        let source = u32::try_from(self.sources[k]).map_err(|_| "a row before the chunk")?;
        let target = u64::try_from(self.targets[k]).map_err(|_| wrong())?;
        match target.checked_add(u64::from(count)) {
            Some(stop) if stop <= rows as u64 => Ok(Run { source, count, target }),
            _ => Err(wrong()),
        }
    }
}

/// The same runs, where those that follow each other on both sides are one.
fn joined(runs: &[Run], bounds: &[usize]) -> (Vec<Run>, Vec<usize>) {
    let mut found: Vec<Run> = Vec::with_capacity(runs.len());
    let mut ends = vec![0];
    for pair in bounds.windows(2) {
        let first = found.len();
        for run in &runs[pair[0]..pair[1]] {
            match found[first..].last_mut() {
                Some(last) if last.is_followed_by(run) => last.count += run.count,
                _ => found.push(*run),
            }
        }
        ends.push(found.len());
    }
    (found, ends)
}

/// How rows of a chunk are copied to an output.
struct Row {
    copier: Copier,
    /// Bytes from one row to the next.
    from: usize,
    to: isize,
}

impl Row {
    /// # Safety
    /// `count` rows must be readable from `from` on, and writable from `to` on by this thread alone.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, count: u32) {
        let count = count as usize;
        // SAFETY: as the caller says.
        unsafe {
            match self.copier.run() {
                Some(run) if run == self.from && run as isize == self.to => {
                    scatter(from, to, run * count);
                }
                run => {
                    for k in 0..count {
                        let from = from.add(k * self.from);
                        let to = to.offset(k as isize * self.to);
                        match run {
                            Some(run) => scatter(from, to, run),
                            None => self.copier.copy(from, to),
                        }
                    }
                }
            }
        }
    }
}

/// Runs of rows, cut where chunks begin, each with its row of chunks; neighbours are joined.
pub fn gathered(array: &Array, first: &[i64], size: usize) -> Result<Vec<(usize, Run)>, String> {
    let (rows, cells) = (array.shape[0], array.chunk[0]);
    let narrow = |n: usize| u32::try_from(n).map_err(|_| "a chunk has too many rows".to_owned());
    let mut found: Vec<(usize, Run)> = Vec::with_capacity(first.len());
    for (k, &begin) in first.iter().enumerate() {
        let outside = || format!("row {begin} is outside of the array");
        let begin = usize::try_from(begin).map_err(|_| outside())?;
        let stop = begin.checked_add(size).filter(|&stop| stop <= rows).ok_or_else(outside)?;
        let mut row = begin;
        while row < stop {
            let (chunk, source) = (row / cells, row % cells);
            let count = (cells - source).min(stop - row);
            let target = (k * size + row - begin) as u64;
            let run = Run { source: narrow(source)?, count: narrow(count)?, target };
            match found.last_mut() {
                Some((last, before)) if *last == chunk && before.is_followed_by(&run) => {
                    before.count += run.count;
                }
                _ => found.push((chunk, run)),
            }
            row += count;
        }
    }
    Ok(found)
}

/// Cells of the chunk at `at` along each axis, and where they begin in rows of the array, in bytes.
pub fn column(array: &Array, at: &[usize], strides: &[isize]) -> (Vec<usize>, isize) {
    let shape = (0..at.len()).map(|axis| array.cells(axis, at[axis])).collect();
    let cells = (1..at.len()).map(|axis| (at[axis] * array.chunk[axis]) as isize * strides[axis]);
    (shape, cells.sum())
}
