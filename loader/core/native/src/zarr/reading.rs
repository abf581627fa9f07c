//! What Python calls: reads of rows, of boxes and of rows that are scattered to batches.
//!
//! Invariant: `Reading` holds all memory that its tasks write to, and ends them before it lets go.

use std::collections::HashMap;
use std::ops::Range;
use std::slice::from_raw_parts_mut;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::boxes::{Boxes, Placed};
use crate::codecs::{Chain, Codec};
use crate::guard::guarded;
use crate::memory::{Memory, fence};
use crate::pool::{self, Found, Scratch, Tasks, Work};
use crate::zarr::array::{Array, Piece};
use crate::zarr::files::{ShardForm, Shards, place};
use crate::zarr::open_files::OpenFiles;
use crate::zarr::scatter::{Columns, Run, Scattering, column, gathered};

/// Chunks smaller than this are taken several at a time.
const STEP_BYTES: usize = 64 << 10;
/// With less than this, one thread is done before another one has begun.
const WORTH_THREADS_BYTES: usize = 1 << 20;

fn refused(why: impl Into<String>) -> PyErr {
    PyValueError::new_err(why.into())
}

/// An output that rows of several chunks go to.
#[pyclass(frozen)]
pub struct Batch {
    scattering: Arc<Scattering>,
    memory: Memory,
}

#[pymethods]
impl Batch {
    /// Rows `[sources[k], sources[k] + lengths[k])` of chunk `which[k]` go to rows `[targets[k], ...)`.
    ///
    /// `out` has the rows of the array along its first axis; `which` counts the `chunks` that are wanted.
    /// Without `lengths` each is one row.
    #[new]
    #[pyo3(signature = (out, chunks, which, sources, targets, lengths=None))]
    fn new(
        out: &Bound<'_, PyAny>,
        chunks: usize,
        which: &Bound<'_, PyAny>,
        sources: &Bound<'_, PyAny>,
        targets: &Bound<'_, PyAny>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Batch> {
        guarded(|| {
            let memory = Memory::writable(out)?;
            let rows = memory.shape().first().copied().unwrap_or(0);
            let arrays = [Some(which), Some(sources), Some(targets), lengths];
            let arrays = arrays.map(|array| array.map(Memory::readable).transpose());
            let [which, sources, targets, lengths] = arrays;
            let (which, sources, targets) = (which?, sources?, targets?);
            let lengths = lengths?;
            let numbers = [&which, &sources, &targets, &lengths].map(|m| {
                m.as_ref().map(|m| m.int64().ok_or_else(|| refused("the numbers are not int64")))
            });
            let [Some(which), Some(sources), Some(targets), lengths] = numbers else {
                return Err(refused("numbers are missing"));
            };
            let columns = Columns {
                which: which?,
                sources: sources?,
                targets: targets?,
                lengths: lengths.transpose()?,
            };
            let (runs, bounds) = columns.sorted(chunks, rows).map_err(refused)?;
            let scattering =
                Scattering { to: memory.pointer(), strides: memory.strides(), runs, bounds };
            Ok(Batch { scattering: Arc::new(scattering), memory })
        })
    }
}

/// Where the cells of one chunk go.
enum Targets {
    Pieces(Vec<Piece>),
    /// To outputs, each with the number of the chunk there.
    Scattered(Vec<(Arc<Scattering>, usize)>),
    /// The same, of boxes.
    Boxes(Vec<(Arc<Placed>, usize)>),
}

struct Task {
    at: Vec<usize>,
    /// What was asked for, for reports.
    item: usize,
    targets: Targets,
}

/// The stored bytes of a chunk that Python has; None if it is not stored.
type Given = Arc<Option<Vec<u8>>>;

struct ChunkTasks {
    array: Arc<Array>,
    tasks: Vec<Task>,
    /// The bytes of the chunk of each task; empty if they are in the array's folder.
    given: Vec<Given>,
}

// SAFETY: the pointers are to memory that the `Reading` holds; tasks write to disjoint cells of it.
unsafe impl Send for ChunkTasks {}
// SAFETY: as above.
unsafe impl Sync for ChunkTasks {}

