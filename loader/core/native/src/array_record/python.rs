//! What Python calls. Each function lets other threads of the interpreter run while it works.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use pyo3::{create_exception, exceptions::PyException};

use super::chunk::Verify;
use super::codecs::Room;
use super::decoded::Decoded;
use super::file::RecordFile;
use super::hash::hash;
use super::parallel::{Failure, Workspace, caught, each};
use super::read::{Chunk, Stored, decode, read_at, read_one};
use crate::guard::guarded;
use crate::varint::Cursor;

/// Stored bytes of groups that are held at a time.
const PORTION_BYTES: usize = 8 << 20;
/// Neighbouring chunks of one record are read together up to so many bytes.
const RUN_BYTES: u64 = 1 << 17;
/// Runs that a thread takes at a time.
const RUNS: usize = 16;
/// Less than so many stored bytes are decoded by the calling thread alone.
const ALONE_BYTES: usize = 1 << 15;
/// Less than so many bytes are copied while the interpreter is held: to get it again takes longer.
const HELD_BYTES: usize = 1 << 22;
/// Why a record of a chunk cannot be given.
pub const NOT_THERE: &str = "it has not the records that the index counts";

create_exception!(
    windrow.core._native,
    ChunkError,
    PyException,
    "A chunk cannot be read: its number in the call, and the reason as a clause."
);

/// An open ArrayRecord file with its index.
#[pyclass(frozen, module = "windrow.core._native")]
pub struct ArrayRecordFile(Arc<RecordFile>);

impl ArrayRecordFile {
    /// The file, which threads may keep.
    pub fn shared(&self) -> Arc<RecordFile> {
        Arc::clone(&self.0)
    }
}

impl Deref for ArrayRecordFile {
    type Target = RecordFile;

    fn deref(&self) -> &RecordFile {
        &self.0
    }
}

#[pymethods]
impl ArrayRecordFile {
    /// Opens a file. `offsets`, `stops` and `decoded` are int64, one for each chunk.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        offsets: &Bound<'_, PyAny>,
        stops: &Bound<'_, PyAny>,
        decoded: &Bound<'_, PyAny>,
        group: u64,
        records: u64,
    ) -> PyResult<Self> {
        let offsets = numbers(py, offsets)?;
        let (stops, decoded) = (numbers(py, stops)?, numbers(py, decoded)?);
        let chunks = offsets.len();
        let fits = group > 0 && records.div_ceil(group) == chunks as u64;
        if !fits || stops.len() != chunks || decoded.len() != chunks {
            return Err(PyValueError::new_err("the index of the file does not fit together"));
        }
        if offsets.iter().zip(&stops).any(|(offset, stop)| offset > stop) {
            return Err(PyValueError::new_err("a chunk ends before it begins"));
        }
        let file = py.detach(|| File::open(&path)).map_err(|error| file_error(&path, &error))?;
        Ok(Self(Arc::new(RecordFile { path, file, offsets, stops, decoded, group, records })))
    }

    /// The begin, the stored bytes and the bytes in memory of chunks, int64, by the index.
    fn places<'py>(
        &self,
        py: Python<'py>,
        chunks: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let place = |&chunk: &u64| {
            let chunk = usize::try_from(chunk).ok().filter(|&chunk| chunk < self.offsets.len())?;
            let stored = self.stops[chunk] - self.offsets[chunk];
            Some([self.offsets[chunk], stored, self.decoded[chunk]].map(u64::to_le_bytes))
        };
        let places: Option<Vec<[[u8; 8]; 3]>> = numbers(py, chunks)?.iter().map(place).collect();
        let places = places.ok_or_else(|| PyIndexError::new_err("no such chunk"))?;
        Ok(PyBytes::new(py, places.as_flattened().as_flattened()))
    }
}

