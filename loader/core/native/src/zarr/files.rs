//! Stored objects: one file per chunk, or shards of many chunks with an index.
//!
//! Invariants: sizes and offsets come from the system or were checked against it. A file that ends
//! early is an error.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, PoisonError};

use crate::codecs::fit;
use crate::zarr::open_files::{Kept, OpenFiles, Place};

const CHECKSUM_BYTES: usize = 4;
const ENTRY_BYTES: usize = 16;
const NO_CHUNK: u64 = u64::MAX;
/// Bytes of the indices of one array that are kept.
const INDEX_BYTES: usize = 256 << 20;

/// Largest stored size of a chunk; larger objects are not even read.
pub fn most_stored_bytes(decoded_bytes: usize) -> usize {
    decoded_bytes.saturating_mul(4).saturating_add(1 << 20)
}

/// Opens a file to read; None if there is none.
fn open(path: &[u8]) -> Result<Option<File>, String> {
    // Without waiting for a writer where a pipe lies in the place of the file.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    match options.open(OsStr::from_bytes(path)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The size of an open file.
fn size_of(file: &File) -> Result<usize, String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let size = metadata.len();
    usize::try_from(size).map_err(|_| format!("it has {size} bytes"))
}

/// Fills `out` from byte `offset` of a file on.
fn read_at(file: &File, out: &mut [u8], offset: u64) -> Result<(), String> {
    file.read_exact_at(out, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("it ends before byte {}", offset.saturating_add(out.len() as u64))
        }
        _ => error.to_string(),
    })
}

/// A shard's index, and the shard itself while it is kept open.
pub struct Shard {
    /// Offset and size of each chunk; `NO_CHUNK` twice where it is not stored.
    entries: Vec<(u64, u64)>,
    file: Option<(File, Place)>,
    bytes: u64,
}

impl Shard {
    fn find(self: &Arc<Shard>, within: usize, path: &[u8]) -> Result<Option<Stored>, String> {
        let Some((offset, bytes)) = place(&self.entries, within, self.bytes)? else {
            return Ok(None);
        };
        let handle = match &self.file {
            Some(_) => Handle::Shard(Arc::clone(self)),
            None => Handle::Own(open(path)?.ok_or("its shard is gone")?),
        };
        Ok(Some(Stored { handle, offset, bytes }))
    }
}

/// Offset and size of a chunk, which lies in a shard of `bytes` bytes; None if it is not stored.
pub fn place(
    entries: &[(u64, u64)],
    within: usize,
    bytes: u64,
) -> Result<Option<(u64, usize)>, String> {
    let &(offset, size) = entries.get(within).ok_or("its shard has no such chunk")?;
    if (offset, size) == (NO_CHUNK, NO_CHUNK) {
        return Ok(None);
    }
    if offset.checked_add(size).is_none_or(|end| end > bytes) {
        return Err("its index points past the end of the file".to_owned());
    }
    let size = usize::try_from(size).map_err(|_| format!("it has {size} bytes"))?;
    Ok(Some((offset, size)))
}

enum Handle {
    Own(File),
    Kept(Arc<Kept>),
    Shard(Arc<Shard>),
}

/// The stored bytes of one chunk.
pub struct Stored {
    handle: Handle,
    offset: u64,
    pub bytes: usize,
}

impl Stored {
    /// A whole file; None if there is none.
    pub fn whole(path: &[u8]) -> Result<Option<Stored>, String> {
        let Some(file) = open(path)? else { return Ok(None) };
        let bytes = size_of(&file)?;
        Ok(Some(Stored { handle: Handle::Own(file), offset: 0, bytes }))
    }

    /// The same; the file stays open if it may, so its bytes are found again without opening it.
    pub fn kept(files: &OpenFiles, number: u64, path: &[u8]) -> Result<Option<Stored>, String> {
        let kept = match files.find(number) {
            Some(kept) => kept,
            None => {
                let Some(file) = open(path)? else { return Ok(None) };
                let bytes = size_of(&file)?;
                match files.keep(number, file, bytes) {
                    Ok(kept) => kept,
                    Err(file) => {
                        return Ok(Some(Stored { handle: Handle::Own(file), offset: 0, bytes }));
                    }
                }
            }
        };
        let bytes = kept.bytes;
        Ok(Some(Stored { handle: Handle::Kept(kept), offset: 0, bytes }))
    }

