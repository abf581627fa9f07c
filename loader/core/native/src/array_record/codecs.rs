//! How the data of a chunk is compressed.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use zstd_safe::{DCtx, WriteBuf};

use super::damage::{Damage, Found, commas, damaged};
use crate::varint::Cursor;

/// Bytes that any few bytes may decompress to.
const SPARE: u64 = 1 << 16;
/// The most bytes of one chunk, stored or in memory.
pub const MOST_BYTES: u64 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Plain,
    Zstd,
    Brotli,
    Snappy,
}

impl Codec {
    pub fn of(byte: u8) -> Found<Self> {
        match byte {
            0 => Ok(Self::Plain),
            b'z' => Ok(Self::Zstd),
            b'b' => Ok(Self::Brotli),
            b's' => Ok(Self::Snappy),
            _ => damaged(format!("its data has the unknown compression type {byte}")),
        }
    }

    /// The byte that names it in a chunk.
    pub fn byte(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Zstd => b'z',
            Self::Brotli => b'b',
            Self::Snappy => b's',
        }
    }

    /// The most bytes that so many stored bytes can decompress to.
    ///
    /// A block of zstd has 128 KiB from at least 4 bytes, a block of brotli 16 MiB from a few, and
    /// a copy of snappy 64 bytes from 3.
    pub fn reach(self, stored: u64) -> u64 {
        let factor = match self {
            Self::Plain => 1,
            Self::Zstd => 1 << 15,
            Self::Brotli => 1 << 24,
            Self::Snappy => 32,
        };
        stored.saturating_mul(factor).saturating_add(SPARE).min(MOST_BYTES)
    }

    /// A compressed stream and its size in memory; `of` names what it holds.
    pub fn stream<'a>(self, bytes: &'a [u8], most: u64, of: &str) -> Found<Stream<'a>> {
        let mut cursor = Cursor::new(bytes);
        let size = match self {
            Self::Plain => Some(bytes.len() as u64),
            _ => cursor.varint(),
        };
        match size {
            Some(size) if size <= most.min(self.reach(cursor.rest().len() as u64)) => {
                let size = usize::try_from(size).map_err(|_| no_memory(size))?;
                Ok(Stream { codec: self, bytes: cursor.rest(), size })
            }
            _ => damaged(format!(
                "the length of its {of} is damaged, or more than its header counts"
            )),
        }
    }
}

/// A stream that promises to hold `size` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    codec: Codec,
    bytes: &'a [u8],
    pub size: usize,
}

/// How a zstd frame begins that is one block of at most 31 bytes as they are: `[magic, flags]`.
const STORED_FRAME: [u8; 5] = [0x28, 0xb5, 0x2f, 0xfd, 0x20];

impl<'a> Stream<'a> {
    /// The stream's bytes, if they are stored as they are; most streams of a few bytes are so.
    pub fn as_stored(&self) -> Option<&'a [u8]> {
        if self.codec == Codec::Plain {
            return Some(self.bytes);
        }
        let size = u8::try_from(self.size).ok().filter(|&size| size < 32)?;
        let (lead, rest) = self.bytes.split_first_chunk::<9>()?;
        let [.., content, low, middle, high] = *lead;
        let is_stored = self.codec == Codec::Zstd
            && lead[..5] == STORED_FRAME
            && [content, low, middle, high] == [size, size << 3 | 1, 0, 0]
            && rest.len() == self.size;
        is_stored.then_some(rest)
    }

    /// Puts the stream's bytes in the place of those of `into`.
    pub fn unpack(&self, zstd: &mut Zstd, into: &mut Vec<u8>) -> Found<()> {
        into.clear();
        match self.codec {
            Codec::Plain => {
                reserve(into, self.size)?;
                into.extend_from_slice(self.bytes);
                Ok(())
            }
            Codec::Zstd => {
                check_frame(self.bytes, self.size)?;
                reserve(into, self.size)?;
                // Not all of the capacity: the stream may hold more than it promises.
                let mut room = Room { at: into.as_mut_ptr(), size: self.size };
                zstd.unpack(self.bytes, &mut room)?;
                // SAFETY: zstd has written all `size` bytes, and `reserve` made room for them.
                unsafe { into.set_len(self.size) };
                Ok(())
            }
            Codec::Brotli => unbrotli(self.bytes, self.size, into),
            Codec::Snappy => {
                if !matches!(snap::raw::decompress_len(self.bytes), Ok(size) if size == self.size) {
                    return damaged("snappy: its length is not the one that was promised");
                }
                reserve(into, self.size)?;
                into.resize(self.size, 0);
                let written = snap::raw::Decoder::new().decompress(self.bytes, into);
                promised("snappy", self.size, written.map_err(|error| wrong("snappy", &error))?)
            }
        }
    }

    /// Fills `room`, which has `size` bytes, with the stream's bytes.
    pub fn unpack_to(&self, room: &mut Room, zstd: &mut Zstd, scratch: &mut Vec<u8>) -> Found<()> {
        match self.codec {
            Codec::Plain => room.fill(self.bytes),
            Codec::Zstd if room.size == self.size => zstd.unpack(self.bytes, room),
            _ => {
                self.unpack(zstd, scratch)?;
                room.fill(scratch)
            }
        }
    }
}