/// Reads records of files, as bytes.
///
/// `at` and `positions` are int64 of the same length: for each record the number of its file in
/// `files`, and its position there. Returns the records, `None` for those that are damaged, and for
/// each of these its number in the call and the reason. Raises `ChunkError` with the number of a
/// record if there is no memory for it.
#[pyfunction]
fn array_record_read<'py>(
    py: Python<'py>,
    files: Vec<Py<ArrayRecordFile>>,
    at: &Bound<'py, PyAny>,
    positions: &Bound<'py, PyAny>,
    verify_data: bool,
) -> PyResult<(Bound<'py, PyList>, Damages)> {
    guarded(|| {
        let files: Vec<&RecordFile> = files.iter().map(|file| &**file.get()).collect();
        let places = places(&files, &numbers(py, at)?, &numbers(py, positions)?)?;
        let verify = Verify::data_if(verify_data);
        let single = |place: &Place| place.file.group == 1 && place.file.is_plausible(place.chunk);
        let (records, damages) = if places.iter().all(single) {
            read_singles(py, &places, verify)?
        } else {
            read_groups(py, &places, verify)?
        };
        Ok((PyList::new(py, records)?, damages))
    })
}

/// The numbers of what is damaged in a call, ascending, each with the reason.
pub type Damages = Vec<(usize, String)>;

/// Records in the order of a call, `None` for those that are damaged.
type Records<'py> = Vec<Option<Bound<'py, PyBytes>>>;

/// The place of a record: its file, its chunk there, and its number in the chunk.
struct Place<'a> {
    file: &'a RecordFile,
    chunk: usize,
    inside: usize,
}

fn places<'a>(files: &[&'a RecordFile], at: &[u64], positions: &[u64]) -> PyResult<Vec<Place<'a>>> {
    if at.len() != positions.len() {
        return Err(PyValueError::new_err("each position needs the number of its file"));
    }
    let place = |(&at, &position): (&u64, &u64)| {
        let file = usize::try_from(at).ok().and_then(|at| files.get(at).copied());
        let file = file.filter(|file| position < file.records);
        let file = file
            .ok_or_else(|| PyIndexError::new_err(format!("no record {position} of file {at}")))?;
        let (chunk, inside) = (position / file.group, position % file.group);
        Ok(Place { file, chunk: chunk as usize, inside: inside as usize })
    };
    at.iter().zip(positions).map(place).collect()
}

/// Records that are chunks of their own, decoded from the file straight into their objects.
fn read_singles<'py>(
    py: Python<'py>,
    places: &[Place<'_>],
    verify: Verify,
) -> PyResult<(Records<'py>, Damages)> {
    let mut records = Vec::with_capacity(places.len());
    let mut rooms = Vec::with_capacity(places.len());
    for (number, place) in places.iter().enumerate() {
        let size = place.file.decoded[place.chunk] as usize;
        let (record, room) = new_bytes(py, number, size)?;
        records.push(Some(record));
        rooms.push(Mutex::new(room));
    }
    let damages = Mutex::new(Vec::new());
    let runs = runs(places);
    let stored = places.iter().map(|place| place.file.stored_bytes(place.chunk)).sum();
    let work = |run: usize, space: &mut Workspace| {
        let (begin, end) = (runs[run], runs.get(run + 1).copied().unwrap_or(places.len()));
        let damaged = |number, why| locked(&damages).push((begin + number, why));
        read_run(&places[begin..end], &rooms[begin..end], verify, space, damaged)
            .map_err(|(number, failure)| (begin + number, failure))
    };
    each(py, runs.len(), grain(RUNS, stored), work)?
        .map_err(|(number, failure)| raised(number, failure, &places[number].file.path))?;
    let mut damages = damages.into_inner().unwrap_or_else(PoisonError::into_inner);
    damages.sort_unstable();
    for &(number, _) in &damages {
        records[number] = None;
    }
    Ok((records, damages))
}

