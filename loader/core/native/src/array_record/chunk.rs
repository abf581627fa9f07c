//! The header of a chunk, and its data once their hashes are verified.

use super::codecs::{Codec, MOST_BYTES};
use super::damage::{Found, commas, damaged};
use super::hash::hash;
use super::layout::{contiguous, is_chunk_begin, span};

pub const HEADER: u64 = 40;
pub const SIMPLE: u8 = b'r';
pub const TRANSPOSED: u8 = b't';
const MOST_RECORDS: u64 = 1 << 26;

/// What the header of a chunk states; its hash is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u8,
    /// Bytes of data, without block headers.
    pub data_bytes: u64,
    pub data_hash: u64,
    pub records: u64,
    /// Bytes of all records.
    pub decoded_bytes: u64,
}

/// Which hashes of a chunk are verified; that of its header always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    All,
    Headers,
}

impl Verify {
    /// All hashes, or those of headers only.
    pub fn data_if(data: bool) -> Self {
        if data { Self::All } else { Self::Headers }
    }
}

impl Header {
    /// The header of the chunk at `offset`; `raw` holds the file from there on.
    pub fn read(offset: u64, raw: &[u8]) -> Found<Self> {
        if !is_chunk_begin(offset) {
            return damaged(format!("no chunk can begin at byte {}", commas(offset)));
        }
        if (raw.len() as u64) < span(offset, HEADER) {
            return damaged(format!(
                "it is cut off: {} of its bytes exist",
                commas(raw.len() as u64)
            ));
        }
        let mut joined = Vec::new();
        let header = contiguous(offset, raw, (0, HEADER), &mut joined)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        if number(0) != hash(&header[8..]) {
            return damaged("its header hash is wrong");
        }
        Ok(Self {
            kind: header[24],
            data_bytes: number(8),
            data_hash: number(16),
            records: number(24) >> 8,
            decoded_bytes: number(32),
        })
    }

    /// The bytes of the file that the chunk takes.
    pub fn span(&self, offset: u64) -> u64 {
        span(offset, HEADER.saturating_add(self.data_bytes.min(u64::MAX / 4)))
    }

    /// The data of the chunk, which begins at `offset` and is in `raw`; `joined` as for `contiguous`.
    pub fn data<'a>(
        &self,
        offset: u64,
        raw: &'a [u8],
        verify: Verify,
        joined: &'a mut Vec<u8>,
    ) -> Found<&'a [u8]> {
        self.check()?;
        let (needed, there) = (self.span(offset), raw.len() as u64);
        if needed > there {
            let (needed, there) = (commas(needed), commas(there));
            return damaged(format!("it is cut off: {there} of its {needed} bytes exist"));
        }
        let data = contiguous(offset, raw, (HEADER, HEADER + self.data_bytes), joined)?;
        if verify == Verify::All && hash(data) != self.data_hash {
            return damaged("its data hash is wrong");
        }
        self.check_decoded_bytes(data)?;
        Ok(data)
    }

    fn check(&self) -> Found<()> {
        let Self { kind, data_bytes, records, .. } = *self;
        if kind != SIMPLE && kind != TRANSPOSED {
            let kind = char::from(kind);
            return damaged(format!(
                "its header has the type {kind:?}; only 'r' and 't' have records"
            ));
        }
        if data_bytes > MOST_BYTES {
            let (data_bytes, most) = (commas(data_bytes), commas(MOST_BYTES));
            return damaged(format!(
                "its header counts {data_bytes} bytes of data, more than {most}"
            ));
        }
        if !(1..=MOST_RECORDS).contains(&records) {
            let (records, most) = (commas(records), commas(MOST_RECORDS));
            return damaged(format!("it counts {records} records; 1 to {most} are possible"));
        }
        if data_bytes == 0 {
            return damaged("it has no data");
        }
        Ok(())
    }

    /// The first byte of the data is its compression, or in transposed chunks that of its parts.
    fn check_decoded_bytes(&self, data: &[u8]) -> Found<()> {
        let codec = if self.kind == TRANSPOSED { Codec::Brotli } else { Codec::of(data[0])? };
        if self.decoded_bytes <= codec.reach(self.data_bytes) {
            return Ok(());
        }
        let (records, decoded) = (commas(self.records), commas(self.decoded_bytes));
        damaged(format!(
            "its header counts {records} records of {decoded} bytes together, more than its {} bytes can hold",
            commas(self.data_bytes)
        ))
    }

    /// Refuses a chunk that has not as many records as the index of its file counts.
    pub fn check_count(&self, counted: u64) -> Found<()> {
        if self.records == counted {
            return Ok(());
        }
        let (records, counted) = (commas(self.records), commas(counted));
        damaged(format!("it holds {records} records and the index counts {counted}"))
    }
}
