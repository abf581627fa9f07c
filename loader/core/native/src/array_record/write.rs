//! A file as it grows: chunks, block headers between their bytes, and at the end the index.

use super::codecs::Codec;
use super::damage::Found;
use super::encode::{Chunks, HEADER_BYTES, Made, Packing, Press};
use super::hash::hash;
use super::layout::{BLOCK, BLOCK_HEADER, span};
use crate::varint::push_varint;

const MAGIC: u64 = 0x7193_0e70_4fda_e05e;
const SIGNATURE: u8 = b's';
const PADDING: u8 = b'p';

/// The bytes that are to be written next, and the index of what was written.
pub struct Growing {
    /// Where these bytes end in the file.
    at: u64,
    pub bytes: Vec<u8>,
    /// The begin, the bytes in memory and the records of each chunk.
    entries: Vec<[u64; 3]>,
}

impl Growing {
    /// The start of a file.
    pub fn new() -> Found<Self> {
        let mut file = Self { at: 0, bytes: Vec::new(), entries: Vec::new() };
        let mut chunks = Chunks::default();
        chunks.add((SIGNATURE, 0, 0), |_| Ok(()))?;
        file.put_chunks(&chunks);
        Ok(file)
    }

    /// Adds chunks of records.
    pub fn add(&mut self, chunks: &Chunks) {
        for (begin, made) in self.put_chunks(chunks).into_iter().zip(&chunks.made) {
            self.entries.push([begin, made.decoded_bytes, made.records]);
        }
    }

    /// Adds the index, which makes it a whole file; `options` is what the index says of the writer.
    pub fn add_end(&mut self, options: &str, packing: Packing) -> Found<()> {
        let footer_at = self.at;
        let mut about = vec![0x08, 1, 0x10];
        push_varint(&mut about, self.entries.len() as u64);
        about.push(0x18);
        push_varint(&mut about, self.entries.iter().map(|[_, _, records]| records).sum());
        about.push(0x22);
        push_varint(&mut about, options.len() as u64);
        about.extend_from_slice(options.as_bytes());
        let mut values = vec![0x0a];
        push_varint(&mut values, about.len() as u64);
        values.extend_from_slice(&about);
        let mut ends = vec![values.len()];
        for entry in &self.entries {
            for (tag, &number) in [0x08, 0x10, 0x18].into_iter().zip(entry) {
                values.push(tag);
                push_varint(&mut values, number);
            }
            ends.push(values.len());
        }
        self.put_one(&values, &ends, packing)?;
        self.pad()?;
        let mut postscript = vec![0x08];
        push_varint(&mut postscript, footer_at);
        postscript.push(0x10);
        push_varint(&mut postscript, MAGIC);
        let ends = [1, 2, 3].map(|copies| copies * postscript.len());
        self.put_one(&postscript.repeat(3), &ends, Packing { codec: Codec::Plain, ..packing })?;
        self.pad()
    }

    /// Puts a chunk of records that end there among `values`.
    fn put_one(&mut self, values: &[u8], ends: &[usize], packing: Packing) -> Found<()> {
        let begins = std::iter::once(&0).chain(ends);
        let records: Vec<&[u8]> =
            begins.zip(ends).map(|(&begin, &end)| &values[begin..end]).collect();
        let mut chunks = Chunks::default();
        Press::new(packing)?.add(&records, &mut chunks)?;
        self.put_chunks(&chunks);
        Ok(())
    }

    /// Puts an empty chunk up to the end of the block.
    fn pad(&mut self) -> Found<()> {
        let room = self.at.wrapping_neg() % BLOCK;
        if room > 0 {
            let more = if room < HEADER_BYTES as u64 { BLOCK } else { 0 };
            let stop = self.at + room + more;
            let headers = stop.div_ceil(BLOCK) - self.at.div_ceil(BLOCK);
            let size = stop - self.at - headers * BLOCK_HEADER - HEADER_BYTES as u64;
            let mut chunks = Chunks::default();
            chunks.add((PADDING, 0, 0), |data| {
                data.resize(data.len() + size as usize, 0);
                Ok(())
            })?;
            self.put_chunks(&chunks);
        }
        Ok(())
    }

    /// Puts chunks with the block headers that interrupt them; where each begins in the file.
    fn put_chunks(&mut self, chunks: &Chunks) -> Vec<u64> {
        let mut rest = &chunks.bytes[..];
        let put = |made: &Made| {
            let (bytes, next) = rest.split_at(made.bytes);
            rest = next;
            let begin = self.at;
            let stop = begin + span(begin, made.bytes as u64);
            // A chunk takes a byte of the file per record at least, up to where one can begin.
            let end = stop.max(next_begin(begin + made.records));
            self.put(Some(bytes), begin, stop, end);
            self.put(None, begin, end, end);
            begin
        };
        chunks.made.iter().map(put).collect()
    }

    /// Puts bytes of a chunk, or zeros, up to `stop`, and the headers of blocks that begin before.
    fn put(&mut self, bytes: Option<&[u8]>, begin: u64, stop: u64, end: u64) {
        let mut done = 0;
        while self.at < stop {
            if self.at.is_multiple_of(BLOCK) {
                let body = [self.at - begin, end - self.at].map(u64::to_le_bytes);
                self.bytes.extend_from_slice(&hash(body.as_flattened()).to_le_bytes());
                self.bytes.extend_from_slice(body.as_flattened());
                self.at += BLOCK_HEADER;
            }
            let count = (BLOCK - self.at % BLOCK).min(stop - self.at);
            match bytes {
                Some(bytes) => {
                    self.bytes.extend_from_slice(&bytes[done..done + count as usize]);
                    done += count as usize;
                }
                None => self.bytes.resize(self.bytes.len() + count as usize, 0),
            }
            self.at += count;
        }
    }
}

/// The first place from `place` on where a chunk can begin.
fn next_begin(place: u64) -> u64 {
    place + (place.wrapping_neg() % BLOCK).saturating_sub(BLOCK - BLOCK_HEADER - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_that_of_every_file() {
        let file = Growing::new().unwrap();
        assert_eq!((file.at, file.bytes.len()), (64, 64));
        assert_eq!(file.bytes[..4], [0x83, 0xaf, 0x70, 0xd1]);
        assert_eq!(file.bytes[24..28], [0x91, 0xba, 0xc2, 0x3c]);
    }

    #[test]
    fn files_end_with_a_block() {
        for records in [0, 1, 400] {
            let packing = Packing { codec: Codec::Plain, level: 0, window_log: 0 };
            let mut press = Press::new(packing).unwrap();
            let (mut file, mut chunks) = (Growing::new().unwrap(), Chunks::default());
            for size in 0..records {
                press.add(&[&vec![1; size]], &mut chunks).unwrap();
            }
            file.add(&chunks);
            file.add_end("group_size:1", packing).unwrap();
            assert_eq!((file.at % BLOCK, file.at), (0, file.bytes.len() as u64));
        }
    }

    #[test]
    fn chunks_begin_behind_block_headers() {
        let found = [0, 1, 24, 25, BLOCK - 1, BLOCK + 7].map(next_begin);
        assert_eq!(found, [0, 25, 25, 25, BLOCK - 1, BLOCK + 25]);
    }
}