/// Reads neighbouring chunks of one record each; calls `damaged` for those that are damaged.
///
/// Returns the number of one that could not be read.
fn read_run(
    places: &[Place<'_>],
    rooms: &[Mutex<Room>],
    verify: Verify,
    space: &mut Workspace,
    damaged: impl Fn(usize, String),
) -> Result<(), (usize, Failure)> {
    let file = places[0].file;
    let begin = file.offsets[places[0].chunk];
    let size = file.stops[places[places.len() - 1].chunk] - begin;
    let mut raw = std::mem::take(&mut space.raw);
    let read = read_at(&file.file, begin, size as usize, &mut raw);
    let read = read.map_err(|failure| (0, failure))?;
    for (number, (place, room)) in places.iter().zip(rooms).enumerate() {
        let offset = file.offsets[place.chunk];
        let first = (offset - begin) as usize;
        let stop = (first + file.stored_bytes(place.chunk)).min(read);
        let bytes = raw.get(first..stop).unwrap_or(&[]);
        match caught(|| Ok(read_one(offset, bytes, verify, &mut locked(room), space)?)) {
            Ok(()) => {}
            Err(Failure::Damage(damage)) => damaged(number, damage.0),
            Err(failure) => return Err((number, failure)),
        }
    }
    space.raw = raw;
    Ok(())
}

/// Where runs of chunks begin that lie one behind the other in one file.
fn runs(places: &[Place<'_>]) -> Vec<usize> {
    let mut runs = Vec::new();
    let mut first = 0;
    for (number, place) in places.iter().enumerate() {
        let follows = number > 0 && {
            let before = &places[number - 1];
            let begin = places[first].file.offsets[places[first].chunk];
            std::ptr::eq(before.file, place.file)
                && before.chunk + 1 == place.chunk
                && before.file.stops[before.chunk] == place.file.offsets[place.chunk]
                && place.file.stops[place.chunk] - begin <= RUN_BYTES
        };
        if !follows {
            runs.push(number);
            first = number;
        }
    }
    runs
}

/// A chunk, and the records wanted of it: their number in the chunk, and in the call.
struct Job<'a> {
    file: &'a RecordFile,
    chunk: Chunk<'a>,
    wanted: Vec<(usize, usize)>,
}

/// Records of groups, each of which is decoded once.
fn read_groups<'py>(
    py: Python<'py>,
    places: &[Place<'_>],
    verify: Verify,
) -> PyResult<(Records<'py>, Damages)> {
    let mut jobs: Vec<Job<'_>> = Vec::new();
    let mut numbers: HashMap<(*const RecordFile, usize), usize> = HashMap::new();
    for (number, &Place { file, chunk, inside }) in places.iter().enumerate() {
        let job = *numbers.entry((std::ptr::from_ref(file), chunk)).or_insert(jobs.len());
        if job == jobs.len() {
            jobs.push(Job { file, chunk: file.chunk(chunk), wanted: Vec::new() });
        }
        jobs[job].wanted.push((inside, number));
    }
    let mut records: Records<'py> = places.iter().map(|_| None).collect();
    let mut damages = Vec::new();
    for some in portions(&jobs, |job| job.chunk.stored.len()) {
        let chunks: Vec<Chunk<'_>> = some.iter().map(|job| job.chunk).collect();
        let mut groups = Vec::with_capacity(chunks.len());
        for (job, group) in some.iter().zip(each_decoded(py, &chunks, verify)?) {
            match group {
                Ok(group) => groups.push((job, group)),
                Err(Failure::Damage(damage)) => {
                    damages
                        .extend(job.wanted.iter().map(|&(_, number)| (number, damage.0.clone())));
                }
                Err(failure) => return Err(raised(job.wanted[0].1, failure, &job.file.path)),
            }
        }
        let (mut contents, mut targets) = (Vec::new(), Vec::new());
        for (job, group) in &groups {
            for &(inside, number) in &job.wanted {
                match group.record(inside) {
                    Some(record) => {
                        contents.push(record);
                        targets.push(number);
                    }
                    None => damages.push((number, NOT_THERE.to_owned())),
                }
            }
        }
        for (number, record) in targets.into_iter().zip(bytes_objects(py, &contents)?) {
            records[number] = Some(record);
        }
    }
    damages.sort_unstable();
    Ok((records, damages))
}

/// Decodes chunks; the number of the first that failed.
fn decoded(
    py: Python<'_>,
    chunks: &[Chunk<'_>],
    verify: Verify,
) -> PyResult<Result<Vec<Decoded>, (usize, Failure)>> {
    let found = each_decoded(py, chunks, verify)?.into_iter().enumerate();
    Ok(found.map(|(at, group)| group.map_err(|failure| (at, failure))).collect())
}

/// Decodes chunks; what became of each.
fn each_decoded(
    py: Python<'_>,
    chunks: &[Chunk<'_>],
    verify: Verify,
) -> PyResult<Vec<Result<Decoded, Failure>>> {
    let found: Vec<OnceLock<Result<Decoded, Failure>>> =
        chunks.iter().map(|_| OnceLock::new()).collect();
    let work = |at: usize, space: &mut Workspace| {
        let _ = found[at].set(caught(|| Decoded::read(&chunks[at], verify, space)));
        Ok::<(), Failure>(())
    };
    let stored = chunks.iter().map(|chunk| chunk.stored.len()).sum();
    let _ = each(py, chunks.len(), grain(1, stored), work)?;
    Ok(found.into_iter().filter_map(OnceLock::into_inner).collect())
}

/// Decodes chunks in memory: a list of the records of each.
///
/// Each chunk is the offset in its file, the file's bytes from there on, which nobody changes, and
/// the number of its records by the index. Raises `ChunkError` with the number of a chunk.
#[pyfunction]
fn array_record_decode<'py>(
    py: Python<'py>,
    chunks: Vec<(u64, PyBuffer<u8>, u64)>,
    verify_data: bool,
) -> PyResult<Vec<Bound<'py, PyList>>> {
    guarded(|| {
        let mut stored = Vec::with_capacity(chunks.len());
        for (offset, buffer, counted) in &chunks {
            let bytes = Stored::InMemory(bytes_of(buffer)?);
            stored.push(Chunk {
                stored: bytes,
                offset: *offset,
                counted: Some(*counted),
                expected_bytes: 0,
            });
        }
        let mut lists = Vec::with_capacity(chunks.len());
        for some in portions(&stored, |chunk| chunk.stored.len()) {
            let first = lists.len();
            let failed = |(at, failure)| raised(first + at, failure, Path::new(""));
            for group in decoded(py, some, Verify::data_if(verify_data))?.map_err(failed)? {
                let records: Vec<&[u8]> = group.records().collect();
                lists.push(PyList::new(py, bytes_objects(py, &records)?)?);
            }
        }
        Ok(lists)
    })
}

/// Decodes the footer at `offset` of a file: the record about the file, and the index's entries.
///
/// The entries are int64: the begin, the bytes in memory and the records of each chunk. `None` if
/// the footer does not hold such numbers; `ChunkError` if it is damaged.
#[pyfunction]
fn array_record_index<'py>(
    py: Python<'py>,
    offset: u64,
    raw: PyBuffer<u8>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    guarded(|| {
        let stored = Stored::InMemory(bytes_of(&raw)?);
        let chunk = Chunk { stored, offset, counted: None, expected_bytes: 0 };
        let read = || {
            let mut bytes = Vec::new();
            let found = caught(|| decode(&chunk, Verify::All, &mut Workspace::new(), &mut bytes));
            found.map(|ends| {
                let rest = bytes.split_off(ends[0]);
                entries(&rest, ends.len() - 1).map(|entries| (bytes, entries))
            })
        };
        let found = py.detach(read).map_err(|failure| raised(0, failure, Path::new("")))?;
        Ok(found.map(|(about, entries)| {
            (PyBytes::new(py, &about), PyBytes::new(py, entries.as_flattened().as_flattened()))
        }))
    })
}

