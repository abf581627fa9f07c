//! Planned packing: which row each piece of a document goes to, and the copies that make rows.
//!
//! The definition of the plan is in `windrow/transforms/packing.py`, which has the same in Python.

use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::guard::guarded;
use crate::memory::{Memory, fence, stream};

/// The end of a list of rows.
const NONE: u32 = u32::MAX;
/// From this many pieces or bytes on, other threads may have the interpreter's lock.
const MANY: usize = 1 << 12;

/// A set of numbers below a bound that finds the next one from a number on.
///
/// A bit of a level says whether the word of 64 bits below it has any: three levels serve 262,144
/// numbers.
struct Numbers {
    levels: Vec<Vec<u64>>,
}

impl Numbers {
    fn new(bound: usize) -> Numbers {
        let (mut levels, mut words) = (Vec::new(), bound);
        while words > 1 || levels.is_empty() {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words]);
        }
        Numbers { levels }
    }

    fn insert(&mut self, mut number: usize) {
        for level in &mut self.levels {
            level[number / 64] |= 1 << (number % 64);
            number /= 64;
        }
    }

    fn remove(&mut self, mut number: usize) {
        for level in &mut self.levels {
            level[number / 64] &= !(1 << (number % 64));
            if level[number / 64] != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// The smallest number of the set that is at least `from`.
    fn next(&self, mut from: usize) -> Option<usize> {
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(from / 64)? >> (from % 64);
            if word != 0 {
                let mut found = from + word.trailing_zeros() as usize;
                for below in self.levels[..height].iter().rev() {
                    found = found * 64 + below[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
            from = from / 64 + 1;
        }
        None
    }
}

/// Rows with room, by the room that they have; of several with the same room the last one first.
struct OpenRows {
    rooms: Numbers,
    /// The last row with each room.
    last: Vec<u32>,
    /// For each row the one before it with the same room.
    before: Vec<u32>,
}

impl OpenRows {
    fn new(row_length: usize) -> OpenRows {
        let rooms = Numbers::new(row_length + 1);
        OpenRows { rooms, last: vec![NONE; row_length + 1], before: Vec::new() }
    }

    /// Takes out the row with the least room of at least `length`, and gives its room.
    fn take(&mut self, length: usize) -> Option<(u32, usize)> {
        let room = self.rooms.next(length)?;
        let row = self.last[room];
        self.last[room] = self.before[row as usize];
        if self.last[room] == NONE {
            self.rooms.remove(room);
        }
        Some((row, room))
    }

    fn put(&mut self, row: u32, room: usize) {
        self.before[row as usize] = self.last[room];
        self.last[room] = row;
        self.rooms.insert(room);
    }
}

/// Indices of `lengths` from the longest on, equal ones in their order.
fn longest_first(lengths: &[i64], row_length: usize) -> Vec<u32> {
    let mut starts = vec![0u32; row_length + 2];
    for &length in lengths {
        starts[row_length - length as usize + 1] += 1;
    }
    for k in 1..starts.len() {
        starts[k] += starts[k - 1];
    }
    let mut order = vec![0; lengths.len()];
    for (index, &length) in lengths.iter().enumerate() {
        let start = &mut starts[row_length - length as usize];
        order[*start as usize] = index as u32;
        *start += 1;
    }
    order
}

/// Writes the row of each piece to `rows`, and gives the number of rows.
fn packed(lengths: &[i64], row_length: usize, most: u32, rows: &mut [i64]) -> usize {
    let mut open = OpenRows::new(row_length);
    let mut pieces: Vec<u32> = Vec::new();
    for index in longest_first(lengths, row_length) {
        let length = lengths[index as usize] as usize;
        let (row, room) = open.take(length).unwrap_or_else(|| {
            open.before.push(NONE);
            pieces.push(0);
            (pieces.len() as u32 - 1, row_length)
        });
        rows[index as usize] = i64::from(row);
        pieces[row as usize] += 1;
        if room > length && pieces[row as usize] < most {
            open.put(row, room - length);
        }
    }
    pieces.len()
}

/// The int64 values of a readable array.
fn int64(memory: &Memory) -> PyResult<&[i64]> {
    memory.int64().ok_or_else(|| PyValueError::new_err("packing takes arrays of int64"))
}

/// Packs pieces into rows by best fit, from the longest on.
///
/// `lengths` and `rows` are arrays of int64 of the same length; each length is 1 to `row_length`.
/// A row has at most `most` pieces. Writes the row of each piece, and returns the number of rows.
#[pyfunction]
fn pack_best_fit(
    py: Python<'_>,
    lengths: &Bound<'_, PyAny>,
    row_length: u32,
    most: u32,
    rows: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    guarded(|| {
        let (given, target) = (Memory::readable(lengths)?, Memory::writable(rows)?);
        let lengths = int64(&given)?;
        let fits = |&length: &i64| 0 < length && length <= i64::from(row_length);
        let is_whole = target.is_contiguous() && target.int64().is_some();
        if !is_whole || target.bytes() != given.bytes() || lengths.len() >= NONE as usize {
            return Err(PyValueError::new_err("rows must be int64, one for each length"));
        }
        if most == 0 || !lengths.iter().all(fits) {
            return Err(PyValueError::new_err(format!("lengths must be 1 to {row_length}")));
        }
        if lengths.is_empty() {
            return Ok(0);
        }
        // SAFETY: the memory was asked for to be written, has this many numbers of 8 bytes in a row,
        // and its owner lets nobody else use it during the call.
        let rows =
            unsafe { slice::from_raw_parts_mut(target.pointer().cast::<i64>(), lengths.len()) };
        let work = |rows| packed(lengths, row_length as usize, most, rows);
        Ok(if lengths.len() < MANY { work(rows) } else { py.detach(|| work(rows)) })
    })
}

/// Runs of items: `counts[k]` items that begin at `from[k]` go to where `to[k]` begins.
struct Runs<'a> {
    from: &'a [i64],
    to: &'a [i64],
    counts: &'a [i64],
}

impl Runs<'_> {
    /// Whether every run lies inside `readable` and `writable` items.
    fn lie_inside(&self, readable: usize, writable: usize) -> bool {
        let inside = |start: i64, count: i64, items: usize| {
            start >= 0 && start.checked_add(count).is_some_and(|stop| stop as u64 <= items as u64)
        };
        self.from.len() == self.counts.len()
            && self.to.len() == self.counts.len()
            && self.counts.iter().zip(self.from).zip(self.to).all(|((&count, &from), &to)| {
                count >= 0 && inside(from, count, readable) && inside(to, count, writable)
            })
    }
}

/// The items between runs, and after the last one: none if they are not `cleared`.
fn gaps(runs: &Runs<'_>, items: usize, cleared: bool) -> PyResult<Vec<(usize, usize)>> {
    if !cleared {
        return Ok(Vec::new());
    }
    let (mut found, mut end) = (Vec::new(), 0);
    let ends = runs.to.iter().zip(runs.counts).map(|(&to, &count)| (to as usize, count as usize));
    for (to, count) in ends.chain([(items, 0)]) {
        if to < end {
            return Err(PyValueError::new_err("runs overlap, or are not in order"));
        }
        if to > end {
            found.push((end, to));
        }
        end = to + count;
    }
    Ok(found)
}

/// Copies runs of items of `item` bytes from one array to another, which must not overlap.
///
/// `from`, `to` and `counts` are arrays of int64 in items; see `Runs`. If all other items are
/// `cleared`, runs must be in order.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called from Python, by their places")]
fn copy_runs(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    item: usize,
    from: &Bound<'_, PyAny>,
    to: &Bound<'_, PyAny>,
    counts: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    cleared: bool,
) -> PyResult<()> {
    guarded(|| {
        let (source, target) = (Memory::readable(values)?, Memory::writable(out)?);
        let (from, to) = (Memory::readable(from)?, Memory::readable(to)?);
        let counts = Memory::readable(counts)?;
        let runs = Runs { from: int64(&from)?, to: int64(&to)?, counts: int64(&counts)? };
        let fits = item > 0
            && target.is_contiguous()
            && runs.lie_inside(source.bytes() / item, target.bytes() / item);
        if !fits {
            return Err(PyValueError::new_err("a run does not lie inside the arrays"));
        }
        let content = source.content();
        let gaps = gaps(&runs, target.bytes() / item, cleared)?;
        let whole = || {
            for &(from, to) in &gaps {
                // SAFETY: the gap lies inside the target; as below.
                unsafe {
                    target.pointer().add(from * item).write_bytes(0, (to - from) * item);
                }
            }
            for ((&from, &to), &count) in runs.from.iter().zip(runs.to).zip(runs.counts) {
                let (from, bytes) = (from as usize * item, count as usize * item);
                let run = &content[from..from + bytes];
                // SAFETY: the run lies inside the target, which is contiguous and which its owner
                // lets nobody else use during the call.
                unsafe {
                    let start = target.pointer().add(to as usize * item);
                    start.copy_from_nonoverlapping(run.as_ptr(), bytes);
                }
            }
        };
        if runs.counts.len() < MANY && target.bytes() < MANY {
            whole()
        } else {
            py.detach(whole)
        }
        Ok(())
    })
}

/// Writes, for each run, its number to all items of `ids`, and 0, 1, ... to `positions`.
///
/// Runs must be in order, and all other items become 0.
/// `ids` and `positions` are arrays of int32 of one size; `to`, `counts` and `numbers` are int64.
#[pyfunction]
fn number_runs(
    py: Python<'_>,
    to: &Bound<'_, PyAny>,
    counts: &Bound<'_, PyAny>,
    numbers: &Bound<'_, PyAny>,
    ids: &Bound<'_, PyAny>,
    positions: &Bound<'_, PyAny>,
) -> PyResult<()> {
    guarded(|| {
        let (to, counts) = (Memory::readable(to)?, Memory::readable(counts)?);
        let numbers = Memory::readable(numbers)?;
        let (ids, positions) = (Memory::writable(ids)?, Memory::writable(positions)?);
        let runs = Runs { from: int64(&to)?, to: int64(&to)?, counts: int64(&counts)? };
        let numbers = int64(&numbers)?;
        let items = ids.bytes() / 4;
        let is_int32 = |memory: &Memory| {
            memory.itemsize() == 4
                && memory.is_contiguous()
                && memory.pointer().cast::<i32>().is_aligned()
        };
        if !is_int32(&ids)
            || !is_int32(&positions)
            || positions.bytes() != ids.bytes()
            || numbers.len() != runs.counts.len()
            || !runs.lie_inside(items, items)
        {
            return Err(PyValueError::new_err("a run does not lie inside the arrays"));
        }
        if items == 0 {
            return Ok(());
        }
        let gaps = gaps(&runs, items, true)?;
        // SAFETY: both were asked for to be written, have this many aligned numbers of 4 bytes in a
        // row, and their owner lets nobody else use them during the call.
        let (ids, positions) = unsafe {
            (
                slice::from_raw_parts_mut(ids.pointer().cast::<i32>(), items),
                slice::from_raw_parts_mut(positions.pointer().cast::<i32>(), items),
            )
        };
        let mut whole = || {
            for &(from, to) in &gaps {
                ids[from..to].fill(0);
                positions[from..to].fill(0);
            }
            for ((&to, &count), &number) in runs.to.iter().zip(runs.counts).zip(numbers) {
                let run = to as usize..(to + count) as usize;
                stream(&mut ids[run.clone()], number as i32, 0);
                stream(&mut positions[run], 0, 1);
            }
            fence();
        };
        if items < MANY {
            whole()
        } else {
            py.detach(whole)
        }
        Ok(())
    })
}

/// Writes 0 to all items of `item` bytes of `out` that lie in no run. Runs must be in order.
#[pyfunction]
fn clear_gaps(
    to: &Bound<'_, PyAny>,
    counts: &Bound<'_, PyAny>,
    item: usize,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    guarded(|| {
        let (to, counts) = (Memory::readable(to)?, Memory::readable(counts)?);
        let target = Memory::writable(out)?;
        let runs = Runs { from: int64(&to)?, to: int64(&to)?, counts: int64(&counts)? };
        let items = target.bytes().checked_div(item).unwrap_or(0);
        if item == 0 || !target.is_contiguous() || !runs.lie_inside(items, items) {
            return Err(PyValueError::new_err("a run does not lie inside the array"));
        }
        for (from, to) in gaps(&runs, items, true)? {
            // SAFETY: the gap lies inside the target, which is contiguous and which its owner lets
            // nobody else use during the call.
            unsafe { target.pointer().add(from * item).write_bytes(0, (to - from) * item) };
        }
        Ok(())
    })
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pack_best_fit, module)?)?;
    module.add_function(wrap_pyfunction!(copy_runs, module)?)?;
    module.add_function(wrap_pyfunction!(number_runs, module)?)?;
    module.add_function(wrap_pyfunction!(clear_gaps, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_is_found() {
        for bound in [1, 2, 64, 65, 4096, 4097, 262_145] {
            let mut numbers = Numbers::new(bound);
            assert_eq!(numbers.next(0), None);
            numbers.insert(bound - 1);
            assert_eq!(numbers.next(0), Some(bound - 1));
            assert_eq!(numbers.next(bound), None);
            numbers.insert(bound / 2);
            assert_eq!(numbers.next(bound / 3), Some(bound / 2));
            numbers.remove(bound - 1);
            numbers.remove(bound / 2);
            assert_eq!(numbers.next(0), None);
        }
    }

    #[test]
    fn no_row_is_too_long() {
        let lengths: Vec<i64> = (0..1000).map(|k| k * 7919 % 100 + 1).collect();
        for most in [1, 3, u32::MAX] {
            let mut rows = vec![-1; lengths.len()];
            let count = packed(&lengths, 100, most, &mut rows);
            let (mut sums, mut pieces) = (vec![0; count], vec![0; count]);
            for (&row, &length) in rows.iter().zip(&lengths) {
                sums[row as usize] += length;
                pieces[row as usize] += 1;
            }
            assert!(sums.iter().all(|&sum| 0 < sum && sum <= 100));
            assert!(pieces.iter().all(|&number| number <= most));
        }
    }
}
