//! Many chunks at once: read, verify, and decode their records to where they are wanted.

use std::borrow::Cow;
use std::fs::File;
use std::io;

use super::chunk::{Header, TRANSPOSED, Verify};
use super::codecs::{Room, Zstd, reserve};
use super::damage::{Found, commas, damaged};
use super::layout::Piece;
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
}

/// A chunk that was read and verified; it knows the size of each record.
pub struct Prepared<'a> {
    raw: Cow<'a, [u8]>,
    data: Piece,
    decoded_bytes: u64,
    records: Records,
}

enum Records {
    /// One record, which is all of the decoded bytes.
    One,
    Many(Vec<usize>),
    Decoded(Vec<u8>, Vec<usize>),
}

/// A record that is wanted: its number in the chunk, and where it goes.
pub struct Wanted {
    pub inside: usize,
    pub room: Room,
}

/// Decodes a chunk of one record, of as many bytes as `room` has, into it.
///
/// `raw` holds the file from `offset`, where the chunk begins; `scratch` is for bytes in memory.
pub fn read_one(
    offset: u64,
    raw: &[u8],
    verify: Verify,
    room: &mut Room,
    (zstd, scratch): (&mut Zstd, &mut Vec<u8>),
) -> Found<()> {
    let header = Header::read(offset, raw)?;
    header.check_count(1)?;
    if header.decoded_bytes != room.size() as u64 {
        let (own, index) = (commas(header.decoded_bytes), commas(room.size() as u64));
        return damaged(format!("its header counts {own} bytes in memory and the index {index}"));
    }
    let piece = header.data(offset, raw, verify)?;
    let data = piece.of(raw);
    if header.kind == TRANSPOSED {
        let (bytes, _) = transposed::decode(data, 1, header.decoded_bytes, zstd)?;
        return room.fill(&bytes);
    }
    simple::check_one(data, header.decoded_bytes, (zstd, scratch))?;
    simple::values(data, header.decoded_bytes)?.unpack_to(room, zstd, scratch)
}

impl<'a> Prepared<'a> {
    /// Reads and verifies a chunk, and finds the sizes of its records.
    pub fn new(chunk: &Chunk<'a>, verify: Verify, space: &mut Workspace) -> Result<Self, Failure> {
        let raw = match chunk.stored {
            Stored::InMemory(bytes) => Cow::Borrowed(bytes),
            Stored::InFile(file, size) => {
                let mut bytes = Vec::new();
                let read = read_at(file, chunk.offset, size, &mut bytes)?;
                bytes.truncate(read);
                Cow::Owned(bytes)
            }
        };
        let header = Header::read(chunk.offset, &raw)?;
        if let Some(counted) = chunk.counted {
            header.check_count(counted)?;
        }
        let data = header.data(chunk.offset, &raw, verify)?;
        let (count, decoded_bytes) = (header.records, header.decoded_bytes);
        let bytes = data.of(&raw);
        let records = if header.kind == TRANSPOSED {
            let (bytes, ends) = transposed::decode(bytes, count, decoded_bytes, &mut space.zstd)?;
            Records::Decoded(bytes, ends)
        } else {
            simple::values(bytes, decoded_bytes)?;
            match count {
                1 => {
                    let scratch = (&mut space.zstd, &mut space.values);
                    simple::check_one(bytes, decoded_bytes, scratch)?;
                    Records::One
                }
                _ => Records::Many(simple::ends(bytes, count, decoded_bytes, &mut space.zstd)?),
            }
        };
        Ok(Self { raw, data, decoded_bytes, records })
    }

    /// The bytes of the file that were read for it.
    pub fn stored_bytes(&self) -> usize {
        self.raw.len()
    }

    /// The number of its records.
    pub fn count(&self) -> usize {
        match &self.records {
            Records::One => 1,
            Records::Many(ends) | Records::Decoded(_, ends) => ends.len(),
        }
    }

    /// Where a record begins and ends among the bytes of all; `None` if there is no such record.
    pub fn bounds(&self, inside: usize) -> Option<(usize, usize)> {
        match &self.records {
            Records::One if inside == 0 => Some((0, usize::try_from(self.decoded_bytes).ok()?)),
            Records::One => None,
            Records::Many(ends) | Records::Decoded(_, ends) => {
                let begin =
                    inside.checked_sub(1).map_or(Some(0), |before| ends.get(before).copied())?;
                Some((begin, *ends.get(inside)?))
            }
        }
    }

    /// Decodes the records into their rooms.
    pub fn write(&self, wanted: &mut [Wanted], space: &mut Workspace) -> Result<(), Failure> {
        let data = self.data.of(&self.raw);
        match (&self.records, &mut *wanted) {
            (Records::Decoded(bytes, _), _) => self.scatter(bytes, wanted),
            (Records::One, [one]) => {
                let values = simple::values(data, self.decoded_bytes)?;
                Ok(values.unpack_to(&mut one.room, &mut space.zstd, &mut space.values)?)
            }
            _ => {
                let Workspace { zstd, values, .. } = space;
                simple::values(data, self.decoded_bytes)?.unpack(zstd, values)?;
                self.scatter(values, wanted)
            }
        }
    }

    /// Decodes the records, which nobody wants but to know that they can be decoded.
    pub fn decode(&self, space: &mut Workspace) -> Result<(), Failure> {
        if !matches!(self.records, Records::Decoded(..)) {
            let values = simple::values(self.data.of(&self.raw), self.decoded_bytes)?;
            values.unpack(&mut space.zstd, &mut space.values)?;
        }
        Ok(())
    }

    fn scatter(&self, bytes: &[u8], wanted: &mut [Wanted]) -> Result<(), Failure> {
        for one in wanted {
            let record = self.bounds(one.inside).and_then(|(begin, end)| bytes.get(begin..end));
            match record {
                Some(record) => one.room.fill(record)?,
                None => return Ok(damaged("it has not the records that its header counts")?),
            }
        }
        Ok(())
    }

    /// The bytes of the first record, and those of all others end to end.
    pub fn first_and_rest(&self, space: &mut Workspace) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let mut all = match &self.records {
            Records::Decoded(bytes, _) => bytes.clone(),
            _ => {
                let mut all = Vec::new();
                let data = self.data.of(&self.raw);
                simple::values(data, self.decoded_bytes)?.unpack(&mut space.zstd, &mut all)?;
                all
            }
        };
        let first = self.bounds(0).map_or(0, |(_, end)| end.min(all.len()));
        let rest = all.split_off(first);
        Ok((all, rest))
    }
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