impl Tasks for ChunkTasks {
    fn run(&self, task: usize, scratch: &mut Scratch) -> Result<Found, String> {
        let Task { at, targets, .. } = &self.tasks[task];
        let given = self.given.get(task).map(|one| one.as_deref());
        match targets {
            Targets::Pieces(pieces) => self.pieces(at, given, pieces, scratch),
            Targets::Boxes(outputs) => {
                let axes = 0..at.len();
                let shape: Vec<usize> = axes.clone().map(|k| self.array.cells(k, at[k])).collect();
                let corner: Vec<usize> = axes.map(|k| at[k] * self.array.chunk[k]).collect();
                let mut pieces = Vec::new();
                for (placed, chunk) in outputs {
                    pieces.extend(placed.pieces(*chunk, &corner, &shape)?);
                }
                self.pieces(at, given, &pieces, scratch)
            }
            Targets::Scattered(outputs) => {
                let parts = self.parts(outputs)?;
                let found = self.array.decode(at, given, &parts, None, scratch)?;
                for (output, chunk) in outputs {
                    output.copy(&self.array, at, &found, &scratch.decoded, *chunk)?;
                }
                fence();
                Ok(found)
            }
        }
    }
}

impl ChunkTasks {
    /// The bytes of a chunk that outputs want.
    fn parts(&self, outputs: &[(Arc<Scattering>, usize)]) -> Result<Vec<Range<usize>>, String> {
        let mut runs = Vec::new();
        for (output, chunk) in outputs {
            runs.push(output.of_chunk(*chunk)?);
        }
        Ok(self.array.parts(runs.into_iter().flatten()))
    }

    fn pieces(
        &self,
        at: &[usize],
        given: Option<Option<&[u8]>>,
        pieces: &[Piece],
        scratch: &mut Scratch,
    ) -> Result<Found, String> {
        let array = &*self.array;
        let part = array.part(pieces);
        let whole = pieces.first().filter(|piece| pieces.len() == 1 && array.is_whole(piece));
        // SAFETY: it has the cells of a whole chunk in one run, and only this task writes there.
        let out = whole.map(|piece| unsafe { from_raw_parts_mut(piece.to, array.chunk_bytes) });
        let found = array.decode(at, given, &[part], out, scratch)?;
        if whole.is_none() || matches!(found, Found::Missing) {
            // SAFETY: `Reads` checked that the cells lie in the chunk, and they are this task's alone.
            unsafe { array.put(pieces, &found, &scratch.decoded) };
        }
        Ok(found)
    }
}

/// Offset and size of chunks `within` a shard of `bytes` bytes, by its index; None where they are not
/// stored. With `checked` the index has a checksum.
#[pyfunction]
pub fn zarr_places(
    index: &[u8],
    chunks: usize,
    checked: bool,
    bytes: u64,
    within: Vec<usize>,
) -> PyResult<Vec<Option<(u64, usize)>>> {
    guarded(|| {
        let form = ShardForm { chunks, at_start: true, checked };
        let found = form.index(index.len()).and_then(|range| form.entries(&index[range]));
        let entries = found.map_err(refused)?;
        within.into_iter().map(|k| place(&entries, k, bytes).map_err(refused)).collect()
    })
}

/// The bytes of chunks by their numbers: None or bytes.
fn given(stored: &Bound<'_, PyDict>) -> PyResult<HashMap<usize, Given>> {
    let mut found = HashMap::with_capacity(stored.len());
    for (number, bytes) in stored.iter() {
        let bytes: Option<Bound<'_, PyBytes>> = bytes.extract()?;
        let data = bytes.map(|data| data.as_bytes().to_vec());
        found.insert(number.extract()?, Arc::new(data));
    }
    Ok(found)
}

/// A Zarr array whose chunks the core can decode.
#[pyclass(frozen)]
pub struct ZarrArray {
    array: Arc<Array>,
}

