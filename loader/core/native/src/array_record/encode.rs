//! From records to the bytes of chunks, which do not depend on where the chunks will lie.

use std::collections::HashMap;

use zstd_safe::{CCtx, CParameter, compress_bound};

use super::chunk::{HEADER, SIMPLE};
use super::codecs::Codec;
use super::damage::{Found, damaged};
use super::hash::hash;
use crate::varint::push_varint;

pub const HEADER_BYTES: usize = HEADER as usize;
/// The lengths of single records for which the start of the data is kept.
const KNOWN_LEADS: usize = 1 << 12;

/// How the data of chunks is compressed.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    pub codec: Codec,
    /// For zstd: its level, and the base-2 logarithm of the bytes that it looks back.
    pub level: i32,
    pub window_log: u32,
}

/// What a chunk takes, and what its entry in the index says.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub bytes: usize,
    pub records: u64,
    pub decoded_bytes: u64,
}

/// Chunks that follow one another, without block headers.
#[derive(Default)]
pub struct Chunks {
    pub bytes: Vec<u8>,
    pub made: Vec<Made>,
}

impl Chunks {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.made.clear();
    }

    /// Adds a chunk; `data` appends its data.
    pub fn add(
        &mut self,
        (kind, records, decoded_bytes): (u8, u64, u64),
        data: impl FnOnce(&mut Vec<u8>) -> Found<()>,
    ) -> Found<()> {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        data(&mut self.bytes)?;
        let (header, data) = self.bytes[begin..].split_at_mut(HEADER_BYTES);
        let numbers =
            [data.len() as u64, hash(data), records << 8 | u64::from(kind), decoded_bytes];
        header[8..].copy_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
        let own = hash(&header[8..]);
        header[..8].copy_from_slice(&own.to_le_bytes());
        let bytes = self.bytes.len() - begin;
        self.made.push(Made { bytes, records, decoded_bytes });
        Ok(())
    }
}

/// What one thread compresses with.
pub struct Press {
    packing: Packing,
    zstd: Option<CCtx<'static>>,
    /// The start of the data of chunks of one record, by its length.
    leads: HashMap<usize, Vec<u8>>,
    sizes: Vec<u8>,
    joined: Vec<u8>,
    packed: Vec<u8>,
}

impl Press {
    pub fn new(packing: Packing) -> Found<Self> {
        let zstd = match packing.codec {
            Codec::Plain | Codec::Snappy => None,
            Codec::Brotli => return damaged("brotli is not compressed here"),
            Codec::Zstd => Some(zstd_context(packing)?),
        };
        let (sizes, joined, packed) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { packing, zstd, leads: HashMap::new(), sizes, joined, packed })
    }

    /// Adds a chunk of these records.
    pub fn add(&mut self, records: &[&[u8]], chunks: &mut Chunks) -> Found<()> {
        let decoded: usize = records.iter().map(|record| record.len()).sum();
        let header = (SIMPLE, records.len() as u64, decoded as u64);
        chunks.add(header, |data| {
            match records {
                [one] => self.put_lead_of_one(one.len(), data)?,
                _ => {
                    let mut sizes = std::mem::take(&mut self.sizes);
                    sizes.clear();
                    records.iter().for_each(|record| push_varint(&mut sizes, record.len() as u64));
                    self.put_lead(&sizes, decoded, data)?;
                    self.sizes = sizes;
                }
            }
            match (self.packing.codec, records) {
                (Codec::Plain, _) => records.iter().for_each(|one| data.extend_from_slice(one)),
                (_, [one]) => self.put_packed(one, data)?,
                _ => {
                    let mut joined = std::mem::take(&mut self.joined);
                    joined.clear();
                    joined.reserve(decoded);
                    records.iter().for_each(|one| joined.extend_from_slice(one));
                    self.put_packed(&joined, data)?;
                    self.joined = joined;
                }
            }
            Ok(())
        })
    }

    fn put_lead_of_one(&mut self, size: usize, data: &mut Vec<u8>) -> Found<()> {
        if let Some(known) = self.leads.get(&size) {
            data.extend_from_slice(known);
            return Ok(());
        }
        let (mut sizes, mut lead) = (Vec::new(), Vec::new());
        push_varint(&mut sizes, size as u64);
        self.put_lead(&sizes, size, &mut lead)?;
        data.extend_from_slice(&lead);
        if self.leads.len() < KNOWN_LEADS {
            self.leads.insert(size, lead);
        }
        Ok(())
    }

    /// Appends what comes before the values: the packing, the sizes, and the bytes of all values.
    fn put_lead(&mut self, sizes: &[u8], decoded: usize, data: &mut Vec<u8>) -> Found<()> {
        data.push(self.packing.codec.byte());
        if self.packing.codec == Codec::Plain {
            push_varint(data, sizes.len() as u64);
            data.extend_from_slice(sizes);
            return Ok(());
        }
        let mut packed = Vec::new();
        push_varint(&mut packed, sizes.len() as u64);
        self.put_packed(sizes, &mut packed)?;
        push_varint(data, packed.len() as u64);
        data.extend_from_slice(&packed);
        push_varint(data, decoded as u64);
        Ok(())
    }

    fn put_packed(&mut self, values: &[u8], data: &mut Vec<u8>) -> Found<()> {
        if let Some(zstd) = &mut self.zstd {
            let most = compress_bound(values.len());
            if self.packed.len() < most {
                // The system gives large memory as zeros, and only what is written takes some.
                self.packed = vec![0; most];
            }
            match zstd.compress2(&mut self.packed[..], values) {
                Ok(size) => data.extend_from_slice(&self.packed[..size]),
                Err(code) => return damaged(format!("zstd: {}", zstd_safe::get_error_name(code))),
            }
        } else {
            match snap::raw::Encoder::new().compress_vec(values) {
                Ok(packed) => data.extend_from_slice(&packed),
                Err(error) => return damaged(format!("snappy: {error}")),
            }
        }
        Ok(())
    }
}

fn zstd_context(packing: Packing) -> Found<CCtx<'static>> {
    let Some(mut context) = CCtx::try_create() else {
        return damaged("zstd: no memory to compress");
    };
    for setting in
        [CParameter::CompressionLevel(packing.level), CParameter::WindowLog(packing.window_log)]
    {
        if let Err(code) = context.set_parameter(setting) {
            return damaged(format!("zstd: {}", zstd_safe::get_error_name(code)));
        }
    }
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::super::codecs::Zstd;
    use super::super::simple;
    use super::*;

    #[test]
    fn chunks_are_read_again() {
        let records: [&[u8]; 3] = [b"", b"abc", &[7; 5000]];
        for codec in [Codec::Plain, Codec::Zstd, Codec::Snappy] {
            let mut press = Press::new(Packing { codec, level: 3, window_log: 20 }).unwrap();
            let mut chunks = Chunks::default();
            press.add(&records, &mut chunks).unwrap();
            press.add(&records[1..2], &mut chunks).unwrap();
            let data = &chunks.bytes[HEADER_BYTES..chunks.made[0].bytes];
            let ends = simple::ends(data, (3, 5003), (&mut Zstd::new(), &mut Vec::new()));
            assert_eq!(ends.unwrap(), [0, 3, 5003]);
            let mut values = Vec::new();
            simple::values(data, 5003).unwrap().unpack(&mut Zstd::new(), &mut values).unwrap();
            assert_eq!(values, records.concat());
            assert_eq!(chunks.made[0].bytes + chunks.made[1].bytes, chunks.bytes.len());
        }
    }
}
