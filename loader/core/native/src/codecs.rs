//! From the stored bytes of one chunk to the bytes of its values.
//!
//! A chain accepts the plain form of a chunk only: one frame or stream that ends where its bytes end and
//! decodes to exactly the size that a chunk must have. What has another form is refused, and Python
//! then decides what it is. Invariant: no decoder writes or allocates more than the caller gave.

use std::ffi::c_void;
use std::ptr;

use blosc_src as blosc;
use libdeflate_sys as deflate;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

const CHECKSUM_BYTES: usize = 4;
/// The most bytes of a block of zstd, which is decoded as a whole.
const ZSTD_BLOCK_BYTES: usize = 128 << 10;
/// The least and the largest memory for a window of zstd, as powers of two.
const ZSTD_LEAST_BITS: u32 = 10;
const ZSTD_MOST_BITS: u32 = 31;

/// A reason why bytes are not the chunk that they should be.
pub type Damage = String;

/// One step from bytes to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Blosc,
    Crc32c,
    Gzip,
    Lz4,
    Zlib,
    Zstd,
}

impl Codec {
    /// The codec of this name in the metadata of an array.
    pub fn named(name: &str) -> Option<Codec> {
        Some(match name {
            "blosc" => Codec::Blosc,
            "crc32c" => Codec::Crc32c,
            "gzip" => Codec::Gzip,
            "lz4" => Codec::Lz4,
            "zlib" => Codec::Zlib,
            "zstd" => Codec::Zstd,
            _ => return None,
        })
    }
}

/// What a thread uses again from chunk to chunk.
pub struct Tools {
    zstd: DCtx<'static>,
    inflater: *mut deflate::libdeflate_decompressor,
}

impl Tools {
    pub fn new() -> Tools {
        // SAFETY: it takes no arguments, and `drop` frees what it returns.
        let inflater = unsafe { deflate::libdeflate_alloc_decompressor() };
        Tools { zstd: DCtx::create(), inflater }
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, it may be null, and nothing else frees it.
        unsafe { deflate::libdeflate_free_decompressor(self.inflater) }
    }
}

/// The codecs of one array.
pub struct Chain {
    /// Checksums of the stored bytes, which are outside of the compressor.
    outer: usize,
    compressor: Option<Codec>,
    /// Checksums of the values, which were compressed with them.
    inner: usize,
    decoded_bytes: usize,
}

impl Chain {
    /// The codecs in the order in which the writer applied them; None if two of them compress.
    pub fn new(codecs: &[Codec], decoded_bytes: usize) -> Option<Chain> {
        let mut chain = Chain { outer: 0, compressor: None, inner: 0, decoded_bytes };
        for &codec in codecs {
            match (codec, chain.compressor) {
                (Codec::Crc32c, None) => chain.inner += 1,
                (Codec::Crc32c, Some(_)) => chain.outer += 1,
                (_, None) => chain.compressor = Some(codec),
                (_, Some(_)) => return None,
            }
        }
        Some(chain)
    }

    /// Whether stored bytes are the values themselves.
    pub fn is_plain(&self) -> bool {
        self.compressor.is_none() && self.inner + self.outer == 0
    }

    /// Stored bytes of a chunk, where they are always the same.
    pub fn stored_bytes(&self) -> Option<usize> {
        let whole = self.decoded_bytes + CHECKSUM_BYTES * (self.inner + self.outer);
        self.compressor.is_none().then_some(whole)
    }

    /// Fills the first `wanted` bytes of `out`, or more, from `data`; `out` has the bytes of a decoded chunk.
    ///
    /// `between` is memory to use where checksums lie inside of the compressed bytes.
    pub fn decode(
        &self,
        data: &[u8],
        out: &mut [u8],
        wanted: usize,
        between: &mut Vec<u8>,
        tools: &mut Tools,
    ) -> Result<(), Damage> {
        let data = without_checksums(data, self.outer)?;
        let is_worth_it = wanted.saturating_add(ZSTD_BLOCK_BYTES) <= out.len() / 2;
        let is_zstd = self.compressor == Some(Codec::Zstd) && self.inner == 0;
        if is_zstd && is_worth_it && !has_checksum(data) {
            zstd_frame(data, out.len())?;
            let size = out.len();
            // A frame may ask for a larger window than all it holds; decoding all of it needs no window.
            if zstd_beginning(data, &mut out[..wanted], size, tools).is_ok() {
                return Ok(());
            }
        }
        let Some(codec) = self.compressor else {
            return copied(without_checksums(data, self.inner)?, out);
        };
        if self.inner == 0 {
            return decompress(codec, data, out, tools);
        }
        let size = out.len() + CHECKSUM_BYTES * self.inner;
        fit(between, size)?;
        decompress(codec, data, &mut between[..size], tools)?;
        copied(without_checksums(&between[..size], self.inner)?, out)
    }
}