#[pymethods]
impl ZarrArray {
    /// Checks the description; opens nothing.
    ///
    /// `base` and `separator` make the paths of stored objects; without `base` each read is given their
    /// bytes. `shape`, `chunk`, `axes` and `per_object` are as in `PlainLayout`. `index` says of sharded
    /// arrays whether the index is at the start, and whether it has a checksum. `swap` is the bytes of a
    /// number in the other byte order, else 1.
    #[new]
    #[allow(clippy::too_many_arguments, reason = "it describes an array, as metadata do")]
    #[pyo3(signature = (*, base, separator, shape, chunk, axes, per_object, index, codecs, itemsize,
        swap, bools, fill))]
    fn new(
        base: Option<Vec<u8>>,
        separator: u8,
        shape: Vec<usize>,
        chunk: Vec<usize>,
        axes: Vec<usize>,
        per_object: Vec<usize>,
        index: Option<(bool, bool)>,
        codecs: Vec<String>,
        itemsize: usize,
        swap: usize,
        bools: bool,
        fill: Vec<u8>,
    ) -> PyResult<ZarrArray> {
        guarded(|| {
            let sizes = [chunk.len(), axes.len(), per_object.len()];
            if shape.is_empty()
                || sizes != [shape.len(); 3]
                || axes.iter().any(|&k| k >= shape.len())
            {
                return Err(refused("the numbers of axes differ"));
            }
            let product = |start: usize, sizes: &[usize]| {
                let most = isize::MAX as usize;
                let found = sizes.iter().try_fold(start, |size, &n| size.checked_mul(n));
                let found = found.filter(|&size| 0 < size && size < most);
                found.ok_or_else(|| refused("a chunk is empty or absurdly large"))
            };
            let chunk_bytes = product(itemsize, &chunk)?;
            let chunks = product(1, &per_object)?;
            if fill.len() != itemsize || !itemsize.is_multiple_of(swap) {
                return Err(refused("the sizes of the values differ"));
            }
            let codecs: Option<Vec<Codec>> = codecs.iter().map(|name| Codec::named(name)).collect();
            let chain = codecs.and_then(|codecs| Chain::new(&codecs, chunk_bytes));
            let form = |(at_start, checked)| ShardForm { chunks, at_start, checked };
            let array = Array {
                base,
                separator,
                strides: Array::strides_of(&chunk, &axes, itemsize),
                shape,
                chunk,
                per_object,
                shards: index.map(|index| Shards::new(form(index))),
                files: OpenFiles::default(),
                chain: chain.ok_or_else(|| refused("an unknown codec"))?,
                chunk_bytes,
                itemsize,
                swap,
                bools,
                fill,
            };
            Ok(ZarrArray { array: Arc::new(array) })
        })
    }

    /// Starts reading rows. Of each `(first, stop, out)` the rows `[first, stop)`, which lie in one row of
    /// chunks, go into `out`. Of each `(row, [(batch, chunk), ...])` the rows of the chunks with number
    /// `row` along the first axis go where each batch has those of its chunk number `chunk`. `stored` has
    /// the bytes of all of their chunks by number, unless they are in the array's folder. With `inline`
    /// the thread that waits reads them.
    #[pyo3(signature = (wanted, *, stored=None, inline=false))]
    fn start(
        &self,
        wanted: &Bound<'_, PyList>,
        stored: Option<&Bound<'_, PyDict>>,
        inline: bool,
    ) -> PyResult<Reading> {
        guarded(|| {
            let mut reads = Reads::of(&self.array, stored)?;
            for (item, wanted) in wanted.iter().enumerate() {
                if wanted.len()? == 3 {
                    let (first, stop, out) =
                        wanted.extract::<(usize, usize, Bound<'_, PyAny>)>()?;
                    reads.rows(item, first, stop, Memory::writable(&out)?).map_err(refused)?;
                } else {
                    let (row, outputs) = wanted.extract::<(usize, Vec<(Py<Batch>, usize)>)>()?;
                    let numbered = outputs.iter().map(|(batch, chunk)| (batch.get(), *chunk));
                    let numbered: Vec<(&Batch, usize)> = numbered.collect();
                    reads.scattered(item, row, &numbered).map_err(refused)?;
                    reads.batches.extend(outputs.into_iter().map(|(batch, _)| batch));
                }
            }
            if inline { reads.prepared() } else { reads.start() }
        })
    }

    /// Starts reading boxes: of each `(first, out)` the cells from `first` on, which lie in one chunk,
    /// into `out`. Neighbours in the list that lie in one chunk are read together. Of each `(number,
    /// [(boxes, chunk), ...])` the cells of the chunk with this number go where `boxes` have those of
    /// their chunk number `chunk`. `stored` and `inline` are as for `start`.
    #[pyo3(signature = (boxes, *, stored=None, inline=false))]
    fn start_boxes(
        &self,
        boxes: &Bound<'_, PyList>,
        stored: Option<&Bound<'_, PyDict>>,
        inline: bool,
    ) -> PyResult<Reading> {
        guarded(|| {
            let mut reads = Reads::of(&self.array, stored)?;
            for (item, cells) in boxes.iter().enumerate() {
                if let Ok((number, outputs)) = cells.extract::<(usize, Vec<(Py<Boxes>, usize)>)>() {
                    reads.boxes(item, number, &outputs).map_err(refused)?;
                    reads.placed.extend(outputs.into_iter().map(|(boxes, _)| boxes));
                    continue;
                }
                let (first, out) = cells.extract::<(Vec<usize>, Bound<'_, PyAny>)>()?;
                reads.cells(item, &first, Memory::writable(&out)?).map_err(refused)?;
            }
            if inline { reads.prepared() } else { reads.start() }
        })
    }

    /// Starts reading the rows `[first[k], first[k] + size)` for each `k` into rows `[k * size, ...)` of
    /// `out`, each chunk once.
    fn start_gather(
        &self,
        first: &Bound<'_, PyAny>,
        size: usize,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<Reading> {
        guarded(|| {
            let numbers = Memory::readable(first)?;
            let first = numbers.int64().ok_or_else(|| refused("the rows are not int64"))?;
            let mut reads = Reads::of(&self.array, None)?;
            reads.gather(first, size, Memory::writable(out)?).map_err(refused)?;
            let bytes = reads.tasks.len().saturating_mul(self.array.chunk_bytes);
            if bytes > WORTH_THREADS_BYTES { reads.start() } else { reads.prepared() }
        })
    }
}

/// Reads that are being put together.
struct Reads {
    array: Arc<Array>,
    tasks: Vec<Task>,
    given: Option<HashMap<usize, Given>>,
    memory: Vec<Memory>,
    batches: Vec<Py<Batch>>,
    placed: Vec<Py<Boxes>>,
}

impl Reads {
    fn of(array: &Arc<Array>, stored: Option<&Bound<'_, PyDict>>) -> PyResult<Reads> {
        let array = Arc::clone(array);
        let (tasks, memory, given) = (Vec::new(), Vec::new(), stored.map(given).transpose()?);
        Ok(Reads { array, tasks, given, memory, batches: Vec::new(), placed: Vec::new() })
    }

    fn rows(&mut self, item: usize, first: usize, stop: usize, out: Memory) -> Result<(), String> {
        let array = Arc::clone(&self.array);
        let (row, begin) = (first / array.chunk[0], first % array.chunk[0]);
        let count = stop.checked_sub(first).ok_or("a negative number of rows")?;
        let shape = out.shape();
        let is_right = out.itemsize() == array.itemsize
            && shape.first() == Some(&count)
            && shape[1..] == array.shape[1..];
        if !is_right || stop > array.shape[0] || begin + count > array.chunk[0] {
            return Err(format!("rows {first} to {stop} do not fit"));
        }
        let strides = out.strides();
        each_column(&array, row, |at| {
            let (mut cells, shift) = column(&array, at, &strides);
            cells[0] = count;
            let mut inside = vec![0; at.len()];
            inside[0] = begin;
            let to = out.pointer().wrapping_offset(shift);
            let piece = Piece { first: inside, shape: cells, to, strides: strides.clone() };
            self.tasks.push(Task { at: at.to_vec(), item, targets: Targets::Pieces(vec![piece]) });
        });
        self.memory.push(out);
        Ok(())
    }

    fn cells(&mut self, item: usize, first: &[usize], out: Memory) -> Result<(), String> {
        let array = &*self.array;
        let (rank, shape) = (array.shape.len(), out.shape());
        if first.len() != rank || shape.len() != rank || out.itemsize() != array.itemsize {
            return Err("a box has other axes than the array".to_owned());
        }
        let at: Vec<usize> = (0..rank).map(|k| first[k] / array.chunk[k]).collect();
        let inside: Vec<usize> = (0..rank).map(|k| first[k] % array.chunk[k]).collect();
        if (0..rank).any(|k| {
            first[k] >= array.shape[k] || shape[k] > array.cells(k, at[k]).saturating_sub(inside[k])
        }) {
            return Err(format!("the box at {first:?} does not lie in one chunk"));
        }
        let piece = Piece { first: inside, shape, to: out.pointer(), strides: out.strides() };
        self.memory.push(out);
        match self.tasks.last_mut() {
            Some(Task { at: last, targets: Targets::Pieces(pieces), .. }) if *last == at => {
                pieces.push(piece);
            }
            _ => self.tasks.push(Task { at, item, targets: Targets::Pieces(vec![piece]) }),
        }
        Ok(())
    }

    fn boxes(
        &mut self,
        item: usize,
        number: usize,
        outputs: &[(Py<Boxes>, usize)],
    ) -> Result<(), String> {
        let (array, rank) = (&*self.array, self.array.shape.len());
        let (mut at, mut rest) = (vec![0; rank], number);
        for axis in (0..rank).rev() {
            let count = array.count(axis).max(1);
            (at[axis], rest) = (rest % count, rest / count);
        }
        if rest > 0 || array.shape.contains(&0) {
            return Err(format!("there is no chunk {number}"));
        }
        let mut targets = Vec::new();
        for (boxes, chunk) in outputs {
            let placed = &boxes.get().placed;
            if !placed.fits(array.itemsize, rank) {
                return Err("an output has other axes or values than the array".to_owned());
            }
            targets.push((Arc::clone(placed), *chunk));
        }
        self.tasks.push(Task { at, item, targets: Targets::Boxes(targets) });
        Ok(())
    }

    fn scattered(
        &mut self,
        item: usize,
        row: usize,
        outputs: &[(&Batch, usize)],
    ) -> Result<(), String> {
        let array = Arc::clone(&self.array);
        if row >= array.count(0) {
            return Err(format!("there is no row {row} of chunks"));
        }
        let mut targets = Vec::new();
        for &(held, chunk) in outputs {
            let shape = held.memory.shape();
            if held.memory.itemsize() != array.itemsize
                || shape.len() != array.shape.len()
                || shape[1..] != array.shape[1..]
            {
                return Err("an output has other rows than the array".to_owned());
            }
            targets.push((Arc::clone(&held.scattering), chunk));
        }
        if let [(output, chunk)] = &targets[..]
            && let [run] = output.of_chunk(*chunk)?
            && run.stop() <= array.cells(0, row)
        {
            self.run(item, row, *run, output);
        } else {
            self.scatter(item, row, &targets);
        }
        Ok(())
    }

    fn gather(&mut self, first: &[i64], size: usize, out: Memory) -> Result<(), String> {
        let array = Arc::clone(&self.array);
        let shape = out.shape();
        let rows = first.len().checked_mul(size).ok_or("too many rows")?;
        let is_right = out.itemsize() == array.itemsize
            && shape.first() == Some(&rows)
            && shape[1..] == array.shape[1..];
        if !is_right {
            return Err("the output has another shape".to_owned());
        }
        let mut runs = gathered(&array, first, size)?;
        runs.sort_by_key(|&(chunk, run)| (chunk, run.target));
        let bounds: Vec<usize> = runs.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect();
        let mut at = 0;
        let scattering = Arc::new(Scattering {
            to: out.pointer(),
            strides: out.strides(),
            runs: runs.iter().map(|&(_, run)| run).collect(),
            bounds: bounds.iter().fold(vec![0], |mut bounds, count| {
                bounds.push(bounds[bounds.len() - 1] + count);
                bounds
            }),
        });
        for (chunk, count) in bounds.into_iter().enumerate() {
            let (row, run) = runs[at];
            at += count;
            if count == 1 {
                self.run(chunk, row, run, &scattering);
            } else {
                self.scatter(chunk, row, &[(Arc::clone(&scattering), chunk)]);
            }
        }
        self.memory.push(out);
        Ok(())
    }

    /// A run that is all that is wanted of its chunks, which may be decoded in place.
    fn run(&mut self, item: usize, row: usize, run: Run, output: &Scattering) {
        let array = Arc::clone(&self.array);
        each_column(&array, row, |at| {
            let (mut shape, shift) = column(&array, at, &output.strides);
            shape[0] = run.count as usize;
            let mut first = vec![0; at.len()];
            first[0] = run.source as usize;
            let shift = run.target as isize * output.strides[0] + shift;
            let to = output.to.wrapping_offset(shift);
            let piece = Piece { first, shape, to, strides: output.strides.clone() };
            let targets = Targets::Pieces(vec![piece]);
            self.tasks.push(Task { at: at.to_vec(), item, targets });
        });
    }

    fn scatter(&mut self, item: usize, row: usize, targets: &[(Arc<Scattering>, usize)]) {
        let array = Arc::clone(&self.array);
        each_column(&array, row, |at| {
            let targets = Targets::Scattered(targets.to_vec());
            self.tasks.push(Task { at: at.to_vec(), item, targets });
        });
    }

    fn start(self) -> PyResult<Reading> {
        let reading = self.prepared()?;
        pool::submit(&reading.work)?;
        Ok(reading)
    }

    /// Reads that are done by the thread that waits for them.
    fn prepared(self) -> PyResult<Reading> {
        let items = self.tasks.iter().map(|task| task.item).collect();
        let (count, step) = (self.tasks.len(), STEP_BYTES / self.array.chunk_bytes);
        let mut found = Vec::new();
        if let Some(given) = &self.given {
            for task in &self.tasks {
                let one = given.get(&self.array.number(&task.at));
                found.push(Arc::clone(one.ok_or_else(|| refused("a chunk is not given"))?));
            }
        }
        let tasks = ChunkTasks { array: self.array, tasks: self.tasks, given: found };
        let work = Arc::new(Work::new(Box::new(tasks), count, step));
        let (_memory, _batches, _placed) = (self.memory, self.batches, self.placed);
        Ok(Reading { work, items, _memory, _batches, _placed })
    }
}

/// Calls with the coordinates of each chunk that has number `row` along the first axis.
fn each_column(array: &Array, row: usize, mut call: impl FnMut(&[usize])) {
    let rank = array.shape.len();
    let mut at = vec![0; rank];
    at[0] = row;
    if (1..rank).any(|axis| array.count(axis) == 0) {
        return;
    }
    loop {
        call(&at);
        let Some(axis) = (1..rank).rev().find(|&axis| at[axis] + 1 < array.count(axis)) else {
            return;
        };
        at[axis] += 1;
        at[axis + 1..].fill(0);
    }
}

/// Reads under way. When it is dropped, those that were not begun are left out.
#[pyclass(frozen)]
pub struct Reading {
    work: Arc<Work>,
    /// What each task was asked for by.
    items: Vec<usize>,
    _memory: Vec<Memory>,
    _batches: Vec<Py<Batch>>,
    _placed: Vec<Py<Boxes>>,
}

#[pymethods]
impl Reading {
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

    /// What could not be read: the number in the list that was given, and the reason, of each chunk.
    fn failures(&self) -> Vec<(usize, String)> {
        let named = |(task, why)| (self.items[task], why);
        self.work.failures().into_iter().map(named).collect()
    }

    /// Whether some chunk is not stored, so that it read as the fill value.
    fn missing(&self) -> bool {
        self.work.missing()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.work.cancel();
    }
}