/// The three numbers of each entry of an index; `None` if the bytes are not so many entries.
fn entries(bytes: &[u8], count: usize) -> Option<Vec<[[u8; 8]; 3]>> {
    let mut cursor = Cursor::new(bytes);
    // An entry takes six bytes at least, so the memory follows what is there.
    let mut found = Vec::with_capacity(count.min(bytes.len() / 6));
    for _ in 0..count {
        let mut entry = [[0; 8]; 3];
        for (number, tag) in entry.iter_mut().zip([0x08, 0x10, 0x18]) {
            if cursor.byte()? != tag {
                return None;
            }
            *number = i64::try_from(cursor.varint()?).ok()?.to_le_bytes();
        }
        found.push(entry);
    }
    cursor.is_empty().then_some(found)
}

/// The hash that chunks have of `data`, so that a test makes chunks.
#[pyfunction]
fn hash_for_test(data: &[u8]) -> u64 {
    hash(data)
}

/// Runs of neighbours that take a portion of memory together, or are a single one.
fn portions<T>(jobs: &[T], size: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut found, mut begin, mut total) = (Vec::new(), 0, 0);
    for (at, job) in jobs.iter().enumerate() {
        if at > begin && total + size(job) > PORTION_BYTES {
            found.push(&jobs[begin..at]);
            (begin, total) = (at, 0);
        }
        total += size(job);
    }
    if begin < jobs.len() {
        found.push(&jobs[begin..]);
    }
    found
}