/// Makes `memory` at least `size` long; an error where the system has no room for it.
pub fn fit(memory: &mut Vec<u8>, size: usize) -> Result<(), Damage> {
    if memory.len() < size {
        let more = size - memory.len();
        memory.try_reserve_exact(more).map_err(|_| format!("no memory for {size} bytes"))?;
        memory.resize(size, 0);
    }
    Ok(())
}

fn copied(data: &[u8], out: &mut [u8]) -> Result<(), Damage> {
    if data.len() != out.len() {
        return Err(format!("it holds {} bytes, not the {} of a chunk", data.len(), out.len()));
    }
    out.copy_from_slice(data);
    Ok(())
}

fn without_checksums(mut data: &[u8], count: usize) -> Result<&[u8], Damage> {
    for _ in 0..count {
        let size = data.len().checked_sub(CHECKSUM_BYTES);
        let size = size.ok_or_else(|| format!("it is cut off: {} bytes", data.len()))?;
        let (body, stored) = data.split_at(size);
        if crc32c::crc32c(body).to_le_bytes() != stored {
            return Err("its checksum (crc32c) is wrong".to_owned());
        }
        data = body;
    }
    Ok(data)
}

fn other_size(found: usize, wanted: usize) -> Damage {
    format!("it decodes to {found} bytes, not the {wanted} of a chunk")
}

fn decompress(codec: Codec, data: &[u8], out: &mut [u8], tools: &mut Tools) -> Result<(), Damage> {
    let found = match codec {
        Codec::Zstd => zstd(data, out, &mut tools.zstd)?,
        Codec::Lz4 => lz4(data, out)?,
        Codec::Blosc => blosc(data, out)?,
        Codec::Gzip => inflate(deflate::libdeflate_gzip_decompress_ex, data, out, tools)?,
        Codec::Zlib => inflate(deflate::libdeflate_zlib_decompress_ex, data, out, tools)?,
        Codec::Crc32c => return Err("a checksum does not compress".to_owned()),
    };
    if found == out.len() { Ok(()) } else { Err(other_size(found, out.len())) }
}

fn zstd_error(code: usize) -> Damage {
    format!("zstd: {}", zstd_safe::get_error_name(code))
}

/// Whether a frame has a checksum of all that it decodes to.
fn has_checksum(data: &[u8]) -> bool {
    const DESCRIPTOR: usize = 4;
    data.get(DESCRIPTOR).is_some_and(|flags| flags & 4 != 0)
}

/// Checks that `data` is one frame that may decode to `size` bytes.
fn zstd_frame(data: &[u8], size: usize) -> Result<(), Damage> {
    match zstd_safe::get_frame_content_size(data) {
        Ok(Some(found)) if found != size as u64 => {
            return Err(other_size(usize::try_from(found).unwrap_or(usize::MAX), size));
        }
        Ok(_) => {}
        Err(_) => return Err("it does not begin with a zstd frame".to_owned()),
    }
    if zstd_safe::find_frame_compressed_size(data).map_err(zstd_error)? != data.len() {
        return Err("other bytes follow its zstd frame".to_owned());
    }
    Ok(())
}

fn zstd(data: &[u8], out: &mut [u8], context: &mut DCtx<'static>) -> Result<usize, Damage> {
    zstd_frame(data, out.len())?;
    context.decompress(out, data).map_err(zstd_error)
}

/// Fills `out` with the first bytes of a frame; `size` is that of the whole, and bounds the memory for it.
pub fn zstd_beginning(
    data: &[u8],
    out: &mut [u8],
    size: usize,
    tools: &mut Tools,
) -> Result<(), Damage> {
    let context = &mut tools.zstd;
    let bits = size.next_power_of_two().ilog2().clamp(ZSTD_LEAST_BITS, ZSTD_MOST_BITS);
    context.reset(ResetDirective::SessionOnly).map_err(zstd_error)?;
    context.set_parameter(DParameter::WindowLogMax(bits)).map_err(zstd_error)?;
    let (wanted, mut from) = (out.len(), InBuffer::around(data));
    let mut to = OutBuffer::around(out);
    while to.pos() < wanted {
        let before = (from.pos(), to.pos());
        let left = context.decompress_stream(&mut to, &mut from).map_err(zstd_error)?;
        let is_stuck = (from.pos(), to.pos()) == before;
        if to.pos() < wanted && (left == 0 || is_stuck) {
            return Err(other_size(to.pos(), size));
        }
    }
    context.reset(ResetDirective::SessionOnly).map(drop).map_err(zstd_error)
}

