//! Simple chunks: the sizes of the records, then the records end to end, each part one stream.

use super::codecs::{Codec, Stream, Zstd, reserve};
use super::damage::{Found, commas, damaged};
use crate::varint::Cursor;

/// The most bytes that the length of a record takes.
const SIZE_BYTES: u64 = 10;

/// The records of a chunk, end to end.
pub fn values(data: &[u8], decoded_bytes: u64) -> Found<Stream<'_>> {
    let (codec, _, values) = parts(data)?;
    let values = codec.stream(values, decoded_bytes, "records")?;
    if values.size as u64 == decoded_bytes {
        return Ok(values);
    }
    let (held, counted) = (commas(values.size as u64), commas(decoded_bytes));
    damaged(format!("it holds {held} bytes of records, and its header counts {counted}"))
}

/// Refuses a chunk of one record unless its sizes are that of all its bytes.
pub fn check_one(
    data: &[u8],
    decoded_bytes: u64,
    (zstd, scratch): (&mut Zstd, &mut Vec<u8>),
) -> Found<()> {
    let (codec, sizes, _) = parts(data)?;
    let stream = codec.stream(sizes, SIZE_BYTES, "sizes")?;
    let size = match stream.as_stored() {
        Some(bytes) => bytes,
        None => {
            stream.unpack(zstd, scratch)?;
            scratch
        }
    };
    let mut cursor = Cursor::new(size);
    match cursor.varint() {
        Some(size) if size == decoded_bytes && cursor.is_empty() => Ok(()),
        Some(size) if cursor.is_empty() => damaged(format!(
            "its record has {} bytes by its size, and its header counts {}",
            commas(size),
            commas(decoded_bytes)
        )),
        _ => damaged("it does not hold the size of 1 record"),
    }
}

/// Where each record ends among the bytes of all.
pub fn ends(
    data: &[u8],
    (records, decoded_bytes): (u64, u64),
    (zstd, scratch): (&mut Zstd, &mut Vec<u8>),
) -> Found<Vec<usize>> {
    let (codec, sizes, _) = parts(data)?;
    let stream = codec.stream(sizes, records.saturating_mul(SIZE_BYTES), "sizes")?;
    stream.unpack(zstd, scratch)?;
    sums(scratch, records, decoded_bytes)
}

fn parts(data: &[u8]) -> Found<(Codec, &[u8], &[u8])> {
    let mut cursor = Cursor::new(data);
    let codec = Codec::of(cursor.byte().unwrap_or(0))?;
    match cursor.sized() {
        Some(sizes) => Ok((codec, sizes, cursor.rest())),
        None => damaged("its data is cut off within the sizes of its records"),
    }
}

fn sums(sizes: &[u8], records: u64, decoded_bytes: u64) -> Found<Vec<usize>> {
    let wrong = || damaged(format!("it does not hold the sizes of {} records", commas(records)));
    // A size takes a byte at least, so the memory for the ends follows what is there.
    let Some(count) = usize::try_from(records).ok().filter(|&count| count <= sizes.len()) else {
        return wrong();
    };
    let mut found = Vec::new();
    reserve(&mut found, count)?;
    let (mut cursor, mut end) = (Cursor::new(sizes), 0_u64);
    for _ in 0..count {
        let Some(size) = cursor.varint() else { return wrong() };
        // Each size first: the sum of absurd sizes might be right.
        if size > decoded_bytes {
            return damaged("one of its records is larger than all of them");
        }
        end += size;
        // Below 2 to the power of 57, since records and their sizes are bounded.
        found.push(end as usize);
    }
    if !cursor.is_empty() {
        return wrong();
    }
    if end != decoded_bytes {
        return damaged(format!(
            "its sizes add up to {} bytes, and its header counts {}",
            commas(end),
            commas(decoded_bytes)
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &[u8], records: u64, decoded_bytes: u64) -> Found<(Vec<usize>, usize)> {
        let size = values(data, decoded_bytes)?.size;
        let counts = (records, decoded_bytes);
        Ok((ends(data, counts, (&mut Zstd::new(), &mut Vec::new()))?, size))
    }

    #[test]
    fn plain_records_end_where_their_sizes_say() {
        assert_eq!(parse(b"\0\x03\x01\0\x02abc", 3, 3).unwrap(), (vec![1, 1, 3], 3));
    }

    #[test]
    fn sizes_and_counts_agree_or_it_is_damage() {
        for (data, records, decoded) in [
            (&b"\0\x03\x01\0\x02ab"[..], 3, 3),
            (b"\0\x03\x01\0\x02abc", 2, 3),
            (b"\0\x03\x01\0\x02abc", 4, 3),
            (b"\0\x03\x01\0\x01abc", 3, 3),
            (b"\0\x03\x01\0\x82abc", 3, 3),
            (b"\0\x7f\x01\0\x02abc", 3, 3),
            (b"q\x03\x01\0\x02abc", 3, 3),
            (b"", 1, 0),
        ] {
            assert!(parse(data, records, decoded).is_err(), "{data:?} {records} {decoded}");
        }
    }
}
