//! The parsers of ArrayRecord files.

use super::Front;
use crate::array_record::chunk::{HEADER, Header, SIMPLE, TRANSPOSED, Verify};
use crate::array_record::codecs::{Codec, MOST_BYTES, Room, Zstd};
use crate::array_record::hash::hash;
use crate::array_record::layout::{BLOCK, BLOCK_HEADER, contiguous, span};
use crate::array_record::parallel::Workspace;
use crate::array_record::read::{Chunk, Stored, decode, read_one};
use crate::varint::Cursor;

/// Where chunks begin that are made here: behind the first block header and the file's own.
const OFFSET: u64 = 64;
/// Records are given memory only up to this many bytes in all.
const MOST_WRITTEN: usize = 1 << 20;

pub fn varints(data: &[u8]) {
    let mut cursor = Cursor::new(data);
    while !cursor.is_empty() {
        let before = cursor.rest().len();
        let (mut narrow, mut sized) = (cursor, cursor);
        let found = cursor.varint();
        assert_eq!(narrow.varint32(), found.and_then(|number| u32::try_from(number).ok()));
        if let Some(bytes) = sized.sized() {
            assert_eq!(Some(bytes.len() as u64), found);
        }
        match found {
            Some(number) => assert!(number < 1 << 63 && before - cursor.rest().len() <= 9),
            None => assert!(cursor.byte().is_some()),
        }
    }
}

/// Makes the hashes of block headers right.
fn seal_blocks(offset: u64, raw: &mut [u8]) {
    let mut at = (BLOCK - offset % BLOCK) % BLOCK;
    while at + BLOCK_HEADER <= raw.len() as u64 {
        let (own, body) = raw[at as usize..(at + BLOCK_HEADER) as usize].split_at_mut(8);
        own.copy_from_slice(&hash(body).to_le_bytes());
        at += BLOCK;
    }
}

pub fn layout(data: &[u8]) {
    let mut front = Front(data);
    let (is_sealed, offset) = (front.flag(), front.number(4));
    let (start, size) = (front.number(2), front.number(4));
    let mut raw = front.0.to_vec();
    if is_sealed {
        seal_blocks(offset, &mut raw);
    }
    let stop = start + size;
    assert!(span(offset, stop.max(1)) >= stop);
    if let Ok(bytes) = contiguous(offset, &raw, (start, stop), &mut Vec::new()) {
        assert_eq!(bytes.len() as u64, size);
    }
}

pub fn headers(data: &[u8]) {
    let mut front = Front(data);
    let (is_sealed, offset) = (front.flag(), front.number(3));
    let mut raw = front.0.to_vec();
    if is_sealed {
        seal_blocks(offset, &mut raw);
        let lead = if offset % BLOCK == 0 { BLOCK_HEADER as usize } else { 0 };
        if let Some(header) = raw.get_mut(lead..lead + HEADER as usize) {
            let (own, body) = header.split_at_mut(8);
            own.copy_from_slice(&hash(body).to_le_bytes());
        }
    }
    let Ok(header) = Header::read(offset, &raw) else { return };
    let _ = header.check_count(1);
    for verify in [Verify::All, Verify::Headers] {
        if let Ok(data) = header.data(offset, &raw, verify, &mut Vec::new()) {
            assert_eq!(data.len() as u64, header.data_bytes);
        }
    }
}

pub fn simple_chunks(data: &[u8]) {
    chunks(SIMPLE, data);
}

pub fn transposed_chunks(data: &[u8]) {
    chunks(TRANSPOSED, data);
}

/// A chunk with right hashes, read as chunks of files are.
fn chunks(kind: u8, data: &[u8]) {
    let mut front = Front(data);
    // Mostly few, so that the counts can be right.
    let bytes = if front.flag() { 7 } else { 2 };
    let (records, decoded_bytes) = (front.number(bytes), front.number(bytes));
    let data = front.0;
    let body = [
        (data.len() as u64).to_le_bytes(),
        hash(data).to_le_bytes(),
        (records << 8 | u64::from(kind)).to_le_bytes(),
        decoded_bytes.to_le_bytes(),
    ]
    .concat();
    let raw = [&hash(&body).to_le_bytes()[..], &body, data].concat();
    if span(OFFSET, raw.len() as u64) != raw.len() as u64 {
        return; // block headers are not made here
    }
    let mut space = Workspace::new();
    let found = read_all(&raw, &mut space);
    let one = one_record(&raw, decoded_bytes, &mut space);
    if let (Some(found), Some(one)) = (found, one) {
        assert!(records != 1 || found == one, "a record is read in two ways");
    }
}

/// The bytes of all records end to end; None if they cannot be read.
fn read_all(raw: &[u8], space: &mut Workspace) -> Option<Vec<u8>> {
    let stored = Stored::InMemory(raw);
    let chunk = Chunk { stored, offset: OFFSET, counted: None, expected_bytes: 0 };
    let mut bytes = Vec::new();
    let ends = decode(&chunk, Verify::All, space, &mut bytes).ok()?;
    assert!(ends.is_sorted() && ends.last() == Some(&bytes.len()), "records lie end to end");
    Some(bytes)
}

fn one_record(raw: &[u8], decoded_bytes: u64, space: &mut Workspace) -> Option<Vec<u8>> {
    let size = usize::try_from(decoded_bytes).ok().filter(|&size| size <= MOST_WRITTEN)?;
    let mut out = vec![0; size];
    // SAFETY: nothing else uses `out` while the room lives.
    let mut room = unsafe { Room::new(out.as_mut_ptr(), size) };
    read_one(OFFSET, raw, Verify::All, &mut room, space).ok()?;
    Some(out)
}

pub fn record_codecs(data: &[u8]) {
    let mut front = Front(data);
    let Ok(codec) = Codec::of(front.number(1) as u8) else { return };
    let Ok(stream) = codec.stream(front.0, MOST_BYTES, "records") else { return };
    let (mut zstd, mut out) = (Zstd::new(), Vec::new());
    if stream.unpack(&mut zstd, &mut out).is_err() {
        return;
    }
    assert_eq!(out.len(), stream.size);
    assert!(stream.as_stored().is_none_or(|stored| stored == out));
    let mut other = vec![0; out.len()];
    // SAFETY: nothing else uses `other` while the room lives.
    let mut room = unsafe { Room::new(other.as_mut_ptr(), other.len()) };
    let done = stream.unpack_to(&mut room, &mut zstd, &mut Vec::new());
    assert!(done.is_ok() && other == out, "a stream is unpacked in two ways");
}
