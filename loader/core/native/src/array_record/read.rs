//! One chunk: read, verified, and decoded to where its records are wanted.

use std::fs::File;
use std::io;

use super::chunk::{Header, TRANSPOSED, Verify};
use super::codecs::{Room, reserve};
use super::damage::{Found, commas, damaged};
use super::parallel::{Failure, Workspace};
use super::{simple, transposed};

/// The file's bytes from the begin of a chunk on, which end with it or later.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    InFile(&'a File, usize),
    InMemory(&'a [u8]),
}

impl Stored<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::InFile(_, size) => *size,
            Self::InMemory(bytes) => bytes.len(),
        }
    }
}

/// A chunk that its file's index lists.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    pub stored: Stored<'a>,
    pub offset: u64,
    /// The number of its records by the index; `None` accepts any.
    pub counted: Option<u64>,
    /// The bytes of its records by the index, which may be wrong; 0 if it does not say.
    pub expected_bytes: usize,
}

/// Decodes a chunk of one record, of as many bytes as `room` has, into it.
///
/// `raw` holds the file from `offset`, where the chunk begins.
pub fn read_one(
    offset: u64,
    raw: &[u8],
    verify: Verify,
    room: &mut Room,
    space: &mut Workspace,
) -> Found<()> {
    let Workspace { zstd, joined, values: scratch, .. } = space;
    let header = Header::read(offset, raw)?;
    header.check_count(1)?;
    if header.decoded_bytes != room.size() as u64 {
        let (own, index) = (commas(header.decoded_bytes), commas(room.size() as u64));
        return damaged(format!("its header counts {own} bytes in memory and the index {index}"));
    }
    let data = header.data(offset, raw, verify, joined)?;
    if header.kind == TRANSPOSED {
        let (bytes, _) = transposed::decode(data, 1, header.decoded_bytes, zstd)?;
        return room.fill(&bytes);
    }
    simple::check_one(data, header.decoded_bytes, (zstd, scratch))?;
    simple::values(data, header.decoded_bytes)?.unpack_to(room, zstd, scratch)
}

/// Reads, verifies and decodes a chunk: its records end to end to `into`, and where each ends.
pub fn decode(
    chunk: &Chunk<'_>,
    verify: Verify,
    space: &mut Workspace,
    into: &mut Vec<u8>,
) -> Result<Vec<usize>, Failure> {
    let Workspace { zstd, raw, joined, values, .. } = space;
    let raw = match chunk.stored {
        Stored::InMemory(bytes) => bytes,
        Stored::InFile(file, size) => {
            let read = read_at(file, chunk.offset, size, raw)?;
            &raw[..read]
        }
    };
    let header = Header::read(chunk.offset, raw)?;
    if let Some(counted) = chunk.counted {
        header.check_count(counted)?;
    }
    let data = header.data(chunk.offset, raw, verify, joined)?;
    let counts = (header.records, header.decoded_bytes);
    if header.kind == TRANSPOSED {
        let (bytes, ends) = transposed::decode(data, counts.0, counts.1, zstd)?;
        *into = bytes;
        return Ok(ends);
    }
    let records = simple::values(data, header.decoded_bytes)?;
    let ends = if header.records == 1 {
        simple::check_one(data, header.decoded_bytes, (zstd, values))?;
        vec![records.size]
    } else {
        simple::ends(data, counts, (zstd, values))?
    };
    records.unpack(zstd, into)?;
    Ok(ends)
}

/// Where a record begins among the bytes of all.
pub fn begin_of(ends: &[usize], inside: usize) -> usize {
    inside.checked_sub(1).map_or(0, |before| ends[before])
}

/// Reads `size` bytes of a file, or as many as there are, to the front of `into`; how many it read.
pub fn read_at(
    file: &File,
    offset: u64,
    size: usize,
    into: &mut Vec<u8>,
) -> Result<usize, Failure> {
    if into.len() < size {
        reserve(into, size)?;
        into.resize(size, 0);
    }
    let mut done = 0;
    while done < size {
        match pread(file, &mut into[done..size], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

#[cfg(unix)]
fn pread(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(windows)]
fn pread(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}