    /// Fills `out` from byte `begin` on.
    pub fn read(&self, out: &mut [u8], begin: usize) -> Result<(), String> {
        let file = match &self.handle {
            Handle::Own(file) => file,
            Handle::Kept(kept) => &kept.file,
            Handle::Shard(shard) => &shard.file.as_ref().ok_or("its shard is closed")?.0,
        };
        read_at(file, out, self.offset + begin as u64)
    }

    /// All of them, in `memory`.
    pub fn all<'a>(&self, memory: &'a mut Vec<u8>) -> Result<&'a [u8], String> {
        fit(memory, self.bytes)?;
        self.read(&mut memory[..self.bytes], 0)?;
        Ok(&memory[..self.bytes])
    }
}

/// How the shards of an array keep their indices.
pub struct ShardForm {
    pub chunks: usize,
    pub at_start: bool,
    pub checked: bool,
}

impl ShardForm {
    /// Bytes of the index, its checksum included.
    fn index_bytes(&self) -> Result<usize, String> {
        let sum = if self.checked { CHECKSUM_BYTES } else { 0 };
        let bytes = self.chunks.checked_mul(ENTRY_BYTES).and_then(|bytes| bytes.checked_add(sum));
        bytes.ok_or_else(|| format!("no shard has {} chunks", self.chunks))
    }

    /// Where the index lies in a shard of so many bytes.
    pub fn index(&self, bytes: usize) -> Result<Range<usize>, String> {
        let stored = self.index_bytes()?;
        let Some(last) = bytes.checked_sub(stored) else {
            return Err(format!("it has {bytes} bytes, fewer than the {stored} of its index"));
        };
        let begin = if self.at_start { 0 } else { last };
        Ok(begin..begin + stored)
    }

    /// Offset and size of each chunk, from the stored index.
    pub fn entries(&self, index: &[u8]) -> Result<Vec<(u64, u64)>, String> {
        let wrong = || format!("its index has {} bytes", index.len());
        let (entries, sum) = index.split_at_checked(self.chunks * ENTRY_BYTES).ok_or_else(wrong)?;
        if self.checked && crc32c::crc32c(entries).to_le_bytes() != sum {
            return Err("the checksum of its index does not match".to_owned());
        }
        let (numbers, _) = entries.as_chunks::<8>();
        let number = |k: usize| u64::from_le_bytes(numbers[k]);
        let mut found = Vec::new();
        found.try_reserve_exact(self.chunks).map_err(|_| "no memory for its index")?;
        found.extend((0..self.chunks).map(|k| (number(2 * k), number(2 * k + 1))));
        Ok(found)
    }

    fn load(&self, path: &[u8]) -> Result<Option<Shard>, String> {
        let Some(file) = open(path)? else { return Ok(None) };
        let bytes = size_of(&file)?;
        let index = self.index(bytes)?;
        let mut data = Vec::new();
        fit(&mut data, index.len())?;
        read_at(&file, &mut data, index.start as u64)?;
        let entries = self.entries(&data)?;
        let file = Place::take().map(|place| (file, place));
        Ok(Some(Shard { entries, file, bytes: bytes as u64 }))
    }
}

type Held = HashMap<u64, Option<Arc<Shard>>>;

/// The shards of one array whose indices were read, the oldest dropped first.
pub struct Shards {
    pub form: ShardForm,
    held: Mutex<(Held, VecDeque<u64>)>,
}

impl Shards {
    pub fn new(form: ShardForm) -> Shards {
        Shards { form, held: Mutex::new((Held::new(), VecDeque::new())) }
    }

    /// A chunk of the shard with this number and path; None if it is not stored.
    pub fn find(&self, number: u64, within: usize, path: &[u8]) -> Result<Option<Stored>, String> {
        match self.get(number, path)? {
            None => Ok(None),
            Some(shard) => shard.find(within, path),
        }
    }

    /// A shard by its number; None if it is not stored, which is not looked up again.
    fn get(&self, number: u64, path: &[u8]) -> Result<Option<Arc<Shard>>, String> {
        let lock = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shard) = lock().0.get(&number) {
            return Ok(shard.clone());
        }
        let shard = self.form.load(path)?.map(Arc::new);
        let (held, order) = &mut *lock();
        if held.insert(number, shard.clone()).is_none() {
            order.push_back(number);
        }
        let most = (INDEX_BYTES / (ENTRY_BYTES * self.form.chunks)).max(1);
        while order.len() > most {
            if let Some(oldest) = order.pop_front() {
                held.remove(&oldest);
            }
        }
        Ok(shard)
    }
}