fn lz4(data: &[u8], out: &mut [u8]) -> Result<usize, Damage> {
    let (size, block) = data.split_first_chunk().ok_or("it is cut off")?;
    let size = u32::from_le_bytes(*size) as usize;
    if size != out.len() {
        return Err(other_size(size, out.len()));
    }
    lz4_flex::block::decompress_into(block, out).map_err(|error| format!("lz4: {error}"))
}

fn blosc(data: &[u8], out: &mut [u8]) -> Result<usize, Damage> {
    const HEADER_BYTES: usize = 16;
    if data.len() < HEADER_BYTES {
        return Err(format!("it is cut off: {} bytes are not a blosc chunk", data.len()));
    }
    let mut size = 0;
    let source = data.as_ptr().cast::<c_void>();
    // SAFETY: `source` has `data.len()` readable bytes, and `size` is where the result goes.
    let invalid = unsafe { blosc::blosc_cbuffer_validate(source, data.len(), &raw mut size) };
    if invalid < 0 {
        return Err("its blosc header is wrong".to_owned());
    }
    if size != out.len() {
        return Err(other_size(size, out.len()));
    }
    // SAFETY: the header was checked to name all of `data` and no more, and the library writes at
    // most `out.len()` bytes.
    let found =
        unsafe { blosc::blosc_decompress_ctx(source, out.as_mut_ptr().cast(), out.len(), 1) };
    usize::try_from(found).map_err(|_| "blosc cannot decode it".to_owned())
}

type Inflate = unsafe extern "C" fn(
    *mut deflate::libdeflate_decompressor,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *mut usize,
    *mut usize,
) -> deflate::libdeflate_result;

