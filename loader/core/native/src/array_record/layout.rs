//! Where the bytes of a chunk lie in its file: block headers interrupt them.

use super::codecs::reserve;
use super::damage::{Found, damaged};
use super::hash::hash;

pub const BLOCK: u64 = 65536;
pub const BLOCK_HEADER: u64 = 24;
const USABLE: u64 = BLOCK - BLOCK_HEADER;

/// Whether a chunk can begin there: at a block header or behind it, not within it.
pub fn is_chunk_begin(offset: u64) -> bool {
    let inside = offset % BLOCK;
    inside == 0 || inside > BLOCK_HEADER
}

/// The bytes of the block header before a chunk, and the chunk's bytes up to the next one.
fn lead_and_room(offset: u64) -> (u64, u64) {
    let inside = offset % BLOCK;
    if inside == 0 { (BLOCK_HEADER, USABLE) } else { (0, BLOCK - inside) }
}

/// The bytes of the file that hold the first `size` bytes of the chunk at `offset`.
pub fn span(offset: u64, size: u64) -> u64 {
    let (lead, room) = lead_and_room(offset);
    let headers = if size <= room { 0 } else { 1 + (size - 1 - room) / USABLE };
    lead + size + headers * BLOCK_HEADER
}

/// Bytes `[start, stop)` of a chunk; the hashes of the block headers before `stop` are verified.
///
/// `raw` holds the file from `offset`, where the chunk begins, to at least the last of these bytes.
/// Where block headers interrupt them, they are put together in `joined`.
pub fn contiguous<'a>(
    offset: u64,
    raw: &'a [u8],
    (start, stop): (u64, u64),
    joined: &'a mut Vec<u8>,
) -> Found<&'a [u8]> {
    let (lead, room) = lead_and_room(offset);
    let cut = |from: u64, to: u64| {
        let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
        match range.and_then(|(from, to)| raw.get(from..to)) {
            Some(bytes) => Ok(bytes),
            None => damaged("it is cut off"),
        }
    };
    if lead > 0 {
        check_block_header(cut(0, lead)?)?;
    }
    if stop <= room {
        return cut(lead + start, lead + stop);
    }
    joined.clear();
    reserve(joined, cut(lead + start, span(offset, stop))?.len())?;
    let (mut at, mut next) = (0, room);
    loop {
        // Bytes `[at, next)` of the chunk lie between two block headers.
        let skipped = span(offset, next) - next;
        let (from, to) = (at.max(start), next.min(stop));
        if from < to {
            joined.extend_from_slice(cut(from + skipped, to + skipped)?);
        }
        if next >= stop {
            return Ok(joined);
        }
        check_block_header(cut(next + skipped, next + skipped + BLOCK_HEADER)?)?;
        (at, next) = (next, next + USABLE);
    }
}

fn check_block_header(header: &[u8]) -> Found<()> {
    let (own, body) = header.split_at(8);
    if own == hash(body).to_le_bytes() {
        Ok(())
    } else {
        damaged("the hash of a block header in it is wrong")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_header(before: u64) -> Vec<u8> {
        let body = [before.to_le_bytes(), [0; 8]].concat();
        [hash(&body).to_le_bytes().to_vec(), body].concat()
    }

    /// The file's bytes from `offset` on that hold these bytes of a chunk.
    fn stored(offset: u64, bytes: &[u8]) -> Vec<u8> {
        let mut raw = Vec::new();
        for &byte in bytes {
            if (offset + raw.len() as u64).is_multiple_of(BLOCK) {
                raw.extend(block_header(raw.len() as u64));
            }
            raw.push(byte);
        }
        raw
    }

    #[test]
    fn block_headers_are_left_out() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        for offset in [0, 25, 64, 65535, 65536, 65561, 65536 * 3 - 40] {
            for size in [1, 2, 40, 41, 65000, 65512, 65513, 131_024, 131_025, 200_000] {
                let raw = stored(offset, &bytes[..size]);
                assert_eq!(span(offset, size as u64), raw.len() as u64, "{offset} {size}");
                let (half, all, mut joined) = (size as u64 / 2, size as u64, vec![1, 2, 3]);
                let found = contiguous(offset, &raw, (0, all), &mut joined).unwrap();
                assert_eq!(found, &bytes[..size]);
                let found = contiguous(offset, &raw, (half, all), &mut joined).unwrap();
                assert_eq!(found, &bytes[size / 2..size]);
                let short = &raw[..raw.len() - 1];
                assert!(contiguous(offset, short, (0, all), &mut joined).is_err());
            }
        }
    }

    #[test]
    fn damaged_block_headers_are_found() {
        let mut raw = stored(64, &[7; 70_000]);
        raw[65536 - 64 + 9] ^= 1;
        assert!(contiguous(64, &raw, (0, 70_000), &mut Vec::new()).is_err());
    }

    #[test]
    fn chunks_begin_outside_of_block_headers() {
        let begins = [0, 1, 24, 25, 65535, 65536, 65560, 65561].map(is_chunk_begin);
        assert_eq!(begins, [true, false, false, true, true, true, false, true]);
    }
}
