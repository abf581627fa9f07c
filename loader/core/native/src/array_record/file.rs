//! An open file with its index.

use std::fs::File;
use std::path::PathBuf;

use super::codecs::Codec;
use super::read::{Chunk, Stored};

/// A file and where its chunks lie; all lists have an entry for each chunk.
pub struct RecordFile {
    pub path: PathBuf,
    pub file: File,
    pub offsets: Vec<u64>,
    /// The end of the bytes of each chunk.
    pub stops: Vec<u64>,
    /// The bytes of each chunk's records in memory.
    pub decoded: Vec<u64>,
    pub group: u64,
    pub records: u64,
}

impl RecordFile {
    /// The chunk of records `[first, stop)`, and their numbers in it; `None` if no chunk has them.
    pub fn span(&self, first: u64, stop: u64) -> Option<(usize, usize, usize)> {
        let chunk = first / self.group;
        let begin = chunk * self.group;
        let fits = first < stop && stop <= self.records && stop - begin <= self.group;
        fits.then_some((chunk as usize, (first - begin) as usize, (stop - begin) as usize))
    }

    pub fn chunk(&self, number: usize) -> Chunk<'_> {
        let (offset, stop) = (self.offsets[number], self.stops[number]);
        let first = number as u64 * self.group;
        Chunk {
            stored: Stored::InFile(&self.file, (stop - offset) as usize),
            offset,
            counted: Some(self.group.min(self.records - first)),
            expected_bytes: usize::try_from(self.decoded[number]).unwrap_or(0),
        }
    }

    pub fn stored_bytes(&self, chunk: usize) -> usize {
        (self.stops[chunk] - self.offsets[chunk]) as usize
    }

    /// Whether memory for the records of a chunk may be taken before its header is read.
    pub fn is_plausible(&self, chunk: usize) -> bool {
        self.decoded[chunk] <= Codec::Zstd.reach(self.stops[chunk] - self.offsets[chunk])
    }
}