fn inflate(call: Inflate, data: &[u8], out: &mut [u8], tools: &Tools) -> Result<usize, Damage> {
    if tools.inflater.is_null() {
        return Err("no memory to inflate".to_owned());
    }
    let (mut read, mut written) = (0, 0);
    // SAFETY: both slices are given with their lengths, and the decompressor is this thread's own.
    let result = unsafe {
        call(
            tools.inflater,
            data.as_ptr().cast(),
            data.len(),
            out.as_mut_ptr().cast(),
            out.len(),
            ptr::from_mut(&mut read),
            ptr::from_mut(&mut written),
        )
    };
    match result {
        deflate::libdeflate_result_LIBDEFLATE_SUCCESS if read == data.len() => Ok(written),
        deflate::libdeflate_result_LIBDEFLATE_SUCCESS => {
            Err(format!("{} bytes follow its end", data.len() - read))
        }
        deflate::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => {
            Err(format!("it decodes to more than the {} bytes of a chunk", out.len()))
        }
        _ => Err("it cannot be inflated".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(codecs: &[Codec], data: &[u8], size: usize) -> Result<Vec<u8>, Damage> {
        let chain = Chain::new(codecs, size).unwrap();
        let mut out = vec![0; size];
        chain.decode(data, &mut out, size, &mut Vec::new(), &mut Tools::new())?;
        Ok(out)
    }

    fn with_checksum(data: &[u8]) -> Vec<u8> {
        [data, &crc32c::crc32c(data).to_le_bytes()].concat()
    }

    fn zstd_frame(data: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; zstd_safe::compress_bound(data.len())];
        let size = zstd_safe::compress(&mut frame[..], data, 1).unwrap();
        frame.truncate(size);
        frame
    }

    #[test]
    fn zstd_is_one_whole_frame_of_the_right_size() {
        let data: Vec<u8> = (0..10_000u32).map(|k| (k % 251) as u8).collect();
        let frame = zstd_frame(&data);
        assert_eq!(decoded(&[Codec::Zstd], &frame, data.len()).unwrap(), data);
        assert!(decoded(&[Codec::Zstd], &frame, data.len() - 1).is_err());
        assert!(decoded(&[Codec::Zstd], &frame, data.len() + 1).is_err());
        assert!(decoded(&[Codec::Zstd], &frame[..frame.len() - 1], data.len()).is_err());
        assert!(decoded(&[Codec::Zstd], &[&frame[..], b"x"].concat(), data.len()).is_err());
        assert!(decoded(&[Codec::Zstd], b"", data.len()).is_err());
    }

    #[test]
    fn the_beginning_of_a_frame_is_as_in_the_whole() {
        let data: Vec<u8> = (0..1_000_000u32).map(|k| (k.wrapping_mul(k) >> 3) as u8).collect();
        let (frame, chain) = (zstd_frame(&data), Chain::new(&[Codec::Zstd], data.len()).unwrap());
        let mut tools = Tools::new();
        let mut decoded = |frame: &[u8], wanted| {
            let mut out = vec![0; data.len()];
            chain.decode(frame, &mut out, wanted, &mut Vec::new(), &mut tools).map(|()| out)
        };
        for wanted in [0, 1, 1_000, 128 << 10, 300_000, 1_000_000, 7] {
            assert_eq!(decoded(&frame, wanted).unwrap()[..wanted], data[..wanted]);
        }
        assert_eq!(decoded(&frame, 300_000).unwrap()[300_000..], vec![0; 700_000]);
        assert!(decoded(&frame[..frame.len() - 1], 1_000).is_err());
        assert!(decoded(&zstd_frame(&data[1..]), 1_000).is_err());
        assert!(decoded(&[&frame[..], b"x"].concat(), 1_000).is_err());
        let mut wrong = frame.clone();
        wrong[12..200].iter_mut().for_each(|byte| *byte ^= 0x55);
        assert!(decoded(&wrong, 1_000).is_err());
        assert_eq!(decoded(&frame, data.len()).unwrap(), data);
    }

    #[test]
    fn a_window_may_be_larger_than_all_that_a_frame_holds() {
        let data = vec![7; 300_000];
        // A header without the size, and a window of 1 MiB; then blocks of bytes as they are.
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
        for (k, block) in data.chunks(100_000).enumerate() {
            let head = (block.len() as u32) << 3 | u32::from(k == 2);
            frame.extend(&head.to_le_bytes()[..3]);
            frame.extend(block);
        }
        let chain = Chain::new(&[Codec::Zstd], data.len()).unwrap();
        let (mut out, mut tools) = (vec![0; data.len()], Tools::new());
        assert!(zstd_beginning(&frame, &mut out[..100], data.len(), &mut tools).is_err());
        chain.decode(&frame, &mut out, 100, &mut Vec::new(), &mut tools).unwrap();
        assert_eq!(out[..100], data[..100]);
    }

    #[test]
    fn checksums_lie_inside_and_outside() {
        let data = b"some values of a chunk";
        let inside = with_checksum(&zstd_frame(&with_checksum(data)));
        let codecs = [Codec::Crc32c, Codec::Zstd, Codec::Crc32c];
        assert_eq!(decoded(&codecs, &inside, data.len()).unwrap(), data);
        let mut wrong = inside.clone();
        wrong[5] ^= 1;
        assert!(decoded(&codecs, &wrong, data.len()).unwrap_err().contains("crc32c"));
        let plain = with_checksum(data);
        assert_eq!(decoded(&[Codec::Crc32c], &plain, data.len()).unwrap(), data);
        assert_eq!(Chain::new(&[Codec::Crc32c], 22).unwrap().stored_bytes(), Some(26));
    }

    #[test]
    fn every_cut_of_a_chunk_is_refused() {
        let data = vec![7; 300];
        let lz4 = [&300u32.to_le_bytes()[..], &lz4_flex::block::compress(&data)].concat();
        assert_eq!(decoded(&[Codec::Lz4], &lz4, 300).unwrap(), data);
        for end in 0..lz4.len() {
            assert!(decoded(&[Codec::Lz4], &lz4[..end], 300).is_err());
        }
        for codec in [Codec::Blosc, Codec::Gzip, Codec::Zlib, Codec::Zstd] {
            assert!(decoded(&[codec], &lz4, 300).is_err());
            assert!(decoded(&[codec], b"", 300).is_err());
        }
    }

    #[test]
    fn two_compressors_are_refused() {
        assert!(Chain::new(&[Codec::Zstd, Codec::Gzip], 4).is_none());
    }
}
