//! The parsers of Zarr chunks and shards.

use super::Front;
use crate::codecs::{Chain, Codec, Tools, zstd_beginning};
use crate::zarr::files::{ShardForm, place};

const CODECS: [Codec; 6] =
    [Codec::Blosc, Codec::Crc32c, Codec::Gzip, Codec::Lz4, Codec::Zlib, Codec::Zstd];

pub fn chunk_codecs(data: &[u8]) {
    let mut front = Front(data);
    let (count, decoded_bytes) = (front.size(1) % 4, 1 + front.size(2));
    let codecs: Vec<Codec> = (0..count).map(|_| CODECS[front.size(1) % CODECS.len()]).collect();
    let is_sealed = front.flag();
    let Some(chain) = Chain::new(&codecs, decoded_bytes) else { return };
    let mut stored = front.0.to_vec();
    for _ in codecs.iter().rev().take_while(|&&codec| is_sealed && codec == Codec::Crc32c) {
        stored.extend(crc32c::crc32c(&stored).to_le_bytes());
    }
    let mut out = vec![0; decoded_bytes];
    let mut tools = Tools::new();
    let done = chain.decode(&stored, &mut out, decoded_bytes, &mut Vec::new(), &mut tools);
    if done.is_ok() {
        assert!(chain.stored_bytes().is_none_or(|bytes| bytes == stored.len()));
    }
    if codecs == [Codec::Zstd] {
        let mut beginning = vec![0; decoded_bytes / 3];
        let found = zstd_beginning(&stored, &mut beginning, decoded_bytes, &mut tools);
        // A frame whose window is larger than all it holds is refused here, and decoded as a whole.
        if done.is_ok() && found.is_ok() {
            assert!(out.starts_with(&beginning));
        }
    }
}

pub fn shard_index(data: &[u8]) {
    let mut front = Front(data);
    let (checked, is_sealed, at_start) = (front.flag(), front.flag(), front.flag());
    let is_absurd = front.flag();
    let chunks = 1 + if is_absurd { front.size(8) / 2 } else { front.size(1) };
    let mut shard = front.0.to_vec();
    let form = ShardForm { chunks, at_start, checked };
    let Ok(index) = form.index(shard.len()) else { return };
    let index = &mut shard[index];
    if checked && is_sealed {
        let (entries, sum) = index.split_at_mut(index.len() - 4);
        sum.copy_from_slice(&crc32c::crc32c(entries).to_le_bytes());
    }
    let Ok(entries) = form.entries(index) else { return };
    assert_eq!(entries.len(), chunks);
    for within in 0..=chunks {
        if let Ok(Some((offset, size))) = place(&entries, within, shard.len() as u64) {
            assert!(offset as usize + size <= shard.len());
        }
    }
}