/// So many numbers at a time, or all of them if they are few bytes: these take one thread.
pub fn grain(least: usize, stored_bytes: usize) -> usize {
    if stored_bytes < ALONE_BYTES { usize::MAX } else { least }
}

fn locked<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}

/// New `bytes` with these contents. Other threads of the interpreter run while much is copied.
pub fn bytes_objects<'py>(
    py: Python<'py>,
    contents: &[&[u8]],
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    if contents.iter().map(|content| content.len()).sum::<usize>() < HELD_BYTES {
        return Ok(contents.iter().map(|content| PyBytes::new(py, content)).collect());
    }
    let mut objects = Vec::with_capacity(contents.len());
    let mut rooms = Vec::with_capacity(contents.len());
    for (number, content) in contents.iter().enumerate() {
        let (object, room) = new_bytes(py, number, content.len())?;
        objects.push(object);
        rooms.push(room);
    }
    py.detach(|| {
        for (room, content) in rooms.iter_mut().zip(contents) {
            let _ = room.fill(content); // it has the same size
        }
    });
    Ok(objects)
}

/// A new `bytes` whose content must be written before anybody sees it, and the memory in it.
fn new_bytes<'py>(
    py: Python<'py>,
    number: usize,
    size: usize,
) -> PyResult<(Bound<'py, PyBytes>, Room)> {
    let Ok(length) = ffi::Py_ssize_t::try_from(size) else {
        return Err(chunk_error(number, "it asks for more memory than there is"));
    };
    // SAFETY: CPython gives a new object of this size, or null with an exception, which
    // `from_owned_ptr_or_err` takes. An empty object may be shared, and nothing is written to it.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        let Ok(object) = Bound::from_owned_ptr_or_err(py, object) else {
            return Err(chunk_error(number, "it asks for more memory than there is"));
        };
        let object = object.cast_into_unchecked::<PyBytes>();
        let room = Room::new(ffi::PyBytes_AsString(object.as_ptr()).cast(), size);
        Ok((object, room))
    }
}

fn bytes_of(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes of a buffer must lie together"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is contiguous, and its owner keeps it while the buffer is held. The caller
    // promises that nobody changes the bytes meanwhile; reading them anew would give no other rule.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Numbers of int64, none of which may be negative.
pub fn numbers(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let found = PyBuffer::<i64>::get(array)?.to_vec(py)?;
    let number =
        |number| u64::try_from(number).map_err(|_| PyIndexError::new_err("a negative number"));
    found.into_iter().map(number).collect()
}

pub fn raised(number: usize, failure: Failure, path: &Path) -> PyErr {
    match failure {
        Failure::Damage(damage) => chunk_error(number, &damage.0),
        Failure::File(error) => file_error(path, &error),
    }
}

pub fn chunk_error(number: usize, why: &str) -> PyErr {
    ChunkError::new_err((number, why.to_owned()))
}

pub fn file_error(path: &Path, error: &std::io::Error) -> PyErr {
    let text = error.to_string();
    // Rust appends the number, which Python shows before it.
    let text = text.split(" (os error ").next().unwrap_or_default().to_owned();
    PyOSError::new_err((error.raw_os_error().unwrap_or(0), text, path.to_path_buf()))
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ChunkError", module.py().get_type::<ChunkError>())?;
    module.add_class::<ArrayRecordFile>()?;
    module.add_function(wrap_pyfunction!(array_record_read, module)?)?;
    module.add_function(wrap_pyfunction!(array_record_decode, module)?)?;
    module.add_function(wrap_pyfunction!(array_record_index, module)?)?;
    module.add_function(wrap_pyfunction!(hash_for_test, module)?)
}