/// Memory of a fixed size that is written once, from its front. Nobody else reads or writes it.
#[derive(Debug)]
pub struct Room {
    at: *mut u8,
    size: usize,
}

// SAFETY: whoever made it promises that nobody else reads or writes the memory.
unsafe impl Send for Room {}
impl Room {
    /// # Safety
    /// The memory must be writable, of `size` bytes, and nobody else's while the room lives.
    pub unsafe fn new(at: *mut u8, size: usize) -> Self {
        Self { at, size }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Writes all of it.
    pub fn fill(&mut self, bytes: &[u8]) -> Found<()> {
        promised("it", self.size, bytes.len())?;
        // SAFETY: the room has as many bytes as are copied, and they are nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at, bytes.len()) };
        Ok(())
    }
}

// SAFETY: the room is writable up to its size, and `as_slice` shows none of it.
unsafe impl WriteBuf for Room {
    fn as_slice(&self) -> &[u8] {
        &[]
    }

    fn capacity(&self) -> usize {
        self.size
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at
    }

    unsafe fn filled_until(&mut self, _count: usize) {}
}

/// Refuses a frame of another size, if it tells its size.
fn check_frame(stream: &[u8], promised: usize) -> Found<()> {
    let size = zstd_safe::get_frame_content_size(stream).unwrap_or(None);
    if let Some(size) = size.filter(|&size| size != promised as u64) {
        let (size, promised) = (commas(size), commas(promised as u64));
        return damaged(format!("zstd: a frame of {size} bytes where {promised} were promised"));
    }
    Ok(())
}

/// A decompressor, which is costly to make.
pub struct Zstd(DCtx<'static>);

impl Zstd {
    pub fn new() -> Self {
        Self(DCtx::create())
    }

    fn unpack(&mut self, stream: &[u8], room: &mut Room) -> Found<()> {
        // One frame of this size and nothing more, where zstd would go on to the next.
        check_frame(stream, room.size)?;
        if !matches!(zstd_safe::find_frame_compressed_size(stream), Ok(all) if all == stream.len())
        {
            return damaged("zstd: it is not one whole frame");
        }
        match self.0.decompress(room, stream) {
            Ok(written) => promised("zstd", room.size, written),
            Err(code) => damaged(format!("zstd: {}", zstd_safe::get_error_name(code))),
        }
    }
}

fn unbrotli(stream: &[u8], size: usize, into: &mut Vec<u8>) -> Found<()> {
    let alloc = StandardAlloc::default;
    let mut state = BrotliState::new(alloc(), alloc(), alloc());
    let (mut available, mut read, mut written, mut total) = (stream.len(), 0, 0, 0);
    loop {
        // It grows as bytes come: a stream of a few bytes may promise any size.
        let most = size.min(into.len().max(stream.len()).max(SPARE as usize) * 2);
        reserve(into, most)?;
        into.resize(most, 0);
        let mut free = most - written;
        let result = BrotliDecompressStream(
            &mut available,
            &mut read,
            stream,
            &mut free,
            &mut written,
            into,
            &mut total,
            &mut state,
        );
        match result {
            BrotliResult::ResultSuccess if available == 0 => {
                return promised("brotli", size, written);
            }
            BrotliResult::NeedsMoreOutput if most < size => {}
            _ => return damaged(format!("brotli: not a stream of {} bytes", commas(size as u64))),
        }
    }
}

/// Makes room for `size` bytes in all, without ending the process if there is none.
pub fn reserve<T>(into: &mut Vec<T>, size: usize) -> Found<()> {
    into.try_reserve_exact(size.saturating_sub(into.len())).map_err(|_| no_memory(size as u64))
}

fn no_memory(size: u64) -> Damage {
    Damage(format!("it asks for more memory than there is: {} bytes", commas(size)))
}

fn wrong(codec: &str, error: &dyn std::error::Error) -> Damage {
    Damage(format!("{codec}: {error}"))
}

fn promised(codec: &str, size: usize, written: usize) -> Found<()> {
    if written == size {
        return Ok(());
    }
    let (written, size) = (commas(written as u64), commas(size as u64));
    damaged(format!("{codec}: {written} bytes where {size} were promised"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(codec: Codec, bytes: &[u8]) -> Found<Vec<u8>> {
        let mut into = vec![1, 2, 3];
        codec.stream(bytes, MOST_BYTES, "records")?.unpack(&mut Zstd::new(), &mut into)?;
        Ok(into)
    }

    #[test]
    fn empty_streams_are_streams() {
        assert_eq!(unpacked(Codec::Plain, b"").unwrap(), b"");
        assert_eq!(unpacked(Codec::Zstd, b"\0\x28\xb5\x2f\xfd\x20\0\x01\0\0").unwrap(), b"");
        assert_eq!(unpacked(Codec::Brotli, b"\0\x3b").unwrap(), b"");
        assert_eq!(unpacked(Codec::Snappy, b"\0\0").unwrap(), b"");
    }

    #[test]
    fn a_stream_is_no_longer_and_no_shorter_than_promised() {
        let packed = [&b"\x28\xb5\x2f\xfd\x20\x03\x19\0\0"[..], b"abc"].concat();
        for (size, good) in [(2_u8, false), (3, true), (4, false)] {
            let found = unpacked(Codec::Zstd, &[&[size], &packed[..]].concat());
            assert_eq!(found.is_ok(), good, "{found:?}");
        }
        let mut snappy = snap::raw::Encoder::new().compress_vec(b"abc").unwrap();
        snappy.insert(0, 3);
        assert_eq!(unpacked(Codec::Snappy, &snappy).unwrap(), b"abc");
        snappy[0] = 2;
        assert!(unpacked(Codec::Snappy, &snappy).is_err());
    }

    #[test]
    fn few_bytes_are_taken_as_they_are_stored() {
        let packed = b"\x03\x28\xb5\x2f\xfd\x20\x03\x19\0\0abc";
        let stored = |bytes: &[u8]| {
            let stream = Codec::Zstd.stream(bytes, MOST_BYTES, "records").unwrap();
            stream.as_stored().map(<[u8]>::to_vec)
        };
        assert_eq!(stored(packed), Some(b"abc".to_vec()));
        for at in 0..10 {
            let mut other = packed.to_vec();
            other[at] ^= 1;
            assert_eq!(stored(&other), None);
        }
        assert_eq!(stored(&packed[..12]), None);
    }

    #[test]
    fn absurd_sizes_take_no_memory() {
        let absurd = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0];
        for codec in [Codec::Zstd, Codec::Brotli, Codec::Snappy] {
            assert!(unpacked(codec, &absurd).is_err());
        }
    }
}
